//! Declares the keys of `[limits]`.

use std::time::Duration;

use super::super::keys::keys;
use super::super::value::{DURATION, SIZE};

keys! {
    /// `[limits]`, but for the limits of each principal.
    struct RawLimits {
        /// Largest body of a client's request; a larger one is answered 413.
        reload body_bytes_max: usize = read(&SIZE), default "4MiB";
        /// Largest result, and largest single message, of an upstream; a larger one is `result_too_large`.
        reload result_bytes_max: usize = read(&SIZE), default "32MiB";
        /// Unsettled tasks of all principals together. Further ones are refused (`too_many_tasks`).
        reload tasks_max: u32 = count(1), default 100_000;
        /// All tasks in the store, settled ones included; each counts as at least 1 KiB. A full store refuses new tasks
        /// (`store_full`) and drops none: the result of an accepted task is stored even above the bound, at most
        /// `result_bytes_max` for each. With `kind = "memory"` the default is 1 GiB, and a result that would take the
        /// store a quarter above its bound is dropped (`failed`, `store_full`).
        restart stored_bytes_max: usize = read(&SIZE), shown "`\"8GiB\"`";
        /// Bytes of responses to all clients, from a server's first byte until the client has the last. Above it the
        /// gateway stops reading from servers and refuses new requests (`answers_full`). One more request may always be
        /// in progress. Responses of at most 64 KiB, and responses that are forwarded chunk by chunk, are not counted.
        /// Above the bound a server over stdio or HTTP+SSE is not read at all, so other calls in the same process or
        /// stream wait too. A response waits for room for a minute at most; then its call ends with `executed: "yes"`.
        /// The gateway disconnects a client that reads less than 1 KiB/s for 30 s; over HTTP/2 it resets a stream
        /// without room for a piece of at most 16 KiB within 30 s. Two principals that read a little faster can occupy
        /// all the bytes for hours; small responses of others still pass, and large ones one after another.
        reload answer_bytes_max: usize = read(&SIZE), default "128MiB";
        /// Connections from clients at one time. The gateway reduces it if the limit on open files is too low, and logs
        /// that.
        restart connections_max: u32 = count(1), default 10_000;
        /// How long a shutdown waits for calls in progress ([what to set](docs/operating.md#start-and-stop)).
        reload drain_max: Duration = read(&DURATION), default "5m", bounds "`\"0s\"` to `\"3650d\"`";
    }
}

keys! {
    /// The limits of each principal, in `[limits]` or beside an API key.
    struct RawPrincipalLimits {
        /// Requests a second of one principal, without polls (`tasks/get`, `tasks/result`). If no credentials are
        /// required, clients are counted by address (IPv6: by /64); the local user on loopback is not counted. More are
        /// refused (`rate_limited`).
        reload requests_per_second: u32 = count(1), shown "`50`";
        /// How many of them may arrive at once.
        reload requests_burst: u32 = count(1), shown "`100`";
        /// Polls a second for each unfinished task of the principal, in addition to 50. Tasks that ended in the last 10
        /// s count as unfinished.
        reload polls_per_task: u32 = count(1), shown "`2`";
        /// Unsettled tasks of one principal (`too_many_tasks`). All anonymous clients are one.
        reload tasks_per_principal_max: u32 = count(1), shown "`1_000`";
        /// All tasks of one principal in the store, as `stored_bytes_max` counts them. A principal above it gets no new
        /// tasks (`too_much_stored`); results of its existing tasks are stored.
        reload stored_bytes_per_principal_max: usize = read(&SIZE), shown "`\"256MiB\"`";
        /// The same for the responses to one principal (`too_much_unread`). The default is half of `answer_bytes_max`.
        reload answer_bytes_per_principal_max: usize = read(&SIZE), shown "`\"64MiB\"`";
        /// Open streams of notifications of one principal (`too_many_listeners`), anonymous clients by address.
        /// HTTP+SSE clients, which have a stream for each session, may have four times as many.
        reload streams_per_principal_max: u32 = count(1), shown "`64`";
        /// The percentage of a server's permits (`in_flight_max`), queue (`queue_max`) and processes (`processes_max`)
        /// that one of several principals may have.
        reload permits_percent_max: u32 = count_in(1..=100), shown "`75`";
    }
}
