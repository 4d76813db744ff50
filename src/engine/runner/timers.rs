//! Holds the times at which a runner acts, and acts when one is due. All share one sleep: a separate sleep for each
//! took more memory than the rest of a call's wait.

use tokio::time::Instant;

use super::{Runner, RunnerFlow};

#[derive(Clone, Copy)]
enum RunnerTimer {
    Store,
    Queue,
    Round,
    Grace,
    Input,
    Progress,
    Checkpoint,
}

impl Runner {
    /// In order of priority if several are due.
    fn timers(&self) -> [(Option<Instant>, RunnerTimer); 7] {
        [
            (self.recorder.store_due(), RunnerTimer::Store),
            (self.call.queue_end(), RunnerTimer::Queue),
            (self.dialog.questions().round_due(), RunnerTimer::Round),
            (self.dialog.grace_end(), RunnerTimer::Grace),
            (self.dialog.questions().overdue_at(), RunnerTimer::Input),
            (self.recorder.progress_due(), RunnerTimer::Progress),
            (self.recorder.check_due(), RunnerTimer::Checkpoint),
        ]
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers().into_iter().filter_map(|(due, _)| due).min()
    }

    pub(super) async fn serve_timer(&mut self, is_due: impl Fn(Instant) -> bool) -> RunnerFlow {
        match self.timers().into_iter().find(|(due, _)| due.is_some_and(&is_due)) {
            Some((_, RunnerTimer::Store)) => self.try_again().await,
            Some((_, RunnerTimer::Queue)) => self.queue_over().await,
            Some((_, RunnerTimer::Round)) => self.ask_client().await,
            Some((_, RunnerTimer::Grace)) => self.grace_over().await,
            Some((_, RunnerTimer::Input)) => self.expire_inputs().await,
            Some((_, RunnerTimer::Progress)) => self.store_progress().await,
            Some((_, RunnerTimer::Checkpoint)) => self.checkpoint_due().await,
            None => RunnerFlow::Continue,
        }
    }
}
