//! What it costs to be served many upstreams at one path: a call there next to the same call at its upstream's own path, and
//! a list of all tools.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::ensure;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::line::{Line, Protocol};
use crate::load::Question;
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::plan::{Comparison, Size, compare, config_of, median, open_session};
use crate::report::{Figure, Must};
use crate::upstream::{self, LARGE, SMALL};

/// Where all are served, and where the one is served whose tools are called.
const ALL: &str = "/all/mcp";
const ONE: &str = "/u07/mcp";
const PREFIX: &str = "u07__";
const UPSTREAMS: usize = 20;

/// The most CPU of a call, next to the same at its upstream's own path.
const BUDGET: f64 = 1.15;

const LIST: &str = "tools/list of 20 servers with 50 tools each";

/// How a client makes its calls.
#[derive(Clone, Copy)]
enum Way {
    Alone,
    InSession,
}

const ROWS: [(&str, Way, &str); 4] = [
    ("call at an endpoint of 20, small answer", Way::Alone, SMALL),
    ("call at an endpoint of 20, 100 kB answer", Way::Alone, LARGE),
    ("session call at an endpoint of 20, small answer", Way::InSession, SMALL),
    ("session call at an endpoint of 20, 100 kB answer", Way::InSession, LARGE),
];

fn config(upstream: SocketAddr) -> String {
    let mut text =
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\nstore.kind = \"memory\"\n".to_owned();
    let names: Vec<String> = (0..UPSTREAMS).map(|number| format!("u{number:02}")).collect();
    for name in &names {
        let _ = write!(text, "[upstreams.{name}]\nurl = \"http://{upstream}{}\"\n", upstream::WIDE);
    }
    let _ = write!(text, "[[endpoints]]\npath = \"{ALL}\"\nupstreams = {names:?}\n");
    text
}

/// All that `wanted` asks for.
pub(crate) async fn all(
    upstream: SocketAddr,
    (size, wanted): (Size, &str),
) -> anyhow::Result<(Vec<Comparison>, Vec<Figure>)> {
    let (mut comparisons, mut figures) = (Vec::new(), Vec::new());
    let rows: Vec<_> = ROWS.into_iter().filter(|(what, ..)| what.contains(wanted)).collect();
    if rows.is_empty() && !LIST.contains(wanted) {
        return Ok((comparisons, figures));
    }
    let config = config_of(&config(upstream))?;
    if LIST.contains(wanted) {
        figures.extend(lists(&Part::gateway(config.path()).await?, size).await?);
    }
    if rows.is_empty() {
        return Ok((comparisons, figures));
    }
    let gateway = Part::gateway(config.path()).await?;
    for (what, way, tool) in rows {
        let own = question(&gateway, way, (ONE, tool)).await?;
        let at_all = question(&gateway, way, (ALL, &format!("{PREFIX}{tool}"))).await?;
        ensure!(own.answer == at_all.answer, "the endpoint changed an answer");
        let requests = if tool == LARGE { size.large } else { size.small };
        let sides = [("taskgate, own path", &gateway, own), ("taskgate, endpoint", &gateway, at_all)];
        comparisons.push(compare(what, sides, size, (requests, Protocol::Http1)).await?.within(Some(BUDGET)));
    }
    Ok((comparisons, figures))
}

async fn question(gateway: &Part, way: Way, (path, tool): (&str, &str)) -> anyhow::Result<Question> {
    let request = match way {
        Way::Alone => messages::call(path, Client::Plain, tool),
        Way::InSession => messages::session_call(path, &open_session(gateway, path).await?, tool),
    };
    let answer = Line::connect(gateway.address).await?.ask(&request).await?.to_vec();
    let seen: Value = serde_json::from_slice(&answer)?;
    ensure!(seen["result"]["content"][0]["text"].is_string(), "a wrong result: {seen}");
    Ok(Question::of(request, answer))
}

/// The first list of a gateway, for which it opens sessions at all upstreams, and those after it.
async fn lists(gateway: &Part, size: Size) -> anyhow::Result<Vec<Figure>> {
    let mut line = Line::connect(gateway.address).await?;
    let request = messages::list(ALL, &json!({}));
    let mut times = Vec::with_capacity(size.pages + 1);
    let mut bytes = 0;
    for _ in 0..=size.pages {
        let began = Instant::now();
        let answer = line.ask(&request).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        bytes = answer.len();
        if times.len() == 1 {
            let seen: Value = serde_json::from_slice(answer)?;
            let tools = seen["result"]["tools"].as_array().map_or(0, Vec::len);
            ensure!(tools == UPSTREAMS * upstream::WIDE_TOOLS, "{tools} tools");
        }
    }
    let warm = median(times[1..].iter().copied());
    Ok(vec![
        Figure { what: format!("{LIST}, cold"), found: format!("{:.1} ms", times[0]), must: Must::None },
        Figure { what: format!("{LIST}, warm"), found: format!("{warm:.1} ms for {bytes} bytes"), must: Must::None },
    ])
}
