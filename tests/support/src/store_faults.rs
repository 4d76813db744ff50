//! Faults of a store: it fails, is slow, or reports a failure of an operation that it did; by method, as often as the
//! test says.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use taskgate::store::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    Insert,
    Load,
    Replace,
    Remove,
    Sweep,
    SweepOne,
    Overdue,
    Page,
    Claim,
    SettleDoubt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// Nothing happens, and an error says so.
    Fails,
    /// It happens, later.
    Delays(Duration),
    /// It is done, and the error says that its result is unknown.
    AppliesAndFails,
    /// Nothing happens, since the disk below is full.
    NoRoom,
    /// Nothing happens, however small the write is, as by a bound that stays.
    Refuses,
    /// Nothing is done, and the error says that the result is unknown.
    FailsUnsure,
}

/// The fault of each method, and how often it is still to strike.
#[derive(Debug, Default)]
pub struct StoreFaults(Mutex<HashMap<Method, (StoreFault, usize)>>);

impl StoreFaults {
    /// The next calls of a method, so many of them, go wrong like this.
    pub fn strike(&self, method: Method, fault: StoreFault, times: usize) {
        self.0.lock().insert(method, (fault, times));
    }

    /// All is well again.
    pub fn heal(&self) {
        self.0.lock().clear();
    }

    fn next(&self, method: Method) -> Option<StoreFault> {
        let mut faults = self.0.lock();
        let (fault, left) = faults.get_mut(&method).filter(|(_, left)| *left > 0)?;
        *left -= 1;
        Some(*fault)
    }

    /// Has the store do something, as well as it is allowed to.
    ///
    /// # Errors
    /// The store's own, and `Io` where the fault says so.
    pub async fn with<T>(
        &self,
        method: Method,
        done: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let failed = || StoreError::Io(io::Error::other(format!("{method:?} fails on purpose")));
        match self.next(method) {
            None => done.await,
            Some(StoreFault::Fails) => Err(failed()),
            Some(StoreFault::NoRoom) => Err(StoreError::NoRoom),
            Some(StoreFault::Refuses) => Err(StoreError::Full),
            Some(StoreFault::Delays(span)) => {
                tokio::time::sleep(span).await;
                done.await
            }
            Some(StoreFault::AppliesAndFails) => {
                done.await?;
                Err(unsure(method, failed()))
            }
            Some(StoreFault::FailsUnsure) => Err(unsure(method, failed())),
        }
    }
}

/// Only a write can have an unknown commit.
fn unsure(method: Method, error: StoreError) -> StoreError {
    match (method, error) {
        (Method::Insert | Method::Replace | Method::Remove | Method::SweepOne, StoreError::Io(cause)) => {
            StoreError::UnknownCommit(cause)
        }
        (_, error) => error,
    }
}
