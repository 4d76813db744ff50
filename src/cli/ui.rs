//! Defines the user interface of a call, with or without a terminal.

use std::io;

use async_trait::async_trait;

use crate::upstream;

/// Output and input of a call. Implementations neutralise terminal control characters of servers.
#[async_trait]
pub trait Ui: Send {
    /// The call's status; replaces the previous one.
    fn status(&mut self, status: &CallStatus<'_>);
    fn note(&mut self, text: &str);
    fn output(&mut self, text: &str);
    /// Takes the error of an output that was not written.
    fn lost_output(&mut self) -> Option<io::Error> {
        None
    }
    /// Whether a person reads the result, and not a program.
    fn is_for_people(&self) -> bool {
        false
    }
    /// Shows `prompt` and returns the typed line; `None` at the end of the input (Ctrl-D). Cancel safe.
    async fn line(&mut self, prompt: &str) -> Option<String>;
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallStatus<'a> {
    pub task_id: Option<&'a str>,
    pub text: &'a str,
    pub message: Option<&'a str>,
    pub steps: Option<StepCount>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

impl ProgressReport {
    /// Converts an upstream's progress; `None` if its numbers do not fit.
    pub(super) fn of(progress: &upstream::Progress) -> Option<Self> {
        let total = progress.total.as_ref().and_then(|total| total.read().ok());
        let message = progress.message.as_deref().map(str::to_owned);
        Some(Self { progress: progress.progress.read().ok()?, total, message })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCount {
    pub done: u64,
    pub total: u64,
}

impl StepCount {
    /// Finds "3/10" in a text. An extension task has no other way to report progress (GW-24).
    pub fn find(text: &str) -> Option<Self> {
        text.match_indices('/').find_map(|(at, _)| {
            let (before, after) = (text[..at].trim_end(), text[at + 1..].trim_start());
            let done = before.bytes().rev().take_while(u8::is_ascii_digit).count();
            let total = after.bytes().take_while(u8::is_ascii_digit).count();
            Self::new(before[before.len() - done..].parse().ok()?, after[..total].parse().ok()?)
        })
    }

    /// Converts progress with a total; without one there is no bar.
    pub fn of(progress: &ProgressReport) -> Option<Self> {
        let (done, total) = (progress.progress, progress.total.filter(|&total| total > 0.0)?);
        // Fractions of one are common, and shown as percentages. The casts saturate.
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
