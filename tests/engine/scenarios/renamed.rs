//! Calls across processes between which the operator renames tools.

use std::sync::Arc;

use taskgate::engine::CallEvent;
use taskgate::engine::recovery::{self, CallTargets};
use taskgate::face::tool_renames::ToolRenamer;
use taskgate::task::{
    AfterCrash, Failure, GatewayFault, NamePattern, NameRule, Outcome, Phase, Plan, Principal, Reason, TaskKey,
    ToolNames,
};
use taskgate::upstream::{Upstream, UpstreamRequest};
use tokio_util::sync::CancellationToken;
use wildmatch::WildMatch;

use super::lives::Mortal;
use super::rules::Rules;
use super::script::{Script, payload};
use super::world::{World, seconds};

/// The upstream of a world with one tool under another name.
fn named(world: &World, renamed: Option<(&str, &str)>) -> Arc<dyn Upstream> {
    let pattern = |text| NamePattern::parse(text).unwrap();
    let rule = |(from, to)| (WildMatch::new(from), NameRule::Renamed { from: pattern(from), to: pattern(to) });
    let names = ToolNames::new(renamed.map(rule).into_iter().collect());
    let upstream = Arc::new(Mortal::new(&world.upstream, &world.life, true));
    ToolRenamer::upstream(
        ToolRenamer::new(names, &Rules::default().service().rules, Arc::from("scripted"), 1 << 20).as_ref(),
        upstream,
    )
}

fn origins(world: &World, upstream: Arc<dyn Upstream>) -> CallTargets {
    CallTargets::new([world.target(upstream)])
}

/// A task of the tool that clients know as `job`.
async fn job(world: &World, upstream: Arc<dyn Upstream>) -> TaskKey {
    let spec = world.spec(Plan::Task, &Principal::local());
    let params = Some(payload(r#"{"name":"job","arguments":{}}"#));
    let request = UpstreamRequest { params, ..spec.request };
    let mut stream =
        world.engine.call(taskgate::engine::CallSpec { upstream, request, tool: Arc::from("job"), ..spec });
    loop {
        match stream.next().await {
            Some(CallEvent::Created(task)) => return task.key.clone(),
            Some(_) => (),
            None => panic!("no task"),
        }
    }
}

/// A call is sent again to the tool that was called, or not at all.
#[tokio::test(start_paused = true)]
async fn a_call_is_never_sent_again_to_a_tool_that_got_its_name_since() {
    let rules = Rules { durable: true, after_crash: AfterCrash::Rerun, ..Rules::DEFAULT };
    for (before, now, sent_again) in [
        (Some(("work", "job")), Some(("work", "job")), true),
        // Clients know the one that was called by another name, and it is still there.
        (Some(("work", "job")), None, true),
        (Some(("work", "job")), Some(("other", "job")), false),
        (Some(("work", "job")), Some(("job", "work")), false),
        (None, Some(("other", "job")), false),
        (None, Some(("other", "another")), true),
    ] {
        let world = World::with(rules, Script::silent());
        let key = job(&world, named(&world, before)).await;
        tokio::time::sleep(seconds(3)).await;
        let world = world.next_life();
        let origins = origins(&world, named(&world, now));
        recovery::run(Arc::clone(&world.engine), origins, CancellationToken::new()).await;
        tokio::time::sleep(seconds(3)).await;
        let called: Vec<_> = world.upstream.calls().into_iter().map(|call| call.params).collect();
        assert_eq!(called.len(), 1 + usize::from(sent_again), "{before:?} {now:?} {called:?}");
        assert!(called.iter().all(|params| *params == called[0]), "{before:?} {now:?} {called:?}");
        let phase = world.task(&key).await.phase.clone();
        let fault =
            if let Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) = &phase { Some(*fault) } else { None };
        let lost = GatewayFault::new(Reason::GatewayRestart, taskgate::task::Executed::Unknown);
        assert_eq!(fault, (!sent_again).then_some(lost), "{before:?} {now:?} {phase:?}");
    }
}
