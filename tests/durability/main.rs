//! Suites that kill the program, or cut its power, and check its state afterwards.

mod chosen_ids;
mod endpoint_sessions;
mod endpoint_twin;
mod isolation;
mod keys;
mod kill_cycles;
mod power_cut;
mod replicas;
mod restarts;
mod split_calls;
mod subtasks;
