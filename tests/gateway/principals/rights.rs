//! Rights of a request whose credential, path or session has lost them: by a reload meanwhile, by an audience, by a narrower token.

use std::path::Path;

use serde_json::json;
use support::issuer::{IssuerKey, key_set, with};
use taskgate::config;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::gate::{ADA, Answer, Ask, BOB, Gate};
use super::tokens::{auth, claims};
use super::upstream::in_time;
use super::withdrawn::{LISTEN, until};

/// An issuer whose keys are in a file.
struct Issuer {
    key: IssuerKey,
    folder: TempDir,
}

impl Issuer {
    fn new() -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
        std::fs::write(folder.path().join("keys.json"), key_set([&key])).unwrap();
        Self { key, folder }
    }

    fn auth(&self) -> String {
        auth(&format!("jwks_file = \"{}\"", Path::join(self.folder.path(), "keys.json").display()), "")
    }

    fn token(&self, paths: &[&str]) -> String {
        let audiences: Vec<_> = paths.iter().map(|path| format!("https://mcp.example{path}")).collect();
        self.key.token(&with(&claims("ada"), &json!({ "aud": audiences })))
    }
}

impl Gate {
    /// Puts another `[auth]` in force, and leaves only the gate's own upstream.
    fn admit(&mut self, auth: &str) {
        let text = format!("[listen]\n{LISTEN}\n[auth]\n{auth}\n[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n");
        let loaded = config::parse("test.toml", &text, &|_| None).unwrap().config;
        self.reload_with(|config| {
            config.upstreams.retain(|one| *one.name == *"up");
            (config.auth, config.access) = (loaded.auth, loaded.access);
        })
        .unwrap();
    }

    /// Sends a request whose head is admitted before `meanwhile`, and whose body comes after it.
    async fn interrupted(&mut self, ask: &Ask, meanwhile: impl FnOnce(&mut Self)) -> Answer {
        let bytes = ask.clone().with("Expect", "100-continue").bytes();
        let (head, body) = bytes.split_at(bytes.len() - ask.body.len());
        let (mut stream, mut text) = (TcpStream::connect(self.gateway.address()).await.unwrap(), String::new());
        stream.write_all(head).await.unwrap();
        until(&mut stream, &mut text, "HTTP/1.1 100 Continue\r\n\r\n").await;
        meanwhile(self);
        stream.write_all(body).await.unwrap();
        let mut rest = Vec::new();
        in_time(stream.read_to_end(&mut rest)).await.unwrap();
        Answer::of(&rest)
    }
}

/// The lists of a key, and the rules that name a caller, go with the credential. Its last request must not gain by that.
#[tokio::test]
async fn sec_45_a_request_whose_credential_is_removed_meanwhile_gains_no_rights() {
    let key = |id: &str, key: &str, more: &str| format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n{more}");
    let keys = |all: &[String]| format!("mode = \"api_keys\"\n{}", all.concat());
    let bob = || keys(&[key("bob", BOB, "")]);
    let issuer = Issuer::new();
    let of_issuer = "[[auth.rules]]\nwho = { issuer = \"https://login.example\" }\ntools = [\"task\"]\nallow = true\n";
    let denied = "[[auth.rules]]\nwho = { ids = [\"key:ada\"] }\ntools = [\"quick\"]\nallow = false\n";
    let open = "[[auth.rules]]\nallow = true\n";
    for (name, before, credential, after) in [
        ("a key with tools", keys(&[key("ada", ADA, "tools = [\"task\"]\n")]), ADA.to_owned(), bob()),
        (
            "a key that a rule denies",
            keys(&[key("ada", ADA, ""), key("bob", BOB, "")]) + denied + open,
            ADA.to_owned(),
            bob() + open,
        ),
        ("a token of a removed issuer", issuer.auth() + of_issuer, issuer.token(&["/mcp"]), bob()),
        ("a client without a credential", String::new(), String::new(), bob()),
    ] {
        let mut gate = Gate::of(LISTEN, &before, "").await;
        let call = Ask::call(&credential, "quick", &json!({}));
        let lost = gate.interrupted(&call, |gate| gate.admit(&after)).await;
        assert_eq!(lost.status(), "404", "{name}: {lost:?}");
        assert_eq!(gate.server.world.count("tools/call"), 0, "{name}");
        assert_eq!(gate.send(&Ask::call(BOB, "quick", &json!({}))).await.summary(), "200 ok", "{name}: others go on");
    }
}
