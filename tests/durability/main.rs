//! Suites that end the program, or cut its power, and look at what is left.

mod kill_cycles;
mod power_cut;
mod restarts;
