//! Lets all callers with the same question wait for one lookup, which runs to its end even if they leave.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use parking_lot::Mutex;

use super::TaskScope;
use crate::task::OwnerCounts;

/// The most lookups at one time, and the most that one client began. Further ones are refused.
const RUNNING_MAX: usize = 1_024;
pub(crate) const SHARE_MAX: usize = RUNNING_MAX / 4;

type Running<T> = Shared<BoxFuture<'static, Option<T>>>;

/// The lookups in progress, by question. `C` is the client that begins one: its principal, or its address before that is
/// known.
pub(crate) struct SharedLookups<K, T, C = ()>(Arc<Mutex<LookupTable<K, T, C>>>);

struct LookupTable<K, T, C> {
    running: HashMap<K, Running<T>>,
    begun_by: OwnerCounts<C>,
}

impl<K, T, C> Default for SharedLookups<K, T, C> {
    fn default() -> Self {
        let table = LookupTable { running: HashMap::new(), begun_by: OwnerCounts::default() };
        Self(Arc::new(Mutex::new(table)))
    }
}

impl<K: Eq + Hash, T, C: Clone + Eq + Hash> LookupTable<K, T, C> {
    fn has_room(&self, client: &C) -> bool {
        self.running.len() < RUNNING_MAX && self.begun_by.of(client) < SHARE_MAX
    }

    fn remove(&mut self, key: &K, client: &C) {
        self.running.remove(key);
        self.begun_by.remove(client);
    }
}

impl<K, T, C> SharedLookups<K, T, C>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + Sync + 'static,
    C: Clone + Eq + Hash + Send + 'static,
{
    /// Returns `known`, or the outcome of the one lookup for this key, which records it for `known` before it ends.
    /// `None` if the process stops, or too many lookups run, in all or of this client. Cancel safe: the lookup continues.
    pub(crate) async fn get<F: Future<Output = T> + Send + 'static>(
        &self,
        key: K,
        client: C,
        scope: &TaskScope,
        known: impl FnOnce() -> Option<T>,
        lookup: impl FnOnce() -> F,
    ) -> Option<T> {
        let running = {
            let mut table = self.0.lock();
            // Under the lock, so that no lookup repeats one that has just ended.
            if let Some(found) = known() {
                return Some(found);
            }
            match table.running.get(&key) {
                Some(running) => running.clone(),
                None if !table.has_room(&client) => return None,
                None => {
                    table.begun_by.add(&client);
                    let entry = RunningEntry { table: Arc::clone(&self.0), key: key.clone(), client };
                    let looking = scope.stop.clone().run_until_cancelled_owned(lookup());
                    let task = scope.tracker.spawn(async move {
                        let _entry = entry;
                        looking.await
                    });
                    let running = async move { task.await.ok().flatten() }.boxed().shared();
                    table.running.insert(key, running.clone());
                    running
                }
            }
        };
        running.await
    }
}

/// Removed at the end of its lookup, also after a panic.
struct RunningEntry<K: Eq + Hash, T, C: Clone + Eq + Hash> {
    table: Arc<Mutex<LookupTable<K, T, C>>>,
    key: K,
    client: C,
}

impl<K: Eq + Hash, T, C: Clone + Eq + Hash> Drop for RunningEntry<K, T, C> {
    fn drop(&mut self) {
        self.table.lock().remove(&self.key, &self.client);
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

        /// A lookup that ends when the gate opens.
        async fn look(&self) -> Option<usize> {
            let (gate, begun, done) = (Arc::clone(&self.gate), Arc::clone(&self.begun), Arc::clone(&self.done));
            let lookup = move || async move {
                let number = begun.fetch_add(1, Ordering::SeqCst);
                let _ = gate.acquire().await;
                *done.lock() = Some(number);
                number
            };
            self.lookups.get(1, (), &self.scope, || *self.done.lock(), lookup).await
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
        // All callers have left.
        world.gate.add_permits(1);
        world.scope.tracker.close();
        world.scope.tracker.wait().await;
        assert_eq!((world.look().await, world.begun.load(Ordering::SeqCst)), (Some(0), 1));
        assert!(world.lookups.0.lock().running.is_empty() && world.lookups.0.lock().begun_by.is_empty());
    }

    #[tokio::test]
    async fn a_lookup_that_fails_or_is_stopped_leaves_nothing_behind() {
        let world = World::new();
        let scope = &world.scope;
        assert_eq!(world.lookups.get(1, (), scope, || None, || async { panic!("a bug") }).await, None);
        scope.stop.cancel();
        assert_eq!(world.lookups.get(1, (), scope, || None, std::future::pending).await, None);
        assert!(world.lookups.0.lock().running.is_empty() && world.lookups.0.lock().begun_by.is_empty());
    }

    /// While the issuer does not answer, one client's lookups leave room for other clients' lookups.
    #[tokio::test]
    async fn one_client_has_a_share_of_the_lookups_and_all_meet_the_bound() {
        let lookups = SharedLookups::<usize, (), &str>::default();
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let begin = |key, client| Box::pin(lookups.get(key, client, &scope, || None, std::future::pending));
        let mut waiting = Vec::new();
        for (at, client) in ["ada", "bob", "cyd", "dan"].into_iter().enumerate() {
            let of_client = (0..=SHARE_MAX).map(|n| begin(10_000 * at + n, client));
            let mut of_client: Vec<_> = of_client.collect();
            let refused = of_client.iter_mut().filter_map(|one| one.now_or_never()).collect::<Vec<_>>();
            assert_eq!(refused, [None], "{client}");
            waiting.push(of_client);
        }
        assert_eq!(begin(99_999, "eve").now_or_never(), Some(None), "all are taken");
        assert!(begin(1, "eve").now_or_never().is_none(), "what another client looks up serves everyone");
        scope.stop.cancel();
        scope.tracker.close();
        scope.tracker.wait().await;
        assert!(lookups.0.lock().begun_by.is_empty(), "each gives its room back");
    }
}
