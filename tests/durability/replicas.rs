//! Two and three gateways on one PostgreSQL database, each a process of its own, that are killed, stopped for longer
//! than the lease, or cut off from the database or from each other, or whose database fails. Servers keep a ledger of
//! the calls that they received, and the answers of every gateway are checked against L1 to L8.
//!
//! `REPLICA_KILLS` is how often one with a thousand tasks is killed (1, with a short lease); `REPLICA_FAILOVERS` how often the
//! database's leader is killed under so many (1, under fewer).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod audit;
mod clocks;
mod courses;
mod cut_off;
mod database;
mod failover;
mod forks;
mod harness;
mod isolation;
mod keys;
mod killed;
mod networks;
mod paused;
mod polls;
mod pooler;
mod starts;
mod upgrades;
mod waits;
mod writes;
