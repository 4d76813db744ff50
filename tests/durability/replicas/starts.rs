//! Starts that are refused, and log lines of gateways with unlike configurations.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use support::certificates::{self, Authority};
use support::fault_proxy::{Fault, Verb};
use support::postgres::{self, Database as _};
use support::wire_client::Answer;
use taskgate::tls::IdentityFiles;
use tokio::process::Command;
use tokio::time::sleep;

use super::harness::{PLAIN, RESUMABLE, Replica, Settings, Site, until};

/// Restarts as soon as it may.
const BRIEFLY_ALONE: Settings = Settings { alone_max: "4s", ..Settings::USUAL };
const ALL_DEAD: &str = "UPDATE tg_replica SET dead = true, died = now()";

/// How often a start is made whose first try takes too long.
const STARTS_MAX: usize = 8;
/// The exit code of a mistake in the configuration. Some mistakes are refused by a first try alone, which may take
/// three seconds: later they are retried, as by a serving gateway.
const MISTAKE: i32 = 64;
/// The end of a log line about an error that is retried.
const WAITS: &str = "; this is retried until it succeeds";

/// Changes a part of its configuration.
fn change(replica: &Replica, from: &str, to: &str) {
    let [file, draft] = ["taskgate.toml", "draft.toml"].map(|name| replica.keeper.folder().join(name));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from:?} in {text}");
    fs::write(&draft, text.replacen(from, to, 1)).unwrap();
    fs::rename(draft, file).unwrap();
}

/// The program's last line, once it has ended with this code.
pub(super) async fn refused(replica: &mut Replica, code: i32) -> String {
    let keeper = &mut replica.keeper;
    for _ in 0..STARTS_MAX {
        keeper.launch(&[]);
        until("it ends, or waits", async || {
            keeper.has_ended() || (code == MISTAKE && keeper.log_text().contains(WAITS))
        })
        .await;
        if keeper.has_ended() {
            assert_eq!(keeper.ends().await, Some(code), "{}", keeper.log_text());
            return keeper.log_text().lines().last().unwrap_or_default().to_owned();
        }
        keeper.kill().await;
        // Tests look only for lines of the refused start, and of later ones.
        keeper.forget_log();
    }
    panic!("no first try was short enough to be refused");
}

/// The answer of an operators' endpoint. A reload while the gateway waits reopens its listeners, and cuts off answers.
async fn admin_answer(replica: &Replica, target: &str) -> Answer {
    let mut answer = Answer::default();
    until("an answer is whole", async || {
        answer = replica.admin_get(target).await;
        answer.is_whole
    })
    .await;
    answer
}

/// N07: two gateways with unlike keys, or of one name in two folders, and a schema of a newer program: 64, 75, 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n07_a_gateway_that_cannot_be_one_of_them_does_not_start() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(1, "refused", server, Settings::default()).await;
    let mut other = site.replica("b").await;
    fs::write(other.keeper.folder().join("data/seal.key"), "08".repeat(32)).unwrap();
    let message = refused(&mut other, 64).await;
    assert!(
        message.starts_with("key `store.path`: the replica \"a\" that uses the database seals with another key"),
        "{message}"
    );
    let mut same = site.replica("a").await;
    let message = refused(&mut same, 75).await;
    assert!(message.starts_with("key `replica.name`: another replica named \"a\" uses the database"), "{message}");
    assert_eq!(site.tables.incarnations_of("a").len(), 1, "the first gateway goes on");
    assert!(site.replicas[0].is_ready().await);
    site.tables.sql("UPDATE tg_meta SET schema_version = 1000");
    let mut older = site.replica("c").await;
    let message = refused(&mut older, 64).await;
    assert!(message.contains("the schema has version 1000, which a newer program made; this one knows"), "{message}");
    for replica in [&other, &same, &older] {
        replica.keeper.forget_log();
    }
    site.judge().await;
}

