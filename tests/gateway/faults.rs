//! Faults of upstreams, networks and clients, each with its promised outcome, through a whole gateway. The ledger
//! records the calls that arrived at the upstream.
//!
//! Proven elsewhere, in suites with less around them:
//!
//! | fault | by |
//! |---|---|
//! | F27 | `upstream::transport::http_client::tests::f27_an_unanswered_connect_ends_at_its_limit_and_nothing_was_sent`, `tests/soak/black_hole.sh` |
//! | F34, F35, F36, F37 | `upstream_http::answers`: malformed events, comments without end, bounds, foreign ids |
//! | F38, F39 | `upstream_http::sessions`: a second 404, one handshake for all waiting calls |
//! | F47, F48 | `scenarios::leaving`: each moment between the body and the handle |
//! | F49 | `scenarios::leaving::a_client_that_closes_its_stream_cancels_its_call` and `session_wire::streams::a_client_that_leaves_closes_the_stream_and_cancels_nothing` |
//! | F50 | `scenarios::lifetime::the_sweeper_runs_without_any_request` |
//! | F53 to F57 | the disk store's own tests, and `soak/` for real disks |
//! | F58 | `operations::clock`: the program with a clock that is set |
//! | F59 | `kill_cycles`: a process that is stopped and goes on |
//! | F60 | `sockets_http::life::a_shortage_of_descriptors_passes` |
//! | F63 | `scenarios::store_faults::a_slow_store_delays_no_other_task` |
//! | F64 | `sockets_http::life::a_panic_is_a_bare_500`, `scenarios::faults::a_panicking_exchange_settles_its_task_and_answers_its_caller` |
//! | F65 | `sockets_http::tls::a_certificate_that_was_replaced_is_shown_without_a_restart` |
//! | F66 | the tests of the reload |

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod busy;
mod clients;
mod setup;
mod upstreams;

use support::certificates;
use support::fault_proxy;
use support::history;
use support::ledger;
use support::scripted as upstream;
use support::session_client as client;
use support::wire_client;
