//! The actions of replicas: every decision that the program makes by `taskgate::replica` is made by the same functions
//! here; the others are [restated](super::super::restated).

use super::*;

/// How many transactions lie before their server for a while.
const LATE_PER_MILLE: usize = 80;
const RECENT_TASKS: usize = 8;

impl World {
    /// A replica does one thing, if it is not paused and does not wait.
    pub(super) fn step(&mut self, at: usize) {
        let replica = &self.replicas[at];
        if replica.is_paused || replica.waiting.is_some() {
            return;
        }
        if !replica.is_registered {
            return self.transact(at, 0, Action::Register);
        }
        let server = &self.servers[replica.server];
        if self.keeps(Rule::BarrierFirst) && !replica.trust.may_settle(server.mark) {
            return self.transact(at, 0, Action::Beat);
        }
        // Unwritten rows are found and their handles sent far more often where the run is about them.
        let draws = if self.keeps(Rule::EmptyBatchWrites) { 100 } else { 160 };
        match self.choices.below(draws) {
            100.. => self.repeat(at),
            0..7 => self.transact(at, 0, Action::Beat),
            7..18 if !self.is_healing && replica.jobs.len() < JOBS_MAX => self.create(at),
            18..34 => self.take_over(at),
            34..46 => self.poll(at),
            46..48 => self.cancel(at),
            48..53 => self.repeat(at),
            _ => self.go_on(at),
        }
    }

    fn seen(&self, at: usize) -> &Table {
        &self.servers[self.replicas[at].server].seen
    }

    fn create(&mut self, at: usize) {
        let task = self.judge.new_task();
        let guard = GuardedRow { revision: 1, holder: Some(self.replicas[at].incarnation) };
        let job =
            Job { task, stage: Stage::Insert, sending: Sending::NotSent, is_stored: false, in_doubt: None, guard };
        self.replicas[at].jobs.push(job);
    }

    /// Declares a replica dead, or claims a row of a dead one.
    fn take_over(&mut self, at: usize) {
        let own = self.replicas[at].incarnation;
        let seen = self.seen(at);
        let living: Vec<_> = seen.lines().filter(|(other, line)| *other != own && !line.is_dead).collect();
        let is_dead = |holder| seen.line(holder).is_some_and(|line| line.is_dead);
        let rows = seen.tasks.iter().enumerate().filter_map(|(task, row)| row.map(|row| (task, row)));
        let rows: Vec<_> = rows.filter(|(_, row)| may_claim(row.guard, own, is_dead)).collect();
        if self.choices.per_mille(250)
            && let Some((incarnation, line)) = self.choices.one_of(&living)
        {
            return self.transact(at, 0, Action::DeclareDead(DeathClaim { incarnation, heartbeat: line.beat }));
        }
        if let Some((task, row)) = self.choices.one_of(&rows) {
            if self.keeps(Rule::ClaimEndsRunner) {
                self.replicas[at].drop_job(task);
            }
            let claim = GuardedWrite::by_command(row.guard.revision);
            self.transact(at, task, Action::Claim(claim, TaskRow { guard: claimed(row.guard, own), ..row }));
        }
    }

    /// One of the newest tasks: no failover reverts one that settled long ago.
    fn recent_task(&mut self) -> Option<usize> {
        let back = 1 + self.choices.below(RECENT_TASKS);
        self.judge.count().checked_sub(back)
    }

    /// One that clients have a handle of.
    fn any_handle(&mut self) -> Option<usize> {
        self.recent_task().filter(|task| self.judge.told(*task).has_handle)
    }

    fn poll(&mut self, at: usize) {
        let Some(task) = self.any_handle() else { return };
        let (row, before) = (self.seen(at).task(task), self.judge.told(task).shown);
        if self.keeps(Rule::BarrierAfterRead) && self.keeps(Rule::BarrierFirst) {
            let received = self.at();
            self.transact(at, task, Action::Answer { row, before, received });
        } else {
            self.judge.answered(task, row, before);
        }
    }

    fn cancel(&mut self, at: usize) {
        let Some(task) = self.any_handle() else { return };
        let Some(row) = self.seen(at).task(task).filter(|row| row.guard.holder.is_some()) else { return };
        let settled = settled(Outcome::Cancelled, row.guard);
        self.transact(at, task, Action::Cancel(GuardedWrite::by_command(row.guard.revision), settled));
    }

    fn repeat(&mut self, at: usize) {
        let Some(task) = self.recent_task() else { return };
        // The replica that inserted a row with an unknown commit shows it to no client.
        let is_hidden = self.replicas[at].job(task).is_some_and(|job| !job.is_stored);
        if self.seen(at).task(task).is_some() && !is_hidden {
            self.transact(at, task, Action::Repeat);
        }
    }