/// F80: a database that was restored from a backup ends each running gateway and each start, until the operator accepts the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_a_database_that_lost_acknowledged_writes_ends_the_gateway_with_74() {
    let Some(server) = postgres::shared() else { return };
    for (schema, loss) in [
        ("older_beat", "UPDATE tg_replica SET beat = 0"),
        // The sequence goes on behind the numbers that its server logged ahead.
        ("older_line", "DELETE FROM tg_replica; DELETE FROM tg_lane; SELECT setval('tg_replica_incarnation_seq', 33)"),
        ("another_one", "UPDATE tg_meta SET generation = gen_random_uuid()"),
    ] {
        let mut site = Site::of(1, schema, server, Settings::default()).await;
        site.hold_calls_at(0, 2).await;
        let tables = site.tables;
        until("it has beaten", async || tables.count("tg_replica WHERE beat > 1") == 1).await;
        // As after a restore of the whole database from a backup.
        tables.sql(&format!("{loss}; DELETE FROM tg_task"));
        let replica = &mut site.replicas[0];
        assert_eq!(replica.keeper.ends().await, Some(74), "{schema}: {}", replica.keeper.log_text());
        assert!(replica.keeper.log_text().contains("the database lost acknowledged writes"), "{schema}");
        let message = refused(replica, 74).await;
        let generation = tables.sql("SELECT generation FROM tg_meta");
        let accepted = format!("accept_loss = \"{generation}\"");
        assert!(
            message.contains("the database is another one than before, or was restored from a backup"),
            "{message}"
        );
        assert!(message.contains(&accepted), "{message}");
        replica.keeper.add_keys(&format!("{accepted}\n"));
        let upstreams = site.upstreams().to_owned();
        let replica = &mut site.replicas[0];
        replica.keeper.configure(&upstreams);
        replica.start().await;
        until("it is ready", async || replica.is_ready().await).await;
        replica.until_logged("it is used because `accept_loss` in [store] allows it", 1).await;
        replica.kill().await;
        // It stays in force for as long as it is written there, and each start says so.
        replica.start().await;
        replica.until_logged("remove `accept_loss` from [store]", 1).await;
        replica.kill().await;
        replica.keeper.forget_log();
    }
}

/// F80: so does a start, if the database was restored from a backup while no gateway ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_a_database_that_was_put_back_while_its_gateway_was_stopped_ends_the_next_start_with_74() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::of(1, "put_back", server, Settings::default()).await;
    let tables = site.tables;
    until("it has beaten", async || tables.count("tg_replica WHERE beat > 2") == 1).await;
    // As a dump has it that was made while the gateway ran.
    tables.sql("CREATE TABLE dump AS SELECT * FROM tg_replica");
    until("it goes on", async || tables.count("tg_replica r JOIN dump d ON r.beat > d.beat + 1") == 1).await;
    let replica = &mut site.replicas[0];
    replica.keeper.signal(Signal::TERM);
    assert_eq!(replica.keeper.ends().await, Some(0), "{}", replica.keeper.log_text());
    tables.sql("UPDATE tg_replica r SET beat = d.beat, dead = d.dead, died = d.died FROM dump d WHERE r.incarnation = d.incarnation");
    let message = refused(replica, 74).await;
    assert!(message.contains("the database is another one than before, or was restored from a backup"), "{message}");
    tables.sql("UPDATE tg_replica SET beat = beat + 1000");
    replica.start().await;
    until("it is ready", async || replica.is_ready().await).await;
    replica.kill().await;
    replica.keeper.forget_log();
}

/// F79: files that are rewritten before a restart do not end the gateway, as they end no serving one. A first start
/// refuses them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f79_a_gateway_that_restarts_waits_for_unusable_files() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::open("half_written", server, Settings::default()).await;
    let mut replica = site.replica("a").await;
    let (password, key) = (replica.keeper.folder().join("password"), replica.keeper.folder().join("data/seal.key"));
    replica.keeper.add_keys(&format!("password_file = \"{}\"\n", password.display()));
    replica.keeper.configure(site.upstreams());
    let message = refused(&mut replica, 64).await;
    assert!(message.contains("password") && message.contains("cannot be read"), "{message}");
    fs::write(&password, "secret\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    replica.start().await;
    until("it is ready", async || replica.is_ready().await).await;
    let whole = fs::read(&key).unwrap();
    fs::write(&key, "08").unwrap();
    fs::rename(&password, password.with_extension("old")).unwrap();
    site.tables.sql(ALL_DEAD);
    // A reload would not say that.
    replica.until_logged("hex digits; this is retried until it succeeds", 1).await;
    fs::write(&key, whole).unwrap();
    replica.is_unready("store unavailable").await;
    replica
        .until_logged("cannot be read: No such file or directory (os error 2); this is retried until it succeeds", 1)
        .await;
    fs::rename(password.with_extension("old"), &password).unwrap();
    replica.until_logged("restarted beside the other replicas", 1).await;
    until("it is ready again", async || replica.is_ready().await).await;
    assert_eq!(site.tables.incarnations_of("a").len(), 2, "of one process");
    site.replicas.push(replica);
    site.judge().await;
}

