//! Builds a configuration from a command line: its servers, common options, and defaults. Values are named after their
//! options, so that a mistake names the user's option.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use url::Url;

use super::error::{ConfigLocation, MistakeCollector};
use super::raw::{RawConfig, RawCredential, RawCredentialValues, RawStore, RawUpstream, StoreKind};
use super::resolve::listeners::{admin_address, listen_address};
use super::section::LocatedValue;
use super::toml_writer::{fallback_name, fitting_name};
use super::value::{CREDENTIAL_HEADER, SECRET, UPSTREAM_URL, ValueError};
use super::variables::{Environment, is_variable_name};
use super::{ConfigError, LoadedConfig, ServerSettings, resolve};
use crate::server::is_at_loopback;
use crate::task::{FallbackPolicy, TaskMode};
use crate::upstream::transport::stdio::StderrUse;

/// The path of an only server.
const PATH: &str = "/mcp";
/// Programs that run the package or script in an argument.
const LAUNCHERS: [&str; 7] = ["npx", "bunx", "uvx", "node", "bun", "python", "python3"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTarget {
    Url(Url),
    /// A program and its arguments; never empty.
    Program(Vec<String>),
}

impl ServerTarget {
    /// Parses the address of a server, as a file's `url`. Errors do not repeat it.
    pub fn url(text: &str) -> Result<Self, String> {
        match (UPSTREAM_URL.read)(text) {
            Ok(url) => Ok(Self::Url(url)),
            Err(ValueError::Form) => Err(format!("write {}", UPSTREAM_URL.wanted)),
            Err(ValueError::Because(why)) => Err(why.to_owned()),
        }
    }

    /// A name from its address: the host, or the program or package that a launcher runs.
    pub fn name(&self) -> String {
        let name = match self {
            Self::Url(url) if is_at_loopback(url) => {
                let port = url.port_or_known_default().map(|port| port.to_string());
                fitting_name(&format!("localhost {}", port.unwrap_or_default()))
            }
            Self::Url(url) => fitting_name(url.host_str().unwrap_or_default()),
            Self::Program(words) => fitting_name(started(words)),
        };
        name.unwrap_or_else(fallback_name)
    }
}

/// The file name of a program, or of the package that it launches, without version.
fn started(words: &[String]) -> &str {
    let file = |word: &'_ str| word.rfind('/').map_or(0, |at| at + 1);
    let mut files = words.iter().map(|word| &word[file(word)..]);
    let program = files.next().unwrap_or_default();
    let launched = files.find(|word| !word.starts_with('-')).filter(|_| LAUNCHERS.contains(&program));
    launched.map_or(program, |package| package.split('@').next().unwrap_or_default())
}

#[derive(Clone, Debug)]
pub struct CommandLineServer {
    name: String,
    /// The path, if it is not `/NAME/mcp`.
    path: Option<&'static str>,
    address: ServerTarget,
    /// Its option or argument on the command line.
    written: &'static str,
}

impl CommandLineServer {
    pub fn only(address: ServerTarget, written: &'static str) -> Self {
        Self { name: address.name(), path: Some(PATH), address, written }
    }

    pub fn wrapped(address: ServerTarget, written: &'static str) -> Self {
        // Stored tasks have this upstream name.
        Self { name: "wrapped".to_owned(), path: None, address, written }
    }

    pub fn demo(url: Url) -> Self {
        Self { name: "demo".to_owned(), path: None, address: ServerTarget::Url(url), written: "the demo server" }
    }

    /// Parses `NAME=URL`; errors do not repeat the URL.
    pub fn named(text: &str) -> Result<Self, String> {
        let (name, url) = text.split_once('=').ok_or("write NAME=URL, such as reports=http://127.0.0.1:9000/mcp")?;
        resolve::check_name(name)?;
        Ok(Self { name: name.to_owned(), path: None, address: ServerTarget::url(url)?, written: "--upstream" })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLineStore {
    Memory,
    UsualFolder,
    Folder(PathBuf),
}

impl Default for CommandLineStore {
    fn default() -> Self {
        // Elsewhere there is no store on disk.
        if cfg!(unix) { Self::UsualFolder } else { Self::Memory }
    }
}

#[derive(Clone, Debug, Default)]
pub struct CommandLineConfig {
    pub servers: Vec<CommandLineServer>,
    pub mode: Option<TaskMode>,
    pub grace: Option<Duration>,
    pub fallback: Option<FallbackPolicy>,
    pub store: CommandLineStore,
    /// The port of the client listener on loopback. Without it the default port, or a free one.
    pub port: Option<u16>,
    pub key_variable: Option<String>,
    /// `NAME: VALUE` for each header of requests to the server.
    pub headers: Vec<String>,
    pub ca: Option<PathBuf>,
}

impl CommandLineConfig {
    /// Resolves the configuration. Programs inherit the whole environment, as if the user had started them.
    pub fn resolve(self, env: &dyn Fn(&str) -> Option<String>) -> Result<LoadedConfig, ConfigError> {
        let mut report = MistakeCollector::without_lines("the command line");
        let auth = self.key_variable.as_deref().and_then(|variable| self.credential(variable, env, &mut report));
        let headers = self.server_headers(&mut report);
        let mut raw = RawConfig { store: raw_store(self.store), ..RawConfig::default() };
        for (index, server) in self.servers.into_iter().enumerate() {
            // The index takes the part of the line number.
            let location = ConfigLocation::own(index, server.written.to_owned());
            if raw.upstreams.iter().any(|other: &RawUpstream| other.name == server.name) {
                report.mistake(&location, format!("two servers are called {}; give each another name", server.name));
                continue;
            }
            if matches!(&server.address, ServerTarget::Url(url) if url.path() == "/") {
                let text =
                    "the address has no path; most servers are at one such as /mcp, which `taskgate probe URL` finds";
                report.warning(&location, text);
            }
            let mut upstream = RawUpstream::unreached(&server.name, location);
            upstream.own.path = server.path.map(|path| located(server.written, path.to_owned()));
            match server.address {
                ServerTarget::Url(url) => upstream.own.url = Some(located(server.written, url)),
                ServerTarget::Program(words) => upstream.own.command = Some(located(server.written, words)),
            }
            let rules = &mut upstream.rules.tasks;
            rules.mode.set(self.mode.map(|mode| located("--mode", mode)));
            rules.grace.set(self.grace.map(|grace| located("--grace", grace)));
            rules.fallback.set(self.fallback.map(|fallback| located("--fallback", fallback)));
            upstream.auth = auth.clone();
            if let Some(ca) = &self.ca {
                upstream.tls_location = Some(ConfigLocation::own(0, "--ca".to_owned()));
                upstream.tls.ca = Some(located("--ca", ca.clone()));
            }
            raw.upstreams.push(upstream);
        }
        choose_ports(&mut raw, self.port);
        let mut config = resolve::resolve(&raw, &mut report);
        let warnings = report.into_result()?;
        for upstream in &mut config.upstreams {
            match &mut upstream.server {
                // No program needs a variable that is not UTF-8.
                ServerSettings::Stdio(program) => {
                    // Who started the program may read its last words.
                    program.stderr_use = StderrUse::OnDeath;
                    program.env = std::env::vars_os()
                        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                        .collect();
                }
                ServerSettings::Http(http) => http.headers.clone_from(&headers),
            }
        }
        Ok(LoadedConfig { config, warnings })
    }

    fn server_headers(&self, report: &mut MistakeCollector) -> Vec<(HeaderName, HeaderValue)> {
        let is_program = |server: &CommandLineServer| matches!(server.address, ServerTarget::Program(_));
        let read = match self.servers.len() {
            0 | 1 if self.headers.is_empty() => return Vec::new(),
            0 | 1 if self.servers.iter().any(is_program) => {
                Err("is for a server that is named by its URL; a program gets variables of the environment")
            }
            0 | 1 => server_headers(&self.headers, self.key_variable.is_some()),
            _ if self.headers.is_empty() => return Vec::new(),
            _ => Err("is ambiguous with several servers; write a file, and [upstreams.NAME.auth] there"),
        };
        read.unwrap_or_else(|why| {
            report.mistake(&location("--header"), why);
            Vec::new()
        })
    }

    /// The bearer token in a variable. The error does not repeat the name, in which a user may have typed the token itself.
    fn credential(&self, variable: &str, env: Environment<'_>, report: &mut MistakeCollector) -> Option<RawCredential> {
        const OPTION: &str = "--key-env";
        let token = if is_variable_name(variable) { env(variable) } else { None };
        let value = match token.as_deref().map(str::trim) {
            None => Err("the environment has no such variable; write the name of the one that holds the token"),
            Some("") => Err("the variable is empty; it holds the server's bearer token"),
            Some(_) if self.servers.len() > 1 => {
                Err("is ambiguous with several servers; write a file, and [upstreams.NAME.auth] there")
            }
            Some(token) => (SECRET.read)(&format!("Bearer {token}"))
                .map_err(|_| "the variable holds no token; one is a line of visible ASCII"),
        };
        let value = value.map_err(|why| report.mistake(&location(OPTION), why)).ok()?;
        let authorization = Some(located(OPTION, value));
        let values = RawCredentialValues { authorization, ..RawCredentialValues::default() };
        Some(RawCredential { location: location(OPTION), values, is_inline: false })
    }
}

fn raw_store(store: CommandLineStore) -> RawStore {
    let (kind, folder) = match store {
        CommandLineStore::Memory => (StoreKind::Memory, None),
        CommandLineStore::UsualFolder => (StoreKind::Disk, None),
        CommandLineStore::Folder(folder) => (StoreKind::Disk, Some(folder)),
    };
    let mut raw = RawStore::default();
    raw.kind.set(Some(located("store.kind", kind)));
    raw.path.set(folder.map(|folder| located("--store", folder)));
    // An ephemeral folder is accepted anywhere; the loss is logged.
    raw.ephemeral.set(Some(located("store.ephemeral", true)));
    raw
}

/// Leaves the default ports to servers that use them: the system then picks another, as for a taken port.
pub(super) fn choose_ports(raw: &mut RawConfig, port: Option<u16>) {
    let on = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let urls = || raw.upstreams.iter().filter_map(|upstream| upstream.own.url.as_ref()).map(|url| &url.value);
    let is_taken = |address| urls().any(|url| resolve::is_at(url, address));
    let admin = (port == Some(admin_address().port()) || is_taken(admin_address())).then(|| on(0));
    let port = port.or_else(|| is_taken(listen_address()).then_some(0));
    raw.admin.address.set(admin.map(|address| located("admin.address", address)));
    raw.listen.address.set(port.map(|port| located("--port", on(port))));
}

fn location(key: &str) -> ConfigLocation {
    ConfigLocation::own(0, key.to_owned())
}

fn located<T>(key: &str, value: T) -> LocatedValue<T> {
    LocatedValue { value, location: location(key) }
}

const HEADERS_MAX: usize = 32;

/// Parses `NAME: VALUE` headers; `has_key`: a bearer token is sent, too. Values are secrets: errors do not repeat them.
pub fn server_headers(texts: &[String], has_key: bool) -> Result<Vec<(HeaderName, HeaderValue)>, &'static str> {
    if texts.len() > HEADERS_MAX {
        return Err("there are more than 32 headers");
    }
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(texts.len());
    for text in texts {
        let (name, value) = text.split_once(':').ok_or("write 'NAME: VALUE', such as 'X-Tenant: acme'")?;
        let name = (CREDENTIAL_HEADER.read)(name)
            .map_err(|_| "the name is not allowed: it is not a header name, or belongs to a connection or to MCP")?;
        let value =
            (SECRET.read)(value).map_err(|_| "the value is invalid; write one line of visible ASCII, at most 8KiB")?;
        if has_key && name == AUTHORIZATION {
            return Err("Authorization is the header of the key, too; leave one of them out");
        }
        if headers.iter().any(|(other, _)| *other == name) {
            return Err("one name is written twice; a server gets each header once");
        }
        headers.push((name, value));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, GRACE_MAX, StoreSettings};

    const GRACE: Duration = Duration::from_millis(300);

    fn only(address: ServerTarget) -> CommandLineConfig {
        CommandLineConfig { servers: vec![CommandLineServer::only(address, "URL")], ..CommandLineConfig::default() }
    }

    fn at(url: &str) -> CommandLineConfig {
        only(ServerTarget::url(url).unwrap())
    }

    fn program(words: &[&str]) -> ServerTarget {
        ServerTarget::Program(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn environment(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some(" s3cr3t\n".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            "LINES" => Some("s3cr3t\nmore".to_owned()),
            _ => None,
        }
    }

    fn resolved(line: CommandLineConfig) -> Config {
        line.resolve(&environment).unwrap().config
    }

    #[test]
    fn a_program_gets_the_environment_and_everything_else_its_default() {
        let line = CommandLineConfig {
            grace: Some(GRACE),
            fallback: Some(FallbackPolicy::Tools),
            mode: Some(TaskMode::Always),
            store: CommandLineStore::Memory,
            ..only(program(&["server", "--flag", ""]))
        };
        let config = resolved(line);
        assert!(matches!(config.store, StoreSettings::Memory(_)));
        let [upstream] = config.upstreams.as_slice() else { panic!("there is one") };
        let default = &upstream.service.rules.default;
        assert_eq!((default.mode, default.grace, default.fallback), (TaskMode::Always, GRACE, FallbackPolicy::Tools));
        let program = upstream.server.stdio().unwrap();
        assert_eq!(
            (program.program.as_str(), program.arguments.as_slice()),
            ("server", &["--flag".to_owned(), String::new()][..])
        );
        let path = std::env::var("PATH").unwrap();
        assert!(program.env.contains(&("PATH".to_owned(), path)));
    }

    #[test]
    fn a_folder_makes_the_store_last_and_a_grace_that_is_too_long_is_named() {
        let line =
            CommandLineConfig { store: CommandLineStore::Folder("tasks".into()), ..at("https://example.org/mcp") };
        let config = resolved(line.clone());
        assert!(matches!(config.store, StoreSettings::Disk { .. }));
        assert_eq!(config.folder, PathBuf::from("tasks"));
        assert!(config.upstreams[0].server.http().is_some());
        let home = CommandLineConfig { store: CommandLineStore::Folder("~/tasks".into()), ..line.clone() };
        let refused = home.resolve(&environment).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the command line: key `--store`: begins with ~, which only a shell replaces; write the whole path"
        );
        let late = CommandLineConfig { grace: Some(GRACE_MAX + Duration::from_secs(1)), ..line };
        let refused = late.resolve(&environment).unwrap_err().to_string();
        assert_eq!(refused, "the command line: key `--grace`: is longer than the maximum, 30s");
    }

    #[test]
    fn one_server_is_served_at_mcp_and_several_below_their_names_in_their_order() {
        assert_eq!(resolved(at("https://example.org/mcp")).upstreams[0].path, "/mcp");
        let named = |text: &str| CommandLineServer::named(text).unwrap();
        let servers = vec![named("z=http://127.0.0.1:1/mcp?a=b"), named("a=http://127.0.0.1:2/mcp")];
        let config = resolved(CommandLineConfig { servers, ..CommandLineConfig::default() });
        let paths: Vec<_> = config.upstreams.iter().map(|upstream| upstream.path.as_str()).collect();
        assert_eq!(paths, ["/z/mcp", "/a/mcp"]);
    }

    #[test]
    fn a_usual_port_is_left_to_a_server_that_has_it() {
        for (server, port, expected) in [
            ("http://127.0.0.1:1/mcp", None, "127.0.0.1:8080 127.0.0.1:9090"),
            ("http://127.0.0.1:1/mcp", Some(3000), "127.0.0.1:3000 127.0.0.1:9090"),
            ("http://127.0.0.1:1/mcp", Some(0), "127.0.0.1:0 127.0.0.1:9090"),
            ("http://127.0.0.1:1/mcp", Some(9090), "127.0.0.1:9090 127.0.0.1:0"),
            ("http://localhost:8080/mcp", None, "127.0.0.1:0 127.0.0.1:9090"),
            ("http://localhost:8080/mcp", Some(3000), "127.0.0.1:3000 127.0.0.1:9090"),
            ("http://[::1]:9090/mcp", None, "127.0.0.1:8080 127.0.0.1:0"),
            ("http://mcp.example:8080/mcp", None, "127.0.0.1:8080 127.0.0.1:9090"),
        ] {
            let config = resolved(CommandLineConfig { port, ..at(server) });
            assert_eq!(format!("{} {}", config.listen.address, config.admin.address), expected, "{server} {port:?}");
        }
        let own = CommandLineConfig { port: Some(8080), ..at("http://127.0.0.1:8080/mcp") };
        let refused = own.resolve(&environment).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the command line: key `URL`: is the gateway's own address (`listen.address`); write the server's"
        );
    }

    #[test]
    fn a_bearer_token_comes_out_of_the_environment_and_is_never_shown() {
        let with = |variable: &str| CommandLineConfig {
            key_variable: Some(variable.to_owned()),
            ..at("https://example.org/mcp")
        };
        let config = resolved(with("TOKEN"));
        let credential = config.upstreams[0].server.http().unwrap().credential.clone().unwrap();
        assert_eq!(credential.read().unwrap().1, "Bearer s3cr3t");
        assert!(!format!("{config:?}").contains("s3cr3t"));
        let two = ["a=http://127.0.0.1:1", "b=http://127.0.0.1:2"].map(|text| CommandLineServer::named(text).unwrap());
        let program = CommandLineServer::only(program(&["server"]), "COMMAND");
        for (line, expected) in [
            (with("NOWHERE"), "the environment has no such variable; write the name of the one that holds the token"),
            (with("sk-s3cr3t"), "the environment has no such variable; write the name of the one that holds the token"),
            (with(""), "the environment has no such variable; write the name of the one that holds the token"),
            (with("EMPTY"), "the variable is empty; it holds the server's bearer token"),
            (with("LINES"), "the variable holds no token; one is a line of visible ASCII"),
            (
                CommandLineConfig { servers: two.to_vec(), ..with("TOKEN") },
                "is ambiguous with several servers; write a file, and [upstreams.NAME.auth] there",
            ),
            (
                CommandLineConfig { servers: vec![program], ..with("TOKEN") },
                "is for an upstream with a `url`; leave it out beside a `command`",
            ),
        ] {
            let refused = line.resolve(&environment).unwrap_err().to_string();
            assert_eq!(refused, format!("the command line: key `--key-env`: {expected}"));
        }
    }

    #[test]
    fn an_invalid_name_of_a_server_is_refused_without_being_repeated() {
        for (text, expected) in [
            ("reports", "write NAME=URL, such as reports=http://127.0.0.1:9000/mcp"),
            ("=http://127.0.0.1:1", "an upstream's name has 1 to 64 characters out of a to z, 0 to 9, _ and -"),
            ("Bad Name=http://127.0.0.1:1", "an upstream's name has 1 to 64 characters out of a to z, 0 to 9, _ and -"),
            ("http://a.example/?x=1", "an upstream's name has 1 to 64 characters out of a to z, 0 to 9, _ and -"),
            ("a=mcp.example/mcp", "write a URL such as \"http://127.0.0.1:9000/mcp\""),
            ("a=ftp://mcp.example", "has another scheme than http and https"),
            ("a=http://ada:s3cr3t@mcp.example", "has a user name or password; credentials do not belong into a URL"),
            ("a=http://mcp.example/#s3cr3t", "has a fragment; leave out the # and the rest"),
        ] {
            assert_eq!(CommandLineServer::named(text).unwrap_err(), expected, "{text}");
        }
        let twice =
            ["a=http://127.0.0.1:1", "a=http://127.0.0.1:2"].map(|text| CommandLineServer::named(text).unwrap());
        let line = CommandLineConfig { servers: twice.to_vec(), ..CommandLineConfig::default() };
        let refused = line.resolve(&environment).unwrap_err().to_string();
        assert_eq!(refused, "the command line: key `--upstream`: two servers are called a; give each another name");
    }

    #[test]
    fn a_server_without_a_name_is_called_by_its_place() {
        for (address, expected) in [
            (ServerTarget::url("https://mcp.example:8443/mcp").unwrap(), "mcp-example"),
            (ServerTarget::url("http://127.0.0.1:9000/mcp").unwrap(), "localhost-9000"),
            (ServerTarget::url("http://localhost").unwrap(), "localhost-80"),
            (ServerTarget::url("http://[::1]:9000/mcp").unwrap(), "localhost-9000"),
            (program(&["npx", "-y", "@modelcontextprotocol/server-everything@1.2", "/srv"]), "server-everything"),
            (program(&["python3", "-m", "my_server"]), "my_server"),
            (program(&["/usr/bin/My Server", "--port", "1"]), "my-server"),
            (program(&["npx"]), "npx"),
            (program(&["報告"]), "server"),
        ] {
            assert_eq!(address.name(), expected);
        }
    }

    #[test]
    fn headers_of_a_command_line_are_names_with_values_and_none_that_means_something_else() {
        let read = |texts: &[&str], has_key| {
            let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
            server_headers(&texts, has_key)
        };
        let fine = read(&["X-Tenant: acme", "authorization:Bearer s3cr3t", "X-Url: http://a:1/b"], false).unwrap();
        let shown: Vec<_> = fine.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
        assert_eq!(shown, ["x-tenant=acme", "authorization=Bearer s3cr3t", "x-url=http://a:1/b"]);
        assert!(!format!("{fine:?}").contains("s3cr3t"));
        let many: Vec<_> = (0..33).map(|n| format!("x-{n}: s3cr3t")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (texts, has_key, expected) in [
            (&["X-Tenant"][..], false, "write 'NAME: VALUE'"),
            (&[""], false, "write 'NAME: VALUE'"),
            (&[": s3cr3t"], false, "the name"),
            (&["a b: s3cr3t"], false, "the name"),
            (&["n\u{e4}me: s3cr3t"], false, "the name"),
            (&["X-A\r\nX-B: s3cr3t"], false, "the name"),
            (&["X-A:"], false, "the value"),
            (&["X-A: s3cr3t\r\nX-B: 1"], false, "the value"),
            (&["X-A: s3cr3t\0"], false, "the value"),
            (&["X-A: caf\u{e9}"], false, "the value"),
            (&["Connection: close"], false, "the name"),
            (&["Host: evil.example"], false, "the name"),
            (&["Content-Length: 1"], false, "the name"),
            (&["Transfer-Encoding: chunked"], false, "the name"),
            (&["TE: trailers"], false, "the name"),
            (&["Mcp-Session-Id: s3cr3t"], false, "the name"),
            (&["MCP-Protocol-Version: 2025-11-25"], false, "the name"),
            (&["Accept: text/html"], false, "the name"),
            (&["Last-Event-ID: 1"], false, "the name"),
            (&["X-A: 1", "x-a: 2"], false, "written twice"),
            (&["Authorization: Bearer s3cr3t"], true, "the header of the key"),
            (&many, false, "more than 32"),
        ] {
            let why = read(texts, has_key).unwrap_err();
            assert!(why.contains(expected), "{texts:?}: {why}");
            assert!(!why.contains("s3cr3t"), "{why}");
        }
        let long = format!("X-A: {}", "x".repeat(8 * 1024 + 1));
        assert!(read(&[&long], false).unwrap_err().contains("the value"));
    }
}
