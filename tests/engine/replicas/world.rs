//! A schedule: three replicas on one store, and faults in any order. Time plays no part: a replica may be declared dead
//! at any moment.

mod actions;

use std::time::Duration;

use taskgate::replica::commit_trust::fate;
use taskgate::replica::fencing::{claimed, may_claim};
use taskgate::replica::{
    BootTime, CommitEnd, DeathClaim, Durability, DurabilitySettings, GuardedRow, GuardedWrite, Incarnation,
    ReadVerdict, ServerMark, SqlNotice, UnknownCommitCause, WriteFate, WriteVerdict,
};

use super::judge::Judge;
use super::replica::{Action, Job, Replica, Sending, SentBatch, Stage, Waiting};
use super::restated::{DoubtEnd, holds, settle};
use super::server::{Batch, LineRow, Outcome, Phase, Server, Table, TaskRow, Write};
use crate::random::Choices;

/// The rules behind the promises. A run may leave one out, to see that the judge notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A barrier is the first write after a connect, and after a write with an unknown commit.
    BarrierFirst,
    /// A row is shown to a client only after a barrier that followed its read.
    BarrierAfterRead,
    /// A barrier waits for every earlier batch of its replica.
    BarrierQueues,
    /// A barrier closes the store to batches that were sent before the unknown commit and arrive later.
    BarrierCloses,
    /// A commit with a warning is unknown.
    WarningIsDoubt,
    /// A commit on a server that names no standby is unknown.
    NamesAreChecked,
    /// A batch that changed nothing writes a separate row before any client gets an answer.
    EmptyBatchWrites,
    /// A runner's write names the row's revision and itself.
    GuardInWrite,
    /// A replica that claims a row first ends its own earlier runner of the row.
    ClaimEndsRunner,
    /// The dispatch of a call is committed before the call is sent.
    DispatchBeforeSend,
    /// Before a replica gives out the handle of a row that only another replica has written, it writes the row.
    RepeatIsNoted,
    /// A row with an unknown commit is removed only by the replica that inserted it, and only unchanged.
    WithdrawIsGuarded,
}

/// The next event of a schedule.
#[derive(Clone, Copy, Debug)]
enum Event {
    Step(usize),
    /// A server reads a batch that was sent to it.
    Arrive,
    /// The standby gets more of the log.
    Flush,
    /// One of the commits that the standby has is acknowledged.
    Wake,
    /// The primary crashes and restarts: waiting commits become visible, and their writers get no answer.
    Restart,
    Failover {
        old_lives_on: bool,
    },
    /// Old primaries that lived on end.
    OldPrimariesEnd,
    /// An operator cancels a waiting commit: it is acknowledged, with a warning.
    Cancel,
    /// An operator ends the session of a waiting commit.
    Terminate,
    /// A replica waits no longer.
    TimeOut(usize),
    NameStandby(bool),
    Pause(usize),
    Resume(usize),
    /// A replica's process ends; another begins in its place.
    Kill(usize),
}

/// How often each event is drawn, in the order of [`World::draw`].
const WEIGHTS: [usize; 15] = [400, 400, 900, 10, 12, 15, 16, 10, 20, 4, 20, 10, 30, 10, 1_600];

/// Each schedule has its own mixture: without some faults, with many of others; a promise is often broken by one fault
/// that comes again before another has passed.
fn mixture(choices: &mut Choices) -> [usize; 15] {
    let mut weights = WEIGHTS;
    for weight in &mut weights[..14] {
        *weight = *weight * [0, 1, 2, 6][choices.below(4)] / 2;
    }
    // Everything that waits continues at some time, however slowly.
    for (kind, least) in [(0, 200), (1, 80), (2, 200), (5, 8), (8, 8), (10, 10), (12, 15)] {
        weights[kind] = weights[kind].max(least);
    }
    weights
}

const REPLICAS: usize = 3;
const EVENTS: usize = 400;
/// How long all is well at the end, so that a reverted write shows.
const HEALING: usize = 40;
/// How often that is repeated at most, until every call has ended.
const HEALINGS_MAX: usize = 500;
const JOBS_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct World {
    without: Option<Rule>,
    is_told: bool,
    /// All is well again, and clients call nothing more.
    is_healing: bool,
    choices: Choices,
    weights: [usize; 15],
    now: u64,
    servers: Vec<Server>,
    primary: usize,
    /// How much of the primary's log the standby has.
    flushed: usize,
    /// Batches that servers have not read yet.
    on_their_way: Vec<SentBatch>,
    replicas: Vec<Replica>,
    incarnations: u64,
    commits: u64,
    marks: u64,
    pub(super) judge: Judge,
}

/// Runs one schedule. With `is_told` every event is printed.
pub(super) fn run(seed: u64, without: Option<Rule>, is_told: bool) -> Judge {
    let mut world = World::begin(seed, without, is_told);
    world.fail();
    world.heal(HEALING);
    world.judge
}

