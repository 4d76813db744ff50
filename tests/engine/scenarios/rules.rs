//! The operator's settings for the one tool of the scenarios.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use support::serving;
use taskgate::engine::ServiceSettings;
use taskgate::task::{AfterCrash, EarlyInput, SplitRule, TaskMode, ToolPolicy};

use super::world::{GRACE, seconds};

/// The settings that differ from test to test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) mode: TaskMode,
    pub(crate) ttl: Duration,
    pub(crate) keep_result_min: Duration,
    pub(crate) deadline: Duration,
    pub(crate) early_input: EarlyInput,
    pub(crate) fallback: taskgate::task::FallbackPolicy,
    /// Calls with a list `items` are split: so many run side by side, of so many at most.
    pub(crate) split: Option<(usize, usize)>,
    pub(crate) after_crash: AfterCrash,
    pub(crate) input_deadline: Duration,
    pub(crate) in_flight_max: usize,
    pub(crate) queue_max: usize,
    pub(crate) queue_deadline: Duration,
    pub(crate) tasks_max: usize,
    pub(crate) stored_bytes_max: usize,
    pub(crate) life_signs: bool,
    /// Whether the store outlives the process.
    pub(crate) durable: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Rules {
    pub(crate) const DEFAULT: Self = Self {
        mode: TaskMode::Auto,
        ttl: seconds(3600),
        keep_result_min: seconds(60),
        deadline: seconds(1800),
        early_input: EarlyInput::Task,
        fallback: taskgate::task::FallbackPolicy::Hold,
        split: None,
        after_crash: AfterCrash::Fail,
        input_deadline: seconds(600),
        in_flight_max: 2_000,
        queue_max: 100,
        queue_deadline: seconds(10),
        tasks_max: 2_000,
        stored_bytes_max: 64 << 20,
        life_signs: true,
        durable: false,
    };

    pub(crate) fn mode(mode: TaskMode) -> Self {
        Self { mode, ..Self::default() }
    }

    pub(crate) fn policy(&self) -> ToolPolicy {
        ToolPolicy {
            grace: GRACE,
            ttl: self.ttl,
            ttl_max: self.ttl,
            keep_result_min: self.keep_result_min,
            deadline: self.deadline,
            early_input: self.early_input,
            after_crash: self.after_crash,
            input_deadline: self.input_deadline,
            fallback: self.fallback,
            split: self.split.map(|(parallel, max)| {
                let number = |number| NonZeroUsize::new(number).unwrap();
                Arc::new(SplitRule { argument: Arc::from("items"), parallel: number(parallel), max: number(max) })
            }),
            ..serving::policy(self.mode)
        }
    }

    pub(crate) fn service(&self) -> ServiceSettings {
        ServiceSettings {
            queue_deadline: self.queue_deadline,
            life_signs: self.life_signs,
            ..serving::settings(self.policy())
        }
    }
}
