//! One cycle: a process under load, its end, another process, and a verdict.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use rustix::process::Signal;
use serde_json::json;
use taskgate::task::{Clock as _, SystemClock, Timestamp};
use tokio::time::{sleep, timeout};

use super::crowd::{Crowd, Job};
use super::dice::{Dice, seed};
use super::fault_proxy::{Fault, FaultProxy, Verb};
use super::history::{Bounds, Entry, Fact, History, PollResult, Violation, story, violations};
use super::keeper::Keeper;
use super::ledger::Ledger;
use super::wire_client::{Flavour, WireClient};

/// How often each fault happens where the environment says nothing.
const CYCLES: u64 = 2;
/// How many there are at most until something is tried.
const TRIED_MAX: u64 = 6;
/// Cycles of one fault at the same time.
const AT_ONCE: usize = 2;
/// The longest that a client follows one task, and a whole cycle may take.
const PATIENCE: Duration = Duration::from_secs(60);
const CYCLE_MAX: Duration = Duration::from_secs(240);
/// Time of service until a task must be settled: more than the deadline of its call (L3).
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// How long before a kill at no particular point an answer may have been on its way.
const ON_ITS_WAY_MAX: Duration = Duration::from_millis(500);

/// How the first process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At a visit to this point, up to the given one.
    Point(&'static str, u64),
    /// Killed when the ledger has seen this, up to so many times.
    Ledger(&'static str, u64),
    /// Killed while the upstream reads half of a call.
    HalfSent,
    /// Killed when so many handles were given out.
    Handed(u64),
    /// Killed at a call, and thrice again while it recovers.
    Recovering,
    /// At a point after a signal.
    Signal(Signal, &'static str),
    /// Asked to end: then killed, asked again, or left alone.
    Drained,
    /// Killed a while after the store's commits began to be made and reported as failed, up to the given one.
    Doubted(u64),
    /// Stopped for a while, as a machine that sleeps; it does not end.
    Paused,
}

/// The settings of one fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) fault: &'static str,
    pub(crate) end: End,
    /// Keys that stand in the upstream's `tasks`.
    pub(crate) keys: &'static str,
    /// Answers leave the ledger in halves.
    pub(crate) half: bool,
    /// Broken on purpose.
    pub(crate) sabotage: Option<&'static str>,
}

impl Plan {
    pub(crate) const fn new(fault: &'static str, end: End) -> Self {
        Self { fault, end, keys: "ttl = \"1h\"", half: false, sabotage: None }
    }
}

/// The result of one cycle.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    handles: usize,
    completed: usize,
    pub(crate) violations: Vec<Violation>,
    entries: Vec<Entry>,
}

/// How often each fault happens.
pub(crate) fn count() -> u64 {
    std::env::var("KILL_CYCLES").map_or(CYCLES, |count| count.parse().expect("KILL_CYCLES is a number"))
}

/// All cycles of one fault, with their seeds.
pub(crate) async fn run(plan: Plan) -> Vec<(u64, Result<Tally, String>)> {
    let first = seed();
    let mut outcomes: Vec<_> =
        stream::iter(0..count()).map(|nth| one(plan, first + nth)).buffer_unordered(AT_ONCE).collect().await;
    // A fault may come before anything is tried.
    for more in count()..TRIED_MAX {
        if outcomes
            .iter()
            .any(|(_, outcome)| outcome.as_ref().is_ok_and(|tally| tally.handles > 0 && tally.completed > 0))
        {
            break;
        }
        outcomes.push(one(plan, first + more).await);
    }
    outcomes
}

async fn one(plan: Plan, seed: u64) -> (u64, Result<Tally, String>) {
    let outcome = timeout(CYCLE_MAX, Box::pin(cycle(plan, seed))).await;
    (seed, outcome.unwrap_or_else(|_| Err("it hangs".to_owned())))
}

/// Runs all cycles of one fault, fails with every mistake, and returns a summary.
pub(crate) async fn check(plan: Plan) -> String {
    let mut mistakes = Vec::new();
    let (mut handles, mut completed, mut seeds) = (0, 0, Vec::new());
    for (seed, outcome) in run(plan).await {
        seeds.push(seed);
        match outcome {
            Ok(tally) => {
                handles += tally.handles;
                completed += tally.completed;
                mistakes.extend(tally.violations.iter().map(|found| format!("KILL_SEED={seed} {found}")));
                mistakes.extend(tally.violations.first().map(|found| story(&tally.entries, found)));
            }
            Err(error) => mistakes.push(format!("KILL_SEED={seed} {error}")),
        }
    }
    assert!(mistakes.is_empty(), "{}\n{}", plan.fault, mistakes.join("\n"));
    assert!(handles > 0 && completed > 0, "{}: nothing was tried", plan.fault);
    format!("{}: {handles} handles, {completed} looks at completed tasks, seeds {seeds:?}", plan.fault)
}

