//! Puts `taskgate wrap` in front of the servers in a desktop host's file, and takes it out again.

mod changed_file;
mod edit;
mod shape;
mod syntax;

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use similar::TextDiff;

use super::printable::{printable, printable_lines};
use super::terminal::confirmed;
use super::{refuse, say};
use crate::console;
use crate::own_command::{IS_RELEASED, OwnCommand};
use changed_file::{CopyChange, ReadFile};
use edit::{EditError, EditedServers, ListedServer, unwrap, wrap};
use shape::{HostShape, MeantProjects, PROGRAMS, ShapeError};
use syntax::Syntax;

/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;
const WRAPPED: &str = "wrapped";
const DIRECT: &str = "direct";

#[derive(Debug, clap::Args)]
pub(super) struct InstallArguments {
    /// The host: claude-desktop, claude-code, vscode, cursor, windsurf, gemini, zed, goose, codex or librechat.
    #[arg(value_name = "HOST")]
    host: Option<String>,
    /// The servers, by their names in the host; all of them by default.
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// The host's file, if it is not at its usual place.
    #[arg(long, value_name = "FILE", requires = "host")]
    file: Option<PathBuf>,
    /// Change the file without asking for confirmation.
    #[arg(long, short)]
    yes: bool,
}

struct HostChange<'a> {
    host: KnownHost,
    shape: HostShape,
    servers: &'a [String],
    is_confirmed: bool,
}

pub(super) fn install(arguments: &InstallArguments) -> ExitCode {
    finished(HostFolders::of_this_process().and_then(|folders| {
        let Some(change) = HostChange::of(arguments, &folders)? else { return list(&folders) };
        let own = own_words(&OwnCommand::of_this_process(), IS_RELEASED)?;
        let file = change.usual_file(arguments.file.as_deref(), &folders)?;
        let installed = change.install(&file, &own);
        if arguments.file.is_none() {
            change.name_others(&file, &folders);
        }
        installed
    }))
}

pub(super) fn uninstall(arguments: &InstallArguments) -> ExitCode {
    finished(HostFolders::of_this_process().and_then(|folders| {
        if let Some(change) = HostChange::of(arguments, &folders)? {
            let mut files = change.host.files(&folders);
            files.retain(|file| change.is_wrapped(file).unwrap_or(false) && change.has_servers(file));
            if arguments.file.is_some() || files.is_empty() {
                files = vec![change.usual_file(arguments.file.as_deref(), &folders)?];
            }
            return files.iter().try_for_each(|file| change.uninstall(file));
        }
        let mut is_wrapped = false;
        for host in KnownHost::ALL {
            let mut change = HostChange::new(host, arguments, &folders);
            change.shape = change.shape.of_all_projects();
            for file in host.files(&folders) {
                match change.is_wrapped(&file) {
                    Ok(false) => (),
                    Ok(true) => {
                        is_wrapped = true;
                        change.uninstall(&file)?;
                    }
                    Err(why) => say(format_args!("{why}; left out")),
                }
            }
        }
        if !is_wrapped {
            say("no server is wrapped in a host's file; no change is needed");
        }
        Ok(())
    }))
}

fn finished(result: Result<(), String>) -> ExitCode {
    result.map_or_else(refuse, |()| ExitCode::SUCCESS)
}

/// The words that a host starts this program by.
fn own_words(own: &OwnCommand, is_released: bool) -> Result<Vec<String>, String> {
    match own {
        OwnCommand::Npx | OwnCommand::Uvx if !is_released => Err("this program is in the cache of a launcher, which may \
             be emptied, and the launcher might fetch another program of this name later; install taskgate (cargo install \
             --locked --path .), then run this command with the installed one"
            .to_owned()),
        OwnCommand::Path(path) if path.to_str().is_none() => {
            Err(format!("{}: this program's path is not UTF-8 text; move it", path.display()))
        }
        // `uninstall` recognises it by its name.
        OwnCommand::Path(path) if !PROGRAMS.contains(&path.file_name().and_then(OsStr::to_str).unwrap_or_default()) => {
            Err(format!("{}: this program has another name; call it `taskgate`, and run it again", path.display()))
        }
        OwnCommand::Npx | OwnCommand::Uvx | OwnCommand::Path(_) => Ok(own.words()),
    }
}

