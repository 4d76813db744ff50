//! `taskgate check FILE --as … --can …`: the line that decides, as operators read it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::Command;

use support::certificates::Authority;
use tempfile::TempDir;

/// Each line that decides has its number behind it.
const FILE: &str = r#"
[auth]
mode = "api_keys"
groups = { admins = ["group:directory"] }
[[auth.api_keys]]                                            # 5
id = "ada"
key_sha256 = "ada1:0b9c2625dc21ef05f6ad4ddf47c5f203837aa32c0b9c2625dc21ef05f6ad4ddf"
groups = ["analysts"]
deny = { reports = ["*_secret"] }
[[auth.rules]]                                               # 10
who = { groups = ["admins"] }
allow = true
[[auth.rules]]                                               # 13
who = { groups = ["analysts"] }
upstreams = ["reports"]
tools = ["read_*"]
arguments = { env = "staging*" }
allow = true
[[auth.rules]]                                               # 19
who = { groups = ["analysts"] }
upstreams = ["reports"]
resources = ["file:///secret/*"]
allow = false
[[auth.rules]]                                               # 24
who = { groups = ["analysts"] }
prompts = ["*"]
resources = ["*"]
allow = true
[upstreams.reports]
url = "http://127.0.0.1:9/mcp"
[upstreams.files]
url = "http://127.0.0.1:9/mcp"
"#;

const CERTIFICATES: &str = r#"
[listen.tls]
certificate = "server.pem"
key = "server.key"
client_ca = "server.pem"
[auth]
mode = "certificates"
[[auth.certificates]]
san = "spiffe://corp/agents/*"
groups = ["agents"]
[[auth.rules]]                                               # 11
who = { groups = ["agents"] }
tools = ["read_*"]
allow = true
[upstreams.reports]
url = "http://127.0.0.1:9/mcp"
"#;

#[test]
fn a_certificates_name_has_the_groups_of_its_block() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("gate.toml"), CERTIFICATES).unwrap();
    Authority::new().vouch(|_| ()).write(folder.path(), "server");
    for (caller, can, code, said) in [
        ("cert:spiffe://corp/agents/ada", "reports/read_x", 0, "gate.toml:11: allowed: this rule fits first"),
        ("cert:spiffe://corp/agents/ada", "reports/write_x", 1, "gate.toml: denied: no rule fits"),
        ("cert:spiffe://corp/other/ada", "reports/read_x", 64, "no `san` in [[auth.certificates]] matches"),
    ] {
        let command = ["check", "gate.toml", "--as", caller, "--can", can];
        let output = Command::new(env!("CARGO_BIN_EXE_taskgate")).args(command).current_dir(folder.path()).output();
        let output = output.unwrap();
        let printed = String::from_utf8_lossy(if code == 64 { &output.stderr } else { &output.stdout });
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
        assert!(printed.contains(said), "{command:?}: {printed}");
    }
    // `check` reads every file that `serve` reads: each unusable one is named.
    fs::write(folder.path().join("server.pem"), "").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_taskgate")).args(["check", "gate.toml"]).current_dir(folder.path()).output();
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(printed.contains("gate.toml:5: key `listen.tls.client_ca`: server.pem: has no certificate"), "{printed}");
}

const TOKENS: &str = r#"
[listen]
public_url = "https://gate.example"
[auth]
mode = "tokens"
scopes = ["mcp"]
[[auth.issuers]]
issuer = "https://login.example"
implies = { admin = ["mcp"] }
[[auth.issuers]]                                             # 10
issuer = "https://other.example"
[[auth.rules]]                                               # 12
who = { issuer = "https://login.example", scopes = ["mcp"] }
tools = ["x"]
allow = true
[[auth.rules]]                                               # 16
who = { issuer = "https://login.example", scopes = ["more"] }
allow = true
[upstreams.reports]
url = "http://127.0.0.1:9/mcp"
"#;

