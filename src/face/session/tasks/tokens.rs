//! Encodes list cursors and question ids as ids that clients keep. Both contain their whole state: a restart loses no
//! table, and any replica can read them.

use crate::engine::TaskCursor;
use crate::face::sealed::{GatewayId, IdKind, Sealer, sealed_in};
use crate::task::{InputKey, ListFilter, Principal, TaskId, Timestamp};
use crate::upstream::own_ids;
use crate::wire::RequestId;

pub(super) fn cursor(sealer: &Sealer, owner: &Principal, filter: Option<&ListFilter>, (at, id): TaskCursor) -> String {
    let payload = [&at.as_millis().to_be_bytes()[..], &name_of(filter)].concat();
    let sealed = sealer.seal(&GatewayId::of_task(IdKind::Cursor, id), Some(owner), &payload);
    sealed.expect("a cursor has one length")
}

/// `None` unless the cursor was issued for this list of this owner (L25-36, FIL-11).
pub(super) fn position(
    sealer: &Sealer,
    owner: &Principal,
    filter: Option<&ListFilter>,
    cursor: &str,
) -> Option<TaskCursor> {
    let opened = sealer.open(IdKind::Cursor, Some(owner), cursor)?;
    let (at, list) = opened.payload().split_first_chunk()?;
    let position = (Timestamp::from_millis(u64::from_be_bytes(*at)), TaskId::from_bits(opened.id.random));
    (list == name_of(filter)).then_some(position)
}

fn name_of(filter: Option<&ListFilter>) -> Vec<u8> {
    filter.map_or_else(Vec::new, |filter| filter.digest().0.to_vec())
}

/// Different each time.
pub(super) fn question_id(sealer: &Sealer, task: TaskId, key: InputKey) -> RequestId {
    let sealed = sealer.seal(&GatewayId::of_task(IdKind::TaskQuestion, task), None, &key.0.to_be_bytes());
    own_ids::of(&sealed.expect("a question's id has one length"))
}

/// Opens an id that any replica issued. The session's owner is the task's.
pub(super) fn question(sealer: &Sealer, id: &RequestId) -> Option<(TaskId, InputKey)> {
    let opened = sealer.open(IdKind::TaskQuestion, None, sealed_in(&id.as_text()?))?;
    let key = u32::from_be_bytes(opened.payload().try_into().ok()?);
    Some((TaskId::from_bits(opened.id.random), InputKey(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::sealed::{KEY_LEN, SealingKeys};
    use crate::task::ListDirection;

    fn sealer() -> Sealer {
        Sealer::new(SealingKeys::ephemeral([7; KEY_LEN]))
    }

    #[test]
    fn a_cursor_names_its_place_to_its_owner_alone() {
        let (sealer, owner) = (sealer(), Principal::local());
        let there = (Timestamp::from_millis(7), TaskId::from_bits(9));
        let cursor = cursor(&sealer, &owner, None, there);
        assert_eq!(position(&sealer, &owner, None, &cursor), Some(there));
        assert_eq!(position(&sealer, &Principal::new("key:other"), None, &cursor), None);
        for wrong in ["", "c", &cursor[1..]] {
            assert_eq!(position(&sealer, &owner, None, wrong), None, "{wrong}");
        }
    }

    /// FIL-11.
    #[test]
    fn a_cursor_of_a_filtered_list_is_good_for_that_list_alone() {
        let (sealer, owner) = (sealer(), Principal::local());
        let there = (Timestamp::from_millis(7), TaskId::from_bits(9));
        let filter = ListFilter::default();
        let other = ListFilter { direction: ListDirection::OldestFirst, ..filter.clone() };
        let filtered = cursor(&sealer, &owner, Some(&filter), there);
        assert_eq!(position(&sealer, &owner, Some(&filter), &filtered), Some(there));
        assert_eq!(position(&sealer, &owner, Some(&other), &filtered), None);
        assert_eq!(position(&sealer, &owner, None, &filtered), None);
        assert_eq!(position(&sealer, &Principal::new("key:other"), Some(&filter), &filtered), None);
        assert_eq!(position(&sealer, &owner, Some(&filter), &cursor(&sealer, &owner, None, there)), None);
    }

    #[test]
    fn a_question_has_another_id_each_time_and_each_is_understood() {
        let sealer = sealer();
        let asked = (TaskId::from_bits(9), InputKey(3));
        let ids = [question_id(&sealer, asked.0, asked.1), question_id(&sealer, asked.0, asked.1)];
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| question(&sealer, id) == Some(asked)));
        assert!(RequestId::from_payload(&ids[0].payload()).is_some(), "short enough for an id");
        assert_eq!(question(&sealer, &RequestId::text("tg:0123")), None);
        let cursor = cursor(&sealer, &Principal::local(), None, (Timestamp::from_millis(7), asked.0));
        assert_eq!(question(&sealer, &RequestId::text(&format!("tg:{cursor}"))), None, "of another kind");
    }
}
