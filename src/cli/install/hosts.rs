//! Lists the hosts, the files in which they name their servers, and the shape of each.

use std::env;
use std::path::{Path, PathBuf};

use super::shape::{HostShape, MeantProjects};
use super::syntax::Syntax;

named_variants! {
    pub(super) enum KnownHost, name {
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
pub(super) struct HostFolders {
    pub(super) home: PathBuf,
    /// `XDG_CONFIG_HOME`, or `.config`.
    pub(super) config: PathBuf,
    pub(super) current: PathBuf,
    /// `CLAUDE_CONFIG_DIR`.
    pub(super) claude: Option<PathBuf>,
    /// `CODEX_HOME`.
    pub(super) codex: Option<PathBuf>,
}

impl HostFolders {
    pub(super) fn of_this_process() -> Result<Self, String> {
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
    pub(super) fn named(name: &str) -> Result<Self, String> {
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
    pub(super) fn user_file(self, folders: &HostFolders) -> Option<PathBuf> {
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
            Self::LibreChat => "librechat.yaml",
            Self::ClaudeDesktop | Self::Windsurf | Self::GeminiCli | Self::Zed | Self::Goose | Self::Codex => {
                return None;
            }
        };
        Some(folders.current.join(path))
    }

    /// The files on this machine, the user's first.
    pub(super) fn files(self, folders: &HostFolders) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.user_file(folders).into_iter().chain(self.project_file(folders)).collect();
        files.dedup();
        files.retain(|file| file.exists());
        files
    }

    pub(super) fn shape(self, current: &Path) -> HostShape {
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
