//! Servers, configurations and rows that the store rejects, each with an explanatory error.

use std::os::unix::fs::PermissionsExt as _;

use support::certificates::{Authority, write};

use futures_util::StreamExt as _;
use siphasher::sip128::SipHasher13;

use super::*;
use support::ports::reserved_address;

async fn refusal(settings: PostgresSettings) -> String {
    let refused = open_with(settings).await;
    refused.map(|store| store.holder()).expect_err("it is refused").to_string()
}

fn at(server: &PostgresServer, url: String) -> PostgresSettings {
    with(settings(server, &new_schema()), |access| access.url = DatabaseUrl::Here(url))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_lose_acknowledged_writes_is_refused() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    for setting in ["fsync", "full_page_writes"] {
        for value in ["off", "on"] {
            server.configure(&[&format!("{setting} = {value}")]);
            server.reload();
            until("the setting is read", || server.psql(&format!("SHOW {setting}")) == value).await;
            let opened = open_with(settings(&server, &new_schema())).await;
            match opened {
                Ok(store) => {
                    assert_eq!(value, "on", "{setting}");
                    store.close().await;
                }
                Err(error) => {
                    assert!(matches!(error, PostgresOpenError::Unsafe { .. }) && value == "off", "{error}");
                    assert!(error.to_string().contains(&format!("{setting} = off")), "{error}");
                    assert_ne!(error.retry(), Retry::Always);
                }
            }
        }
    }
    let replicated = with(settings(&server, &new_schema()), |access| access.durability = Durability::Replicated);
    let refused = refusal(replicated).await;
    assert!(refused.contains("synchronous_standby_names"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_not_this_programs_is_refused_and_left_as_it_is() {
    let Some(server) = shared() else { return };
    let made = "CREATE TABLE $.tg_meta (one boolean, schema_version int);";
    let rows = [
        (
            "a newer program's",
            format!("{made} INSERT INTO $.tg_meta VALUES (true, 7)"),
            ["version 7", "this one knows"],
        ),
        ("of no version", made.to_owned(), ["of another program", "\""]),
        ("of version 0", format!("{made} INSERT INTO $.tg_meta VALUES (true, 0)"), ["version 0", "an older program"]),
        ("without versions", "CREATE TABLE $.tg_task (id int)".to_owned(), ["of another program", "\""]),
        ("of a like name", "CREATE TABLE $.tg_meta (one boolean)".to_owned(), ["schema_version", "42703"]),
    ];
    for (what, sql, parts) in rows {
        let schema = new_schema();
        server.psql(&format!("CREATE SCHEMA {schema}; {}", sql.replace('$', &schema)));
        let tables = format!("SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = '{schema}'");
        let before = server.psql(&tables);
        let refused = refusal(settings(server, &schema)).await;
        assert!(parts.iter().all(|part| refused.contains(part)), "{what}: {refused}");
        assert_eq!(server.psql(&tables), before, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_file_is_read_again_at_each_connect() {
    let Some(server) = shared() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    let write_url = |text: &str| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let name = new_schema();
    let settings = with(settings(server, &name), |access| access.url = DatabaseUrl::File(path.clone()));
    let missing = refusal(settings.clone()).await;
    assert!(missing.contains("url"), "{missing}");
    for wrong in ["mysql://t:secret@db/t", "", "postgres://t:secret@db1/t?sslmode=disable", "postgres:///t"] {
        write_url(wrong);
        let refused = refusal(settings.clone()).await;
        assert!(!refused.contains("secret") && refused.contains("database"), "{wrong}: {refused}");
    }
    write_url(&format!("{}\n", server.url()));
    let store = opened(settings).await;
    store.insert(&task("a", 1)).await.unwrap();
    let own = format!("application_name LIKE 'taskgate {name} %'");
    listens(&store).await;
    write_url("postgres://postgres@%2Fnowhere/postgres");
    server.psql(&format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {own}"));
    until("the other url is used", || matches!(store.health(), PostgresHealth::Unavailable(_))).await;
    write_url(&server.url());
    until("the url is used again", || store.health() == PostgresHealth::Good).await;
    assert!(in_the_end(async || store.load(&task("a", 1).key, START).await).await.is_some());
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_host_that_can_be_written_to_is_used() {
    let Some(server) = shared() else { return };
    let unused = reserved_address().port();
    let port = server.port();
    let url = format!("postgres://postgres@127.0.0.1:{unused},127.0.0.1:{port}/postgres?sslmode=disable");
    let store = opened(at(server, url)).await;
    store.insert(&task("a", 1)).await.unwrap();
    assert!(store.load(&task("a", 1).key, START).await.unwrap().is_some());
    store.close().await;
    let url = format!("postgres://postgres:hush@127.0.0.1:{unused},localhost:{unused}/postgres?sslmode=disable");
    let refused = open_with(at(server, url)).await.map(|store| store.holder());
    assert!(refused.as_ref().is_err_and(|error| error.retry() == Retry::Always), "{refused:?}");
    let text = refused.unwrap_err().to_string();
    let servers = [format!("127.0.0.1:{unused}: error connecting"), format!(", localhost:{unused}: error connecting")];
    assert!(servers.iter().all(|server| text.contains(server)) && !text.contains("hush"), "{text}");
}

/// A server named `localhost` with a certificate by `authority`.
fn tls_server(authority: &Authority) -> Option<PostgresServer> {
    let server = PostgresServer::start(&[])?;
    let folder = tempfile::tempdir().unwrap();
    let files = authority.vouch(|_| ()).write(folder.path(), "server");
    for (name, path) in [("server.crt", files.certificate), ("server.key", files.key)] {
        server.write_file(name, &std::fs::read_to_string(path).unwrap());
    }
    server.configure(&["ssl = on"]);
    server.stop(support::postgres::ServerStop::Fast);
    server.restart();
    Some(server)
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_held_to_the_authority_that_is_named() {
    let (own, other) = (Authority::new(), Authority::new());
    let Some(server) = tls_server(&own) else { return };
    let folder = tempfile::tempdir().unwrap();
    let ca = |name: &str, authority: &Authority| write(folder.path(), name, "CERTIFICATE", authority.certificate());
    let (own, other) = (ca("own.pem", &own), ca("other.pem", &other));
    let url = format!("postgres://postgres@localhost:{}/postgres", server.port());
    let trusting = |ca: Option<&std::path::PathBuf>| with(at(&server, url.clone()), |access| access.ca = ca.cloned());
    let store = open_with(trusting(Some(&own))).await.unwrap();
    store.insert(&task("a", 1)).await.unwrap();
    let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE NOT ssl AND application_name LIKE 'taskgate %'";
    assert_eq!(server.psql(plain), "0");
    store.close().await;
    for (what, ca) in [("another authority", Some(&other)), ("the system's authorities", None)] {
        let refused = refusal(trusting(ca)).await;
        assert!(refused.contains("certificate"), "{what}: {refused}");
    }
    let missing = refusal(trusting(Some(&folder.path().join("missing.pem")))).await;
    assert!(missing.contains("missing.pem"), "{missing}");
    // An address that the certificate does not cover.
    let elsewhere = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let refused = refusal(with(at(&server, elsewhere), |access| access.ca = Some(own))).await;
    assert!(refused.contains("certificate"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_used_on_this_machine_or_if_the_url_allows_it() {
    let Some(server) = shared() else { return };
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let refused = refusal(at(server, url.clone())).await;
    assert!(refused.contains("TLS"), "{refused}");
    let store = open_with(at(server, format!("{url}?sslmode=disable"))).await.unwrap();
    store.insert(&task("a", 1)).await.unwrap();
    store.close().await;
}

/// Changes a row's record without the store's knowledge.
pub(super) fn spoil(server: &PostgresServer, schema: &str, id: u128, record: &str) {
    server.psql(&format!("UPDATE {schema}.tg_task SET record = {record} WHERE id = decode('{id:032x}', 'hex')"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_damaged_is_a_failed_task() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let changes = [
        "set_byte(record, 30, get_byte(record, 30) # 1)",
        "substring(record FROM 1 FOR length(record) - 1)",
        "'\\x'",
        "record || '\\x00'",
    ];
    for (id, change) in (1..).zip(changes) {
        let task = task("a", id);
        store.insert(&task).await.unwrap();
        spoil(server, &schema, id, change);
        let found = store.load(&task.key, START).await.unwrap().expect("it is not unknown");
        assert!(is_condemned(&found.task), "{change}: {:?}", found.task.phase);
        let again = store.load(&task.key, START).await.unwrap().unwrap();
        assert_eq!((again.revision, again.holder), (Revision(2), None), "{change}: it is written so");
    }
    let listed = store.page(&Principal::new("a"), PageRange::new(None, 9, START)).await.unwrap();
    assert_eq!(listed.tasks.len(), changes.len());
    assert_eq!(store.usage().unsettled, 0);
    store.close().await;
}

/// Changes a record as another program would write it.
fn rewrite(server: &PostgresServer, schema: &str, id: u128, change: impl FnOnce(&mut Vec<u8>)) {
    let row = format!("{schema}.tg_task WHERE id = decode('{id:032x}', 'hex')");
    let text = server.psql(&format!("SELECT encode(record, 'hex') FROM {row}"));
    let mut record = unhex(text.trim());
    change(&mut record);
    let sum = SipHasher13::new().hash(&[&record[..2], &record[18..]].concat());
    record[2..18].copy_from_slice(&u128::from(sum).to_be_bytes());
    spoil(
        server,
        schema,
        id,
        &format!("decode('{}', 'hex')", record.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    );
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// As a program with version 99 would write it.
const AS_NEWER: fn(&mut Vec<u8>) = |record| record[..2].copy_from_slice(&99_u16.to_be_bytes());

/// With a field that this program does not know.
const WITH_UNKNOWN: fn(&mut Vec<u8>) = |record| record.push(0);

/// F89: while replicas are replaced one after the other, the other ones may write rows that one cannot read.
#[tokio::test(flavor = "multi_thread")]
async fn f89_a_record_of_another_program_is_left_as_it_is() {
    let Some(server) = shared() else { return };
    for (change, said) in [(AS_NEWER, "version 99"), (WITH_UNKNOWN, "a value that this program does not know")] {
        let schema = new_schema();
        let store = opened(settings(server, &schema)).await;
        let one = task("a", 1);
        store.insert(&one).await.unwrap();
        rewrite(server, &schema, 1, change);
        let bytes = || server.psql(&format!("SELECT rev, encode(record, 'hex') FROM {schema}.tg_task"));
        let before = bytes();
        for _ in 0..2 {
            let found = store.load(&one.key, START).await;
            assert!(matches!(&found, Err(StoreError::Io(why)) if why.to_string().contains(said)), "{found:?}");
        }
        assert_eq!(bytes(), before);
        let logged: Vec<_> = store.state.unreadable.0.lock().iter().copied().collect();
        assert_eq!(logged, [ShortReference::of(&one.key)], "it is logged once");
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_go_on_behind_rows_that_cannot_be_read() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    for id in 1..=6 {
        store
            .insert(&Task { created_at: START.after(Duration::from_millis(id)), ..task("a", id.into()) })
            .await
            .unwrap();
    }
    for id in [1, 2, 4, 5] {
        rewrite(server, &schema, id, AS_NEWER);
    }
    server.psql(&format!(
        "UPDATE {schema}.tg_task SET summary = '\\x' WHERE octet_length(record) > 0 AND get_byte(record, 1) = 99"
    ));
    for limit in 1..=3 {
        let (mut seen, mut surveyed, mut after, mut behind) = (Vec::new(), Vec::new(), None, None);
        // Each page examines as many rows as its limit.
        for number in 1..=6 / limit {
            let page = store.page(&Principal::new("a"), PageRange::new(after, limit, START)).await.unwrap();
            seen.extend(page.tasks.iter().map(|task| task.key.id.bits()));
            after = page.next;
            assert_eq!(after.is_none(), number == 6 / limit, "page {number}");
            let page = store.survey(PageRange::new(behind, limit, START)).await.unwrap();
            surveyed.extend(page.tasks.iter().map(|task| task.key.id.bits()));
            behind = page.next;
            assert_eq!(behind.is_none(), number == 6 / limit, "survey {number}");
        }
        surveyed.reverse();
        assert_eq!((&seen[..], &surveyed[..]), (&[3, 6][..], &[3, 6][..]), "{limit} at a time");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_is_no_hint_says_that_something_was_missed() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    // Its own connection emits the same hint when it starts to listen.
    listens(&store).await;
    let mut changes = store.changes();
    let texts = ["'no key'", "''", "repeat('A', 7999)", "repeat('ä', 3999)", "'AAAAAAAAAAk'"];
    for text in texts {
        server.psql(&format!("SELECT pg_notify('taskgate_{schema}', {text})"));
        let heard = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap();
        assert_eq!(heard, Some(StoreHint::Missed), "{text}");
    }
    store.insert(&task("a", 1)).await.expect("it listens on");
    store.close().await;
}
