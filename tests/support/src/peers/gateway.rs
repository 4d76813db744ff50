//! The gateway as a user runs it: the program with a configuration file.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::WAIT_MAX;
use super::process::Child;
use crate::ports::reserved_address;

/// A gateway in front of some upstreams.
#[derive(Debug)]
pub struct Gateway {
    setup: Setup,
    running: Running,
}

#[derive(Debug)]
struct Running {
    urls: Vec<String>,
    admin: String,
    child: Child,
}

/// The settings of each start of a gateway.
#[derive(Debug)]
struct Setup {
    name: String,
    upstreams: String,
    count: usize,
    /// Its address, the same in each process.
    address: SocketAddr,
    /// Further keys of `[listen]`.
    listen: String,
    /// Holds its configuration, and all that it keeps.
    dir: TempDir,
}

impl Gateway {
    /// Starts a gateway. `upstreams` is the part of its configuration that names them, and holds `count` of them.
    ///
    /// # Errors
    /// If it does not say where it listens.
    pub async fn start(name: &str, upstreams: &str, count: usize) -> Result<Self, String> {
        Self::start_at(name, upstreams, count, reserved_address(), "").await
    }

    /// Starts a gateway that has its address as `public_url`, which tokens are for.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub async fn start_public(name: &str, upstreams: &str, count: usize) -> Result<Self, String> {
        Self::start_public_at(name, upstreams, count, reserved_address()).await
    }

    /// The same at an address that others know before.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub async fn start_public_at(
        name: &str,
        upstreams: &str,
        count: usize,
        address: SocketAddr,
    ) -> Result<Self, String> {
        Self::start_at(name, upstreams, count, address, &format!("public_url = \"http://{address}\"\n")).await
    }

    async fn start_at(
        name: &str,
        upstreams: &str,
        count: usize,
        address: SocketAddr,
        listen: &str,
    ) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| format!("no folder for {name}: {error}"))?;
        let (name, upstreams, listen) = (name.to_owned(), upstreams.to_owned(), listen.to_owned());
        let setup = Setup { name, upstreams, count, address, listen, dir };
        let running = setup.launch().await?;
        Ok(Self { setup, running })
    }

    /// Kills it, and starts it again at the same address with its store.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub async fn restart(&mut self) -> Result<(), String> {
        self.restart_after(Duration::ZERO).await
    }

    /// The same, with a pause in which connections are refused.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub async fn restart_after(&mut self, pause: Duration) -> Result<(), String> {
        self.running.child.kill().await?;
        sleep(pause).await;
        self.running = self.setup.launch().await?;
        Ok(())
    }

    /// Asks it to shut down at once, without time for balancers to notice.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn interrupt(&self) -> Result<(), String> {
        self.running.child.interrupt()
    }

    /// Where the upstream `name` is served.
    ///
    /// # Panics
    /// If the configuration has no such upstream.
    pub fn url(&self, name: &str) -> &str {
        let path = format!("/{name}/mcp");
        self.running.urls.iter().find(|url| url.ends_with(&path)).expect("the gateway serves every upstream")
    }

    /// The page of metrics.
    ///
    /// # Errors
    /// If it cannot be had.
    pub async fn metrics(&self) -> Result<String, String> {
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let uri = format!("{}/metrics", self.running.admin)
            .parse()
            .map_err(|error| format!("{}: {error}", self.running.admin))?;
        let page = async {
            let response = client.get(uri).await.map_err(|error| error.to_string())?;
            response.into_body().collect().await.map_err(|error| error.to_string())
        };
        let page = timeout(WAIT_MAX, page).await.map_err(|_| "no metrics in time".to_owned())??;
        String::from_utf8(page.to_bytes().to_vec()).map_err(|error| error.to_string())
    }
}

impl Setup {
    async fn launch(&self) -> Result<Running, String> {
        let file = self.dir.path().join("taskgate.toml");
        let (listen, store) =
            (format!("address = \"{}\"\n{}", self.address, self.listen), self.dir.path().join("data"));
        let admin = "address = \"127.0.0.1:0\"";
        let own = format!(
            "[listen]\n{listen}\n\n[admin]\n{admin}\n\n[store]\npath = \"{}\"\nephemeral = true\n\n",
            store.display()
        );
        std::fs::write(&file, own + &self.upstreams).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(crate::taskgate());
        command.arg("serve").arg("--config").arg(&file);
        let mut child = Child::start(&self.name, command)?;
        let mut urls = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            urls.push(child.line("serving ").await?);
        }
        let admin = child.line("admin ").await?;
        Ok(Running { urls, admin, child })
    }
}
