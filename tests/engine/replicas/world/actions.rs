//! What replicas do: every decision that the program makes by `taskgate::replica` is made by the same functions here.

use super::*;

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
        match self.choices.below(100) {
            0..10 => self.transact(at, 0, Action::Beat),
            10..26 if replica.jobs.len() < JOBS_MAX => self.create(at),
            26..40 => self.take_over(at),
            40..53 => self.poll(at),
            53..56 => self.cancel(at),
            56..59 => self.repeat(at),
            _ => self.go_on(at),
        }
    }

    fn seen(&self, at: usize) -> &Table {
        &self.servers[self.replicas[at].server].seen
    }

    fn create(&mut self, at: usize) {
        let task = self.judge.new_task();
        let guard = GuardedRow { revision: 1, holder: Some(self.replicas[at].incarnation) };
        let job = Job { task, stage: Stage::Insert, sending: Sending::NotSent, is_stored: false, guard };
        self.replicas[at].jobs.push(job);
    }

    /// Declares somebody dead, or claims a row of somebody who is.
    fn take_over(&mut self, at: usize) {
        let own = self.replicas[at].incarnation;
        let seen = self.seen(at);
        let living: Vec<_> = seen.lines().filter(|(other, line)| *other != own && !line.is_dead).collect();
        let is_dead = |holder| seen.line(holder).is_some_and(|line| line.is_dead);
        let rows = seen.tasks.iter().enumerate().filter_map(|(task, row)| row.map(|row| (task, row)));
        let rows: Vec<_> = rows.filter(|(_, row)| may_claim(row.guard, own, is_dead)).collect();
        if self.choices.per_mille(150)
            && let Some((incarnation, line)) = self.choices.one_of(&living)
        {
            return self.transact(at, 0, Action::DeclareDead(DeathClaim { incarnation, beat: line.beat }));
        }
        if let Some((task, row)) = self.choices.one_of(&rows) {
            let claim = GuardedWrite::by_command(row.guard.revision);
            self.transact(at, task, Action::Claim(claim, TaskRow { guard: claimed(row.guard, own), ..row }));
        }
    }

    /// One of the tasks that clients have handles of.
    fn any_handle(&mut self) -> Option<usize> {
        let task = self.choices.below(self.judge.count().max(1));
        (task < self.judge.count() && self.judge.told(task).has_handle).then_some(task)
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
        let task = self.choices.below(self.judge.count().max(1));
        if self.seen(at).task(task).is_some() {
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
        self.judge.sent(task);
        if let Some(job) = self.replicas[at].job(task) {
            (job.stage, job.sending) = (Stage::Settle, Sending::Sent);
        }
    }

    /// What became of a write in doubt, or who was first: the row says it.
    fn reload(&mut self, at: usize, job: Job) {
        let row = self.seen(at).task(job.task);
        if !job.is_stored && row.is_none() {
            self.judge.refused(job.task);
        }
        self.replicas[at].reloaded(job.task, row);
        if !job.is_stored && self.replicas[at].job(job.task).is_some() {
            self.judge.gave_handle(job.task);
        }
    }

    /// Begins a transaction. While its row is locked it is tried again later.
    fn transact(&mut self, at: usize, task: usize, action: Action) {
        let (own, server) = (self.replicas[at].incarnation, self.replicas[at].server);
        let (verdict, write) = self.judge_write(own, &self.servers[server].seen, task, action);
        let names_standby = self.servers[server].names_standby;
        self.commits += 1;
        let rows_written = u64::from(write.is_some() || self.keeps(Rule::EmptyBatchWrites));
        let id = self.commits;
        let waiting = Waiting { id, server, sent: self.at(), names_standby, rows_written, task, action, verdict };
        let write = write.unwrap_or(Write::MarkOnly);
        let locked_row = match action {
            Action::Insert(row) => Write::Task(task, row),
            _ => write,
        };
        if self.servers[server].is_locked(locked_row, own, self.keeps(Rule::BarrierQueues)) {
            return;
        }
        self.replicas[at].waiting = Some(waiting);
        if rows_written > 0 {
            self.servers[server].commit(id, own, write);
        }
        if rows_written == 0 || !names_standby {
            // It waits for nothing.
            let settings = settings(names_standby);
            self.ended(at, CommitEnd::Acknowledged { notices: &[], settings, rows_written });
        }
    }

    /// What a transaction finds and writes at what its server shows.
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
                let line = seen.line(claim.incarnation).filter(|line| claim.holds_of(line.beat, line.is_dead));
                let dead = line.map(|line| Write::Line(claim.incarnation, LineRow { is_dead: true, ..line }));
                (WriteVerdict::Made, dead)
            }
            Action::Insert(new) if row.is_none() => made(Write::Task(task, new)),
            Action::Insert(_) | Action::Repeat => (WriteVerdict::Conflict, None),
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
        match self.fate(end) {
            WriteFate::Done => {
                let mark = self.servers[waiting.server].mark;
                self.replicas[at].trust.barrier_passed(mark, waiting.sent);
                self.done(at, waiting);
            }
            WriteFate::NotDone => (),
            WriteFate::Unsure(doubt) => {
                let now = self.at();
                self.replicas[at].trust.write_unsure(now);
                if !matches!(doubt, WriteDoubt::Unreplicated | WriteDoubt::WroteNothing) {
                    self.connect(at);
                }
                self.in_doubt(at, waiting);
            }
        }
    }

    fn fate(&self, end: CommitEnd<'_>) -> WriteFate {
        let durability = if self.keeps(Rule::NamesAreChecked) { Durability::Replicated } else { Durability::Single };
        match (fate(durability, end), end) {
            (WriteFate::Unsure(WriteDoubt::Warned), _) if !self.keeps(Rule::WarningIsDoubt) => WriteFate::Done,
            (WriteFate::Unsure(WriteDoubt::WroteNothing), _) if !self.keeps(Rule::EmptyBatchWrites) => WriteFate::Done,
            (fate, _) => fate,
        }
    }

    fn done(&mut self, at: usize, Waiting { server, task, action, verdict, .. }: Waiting) {
        let (now, mark) = (self.at(), self.servers[server].mark);
        let replica = &mut self.replicas[at];
        match (action, verdict) {
            // It was declared dead: everything that it knew is dropped, and it begins anew.
            (Action::Register | Action::Beat | Action::Answer { .. }, WriteVerdict::Fenced) => {
                self.replicas[at] = self.new_replica();
            }
            (Action::Register, _) => replica.is_registered = true,
            (Action::Answer { row, before, received }, _) => {
                if replica.trust.judge(mark, received, now) == ReadBelief::Believed {
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
            (Action::Replace(..), WriteVerdict::Fenced) => replica.drop_job(task),
            (Action::Claim(_, row), WriteVerdict::Made) => {
                let stage = if row.phase == Phase::Queued { Stage::Dispatch } else { Stage::Settle };
                replica.jobs.push(adopted(task, row, stage));
            }
            (Action::Repeat, _) => self.judge.gave_handle(task),
            (Action::Beat | Action::DeclareDead(_) | Action::Claim(..) | Action::Cancel(..) | Action::Insert(_), _) => {
                ()
            }
        }
    }

    fn in_doubt(&mut self, at: usize, Waiting { task, action, .. }: Waiting) {
        let replica = &mut self.replicas[at];
        match action {
            Action::Insert(_) | Action::Replace(..) => {
                if let Some(job) = replica.job(task) {
                    job.stage = Stage::Reload;
                }
            }
            Action::Claim(_, row) if replica.job(task).is_none() => {
                replica.jobs.push(adopted(task, row, Stage::Reload))
            }
            // A client is told that it is not known, and asks again; a beat and a death are tried again anyway. Whoever is not
            // registered for certain takes another number.
            Action::Register => self.replicas[at] = self.new_replica(),
            Action::Claim(..)
            | Action::Beat
            | Action::DeclareDead(_)
            | Action::Cancel(..)
            | Action::Repeat
            | Action::Answer { .. } => (),
        }
    }
}

/// The row as the end of a call leaves it: nobody has to go on with it.
const fn settled(outcome: Outcome, guard: GuardedRow) -> TaskRow {
    TaskRow { phase: Phase::Settled(outcome), guard: GuardedRow { revision: guard.revision + 1, holder: None } }
}

/// A row's job in a new holder's hands. What was about to be sent may have been: it is not sent again.
fn adopted(task: usize, row: TaskRow, stage: Stage) -> Job {
    let sending = if row.phase == Phase::Queued { Sending::NotSent } else { Sending::Unknown };
    Job { task, stage, sending, is_stored: true, guard: row.guard }
}

fn replaced(replica: &mut Replica, task: usize, row: TaskRow) {
    if matches!(row.phase, Phase::Settled(_)) {
        return replica.drop_job(task);
    }
    if let Some(job) = replica.job(task) {
        job.guard = row.guard;
        job.stage = if job.sending == Sending::NotSent { Stage::Send } else { Stage::Settle };
    }
}