    fn go_on(&mut self, at: usize) {
        let Some(job) = self.choices.one_of(&self.replicas[at].jobs) else { return };
        let own = self.replicas[at].incarnation;
        let task = job.task;
        let replace = |row| Action::Replace(GuardedWrite::by_holder(own, job.guard.revision), row);
        match job.stage {
            Stage::Insert => {
                self.transact(at, task, Action::Insert(TaskRow { phase: Phase::Queued, guard: job.guard }));
            }
            Stage::Dispatch => {
                if !self.keeps(Rule::DispatchBeforeSend) {
                    self.send(at, task);
                }
                let guard = GuardedRow { revision: job.guard.revision + 1, holder: Some(own) };
                self.transact(at, task, replace(TaskRow { phase: Phase::Dispatching, guard }));
            }
            Stage::Send => self.send(at, task),
            Stage::Settle if job.sending == Sending::Sent => {
                self.transact(at, task, replace(settled(Outcome::Returned(own), job.guard)));
            }
            Stage::Settle => self.transact(at, task, replace(settled(Outcome::ReplicaLost(own), job.guard))),
            Stage::Reload => self.reload(at, job),
        }
    }

    fn send(&mut self, at: usize, task: usize) {
        self.tell(format_args!("{at}: sends {task}"));
        self.judge.sent(task);
        if let Some(job) = self.replicas[at].job(task) {
            (job.stage, job.sending) = (Stage::Settle, Sending::Sent);
        }
    }

    /// The row resolves an unknown commit, or tells which write was first.
    fn reload(&mut self, at: usize, job: Job) {
        let row = self.seen(at).task(job.task);
        self.tell(format_args!("{at}: reloads {row:?} for {job:?}"));
        let end = job
            .in_doubt
            .map(|(before, written)| settle(before, written.guard, row.map(|row| (row.guard, row == written))));
        match (end, job.in_doubt) {
            (Some(DoubtEnd::NotMade), Some((None, _))) => {
                self.judge.refused(job.task);
                self.replicas[at].drop_job(job.task);
            }
            (Some(DoubtEnd::Made), Some((None, written))) => {
                let own = GuardedWrite::by_holder(self.replicas[at].incarnation, written.guard.revision);
                return self.transact(at, job.task, Action::Withdraw(own));
            }
            (Some(DoubtEnd::Made), Some((Some(_), written))) => replaced(&mut self.replicas[at], job.task, written),
            _ => self.replicas[at].reloaded(job.task, row),
        }
        if !job.is_stored && self.replicas[at].job(job.task).is_some() {
            self.judge.gave_handle(job.task);
        }
    }

    /// Sends a transaction. Mostly its server reads it at once.
    fn transact(&mut self, at: usize, task: usize, action: Action) {
        self.commits += 1;
        let (id, sent) = (self.commits, self.at());
        let replica = &mut self.replicas[at];
        let (server, writer, epoch) = (replica.server, replica.incarnation, replica.epoch);
        let verdict = WriteVerdict::Conflict;
        replica.waiting =
            Some(Waiting { id, server, sent, names_standby: true, rows_written: 0, task, action, verdict });
        let batch = SentBatch { id, server, writer, epoch, task, action };
        if self.choices.per_mille(LATE_PER_MILLE) {
            self.on_their_way.push(batch);
        } else {
            self.arrive(batch);
        }
    }

    /// A server carries out a transaction, whether its writer still waits or not; one whose row is locked waits.
    pub(super) fn arrive(&mut self, batch: SentBatch) {
        let SentBatch { id, writer, epoch, task, action, .. } = batch;
        let server = &self.servers[batch.server];
        let (verdict, write) = self.judge_write(writer, &server.seen, task, action);
        let rows_written = u64::from(write.is_some() || self.keeps(Rule::EmptyBatchWrites));
        let names_standby = server.names_standby;
        let write = write.unwrap_or(Write::EpochOnly);
        // A row's absence is certain only once no transaction is about to insert it.
        let row = if let Action::Insert(row) = action { Write::Task(task, row) } else { write };
        if server.is_locked(row, writer, self.keeps(Rule::BarrierQueues)) {
            return self.on_their_way.push(batch);
        }
        let in_line = server.seen.epoch(writer);
        // Without a barrier first, any batch takes the epoch.
        let takes = matches!(action, Action::Register | Action::Beat) || !self.keeps(Rule::BarrierFirst);
        let is_admitted = if takes { epoch.may_be_taken(in_line) } else { epoch.is_admitted(in_line) };
        if self.keeps(Rule::BarrierCloses) && !is_admitted {
            let error = SqlNotice { severity: "ERROR", sqlstate: "P0001" };
            return self.tell_writer(id, |_, _| CommitEnd::Refused { error });
        }
        let waits_for_it = |replica: &&mut Replica| replica.waiting.is_some_and(|waiting| waiting.id == id);
        if let Some(waiting) = self.replicas.iter_mut().find(waits_for_it).and_then(|replica| replica.waiting.as_mut())
        {
            (waiting.verdict, waiting.rows_written, waiting.names_standby) = (verdict, rows_written, names_standby);
        }
        self.tell(format_args!("server {} writes {write:?} for {writer} in commit {id}: {verdict:?}", batch.server));
        if rows_written > 0 {
            self.servers[batch.server].commit(id, Batch { writer, epoch, write });
        }
        if rows_written == 0 || !names_standby {
            // It waits for nothing.
            self.tell_writer(id, |names_standby, rows_written| CommitEnd::Acknowledged {
                notices: &[],
                settings: settings(names_standby),
                rows_written,
            });
        }
    }

