//! Configuration files as operators write them: which are refused, with which messages, which are accepted, and that
//! the files in `config/` stay valid.

mod reference;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::check_golden;
use taskgate::config::{self, CommandLineConfig, CommandLineServer, Config, KeyContent, LoadedConfig, StoreSettings};
use taskgate::server::api_keys::{AuthSettings, KeySource};
use taskgate::store::StoreLimits;
use taskgate::task::{AfterCrash, EarlyInput, Principal, TaskMode};
use taskgate::tls::IdentityFiles;
use taskgate::upstream::http::UpstreamTlsFiles;

const BAD_FILES: usize = 90;
const GOOD_FILES: usize = 33;
const SAMPLE_FILES: usize = 4;

/// The environment of every test. `SECRET` is never to be seen in a report.
fn env(name: &str) -> Option<String> {
    match name {
        "HOST" => Some("mcp.example".to_owned()),
        "KIND" => Some("s3cr3t-kind".to_owned()),
        "ADA_KEY" => Some("tg_ada1_5ecre7000102030405060708090a0b0c0d0e0f10".to_owned()),
        "WEAK_KEY" => Some("tg_weak_s3cr3t".to_owned()),
        "REPORTS_KEY" | "HOSTED_TOKEN" | "REPORTS_TOKEN" | "CLIENT_SECRET" => Some("s3cr3t-token".to_owned()),
        "SECRET" => Some("s3cr3t://x".to_owned()),
        _ => None,
    }
}

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// All TOML files of a folder, by their bare names, in order.
fn toml_files(path: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(path))
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    files
}

fn parse_file(path: &Path) -> Result<LoadedConfig, config::ConfigError> {
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name in plain text");
    config::parse(name, &fs::read_to_string(path).expect("a readable file"), &env)
}

fn parse(text: &str) -> Config {
    config::parse("test.toml", text, &env).expect("a good configuration").config
}

fn warnings(loaded: &LoadedConfig) -> String {
    loaded.warnings.iter().map(|warning| format!("{warning}\n")).collect()
}

/// B166, B167, SEC-24: each mistake with file, line, key, and its correction; all of them at once.
#[test]
fn every_mistake_of_a_bad_file_is_reported_at_once() {
    let files = toml_files("tests/config/bad");
    for file in &files {
        let error = parse_file(file).expect_err(&file.display().to_string());
        let report = format!("{error}\n");
        assert!(!report.contains("s3cr3t"), "{report}");
        check_golden(&file.with_extension("expected"), &report);
    }
    assert_eq!(files.len(), BAD_FILES);
}

#[test]
fn a_mistake_with_a_long_value_or_name_is_cut_and_keeps_its_remedy() {
    let long = "x".repeat(100_000);
    for (text, remedy) in [
        (format!("[limits]\ndrain_max = \"{long}\"\n"), "is not a duration such as \"30s\" or \"1h 30m\""),
        (format!("[store]\nkind = \"{long}\"\n"), "\" is unknown; write "),
        (format!("[limits]\nconnections_max = {}\n", "1".repeat(100_000)), " is out of range; write a whole number"),
        (format!("[listen]\n{long} = 1\n"), ": unknown key; this table has address, "),
        (format!("[listen]\naddress = \"${{{long}}}\"\n"), ": the environment has no variable x"),
    ] {
        let report = config::parse("test.toml", &text, &env).expect_err(remedy).to_string();
        assert!(report.contains(remedy), "{remedy}");
        assert!(report.contains("xxx…xxx") || report.contains("111…111"), "{remedy}");
        assert!(report.lines().all(|line| line.len() < 4096), "{remedy}");
    }
}

#[test]
fn good_files_are_accepted_with_exactly_their_warnings() {
    let files = toml_files("tests/config/good");
    for file in &files {
        let found = warnings(&parse_file(file).unwrap_or_else(|error| panic!("{error}")));
        if found.is_empty() {
            assert!(!file.with_extension("expected").exists(), "{}", file.display());
        } else {
            check_golden(&file.with_extension("expected"), &found);
        }
    }
    assert_eq!(files.len(), GOOD_FILES);
}

