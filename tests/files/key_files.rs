//! Further files of API keys: an error in one names the file, its lines and its keys.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use taskgate::config::{self, Findings, LoadedConfig};

const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";

fn env(name: &str) -> Option<String> {
    match name {
        "ADA" => Some(ADA.to_owned()),
        "BOB" => Some(BOB.to_owned()),
        _ => None,
    }
}

fn block(id: &str, key: &str) -> String {
    format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"${{{key}}}\"\n")
}

/// A configuration beside a file of keys; reports name both files.
fn load(
    folder: &Path,
    files: &str,
    own: &str,
    (held, mode): (&[u8], u32),
) -> Result<LoadedConfig, config::ConfigError> {
    fs::create_dir_all(folder.join("keys")).expect("a writable folder");
    let path = folder.join("keys/team.toml");
    let _ = fs::remove_file(&path);
    fs::write(&path, held).expect("a writable folder");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a writable folder");
    let text = format!(
        "[auth]\nmode = \"api_keys\"\napi_key_files = {files}\n{own}[upstreams.reports]\nurl = \"http://127.0.0.1:9000/mcp\"\n"
    );
    let file = folder.join("main.toml");
    fs::write(&file, text).expect("a writable folder");
    config::load(&file, &env, &|_| Findings::default())
}

const TEAM: &str = r#"["keys/team.toml"]"#;

#[test]
fn keys_of_further_files_are_keys_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let team = block("ada", "ADA") + "upstreams = [\"reports\"]\nlimits = { requests_per_second = 7 }\n";
    for (own, held, keys) in [
        ("", team.as_str(), 1),
        (block("bob", "BOB").as_str(), &team, 2),
        (&block("ada", "ADA"), "", 1),
        (&block("ada", "ADA"), "# nobody yet\n[auth]\n", 1),
    ] {
        let loaded = load(folder.path(), TEAM, own, (held.as_bytes(), 0o600)).unwrap_or_else(|error| panic!("{error}"));
        let taskgate::server::api_keys::AuthSettings::ApiKeys(found) = &loaded.config.auth else { panic!("{own}") };
        assert_eq!(found.len(), keys, "{own:?} {held:?}");
        assert_eq!(loaded.config.further_files, [folder.path().join("keys/team.toml")], "it is watched");
        let is_told = loaded.config.access.own.len() == 1 && loaded.config.principals.own.len() == 1;
        assert_eq!(is_told, held == team, "what stands beside a key holds");
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
}

macro_rules! good {
    () => {
        "[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA}\"\n"
    };
}

/// Stands for a file that is too large.
const LARGE: &[u8] = b"large";

