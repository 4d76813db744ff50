//! The database's leader is killed, and Patroni puts another one in its place, while gateways have calls under way.

use std::time::Duration;

use futures_util::future::{join, join_all};
use futures_util::stream::{self, StreamExt as _};
use support::patroni::PatroniCluster;
use support::wire_client::{Answer, Flavour};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::harness::{
    OPEN, PLAIN, RESUMABLE, Settings, Site, client, is_refused_for_now, job, nothing_more_was_sent, until,
    until_none_is_left,
};

/// How many calls run at each kill: in a run of all tests, and where kills are counted.
const TASKS: (usize, usize) = (400, 1_000);
/// How long the load goes on before the kill.
const BEFORE: Duration = Duration::from_secs(1);
/// The longest time until writes go on. Patroni waits 20 s before it replaces a leader.
const FAILOVER_MAX: Duration = Duration::from_secs(120);
/// Clients at each gateway that make calls one after the other, and how long they wait in between.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(100);

/// The log line of a gateway about a task that gets its permit during the outage.
const WAITS: &str = r#""a call waits for the store","step":"Mark""#;

/// When a new call was answered, and how.
type AnswerLog = Vec<(Instant, NewCall)>;

/// A gateway's answer to a call that is to become a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewCall {
    Handed,
    /// Nothing was sent, and never will be.
    Refused,
    /// Its row was on the way to the killed leader: the row may exist, and another gateway may send its call.
    Unknown,
}

impl NewCall {
    pub(super) fn of(answer: &Answer) -> Self {
        let is_unknown = answer.text.contains("store_failed") && answer.text.contains(r#""executed":"unknown""#);
        match answer {
            Answer { is_whole: true, text, .. } if text.contains("taskId") => Self::Handed,
            answer if is_refused_for_now(answer) => Self::Refused,
            Answer { is_whole: true, .. } if is_unknown => Self::Unknown,
            other => panic!("{other:?}"),
        }
    }
}

/// The answers of one gateway to new calls.
struct NewCalls {
    at: usize,
    answers: watch::Sender<AnswerLog>,
}

impl NewCalls {
    /// Makes calls one after the other until it is over. Each becomes a task, or is refused for now.
    async fn make(&self, site: &Site<'_>, label: &str, over: &CancellationToken) {
        let place = site.replicas[self.at].keeper.address();
        for number in 0.. {
            if over.is_cancelled() {
                return;
            }
            let (path, server) = [(RESUMABLE, "up"), (PLAIN, "plain")][number % 2];
            let job = job(&format!("{server}-{label}-{number}-"), 20);
            let answer = site.crowd.create_task_at(place, &job, client(Flavour::Extension, path)).await;
            self.answers.send_modify(|answers| answers.push((Instant::now(), NewCall::of(&answer))));
            sleep(PAUSE).await;
        }
    }

