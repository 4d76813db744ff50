//! Pages of one client's tasks (SEP-1904): filtered next to the list as it is, in one store on disk.

use std::net::SocketAddr;

use anyhow::ensure;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::line::Line;
use crate::load::Round;
use crate::messages;
use crate::parts::Part;
use crate::plan::{Comparison, Size, config_of, config_text, open_session};
use crate::rows;

const PATH: &str = "/lists/mcp";
/// What a full page has.
const PAGE: usize = 50;

/// All that `wanted` asks for. The rows are [`Size::rows`] in number, 100,000 in a whole run.
pub(crate) async fn compare(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Comparison>> {
    // In the middle of the rows, give or take the time that it takes to fill the store.
    let middle = rows::listed(size.rows / 2).created_at.to_string();
    let lists = [
        ("page of many tasks on disk, by status", json!({"status": ["cancelled"]})),
        ("page of many tasks on disk, by creation", json!({"createdBefore": middle, "orderBy": "createdAt"})),
        ("page of many tasks on disk, by creation, the last changed first", json!({"createdBefore": middle})),
    ];
    let lists: Vec<_> = lists.into_iter().filter(|(what, _)| what.contains(wanted)).collect();
    if lists.is_empty() {
        return Ok(Vec::new());
    }
    let folder = TempDir::new()?;
    let data = folder.path().join("data");
    rows::fill(&data, size.rows, rows::listed).await?;
    let config = config_text(upstream, &rows::store_in(&data));
    let drafts = format!("[upstreams.lists]\nurl = \"http://{upstream}/mcp\"\ntasks.drafts = [\"sep-1904\"]\n");
    let config = config_of(&format!("{config}\n{drafts}"))?;
    let gateway = Part::gateway(config.path()).await?;
    let session = open_session(&gateway, PATH).await?;
    let mut comparisons = Vec::new();
    for (what, criteria) in lists {
        let mut client =
            ListClient { line: Line::connect(gateway.address).await?, gateway: &gateway, session: &session };
        let all = json!({});
        for criteria in [&all, &criteria] {
            client.round(criteria, size.pages.div_ceil(4)).await?;
        }
        let (mut of_all, mut of_some) = (Vec::new(), Vec::new());
        for _ in 0..size.rounds {
            of_all.push(client.round(&all, size.pages).await?);
            of_some.push(client.round(&criteria, size.pages).await?);
        }
        let sides = [("taskgate, the list without a filter", of_all.as_slice()), ("taskgate", &of_some)];
        comparisons.push(Comparison::of(what, sides));
    }
    Ok(comparisons)
}

/// A client that asks for the first page again and again.
struct ListClient<'a> {
    line: Line,
    gateway: &'a Part,
    session: &'a str,
}

impl ListClient<'_> {
    async fn round(&mut self, criteria: &Value, pages: usize) -> anyhow::Result<Round> {
        let request = messages::session_list(PATH, self.session, criteria);
        let mut latencies = Vec::with_capacity(pages);
        let (before, began) = (self.gateway.cpu()?, Instant::now());
        for _ in 0..pages {
            let asked = Instant::now();
            let answer = self.line.ask(&request).await?;
            latencies.push(asked.elapsed());
            // A cursor is another one each time.
            let shown = answer.windows(8).filter(|window| window == b"\"taskId\"").count();
            // Where it is not ordered by what it is filtered by, a page may have fewer, or none, and not be the last.
            let has_more = answer.windows(12).any(|window| window == b"\"nextCursor\"");
            ensure!(shown <= PAGE && (shown > 0 || has_more), "{shown} tasks: {}", String::from_utf8_lossy(answer));
        }
        let took = began.elapsed();
        Ok(Round::of(latencies, self.gateway.cpu()? - before, took))
    }
}