fn list(folders: &HostFolders) -> Result<(), String> {
    let mut lines = Vec::new();
    for host in KnownHost::ALL {
        for file in host.files(folders) {
            lines.push(format!("{}: {}", host.name(), printable(&file.display().to_string())));
            let read = ReadFile::read(&file);
            let found = read.map(|read| edit::servers(&read.text, &host.shape(&folders.current)));
            match found {
                Ok(Ok(servers)) => lines.extend(servers.iter().map(|server| {
                    let state = if server.own.is_some() { WRAPPED } else { DIRECT };
                    format!("  {state:7} {}", printable(&server.name))
                })),
                Ok(Err(why)) => lines.push(format!("  {}", printable(&why.to_string()))),
                Err(why) => lines.push(format!("  {}", printable(&why))),
            }
        }
    }
    if lines.is_empty() {
        say("no host's file is found; name one: taskgate install HOST --file FILE");
        return Ok(());
    }
    write_out(&(lines.join("\n") + "\n"))?;
    say("wrap the servers of a host: taskgate install HOST [SERVER]...");
    Ok(())
}

impl<'a> HostChange<'a> {
    fn of(arguments: &'a InstallArguments, folders: &HostFolders) -> Result<Option<Self>, String> {
        let host = arguments.host.as_deref().map(KnownHost::named).transpose()?;
        Ok(host.map(|host| Self::new(host, arguments, folders)))
    }

    fn new(host: KnownHost, arguments: &'a InstallArguments, folders: &HostFolders) -> Self {
        let shape = host.shape(&folders.current);
        Self { host, shape, servers: &arguments.servers, is_confirmed: arguments.yes }
    }

    fn usual_file(&self, named: Option<&Path>, folders: &HostFolders) -> Result<PathBuf, String> {
        if let Some(file) = named {
            return Ok(file.to_owned());
        }
        let files = self.host.files(folders);
        let first = files.iter().position(|file| self.has_servers(file)).unwrap_or_default();
        files.into_iter().nth(first).ok_or_else(|| {
            let usual = self.host.user_file(folders).unwrap_or_else(|| "librechat.yaml".into());
            let (host, usual) = (self.host.name(), usual.display());
            format!("{host}: there is no {usual}; add a server in the host first, or name its file by --file")
        })
    }

    fn servers_in(&self, path: &Path) -> Vec<ListedServer> {
        ReadFile::read(path).ok().and_then(|read| edit::servers(&read.text, &self.shape).ok()).unwrap_or_default()
    }

    /// Whether the file has each of the named servers.
    fn has_servers(&self, path: &Path) -> bool {
        let found = self.servers_in(path);
        self.servers.iter().all(|name| found.iter().any(|server| server.name == *name))
    }

    /// Whether a server of the file is wrapped, also one of another project.
    fn is_wrapped(&self, path: &Path) -> Result<bool, String> {
        let file = ReadFile::read(path)?;
        match edit::servers(&file.text, &self.shape.of_all_projects()) {
            Ok(servers) => Ok(servers.iter().any(|server| server.own.is_some())),
            Err(ShapeError::NoServers(_)) => Ok(false),
            Err(why @ (ShapeError::Syntax(_) | ShapeError::NoTable(_))) => Err(at(path)(why)),
        }
    }

    fn install(&self, path: &Path, own: &[String]) -> Result<(), String> {
        let file = ReadFile::read(path)?;
        let edited = wrap(&file.text, &self.shape, self.servers, own).map_err(at(path))?;
        if !self.is_agreed(&file, path, &edited, WRAPPED)? {
            return Ok(());
        }
        // With some servers wrapped already, the copy is the file without them.
        let first = match file.copy() {
            Some(copy) => unwrap(&file.text, &self.shape.of_all_projects(), &[], Some(&copy)).map_err(at(path))?.text,
            None => file.text.clone(),
        };
        file.replace(&edited.text, CopyChange::Write(first))?;
        let (names, copy) = (edited.changed.join(", "), file.copy_path());
        say(format_args!("wrapped {names} in {}; the copy is {}", path.display(), copy.display()));
        self.say_when();
        Ok(())
    }