#[test]
fn a_token_without_the_scopes_of_every_request_is_denied() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("gate.toml"), TOKENS).unwrap();
    let of_issuer = taskgate::task::Principal::of_subject("https://login.example", "eve");
    let of_team = taskgate::task::Principal::of_claim("https://login.example", "team", "red");
    // Tasks belong to teams there, and no token to a person.
    let teams = TOKENS.replace("implies =", "owner_claim = \"team\"\nimplies =");
    fs::write(folder.path().join("teams.toml"), teams).unwrap();
    for (file, caller, expected) in [
        ("gate.toml", "jwt:0123456789abcdef:eve", of_issuer.as_str().trim_end_matches("eve")),
        ("gate.toml", of_team.as_str(), of_issuer.as_str().trim_end_matches("eve")),
        ("teams.toml", of_issuer.as_str(), of_team.as_str().trim_end_matches("red")),
    ] {
        let command = ["check", file, "--as", caller, "--can", "reports/x"];
        let output = Command::new(env!("CARGO_BIN_EXE_taskgate")).args(command).current_dir(folder.path()).output();
        let printed = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
        let refused = format!("--as: no issuer's tokens belong to it; write {expected}NAME or ");
        assert!(printed.contains(&refused), "{command:?}: {printed}");
    }
    for (arguments, code, said) in [
        (&[][..], 1, "gate.toml: denied: every request with a token needs the scopes of `auth.scopes`; missing: mcp"),
        (&["--scopes", "other"], 1, "missing: mcp"),
        (&["--scopes", "other,mcp"], 0, "gate.toml:12: allowed"),
        (&["--scopes", "admin"], 0, "gate.toml:12: allowed"),
        (&["--scopes", "mcp", "--kind", "prompt"], 1, "gate.toml: denied: no rule fits; scopes that help: more"),
        (&["--scopes", "mcp", "--issuer", "https://other.example"], 1, "gate.toml: denied: no rule fits\n"),
        (
            &["--scopes", "mcp", "--issuer", "https://else.example"],
            64,
            "--issuer: no [[auth.issuers]] has the `issuer`",
        ),
    ] {
        let asked = ["check", "gate.toml", "--as", of_issuer.as_str(), "--can", "reports/x"];
        let command = [&asked[..], arguments].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_taskgate")).args(&command).current_dir(folder.path()).output();
        let output = output.unwrap();
        let printed = String::from_utf8_lossy(if code == 64 { &output.stderr } else { &output.stdout });
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
        assert!(printed.contains(said), "{command:?}: {printed}");
    }
}