    /// The finding and the rows of a transaction, by the server's visible state.
    fn judge_write(
        &self,
        own: Incarnation,
        seen: &Table,
        task: usize,
        action: Action,
    ) -> (WriteVerdict, Option<Write>) {
        let row = seen.task(task);
        let guarded = |guard: GuardedWrite, new: TaskRow| {
            let verdict = guard.judge(row.map(|row| row.guard));
            (verdict, (verdict == WriteVerdict::Made).then_some(Write::Task(task, new)))
        };
        let made = |write| (WriteVerdict::Made, Some(write));
        match action {
            Action::Register => made(Write::Line(own, LineRow { beat: 0, is_dead: false })),
            Action::Beat | Action::Answer { .. } => match seen.line(own).filter(|line| !line.is_dead) {
                Some(line) => made(Write::Line(own, LineRow { beat: line.beat + 1, ..line })),
                None => (WriteVerdict::Fenced, None),
            },
            Action::DeclareDead(claim) => {
                let line = seen.line(claim.incarnation).filter(|line| holds(claim, *line));
                let dead = line.map(|line| Write::Line(claim.incarnation, LineRow { is_dead: true, ..line }));
                (WriteVerdict::Made, dead)
            }
            Action::Insert(new) if row.is_none() => made(Write::Task(task, new)),
            Action::Insert(_) => (WriteVerdict::Conflict, None),
            Action::Withdraw(guard) => {
                let verdict = guard.judge(row.map(|row| row.guard));
                let is_removed = verdict == WriteVerdict::Made || !self.keeps(Rule::WithdrawIsGuarded);
                (verdict, row.filter(|_| is_removed).map(|_| Write::Gone(task)))
            }
            Action::Repeat => match row {
                Some(row) if self.keeps(Rule::RepeatIsNoted) && is_untouched(row.guard, own) => {
                    let guard = GuardedRow { revision: row.guard.revision + 1, ..row.guard };
                    made(Write::Task(task, TaskRow { guard, ..row }))
                }
                Some(_) => (WriteVerdict::Made, None),
                None => (WriteVerdict::Conflict, None),
            },
            Action::Replace(_, new) if !self.keeps(Rule::GuardInWrite) => {
                match row.filter(|row| !matches!(row.phase, Phase::Settled(_))) {
                    Some(_) => made(Write::Task(task, new)),
                    None => (WriteVerdict::Conflict, None),
                }
            }
            Action::Replace(guard, new) | Action::Claim(guard, new) | Action::Cancel(guard, new) => guarded(guard, new),
        }
    }

    /// A replica learns how its transaction ended, or that it will not learn it.
    pub(super) fn ended(&mut self, at: usize, end: CommitEnd<'_>) {
        let Some(waiting) = self.replicas[at].waiting.take() else { return };
        self.tell(format_args!("{at}: {end:?} of {waiting:?}"));
        match self.fate(end) {
            WriteFate::Done => {
                let mark = self.servers[waiting.server].mark;
                self.replicas[at].trust.lane_write_passed(mark, waiting.sent);
                self.done(at, waiting);
            }
            WriteFate::NotDone => (),
            WriteFate::Unknown(doubt) => {
                let now = self.at();
                self.replicas[at].trust.write_unknown(now);
                self.replicas[at].epoch = self.replicas[at].epoch.next();
                if !matches!(doubt, UnknownCommitCause::Unreplicated | UnknownCommitCause::WroteNothing) {
                    self.connect(at);
                }
                self.in_doubt(at, waiting);
            }
        }
    }

