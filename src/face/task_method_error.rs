//! Defines why a task method has no result, for all flavours.

use crate::dialect::RequestError;
use crate::engine::TaskError;
use crate::task::GatewayFault;
use crate::wire::RpcError;

pub(super) enum TaskMethodError {
    Complaint(RequestError),
    Error(RpcError),
    Task(TaskError),
    /// Nothing was done.
    Fault(GatewayFault),
}

impl From<GatewayFault> for TaskMethodError {
    fn from(fault: GatewayFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<RequestError> for TaskMethodError {
    fn from(complaint: RequestError) -> Self {
        Self::Complaint(complaint)
    }
}

impl From<RpcError> for TaskMethodError {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

impl From<TaskError> for TaskMethodError {
    fn from(error: TaskError) -> Self {
        Self::Task(error)
    }
}