#[test]
fn the_deciding_line_is_printed_with_its_decision() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("gate.toml"), FILE).unwrap();
    for (arguments, code, said) in [
        (vec!["--can", "reports/read_x"], 0, "gate.toml:13: allowed: this rule fits first"),
        (vec!["--can", "reports/read_x", "--arguments", r#"{"env":"staging"}"#], 0, "gate.toml:13: allowed"),
        (vec!["--can", "reports/read_x", "--arguments", r#"{"env":"prod"}"#], 1, "gate.toml: denied: no rule fits"),
        (vec!["--can", "reports/read_secret"], 1, "gate.toml:5: denied: by the lists beside this key"),
        (vec!["--can", "files/read_x"], 1, "gate.toml: denied: no rule fits"),
        (vec!["--groups", "x,directory", "--can", "files/read_x"], 0, "gate.toml:10: allowed"),
        (
            vec!["--can", "reports/file:///secret/a", "--kind", "resource"],
            1,
            "gate.toml:19: denied: this rule fits first",
        ),
        (vec!["--can", "reports/file:///a", "--kind", "resource"], 0, "gate.toml:24: allowed"),
        (vec!["--can", "files/p", "--kind", "prompt"], 0, "gate.toml:24: allowed"),
        (vec!["--can", "nothing/x"], 64, "there is no upstream `nothing`"),
        (vec!["--can", "reports"], 64, "--can is UPSTREAM/TOOL"),
        (vec!["--can", "reports/x", "--arguments", "7"], 64, "--arguments is a JSON object"),
        (vec!["--can", "reports/x", "--as", "key:eve"], 64, "cannot be used multiple times"),
    ] {
        let command = [&["check", "gate.toml", "--as", "key:ada"], arguments.as_slice()].concat();
        let output =
            Command::new(env!("CARGO_BIN_EXE_taskgate")).args(&command).current_dir(folder.path()).output().unwrap();
        let printed = if code == 64 { &output.stderr } else { &output.stdout };
        let printed = String::from_utf8_lossy(printed);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
        assert!(printed.contains(said), "{command:?}: {printed}");
    }
    for (unknown_caller, said) in [
        ("key:eve", "--as: there is no key with the id of \"key:eve\""),
        ("ada", "--as: \"ada\" is not a principal such as \"key:ada\""),
        ("Key:ada", "--as: \"Key:ada\" is not a principal such as \"key:ada\""),
        ("group:admins", "--as: \"group:admins\" is not a principal such as \"key:ada\""),
        ("jwt:0123456789abcdef:ada", "--as: callers have no tokens: `auth.mode` lacks \"tokens\""),
    ] {
        let command = ["check", "gate.toml", "--as", unknown_caller, "--can", "reports/x"];
        let output =
            Command::new(env!("CARGO_BIN_EXE_taskgate")).args(command).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains(said), "{unknown_caller}: {printed}");
    }
}

/// SEC-97: a rule about a caller who cannot come is a mistake, or has a warning: a deny rule would deny to no one.
#[test]
fn a_rule_for_an_impossible_caller_never_matches() {
    let folder = tempfile::tempdir().unwrap();
    let toml = |ids: &str| {
        format!(
            "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = [\"tokens\", \"api_keys\"]\n\
             [[auth.issuers]]\nissuer = \"https://login.example\"\n[[auth.api_keys]]\nid = \"ada\"\nkey_sha256 = \"{}\"\n\
             [[auth.rules]]\nwho = {{ ids = [{ids}] }}\nallow = true\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n",
            "ada:".to_owned() + &"0".repeat(64)
        )
    };
    let of_issuer = taskgate::task::Principal::of_subject("https://login.example", "eve");
    let of_claim = taskgate::task::Principal::of_claim("https://login.example", "team", "red");
    let owners = "never fits: no issuer's tokens belong to it; write ";
    let check = |text: &str| {
        fs::write(folder.path().join("gate.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        let checked = command.args(["check", "gate.toml"]).current_dir(folder.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
        (checked.status.code(), printed)
    };
    for (id, said) in [
        ("jwt:eve", format!("{owners}`{}NAME`", of_issuer.as_str().trim_end_matches("eve"))),
        ("jwt:0123456789abcdef:eve", owners.to_owned()),
        (of_claim.as_str(), owners.to_owned()),
        ("local", "never fits: each caller needs a credential".to_owned()),
        ("anon", "never fits: each caller needs a credential".to_owned()),
        ("cred:x", "never fits: each caller needs a credential".to_owned()),
        ("key:ada", String::new()),
        (of_issuer.as_str(), String::new()),
    ] {
        let (code, printed) = check(&toml(&format!("\"{id}\"")));
        assert_eq!(code, Some(if id.starts_with("jwt:") && !said.is_empty() { 64 } else { 0 }), "{printed}");
        assert!(printed.contains(&said) && printed.contains("never fits") != said.is_empty(), "{id}: {printed}");
    }
    // Tasks belong to teams there, and a rule about a person would fit no one.
    let of_teams = toml(&format!("\"{}\"", of_issuer.as_str()))
        .replace("[[auth.api_keys]]", "owner_claim = \"team\"\n[[auth.api_keys]]");
    let (code, printed) = check(&of_teams);
    let expected = format!("{owners}`{}NAME`", of_claim.as_str().trim_end_matches("red"));
    assert!(code == Some(64) && printed.contains(&expected), "{printed}");
    // Nor can a token have a group if no issuer names the claim.
    let of_group = toml("\"key:ada\"").replace("ids = [\"key:ada\"]", "groups = [\"x\"]");
    let (code, printed) = check(&of_group);
    let expected = "gate.toml:11: key `auth.rules[0].who.groups[0]`: never fits: no key has the group \"x\", and [auth.groups] \
                    has none, and no issuer has `groups`";
    assert!(code == Some(64) && printed.contains(expected), "{printed}");
    for (place, group) in [("[[auth.issuers]]", "groups = \"roles\""), ("[[auth.api_keys]]", "groups = [\"x\"]")] {
        let (code, printed) = check(&of_group.replace(place, &format!("{place}\n{group}")));
        assert!(code == Some(0) && !printed.contains("never fits"), "{printed}");
    }
    for (who, of_issuer, said) in [
        ("issuer = \"https://login.example\"", "", ""),
        ("issuer = \"https://login.example/\"", "", "no [[auth.issuers]] has the issuer \"https://login.example/\""),
        ("issuer = [\"https://login.example\", \"https://b\"]", "", "no [[auth.issuers]] has the issuer \"https://b\""),
        ("groups = [\"interns\"]", "", "no key has the group \"interns\""),
        ("groups = [\"interns\"]", "groups = \"roles\"\n", ""),
    ] {
        let named = toml("").replace("ids = []", who);
        let (code, printed) = check(&named.replace("[[auth.api_keys]]", &format!("{of_issuer}[[auth.api_keys]]")));
        assert_eq!(code, Some(if said.is_empty() { 0 } else { 64 }), "{who}: {printed}");
        assert!(printed.contains(said) && printed.contains("never fits") != said.is_empty(), "{who}: {printed}");
    }
}