/// By then the gateway listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_first_try_retries_an_error_that_ends_a_fast_one() {
    let Some(server) = postgres::shared() else { return };
    let settings = Settings { durability: "replicated", write_max: "60s", ..Settings::USUAL };
    let site = Site::open("late_refusal", server, settings).await;
    let mut replica = site.replica("a").await;
    let message = refused(&mut replica, 64).await;
    assert!(message.starts_with("key `store.durability`"), "{message}");
    replica.to_database.iter().for_each(|server| server.set(Some(Fault::up("", 0, Verb::Hold))));
    replica.keeper.launch(&[]);
    replica.until_logged("listening", 2).await;
    replica.heal();
    replica.until_logged("or set another `durability` in [store]; this is retried until it succeeds", 1).await;
    replica.kill().await;
    replica.keeper.forget_log();
}

/// Each try would leave a live row of a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_does_not_restart_while_its_replica_certificate_is_unusable() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::open("bad_certificate", server, Settings::default()).await;
    let mut replica = site.replica("a").await;
    let (authority, folder) = (Authority::new(), replica.keeper.folder());
    let IdentityFiles { certificate, key } = authority.vouch(|_| {}).write(folder, "own");
    let ca = certificates::write(folder, "ca.pem", "CERTIFICATE", authority.certificate());
    let files = format!("[replica]\ncertificate = {certificate:?}\nkey = {key:?}\nca = {ca:?}\n");
    change(&replica, "[replica]\n", &files);
    replica.start().await;
    until("it is ready", async || replica.is_ready().await).await;
    fs::rename(&key, key.with_extension("old")).unwrap();
    site.tables.sql(ALL_DEAD);
    replica
        .until_logged(
            "own.key: cannot be read: No such file or directory (os error 2); this is retried until it succeeds",
            1,
        )
        .await;
    replica.is_unready("store unavailable").await;
    sleep(Duration::from_secs(3)).await;
    fs::rename(key.with_extension("old"), &key).unwrap();
    replica.until_logged("restarted beside the other replicas", 1).await;
    assert_eq!(site.tables.incarnations_of("a").len(), 2, "one of each beginning");
    site.replicas.push(replica);
    site.judge().await;
}

/// A gateway that serves has read the old ones, and needs them no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_restarts_takes_the_certificate_that_a_reload_names() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::open("moved_certificate", server, Settings::default()).await;
    let mut replica = site.replica("a").await;
    let (authority, folder) = (Authority::new(), replica.keeper.folder());
    let [old, new] = ["old", "new"].map(|name| authority.vouch(|_| {}).write(folder, name));
    let table = |IdentityFiles { certificate, key }: &IdentityFiles| {
        format!("[listen.tls]\ncertificate = {certificate:?}\nkey = {key:?}\n")
    };
    change(&replica, "[replica]\n", &format!("{}[replica]\n", table(&old)));
    replica.start().await;
    until("it is ready", async || replica.is_ready().await).await;
    fs::remove_file(&old.key).unwrap();
    site.tables.sql(ALL_DEAD);
    replica
        .until_logged("old.key: cannot be read: No such file or directory (os error 2); this is retried until", 1)
        .await;
    change(&replica, &table(&old), &table(&new));
    replica.until_logged("the configuration was read again", 1).await;
    replica.until_logged("restarted beside the other replicas", 1).await;
    until("it is ready again", async || replica.is_ready().await).await;
    site.replicas.push(replica);
    site.judge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_fails_after_the_database_leaves_no_live_row() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::open("port_taken", server, Settings::default()).await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut replica = site.replica_at("a", &server.addresses(), taken.local_addr().unwrap());
    let message = refused(&mut replica, 70).await;
    assert!(message.contains("Address already in use"), "{message}");
    assert_eq!(site.tables.incarnations_of("a").len(), 1);
    assert_eq!(site.tables.count("tg_replica WHERE NOT dead"), 0);
    replica.keeper.forget_log();
}

