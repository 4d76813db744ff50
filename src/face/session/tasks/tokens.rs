//! Encodes the tokens that clients keep: where a list goes on, and which question a request stands for.
//!
//! Both hold all there is to know, so that no table is lost with the process and any replica understands them.

use crate::engine::TaskCursor;
use crate::face::sealed::{Sealer, TokenPurpose, digest_of};
use crate::task::{InputKey, Principal, TaskId, Timestamp};
use crate::upstream::own_ids;
use crate::wire::RequestId;

/// A cursor of `owner`'s list.
pub(super) fn cursor(sealer: &Sealer, owner: &Principal, (at, id): TaskCursor) -> String {
    let digest = digest_of(owner);
    let plain = [&at.as_millis().to_be_bytes()[..], &id.bits().to_be_bytes(), digest.as_bytes()].concat();
    sealer.seal(TokenPurpose::Cursor, &plain)
}

/// The place that a cursor names; `None` if it was not given for this owner's list (L25-36).
pub(super) fn place(sealer: &Sealer, owner: &Principal, cursor: &str) -> Option<TaskCursor> {
    let plain = sealer.open(TokenPurpose::Cursor, cursor)?;
    let (at, rest) = plain.split_first_chunk()?;
    let (id, digest) = rest.split_first_chunk()?;
    let place = (Timestamp::from_millis(u64::from_be_bytes(*at)), TaskId::from_bits(u128::from_be_bytes(*id)));
    (digest == digest_of(owner).as_bytes()).then_some(place)
}

/// A fresh id for a question, different each time.
pub(super) fn question_id(sealer: &Sealer, task: TaskId, key: InputKey) -> RequestId {
    let plain = [&task.bits().to_be_bytes()[..], &key.0.to_be_bytes()].concat();
    own_ids::of(&sealer.seal(TokenPurpose::Question, &plain))
}

/// The question that an id was given for, by whichever process. Whose task it is, the owner of the session says.
pub(super) fn question(sealer: &Sealer, id: &RequestId) -> Option<(TaskId, InputKey)> {
    let plain = sealer.open(TokenPurpose::Question, &own_ids::rest(id)?)?;
    let (task, key) = plain.split_first_chunk()?;
    let key = u32::from_be_bytes(key.try_into().ok()?);
    Some((TaskId::from_bits(u128::from_be_bytes(*task)), InputKey(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::sealed::{KEY_LEN, SealingKeys};

    fn sealer() -> Sealer {
        Sealer::new(SealingKeys::ephemeral([7; KEY_LEN]))
    }

    #[test]
    fn a_cursor_names_its_place_to_its_owner_alone() {
        let (sealer, owner) = (sealer(), Principal::local());
        let there = (Timestamp::from_millis(7), TaskId::from_bits(9));
        let cursor = cursor(&sealer, &owner, there);
        assert_eq!(place(&sealer, &owner, &cursor), Some(there));
        assert_eq!(place(&sealer, &Principal::new("key:other"), &cursor), None);
        for wrong in ["", "c", &cursor[1..]] {
            assert_eq!(place(&sealer, &owner, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_question_has_another_id_each_time_and_each_is_understood() {
        let sealer = sealer();
        let asked = (TaskId::from_bits(9), InputKey(3));
        let ids = [question_id(&sealer, asked.0, asked.1), question_id(&sealer, asked.0, asked.1)];
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| question(&sealer, id) == Some(asked)));
        assert!(RequestId::from_payload(ids[0].payload()).is_some(), "short enough for an id");
        assert_eq!(question(&sealer, &RequestId::text("tg:0123")), None);
        let cursor = cursor(&sealer, &Principal::local(), (Timestamp::from_millis(7), asked.0));
        assert_eq!(question(&sealer, &RequestId::text(&format!("tg:{cursor}"))), None, "of another kind");
    }
}
