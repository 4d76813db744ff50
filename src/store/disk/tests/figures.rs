//! Measurements, run by hand: `cargo test --lib figures -- --ignored --nocapture`.

use tokio_util::task::TaskTracker;

use super::*;
use crate::store::MemoryStore;

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

fn percentile(times: &mut [Duration], per_mille: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * per_mille / 1_000).min(times.len() - 1)]
}

/// Polls a task that is not in memory `count` times.
async fn poll(store: &DiskStore, key: &TaskKey, count: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        store.resident.remove_settled(key);
        let began = Instant::now();
        assert!(store.load(key, START).await.unwrap().is_some());
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    times
}

/// Eight readers list fifty results of 5 MB each, while another polls a task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn listers_over_large_results_beside_a_poller() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let large = "r".repeat(5_000_000);
    for id in 0..50 {
        store.insert(&settled(task("lister", id), &large)).await.unwrap();
    }
    let polled = settled(task("poller", 1), "r");
    store.insert(&polled).await.unwrap();
    let mut alone = poll(&store, &polled.key, 1_000).await;
    let before = resident_kib();
    let listers = TaskTracker::new();
    let aborts: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            let lister = listers.spawn(async move {
                let mut pages = 0_u32;
                loop {
                    let page = store.page(&Principal::new("lister"), PageRange::new(None, 50, START)).await.unwrap();
                    assert_eq!(page.tasks.len(), 50);
                    pages += 1;
                    if pages.is_multiple_of(64) {
                        tokio::task::yield_now().await;
                    }
                }
            });
            lister.abort_handle()
        })
        .collect();
    let mut beside = poll(&store, &polled.key, 1_000).await;
    let after = resident_kib();
    for lister in aborts {
        lister.abort();
    }
    let mut took = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        store.page(&Principal::new("lister"), PageRange::new(None, 50, START)).await.unwrap();
        took.push(began.elapsed());
    }
    println!("alone: p50 {:?} p99 {:?}", percentile(&mut alone, 500), percentile(&mut alone, 990));
    println!("beside: p50 {:?} p99 {:?}", percentile(&mut beside, 500), percentile(&mut beside, 990));
    println!("one list alone: p50 {:?}; resident {before} KiB, then {after} KiB", percentile(&mut took, 500));
}

async fn first_pages(what: &str, store: &impl TaskStore, rows: u64, all: u64) {
    let mut listed = Vec::new();
    let mut found = Vec::new();
    for number in 0..50 {
        let began = Instant::now();
        assert_eq!(store.survey(PageRange::new(None, 100, START)).await.unwrap().tasks.len(), 100);
        listed.push(began.elapsed());
        let key = many(number * rows / 50).key;
        let began = Instant::now();
        assert_eq!(store.find_reference(ShortReference::of(&key), 2).await.unwrap(), [key]);
        found.push(began.elapsed());
    }
    let (listed, found) = (percentile(&mut listed, 500), percentile(&mut found, 500));
    println!("{what}, {all} tasks: a page of 100 in {listed:?}, one by its reference in {found:?}");
}

fn many(number: u64) -> Task {
    let id = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let created_at = START.after(Duration::from_millis(number));
    settled(Task { created_at, ttl: Duration::from_secs(86_400), ..task(&format!("key:{}", number % 20), id) }, "r")
}

/// The operators' list and lookup, in stores of all sizes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn operators_lists_in_stores_of_all_sizes() {
    let memory = MemoryStore::new(ROOMY);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder);
    settings.tuning.syncs = false;
    let disk = DiskStore::open_with(settings, roomy()).await.unwrap();
    let mut made = 0;
    for rows in [5_000, 10_000, 20_000, 40_000, 100_000] {
        while made < rows {
            let tasks: Vec<Task> = (made..rows.min(made + 512)).map(many).collect();
            made += tasks.len() as u64;
            for task in &tasks {
                memory.insert(task).await.unwrap();
            }
            futures_util::future::try_join_all(tasks.iter().map(|task| disk.insert(task))).await.unwrap();
        }
        first_pages("memory", &memory, rows, made).await;
        first_pages("disk", &*disk, rows, made).await;
    }
}