    fn fate(&self, end: CommitEnd<'_>) -> WriteFate {
        let durability = if self.keeps(Rule::NamesAreChecked) { Durability::Replicated } else { Durability::Single };
        match (fate(durability, end), end) {
            (WriteFate::Unknown(UnknownCommitCause::Warned), _) if !self.keeps(Rule::WarningIsDoubt) => WriteFate::Done,
            (WriteFate::Unknown(UnknownCommitCause::WroteNothing), _) if !self.keeps(Rule::EmptyBatchWrites) => {
                WriteFate::Done
            }
            (fate, _) => fate,
        }
    }

    fn done(&mut self, at: usize, Waiting { server, task, action, verdict, .. }: Waiting) {
        let (now, mark) = (self.at(), self.servers[server].mark);
        let replica = &mut self.replicas[at];
        match (action, verdict) {
            // It was declared dead: it drops its state, and restarts.
            (Action::Register | Action::Beat | Action::Answer { .. }, WriteVerdict::Fenced) => {
                self.replicas[at] = self.new_replica();
            }
            (Action::Register, _) => replica.is_registered = true,
            (Action::Answer { row, before, received }, _) => {
                if replica.trust.judge(mark, received, now) == ReadVerdict::Trusted {
                    self.judge.answered(task, row, before);
                }
            }
            (Action::Insert(_), WriteVerdict::Made) => {
                if let Some(job) = replica.job(task) {
                    (job.stage, job.is_stored) = (Stage::Dispatch, true);
                }
                self.judge.gave_handle(task);
            }
            (Action::Replace(_, row), WriteVerdict::Made) => replaced(replica, task, row),
            (Action::Insert(_) | Action::Replace(..), WriteVerdict::Conflict) => {
                if let Some(job) = replica.job(task) {
                    job.stage = Stage::Reload;
                }
            }
            (Action::Replace(..) | Action::Withdraw(_), WriteVerdict::Fenced) => replica.drop_job(task),
            (Action::Withdraw(_), WriteVerdict::Made) => {
                replica.drop_job(task);
                self.judge.refused(task);
            }
            (Action::Claim(_, row), WriteVerdict::Made) => {
                let stage = if row.phase == Phase::Queued { Stage::Dispatch } else { Stage::Settle };
                replica.jobs.push(adopted(task, row, stage));
            }
            (Action::Repeat, WriteVerdict::Made) => self.judge.gave_handle(task),
            // Who has written the row since has shown it: it is read again.
            (Action::Withdraw(_), WriteVerdict::Conflict) => (),
            (
                Action::Beat
                | Action::DeclareDead(_)
                | Action::Claim(..)
                | Action::Cancel(..)
                | Action::Insert(_)
                | Action::Repeat,
                _,
            ) => (),
        }
    }

    fn in_doubt(&mut self, at: usize, Waiting { task, action, .. }: Waiting) {
        let replica = &mut self.replicas[at];
        match action {
            Action::Insert(row) | Action::Replace(_, row) => {
                if let Some(job) = replica.job(task) {
                    let before = job.is_stored.then_some(job.guard);
                    (job.stage, job.in_doubt) = (Stage::Reload, Some((before, row)));
                }
            }
            Action::Claim(_, row) if replica.job(task).is_none() => {
                replica.jobs.push(adopted(task, row, Stage::Reload))
            }
            // A client is told that the result is unknown, and retries; a heartbeat and a declared death are retried
            // anyway. A replica that is not registered for certain takes another number.
            Action::Register => self.replicas[at] = self.new_replica(),
            Action::Claim(..)
            | Action::Beat
            | Action::DeclareDead(_)
            | Action::Cancel(..)
            // The row is read again.
            | Action::Withdraw(_)
            | Action::Repeat
            | Action::Answer { .. } => (),
        }
    }
}

/// The row at the end of a call: it needs no holder.
const fn settled(outcome: Outcome, guard: GuardedRow) -> TaskRow {
    TaskRow { phase: Phase::Settled(outcome), guard: GuardedRow { revision: guard.revision + 1, holder: None } }
}

/// Whether no replica but its maker has written a row.
fn is_untouched(row: GuardedRow, reader: Incarnation) -> bool {
    row.revision == 1 && row.holder.is_some_and(|holder| holder != reader)
}

/// A row's job at its new holder. A dispatched call may have been sent: it is not sent again.
fn adopted(task: usize, row: TaskRow, stage: Stage) -> Job {
    let sending = if row.phase == Phase::Queued { Sending::NotSent } else { Sending::Unknown };
    Job { task, stage, sending, is_stored: true, in_doubt: None, guard: row.guard }
}

fn replaced(replica: &mut Replica, task: usize, row: TaskRow) {
    if matches!(row.phase, Phase::Settled(_)) {
        return replica.drop_job(task);
    }
    if let Some(job) = replica.job(task) {
        (job.guard, job.in_doubt) = (row.guard, None);
        job.stage = if job.sending == Sending::NotSent { Stage::Send } else { Stage::Settle };
    }
}