    /// The host reads the user's file and the project's, and one command changes one of them.
    fn name_others(&self, changed: &Path, folders: &HostFolders) {
        for file in self.host.files(folders).iter().filter(|file| *file != changed) {
            if self.servers_in(file).iter().any(|server| server.own.is_none()) {
                let (name, file) = (self.host.name(), file.display());
                say(format_args!("{name} has direct servers in {file}, too: taskgate install {name} --file {file}"));
            }
        }
    }

    fn uninstall(&self, path: &Path) -> Result<(), String> {
        let file = ReadFile::read(path)?;
        let copy = file.copy();
        let others = self.wrapped_elsewhere(&file.text);
        if !others.is_empty() {
            let folders = others.join(", ");
            say(format_args!("{}: servers of other projects stay wrapped: {folders}; run this there", path.display()));
        }
        let edited = match unwrap(&file.text, &self.shape, self.servers, copy.as_deref()) {
            Err(EditError::Shape(ShapeError::NoServers(_))) if !others.is_empty() => return Ok(()),
            edited => edited.map_err(at(path))?,
        };
        if !self.is_agreed(&file, path, &edited, DIRECT)? {
            return Ok(());
        }
        let is_first = copy.as_ref() == Some(&edited.text);
        file.replace(&edited.text, if is_first { CopyChange::Remove } else { CopyChange::Keep })?;
        let state = if is_first { "; the file is as it was before `taskgate install`" } else { "" };
        say(format_args!("unwrapped {} in {}{state}", edited.changed.join(", "), path.display()));
        self.say_when();
        Ok(())
    }

    /// The folders of the projects that this change does not concern and that have wrapped servers.
    fn wrapped_elsewhere(&self, text: &str) -> Vec<String> {
        let servers = edit::servers(text, &self.shape.of_all_projects()).unwrap_or_default();
        let wrapped = servers.into_iter().filter(|server| server.own.is_some());
        let mut folders: Vec<_> = wrapped.filter_map(|server| server.project).collect();
        folders.retain(|folder| !self.shape.projects.has(folder));
        folders.dedup();
        folders
    }

    /// Hosts read their files when they start, and some write them while they run.
    fn say_when(&self) {
        say(format_args!("{} reads the file when it starts: restart it if it is running", self.host.name()));
    }

    /// Shows the change and asks for it; `state` is the state of a server that needs none.
    fn is_agreed(&self, file: &ReadFile, path: &Path, edited: &EditedServers, state: &str) -> Result<bool, String> {
        for (name, why) in &edited.skipped {
            say(format_args!("{name} stays as it is: it {why}"));
        }
        // Without names all servers are meant, also those that were never wrapped.
        if !edited.unchanged.is_empty() && (state == WRAPPED || !self.servers.is_empty()) {
            say(format_args!("already {state}: {}", edited.unchanged.join(", ")));
        }
        if edited.changed.is_empty() {
            say(format_args!("{}: no change is needed", path.display()));
            return Ok(false);
        }
        file.check_writable()?;
        write_out(&difference(&file.text, &edited.text, path, has_colours()))?;
        if self.is_confirmed {
            return Ok(true);
        }
        let is_agreed = confirmed("Change the file so? (yes/no) [no]: ")?;
        if !is_agreed {
            say("nothing was changed");
        }
        Ok(is_agreed)
    }
}

fn at<E: Display>(path: &Path) -> impl Fn(E) -> String {
    move |error| format!("{}: {error}", path.display())
}

fn has_colours() -> bool {
    console::has_colours(io::stdout().is_terminal(), env::var_os("NO_COLOR").as_deref())
}

fn difference(old: &str, new: &str, path: &Path, has_colours: bool) -> String {
    let name = path.display().to_string();
    let lines = TextDiff::from_lines(old, new);
    let text = lines.unified_diff().context_radius(CONTEXT_LINES).header(&name, &name).to_string();
    let parts = text.split('\t').map(printable_lines);
    let text = parts.collect::<Vec<_>>().join("\t");
    if !has_colours {
        return text;
    }
    let coloured = text.lines().map(|line| match line.chars().next() {
        Some('+') => format!("\u{1b}[32m{line}\u{1b}[0m\n"),
        Some('-') => format!("\u{1b}[31m{line}\u{1b}[0m\n"),
        Some('@') => format!("\u{1b}[36m{line}\u{1b}[0m\n"),
        Some(_) | None => format!("{line}\n"),
    });
    coloured.collect()
}

