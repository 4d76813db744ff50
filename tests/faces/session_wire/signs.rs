//! Progress where several requests share a stream, and where a client waits for a task; in paused time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use taskgate::face::session::SessionFace;
use taskgate::task::{Answer, GatewayFault};
use taskgate::upstream::answer_body::BodyKind;
use taskgate::upstream::raw_channel::{RawChannel, RawRequest, RawResponse};
use taskgate::upstream::{
    BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, Handshake, OwnSessionChannel, Progress,
    ResumeToken, ServerNotification, SessionLease, Timeouts, Upstream, UpstreamRequest,
};
use taskgate::wire::Payload;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};

use super::face::{Caller, Slow, call_with_token, face_with, progress, seconds, text};

const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A server with calls, made as tasks, that sends their messages at fixed moments.
#[derive(Debug)]
struct Timed {
    inner: Arc<Slow>,
    name: Arc<str>,
    events: Vec<(Duration, ExchangeEvent)>,
}

#[async_trait]
impl RawChannel for Timed {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault> {
        self.inner.send(request).await
    }
}

impl OwnSessionChannel for Timed {
    fn calls_in(&self, _: SessionLease) -> Arc<dyn Upstream> {
        Arc::new(Calls { name: Arc::clone(&self.name), events: self.events.clone() })
    }
}

#[derive(Debug)]
struct Calls {
    name: Arc<str>,
    events: Vec<(Duration, ExchangeEvent)>,
}

#[async_trait]
impl Upstream for Calls {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        unreachable!("the server's description is not requested")
    }

    async fn begin(&self, _: UpstreamRequest, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let now = Instant::now();
        Ok(Box::new(Steps(self.events.iter().cloned().map(|(after, event)| (now + after, event)).collect())))
    }

    async fn resume(&self, _: ResumeToken, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        unreachable!("nothing is taken up again")
    }

    async fn notifications(&self, _: &CallContext) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        unreachable!("no listener is there")
    }
}

struct Steps(VecDeque<(Instant, ExchangeEvent)>);

#[async_trait]
impl Exchange for Steps {
    async fn next(&mut self) -> ExchangeEvent {
        sleep_until(self.0[0].0).await;
        self.0.pop_front().unwrap().1
    }

    async fn answer(&mut self, _: &Payload, _: Answer) -> Result<(), ExchangeError> {
        Ok(())
    }

    async fn cancel(&mut self, _: &str) {}

    fn resume_token(&self) -> Option<ResumeToken> {
        None
    }
}

/// A face whose task says 1.5 after 20 seconds, 0.5 after 40, and ends after 58.
fn face(life_signs: bool) -> SessionFace {
    let step = |value: f64| {
        ExchangeEvent::Progress(Progress { progress: Payload::of(&value), total: Some(Payload::of(&9)), message: None })
    };
    let result = ExchangeEvent::Returned(Payload::of(&json!({"content": []})));
    let events = vec![(seconds(20), step(1.5)), (seconds(40), step(0.5)), (seconds(58), result)];
    let inner = Slow::new(Duration::ZERO, BodyKind::Json, &[]);
    let timed = Timed { inner, name: Arc::from("timed"), events };
    face_with(Arc::new(timed), Timeouts::default(), life_signs)
}

async fn json_of(response: taskgate::face::http::FaceResponse) -> Value {
    serde_json::from_str(&text(response).await).unwrap()
}

/// The id of a task whose call bears this progress token.
async fn task(caller: &Caller, face: &SessionFace, token: &Value) -> Value {
    let mut body: Value = serde_json::from_str(&call_with_token(token)).unwrap();
    body["params"]["task"] = json!({});
    let handle = json_of(caller.post(face, body.to_string()).await).await;
    handle["result"]["task"]["taskId"].clone()
}

fn wait_for(task: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 5, "method": "tasks/result", "params": {"taskId": task}}).to_string()
}

fn messages(said: &str) -> Vec<Value> {
    let data = |event: &str| event.lines().filter_map(|line| line.strip_prefix("data: ")).collect::<String>();
    said.split("\n\n")
        .map(data)
        .filter(|data| !data.is_empty())
        .map(|data| serde_json::from_str(&data).unwrap())
        .collect()
}

