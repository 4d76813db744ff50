//! Suites that call public methods of the engine and of what stands around it.

mod duplex;
mod oracle;
mod replicas;
mod scenarios;
mod two_lives;
