//! The gateway as a user runs it: the program with a configuration file.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::process::Child;

const METRICS_MAX: Duration = Duration::from_secs(10);

/// A gateway in front of some upstreams, on free ports of this machine.
#[derive(Debug)]
pub(crate) struct Gateway {
    urls: Vec<String>,
    admin: String,
    _child: Child,
    _dir: TempDir,
}

impl Gateway {
    /// Starts a gateway. `upstreams` is the part of its configuration that names them, and holds `count` of them.
    ///
    /// # Errors
    /// If it does not say where it listens.
    pub(crate) async fn start(name: &str, upstreams: &str, count: usize) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| format!("no folder for {name}: {error}"))?;
        let file = dir.path().join("taskgate.toml");
        let anywhere = "address = \"127.0.0.1:0\"";
        let text = format!("[listen]\n{anywhere}\n\n[admin]\n{anywhere}\n\n{upstreams}");
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.arg("serve").arg("--config").arg(&file).current_dir(dir.path()).stdin(Stdio::null());
        let mut child = Child::start(name, command)?;
        let mut urls = Vec::with_capacity(count);
        for _ in 0..count {
            urls.push(child.line("serving ").await?);
        }
        let admin = child.line("admin ").await?;
        Ok(Self { urls, admin, _child: child, _dir: dir })
    }

    /// Where the upstream `name` is served.
    ///
    /// # Panics
    /// If the configuration has no such upstream.
    pub(crate) fn url(&self, name: &str) -> &str {
        let path = format!("/{name}/mcp");
        self.urls.iter().find(|url| url.ends_with(&path)).expect("the gateway serves every upstream")
    }

    /// The page of metrics.
    ///
    /// # Errors
    /// If it cannot be had.
    pub(crate) async fn metrics(&self) -> Result<String, String> {
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let uri = format!("{}/metrics", self.admin).parse().map_err(|error| format!("{}: {error}", self.admin))?;
        let page = async {
            let response = client.get(uri).await.map_err(|error| error.to_string())?;
            response.into_body().collect().await.map_err(|error| error.to_string())
        };
        let page = timeout(METRICS_MAX, page).await.map_err(|_| "no metrics in time".to_owned())??;
        String::from_utf8(page.to_bytes().to_vec()).map_err(|error| error.to_string())
    }
}
