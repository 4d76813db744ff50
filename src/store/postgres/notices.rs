//! Keeps a connection's notices: a warning on a commit makes its outcome unknown.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_postgres::error::{DbError, Severity};

use crate::replica::SqlNotice;

/// Sessions receive warnings only, and a healthy transaction has none.
const KEPT_MAX: usize = 16;

/// A dropped notice has no code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedNotice {
    severity: &'static str,
    sqlstate: String,
}

impl ReceivedNotice {
    fn of(notice: &DbError) -> Self {
        Self { severity: severity(notice), sqlstate: notice.code().code().to_owned() }
    }

    pub(super) fn as_sql(&self) -> SqlNotice<'_> {
        SqlNotice { severity: self.severity, sqlstate: &self.sqlstate }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct SessionNotices(Arc<Mutex<KeptNotices>>);

#[derive(Debug, Default)]
struct KeptNotices {
    count: usize,
    newest: VecDeque<ReceivedNotice>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NoticeOffset(usize);

impl SessionNotices {
    pub(super) fn add(&self, notice: &DbError) -> ReceivedNotice {
        let notice = ReceivedNotice::of(notice);
        self.keep(notice.clone());
        notice
    }

    fn keep(&self, notice: ReceivedNotice) {
        let mut kept = self.0.lock();
        kept.count += 1;
        if kept.newest.len() >= KEPT_MAX {
            kept.newest.pop_front();
        }
        kept.newest.push_back(notice);
    }

    /// A notice on a statement arrives before the statement's answer.
    pub(super) fn offset(&self) -> NoticeOffset {
        NoticeOffset(self.0.lock().count)
    }

    /// Dropped notices are represented by one empty notice.
    pub(super) fn since(&self, offset: NoticeOffset) -> Vec<ReceivedNotice> {
        let kept = self.0.lock();
        let came = kept.count.saturating_sub(offset.0);
        let lost = (came > kept.newest.len()).then(ReceivedNotice::default);
        lost.into_iter().chain(kept.newest.iter().rev().take(came).rev().cloned()).collect()
    }
}

pub(super) fn as_sql(said: &DbError) -> SqlNotice<'_> {
    SqlNotice { severity: severity(said), sqlstate: said.code().code() }
}

fn severity(said: &DbError) -> &'static str {
    match said.parsed_severity() {
        Some(Severity::Panic) => "PANIC",
        Some(Severity::Fatal) => "FATAL",
        Some(Severity::Error) => "ERROR",
        Some(Severity::Warning) => "WARNING",
        Some(Severity::Notice) => "NOTICE",
        Some(Severity::Debug) => "DEBUG",
        Some(Severity::Info) => "INFO",
        Some(Severity::Log) => "LOG",
        // A proxy wrote the message, with its own words.
        None => match said.severity() {
            "ERROR" => "ERROR",
            "NOTICE" => "NOTICE",
            "FATAL" => "FATAL",
            _ => "WARNING",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::commit_trust::voids_acknowledgement;

    fn notice(sqlstate: &str) -> ReceivedNotice {
        ReceivedNotice { severity: "NOTICE", sqlstate: sqlstate.to_owned() }
    }

    #[test]
    fn a_transaction_is_told_of_the_notices_that_came_since_it_began() {
        let notices = SessionNotices::default();
        notices.keep(notice("00001"));
        let offset = notices.offset();
        assert!(notices.since(offset).is_empty());
        notices.keep(notice("00002"));
        notices.keep(notice("00003"));
        assert_eq!(notices.since(offset), [notice("00002"), notice("00003")]);
    }

    #[test]
    fn notices_are_bounded_and_those_that_were_not_kept_void_acknowledgements() {
        let notices = SessionNotices::default();
        let offset = notices.offset();
        for _ in 0..KEPT_MAX {
            notices.keep(notice("00000"));
        }
        assert!(!notices.since(offset).iter().any(|notice| voids_acknowledgement(&notice.as_sql())));
        notices.keep(notice("00000"));
        let since = notices.since(offset);
        assert_eq!(since.len(), KEPT_MAX + 1);
        assert!(since.iter().any(|notice| voids_acknowledgement(&notice.as_sql())));
    }
}