fn write_out(text: &str) -> Result<(), String> {
    console::stdout().write_all(text.as_bytes()).map_err(|error| format!("standard output cannot be written: {error}"))
}

named_variants! {
    enum KnownHost, name {
        ClaudeDesktop = "claude-desktop",
        ClaudeCode = "claude-code",
        VsCode = "vscode",
        Cursor = "cursor",
        Windsurf = "windsurf",
        GeminiCli = "gemini",
        Zed = "zed",
        Goose = "goose",
        Codex = "codex",
        LibreChat = "librechat",
    }
}

#[derive(Clone, Debug)]
struct HostFolders {
    home: PathBuf,
    /// `XDG_CONFIG_HOME`, or `.config`.
    config: PathBuf,
    current: PathBuf,
    /// `CLAUDE_CONFIG_DIR`.
    claude: Option<PathBuf>,
    /// `CODEX_HOME`.
    codex: Option<PathBuf>,
}

impl HostFolders {
    fn of_this_process() -> Result<Self, String> {
        let folder = |variable| env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let home = folder("HOME").ok_or("HOME is not set; set it to your home folder")?;
        let current = env::current_dir().map_err(|error| format!("the current folder cannot be used: {error}"))?;
        Ok(Self {
            config: folder("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")),
            home,
            current,
            claude: folder("CLAUDE_CONFIG_DIR"),
            codex: folder("CODEX_HOME"),
        })
    }

    /// The folder of a graphical program's settings.
    fn application(&self) -> PathBuf {
        if cfg!(target_os = "macos") { self.home.join("Library/Application Support") } else { self.config.clone() }
    }
}

