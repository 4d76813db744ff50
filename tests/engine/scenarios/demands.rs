//! Errors that demand elicitations, of 2025-11-25 upstreams (T-49).

use serde_json::json;
use taskgate::task::{Executed, GatewayFault, Reason, TaskMode};
use taskgate::upstream::BeginError;

use super::rounds::{EXTENSION, accept, again, answers, check_done, plain, result_of, returns, round};
use super::script::{Happens, Resumes, Script};
use super::store_faults::{Method, StoreFault};
use super::unmarked::key;
use super::waiting::{answer, asking, task};
use super::world::{Ask, Rules, World, millis, seconds};

const DEMAND: &str =
    r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"go"}]}"#;

/// T-49: an error that demands elicitations is read as questions, and the call is made again after them.
#[tokio::test(start_paused = true)]
async fn t_49_a_demand_is_asked_and_the_call_repeated_once_it_is_met() {
    let url = json!({ "elicitation": { "url": {} } });
    for (action, code) in [("accept", None), ("decline", Some(-32603))] {
        let demanded = std::sync::atomic::AtomicBool::new(false);
        let world = World::choosing(Rules::mode(TaskMode::Never), move |_| {
            match demanded.swap(true, std::sync::atomic::Ordering::Relaxed) {
                false => Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]),
                true => Script::of([returns(1)]),
            }
        });
        let ask = Ask::call().declaring(url.clone());
        let asked = result_of(&world, &ask).await;
        assert_eq!(
            asked["inputRequests"]["r0"],
            json!({ "method": "elicitation/create", "params": { "mode": "url", "url": "https://a.example/", "message": "go" } })
        );
        let retry = again(&ask, &round(&asked), &[]).member("inputResponses", json!({ "r0": { "action": action } }));
        let answer = world.send(&retry).await.json().await;
        match code {
            None => check_done(&answer["result"]),
            Some(code) => assert_eq!(answer["error"]["code"], code),
        }
        assert_eq!(world.upstream.calls().len(), if code.is_none() { 2 } else { 1 });
        assert_eq!(answers(&world), []);
        world.is_idle().await;
    }
    // In a task.
    let demanded = std::sync::atomic::AtomicBool::new(false);
    let world =
        World::choosing(Rules::default(), move |_| match demanded.swap(true, std::sync::atomic::Ordering::Relaxed) {
            false => Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]),
            true => Script::of([returns(1)]),
        });
    let both = json!({ "elicitation": { "url": {} }, "extensions": { EXTENSION: {} } });
    let id = world.handle(&Ask::call().declaring(both)).await;
    let update = Ask::task("tasks/update", &id).member("inputResponses", json!({ "r0": accept() }));
    assert_eq!(result_of(&world, &update).await["resultType"], "complete");
    check_done(&world.settled(&id).await["result"]);
    world.is_idle().await;
    // Undeclared.
    let world =
        World::with(Rules::mode(TaskMode::Never), Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]));
    let answer = world.send(&plain()).await;
    assert_eq!(answer.status, 400);
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"], json!({ "requiredCapabilities": { "elicitation": { "url": {} } } }));
    world.is_idle().await;
}

/// L6: its user has followed the address, and then cancelled the task at another gateway.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_repeated_after_a_cancel_at_another_gateway() {
    let demanded = std::sync::atomic::AtomicBool::new(false);
    let rules = Rules { durable: true, ..Rules::mode(TaskMode::Always) };
    let one = World::choosing(rules, move |_| match demanded.swap(true, std::sync::atomic::Ordering::Relaxed) {
        // What comes before the error has its position stored.
        false => Script::of([
            (seconds(1), Happens::Progress(1.0, "at work")),
            (seconds(3), Happens::FaultsWith(-32042, DEMAND)),
        ])
        .resumed(Resumes::Follows),
        true => Script::silent(),
    });
    one.store.is_deaf.store(true, std::sync::atomic::Ordering::Relaxed);
    let other = one.beside();
    let id = task(&one, Ask::call()).await;
    // Between two looks at what others write.
    tokio::time::sleep_until(one.started + millis(4_500)).await;
    let keys = asking(&one, &id).await;
    one.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), 3);
    let cancelled = async {
        tokio::time::sleep_until(one.started + millis(7_400)).await;
        other.engine.cancel(&key(&id)).await.unwrap();
    };
    tokio::join!(answer(&one, &id, &keys[0]), cancelled);
    tokio::time::sleep(seconds(10)).await;
    assert_eq!((one.upstream.begins(), one.get(&id).await["status"].as_str()), (1, Some("cancelled")));
    one.is_idle().await;
}

/// The server had the call before it asked for a capability, so no error may say that it did not run.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_when_the_call_is_repeated_may_have_run_it() {
    let demanded = std::sync::atomic::AtomicBool::new(false);
    let world = World::choosing(Rules::mode(TaskMode::Never), move |_| {
        match demanded.swap(true, std::sync::atomic::Ordering::Relaxed) {
            false => Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]),
            true => {
                let away = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);
                Script { refusal: Some(BeginError::Gateway(away)), ..Script::silent() }
            }
        }
    });
    let ask = Ask::call().declaring(json!({ "elicitation": { "url": {} } }));
    let asked = result_of(&world, &ask).await;
    let retry = again(&ask, &round(&asked), &[]).member("inputResponses", json!({ "r0": accept() }));
    let answer = world.send(&retry).await;
    assert_eq!(answer.status, 200);
    let error = answer.json().await["error"].take();
    assert_eq!(
        (&error["data"]["reason"], &error["data"]["executed"]),
        (&json!("upstream_unreachable"), &json!("unknown"))
    );
    world.is_idle().await;
}

/// GW-46: such an error is the outcome of a call under a key whose client cannot be asked, or has left; the call is not sent again.
#[tokio::test(start_paused = true)]
async fn a_demand_under_a_key_whose_client_cannot_be_asked_is_its_outcome() {
    for leaves in [false, true] {
        let script = Script::of([(seconds(2), Happens::FaultsWith(-32042, DEMAND))]);
        let world = World::with(Rules::mode(TaskMode::Never), script);
        let ask = plain().saying("io.taskgate/idempotency-key", "k");
        let ask = if leaves { ask.declaring(json!({ "elicitation": { "url": {} } })) } else { ask };
        if leaves {
            assert!(tokio::time::timeout(seconds(1), world.sending(&ask)).await.is_err());
        }
        for _ in 0..2 {
            let answer = world.send(&ask).await.json().await;
            assert_eq!(answer["error"]["code"], -32603, "{leaves} {answer}");
        }
        assert_eq!((world.age(), world.upstream.calls().len()), (seconds(2), 1), "{leaves}");
        world.is_idle().await;
    }
}
