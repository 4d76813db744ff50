//! The program as a gateway in front of one server: a process of its own, as a gateway behind another one is.

use std::fs;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::scripted::WAIT_MAX;

/// Killed when dropped.
pub struct Served {
    /// Where its server is served.
    pub url: String,
    _child: Child,
    /// Kept open: it writes further lines, and ends if it cannot.
    _lines: Lines<BufReader<ChildStdout>>,
    _folder: TempDir,
}

impl Served {
    /// `keys` stand in the section of its only upstream, or behind it.
    pub async fn before(server: &str, keys: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[store]\nkind = \"memory\"\n\
             path = \"{}\"\n[upstreams.up]\nurl = \"{server}\"\npath = \"/mcp\"\n{keys}\n",
            folder.path().join("data").display()
        );
        let file = folder.path().join("taskgate.toml");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(crate::taskgate());
        command.env_remove("TASKGATE_LOG").args(["serve", "--config"]).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = tokio::time::timeout(WAIT_MAX, lines.next_line()).await.expect("it starts in time");
        let line = ready.unwrap().expect("it starts");
        let url = line.strip_prefix("serving ").unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        Self { url, _child: child, _lines: lines, _folder: folder }
    }
}
