//! Session clients whose server knows no sessions: silence, questions and their time, leaving and cancelling.

use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use taskgate::face::http::{AcceptedTypes, Endpoint, Inbound};
use taskgate::task::Principal;

use super::script::{Happens, Saw, Script, result};
use super::world::{Answer, Rules, World, seconds};

/// One session.
pub(crate) struct Caller<'w> {
    world: &'w World,
    session: HeaderValue,
}

impl<'w> Caller<'w> {
    pub(crate) async fn open(world: &'w World, capabilities: Value) -> Self {
        let opening = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {}});
        let mut caller = Self { world, session: HeaderValue::from_static("none") };
        let answer = caller.post(json!({"id": 0, "method": "initialize", "params": opening})).await;
        caller.session = answer.headers["mcp-session-id"].clone();
        caller
    }

    /// Sends a message; the head of its answer.
    pub(crate) async fn post(&self, message: Value) -> Answer {
        self.post_as(message, AcceptedTypes::Both).await
    }

    async fn post_as(&self, mut message: Value, accepted: AcceptedTypes) -> Answer {
        message["jsonrpc"] = json!("2.0");
        let mut headers = HeaderMap::new();
        if message["method"] != "initialize" {
            headers.insert("mcp-session-id", self.session.clone());
        }
        let caller = taskgate::task::Caller::of(Principal::local());
        let inbound = Inbound {
            headers,
            body: message.to_string().into(),
            accepted,
            ..Inbound::new(Method::POST, "/mcp".to_owned(), caller)
        };
        Answer::of(self.world.face.serve(Box::new(inbound)).await, self.world.started)
    }

    async fn cancel(&self, id: u32) {
        let params = json!({"requestId": id});
        let answer = self.post(json!({"method": "notifications/cancelled", "params": params})).await;
        assert_eq!(answer.status, 202);
    }
}

fn call(meta: &Value) -> Value {
    json!({"id": 1, "method": "tools/call", "params": {"name": "work", "_meta": meta}})
}

fn asks() -> Script {
    Script::of([
        (seconds(0), Happens::Elicits("q")),
        (seconds(0), Happens::Heard(1)),
        (seconds(0), Happens::Returns(result("heard"))),
    ])
}

fn forms() -> Value {
    json!({"elicitation": {}})
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_progress_where_that_is_wanted_and_by_comments_elsewhere() {
    for (meta, life_signs, is_progress) in [
        (json!({"progressToken": 7}), true, true),
        (json!({"progressToken": 7}), false, false),
        (json!({}), true, false),
    ] {
        let world = World::with(Rules { life_signs, ..Rules::default() }, Script::returns(seconds(40), "done"));
        let caller = Caller::open(&world, json!({})).await;
        let answer = caller.post(call(&meta)).await;
        assert_eq!((answer.at, answer.is_stream()), (seconds(15), true));
        let events = answer.events().await;
        let at: Vec<u64> = events.iter().map(|(at, _)| at.as_secs()).collect();
        assert_eq!(at, [15, 30, 40], "{meta} {life_signs}");
        for (_, sign) in &events[..2] {
            assert_eq!(sign["params"]["progressToken"] == 7, is_progress, "{meta} {life_signs}: {sign}");
        }
        assert_eq!(events[2].1["result"]["content"][0]["text"], "done");
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_time_and_one_to_a_client_without_streams_are_json() {
    for (after, accepted) in [(seconds(14), AcceptedTypes::Both), (seconds(40), AcceptedTypes::Json)] {
        let world = World::with(Rules::default(), Script::returns(after, "done"));
        let caller = Caller::open(&world, json!({})).await;
        let answer = caller.post_as(call(&json!({})), accepted).await;
        assert_eq!(answer.at, after);
        assert_eq!(answer.json().await["result"]["content"][0]["text"], "done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_with_signs_of_life_until_its_answer_comes() {
    let world = World::with(Rules::default(), asks());
    let caller = Caller::open(&world, forms()).await;
    let mut answer = caller.post(call(&json!({}))).await;
    let (_, question) = answer.event().await.unwrap();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(answer.event().await.unwrap().1, Value::Null);
    assert!(world.age() >= seconds(15));
    let said = json!({"id": question["id"], "result": {"action": "decline"}});
    assert_eq!(caller.post(said).await.status, 202);
    assert_eq!(answer.events().await[0].1["result"]["content"][0]["text"], "heard");
    assert!(world.age() < seconds(16), "it goes on at once");
    let told = Saw::Answer { call: 0, ask: "\"q\"".to_owned(), answer: r#"{"action":"decline"}"#.to_owned() };
    assert!(world.upstream.saw().contains(&told), "{:?}", world.upstream.saw());
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_ends_with_its_own_time_or_with_the_calls() {
    for (rules, reason, last) in [
        (Rules { input_deadline: seconds(100), ..Rules::default() }, None, 100),
        (Rules { deadline: seconds(50), ..Rules::default() }, Some("deadline_exceeded"), 50),
    ] {
        let world = World::with(rules, asks());
        let caller = Caller::open(&world, forms()).await;
        let events = caller.post(call(&json!({}))).await.events().await;
        let (at, end) = events.last().unwrap();
        assert_eq!(at.as_secs(), last);
        match reason {
            Some(reason) => assert_eq!(end["error"]["data"]["reason"], reason),
            None => assert_eq!(end["result"]["content"][0]["text"], "heard"),
        }
        world.is_idle().await;
    }
}

/// T-81: whether or not a question is open, and whether or not the head of the answer is there.
#[tokio::test(start_paused = true)]
async fn t_81_a_client_that_leaves_cancels_nothing() {
    for (script, wait) in [
        (Script::returns(seconds(40), "done"), seconds(1)),
        (Script::returns(seconds(40), "done"), seconds(20)),
        (asks(), seconds(20)),
    ] {
        let world = World::with(Rules { input_deadline: seconds(100), ..Rules::default() }, script);
        let caller = Caller::open(&world, forms()).await;
        let waiting = async {
            let answer = caller.post(call(&json!({}))).await;
            answer.events().await
        };
        assert!(tokio::time::timeout(wait, waiting).await.is_err());
        world.upstream.sees(&Saw::Drop(0)).await;
        assert!(world.age() >= seconds(40), "the call went on to its end");
        assert_eq!(world.upstream.cancels(), 0);
        world.is_idle().await;
    }
}

/// LEG-14.
#[tokio::test(start_paused = true)]
async fn leg_14_a_cancel_ends_a_call_that_works_or_asks_without_a_response() {
    for script in [Script::silent(), asks()] {
        let world = World::with(Rules::default(), script);
        let caller = Caller::open(&world, forms()).await;
        let mut answer = caller.post(call(&json!({}))).await;
        assert!(answer.event().await.is_some());
        caller.cancel(2).await;
        assert!(answer.event().await.is_some(), "another request's");
        caller.cancel(1).await;
        assert_eq!(answer.event().await, None);
        world.upstream.sees(&Saw::Cancel(0)).await;
        world.is_idle().await;
    }
}
