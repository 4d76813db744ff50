//! Ends the process at a named point, like `kill -9`, to test recovery. In release builds every function is empty.
//!
//! `TASKGATE_FAILPOINT=name:n` ends the process at visit `n`, from 1, of a point. `TASKGATE_STRIKE=name:n` injects a
//! fault from visit `n` on; `commit-made` is a commit that succeeds and is reported as failed, as by a failed sync
//! after the log was written (F54). `TASKGATE_SABOTAGE=name` breaks a guarantee, to show that its test notices.
//!
//! | fault | point | just before |
//! |---|---|---|
//! | F01 | `accepted` | an accepted connection is read |
//! | F02 | `admitted` | the row of a call with a permit is handed to the store |
//! | F03 | `intent-written` | the store makes written rows durable |
//! | F04 | `intent-durable` | the first byte of a call with a durable row goes upstream |
//! | F07 | `handle-durable` | the answer with the handle is made |
//! | F08 | `handle-half-written` | the second half of the answer with the handle is written |
//! | F10 | `event-heard` | the position of an event in its stream is stored |
//! | F11 | `question-heard` | a question is stored |
//! | F12 | `question-stored` | a stored question is sent to anyone |
//! | F13 | `answer-heard` | an answer is stored |
//! | F14 | `answer-stored` | a stored answer goes upstream |
//! | F15 | `answer-delivered` | an answer that went upstream is marked as such |
//! | F17 | `outcome-heard` | the outcome of a call is stored |
//! | F18 | `outcome-stored` | a stored outcome is sent to anyone |
//! | F19 | `cancel-heard` | a cancel is stored |
//! | F20 | `cancel-stored` | a stored cancel is sent upstream |
//! | F21 | `sweeping` | expired rows are freed |
//! | F22 | `checkpointing` | the store tidies its files |
//! | F23 | `recovering` | a row of an earlier process is examined |
//! | F24 | `reloading` | a new configuration is applied |
//! | F25 | `draining` | calls in progress are awaited at the end |
//! | F69 | `subtasks-stored` | the parent task lists its stored subtasks |
//!
//! F05, F06, F09 and F16 need no point: the upstream sees that they are reached, and the test kills from outside.

#[cfg(debug_assertions)]
pub use armed::{is_armed, is_due, is_sabotaged, strikes};

/// Ends the process if this is the visit that the environment names.
#[cfg(debug_assertions)]
pub fn hit(name: &str) {
    if is_due(name) {
        die();
    }
}

/// Ends the process at once, as `kill -9` does.
#[cfg(debug_assertions)]
pub fn die() -> ! {
    #[cfg(unix)]
    // It cannot fail: a process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort();
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn hit(_: &str) {}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn is_sabotaged(_: &str) -> bool {
    false
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn strikes(_: &str) -> bool {
    false
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug)]
    pub(super) struct ArmedFailpoint {
        name: String,
        nth: u32,
        visits: AtomicU32,
    }

    impl ArmedFailpoint {
        /// `None` unless the text is `name:n` with a positive `n`.
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (name, nth) = text.split_once(':')?;
            let nth = nth.parse().ok().filter(|nth| *nth > 0)?;
            Some(Self { name: name.to_owned(), nth, visits: AtomicU32::new(0) })
        }

        /// Counts a visit; returns whether it is the named one.
        pub(super) fn visit(&self, name: &str) -> bool {
            name == self.name && self.visits.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
        }
    }

    /// Counts a visit; returns whether the environment injects a fault here.
    pub fn strikes(name: &str) -> bool {
        static STRIKE: OnceLock<Option<ArmedFailpoint>> = OnceLock::new();
        let armed = STRIKE.get_or_init(|| ArmedFailpoint::parse(&std::env::var("TASKGATE_STRIKE").ok()?)).as_ref();
        armed.is_some_and(|armed| armed.name == name && armed.visits.fetch_add(1, Ordering::Relaxed) + 1 >= armed.nth)
    }

    fn armed() -> Option<&'static ArmedFailpoint> {
        static ARMED: OnceLock<Option<ArmedFailpoint>> = OnceLock::new();
        ARMED.get_or_init(|| ArmedFailpoint::parse(&std::env::var("TASKGATE_FAILPOINT").ok()?)).as_ref()
    }

    /// Whether the environment names this point.
    pub fn is_armed(name: &str) -> bool {
        armed().is_some_and(|armed| armed.name == name)
    }

    /// Counts a visit; returns whether it is the one that the environment names.
    pub fn is_due(name: &str) -> bool {
        armed().is_some_and(|armed| armed.visit(name))
    }

    /// Whether the environment asks to break this guarantee.
    pub fn is_sabotaged(name: &str) -> bool {
        static SABOTAGE: OnceLock<Option<String>> = OnceLock::new();
        SABOTAGE.get_or_init(|| std::env::var("TASKGATE_SABOTAGE").ok()).as_deref() == Some(name)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(debug_assertions)]
    #[test]
    fn only_the_named_visit_to_the_named_point_is_due() {
        use super::armed::ArmedFailpoint;

        let armed = ArmedFailpoint::parse("sweeping:2").unwrap();
        let visits = ["sweeping", "draining", "sweeping", "sweeping"].map(|name| armed.visit(name));
        assert_eq!(visits, [false, false, true, false]);
        for wrong in ["", "sweeping", "sweeping:", "sweeping:0", "sweeping:x"] {
            assert!(ArmedFailpoint::parse(wrong).is_none(), "{wrong}");
        }
    }
}
