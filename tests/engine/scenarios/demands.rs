//! Errors that demand elicitations, of 2025-11-25 upstreams (T-49).

use serde_json::json;
use taskgate::task::TaskMode;

use super::rounds::{EXTENSION, accept, again, answers, check_done, plain, result_of, returns, round};
use super::script::{Happens, Script};
use super::world::{Ask, Rules, World, seconds};

/// T-49: an error that demands elicitations is read as questions, and the call is made again after them.
#[tokio::test(start_paused = true)]
async fn t_49_a_demand_is_asked_and_the_call_repeated_once_it_is_met() {
    const DEMAND: &str =
        r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"go"}]}"#;
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
