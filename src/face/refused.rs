//! Says why a method about tasks has no result, in whichever flavour it was asked.

use crate::dialect::Complaint;
use crate::engine::TaskError;
use crate::wire::RpcError;

/// Each face says it in its own way.
pub(super) enum Refused {
    Complaint(Complaint),
    Error(RpcError),
    Task(TaskError),
}

impl From<Complaint> for Refused {
    fn from(complaint: Complaint) -> Self {
        Self::Complaint(complaint)
    }
}

impl From<RpcError> for Refused {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

impl From<TaskError> for Refused {
    fn from(error: TaskError) -> Self {
        Self::Task(error)
    }
}
