//! Serves the demo over standard input and output as a faulty server, for tests of the gateway in front of it.
//!
//! `--faults=a,b` names the faults of the whole process; a call of the tool `broken` names the fault of that call.

mod faults;
mod stateless;

use std::io;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Stdin};

use faults::Faults;
use taskgate::demo;
use taskgate::wire::method;

/// Bytes that were read and that the demo has not taken yet.
const AHEAD_BYTES: usize = 64 * 1024;

#[tokio::main]
async fn main() -> io::Result<()> {
    let faults = Faults::of_the_command_line();
    faults.at_start();
    let input = BufReader::new(tokio::io::stdin());
    if faults.has("stateless") {
        return stateless::serve(input).await;
    }
    let (to_demo, from_client) = tokio::io::duplex(AHEAD_BYTES);
    let serving = demo::serve_stdio(from_client, tokio::io::stdout());
    tokio::try_join!(serving, pass_on(input, to_demo, &faults)).map(drop)
}

/// Passes lines on to the demo, until the client closes its side.
async fn pass_on(mut input: BufReader<Stdin>, mut to_demo: DuplexStream, faults: &Faults) -> io::Result<()> {
    let (mut line, mut is_open) = (Vec::new(), false);
    while input.read_until(b'\n', &mut line).await? > 0 {
        let message = serde_json::from_slice(&line).unwrap_or(Value::Null);
        let is_request = message["id"] != Value::Null;
        let mut is_heard = true;
        match (message["method"].as_str(), is_open) {
            (Some(method::INITIALIZE), _) => is_open = true,
            (Some(_), false) if is_request => is_heard = faults.accepts_before_initialize(),
            (Some(method::TOOLS_CALL), true) => faults::in_a_call(&message),
            (Some(method::CANCELLED), true) => faults.at_a_cancel(),
            _ => (),
        }
        if is_heard {
            to_demo.write_all(&line).await?;
        }
        line.clear();
    }
    faults.at_the_end().await;
    Ok(())
}
