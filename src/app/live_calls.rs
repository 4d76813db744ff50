//! Lists the calls in progress for the log, and ends them.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::task::Reason;
use crate::upstream::limits::{CallCounts, CallPermitsByName};

const NAMED_MAX: usize = 8;
/// The time to notify waiting clients when the gateway ends at once.
pub(super) const NOTIFY_MAX: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub(super) struct LiveCalls {
    pub(super) engine: Arc<Engine>,
    pub(super) permits: Arc<CallPermitsByName>,
}

impl LiveCalls {
    pub(super) fn survey(&self) -> CallSurvey {
        let mut by_upstream = self.permits.in_progress();
        by_upstream.sort_by(|(a, of_a), (b, of_b)| all(of_b).cmp(&all(of_a)).then_with(|| a.cmp(b)));
        CallSurvey(by_upstream)
    }

    pub(super) async fn have_ended(&self) {
        while !self.survey().is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends all calls, and returns their counts. Waiting clients are notified in the background.
    pub(super) fn end(&self, why: Reason) -> CallSurvey {
        let ended = self.survey();
        self.engine.end_calls(why);
        ended
    }
}

const fn all(counts: &CallCounts) -> usize {
    counts.held + counts.lost + counts.repeated + counts.resumed
}

/// Calls in progress by upstream, the busiest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallSurvey(Vec<(Arc<str>, CallCounts)>);

impl CallSurvey {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sum(&self, of: impl Fn(&CallCounts) -> usize) -> usize {
        self.0.iter().map(|(_, counts)| of(counts)).sum()
    }

    pub(super) fn held(&self) -> usize {
        self.sum(|counts| counts.held)
    }

    pub(super) fn tasks(&self) -> usize {
        self.sum(|counts| counts.lost + counts.repeated + counts.resumed)
    }

    pub(super) fn lost(&self) -> usize {
        self.sum(|counts| counts.held + counts.lost)
    }
}

/// `reports: 2 held, 1 in tasks, 1 to be resumed; files: 1 held`, bounded.
impl Display for CallSurvey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (name, counts)) in self.0.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{}{name}: ", if index == 0 { "" } else { "; " })?;
            let kinds = [
                (counts.held, "held"),
                (counts.lost, "in tasks"),
                (counts.repeated, "to be sent again"),
                (counts.resumed, "to be resumed"),
            ];
            for (index, (count, kind)) in kinds.into_iter().filter(|(count, _)| *count > 0).enumerate() {
                write!(f, "{}{count} {kind}", if index == 0 { "" } else { ", " })?;
            }
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and at {more} upstreams more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(of: &[(&str, [usize; 4])]) -> CallSurvey {
        let counts = |[held, lost, repeated, resumed]: [usize; 4]| CallCounts { held, lost, repeated, resumed };
        CallSurvey(of.iter().map(|(name, of)| (Arc::from(*name), counts(*of))).collect())
    }

    #[test]
    fn a_survey_names_upstreams_and_kinds() {
        for (of, said) in [
            (&[][..], "none"),
            (&[("a", [1, 0, 0, 0])], "a: 1 held"),
            (
                &[("a", [2, 1, 0, 0]), ("b", [0, 0, 3, 4])],
                "a: 2 held, 1 in tasks; b: 3 to be sent again, 4 to be resumed",
            ),
            (&[("a", [0, 2, 0, 0])], "a: 2 in tasks"),
        ] {
            assert_eq!(survey(of).to_string(), said);
        }
    }

    #[test]
    fn a_survey_of_many_upstreams_is_a_short_line() {
        let names: Vec<_> = (0..200).map(|n| format!("upstream-{n}")).collect();
        let of: Vec<_> = names.iter().map(|name| (name.as_str(), [9_999; 4])).collect();
        let said = survey(&of).to_string();
        assert!(said.ends_with("; and at 192 upstreams more") && said.len() < 1_000, "{said}");
    }

    #[test]
    fn calls_that_the_next_process_continues_are_not_lost() {
        let survey = survey(&[("a", [1, 2, 4, 8]), ("b", [16, 0, 0, 0])]);
        assert_eq!((survey.held(), survey.tasks(), survey.lost()), (17, 14, 19));
    }
}
