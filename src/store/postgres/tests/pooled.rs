//! Tests the store behind pgbouncer, and behind a connection without notifications.

use futures_util::StreamExt as _;
use support::pgbouncer::Pooler;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::store::contract::settled;

fn through(server: &PostgresServer, url: String) -> PostgresSettings {
    with(settings(server, &new_schema()), |access| access.url = DatabaseUrl::Here(url))
}

async fn beside(store: &PostgresStore) -> Arc<PostgresStore> {
    let mut settings = (*store.state.settings).clone();
    settings.replica.name.push('+');
    opened(settings).await
}

/// The next hint with a key, if there is one in time.
async fn next_key(hints: &mut (impl futures_util::Stream<Item = StoreHint> + Unpin)) -> TaskKey {
    let next = async {
        loop {
            if let StoreHint::Changed(key) = hints.next().await.unwrap() {
                return key;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("a hint")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_keeps_a_session_for_its_client_changes_nothing() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let Some(pooler) = Pooler::start(&server, &["pool_mode = session"]) else { return };
    let store = open_with(through(&server, pooler.url())).await.unwrap();
    let other = beside(&store).await;
    let mut hints = other.changes();
    // The other one may not listen yet.
    let writing = async {
        for id in 100.. {
            store.insert(&task("a", id)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let key = tokio::select! {
        key = next_key(&mut hints) => key,
        () = writing => unreachable!("it writes on"),
    };
    assert!(other.load(&key, START).await.unwrap().is_some());
    // Warnings arrive through it too: rule 2.
    name_standbys(&server, "missing").await;
    let cancelled = async {
        let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' \
                   AND application_name LIKE '% writer'";
        until("a commit that waits", || server.psql(sql) != "0").await;
    };
    let two = task("a", 2);
    let (written, ()) = tokio::join!(store.insert(&two), cancelled);
    assert!(matches!(written, Err(StoreError::UnknownCommit(_))), "{written:?}");
    name_standbys(&server, "").await;
    let begin = Instant::now();
    while !matches!(store.resolve_write(&two.key, START).await, Ok(None)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    other.close().await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n5_a_pooler_that_lends_sessions_by_the_transaction_is_refused() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    for mode in ["transaction", "statement"] {
        for order in ["server_round_robin = 0", "server_round_robin = 1"] {
            let lines = [&format!("pool_mode = {mode}"), order];
            let Some(pooler) = Pooler::start(&server, &lines) else { return };
            for _ in 0..4 {
                let begin = Instant::now();
                let refused = loop {
                    match open_with(through(&server, pooler.url())).await {
                        // A pooler that has just begun may close a connection.
                        Err(PostgresOpenError::Unavailable(_)) if begin.elapsed() < PATIENCE => {
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                        refused => break refused,
                    }
                };
                let is_pooled = |error: &PostgresOpenError| matches!(error, PostgresOpenError::Pooled);
                assert!(refused.as_ref().is_err_and(is_pooled), "{lines:?}: {refused:?}");
                assert!(refused.is_err_and(
                    |error| error.retry() != Retry::Always && error.to_string().contains("pool_mode = session")
                ));
            }
        }
    }
}

/// Each commit checks the session that runs it.
#[tokio::test(flavor = "multi_thread")]
async fn n5_a_commit_in_a_session_that_another_connection_set_up_is_unknown() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let Some(pooler) = Pooler::start(&server, &["pool_mode = session"]) else { return };
    let store = open_with(through(&server, pooler.url())).await.unwrap();
    let mut made = Vec::new();
    let begin = Instant::now();
    let refused = loop {
        let next = task("a", made.len() as u128);
        match store.insert(&next).await {
            Ok(_) => made.push(next),
            Err(error) => break error,
        }
        if made.len() == 8 {
            pooler.configure(&["pool_mode = transaction"]);
        }
        assert!(begin.elapsed() < PATIENCE, "no client notices; {}", pooler.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Statements prepared on another connection may be missing there, which fails before any write.
    let said = format!("{refused:?}");
    assert!(said.contains("pooler") || said.contains("(26000)"), "{said}");
    pooler.configure(&["pool_mode = session"]);
    let begin = Instant::now();
    for one in &made {
        while !store.load(&one.key, START).await.is_ok_and(|row| row.is_some()) {
            assert!(begin.elapsed() < PATIENCE, "{:?}; {}", store.health(), pooler.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    store.close().await;
}

/// Forwards all server messages except notifications.
async fn deafen(listener: TcpListener, to: (&'static str, u16), tracker: TaskTracker) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(to).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tracker.spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        tracker.spawn(async move {
            let mut head = [0; 5];
            while from_server.read_exact(&mut head).await.is_ok() {
                let [kind, length @ ..] = head;
                let mut rest = vec![0; u32::from_be_bytes(length) as usize - 4];
                from_server.read_exact(&mut rest).await?;
                if kind != b'A' {
                    to_client.write_all(&[&head[..], &rest].concat()).await?;
                }
            }
            io::Result::Ok(())
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_no_settled_task_is_kept() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tracker = TaskTracker::new();
    let deafening = tracker.spawn(deafen(listener, ("127.0.0.1", server.port()), tracker.clone()));
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
    let deaf = opened(through(&server, url)).await;
    let mut hearing = (*deaf.state.settings).clone();
    hearing.access.url = DatabaseUrl::Here(server.url());
    hearing.replica.name.push('+');
    let other = opened(hearing).await;
    // After the evictions at the start of its connection and of the other replica.
    for store in [&deaf, &other, &deaf] {
        listens(store).await;
    }
    let done = settled(task("a", 1), "r");
    other.insert(&done).await.unwrap();
    assert!(deaf.load(&done.key, START).await.unwrap().is_some());
    other.remove(&done.key).await.unwrap();
    let begin = Instant::now();
    while deaf.load(&done.key, START).await.unwrap().is_some() {
        assert!(begin.elapsed() < PATIENCE, "it is still shown");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(deaf.health(), PostgresHealth::Good);
    // Followers get no hint: they poll every second in any case.
    let mut hints = deaf.changes();
    assert!(tokio::time::timeout(Duration::from_secs(4), hints.next()).await.is_err(), "a hint that no row gave");
    other.close().await;
    deaf.close().await;
    deafening.abort();
}