/// Twelve calls: plain tasks, promoted calls, questions, cancels, tools that are safe to repeat.
fn jobs(dice: &mut Dice, seed: u64, plan: Plan) -> Vec<(Job, Flavour, Duration)> {
    let mut jobs = Vec::new();
    for nth in 0..12 {
        let (tool, calls_max) = match nth % 6 {
            0 | 3 | 4 => ("work", 1),
            1 => ("work_safe", 4),
            _ => ("work_auto", 1),
        };
        let is_cancelled = nth % 6 == 4;
        // A cancelled call must still be running at its cancel.
        let ms = if is_cancelled { 1_500 } else { dice.between(150, 500) };
        let steps = dice.between(1, 4);
        let mut arguments = json!({"ms": ms, "steps": steps, "asks": matches!(nth % 6, 2 | 3), "half": plan.half});
        if plan.end == End::HalfSent {
            arguments["padding"] = json!("x".repeat(1 << 20));
        }
        let cancels_after = is_cancelled.then(|| Duration::from_millis(dice.between(0, 150)));
        let (nonce, owner) = (format!("n{seed}-{nth}x"), "local".to_owned());
        let flavour = if nth % 6 == 0 { Flavour::Core(None) } else { Flavour::Extension };
        let job = Job { nonce, owner, tool, arguments, cancels_after, calls_max };
        jobs.push((job, flavour, Duration::from_millis(dice.between(0, 300))));
    }
    jobs
}

fn upstreams(url: &str, keys: &str) -> String {
    format!(
        "[upstreams.up]\nurl = \"{url}\"\ndeadline = \"10s\"\n\
         [upstreams.up.tasks]\nmode = \"always\"\npoll_interval = \"100ms\"\ninput_deadline = \"20s\"\n{keys}\n\
         [[upstreams.up.tools]]\nmatch = \"work_auto\"\nmode = \"auto\"\ngrace = \"60ms\"\n\
         [[upstreams.up.tools]]\nmatch = \"work_safe\"\nafter_crash = \"rerun\"\n"
    )
}

async fn cycle(plan: Plan, seed: u64) -> Result<Tally, String> {
    let mut dice = Dice::new(seed);
    let wall = SystemClock.now().since(Timestamp::from_millis(0));
    let history = Arc::new(History::begin(wall));
    let ledger = Ledger::open(Arc::clone(&history), dice.coin()).await;
    let proxy = FaultProxy::start(ledger.server.address).await;
    let config = upstreams(&format!("http://{}/mcp", proxy.address), plan.keys);
    let mut keeper = Keeper::new(&format!("{}-{seed}", plan.fault), &config, Arc::clone(&history));
    let crowd = Crowd::new(Arc::clone(&history), keeper.addresses());
    let work = join_all(jobs(&mut dice, seed, plan).into_iter().map(|(job, flavour, wait)| {
        let crowd = &crowd;
        async move {
            sleep(wait).await;
            crowd.run(job, WireClient::new(flavour), PATIENCE).await;
        }
    }));
    let tools = Tools { ledger: &ledger, proxy: &proxy, crowd: &crowd };
    let processes = async {
        let ended = first_process(plan, &mut dice, &mut keeper, tools).await;
        // The clients go on after any end of the first process.
        if plan.end == End::Paused {
            return ended;
        }
        let again = keeper.start(&[]).await.ok_or_else(|| "the program does not start again".to_owned());
        ended.and(again)
    };
    let (_, ended) = tokio::join!(work, processes);
    ended.map_err(|error| format!("{error}; see {}", keeper.log().display()))?;
    crowd.poll_all().await;
    keeper.kill().await;
    let entries = history.entries();
    let handles = entries.iter().filter(|entry| matches!(entry.fact, Fact::Handle { .. })).count();
    let is_completed = |entry: &&Entry| matches!(&entry.fact, Fact::Polled { seen: PollResult::Settled { status, .. }, .. } if status == "completed");
    let completed = entries.iter().filter(is_completed).count();
    let is_exact = matches!(plan.end, End::Point(..));
    let on_its_way_max = if is_exact { Duration::ZERO } else { ON_ITS_WAY_MAX };
    let violations = violations(&entries, Bounds { settle_max: SETTLE_MAX, on_its_way_max });
    if violations.is_empty() {
        keeper.forget_log();
    }
    Ok(Tally { handles, completed, violations, entries })
}

