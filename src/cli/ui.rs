//! What the user sees and says, whatever terminal there is or is not.

use async_trait::async_trait;

use crate::upstream;

/// Where the user looks and types. Implementations keep what a server says from controlling a terminal.
#[async_trait]
pub trait Ui: Send {
    /// How the call stands; replaces what was shown before.
    fn status(&mut self, status: &CallStatus<'_>);
    /// Something worth a line of its own.
    fn note(&mut self, text: &str);
    /// A part of the result.
    fn output(&mut self, text: &str);
    /// Whether people read the result, and not a program.
    fn is_for_people(&self) -> bool {
        false
    }
    /// Shows `prompt` and returns the line that is typed then; `None` once there is no more input (Ctrl-D).
    /// Dropping the future loses no line.
    async fn line(&mut self, prompt: &str) -> Option<String>;
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallStatus<'a> {
    /// The task, once there is one.
    pub task_id: Option<&'a str>,
    pub word: &'a str,
    pub message: Option<&'a str>,
    pub steps: Option<StepCount>,
}

/// Progress as a server reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

impl ProgressReport {
    /// Reads what an upstream told; `None` if its numbers are out of reach.
    pub(super) fn of(told: &upstream::Progress) -> Option<Self> {
        let total = told.total.as_ref().and_then(|total| total.read().ok());
        let message = told.message.as_deref().map(str::to_owned);
        Some(Self { progress: told.progress.read().ok()?, total, message })
    }
}

/// So many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCount {
    pub done: u64,
    pub total: u64,
}

impl StepCount {
    /// Finds "3/10" in a text. Progress of an extension task has no other way to the client (GW-24).
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        text.match_indices('/').find_map(|(at, _)| {
            let (before, after) = (text[..at].trim_end(), text[at + 1..].trim_start());
            let done = before.bytes().rev().take_while(u8::is_ascii_digit).count();
            let total = after.bytes().take_while(u8::is_ascii_digit).count();
            Self::new(before[before.len() - done..].parse().ok()?, after[..total].parse().ok()?)
        })
    }

    /// Reads progress with a total; without one there is no bar to draw.
    #[must_use]
    pub fn of(progress: &ProgressReport) -> Option<Self> {
        let (done, total) = (progress.progress, progress.total.filter(|&total| total > 0.0)?);
        // Fractions of one are common; they are shown as percents. The casts saturate.
        let scale = if total.fract() == 0.0 && total > 1.0 { 1.0 } else { 100.0 / total };
        Self::new((done * scale) as u64, (total * scale).round() as u64)
    }

    fn new(done: u64, total: u64) -> Option<Self> {
        (done <= total && total > 0).then_some(Self { done, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_in_status_messages() {
        for (text, steps) in [
            ("3/10", Some((3, 10))),
            ("section 3/10 written", Some((3, 10))),
            ("step 3 / 10", Some((3, 10))),
            ("and/or 2/4", Some((2, 4))),
            ("é7/8", Some((7, 8))),
            ("11/10", None),
            ("0/0", None),
            ("/10", None),
            ("3/", None),
            ("99999999999999999999999/1", None),
            ("working", None),
            ("", None),
        ] {
            let found = StepCount::find(text).map(|steps| (steps.done, steps.total));
            assert_eq!(found, steps, "{text:?}");
        }
    }

    #[test]
    fn progress_becomes_steps_or_percents() {
        for (progress, total, steps) in [
            (3.0, Some(10.0), Some((3, 10))),
            (0.25, Some(1.0), Some((25, 100))),
            (0.5, Some(2.5), Some((20, 100))),
            (3.0, None, None),
            (1.0, Some(0.0), None),
            (1.0, Some(-4.0), None),
            (5.0, Some(4.0), None),
        ] {
            let found = StepCount::of(&ProgressReport { progress, total, message: None });
            assert_eq!(found.map(|steps| (steps.done, steps.total)), steps, "{progress} of {total:?}");
        }
    }
}
