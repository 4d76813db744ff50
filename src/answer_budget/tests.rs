//! Checks how many bytes responses hold, which responses wait, and which requests are refused meanwhile.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

const MIB: usize = 1 << 20;

fn budget(bytes_max: usize) -> AnswerBudget {
    let budget = AnswerBudget::default();
    budget.resize(bytes_max);
    budget
}

fn held(budget: &AnswerBudget) -> usize {
    budget.in_use()
}

fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
    matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
}

fn text(bytes: usize) -> Bytes {
    Bytes::from(vec![b'x'; bytes])
}

#[tokio::test]
async fn an_answer_holds_its_bytes_until_its_last_buffer_is_dropped() {
    let (budget, ada) = (budget(8 * MIB), Principal::holding("ada"));
    let share = budget.share(&ada, 4 * MIB);
    let mut permit = AnswerPermit::default();
    share.grow(&mut permit, FREE_BYTES).await.unwrap();
    assert_eq!(held(&budget), 0, "small answers are not counted");
    share.grow(&mut permit, MIB + 1).await.unwrap();
    assert_eq!(held(&budget), 2 * MIB, "a large one takes a step more than it has");
    let held_text = permit.attach(text(MIB + 1));
    assert_eq!(held(&budget), MIB + 1);
    let piece = held_text.slice(7..8);
    drop(held_text);
    assert_eq!(held(&budget), MIB + 1, "a piece of it is still to be written");
    drop(piece);
    assert_eq!(held(&budget), 0);
    assert!(budget.0.counts.lock().shares.is_empty(), "principals without answers are forgotten");
}

#[tokio::test]
async fn one_answer_may_exceed_the_share_and_the_next_waits_for_it() {
    let (budget, ada) = (budget(8 * MIB), Principal::holding("ada"));
    let share = budget.share(&ada, 2 * MIB);
    let (mut first, mut second, mut third) = <(AnswerPermit, AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut first, 2 * MIB).await.unwrap();
    share.grow(&mut second, 3 * MIB).await.unwrap();
    let mut waiting = Box::pin(share.grow(&mut third, MIB));
    assert!(is_pending(waiting.as_mut()));
    let bob = budget.share(&Principal::holding("bob"), 2 * MIB);
    bob.grow(&mut AnswerPermit::default(), MIB).await.unwrap();
    drop(first);
    assert!(is_pending(waiting.as_mut()), "the share is still exceeded");
    drop(second);
    waiting.await.unwrap();
    drop(third);
    assert_eq!(held(&budget), 0);
}