impl KnownHost {
    fn named(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|host| host.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no host `{name}`; write one of {names}")
        })
    }

    /// The file of the user, if the host has one. Paths and shapes as these pages had them in November 2026:
    /// - Claude Desktop: <https://claudecodeguides.com/claude-desktop-config-json-guide/>
    /// - Claude Code: <https://dev.to/aicoding-guide/claude-mcp-add-scope-local-vs-project-vs-user-and-which-to-pick-4ajm>
    /// - VS Code: <https://code.visualstudio.com/docs/copilot/reference/mcp-configuration>
    /// - Cursor: <https://cursor.com/docs/mcp>
    /// - Windsurf: <https://www.alivemcp.com/seo/mcp-server-windsurf>
    /// - Gemini CLI: <https://geminicli.com/docs/tools/mcp-server/>
    /// - Zed: <https://zed.dev/docs/ai/mcp>
    /// - Goose: <https://block.github.io/goose/docs/guides/config-files>
    /// - Codex: <https://www.mcpbundles.com/guides/codex>
    /// - LibreChat: <https://www.librechat.ai/docs/configuration/librechat_yaml/object_structure/mcp_servers>
    fn user_file(self, folders: &HostFolders) -> Option<PathBuf> {
        let home = |path: &str| Some(folders.home.join(path));
        match self {
            Self::ClaudeDesktop => Some(folders.application().join("Claude/claude_desktop_config.json")),
            Self::ClaudeCode => Some(folders.claude.as_ref().unwrap_or(&folders.home).join(".claude.json")),
            Self::VsCode => Some(folders.application().join("Code/User/mcp.json")),
            Self::Cursor => home(".cursor/mcp.json"),
            Self::Windsurf => home(".codeium/windsurf/mcp_config.json"),
            Self::GeminiCli => home(".gemini/settings.json"),
            Self::Zed => Some(folders.config.join("zed/settings.json")),
            Self::Goose => Some(folders.config.join("goose/config.yaml")),
            Self::Codex => {
                Some(folders.codex.clone().unwrap_or_else(|| folders.home.join(".codex")).join("config.toml"))
            }
            Self::LibreChat => None,
        }
    }

    fn project_file(self, folders: &HostFolders) -> Option<PathBuf> {
        let path = match self {
            Self::ClaudeCode => ".mcp.json",
            Self::VsCode => ".vscode/mcp.json",
            Self::Cursor => ".cursor/mcp.json",
            Self::GeminiCli => ".gemini/settings.json",
            Self::Codex => ".codex/config.toml",
            Self::LibreChat => "librechat.yaml",
            Self::ClaudeDesktop | Self::Windsurf | Self::Zed | Self::Goose => return None,
        };
        Some(folders.current.join(path))
    }

    /// The files on this machine, the user's first.
    fn files(self, folders: &HostFolders) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.user_file(folders).into_iter().chain(self.project_file(folders)).collect();
        files.dedup();
        files.retain(|file| file.exists());
        files
    }

    fn shape(self, current: &Path) -> HostShape {
        let list = |path: &[&str]| path.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let json = |lists| HostShape {
            syntax: Syntax::Json,
            lists,
            projects: MeantProjects::None,
            command_key: "command",
            environment_key: "env",
            url_key: "url",
            remote_type: None,
        };
        let servers = json(vec![list(&["mcpServers"])]);
        match self {
            Self::ClaudeDesktop | Self::Cursor => servers,
            Self::ClaudeCode => {
                // Servers of "local" scope belong to one project.
                let projects = MeantProjects::One(current.display().to_string());
                HostShape { projects, remote_type: Some("http"), ..servers }
            }
            Self::VsCode => {
                let lists = vec![list(&["servers"]), list(&["mcp", "servers"])];
                HostShape { remote_type: Some("http"), ..json(lists) }
            }
            Self::Windsurf => HostShape { url_key: "serverUrl", ..servers },
            Self::GeminiCli => HostShape { url_key: "httpUrl", ..servers },
            Self::Zed => json(vec![list(&["context_servers"])]),
            Self::Goose => HostShape {
                syntax: Syntax::Yaml,
                command_key: "cmd",
                environment_key: "envs",
                url_key: "uri",
                remote_type: Some("streamable_http"),
                ..json(vec![list(&["extensions"])])
            },
            Self::Codex => HostShape { syntax: Syntax::Toml, ..json(vec![list(&["mcp_servers"])]) },
            Self::LibreChat => HostShape { syntax: Syntax::Yaml, remote_type: Some("streamable-http"), ..servers },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_written_into_a_hosts_file_only_after_a_release() {
        for own in [OwnCommand::Npx, OwnCommand::Uvx] {
            let why = own_words(&own, false).unwrap_err();
            assert!(
                why.starts_with("this program is in the cache of a launcher") && why.contains("cargo install"),
                "{why}"
            );
            assert_eq!(own_words(&own, true).unwrap(), own.words());
        }
        let path = OwnCommand::Path(PathBuf::from("/opt/taskgate"));
        assert_eq!(own_words(&path, IS_RELEASED).unwrap(), ["/opt/taskgate"]);
    }

    #[test]
    fn a_program_that_uninstall_would_not_recognise_is_not_written_into_a_hosts_file() {
        let words = |path: &str| own_words(&OwnCommand::Path(PathBuf::from(path)), IS_RELEASED);
        assert!(words("/opt/taskgate-0.1.0").is_err_and(|why| why.contains("call it `taskgate`")));
        assert_eq!(words("/opt/taskgate.exe").unwrap(), ["/opt/taskgate.exe"]);
    }

    #[test]
    fn the_difference_is_coloured_on_a_terminal_and_safe_for_it() {
        let (old, new) = ("1\n2\n3\n4\n5\n", "1\n2\n3\n4\u{1b}\n5\n");
        let plain = difference(old, new, Path::new("/f"), false);
        assert_eq!(plain, "--- /f\n+++ /f\n@@ -1,5 +1,5 @@\n 1\n 2\n 3\n-4\n+4 \n 5\n");
        let coloured = difference(old, new, Path::new("/f"), true);
        assert!(coloured.contains("\u{1b}[31m-4\u{1b}[0m\n\u{1b}[32m+4 \u{1b}[0m\n 5\n"), "{coloured:?}");
    }
}