/// The gateway reloads while it waits. A key that takes effect at the next start keeps its value through any restart within the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_waits_to_restart_takes_a_new_configuration_as_a_serving_one_does() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(1, "read_anew", server, BRIEFLY_ALONE).await;
    let replica = &site.replicas[0];
    change(replica, "schema = \"read_anew\"", "schema = \"read_anew_other\"");
    replica.until_logged("changed; takes effect at the next start", 1).await;
    replica.cut_off();
    replica.until_logged("this replica has lost its calls", 1).await;
    replica.is_unready("store unavailable").await;
    let (_, plain) = site.upstreams().split_at(site.upstreams().find("[upstreams.plain]").unwrap());
    change(replica, plain, "");
    replica.keeper.signal(Signal::HUP);
    replica.until_logged("the configuration was read again", 2).await;
    // For as long as each try lasts, too. The change and the signal may be two readings.
    for _ in 0..20 {
        let answer = admin_answer(replica, "/readyz").await;
        assert_eq!((answer.status, answer.text.as_str()), (Some(503), "starting\nstore unavailable\n"));
        sleep(Duration::from_millis(100)).await;
    }
    for target in ["/", "/tasks", "/tasks/find", "/replicas", "/replicas/a/forget"] {
        let answer = admin_answer(replica, target).await;
        assert_eq!(answer.status, Some(503), "{target}: {answer:?}");
        assert_eq!(answer.json()["error"], "the store is not open yet: starting, store unavailable", "{target}");
    }
    let admin = format!("http://{}", replica.keeper.admin());
    let mut message = String::new();
    until("the command is answered", async || {
        let list =
            Command::new(support::taskgate()).args(["replicas", "list", "--admin", &admin]).output().await.unwrap();
        message = String::from_utf8_lossy(&list.stderr).into_owned();
        !message.contains("the connection to the gateway broke")
    })
    .await;
    assert_eq!(message.trim(), "taskgate: the store is not open yet: starting, store unavailable");
    replica.heal();
    replica.until_logged("restarted beside the other replicas", 1).await;
    until("it is ready again", async || replica.is_ready().await).await;
    assert_eq!(site.tables.incarnations_of("a").len(), 2, "in the schema that it was started with");
    let at = async |path| replica.ask(path, "tools/list", json!({})).await.status;
    assert_eq!((at(RESUMABLE).await, at(PLAIN).await), (Some(200), Some(404)));
    site.judge().await;
}

/// F80: so does a restore during an outage after which a gateway restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_a_gateway_that_restarts_on_an_older_database_ends_with_74() {
    let Some(server) = postgres::shared() else { return };
    for (schema, loss) in [
        ("older_anew", "UPDATE tg_replica SET beat = 1"),
        ("another_anew", "UPDATE tg_meta SET generation = gen_random_uuid()"),
    ] {
        let mut site = Site::of(1, schema, server, BRIEFLY_ALONE).await;
        let tables = site.tables;
        until("it has beaten", async || tables.count("tg_replica WHERE beat > 2") == 1).await;
        let replica = &mut site.replicas[0];
        replica.cut_off();
        replica.until_logged("this replica has lost its calls", 1).await;
        replica.is_unready("store unavailable").await;
        tables.sql(loss);
        // As where there is no place for it: the process knows.
        let kept = fs::OpenOptions::new().write(true).open(replica.keeper.folder().join("data/a.replica")).unwrap();
        kept.set_len(0).unwrap();
        replica.heal();
        assert_eq!(replica.keeper.ends().await, Some(74), "{schema}: {}", replica.keeper.log_text());
        let message = refused(replica, 74).await;
        assert!(
            message.contains("the database is another one than before, or was restored from a backup"),
            "{message}"
        );
        replica.keeper.forget_log();
    }
}

/// N06: where one has upstreams that the other lacks, both say so; and that it is over, once it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n06_gateways_with_unlike_upstreams_warn_of_each_other() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::of(1, "unlike", server, Settings::default()).await;
    let mut other = site.replica("b").await;
    let fewer = site.upstreams().split("[upstreams.plain]").next().unwrap_or_default().to_owned();
    other.keeper.configure(&fewer);
    other.start().await;
    for replica in [&site.replicas[0], &other] {
        replica.until_logged("another replica has different upstreams", 1).await;
    }
    // The messages tell the upstreams in force, not those at the start.
    for (nth, upstreams) in [(1, fewer.as_str()), (2, site.upstreams())] {
        site.replicas[0].keeper.configure(upstreams);
        site.replicas[0].keeper.signal(Signal::HUP);
        let message =
            if nth == 1 { "all replicas have the same upstreams" } else { "another replica has different upstreams" };
        for replica in [&site.replicas[0], &other] {
            replica.until_logged(message, nth).await;
        }
    }
    other.kill().await;
    other.keeper.configure(site.upstreams());
    other.start().await;
    site.replicas[0].until_logged("all replicas have the same upstreams", 2).await;
    site.replicas.push(other);
    site.judge().await;
}
