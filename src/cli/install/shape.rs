//! Describes how a host's file names its servers, and finds them in it.

use super::syntax::{LocatedMember, LocatedNode, NodeKind, Syntax, SyntaxError};

/// The variable that hands a server's bearer token to `wrap`, as its arguments can be read by other users.
pub(super) const KEY_VARIABLE: &str = "TASKGATE_SERVER_KEY";
pub(super) const BEARER: &str = "Bearer ";
pub(super) const PROGRAMS: [&str; 2] = ["taskgate", "taskgate.exe"];
/// The keys that hosts use for a server's address.
const URL_KEYS: [&str; 4] = ["url", "serverUrl", "httpUrl", "uri"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostShape {
    pub(super) syntax: Syntax,
    /// The paths of the tables of servers.
    pub(super) lists: Vec<Vec<String>>,
    /// Further servers, in `projects.FOLDER.mcpServers`.
    pub(super) projects: MeantProjects,
    pub(super) command_key: &'static str,
    pub(super) environment_key: &'static str,
    /// The key of an address if the copy has none.
    pub(super) url_key: &'static str,
    /// The `type` of a server with an address, if the host requires one.
    pub(super) remote_type: Option<&'static str>,
}

/// The projects that keep servers in the host's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MeantProjects {
    None,
    /// The project in this folder.
    One(String),
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerTable<'n> {
    /// One of [`HostShape::lists`].
    Listed(&'n [String]),
    /// The project's folder.
    Project(&'n str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HostEntry<'n> {
    pub(super) table: ServerTable<'n>,
    pub(super) name: &'n str,
    pub(super) node: &'n LocatedNode,
    shape: &'n HostShape,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShapeError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error("`{0}` is missing: the file names no servers; add one in the host first")]
    NoServers(String),
    #[error("`{0}` holds no servers: each needs a name and settings")]
    NoTable(String),
}

impl HostShape {
    /// Fails if the file has no table of servers.
    pub(super) fn entries<'n>(&'n self, root: &'n LocatedNode) -> Result<Vec<HostEntry<'n>>, ShapeError> {
        let mut tables = Vec::new();
        for path in &self.lists {
            let found = path.iter().try_fold(root, |node, key| node.member(key).map(|member| &member.value));
            let Some(found) = found else { continue };
            let members = found.members().ok_or_else(|| ShapeError::NoTable(path.join(".")))?;
            tables.push((ServerTable::Listed(path), members));
        }
        let projects = root.member("projects").and_then(|projects| projects.value.members()).unwrap_or_default();
        for project in projects.iter().filter(|project| self.projects.has(&project.key)) {
            let servers = project.value.member("mcpServers").and_then(|servers| servers.value.members());
            tables.extend(servers.map(|members| (ServerTable::Project(&project.key), members)));
        }
        match self.lists.first() {
            Some(usual) if tables.is_empty() => Err(ShapeError::NoServers(usual.join("."))),
            Some(_) | None => {
                let entries = tables
                    .into_iter()
                    .flat_map(|(table, members)| members.iter().map(move |member| self.entry(table, member)));
                Ok(entries.collect())
            }
        }
    }

    fn entry<'n>(&'n self, table: ServerTable<'n>, member: &'n LocatedMember) -> HostEntry<'n> {
        HostEntry { table, name: &member.key, node: &member.value, shape: self }
    }

    /// The shape with the servers of all projects: the copy beside the file is one for all of them.
    pub(super) fn of_all_projects(&self) -> Self {
        let projects = match self.projects {
            MeantProjects::None => MeantProjects::None,
            MeantProjects::One(_) | MeantProjects::All => MeantProjects::All,
        };
        Self { projects, ..self.clone() }
    }
}

impl MeantProjects {
    pub(super) fn has(&self, folder: &str) -> bool {
        match self {
            Self::None => false,
            Self::One(meant) => meant == folder,
            Self::All => true,
        }
    }
}

impl<'n> HostEntry<'n> {
    /// Whether it, or a value in it, has an anchor of YAML or is an alias.
    pub(super) fn has_shared_values(&self) -> bool {
        let is_shared = |node: &LocatedNode| matches!(node.kind, NodeKind::Shared);
        let members = self.node.members().unwrap_or_default();
        is_shared(self.node) || members.iter().any(|member| is_shared(&member.value))
    }

    pub(super) fn command(&self) -> Option<&'n LocatedMember> {
        self.node.member(self.shape.command_key)
    }

    pub(super) fn arguments(&self) -> Option<&'n LocatedMember> {
        self.node.member("args")
    }

    pub(super) fn url(&self) -> Option<&'n LocatedMember> {
        URL_KEYS.iter().find_map(|key| self.node.member(key))
    }

    pub(super) fn environment(&self) -> Option<&'n LocatedMember> {
        self.node.member(self.shape.environment_key)
    }

    pub(super) fn headers(&self) -> Option<&'n LocatedMember> {
        self.node.member("headers").or_else(|| self.node.member("http_headers"))
    }

    pub(super) fn transport(&self) -> Option<&'n LocatedMember> {
        self.node.member("type").filter(|member| member.value.as_text().is_some())
    }

    /// The command and its arguments; an argument that is no text is empty.
    pub(super) fn words(&self) -> Vec<&'n str> {
        let Some(program) = self.command().and_then(|member| member.value.as_text()) else { return Vec::new() };
        let arguments = self.arguments().and_then(|member| member.value.items()).unwrap_or_default();
        let arguments = arguments.iter().map(|item| item.as_text().unwrap_or_default());
        std::iter::once(program).chain(arguments).collect()
    }

    /// The words that start the server, or its address, without the words that wrap it.
    pub(super) fn server_words(&self) -> Vec<&'n str> {
        let mut words = self.words();
        match self.wrapped().map(|wrapped| wrapped.target) {
            Some(WrappedTarget::Program(at)) => drop(words.drain(..at)),
            Some(WrappedTarget::Url(at)) => return words.get(at).copied().into_iter().collect(),
            Some(WrappedTarget::File) => (),
            None => words.extend(self.url().and_then(|url| url.value.as_text())),
        }
        words
    }

    /// The bearer token that a server with an address gets.
    pub(super) fn token(&self) -> Option<&'n str> {
        let text = |member: &'n LocatedMember| member.value.as_text();
        match self.wrapped().map(|wrapped| wrapped.target) {
            Some(WrappedTarget::Url(_)) => self.environment()?.value.member(KEY_VARIABLE).and_then(text),
            Some(WrappedTarget::Program(_) | WrappedTarget::File) => None,
            None => {
                self.url()?;
                text(self.headers()?.value.members()?.first()?)?.strip_prefix(BEARER)
            }
        }
    }

    pub(super) fn wrapped(&self) -> Option<WrappedServer> {
        WrappedServer::of(&self.words())
    }
}