#[tokio::test]
async fn the_whole_is_exceeded_by_one_answer_of_all_principals() {
    let budget = budget(2 * MIB);
    let share = |name: &str| budget.share(&Principal::holding(name), 2 * MIB);
    let (mut ada, mut bob, mut zoe) = <(AnswerPermit, AnswerPermit, AnswerPermit)>::default();
    share("ada").grow(&mut ada, 2 * MIB).await.unwrap();
    share("bob").grow(&mut bob, MIB).await.unwrap();
    assert!(share("zoe").hold(text(MIB)).is_err_and(|fault| fault.reason == Reason::AnswersFull));
    let zoes = share("zoe");
    let mut waiting = pin!(zoes.grow(&mut zoe, MIB));
    assert!(is_pending(waiting.as_mut()));
    drop((ada, bob));
    waiting.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_leaves_while_it_waits_takes_nothing_along() {
    let (budget, ada) = (budget(MIB), Principal::holding("ada"));
    let share = budget.share(&ada, MIB);
    let (mut first, mut second, mut third) = <(AnswerPermit, AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut first, MIB).await.unwrap();
    share.grow(&mut second, MIB).await.unwrap();
    {
        let mut waiting = Box::pin(share.grow(&mut third, MIB));
        assert!(is_pending(waiting.as_mut()));
    }
    drop((first, second));
    assert_eq!(held(&budget), 0);
    share.grow(&mut AnswerPermit::default(), MIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_behind_one_that_leaves_is_tried_at_once() {
    let (budget, ada) = (budget(64 * MIB), Principal::holding("ada"));
    let share = budget.share(&ada, 4 * MIB);
    let (mut within, mut exceeding) = <(AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut within, 3 * MIB).await.unwrap();
    share.grow(&mut exceeding, 2 * MIB).await.unwrap();
    drop(within);
    let (mut third, mut fourth) = <(AnswerPermit, AnswerPermit)>::default();
    let mut large = Box::pin(share.grow(&mut third, 4 * MIB));
    let mut small = Box::pin(share.grow(&mut fourth, MIB));
    assert!(is_pending(large.as_mut()) && is_pending(small.as_mut()));
    drop(large);
    assert!(!is_pending(small.as_mut()), "it has room, and nothing else will wake it");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_for_too_long_has_run_and_one_that_is_kept_waits_on() {
    let (budget, ada) = (budget(MIB), Principal::holding("ada"));
    let share = budget.share(&ada, MIB);
    let (mut first, mut second) = <(AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut first, MIB).await.unwrap();
    share.grow(&mut second, MIB).await.unwrap();
    let (mut third, mut fourth) = <(AnswerPermit, AnswerPermit)>::default();
    let kept = share.clone().until_deadline();
    let mut kept = pin!(kept.grow(&mut fourth, MIB));
    assert!(is_pending(kept.as_mut()));
    let fault = share.grow(&mut third, MIB).await.unwrap_err();
    assert_eq!((fault.reason, fault.executed), (Reason::TooMuchUnread, Executed::Yes));
    assert!(is_pending(kept.as_mut()));
    drop((first, second));
    kept.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_needs_several_answers_has_them_all_while_others_wait() {
    let (budget, ada) = (budget(8 * MIB), Principal::holding("ada"));
    let share = budget.share(&ada, 2 * MIB);
    let (list, other) = (share.clone().of_one_request(), share.clone().of_one_request());
    let (mut first, mut second, mut third, mut fourth) =
        <(AnswerPermit, AnswerPermit, AnswerPermit, AnswerPermit)>::default();
    let mut others = AnswerPermit::default();
    list.grow(&mut first, MIB).await.unwrap();
    other.grow(&mut others, MIB).await.unwrap();
    list.grow(&mut second, MIB).await.unwrap();
    let mut waiting = Box::pin(other.grow(&mut fourth, MIB));
    assert!(is_pending(waiting.as_mut()), "the other one exceeds the share");
    list.grow(&mut third, MIB).await.expect("it needs all of them, and holds the others meanwhile");
    assert!(is_pending(waiting.as_mut()));
    drop(second);
    assert!(budget.0.counts.lock().shares[&ada].exceeding_answers > 0, "its other answer exceeds the share");
}

/// As at an endpoint, whose response to an item of an array is a copy of the server's.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_response_that_was_asked_for_within_a_request_does_not_wait_for_its_original() {
    let (budget, ada) = (budget(8 * MIB), Principal::holding("ada"));
    let share = || budget.share(&ada, 2 * MIB);
    let (mut other, mut copy) = <(AnswerPermit, AnswerPermit)>::default();
    share().grow(&mut other, MIB).await.unwrap();
    as_one_request(async {
        let original = as_one_request(async {
            let mut permit = AnswerPermit::default();
            share().grow(&mut permit, 2 * MIB).await.unwrap();
            permit
        })
        .await;
        let copying = share();
        assert!(!is_pending(std::pin::pin!(copying.grow(&mut copy, 2 * MIB))), "it waits for its own original");
        drop(original);
    })
    .await;
}

/// For each of its responses that may wait in the queue.
#[tokio::test(start_paused = true)]
async fn an_answer_of_the_request_that_exceeds_a_bound_passes_those_that_wait() {
    let (budget, ada) = (budget(8 * MIB), Principal::holding("ada"));
    let share = budget.share(&ada, MIB);
    let list = share.clone().of_one_request();
    let mut held: Vec<_> = (0..5).map(|_| AnswerPermit::default()).collect();
    let [first, second, third, fourth, fifth] = &mut held[..] else { panic!() };
    share.grow(first, MIB).await.unwrap();
    share.grow(second, MIB).await.unwrap();
    let mut one = Box::pin(list.grow(third, MIB));
    let mut stranger = Box::pin(share.grow(fourth, MIB));
    let mut two = Box::pin(list.grow(fifth, MIB));
    assert!(is_pending(one.as_mut()) && is_pending(stranger.as_mut()) && is_pending(two.as_mut()));
    drop(std::mem::take(second));
    one.await.unwrap();
    two.await.unwrap();
    assert!(is_pending(stranger.as_mut()));
}

#[tokio::test(start_paused = true)]
async fn new_requests_are_refused_while_nothing_becomes_free_for_an_answer_that_waits() {
    let (budget, ada, bob) = (budget(8 * MIB), Principal::holding("ada"), Principal::holding("bob"));
    let share = budget.share(&ada, MIB);
    let (mut first, mut second, mut third) = <(AnswerPermit, AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut first, MIB).await.unwrap();
    share.grow(&mut second, MIB).await.unwrap();
    let mut waiting = Box::pin(share.grow(&mut third, MIB));
    assert!(is_pending(waiting.as_mut()));
    assert!(budget.refusal(&ada, || MIB).is_none(), "it has only begun to wait");
    tokio::time::advance(STALLED_AFTER).await;
    let refusal = budget.refusal(&ada, || MIB).unwrap();
    assert_eq!((refusal.fault.reason, refusal.fault.executed), (Reason::TooMuchUnread, Executed::No));
    assert_eq!((refusal.key(), refusal.bytes_max), ("answer_bytes_per_principal_max", MIB));
    assert!(budget.refusal(&bob, || MIB).is_none(), "it is another's share");
    drop((first, second));
    waiting.await.unwrap();
    assert!(budget.refusal(&ada, || MIB).is_none());
    let (mut fourth, mut fifth) = <(AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut fourth, MIB).await.unwrap();
    let brief = share.behind_refused();
    let waiting = pin!(brief.grow(&mut fifth, MIB));
    assert!(is_pending(waiting) && budget.refusal(&ada, || MIB).is_some(), "its bytes have been missing for a minute");
}

/// Responses that wait for the store, or in it, do not depend on how fast clients read.
#[tokio::test(start_paused = true)]
async fn no_request_is_refused_while_answers_wait_that_a_store_keeps() {
    let (budget, ada) = (budget(8 * MIB), Principal::holding("ada"));
    let share = budget.share(&ada, MIB);
    let stored = share.clone().in_store(4 * STALLED_AFTER);
    for share in [share.clone().until_deadline(), stored.clone()] {
        let (mut first, mut second, mut third) = <(AnswerPermit, AnswerPermit, AnswerPermit)>::default();
        share.grow(&mut first, MIB).await.unwrap();
        share.grow(&mut second, MIB).await.unwrap();
        let mut waiting = Box::pin(share.grow(&mut third, MIB));
        assert!(is_pending(waiting.as_mut()));
        tokio::time::advance(2 * STALLED_AFTER).await;
        assert!(budget.refusal(&ada, || MIB).is_none());
        drop((first, second));
        waiting.await.unwrap();
    }
    let (mut first, mut second, mut third) = <(AnswerPermit, AnswerPermit, AnswerPermit)>::default();
    stored.grow(&mut first, MIB).await.unwrap();
    stored.grow(&mut second, MIB).await.unwrap();
    let begun = Instant::now();
    assert_eq!(stored.grow(&mut third, MIB).await.unwrap_err().reason, Reason::TooMuchUnread);
    assert_eq!(begun.elapsed(), 4 * STALLED_AFTER);
}