    /// How long after the kill calls became tasks again. The caller bounds it.
    async fn recovery(&self, killed: Instant) -> Duration {
        let mut answers = self.answers.subscribe();
        let answers = answers.wait_for(|answers| recovered_at(answers, killed).is_some()).await.unwrap();
        recovered_at(&answers, killed).unwrap() - killed
    }
}

/// The first handle after the first refusal after the kill.
fn recovered_at(answers: &AnswerLog, killed: Instant) -> Option<Instant> {
    let after = answers.iter().skip_while(|(at, how)| *at < killed || *how != NewCall::Refused);
    after.skip_while(|(_, how)| *how != NewCall::Handed).map(|(at, _)| *at).next()
}

/// Polls tasks at a gateway until `over`; returns the number of refusals for now, the only other answer.
async fn polls(site: &Site<'_>, at: usize, tasks: &[String], over: &CancellationToken) -> usize {
    let mut refused = 0;
    for task in tasks.iter().cycle() {
        if over.is_cancelled() {
            break;
        }
        let answer = site.replicas[at].poll(RESUMABLE, task).await;
        let is_open = answer.json()["result"]["status"] == "working";
        assert!(answer.is_whole && (is_open || is_refused_for_now(&answer)), "{answer:?}");
        refused += usize::from(!is_open);
        sleep(PAUSE).await;
    }
    refused
}

/// Kills the leader's node while `tasks` calls run; some of them end before there is a new leader, others afterwards. Returns how long each
/// gateway refused new calls, and the number of calls with an unknown commit. The node is back at the end.
async fn fail_over(site: &Site<'_>, cluster: &PatroniCluster, round: usize, tasks: usize) -> (Vec<Duration>, usize) {
    let leader = cluster.agrees().await;
    site.hold_calls();
    let known = site.handles().len();
    // In the first round one gateway has all of them, more than run there at a time: some get their places while there is no
    // database. In the next one each has half of them, and all run.
    let at: &[usize] = if round.is_multiple_of(2) { &[1] } else { &[0, 1] };
    for gateway in at {
        site.show_only(&[*gateway]);
        let calls = (0..tasks / at.len()).map(|nth| site.hold_call([RESUMABLE, PLAIN][nth % 2]));
        stream::iter(calls).buffer_unordered(16).for_each(std::future::ready).await;
    }
    site.show_only(&[0, 1]);
    let open: Vec<_> = site
        .handles()
        .split_off(known)
        .into_iter()
        .filter(|(nonce, _)| nonce.starts_with("up-"))
        .map(|(_, task)| task)
        .collect();
    let over = CancellationToken::new();
    let new_calls = [0, 1].map(|at| NewCalls { at, answers: watch::Sender::default() });
    let callers = new_calls.iter().flat_map(|calls| (0..CALLERS).map(move |nth| (calls, nth))).map(|(calls, nth)| {
        let (site, over) = (&*site, &over);
        async move { calls.make(site, &format!("new-{round}-{}-{nth}", calls.at), over).await }
    });
    let polls = join_all([0, 1].map(|at| polls(site, at, &open, &over)));
    let course = async {
        sleep(BEFORE).await;
        site.records_outage(true);
        let killed = Instant::now();
        tokio::task::block_in_place(|| cluster.kill(leader));
        for replica in &site.replicas {
            until("it is not ready", async || replica.admin_get("/readyz").await.status == Some(503)).await;
        }
        // An outcome cannot be stored yet; a task that settled before shows nothing else.
        site.plain.state.release();
        site.crowd.poll_all().await;
        let times = timeout(FAILOVER_MAX, join_all(new_calls.iter().map(|calls| calls.recovery(killed)))).await;
        let times = times.unwrap_or_else(|_| panic!("writes do not go on: {}", cluster.logs()));
        for replica in &site.replicas {
            until("it is ready again", async || replica.is_ready().await).await;
        }
        site.records_outage(false);
        over.cancel();
        times
    };
    let (times, (_, refused)) = join(course, join(join_all(callers), polls)).await;
    assert!(refused.iter().all(|refused| *refused > 0), "polls of tasks that run are refused: {refused:?}");
    site.release_calls();
    until_none_is_left("all are settled", async || site.tables.count(OPEN)).await;
    site.crowd.poll_all().await;
    cluster.start_again(leader);
    let next = cluster.agrees().await;
    assert_ne!(next, leader, "another one leads");
    let answers = new_calls.iter().flat_map(|calls| calls.answers.borrow().clone());
    (times, answers.filter(|(_, how)| *how == NewCall::Unknown).count())
}

/// F74, L1 to L8: each acknowledged task is there, each call is sent once and ends with its server's answer, and no
/// gateway is replaced, as the windows start again once there is a leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f74_a_failover_of_the_database_loses_no_acknowledged_task_and_no_running_call() {
    let Some(cluster) = PatroniCluster::start().await else { return };
    let kills = std::env::var("REPLICA_FAILOVERS").map(|kills| kills.parse().expect("REPLICA_FAILOVERS is a number"));
    let (kills, tasks) = kills.map_or((1, TASKS.0), |kills| (kills, TASKS.1));
    // One gateway has half of these places.
    let (settle_max, in_flight_max) = (2 * FAILOVER_MAX, tasks * 4 / 5);
    let settings = Settings { lease: "8s", durability: "replicated", settle_max, in_flight_max, ..Settings::default() };
    let site = Site::of(2, "failover", &cluster, settings).await;
    let mut times = Vec::new();
    for round in 0..kills {
        times.push(fail_over(&site, &cluster, round, tasks).await);
        for replica in &site.replicas {
            assert_eq!(site.tables.incarnations_of(replica.name).len(), 1, "it was not replaced");
        }
        assert_eq!(site.tables.count("tg_replica WHERE dead"), 0, "no gateway was declared dead");
    }
    let handles = site.handles();
    let calls_of = |server: &str| handles.iter().filter(|(nonce, _)| nonce.starts_with(server)).count();
    println!(
        "{} tasks; so long after each kill calls became tasks again at each gateway, and of so many nobody knows: {times:?}",
        handles.len()
    );
    nothing_more_was_sent(&site, [calls_of("up-"), calls_of("plain-")]);
    assert_eq!(site.resumable.state.count("resumed"), 0, "each call still has its first runner");
    assert_eq!(site.completed().await, handles.len(), "no call is lost, whether it ran or waited for its turn");
    assert!(site.replicas[1].keeper.log_text().contains(WAITS), "no task got its place while there was no database");
    assert_eq!(site.judge().await, handles.len());
}
