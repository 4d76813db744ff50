//! Runs one lookup for all that wait for it, to its end even if they leave.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use parking_lot::Mutex;

use super::TaskScope;

/// Most lookups at one time; further ones are refused.
const RUNNING_MAX: usize = 1_024;

type Running<T> = Shared<BoxFuture<'static, Option<T>>>;

/// The lookups in progress, by what they look for.
pub(crate) struct SharedLookups<K, T>(Arc<Mutex<HashMap<K, Running<T>>>>);

impl<K, T> Default for SharedLookups<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, T: Clone + Send + Sync + 'static> SharedLookups<K, T> {
    /// What `known` has, else the outcome of the one lookup for this key, which records it for `known` before it ends. `None` if the
    /// process stops, or too many lookups are in progress. Cancel safe: the lookup goes on.
    pub(crate) async fn get<F: Future<Output = T> + Send + 'static>(
        &self,
        key: K,
        scope: &TaskScope,
        known: impl FnOnce() -> Option<T>,
        lookup: impl FnOnce() -> F,
    ) -> Option<T> {
        let running = {
            let mut table = self.0.lock();
            // Under the lock: a lookup that has just ended is not begun again.
            if let Some(found) = known() {
                return Some(found);
            }
            match table.get(&key) {
                Some(running) => running.clone(),
                None if table.len() >= RUNNING_MAX => return None,
                None => {
                    let entry = RunningEntry { table: Arc::clone(&self.0), key: key.clone() };
                    let looking = scope.stop.clone().run_until_cancelled_owned(lookup());
                    let task = scope.tracker.spawn(async move {
                        let _entry = entry;
                        looking.await
                    });
                    let running = async move { task.await.ok().flatten() }.boxed().shared();
                    table.insert(key, running.clone());
                    running
                }
            }
        };
        running.await
    }
}

/// Removed at the end of its lookup, also after a panic.
struct RunningEntry<K: Eq + Hash, T> {
    table: Arc<Mutex<HashMap<K, Running<T>>>>,
    key: K,
}

impl<K: Eq + Hash, T> Drop for RunningEntry<K, T> {
    fn drop(&mut self) {
        self.table.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;

    struct World {
        lookups: SharedLookups<u8, usize>,
        scope: TaskScope,
        gate: Arc<Semaphore>,
        begun: Arc<AtomicUsize>,
        done: Arc<Mutex<Option<usize>>>,
    }

    impl World {
        fn new() -> Self {
            let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
            let (gate, begun, done) = (Arc::new(Semaphore::new(0)), Arc::default(), Arc::default());
            Self { lookups: SharedLookups::default(), scope, gate, begun, done }
        }

        /// One that ends when the gate opens.
        async fn look(&self) -> Option<usize> {
            let (gate, begun, done) = (Arc::clone(&self.gate), Arc::clone(&self.begun), Arc::clone(&self.done));
            let lookup = move || async move {
                let number = begun.fetch_add(1, Ordering::SeqCst);
                let _ = gate.acquire().await;
                *done.lock() = Some(number);
                number
            };
            self.lookups.get(1, &self.scope, || *self.done.lock(), lookup).await
        }
    }

    #[tokio::test]
    async fn all_wait_for_one_lookup_and_it_goes_on_without_them() {
        let world = World::new();
        {
            let waiting = std::array::from_fn::<_, 100, _>(|_| Box::pin(world.look()));
            let mut waiting = futures_util::future::join_all(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        // Everybody has left.
        world.gate.add_permits(1);
        world.scope.tracker.close();
        world.scope.tracker.wait().await;
        assert_eq!((world.look().await, world.begun.load(Ordering::SeqCst)), (Some(0), 1));
        assert!(world.lookups.0.lock().is_empty());
    }

    #[tokio::test]
    async fn a_lookup_that_fails_or_is_stopped_leaves_nothing_behind() {
        let world = World::new();
        let scope = &world.scope;
        assert_eq!(world.lookups.get(1, scope, || None, || async { panic!("a bug") }).await, None);
        scope.stop.cancel();
        assert_eq!(world.lookups.get(1, scope, || None, std::future::pending).await, None);
        assert!(world.lookups.0.lock().is_empty());
    }
}