/// The named files, the configuration's own keys, the content and mode of the file of keys, and the message.
const ROWS: &[(&str, &str, &[u8], u32, &str)] = &[
    (
        r#"["keys/none.toml"]"#,
        good!(),
        b"",
        0o600,
        "main.toml:3: key `auth.api_key_files[0]`: keys/none.toml: cannot be read: ",
    ),
    (r#"["keys"]"#, good!(), b"", 0o600, "main.toml:3: key `auth.api_key_files[0]`: keys: is not a file"),
    (
        TEAM,
        good!(),
        b"",
        0o640,
        "main.toml:3: key `auth.api_key_files[0]`: keys/team.toml: others than its owner may use it (mode 0640); change that to 0600, and the keys if they may have read it",
    ),
    (
        TEAM,
        good!(),
        LARGE,
        0o600,
        "main.toml:3: key `auth.api_key_files[0]`: keys/team.toml: is larger than 1048576 bytes",
    ),
    (TEAM, good!(), b"\n[[auth.api_keys]", 0o600, "keys/team.toml:2: "),
    (TEAM, good!(), b"\n\xff", 0o600, "keys/team.toml:2: is not UTF-8 text"),
    (TEAM, good!(), b"{\"a\": 1}", 0o600, "keys/team.toml:1: "),
    (
        TEAM,
        good!(),
        b"[listen]\naddress = \"127.0.0.1:1\"\n",
        0o600,
        "keys/team.toml:1: key `listen`: unknown key here; a file of keys has [[auth.api_keys]] blocks and nothing else",
    ),
    (
        TEAM,
        good!(),
        b"[auth]\nmode = \"none\"\n",
        0o600,
        "keys/team.toml:2: key `auth.mode`: unknown key here; a file of keys has [[auth.api_keys]] blocks and nothing else",
    ),
    (
        TEAM,
        good!(),
        b"[auth]\napi_key_files = [\"more.toml\"]\n",
        0o600,
        "keys/team.toml:2: key `auth.api_key_files`: unknown key here; a file of keys has [[auth.api_keys]] blocks and nothing else",
    ),
    (
        TEAM,
        good!(),
        b"[auth]\napi_keys = 7\n",
        0o600,
        "keys/team.toml:2: key `auth.api_keys`: is an integer; write tables that begin with [[auth.api_keys]]",
    ),
    (
        TEAM,
        good!(),
        b"[[auth.api_keys]]\nid = \"bob\"\n",
        0o600,
        "keys/team.toml:1: key `auth.api_keys[0]`: needs one of `key`, `key_file` and `key_sha256`, and no more",
    ),
    (
        TEAM,
        good!(),
        b"[[auth.api_keys]]\nkey = \"${BOB}\"\n",
        0o600,
        "keys/team.toml:1: key `auth.api_keys[0].id`: is missing; write a name such as \"ada\"",
    ),
    (
        TEAM,
        good!(),
        b"[[auth.api_keys]]\nid = \"bob\"\nkey = \"${NONE}\"\n",
        0o600,
        "keys/team.toml:3: key `auth.api_keys[0].key`: the environment has no variable NONE; set it, or write it into a \
         file that `env_files` names",
    ),
    (
        TEAM,
        good!(),
        b"[[auth.api_keys]]\nid = \"bob\"\nkey = \"${BOB}\"\ntool = []\n",
        0o600,
        "keys/team.toml:4: key `auth.api_keys[0].tool`: unknown key; did you mean `tools`?",
    ),
    (
        TEAM,
        good!(),
        b"[[auth.api_keys]]\nid = \"bob\"\nkey = \"${BOB}\"\nupstreams = [\"report\"]\n",
        0o600,
        "keys/team.toml:4: key `auth.api_keys[0].upstreams[0]`: there is no upstream `report`; there are reports",
    ),
    (
        TEAM,
        good!(),
        good!().as_bytes(),
        0o600,
        "keys/team.toml:3: key `auth.api_keys[0].key`: the key in line 6 of main.toml has the same ID; give each key another one",
    ),
    (
        TEAM,
        "",
        concat!(good!(), good!()).as_bytes(),
        0o600,
        "keys/team.toml:6: key `auth.api_keys[1].key`: the key in line 3 has the same ID; give each key another one",
    ),
    (
        TEAM,
        "[[auth.api_keys]]\nid = \"ada\"\nkey = \"${BOB}\"\n",
        concat!(good!(), "limits = { requests_per_second = 7 }\n").as_bytes(),
        0o600,
        "keys/team.toml:1: key `auth.api_keys[0]`: \"ada\" has a key in line 4 of main.toml with other limits; write the same at both",
    ),
    (
        TEAM,
        "",
        concat!("[[auth.api_keys]]\nid = \"ada\"\nkey_file = \"x\"\ntools = [\"a\"]\n", good!()).as_bytes(),
        0o600,
        "keys/team.toml:5: key `auth.api_keys[1]`: \"ada\" has a key in line 1 with other `upstreams`, `tools` or `deny`; write the same at both",
    ),
    (
        r#"["keys/team.toml", "keys/team.toml"]"#,
        "",
        good!().as_bytes(),
        0o600,
        "main.toml:3: key `auth.api_key_files[1]`: is named above already; leave one of them out",
    ),
    (
        TEAM,
        "",
        b"",
        0o600,
        "main.toml:2: key `auth.mode`: no key is declared; write [[auth.api_keys]] with an `id` and a `key` below it",
    ),
    (
        "\"keys/team.toml\"",
        good!(),
        b"",
        0o600,
        "main.toml:3: key `auth.api_key_files`: is a string; write an array of strings, each a file such as \"team-a.keys.toml\"",
    ),
    (
        "[7, \"\"]",
        good!(),
        b"",
        0o600,
        "main.toml:3: key `auth.api_key_files[0]`: is an integer; write a file such as \"team-a.keys.toml\"",
    ),
];

#[test]
fn b166_an_error_in_a_file_of_keys_names_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let large = format!("{}#{}", good!(), "x".repeat(1 << 20));
    for (files, own, held, mode, expected) in ROWS {
        let held = if *held == LARGE { large.as_bytes() } else { held };
        let error = load(folder.path(), files, own, (held, *mode)).expect_err(expected);
        let report = error.to_string().replace(&format!("{}/", folder.path().display()), "");
        assert!(report.lines().any(|line| line.starts_with(expected)), "{expected}\n{report}");
        assert!(!report.contains("tg_"), "{report}");
    }
}

/// Every mistake of every file is there at once, the configuration's own first.
#[test]
fn mistakes_of_all_files_are_told_together_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(
        folder.path(),
        TEAM,
        "anonymous = 7\n",
        (b"[[auth.api_keys]]\nid = 7\n[[auth.api_keys]]\nid = \"bob\"\ntools = []\n", 0o600),
    )
    .unwrap_err();
    let report = error.to_string().replace(&format!("{}/", folder.path().display()), "");
    let places: Vec<_> =
        report.lines().map(|line| line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "main.toml:4 key `auth.anonymous`",
        "keys/team.toml:2 key `auth.api_keys[0].id`",
        "keys/team.toml:3 key `auth.api_keys[1]`",
        "keys/team.toml:5 key `auth.api_keys[1].tools`",
    ];
    assert_eq!(places, expected, "{report}");
}

/// The keys in such a file are unknown, so their absence is no second mistake.
#[test]
fn a_file_of_keys_that_cannot_be_read_is_one_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(folder.path(), r#"["none.toml"]"#, "", (b"", 0o600)).unwrap_err().to_string();
    assert!(error.contains("main.toml:3: key `auth.api_key_files[0]`: ") && error.lines().count() == 1, "{error}");
}
