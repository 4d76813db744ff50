//! Detects repeated requests among those forwarded by other replicas. Keeps each sender's highest number and a bitmap
//! of the numbers below it: any order of arrival, in constant space.

use std::collections::HashMap;
use std::time::Duration;

use super::Incarnation;
use crate::task::Timestamp;

/// How far below the highest a number may arrive: more than one sender's concurrent requests.
const NUMBERS_KEPT: u64 = 1 << 14;
/// A sender is removed once all its requests have expired.
const SENDERS_MAX: usize = 256;
const WORD: u64 = 64;
const WORDS: usize = (NUMBERS_KEPT / WORD) as usize;

#[derive(Debug, Default)]
pub struct ForwardedNumbers {
    senders: HashMap<Incarnation, SenderNumbers>,
}

/// Why a request may be a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedNumberRefusal {
    /// The number was received before, or is too old to decide.
    Repeated,
    TooManySenders,
}

#[derive(Debug)]
struct SenderNumbers {
    highest: u64,
    /// Received numbers, by their remainder.
    came: Box<[u64; WORDS]>,
    last: Timestamp,
}

impl ForwardedNumbers {
    /// A request is valid for `good_for` before and after its sender's timestamp. Fails unless it is certainly new.
    pub fn take(
        &mut self,
        sender: Incarnation,
        number: u64,
        now: Timestamp,
        good_for: Duration,
    ) -> Result<(), ForwardedNumberRefusal> {
        if !self.senders.contains_key(&sender) && self.senders.len() >= SENDERS_MAX {
            // The last request's timestamp may lie up to `good_for` ahead, and the request is valid for `good_for` after that.
            self.senders.retain(|_, numbers| now.since(numbers.last) <= good_for.saturating_mul(2));
            if self.senders.len() >= SENDERS_MAX {
                return Err(ForwardedNumberRefusal::TooManySenders);
            }
        }
        let numbers = self.senders.entry(sender).or_insert_with(|| SenderNumbers::new(now));
        numbers.last = numbers.last.max(now);
        if numbers.take(number) { Ok(()) } else { Err(ForwardedNumberRefusal::Repeated) }
    }
}

impl SenderNumbers {
    fn new(now: Timestamp) -> Self {
        Self { highest: 0, came: Box::new([0; WORDS]), last: now }
    }

    fn take(&mut self, number: u64) -> bool {
        if number == 0 || number.saturating_add(NUMBERS_KEPT) <= self.highest {
            return false;
        }
        if number > self.highest {
            if number - self.highest >= NUMBERS_KEPT {
                self.came.fill(0);
            } else {
                // Their bits belonged to numbers that are too old from now on.
                (self.highest + 1..=number).for_each(|between| self.clear(between));
            }
            self.highest = number;
        }
        let (word, bit) = bit_of(number);
        let is_new = self.came[word] & bit == 0;
        self.came[word] |= bit;
        is_new
    }

    fn clear(&mut self, number: u64) {
        let (word, bit) = bit_of(number);
        self.came[word] &= !bit;
    }
}

const fn bit_of(number: u64) -> (usize, u64) {
    let at = number % NUMBERS_KEPT;
    ((at / WORD) as usize, 1 << (at % WORD))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const GOOD_FOR: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    proptest! {
        #[test]
        fn no_number_is_taken_twice_and_none_is_refused_that_comes_little_late(
            steps in prop::collection::vec((0_u64..3_000, 0_u64..20_000), 1..400),
        ) {
            let (mut numbers, mut came, mut highest) = (ForwardedNumbers::default(), HashSet::new(), 0_u64);
            for (ahead, back) in steps {
                let number = (highest + ahead).saturating_sub(back).max(1);
                let taken = numbers.take(Incarnation(1), number, at(1), GOOD_FOR).is_ok();
                let is_new = came.insert(number);
                prop_assert!(!taken || is_new, "{number} was taken twice");
                prop_assert!(taken || !is_new || number + NUMBERS_KEPT <= highest, "{number} was refused at {highest}");
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn senders_are_told_apart_and_forgotten_once_nothing_of_theirs_is_good() {
        let mut numbers = ForwardedNumbers::default();
        for sender in 0..SENDERS_MAX as u64 {
            assert_eq!(numbers.take(Incarnation(sender), 1, at(100), GOOD_FOR), Ok(()));
        }
        let another = Incarnation(1_000);
        let refused = ForwardedNumberRefusal::TooManySenders;
        assert_eq!(numbers.take(another, 1, at(160), GOOD_FOR), Err(refused), "theirs may be good until then");
        assert_eq!(numbers.take(Incarnation(7), 1, at(160), GOOD_FOR), Err(ForwardedNumberRefusal::Repeated));
        assert_eq!(numbers.take(another, 1, at(161), GOOD_FOR), Ok(()));
        assert_eq!(numbers.senders.len(), 2, "and the one that was heard of meanwhile");
        assert_eq!(numbers.take(Incarnation(7), 0, at(161), GOOD_FOR), Err(ForwardedNumberRefusal::Repeated));
    }
}
