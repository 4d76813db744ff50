//! Files of variables: their order of precedence, and each mistake with its file and line, and without a value.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use taskgate::config::{self, ConfigError, Findings, LoadedConfig};

fn env(name: &str) -> Option<String> {
    matches!(name, "HOST" | "FOLDER" | "OWN").then(|| if name == "FOLDER" { "sub" } else { "environment" }.to_owned())
}

/// A configuration with `env_files` as written, and `a.env` and `sub/b.env` beside it.
fn load(folder: &Path, env_files: &str, held: [&[u8]; 2], mode: u32) -> Result<LoadedConfig, ConfigError> {
    let text = "[listen]\nallowed_hosts = [\"${HOST}.one\", \"${NAME}.two\", \"${OWN}\"]\n\
                [upstreams.reports]\nurl = \"http://127.0.0.1:9000/mcp\"\n";
    fs::create_dir_all(folder.join("sub")).expect("a writable folder");
    for (name, held) in ["a.env", "sub/b.env"].into_iter().zip(held) {
        fs::write(folder.join(name), held).expect("a writable folder");
        fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).expect("a writable folder");
    }
    let file = folder.join("main.toml");
    fs::write(&file, format!("env_files = {env_files}\n{text}")).expect("a writable folder");
    config::load(&file, &env, &|_| Findings::default())
}

#[test]
fn a_variable_of_a_file_comes_before_one_of_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let held: [&[u8]; 2] = [b"# one\n\nHOST=file\n", b"NAME=\"file\"\n"];
    for name in [&b"plain"[..], b"not UTF-8: \xe9"] {
        let folder = folder.path().join(OsStr::from_bytes(name));
        let loaded = load(&folder, r#"["a.env", "${FOLDER}/b.env"]"#, held, 0o600).unwrap();
        assert_eq!(loaded.config.listen.allowed_hosts, ["file.one", "file.two", "environment"]);
        let files = ["a.env", "sub/b.env"].map(|name| folder.join(name));
        assert_eq!(loaded.config.further_files, files, "they are watched");
    }
}

#[test]
fn each_mistake_is_told_with_its_line_and_unset_variables_are_no_second_one() {
    const BOTH: &str = r#"["a.env", "sub/b.env"]"#;
    for (env_files, held, mode, expected) in [
        (
            "[\"c.env\"]",
            "",
            0o600,
            "main.toml:1: key `env_files[0]`: c.env: cannot be read: No such file or directory (os error 2)",
        ),
        (
            "[\"a.env\"]",
            "NAME=s3cret",
            0o640,
            "main.toml:1: key `env_files[0]`: a.env: others than its owner may use it (mode 0640); change that to 0600, and \
             the values if they may have read it",
        ),
        ("[\"sub\"]", "", 0o600, "main.toml:1: key `env_files[0]`: sub: is not a file"),
        (
            r#"["a.env", "a.env"]"#,
            "NAME=s3cret",
            0o600,
            "main.toml:1: key `env_files[1]`: is named above already; leave one of them out",
        ),
        (
            "\"a.env\"",
            "",
            0o600,
            "main.toml:1: key `env_files`: is a string; write an array of strings, each a file such as \"taskgate.env\"",
        ),
        ("[\"a.env\"]", "\ns3cret", 0o600, "a.env:2: is not NAME=VALUE; write that, or a comment that begins with #"),
        (
            BOTH,
            "NAME=s3cret",
            0o600,
            "sub/b.env:1: sets a variable that an earlier line or file sets; leave one of them out",
        ),
        (
            "[]",
            "",
            0o600,
            "main.toml:3: key `listen.allowed_hosts[1]`: the environment has no variable NAME; set it, or write it into a \
             file that `env_files` names",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let refused = load(folder.path(), env_files, [held.as_bytes(); 2], mode).unwrap_err().to_string();
        assert_eq!(refused.replace(&format!("{}/", folder.path().display()), ""), expected);
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = load(folder.path(), "[\"a.env\"]", [b"\nNAME=\xff", b""], 0o600).unwrap_err().to_string();
    assert!(refused.ends_with("a.env:2: is not UTF-8 text"), "{refused}");
}