/// The words of a command that starts `taskgate wrap`, by their indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrappedServer {
    /// The index of `wrap`; the words before it start this program.
    pub(super) wrap: usize,
    pub(super) target: WrappedTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrappedTarget {
    Program(usize),
    /// The index of the server's address.
    Url(usize),
    /// Servers of a configuration, which stay in it.
    File,
}

impl WrappedServer {
    pub(super) fn of(words: &[&str]) -> Option<Self> {
        let file = words.first()?.rsplit(['/', '\\']).next()?;
        let wrap = match (file, words.get(1..).unwrap_or_default()) {
            (program, _) if PROGRAMS.contains(&program) => 1,
            ("npx", ["-y", "taskgate", ..]) => 3,
            ("uvx", ["taskgate", ..]) => 2,
            _ => return None,
        };
        if words.get(wrap) != Some(&"wrap") {
            return None;
        }
        let behind = |option: &str| {
            let at = words.iter().skip(wrap).position(|word| *word == option)?;
            Some(wrap + at + 1).filter(|at| *at < words.len())
        };
        let target = match (behind("--"), behind("--url")) {
            (Some(program), _) => WrappedTarget::Program(program),
            (None, Some(url)) => WrappedTarget::Url(url),
            (None, None) => WrappedTarget::File,
        };
        Some(Self { wrap, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_command_is_known_by_its_words() {
        let program = |wrap, at| Some(WrappedServer { wrap, target: WrappedTarget::Program(at) });
        for (words, expected) in [
            ("/usr/bin/taskgate wrap -- npx -y s", program(1, 3)),
            ("taskgate wrap --grace 5s -- npx --url x", program(1, 5)),
            ("npx -y taskgate wrap -- npx", program(3, 5)),
            ("uvx taskgate wrap -- npx", program(2, 4)),
            (r"C:\bin\taskgate.exe wrap -- npx", program(1, 3)),
            ("taskgate wrap --url http://h/", Some(WrappedServer { wrap: 1, target: WrappedTarget::Url(3) })),
            ("taskgate wrap --config f", Some(WrappedServer { wrap: 1, target: WrappedTarget::File })),
            ("taskgate wrap --", Some(WrappedServer { wrap: 1, target: WrappedTarget::File })),
            ("taskgate serve -- npx", None),
            ("taskgate", None),
            ("npx -y other wrap -- npx", None),
            ("npx taskgates wrap -- npx", None),
        ] {
            let words: Vec<_> = words.split(' ').collect();
            assert_eq!(WrappedServer::of(&words), expected, "{words:?}");
        }
    }
}