/// The means of ending a process.
#[derive(Clone, Copy)]
struct Tools<'a> {
    ledger: &'a Ledger,
    proxy: &'a FaultProxy,
    crowd: &'a Crowd,
}

impl Tools<'_> {
    async fn reached(&self, milestone: &'static str, times: u64) -> Result<(), String> {
        let reached = self.ledger.state.reached(milestone, usize::try_from(times).unwrap());
        timeout(PATIENCE, reached).await.map_err(|_| format!("the ledger did not see {milestone} {times} times"))
    }
}

/// From the first start to the end that the plan names.
async fn first_process(plan: Plan, dice: &mut Dice, keeper: &mut Keeper, tools: Tools<'_>) -> Result<(), String> {
    let point = match plan.end {
        End::Point(name, max) => Some(format!("{name}:{}", dice.between(1, max))),
        End::Signal(_, name) => Some(format!("{name}:1")),
        End::Doubted(max) => Some(format!("commit-made:{}", dice.between(1, max))),
        End::Ledger(..) | End::HalfSent | End::Handed(_) | End::Recovering | End::Drained | End::Paused => None,
    };
    if plan.end == End::HalfSent {
        tools.proxy.set(Some(Fault::up("\"padding\":\"", 5_000, Verb::Stall)));
    }
    let mut environment = Vec::new();
    let variable = if matches!(plan.end, End::Doubted(_)) { "TASKGATE_STRIKE" } else { "TASKGATE_FAILPOINT" };
    environment.extend(point.as_deref().map(|point| (variable, point)));
    environment.extend(plan.sabotage.map(|name| ("TASKGATE_SABOTAGE", name)));
    if keeper.start(&environment).await.is_none() {
        // A point on the way to serving is a point as well.
        return if point.is_some() { Ok(()) } else { Err("the program does not start".to_owned()) };
    }
    match plan.end {
        End::Point(..) => keeper.dies().await?,
        End::Ledger(milestone, max) => {
            tools.reached(milestone, dice.between(1, max)).await?;
            keeper.kill().await;
        }
        End::HalfSent => {
            timeout(PATIENCE, tools.proxy.strikes()).await.map_err(|_| "no call was sent".to_owned())?;
            keeper.kill().await;
            tools.proxy.set(None);
        }
        End::Handed(max) => {
            let times = usize::try_from(dice.between(1, max)).unwrap();
            let mut handed = tools.crowd.handed.subscribe();
            let enough = timeout(PATIENCE, handed.wait_for(|handed| *handed >= times)).await;
            enough.map_err(|_| format!("{times} handles were not given out"))?.unwrap();
            keeper.kill().await;
        }
        End::Recovering => {
            tools.reached("called", 6).await?;
            keeper.kill().await;
            for _ in 0..3 {
                if keeper.start(&[("TASKGATE_FAILPOINT", "recovering:1")]).await.is_some() {
                    keeper.dies().await?;
                }
            }
        }
        End::Signal(signal, _) => {
            tools.reached("called", 3).await?;
            let config = upstreams(&format!("http://{}/mcp", tools.proxy.address), "keep_result_min = \"20m\"");
            keeper.configure(&config);
            keeper.signal(signal);
            keeper.dies().await?;
        }
        End::Doubted(_) => {
            // All clients have called by then.
            sleep(Duration::from_millis(dice.between(300, 1_500))).await;
            keeper.kill().await;
        }
        End::Drained => drained(dice, keeper, tools).await?,
        End::Paused => {
            tools.reached("called", dice.between(1, 8)).await?;
            keeper.signal(Signal::STOP);
            sleep(Duration::from_millis(dice.between(500, 2_000))).await;
            keeper.signal(Signal::CONT);
        }
    }
    Ok(())
}

/// F25: a polite end that is cut short by the system, by its operator, or not at all.
async fn drained(dice: &mut Dice, keeper: &mut Keeper, tools: Tools<'_>) -> Result<(), String> {
    tools.reached("called", 4).await?;
    keeper.signal(Signal::TERM);
    sleep(Duration::from_millis(dice.between(0, 400))).await;
    match dice.between(0, 2) {
        0 => {
            keeper.kill().await;
            Ok(())
        }
        1 => {
            keeper.signal(Signal::TERM);
            keeper.leaves().await
        }
        _ => keeper.leaves().await,
    }
}
