//! Decides what a row says before a call's first byte is sent.

use super::{Attempt, Event, Phase, StoredCall, Task};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAttempt {
    First,
    /// Again, as a new attempt. `is_counted`: whether the row says that this process resumed the call.
    Again {
        is_counted: bool,
    },
}

impl SendAttempt {
    pub const fn number(self, current: Attempt) -> Attempt {
        match self {
            Self::First => current,
            Self::Again { .. } => Attempt(current.0 + 1),
        }
    }

    /// The events to store, in one commit, before the call's first byte is sent. Nothing is sent if the last one has no
    /// effect.
    pub fn events(self, current: Attempt, call: impl FnOnce() -> Option<StoredCall>) -> Vec<Event> {
        match self {
            Self::First => vec![Event::Dispatched { attempt: current, call: call() }],
            Self::Again { is_counted: true } => vec![Event::Resent { attempt: current }],
            Self::Again { is_counted: false } => {
                vec![Event::TakenUp { attempt: current }, Event::Resent { attempt: current }]
            }
        }
    }

    pub fn is_stored(self, current: Attempt, task: &Task) -> bool {
        matches!(task.phase, Phase::Working) && task.attempt == self.number(current)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::contract::task;
    use crate::task::{Outcome, Question, Timestamp, transition};
    use crate::wire::Payload;

    const NOW: Timestamp = Timestamp::from_millis(1_000_500);

    fn any_send() -> impl Strategy<Value = SendAttempt> {
        prop_oneof![Just(SendAttempt::First), any::<bool>().prop_map(|is_counted| SendAttempt::Again { is_counted })]
    }

    fn any_phase() -> impl Strategy<Value = Phase> {
        let question = Question { ask: Payload::of(&1), request: Payload::of("q") };
        prop_oneof![
            Just(Phase::Queued),
            Just(Phase::Working),
            Just(Phase::AwaitingInput([(crate::task::InputKey(0), question)].into())),
            Just(Phase::Settled(Outcome::Cancelled)),
        ]
    }

    /// The task after the events, and whether the last one had an effect.
    fn stored(mut task: Task, events: Vec<Event>) -> (Task, bool) {
        let mut has_effect = false;
        for event in events {
            let (next, effects) = transition(task, event, NOW);
            (task, has_effect) = (next, !effects.is_empty());
        }
        (task, has_effect)
    }

    proptest! {
        #[test]
        fn a_stored_send_is_recognized_and_stored_once(
            send in any_send(),
            phase in any_phase(),
            number in 1_u32..4,
            later in 0_u32..2,
        ) {
            let current = Attempt(number);
            let before = Task { phase, attempt: Attempt(number + later), ..task("a", 1) };
            let (after, may_send) = stored(before.clone(), send.events(current, || None));
            // A settled task is not sent (L6), nor is an attempt that a later one replaced.
            prop_assert!(!may_send || !(before.is_settled() || later > 0));
            prop_assert!(!may_send || send.is_stored(current, &after));
            let (again, may_send_again) = stored(after.clone(), send.events(current, || None));
            prop_assert!(!may_send_again || !may_send);
            prop_assert!(!may_send || again == after);
            // A call that is queued is sent for the first time, and any other is sent again.
            let is_queued = matches!(before.phase, Phase::Queued);
            let fits = is_queued == (send == SendAttempt::First);
            prop_assert_eq!(may_send, fits && later == 0 && !before.is_settled());
        }
    }
}