/// Runs one schedule until every call has ended, and returns how many of those with a handle do not.
pub(super) fn run_to_the_end(seed: u64) -> (Judge, usize) {
    let mut world = World::begin(seed, None, false);
    world.fail();
    for _ in 0..HEALINGS_MAX {
        world.heal(HEALING);
        if world.open_calls() == 0 {
            break;
        }
    }
    let open = world.open_calls();
    (world.judge, open)
}

impl World {
    fn begin(seed: u64, without: Option<Rule>, is_told: bool) -> Self {
        let mut choices = Choices::new(seed);
        let weights = mixture(&mut choices);
        let mut world = Self {
            without,
            is_told,
            is_healing: false,
            choices,
            weights,
            now: 0,
            servers: vec![Server::with_log(ServerMark(0), &[])],
            primary: 0,
            flushed: 0,
            on_their_way: Vec::new(),
            replicas: Vec::new(),
            incarnations: 0,
            commits: 0,
            marks: 0,
            judge: Judge::default(),
        };
        for _ in 0..REPLICAS {
            let replica = world.new_replica();
            world.replicas.push(replica);
        }
        world
    }

    /// The part with faults.
    fn fail(&mut self) {
        for _ in 0..EVENTS {
            let event = self.draw();
            self.happen(event);
        }
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Prints an event, if a single schedule runs.
    #[allow(clippy::print_stdout, reason = "it is what a schedule is rerun for")]
    fn tell(&self, what: std::fmt::Arguments<'_>) {
        if self.is_told {
            println!("{what}");
        }
    }

    const fn at(&self) -> BootTime {
        BootTime(Duration::from_nanos(self.now))
    }

    fn new_replica(&mut self) -> Replica {
        self.incarnations += 1;
        Replica::new(Incarnation(self.incarnations), self.primary, self.at())
    }

    const fn new_mark(&mut self) -> ServerMark {
        self.marks += 1;
        ServerMark(self.marks)
    }

    fn draw(&mut self) -> Event {
        let mut replica = self.choices.below(REPLICAS);
        let mut weights = self.weights;
        let primary = &self.servers[self.primary];
        let is_idle = |replica: &Replica| !replica.is_paused && replica.waiting.is_none();
        // An event without an effect is not drawn.
        let is_possible = [
            (0, !self.on_their_way.is_empty()),
            (1, self.flushed < primary.log().len()),
            (2, primary.has_flushed(self.flushed)),
            (14, self.replicas.iter().any(is_idle)),
        ];
        for (kind, is_possible) in is_possible {
            weights[kind] *= usize::from(is_possible);
        }
        let total = weights.iter().sum();
        let mut left = self.choices.below(total);
        let drawn = weights.iter().position(|weight| {
            let is_it = left < *weight;
            left = left.saturating_sub(*weight);
            is_it
        });
        match drawn {
            Some(0) => Event::Arrive,
            Some(1) => Event::Flush,
            Some(2) => Event::Wake,
            Some(3) => Event::Restart,
            Some(4) => Event::Failover { old_lives_on: self.choices.per_mille(500) },
            Some(5) => Event::OldPrimariesEnd,
            Some(6) => Event::Cancel,
            Some(7) => Event::Terminate,
            Some(8) => Event::TimeOut(replica),
            Some(9) => Event::NameStandby(false),
            Some(10) => Event::NameStandby(true),
            Some(11) => Event::Pause(replica),
            Some(12) => Event::Resume(replica),
            Some(13) => Event::Kill(replica),
            _ => {
                while !is_idle(&self.replicas[replica]) {
                    replica = (replica + 1) % REPLICAS;
                }
                Event::Step(replica)
            }
        }
    }

    fn happen(&mut self, event: Event) {
        self.now += 1;
        self.tell(format_args!("{:4} {event:?}", self.now));
        match event {
            Event::Step(replica) => self.step(replica),
            Event::Arrive => {
                if !self.on_their_way.is_empty() {
                    let at = self.choices.below(self.on_their_way.len());
                    let batch = self.on_their_way.swap_remove(at);
                    self.arrive(batch);
                }
            }
            Event::Flush => self.flush(),
            Event::Wake => self.wake(),
            Event::Restart => {
                let mark = self.new_mark();
                self.servers[self.primary].restart(mark);
                self.lose_connections(self.primary);
            }
            Event::Failover { old_lives_on } => self.fail_over(old_lives_on),
            Event::OldPrimariesEnd => {
                let primary = self.primary;
                for server in (0..self.servers.len()).filter(|server| *server != primary) {
                    self.end_server(server);
                }
            }
            Event::Cancel => self.release_any(|names_standby, rows_written| {
                let notices = &[SqlNotice { severity: "WARNING", sqlstate: "01000" }];
                CommitEnd::Acknowledged { notices, settings: settings(names_standby), rows_written }
            }),
            Event::Terminate => self.release_any(|_, _| CommitEnd::Lost),
            Event::TimeOut(replica) => {
                if self.replicas[replica].waiting.is_some() {
                    self.ended(replica, CommitEnd::TimedOut);
                }
            }
            Event::NameStandby(names_standby) => {
                // A commit that waits in that very moment passes unnoticed: an operator's act, which is documented.
                let server = &mut self.servers[self.primary];
                server.names_standby = names_standby || !server.pending.is_empty();
            }
            Event::Pause(replica) => self.replicas[replica].is_paused = true,
            Event::Resume(replica) => self.replicas[replica].is_paused = false,
            Event::Kill(replica) => self.replicas[replica] = self.new_replica(),
        }
    }

    /// Everything is well again, for as long as it takes; then each promise must hold.
    fn heal(&mut self, rounds: usize) {
        self.is_healing = true;
        self.happen(Event::OldPrimariesEnd);
        self.happen(Event::NameStandby(true));
        self.replicas.iter_mut().for_each(|replica| replica.is_paused = false);
        for _ in 0..rounds {
            let replica = self.choices.below(REPLICAS);
            self.happen(Event::Step(replica));
            self.happen(Event::Arrive);
            self.happen(Event::Flush);
            self.happen(Event::Wake);
        }
        let seen = &self.servers[self.primary].seen;
        self.judge.ended(|task| seen.task(task));
    }

    /// How many calls with a handle have not ended.
    fn open_calls(&self) -> usize {
        let seen = &self.servers[self.primary].seen;
        let is_open = |task: &usize| {
            let row = seen.task(*task);
            self.judge.told(*task).has_handle && row.is_some_and(|row| !matches!(row.phase, Phase::Settled(_)))
        };
        (0..self.judge.count()).filter(is_open).count()
    }

    fn flush(&mut self) {
        let length = self.servers[self.primary].log().len();
        if self.flushed < length {
            self.flushed += 1 + self.choices.below(length - self.flushed);
        }
    }

    fn wake(&mut self) {
        let flushed = self.servers[self.primary].flushed(self.flushed);
        let Some(at) = self.choices.one_of(&flushed) else { return };
        let id = self.servers[self.primary].release(at);
        self.tell_writer(id, |names_standby, rows_written| CommitEnd::Acknowledged {
            notices: &[],
            settings: settings(names_standby),
            rows_written,
        });
    }

    /// Ends the wait of any commit on any server.
    fn release_any(&mut self, end: impl Fn(bool, u64) -> CommitEnd<'static>) {
        let waiting = |(at, server): (usize, &Server)| (0..server.pending.len()).map(move |commit| (at, commit));
        let all: Vec<_> = self.servers.iter().enumerate().filter(|(_, one)| one.is_up).flat_map(waiting).collect();
        if let Some((server, commit)) = self.choices.one_of(&all) {
            let id = self.servers[server].release(commit);
            self.tell_writer(id, end);
        }
    }

    /// Answers the replica that waits for a commit, if there still is one.
    fn tell_writer(&mut self, id: u64, end: impl Fn(bool, u64) -> CommitEnd<'static>) {
        let is_writer = |replica: &Replica| replica.waiting.is_some_and(|waiting| waiting.id == id);
        let Some(at) = self.replicas.iter().position(is_writer) else { return };
        if let Some(waiting) = self.replicas[at].waiting {
            self.ended(at, end(waiting.names_standby, waiting.rows_written));
        }
    }

    fn fail_over(&mut self, old_lives_on: bool) {
        let old = self.primary;
        let mark = self.new_mark();
        let promoted = Server::with_log(mark, &self.servers[old].log()[..self.flushed]);
        self.servers.push(promoted);
        self.primary = self.servers.len() - 1;
        if !old_lives_on {
            self.end_server(old);
        }
    }

    fn end_server(&mut self, server: usize) {
        if self.servers[server].is_up {
            self.servers[server].is_up = false;
            self.servers[server].pending.clear();
            self.lose_connections(server);
        }
    }

    fn lose_connections(&mut self, server: usize) {
        self.on_their_way.retain(|batch| batch.server != server);
        for at in 0..REPLICAS {
            if self.replicas[at].waiting.is_some_and(|waiting| waiting.server == server) {
                self.ended(at, CommitEnd::Lost);
            } else if self.replicas[at].server == server {
                self.connect(at);
            }
        }
    }

    /// To any server that takes writes: mostly to the primary, and to an old one that still runs.
    fn connect(&mut self, at: usize) {
        let up: Vec<_> = (0..self.servers.len()).filter(|server| self.servers[*server].is_up).collect();
        let any = self.choices.one_of(&up).filter(|_| self.choices.per_mille(150));
        let now = self.at();
        self.replicas[at].server = any.unwrap_or(self.primary);
        self.replicas[at].trust.connected(now);
    }
}

const fn settings(names_standby: bool) -> DurabilitySettings<'static> {
    DurabilitySettings { standby_names: if names_standby { "b" } else { "" }, commit_mode: "on" }
}
