//! Queues the responses that wait for bytes.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{AnswerPermit, AnswerRequest, AnswerShare, Excess, FullBound};
use crate::task::Principal;

#[derive(Debug)]
pub(super) struct WaitingAnswer {
    pub(super) principal: Principal,
    pub(super) more: usize,
    pub(super) share_max: usize,
    pub(super) request: AnswerRequest,
    /// The bounds that it exceeds already.
    pub(super) excess: Excess,
    refuses_others_after: Option<Duration>,
    since: Instant,
    /// The exhausted bound at the last attempt.
    full: FullBound,
    granted: oneshot::Sender<AnswerPermit>,
}

impl WaitingAnswer {
    pub(super) fn new(
        share: &AnswerShare,
        more: usize,
        request: AnswerRequest,
        excess: Excess,
    ) -> (Self, oneshot::Receiver<AnswerPermit>) {
        let (granted, receiver) = oneshot::channel();
        let waiting = Self {
            principal: share.principal.clone(),
            more,
            share_max: share.bytes_max,
            request,
            excess,
            refuses_others_after: share.wait.refuses_others_after(),
            since: Instant::now(),
            full: FullBound::Share,
            granted,
        };
        (waiting, receiver)
    }
}

#[derive(Debug, Default)]
pub(super) struct WaitingAnswers(VecDeque<WaitingAnswer>);

impl WaitingAnswers {
    pub(super) fn push(&mut self, answer: WaitingAnswer) {
        self.0.push_back(answer);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_behind(&self, principal: &Principal) -> bool {
        self.0.iter().any(|answer| answer.principal == *principal && !answer.granted.is_closed())
    }

    /// Calls `take` for each response in turn, with the bound that is exhausted for an earlier response, if any. After a response
    /// for which the whole is exhausted, and after one of the same principal that gets no bytes, `take` serves only requests that
    /// exceed a bound already. Permits of cancelled responses are moved to `unwanted`.
    pub(super) fn grant(
        &mut self,
        mut take: impl FnMut(&WaitingAnswer, Option<FullBound>) -> Result<AnswerPermit, FullBound>,
        unwanted: &mut Vec<AnswerPermit>,
    ) {
        let mut passed = HashSet::new();
        let (mut is_full, mut left) = (false, VecDeque::with_capacity(self.0.len()));
        let now = Instant::now();
        let mut served = HashSet::new();
        for mut answer in self.0.drain(..) {
            if answer.granted.is_closed() {
                continue;
            }
            let behind = (is_full || passed.contains(&answer.principal)).then_some(answer.full);
            match take(&answer, behind) {
                Ok(permit) => {
                    served.insert(answer.principal.clone());
                    if let Err(permit) = answer.granted.send(permit) {
                        unwanted.push(permit);
                    }
                }
                Err(_) if behind.is_some() => left.push_back(answer),
                Err(full) => {
                    answer.full = full;
                    is_full = full == FullBound::Whole;
                    passed.insert(answer.principal.clone());
                    left.push_back(answer);
                }
            }
        }
        for answer in left.iter_mut().filter(|answer| served.contains(&answer.principal)) {
            answer.since = now;
        }
        self.0 = left;
    }

    /// The bound at which a response of the principal has waited too long while no other got bytes; of any principal if the
    /// whole is exhausted. Only responses that refuse others count.
    pub(super) fn stalled_at(&self, now: Instant, principal: &Principal) -> Option<FullBound> {
        let is_over =
            |answer: &&WaitingAnswer| answer.refuses_others_after.is_some_and(|max| answer.since + max <= now);
        let stalled = self.0.iter().filter(is_over).filter(|answer| !answer.granted.is_closed());
        let mut bounds = stalled.filter(|answer| answer.full == FullBound::Whole || answer.principal == *principal);
        bounds.next().map(|answer| answer.full)
    }
}
