//! Limits, turns and leaving; and fairness under any sequence of steps.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

fn permits(in_flight_max: usize, queue_max: usize) -> CallPermits {
    let in_flight_max = NonZeroUsize::new(in_flight_max).unwrap();
    let settings = CallPermitSettings { in_flight_max, queue_max };
    CallPermits::new(Arc::from("reports"), settings, SharedLimits::default())
}

fn owner(n: usize) -> Principal {
    Principal::new(&format!("key:{n}"))
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once_and_a_long_wait_ends() {
    let permits = permits(1, 1);
    let ada = owner(0);
    let held = permits.acquire(&ada, None).await.unwrap();
    let wait = || permits.acquire(&ada, Some(Duration::from_secs(2)));
    let (late, refused) = tokio::join!(wait(), wait());
    assert_eq!(late.unwrap_err(), GatewayFault::new(Reason::QueueDeadline, Executed::No));
    assert_eq!(refused.unwrap_err(), GatewayFault::new(Reason::QueueFull, Executed::No));
    drop(held);
    let again = permits.acquire(&ada, Some(Duration::ZERO)).await;
    assert!(again.is_ok(), "a dropped slot is free again");
}

/// Parts of a stream within a second take no lock; the first one and later ones are shown.
#[tokio::test(start_paused = true)]
async fn a_held_call_shows_its_upstreams_last_message_to_the_second() {
    let permits = permits(1, 1);
    let mut call = permits.call_begins(Arc::from("slow"), owner(0));
    let begun = Instant::now();
    let shown = || permits.0.in_progress.held()[0].last_sign.map(|sign| sign.duration_since(begun).as_millis());
    assert_eq!(shown(), None);
    for (wait, expected) in [(300, 300), (400, 300), (599, 300), (1, 1_300), (5_000, 6_300), (999, 6_300)] {
        tokio::time::advance(Duration::from_millis(wait)).await;
        call.note_sign(Instant::now());
        assert_eq!(shown(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_silent_from_its_last_message_about_any_call() {
    let by_name = CallPermitsByName::default();
    let permits = by_name.of(&Arc::from("up"), CallPermitSettings::default());
    let silence = || by_name.silence("up").map(|silence| silence.as_secs());
    let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
    let begin = || permits.call_begins(Arc::from("slow"), owner(0));
    assert_eq!((silence(), by_name.silence("other")), (None, None));
    let mut first = begin();
    pass(90).await;
    let second = begin();
    assert_eq!(silence(), Some(90), "a new call is no sign of life");
    first.note_sign(Instant::now());
    pass(70).await;
    drop(first);
    assert_eq!(silence(), Some(70), "the message of an ended call counts");
    drop(second);
    assert_eq!(silence(), None);
    let _late = begin();
    pass(5).await;
    assert_eq!(silence(), Some(5), "nothing is expected without a call");
}

#[tokio::test(start_paused = true)]
async fn gateways_that_keep_limits_together_have_a_part_of_the_places_each() {
    let limits = SharedLimits::default();
    let by_name = CallPermitsByName::new(limits.clone());
    let settings = CallPermitSettings { in_flight_max: NonZeroUsize::new(5).unwrap(), queue_max: 9 };
    let name = Arc::from("reports");
    let (calls, programs) = (by_name.of(&name, settings), CallPermits::unmetered(settings, limits.clone()));
    limits.divide_by(NonZeroUsize::new(3).unwrap());
    let take = |permits: &CallPermits| -> Vec<_> { (0..9).map_while(|at| permits.try_acquire(&owner(at))).collect() };
    let held = take(&calls);
    assert_eq!((held.len(), take(&programs).len()), (2, 5), "programs are each gateway's own");
    let (late, last) = (owner(7), owner(8));
    let mut waiting = Box::pin(calls.acquire(&late, None));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    limits.divide_by(NonZeroUsize::new(2).unwrap());
    by_name.call_waiting();
    let third = waiting.await.unwrap();
    assert!(calls.try_acquire(&last).is_none());
    limits.divide_by(NonZeroUsize::MIN);
    assert!(calls.try_acquire(&last).is_some());
    drop((held, third));
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_wait_leaves_its_turn_to_the_next() {
    let permits = permits(1, 1);
    let ada = owner(0);
    let held = permits.acquire(&ada, None).await.unwrap();
    let wait = tokio::time::timeout(Duration::from_secs(1), permits.acquire(&ada, None)).await;
    assert!(wait.is_err(), "nothing is free");
    let (next, ()) = tokio::join!(permits.acquire(&ada, Some(Duration::from_secs(2))), async { drop(held) });
    assert!(next.is_ok(), "the queue has room again");
}

/// GW-40: a noisy principal meets its own limit first.
#[tokio::test(start_paused = true)]
async fn one_principal_leaves_a_quarter_of_the_queue_to_the_others() {
    let permits = permits(1, 8);
    let (noisy, quiet) = (owner(0), owner(1));
    let _held = permits.acquire(&noisy, None).await.unwrap();
    let mut waits: Vec<_> = (0..6).map(|_| Box::pin(permits.acquire(&noisy, None))).collect();
    for wait in &mut waits {
        assert!(poll(wait.as_mut()).is_pending());
    }
    assert_eq!(permits.acquire(&noisy, None).await.unwrap_err().reason, Reason::QueueFull);
    let mut others: Vec<_> = (0..2).map(|_| Box::pin(permits.acquire(&quiet, None))).collect();
    for wait in &mut others {
        assert!(poll(wait.as_mut()).is_pending());
    }
    assert_eq!(permits.acquire(&quiet, None).await.unwrap_err().reason, Reason::QueueFull, "now it is full");
    drop((waits, others));
    assert_eq!(permits.waiting(), 0);
}

/// A running call is never ended for another, and may run for hours.
#[tokio::test]
async fn one_principal_leaves_a_quarter_of_the_places_to_the_others() {
    let permits = permits(8, 8);
    let (noisy, quiet) = (owner(0), owner(1));
    let held: Vec<_> = (0..6).map(|_| permits.try_acquire(&noisy).unwrap()).collect();
    assert!(permits.try_acquire(&noisy).is_none(), "it has its share");
    let mut waits = Box::pin(permits.acquire(&noisy, None));
    assert!(poll(waits.as_mut()).is_pending());
    let other: Vec<_> = (0..2).map(|_| permits.try_acquire(&quiet).expect("places are left")).collect();
    assert!(permits.try_acquire(&quiet).is_none(), "now all are taken");
    drop(other);
    assert!(poll(waits.as_mut()).is_pending(), "they are not for it");
    drop(held);
    assert!(poll(waits.as_mut()).is_ready());
}

#[tokio::test]
async fn a_place_that_passes_to_another_principal_is_free_in_the_share_of_the_first() {
    let permits = permits(8, 8);
    let (noisy, quiet) = (owner(0), owner(1));
    let mut held: Vec<_> = (0..6).map(|_| permits.try_acquire(&noisy).unwrap()).collect();
    let mut waits = Box::pin(permits.acquire(&noisy, None));
    assert!(poll(waits.as_mut()).is_pending());
    held[0].pass_to(&quiet);
    assert!(poll(waits.as_mut()).is_ready(), "there are two free places, and one of its share");
}

#[tokio::test]
async fn the_person_of_a_loopback_listener_has_all_places() {
    let permits = permits(8, 8);
    let held: Vec<_> = (0..8).map_while(|_| permits.try_acquire(&Principal::local())).collect();
    assert_eq!(held.len(), 8);
}

#[tokio::test]
async fn places_by_name_go_on_counting_with_other_bounds() {
    let all = CallPermitsByName::default();
    let name: Arc<str> = Arc::from("reports");
    let settings = |max| CallPermitSettings { in_flight_max: NonZeroUsize::new(max).unwrap(), queue_max: 8 };
    let ada = Principal::local();
    let before = all.of(&name, settings(2));
    let held = [before.try_acquire(&ada).unwrap(), before.try_acquire(&ada).unwrap()];
    let waiting = all.of(&name, settings(2));
    let mut waits = Box::pin(waiting.acquire(&ada, None));
    assert!(poll(waits.as_mut()).is_pending());
    let after = all.of(&name, settings(3));
    assert!(after.try_acquire(&ada).is_none(), "they are the same places");
    after.rebound(settings(3));
    let Poll::Ready(Ok(third)) = poll(waits.as_mut()) else { panic!("there is one more") };
    after.rebound(settings(1));
    drop(held);
    assert!(after.try_acquire(&ada).is_none(), "one is still held, and there is but one");
    drop(third);
    assert!(after.try_acquire(&ada).is_some());
    drop(waits);
    drop((before, waiting, after));
    assert_eq!(all.of(&name, settings(5)).0.state.lock().held_by(&ada), 0, "no call held them any more");
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[derive(Clone, Debug)]
enum LoadStep {
    /// A call of one of four principals comes.
    Arrive(usize),
    /// The call that has run longest ends.
    End,
    /// One of the waiting calls leaves.
    Abandon(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<LoadStep>> {
    let step = prop_oneof![
        4 => (0_usize..4).prop_map(LoadStep::Arrive),
        3 => Just(LoadStep::End),
        1 => any::<prop::sample::Index>().prop_map(LoadStep::Abandon),
    ];
    prop::collection::vec(step, 1..200)
}

type PendingPermit<'a> = (usize, usize, Pin<Box<dyn Future<Output = Result<CallPermit, GatewayFault>> + 'a>>);

/// A granted permit: its principal, its call, and the calls that still waited.
type GrantedPermit = (usize, usize, Vec<(usize, usize)>);

/// Plays the steps; returns the permits in order of granting.
fn play(permits: &CallPermits, owners: &[Principal], steps: &[LoadStep]) -> Vec<GrantedPermit> {
    let (mut granted, mut running, mut number) = (Vec::new(), VecDeque::new(), 0);
    let mut waiting: Vec<PendingPermit<'_>> = Vec::new();
    for step in steps {
        match step {
            LoadStep::Arrive(who) => {
                number += 1;
                waiting.push((*who, number, Box::pin(permits.acquire(&owners[*who], None))));
            }
            LoadStep::End => drop(running.pop_front()),
            LoadStep::Abandon(which) if !waiting.is_empty() => drop(waiting.remove(which.index(waiting.len()))),
            LoadStep::Abandon(_) => (),
        }
        let mut at = 0;
        while at < waiting.len() {
            match poll(waiting[at].2.as_mut()) {
                Poll::Pending => at += 1,
                Poll::Ready(permit) => {
                    let (who, number, _) = waiting.remove(at);
                    running.push_back(permit.expect("the queue is never full here"));
                    granted.push((who, number, waiting.iter().map(|(who, number, _)| (*who, *number)).collect()));
                }
            }
        }
        assert!(waiting.is_empty() || running.len() == 2, "no call waits while a permit is free");
        assert_eq!(permits.waiting(), waiting.len());
    }
    granted
}

proptest! {
    #[test]
    fn turns_are_fair_between_principals_and_in_order_within_one(steps in steps()) {
        let permits = permits(2, 1_000);
        let owners: Vec<_> = (0..4).map(owner).collect();
        let granted = play(&permits, &owners, &steps);
        for who in 0..4 {
            let own: Vec<_> = granted.iter().filter(|(owner, ..)| *owner == who).map(|(_, number, _)| *number).collect();
            prop_assert!(own.is_sorted(), "in order of coming: {own:?}");
        }
        // While a principal waits all the time, no other is served twice.
        for (first, (who, ..)) in granted.iter().enumerate() {
            let Some(again) = granted[first + 1..].iter().position(|(other, ..)| other == who) else { continue };
            let between = &granted[first..=first + 1 + again];
            for waiter in granted[first].2.iter().filter(|(other, _)| other != who) {
                let was_served = between.iter().any(|(served, ..)| *served == waiter.0);
                let always_waited = between.iter().all(|(.., rest)| rest.contains(waiter));
                prop_assert!(was_served || !always_waited, "{who} was served twice before {waiter:?}: {between:?}");
            }
        }
        prop_assert_eq!(permits.waiting(), 0);
        prop_assert!(permits.0.state.lock().is_bare());
    }
}