#[test]
fn the_samples_are_accepted_without_a_warning() {
    let files = toml_files("config");
    for file in &files {
        let loaded = parse_file(file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(warnings(&loaded), "");
    }
    assert_eq!(files.len(), SAMPLE_FILES);
}

fn example() -> String {
    fs::read_to_string(folder("config/taskgate.example.toml")).expect("a readable file")
}

/// Keys that are commented out are written `#key = …` or `#[table]`, prose is written `# …`.
fn uncomment(line: &str) -> &str {
    line.strip_prefix('#')
        .filter(|rest| rest.starts_with(|first: char| first.is_alphanumeric() || first == '['))
        .unwrap_or(line)
}

#[test]
fn the_example_shows_every_key_and_no_other() {
    let mut shown = BTreeSet::new();
    let mut table = String::new();
    for line in example().lines().map(uncomment) {
        if let Some(header) = line.strip_prefix('[') {
            let path = header.split(']').next().unwrap().trim_start_matches('[');
            let mut parts: Vec<&str> = path.split('.').collect();
            if parts[0] == "upstreams" {
                parts[1] = "NAME";
            }
            table = parts.join(".");
            shown.insert(table.clone());
        } else if let Some((key, value)) = line.split_once(" = ").filter(|(key, _)| !key.contains([' ', '#'])) {
            let key = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
            // A table in one line shows keys of its own.
            if let Some(KeyContent::Table) = config::known_keys().get(&key) {
                let members = value.trim_matches(['{', ' ', '}']).split(", ");
                shown.extend(members.map(|member| format!("{key}.{}", member.split_once(" = ").unwrap().0)));
            }
            shown.insert(key);
        }
    }
    shown.remove("upstreams.NAME");
    let mut known: BTreeSet<String> = config::known_keys().into_keys().collect();
    known.remove("upstreams");
    assert_eq!(shown, known);
}

#[test]
fn everything_that_the_example_shows_can_be_written_together() {
    let text = example().lines().map(uncomment).collect::<Vec<_>>().join("\n");
    // Keys are a mistake in a mode without keys, and so is a key that only a database needs; its address stands in one place.
    let all = "mode = [\"tokens\", \"api_keys\", \"certificates\"]";
    let text = text.replace("mode = \"none\"", all).replace("kind = \"disk\"", "kind = \"postgres\"");
    let text = text.replace("url_file = ", "# url_file = ");
    config::parse("example", &text, &env).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_values_in_the_example_are_the_defaults() {
    let mut shown = parse(&example());
    let defaults = parse("[upstreams.reports]\nurl = \"http://127.0.0.1:9000/mcp\"");
    shown.upstreams[0].service.rules.patterns.clear();
    assert_eq!(format!("{shown:#?}"), format!("{defaults:#?}"));
}

/// The defaults of design and limits table, in numbers.
#[test]
fn the_quick_start_has_the_defaults() {
    let servers = vec![CommandLineServer::demo("http://127.0.0.1:4321/mcp".parse().unwrap())];
    let line = CommandLineConfig { servers, ..CommandLineConfig::default() };
    let LoadedConfig { config, warnings } = line.resolve(&|_| None).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.listen.address.to_string(), "127.0.0.1:8080");
    assert_eq!(config.listen.body_bytes_max.get(), 4 << 20);
    assert_eq!(config.listen.connections_max.get(), 10_000);
    assert_eq!(config.listen.drain_max, Duration::from_secs(300));
    assert_eq!(config.admin.address.to_string(), "127.0.0.1:9090");
    let limits = StoreLimits { tasks_max: 100_000, stored_bytes_max: 8 << 30 };
    assert_eq!(config.store, StoreSettings::Disk { limits, is_ephemeral: true });
    assert_eq!(config.auth, AuthSettings::Everyone(Principal::local()));
    assert_eq!((config.folder.to_str(), &config.listen.tls), (Some("taskgate-data"), &None));

    let [demo] = &config.upstreams[..] else { panic!("{config:?}") };
    assert_eq!((&*demo.name, &*demo.path, &*demo.sse_path), ("demo", "/demo/mcp", "/demo/sse"));
    assert_eq!(
        (&*demo.server.http().unwrap().name, demo.server.http().unwrap().url.as_str()),
        ("demo", "http://127.0.0.1:4321/mcp")
    );
    assert_eq!(
        (demo.server.http().unwrap().protocol, demo.server.http().unwrap().connect_max),
        (None, Duration::from_secs(5))
    );
    assert_eq!((demo.permits.in_flight_max.get(), demo.permits.queue_max), (256, 1536));
    assert_eq!(demo.service.queue_deadline, Duration::from_secs(30));
    assert_eq!(demo.service.timeouts.first_byte, Some(Duration::from_secs(60)));
    assert_eq!(demo.service.timeouts.idle, Some(Duration::from_secs(120)));
    assert_eq!((demo.service.call_timeouts.first_byte, demo.service.call_timeouts.idle), (None, None));

    let policy = demo.service.rules.policy_of("any");
    assert_eq!(policy.mode, TaskMode::Auto);
    assert_eq!((policy.grace, policy.poll_interval), (Duration::from_secs(2), Duration::from_secs(1)));
    assert_eq!((policy.ttl, policy.deadline), (Duration::from_secs(86_400), Duration::from_secs(3_600)));
    assert_eq!((policy.ttl_max, policy.immediate_response), (Duration::from_secs(7 * 86_400), None));
    assert_eq!(policy.keep_result_min, Duration::from_secs(900));
    assert_eq!((policy.early_input, policy.input_deadline), (EarlyInput::Task, Duration::from_secs(1_800)));
    assert_eq!((policy.result_bytes_max, demo.service.result_bytes_max), (32 << 20, 32 << 20));
}

/// The promises depend on the medium, so a file has to name a store without any (B171).
#[test]
fn b171_tasks_rest_on_disk_unless_the_file_says_otherwise() {
    let base = StoreLimits { tasks_max: 100_000, stored_bytes_max: 8 << 30 };
    let small = StoreLimits { stored_bytes_max: 1 << 30, ..base };
    for (written, expected) in [
        ("", StoreSettings::Disk { limits: base, is_ephemeral: false }),
        ("kind = \"disk\"\nephemeral = true", StoreSettings::Disk { limits: base, is_ephemeral: true }),
        ("kind = \"memory\"", StoreSettings::Memory(small)),
    ] {
        let config = parse(&format!("[store]\n{written}\n[upstreams.a]\nurl = \"http://127.0.0.1:9000/mcp\""));
        assert_eq!(config.store, expected, "{written}");
    }
}

#[test]
fn a_tool_inherits_the_settings_that_its_block_lacks() {
    let config = parse(
        r#"
        [limits]
        result_bytes_max = "5MiB"
        [upstreams.reports]
        url = "http://127.0.0.1:9000/mcp"
        deadline = "30m"
        [upstreams.reports.tasks]
        mode = "never"
        grace = "7s"
        poll_interval = "3s"
        early_input = "ask-first"
        after_crash = "rerun-if-safe"
        input_deadline = "5m"
        immediate_response = "Wait."
        ttl_max = "2d"
        [[upstreams.reports.tools]]
        match = "make_*_now"
        grace = "0s"
        early_input = "task"
        after_crash = "rerun"
        [[upstreams.reports.tools]]
        match = "make_*"
        mode = "required"
        deadline = "1h"
        immediate_response = "It is being made."
        result_bytes_max = "6MiB"
        "#,
    );
    let rules = &config.upstreams[0].service.rules;
    for (tool, mode, grace, deadline_min, result_mib, words) in [
        ("other", TaskMode::Never, 7, 30, 5, "Wait."),
        ("make_it_now", TaskMode::Never, 0, 30, 5, "Wait."),
        ("make_it", TaskMode::Required, 7, 60, 6, "It is being made."),
    ] {
        let policy = rules.policy_of(tool);
        assert_eq!(policy.mode, mode, "{tool}");
        let early_input = if tool == "make_it_now" { EarlyInput::Task } else { EarlyInput::AskFirst };
        let after_crash = if tool == "make_it_now" { AfterCrash::Rerun } else { AfterCrash::RerunIfSafe };
        assert_eq!(policy.after_crash, after_crash, "{tool}");
        assert_eq!((policy.early_input, policy.input_deadline), (early_input, Duration::from_secs(300)), "{tool}");
        assert_eq!(policy.grace, Duration::from_secs(grace), "{tool}");
        assert_eq!(policy.poll_interval, Duration::from_secs(3), "{tool}");
        assert_eq!(policy.deadline, Duration::from_secs(deadline_min * 60), "{tool}");
        assert_eq!(policy.result_bytes_max, result_mib << 20, "{tool}");
        assert_eq!(policy.ttl_max, Duration::from_secs(2 * 86_400), "{tool}");
        assert_eq!(policy.immediate_response.as_deref(), Some(words), "{tool}");
    }
}

#[test]
fn files_for_tls_come_out_where_they_are_used() {
    let config = parse_file(&folder("tests/config/good/tls.toml")).unwrap().config;
    let identity = |name: &str| IdentityFiles {
        certificate: PathBuf::from(format!("{name}.pem")),
        key: PathBuf::from(format!("{name}.key")),
    };
    assert_eq!(config.folder, PathBuf::from("/var/lib/taskgate"));
    assert_eq!(config.listen.tls, Some(identity("mcp.example")));
    let upstreams: Vec<_> =
        config.upstreams.into_iter().map(|upstream| upstream.server.http().unwrap().tls.clone()).collect();
    let [public, private, mutual] = &upstreams[..] else { panic!("{upstreams:?}") };
    assert_eq!(*public, UpstreamTlsFiles::default());
    assert_eq!(*private, UpstreamTlsFiles { ca: Some(PathBuf::from("ca.pem")), identity: None });
    assert_eq!(*mutual, UpstreamTlsFiles { ca: None, identity: Some(identity("gateway")) });
}

#[test]
fn an_anonymous_principal_gets_short_lived_tasks() {
    for (auth, principal, ttl_hours) in
        [("anonymous = true", Principal::anonymous(), 1), ("anonymous = false", Principal::local(), 24)]
    {
        let config = parse(&format!("[auth]\n{auth}\n[upstreams.a]\nurl = \"http://127.0.0.1:9000/mcp\""));
        assert_eq!(config.auth, AuthSettings::Everyone(principal), "{auth}");
        assert_eq!(config.upstreams[0].service.rules.default.ttl, Duration::from_secs(ttl_hours * 3_600), "{auth}");
    }
}

#[test]
fn keys_come_out_with_their_owners_and_none_is_shown() {
    let config = parse_file(&folder("tests/config/good/api_keys.toml")).unwrap().config;
    let AuthSettings::ApiKeys(keys) = &config.auth else { panic!("{:?}", config.auth) };
    let owners: Vec<_> = keys.iter().map(|key| (key.caller.principal.as_str(), key.place.key.as_str())).collect();
    assert_eq!(
        owners,
        [
            ("key:ada", "auth.api_keys[0].key"),
            ("key:ada", "auth.api_keys[1].key_file"),
            ("key:b.o-b@example", "auth.api_keys[2].key_sha256"),
        ]
    );
    assert_eq!(keys[1].source, KeySource::File(PathBuf::from("ada.key")));
    assert!(!config.listen.address.ip().is_loopback(), "SEC-24: keys open other addresses");
    assert!(!format!("{config:?}").contains("5ecre7"), "SEC-12");
}

#[test]
fn variables_and_names_come_out_as_they_are_compared() {
    let config = parse_file(&folder("tests/config/good/variables.toml")).unwrap().config;
    assert_eq!(config.listen.allowed_hosts, ["mcp.example"]);
    assert_eq!(config.upstreams[0].server.http().unwrap().url.as_str(), "https://mcp.example/mcp?price=${5}");
    assert!(config.upstreams[0].service.rules.patterns[0].0.matches("${x}_y"));
    let config = parse_file(&folder("tests/config/good/several_upstreams.toml")).unwrap().config;
    let served: Vec<_> = config.upstreams.iter().map(|upstream| (&*upstream.name, &*upstream.path)).collect();
    assert_eq!(served, [("zeta", "/"), ("alpha", "/alpha/mcp")], "in the order of the file");
}

/// B166: a file that cannot be read as text is one mistake as a whole.
#[test]
fn files_that_are_missing_too_large_or_not_text_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut large = b"[upstreams.a]\nurl = \"http://127.0.0.1/\"\n".to_vec();
    large.resize(config::FILE_BYTES_MAX, b'\n');
    for (name, content, refusal) in [
        ("full.toml", large.clone(), None),
        ("large.toml", [&large[..], b"\n"].concat(), Some("large.toml: is larger than 1MiB")),
        ("binary.toml", b"[listen]\n\n\xff".to_vec(), Some("binary.toml:3: is not UTF-8 text")),
        ("missing.toml", Vec::new(), Some("missing.toml: cannot be read: No such file or directory (os error 2)")),
    ] {
        let path = folder.path().join(name);
        if name != "missing.toml" {
            fs::write(&path, content).unwrap();
        }
        let refused = config::load(&path, &env, &|_| Default::default()).err().map(|error| error.to_string());
        let expected = refusal.map(|text| folder.path().join(text).display().to_string());
        assert_eq!(refused, expected, "{name}");
    }
}

/// The second block of the README stands behind the first in one file.
#[test]
fn the_readmes_blocks_are_one_configuration() {
    let readme = fs::read_to_string(folder("README.md")).unwrap();
    let blocks = readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let text: String = blocks.take(2).collect();
    let parsed = config::parse("README.md", &text, &env);
    assert!(parsed.is_ok(), "{:?}", parsed.err());
}

/// A server's address mostly has a path behind the host.
#[test]
fn an_address_without_a_path_is_served_with_a_warning() {
    let servers = vec![CommandLineServer::demo("http://127.0.0.1:4321".parse().unwrap())];
    let line = CommandLineConfig { servers, ..CommandLineConfig::default() };
    let found = warnings(&line.resolve(&|_| None).unwrap());
    assert!(found.contains("the address has no path; most servers are at one such as /mcp"), "{found}");
}