/// L25-46, L25-47, T-73, GW-26: under the token of the task's call, rising, none after the outcome.
#[tokio::test(start_paused = true)]
async fn l25_46_a_silent_task_shows_that_it_lives_under_the_token_of_its_call() {
    let face = face(true);
    let caller = Caller::open_as(&face, "2025-11-25").await;
    let task = task(&caller, &face, &json!("p")).await;
    let began = Instant::now();
    let response = caller.post(&face, wait_for(&task)).await;
    assert_eq!(began.elapsed(), seconds(15));
    let said = text(response).await;
    // The handle waited for the outcome for a moment.
    assert_eq!(began.elapsed(), seconds(58) - Duration::from_millis(100), "no sign outlives the task");
    let (values, shown) = progress(&said);
    assert!(values.is_sorted_by(|one, next| one < next), "what rises never falls: {values:?}");
    assert_eq!(values.len(), 4, "signs at 15, 35 and 50 seconds, 1.5 at 20: {said}");
    assert!(values[0] > 0.0 && values[0] < 0.1 && values[2] < 1.51, "{values:?}");
    assert_eq!(values[1].to_string(), "1.5");
    assert!(shown.starts_with("PPPP") && !shown.contains(":\n\n"), "{shown}");
    let all = messages(&said);
    for message in &all[..4] {
        assert_eq!(message["params"]["progressToken"], "p");
        assert_eq!(message["params"]["_meta"][RELATED], json!({"taskId": task}));
    }
    assert_eq!(all[2]["params"]["total"], 9, "what there is in all is told again");
    assert_eq!((all.len(), &all[4]["id"]), (5, &json!(5)));
    let late = text(caller.post(&face, wait_for(&task)).await).await;
    assert!(!late.contains("notifications/progress"), "{late}");
}

/// No client gets progress that it did not ask for.
#[tokio::test(start_paused = true)]
async fn a_silent_task_whose_call_wants_no_progress_shows_comments() {
    for (life_signs, token) in [(false, json!("p")), (true, json!(null)), (true, json!({}))] {
        let face = face(life_signs);
        let caller = Caller::open_as(&face, "2025-11-25").await;
        let task = task(&caller, &face, &token).await;
        let said = text(caller.post(&face, wait_for(&task)).await).await;
        let real = usize::from(token == "p");
        assert_eq!((progress(&said).0.len(), said.contains(":\n\n")), (real, true), "{life_signs} {token}: {said}");
    }
}

/// LEG-08: no message goes out on two streams.
#[tokio::test(start_paused = true)]
async fn leg_08_only_the_newest_stream_that_waits_for_a_task_gets_progress() {
    let face = face(true);
    let caller = Caller::open_as(&face, "2025-11-25").await;
    let task = task(&caller, &face, &json!("p")).await;
    let begin = || async { text(caller.post(&face, wait_for(&task)).await).await };
    let newer = async {
        tokio::time::sleep(seconds(1)).await;
        begin().await
    };
    let (older, newer) = tokio::join!(begin(), newer);
    assert_eq!((progress(&older).0.len(), older.matches(":\n\n").count()), (0, 3), "{older}");
    assert_eq!((progress(&newer).0.len(), newer.matches(":\n\n").count()), (4, 0), "{newer}");
}

/// A cancelled task says nothing more of its progress (L25-47).
#[tokio::test(start_paused = true)]
async fn l25_47_a_cancelled_task_shows_no_sign() {
    let face = face(true);
    let caller = Caller::open_as(&face, "2025-11-25").await;
    let task = task(&caller, &face, &json!("p")).await;
    let waiting = async { text(caller.post(&face, wait_for(&task)).await).await };
    let cancel = json!({"jsonrpc": "2.0", "id": 6, "method": "tasks/cancel", "params": {"taskId": task}});
    let cancelling = async {
        tokio::time::sleep(seconds(16)).await;
        caller.post(&face, cancel.to_string()).await
    };
    let (said, _) = tokio::join!(waiting, cancelling);
    assert_eq!(progress(&said).0.len(), 1, "the one before the cancel: {said}");
}
