//! The frame of a matrix of real clients and servers: its cells are run once for all tests of a process.

use std::sync::OnceLock;

use tokio::runtime::Runtime;

use super::install::Peers;

/// One client's cells with one upstream.
pub trait Row: Sized + Send + Sync + 'static {
    /// The matrix's name in the message about missing peers.
    const MATRIX: &'static str;
    /// How many upstreams, and so rows, each client has.
    const UPSTREAMS: usize;

    /// Runs all cells.
    ///
    /// # Errors
    /// If an upstream or a gateway cannot be started.
    #[allow(async_fn_in_trait, reason = "each matrix runs on a runtime of its own")]
    async fn run(peers: &Peers) -> Result<Vec<Self>, String>;

    /// The errors, one line each.
    fn failures(&self) -> Vec<String>;
}

/// The rows of a matrix, once they were run.
pub struct Cells<R>(OnceLock<Option<Result<Vec<R>, String>>>);

impl<R: Row> Cells<R> {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// All rows, run by the first test that asks; `None` without peers.
    #[track_caller]
    pub fn rows(&self) -> Option<&[R]> {
        let run = || {
            let peers = Peers::find(R::MATRIX)?;
            Some(Runtime::new().unwrap().block_on(R::run(&peers)))
        };
        self.0.get_or_init(run).as_ref().map(|rows| rows.as_deref().unwrap_or_else(|error| panic!("{error}")))
    }

    /// Fails with each error in the rows of one client.
    #[track_caller]
    pub fn check(&self, is_of_client: impl Fn(&R) -> bool) {
        let Some(rows) = self.rows() else { return };
        let rows: Vec<_> = rows.iter().filter(|row| is_of_client(row)).collect();
        assert_eq!(rows.len(), R::UPSTREAMS);
        let failures: Vec<_> = rows.iter().flat_map(|row| row.failures()).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
