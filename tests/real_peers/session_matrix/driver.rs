//! Drives one client through some cases, each in a session of its own: by its script, or in this process.

use std::convert::Infallible;

use serde_json::Value;
use support::peers::WAIT_MAX;
use tokio::sync::{mpsc, watch};

use super::install::Peers;
use super::process::Child;
use super::rust_client;
use super::table::{Facts, table};

/// A driver's line between two calls.
const READY: &str = "READY";

/// The result of one case.
pub(crate) type Driven = Result<Facts, String>;

/// A case's name, and the case as the driver is given it.
pub(crate) type Given<'a> = (&'static str, &'a Value);

/// Where drivers wait between two calls until the others are there too, and something has happened.
#[derive(Debug)]
pub(crate) struct Meeting {
    arrivals: mpsc::Receiver<Infallible>,
    over: watch::Sender<bool>,
}

/// One driver's part of a [`Meeting`]. A driver that ends early drops it, so the others do not wait for it.
#[derive(Debug)]
pub(crate) struct Seat {
    arrival: Option<mpsc::Sender<Infallible>>,
    over: watch::Receiver<bool>,
}

impl Meeting {
    /// A meeting of `count` drivers.
    pub(crate) fn of(count: usize) -> (Self, Vec<Seat>) {
        let (sender, arrivals) = mpsc::channel(1);
        let (over, watching) = watch::channel(false);
        let seat = || Seat { arrival: Some(sender.clone()), over: watching.clone() };
        let seats = (0..count).map(|_| seat()).collect();
        (Self { arrivals, over }, seats)
    }

    /// Waits until every driver has come, or has ended.
    pub(crate) async fn is_complete(&mut self) {
        // No messages are sent: a driver arrives when it drops its end of the channel.
        while self.arrivals.recv().await.is_some() {}
    }

    /// Lets all of them go on.
    pub(crate) fn end(self) {
        self.over.send_replace(true);
    }
}

impl Seat {
    /// Waits for the end of the meeting.
    pub(crate) async fn take(&mut self) {
        self.arrival = None;
        // An error means that the meeting is gone, and so over.
        let _ = self.over.wait_for(|over| *over).await;
    }
}

/// One client at one upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) client: &'static str,
    /// Names its log.
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
}

impl Pair<'_> {
    /// Drives `cases` in turn.
    pub(crate) async fn drive(self, peers: &Peers, cases: &[Given<'_>], mut seat: Option<Seat>) -> Vec<Driven> {
        let mut driven = Vec::with_capacity(cases.len());
        if table().client(self.client).run.is_empty() {
            for (case, given) in cases {
                driven.push(rust_client::drive(self.url, case, given, seat.as_mut()).await);
            }
            return driven;
        }
        let mut script = match self.start(peers, cases) {
            Ok(script) => script,
            Err(error) => return vec![Err(error); cases.len()],
        };
        for _ in cases {
            driven.push(facts(&mut script, seat.as_mut()).await);
        }
        driven
    }

    fn start(self, peers: &Peers, cases: &[Given<'_>]) -> Result<Child, String> {
        let (program, script) = table().client(self.client).run.split_first().expect("a client has a program");
        let mut command = peers.command(program, script);
        command.arg(self.url);
        for (case, given) in cases {
            command.arg(case).arg(given.to_string());
        }
        Child::start_talking(&format!("session-client-{}-{}", self.client, self.name), command)
    }
}

/// The facts of the next case. They stand in a line of their own, among the output of the client's libraries.
async fn facts(script: &mut Child, mut seat: Option<&mut Seat>) -> Driven {
    loop {
        let line = script.next_line(WAIT_MAX).await?.ok_or("the driver ended without facts")?;
        if line == READY {
            if let Some(seat) = seat.as_deref_mut() {
                seat.take().await;
            }
            script.send("").await?;
        } else if let Ok(facts) = serde_json::from_str::<Facts>(&line)
            && facts.contains_key("outcome")
        {
            return Ok(facts);
        }
    }
}
