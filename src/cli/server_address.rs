//! Defines the server of a client command, its trusted CA and its credential.

use std::path::PathBuf;

use http::HeaderValue;
use url::Url;

use super::call::Flavour;
use crate::cause::CauseChain;
use crate::tls;
use crate::upstream::transport::credential::secret_value;

#[derive(Debug, clap::Args)]
pub(super) struct ServerArguments {
    /// The server's address, http or https.
    url: Url,
    /// Trust these authorities (PEM) instead of the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The API key to send; give it in the environment, where other users do not see it.
    #[arg(long, value_name = "KEY", env = super::KEY_VARIABLE, hide_env_values = true)]
    key: Option<String>,
}

impl ServerArguments {
    pub(super) fn read(self) -> Result<ServerAddress, String> {
        let url = mcp_address(self.url)?;
        if let Some(file) = &self.ca {
            tls::read_roots(file).map_err(|error| CauseChain(&error).to_string())?;
        }
        Ok(ServerAddress { url, ca: self.ca, authorization: bearer(self.key)? })
    }
}

/// The address without its fragment, which servers do not receive.
pub(super) fn mcp_address(mut url: Url) -> Result<Url, &'static str> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the server's address must begin with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the server's address has a user name or password, which servers do not get; use --key");
    }
    url.set_fragment(None);
    Ok(url)
}

/// A key, or a copied header's text, as a Bearer credential; fails if no header can carry it.
pub(super) fn bearer(key: Option<String>) -> Result<Option<HeaderValue>, &'static str> {
    let Some(key) = key else { return Ok(None) };
    let key = key.trim();
    let value = secret_value(&format!("Bearer {}", key.strip_prefix("Bearer ").unwrap_or(key)));
    value.map(Some).ok_or("the key has characters that no header can carry")
}

#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// `http` or `https`, no user info, no fragment.
    pub url: Url,
    pub ca: Option<PathBuf>,
    /// The `Authorization` header; marked as sensitive.
    pub authorization: Option<HeaderValue>,
}

impl ServerAddress {
    /// The command that continues with a server's task; without the query, a possible secret, or an unchosen flavour.
    pub(super) fn task_command(&self, order: &str, id: &str, flavour: Option<Flavour>) -> String {
        let flavour = match flavour {
            Some(Flavour::Extension) => " --flavour extension",
            Some(Flavour::Core) => " --flavour core",
            Some(Flavour::None) => " --flavour none",
            None => "",
        };
        let url = shown(&self.url);
        let mut command = format!("taskgate task {order} {} {}{flavour}", quoted(&url), quoted(id));
        if let Some(ca) = &self.ca {
            command = format!("{command} --ca {}", quoted(&ca.to_string_lossy()));
        }
        command
    }
}

/// An address without its query, which may contain a secret.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    if url.query().is_some() {
        url.set_query(Some("..."));
    }
    url.to_string()
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_with_one_word_for_its_scheme() {
        for key in ["tg_ada_1", " tg_ada_1\n", "Bearer tg_ada_1"] {
            assert_eq!(bearer(Some(key.to_owned())).unwrap().unwrap(), "Bearer tg_ada_1", "{key}");
        }
    }

    #[test]
    fn an_address_with_credentials_is_refused_and_not_repeated() {
        for (url, taken) in [
            ("http://h/mcp#top", Ok("http://h/mcp")),
            ("http://ada@h/mcp", Err("name or password")),
            ("http://ada:s3cret@h/mcp", Err("name or password")),
            ("http://:s3cret@h/mcp", Err("name or password")),
            ("ftp://h/mcp", Err("http://")),
        ] {
            let read = ServerArguments { url: url.parse().unwrap(), ca: None, key: None }.read();
            match (read, taken) {
                (Ok(server), Ok(taken)) => assert_eq!(server.url.as_str(), taken),
                (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("s3cret"), "{why}"),
                (read, _) => panic!("{url}: {read:?}"),
            }
        }
    }

    #[test]
    fn the_command_is_one_that_a_shell_takes_and_holds_no_secret() {
        for (url, id, expected) in [
            ("http://h:1/mcp", "3f9a", "taskgate task wait http://h:1/mcp 3f9a --flavour core --ca '/a b.pem'"),
            (
                "http://h/m?key=s3cret",
                "a'b",
                r"taskgate task wait 'http://h/m?...' 'a'\''b' --flavour core --ca '/a b.pem'",
            ),
        ] {
            let server = ServerAddress {
                url: url.parse().unwrap(),
                ca: Some("/a b.pem".into()),
                authorization: bearer(Some("s3cret".to_owned())).unwrap(),
            };
            assert_eq!(server.task_command("wait", id, Some(Flavour::Core)), expected);
        }
    }
}
