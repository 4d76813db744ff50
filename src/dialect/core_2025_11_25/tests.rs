//! Golden texts of every shape and message, and tables of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::dialect::face_dialect::bad_cursor;
use crate::store::contract::task;
use crate::task::{
    Answer, Draft, Executed, Failure, GatewayFault, InputKey, Outcome, Phase, Question, Reason, TaskId, TreeLinks,
};
use crate::wire::progress::{self, ProgressView};
use crate::wire::{Message, RequestId, ScanLimits, envelope, rpc_error};

const ID: &str = "0123456789abcdef0123456789abcdef";

fn payload(text: &str) -> Payload {
    Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
}

fn params(text: &str) -> Object {
    Object::of(&payload(text)).unwrap()
}

/// Compares with a file under `tests/golden/core_2025_11_25`; `UPDATE_GOLDEN=1` writes it.
#[track_caller]
fn check_text(name: &str, text: &str) {
    let path = format!("{}/tests/golden/core_2025_11_25/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = format!("{text}\n");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(text, expected, "{name}");
}

#[track_caller]
fn check(name: &str, reply: TaskReply<'_>) {
    match CoreTasks::default().encode(reply) {
        Ok(result) => check_text(name, result.as_str()),
        Err(error) => check_text(name, Payload::of(&error).as_str()),
    }
}

fn in_phase(phase: Phase) -> Task {
    let mut one = task("local", u128::from_str_radix(ID, 16).unwrap());
    one.updated_at = one.created_at.after(Duration::from_millis(1500));
    one.phase = phase;
    one
}

fn returned(result: &str, is_error: bool) -> Task {
    in_phase(Phase::Settled(Outcome::Returned { result: payload(result), is_error }))
}

fn question(request: &str) -> Question {
    Question { ask: payload("7"), request: payload(request) }
}

fn faulted(failure: Failure) -> Task {
    in_phase(Phase::Settled(Outcome::Faulted(failure)))
}

/// L25-07, L25-10, L25-16 to L25-18, L25-20, L25-44, L25-45, T-01, T-02, T-63.
#[test]
fn every_status_is_as_its_golden_file() {
    let mut working = in_phase(Phase::Working);
    check("created", TaskReply::Created(&working));
    check("working", TaskReply::Snapshot(&working));
    working.status_message = Some(Arc::from("3/10"));
    check("working_with_message", TaskReply::Snapshot(&working));
    check("queued", TaskReply::Snapshot(&in_phase(Phase::Queued)));
    let open = BTreeMap::from([(InputKey(1), question(r#"{"method":"roots/list"}"#))]);
    check("input_required", TaskReply::Snapshot(&in_phase(Phase::AwaitingInput(open))));
    check("completed", TaskReply::Snapshot(&returned(r#"{"content":[{"type":"text","text":"not shown"}]}"#, false)));
    let blocks = r#"{"content":[{"type":"image","data":""},{"type":"text","text":"it broke\nhere"},{"type":"text","text":"b"}],"isError":true}"#;
    check("tool_error", TaskReply::Snapshot(&returned(blocks, true)));
    let mut wordless = returned(r#"{"content":[],"isError":true}"#, true);
    wordless.status_message = Some(Arc::from("9/10"));
    check("tool_error_without_text", TaskReply::Snapshot(&wordless));
    let upstream = RpcError { code: -32042, message: "broke".into(), data: Some(payload("[1.10]")) };
    check("failed", TaskReply::Snapshot(&faulted(Failure::Upstream(upstream))));
    let cancelled = in_phase(Phase::Settled(Outcome::Cancelled));
    check("cancelled", TaskReply::Cancelled { task: &cancelled, was_settled: false });
    let with_response = CoreTasks::default().with_immediate_response(Some(Arc::from("Wait \"a bit\".")));
    check_text(
        "created_with_words",
        with_response.encode(TaskReply::Created(&in_phase(Phase::Queued))).unwrap().as_str(),
    );
}

/// L25-22, L25-24 to L25-28, L25-37, T-06, T-08, T-14.
#[test]
fn every_outcome_is_as_its_golden_file() {
    let odd = r#"{"content":[], "n":12345678901234567890123,"_meta":{"a/b":1.10}}"#;
    check("outcome", TaskReply::Outcome(&returned(odd, false)));
    check("outcome_empty", TaskReply::Outcome(&returned("{ }", false)));
    check("outcome_tool_error", TaskReply::Outcome(&returned(r#"{"content":[],"isError":true}"#, true)));
    let upstream = RpcError { code: -32042, message: "broke".into(), data: Some(payload("[1.10]")) };
    check("outcome_error", TaskReply::Outcome(&faulted(Failure::Upstream(upstream))));
    let gateway = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
    check("outcome_gateway", TaskReply::Outcome(&faulted(Failure::Gateway(gateway))));
    let cancelled = in_phase(Phase::Settled(Outcome::Cancelled));
    check("outcome_cancelled", TaskReply::Outcome(&cancelled));
    check("cancelled_too_late", TaskReply::Cancelled { task: &cancelled, was_settled: true });
}

/// L25-33, L25-34.
#[test]
fn pages_are_as_their_golden_files() {
    let tasks = [Phase::Working, Phase::Settled(Outcome::Cancelled)].map(|phase| Summary::of(&in_phase(phase)));
    check("page", TaskReply::Listed { tasks: &tasks, next: Some("c-1") });
    check("page_last", TaskReply::Listed { tasks: &[], next: None });
}

/// FIL-03 to FIL-07, T-41: a criterion is read beside the cursor and in `filter`; beside the cursor wins.
#[test]
fn criteria_are_read_in_either_place() {
    use crate::task::{ListDirection, ListFilter, OrderedBy, PhaseKind, TimeRange, Timestamp};
    let read = |text: &str| list_filter(&params(text)).unwrap();
    for without in ["{}", r#"{"cursor":"c"}"#, r#"{"filter":{}}"#, r#"{"filter":{"colour":"red"},"limit":7}"#] {
        assert_eq!(read(without), None, "{without}");
    }
    let all = ListFilter::default();
    let millis = Timestamp::from_millis;
    let rows = [
        (r#""order":"desc""#, all.clone()),
        (r#""orderBy":"lastUpdatedAt","colour":1"#, all.clone()),
        (r#""methods":["a/b","tools/call"]"#, all.clone()),
        (r#""methods":["sampling/createMessage"]"#, ListFilter { phases: [].into(), ..all.clone() }),
        (r#""methods":[]"#, ListFilter { phases: [].into(), ..all.clone() }),
        (r#""status":[]"#, ListFilter { phases: [].into(), ..all.clone() }),
        (
            r#""status":["working","cancelled","working"]"#,
            ListFilter { phases: [PhaseKind::Queued, PhaseKind::Working, PhaseKind::Cancelled].into(), ..all.clone() },
        ),
        (
            r#""status":["failed"]"#,
            ListFilter {
                phases: [PhaseKind::ReturnedError, PhaseKind::Refused, PhaseKind::Faulted].into(),
                ..all.clone()
            },
        ),
        (
            r#""status":["completed","input_required"]"#,
            ListFilter { phases: [PhaseKind::Returned, PhaseKind::AwaitingInput].into(), ..all.clone() },
        ),
        (r#""taskIds":[]"#, ListFilter { ids: Some([].into()), ..all.clone() }),
        (
            r#""taskIds":["nobody's","0123456789abcdef0123456789abcdef"]"#,
            ListFilter { ids: Some([TaskId::parse(ID).unwrap()].into()), ..all.clone() },
        ),
        (
            r#""createdAfter":"1970-01-01T00:00:01Z","createdBefore":"1970-01-01T00:00:02.0001Z""#,
            ListFilter { created: TimeRange { from: millis(1_001), until: millis(2_001) }, ..all.clone() },
        ),
        (
            r#""lastUpdatedAfter":"1969-01-01T00:00:01Z","lastUpdatedBefore":"1970-01-01T01:00:02+01:00""#,
            ListFilter { updated: TimeRange { from: millis(0), until: millis(2_000) }, ..all.clone() },
        ),
        (
            r#""orderBy":"createdAt","order":"asc""#,
            ListFilter { by: OrderedBy::Creation, direction: ListDirection::OldestFirst, ..all.clone() },
        ),
    ];
    for (text, filter) in rows {
        assert_eq!(read(&format!("{{{text}}}")).as_ref(), Some(&filter), "{text}");
        assert_eq!(read(&format!(r#"{{"filter":{{{text}}},"cursor":"c"}}"#)).as_ref(), Some(&filter), "{text}");
    }
    let both = r#"{"filter":{"order":7,"orderBy":"createdAt"},"order":"asc"}"#;
    let filter = ListFilter { by: OrderedBy::Creation, direction: ListDirection::OldestFirst, ..all };
    assert_eq!(read(both), Some(filter));
}

/// FIL-01, FIL-02.
#[test]
fn the_capability_names_every_criterion_that_is_read() {
    check_text("capability_filtered", CoreTasks::capability(ListSupport::Filtered).as_str());
}

fn check_message(name: &str, message: &Bytes) {
    check_text(name, std::str::from_utf8(message).unwrap());
}

/// L25-14, L25-27, L25-31, L25-32, L25-46, T-59.
#[test]
fn every_message_is_as_its_golden_file() {
    let id = RequestId::text("tg:1");
    let task = in_phase(Phase::Working);
    let related = RelatedTask::of(task.key.id, None);
    let ask = |request: &str| related.question(InputKey(2), &question(request), &id).unwrap();
    check_message("question", &ask(r#"{"method":"roots/list"}"#));
    let form =
        r#"{"method":"elicitation/create","params":{"message":"Who?", "n":1.10,"task":{"ttl":1},"_meta":{"k":1}}}"#;
    check_message("question_form", &ask(form));
    let address = r#"{"method":"elicitation/create","params":{"mode":"url","url":"https://a.example/"}}"#;
    check_message("question_address", &ask(address));
    let named = r#"{"method":"elicitation/create","params":{"mode":"url","elicitationId":"e"}}"#;
    check_message("question_address_named", &ask(named));
    check_message("question_withdrawn", &related.withdrawn(&id));
    check_message("status", &CoreTasks::default().status_notification(&Summary::of(&task)));
    let (half, whole) = (payload("0.50"), payload("1"));
    let step = ProgressView { progress: &half, total: Some(&whole), message: Some("half") };
    check_message("progress", &progress::notification(&payload("\"token\""), step, Some(&related.meta())));
    check_message("log", &related.log(&payload(r#"{"level":"info","data":1.10}"#)));
    assert_eq!(related.question(InputKey(0), &question("7"), &id), None);
}

/// A task that is both a child and a parent.
fn in_tree(phase: Phase) -> Task {
    let id = TaskId::from_bits;
    let tree = TreeLinks { parent: Some(id(3)), children: Arc::from([id(9), id(4)]) };
    Task { tree, ..in_phase(phase) }
}

/// SUB-01 to SUB-04, SUB-09 to SUB-11: every Task object names its parent and, in order, its children; messages about a child
/// name its parent.
#[test]
fn tasks_of_a_tree_are_as_their_golden_files_where_subtasks_are_on() {
    let codec = CoreTasks::with_drafts([Draft::Sep2268].into_iter().collect());
    let (task, ended) = (in_tree(Phase::Working), Task { tree: in_tree(Phase::Working).tree, ..returned("{}", false) });
    let text = |reply| codec.encode(reply).unwrap();
    check_text("tree_created", text(TaskReply::Created(&task)).as_str());
    check_text("tree_working", text(TaskReply::Snapshot(&task)).as_str());
    let leaves =
        |task: &Task| Task { tree: TreeLinks { children: Arc::default(), ..task.tree.clone() }, ..task.clone() };
    let tasks = [Summary::of(&leaves(&task)), Summary::of(&in_phase(Phase::Working))];
    check_text("tree_page", text(TaskReply::Listed { tasks: &tasks, next: None }).as_str());
    check_text("tree_outcome", text(TaskReply::Outcome(&ended)).as_str());
    check_message("tree_status", &codec.status_notification(&Summary::of(&task)));
    let (id, related) = (RequestId::text("tg:1"), codec.related(&task));
    let asked = related.question(InputKey(2), &question(r#"{"method":"roots/list"}"#), &id).unwrap();
    check_message("tree_question", &asked);
    check_message("tree_question_withdrawn", &related.withdrawn(&id));
    check_message("tree_log", &related.log(&payload(r#"{"level":"info","data":1.10}"#)));
    assert_ne!(
        codec.notice(&Summary::of(&task)),
        codec.notice(&Summary::of(&leaves(&task))),
        "a new child is worth a notification"
    );
}

/// With another draft alone, every text is as for a task without a tree.
#[test]
fn a_tree_is_not_named_where_subtasks_are_off() {
    let codec = CoreTasks::with_drafts([Draft::Sep1686, Draft::Sep1904].into_iter().collect());
    let results = [Phase::Working, returned("{}", false).phase];
    for (alone, task) in results.map(|phase| (in_phase(phase.clone()), in_tree(phase))) {
        let said = |task: &Task| {
            let list = [Summary::of(task)];
            [
                TaskReply::Created(task),
                TaskReply::Snapshot(task),
                TaskReply::Outcome(task),
                TaskReply::Cancelled { task, was_settled: false },
                TaskReply::Listed { tasks: &list, next: None },
            ]
            .map(|reply| codec.encode(reply))
        };
        assert_eq!(said(&task), said(&alone));
        assert_eq!(codec.status_notification(&Summary::of(&task)), codec.status_notification(&Summary::of(&alone)));
        assert_eq!(codec.notice(&Summary::of(&task)), codec.notice(&Summary::of(&alone)));
        assert_eq!(codec.related(&task), codec.related(&alone));
    }
}

#[test]
fn every_golden_file_is_compared() {
    let dir = format!("{}/tests/golden/core_2025_11_25", env!("CARGO_MANIFEST_DIR"));
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 39);
}

/// L25-29: a repeated `task` and a related task in `_meta` are ignored.
#[test]
fn each_method_asks_for_its_command() {
    let id = TaskId::parse(ID).unwrap();
    let decode = |method, text: &str| CoreTasks::default().decode(method, &params(text));
    let other = r#""task":{"ttl":-1},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"other"}}"#;
    let named = format!(r#"{{"taskId":"{ID}",{other}}}"#);
    assert_eq!(decode(method::TASKS_GET, &named), Ok(TaskCommand::Get(id)));
    assert_eq!(decode(method::TASKS_RESULT, &named), Ok(TaskCommand::Await(id)));
    assert_eq!(decode(method::TASKS_CANCEL, &named), Ok(TaskCommand::Cancel(id)));
    assert_eq!(decode(method::TASKS_LIST, &format!("{{{other}}}")), Ok(TaskCommand::List(None)));
    assert_eq!(decode(method::TASKS_LIST, r#"{"cursor":""}"#), Ok(TaskCommand::List(Some(String::new()))));
    assert_eq!(decode(method::TASKS_LIST, r#"{"cursor":null}"#), Ok(TaskCommand::List(None)), "B206");
    assert_eq!(decode(method::TASKS_LIST, r#"{"cursor":7}"#), Err(bad_cursor()), "L25-36");
    assert_eq!(decode(method::TASKS_GET, r#"{"taskId":"gate-test"}"#), Err(RequestError::UnknownTask), "L25-41");
    assert!(matches!(decode(method::TASKS_GET, r#"{"task":{"taskId":"x"}}"#), Err(RequestError::Params(_))));
    assert!(matches!(decode(method::TASKS_UPDATE, &named), Err(RequestError::UnknownMethod(_))));
    let all = [method::TASKS_GET, method::TASKS_RESULT, method::TASKS_LIST, method::TASKS_CANCEL];
    assert!(all.into_iter().all(CoreTasks::is_method) && !CoreTasks::is_method(method::TASKS_UPDATE));
}

/// L25-57, T-69.
#[test]
fn a_wish_is_read_and_capped() {
    let (default, max) = (Duration::from_secs(60), Duration::from_secs(100));
    for (task, ttl) in [
        ("{}", Some(60_000)),
        (r#"{"ttl":0}"#, Some(0)),
        (r#"{"ttl":5000}"#, Some(5_000)),
        (r#"{"ttl":2.5e3}"#, Some(2_500)),
        (r#"{"ttl":100001}"#, Some(100_000)),
        (r#"{"ttl":1e300}"#, Some(100_000)),
        (r#"{"ttl":99999999999999999999999}"#, Some(100_000)),
        (r#"{"ttl":null}"#, Some(100_000)),
        ("null", None),
        ("true", None),
        ("[]", None),
    ] {
        let wish = RequestedTtl::read(&params(&format!(r#"{{"name":"t","task":{task}}}"#))).unwrap();
        assert_eq!(wish.map(|wish| millis(wish.ttl(default, max))), ttl, "{task}");
    }
    for wrong in ["-1", "-0.5", "\"60\"", "{}", "[1]", "true"] {
        let read = RequestedTtl::read(&params(&format!(r#"{{"task":{{"ttl":{wrong}}}}}"#)));
        assert!(matches!(&read, Err(RequestError::Params(what)) if what.contains("ttl")), "{wrong}: {read:?}");
    }
    assert_eq!(RequestedTtl::read(&params("{}")), Ok(None));
}

/// T-37, T-46: the handle is also a result with `content`; every other text is 2025-11-25's.
#[test]
fn a_handle_for_both_is_as_its_golden_file() {
    let task = in_phase(Phase::Working);
    let hybrid =
        |text: Option<&str>| HybridTasks::over(CoreTasks::default().with_immediate_response(text.map(Arc::from)));
    let handle = |text| hybrid(text).encode(TaskReply::Created(&task)).unwrap();
    check_text("created_for_both", handle(None).as_str());
    check_text("created_for_both_with_words", handle(Some("Wait \"a bit\".")).as_str());
    let ended = returned(r#"{"content":[],"n":1.10}"#, false);
    for reply in [
        TaskReply::Snapshot(&task),
        TaskReply::Outcome(&ended),
        TaskReply::Cancelled { task: &ended, was_settled: true },
        TaskReply::Listed { tasks: &[Summary::of(&task)], next: None },
        TaskReply::Answered,
    ] {
        assert_eq!(hybrid(None).encode(reply), CoreTasks::default().encode(reply), "{reply:?}");
    }
    let get = params(&format!(r#"{{"taskId":"{ID}"}}"#));
    assert_eq!(HybridTasks::default().decode(method::TASKS_GET, &get), Ok(TaskCommand::Get(task.key.id)));
}

/// T-37: recognised by its shape, in sessions of every version; a draft key without a wish is ignored.
#[test]
fn a_task_request_is_read_in_either_place_and_any_other_member_is_none() {
    let minute = Some(RequestedTtl::For(Duration::from_secs(60)));
    let key = r#""_meta":{"modelcontextprotocol.io/task":"#;
    let wishes = |text: &str, mode| {
        [ProtocolVersion::V2024_11_05, ProtocolVersion::V2025_06_18, ProtocolVersion::V2025_11_25]
            .map(|version| HybridTasks::wish(&params(text), mode, version))
    };
    for (text, wish) in [
        (r#"{"task":{"ttl":60000}}"#.to_owned(), minute),
        (r#"{"task":{}}"#.to_owned(), Some(RequestedTtl::Default)),
        (format!("{{{key}{{\"ttl\":60000}}}}}}"), minute),
        (format!("{{{key}{{\"ttl\":null}}}}}}"), Some(RequestedTtl::Longest)),
        (format!("{{\"task\":{{}},{key}{{\"ttl\":60000}}}}}}"), Some(RequestedTtl::Default)),
        (format!("{{{key}{{\"ttl\":60000,\"taskId\":\"a\"}}}}}}"), None),
        (format!("{{{key}{{\"keepAlive\":1}}}}}}"), None),
        (format!("{{{key}{{}}}}}}"), None),
        (format!("{{{key}null}}}}"), None),
        ("{}".to_owned(), None),
    ] {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            for found in wishes(&text, mode) {
                assert_eq!(found, Ok(wish), "{text}");
            }
        }
    }
    for text in [r#"{"task":{"ttl":"60"}}"#.to_owned(), format!("{{{key}{{\"ttl\":-1}}}}}}")] {
        assert!(
            wishes(&text, TaskMode::Auto).iter().all(|read| matches!(read, Err(RequestError::Params(_)))),
            "{text}"
        );
        assert_eq!(wishes(&text, TaskMode::Never)[0], Ok(None), "a plain call in this version, with any name");
    }
    let meta = format!("{{{key}{{\"ttl\":1}}}}}}");
    assert_eq!(wishes(&meta, TaskMode::Never), [Ok(None), Ok(None), Ok(None)]);
    assert_eq!(wishes(r#"{"task":{}}"#, TaskMode::Never), [Ok(None), Ok(None), Err(RequestError::TakesNoTask)]);
    assert_eq!(wishes("{}", TaskMode::Required), [Ok(None), Ok(None), Err(RequestError::NeedsTask)]);
}

/// L25-04, L25-05, L25-65, T-09, T-79.
#[test]
fn a_tool_is_called_as_its_rules_say_or_not_at_all() {
    let wish = |with_task, mode| {
        let text = if with_task { r#"{"task":{}}"# } else { "{}" };
        CoreTasks::wish(&params(text), mode)
    };
    for (mode, support, plain, as_task) in [
        (TaskMode::Never, "forbidden", Ok(None), Err(RequestError::TakesNoTask)),
        (TaskMode::Auto, "optional", Ok(None), Ok(Some(RequestedTtl::Default))),
        (TaskMode::Always, "optional", Ok(None), Ok(Some(RequestedTtl::Default))),
        (TaskMode::Required, "required", Err(RequestError::NeedsTask), Ok(Some(RequestedTtl::Default))),
    ] {
        assert_eq!(CoreTasks::support(mode), support);
        assert_eq!(wish(false, mode), plain, "{mode:?}");
        assert_eq!(wish(true, mode), as_task, "{mode:?}");
    }
    for complaint in [RequestError::NeedsTask, RequestError::TakesNoTask] {
        assert_eq!(complaint.to_error(ProtocolVersion::NEWEST_SESSION).code, rpc_error::METHOD_NOT_FOUND);
    }
}

/// L25-01, L25-02, L25-54, T-22, T-43, T-75.
#[test]
fn the_offered_methods_are_the_served_ones() {
    let capability = |lists| CoreTasks::capability(lists).as_str().to_owned();
    assert_eq!(capability(ListSupport::Served), r#"{"requests":{"tools":{"call":{}}},"cancel":{},"list":{}}"#);
    assert_eq!(capability(ListSupport::Withheld), r#"{"requests":{"tools":{"call":{}}},"cancel":{}}"#);
    let offered: Vec<_> = ProtocolVersion::ALL.into_iter().filter(|v| CoreTasks::are_offered_in(*v)).collect();
    assert_eq!(offered, [ProtocolVersion::V2025_11_25]);
}

#[track_caller]
fn check_answer(message: &str, expected: &Answer) {
    let text = Bytes::copy_from_slice(message.as_bytes());
    match envelope::read(&text, ScanLimits::CLIENT) {
        Ok(Message::Response(response)) => {
            assert_eq!(RelatedTask::of(TaskId::from_bits(1), None).answer(response), *expected, "{message}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_lose_the_related_task_and_nothing_else() {
    let result = |text: &str| Answer::Result(payload(text));
    let related = r#""io.modelcontextprotocol/related-task":{"taskId":"x"}"#;
    let answer = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":"tg:1","result":{result}}}"#);
    check_answer(&answer(r#"{"action":"accept", "n":1.10}"#), &result(r#"{"action":"accept", "n":1.10}"#));
    check_answer(&answer(&format!(r#"{{"a":1,"_meta":{{{related}}}}}"#)), &result(r#"{"a":1}"#));
    check_answer(&answer(&format!(r#"{{"_meta":{{{related},"k":1}}}}"#)), &result(r#"{"_meta":{"k":1}}"#));
    check_answer(&answer("7"), &Answer::Error(crate::dialect::faults::unusable_answer()));
    let refused = r#"{"jsonrpc":"2.0","id":"tg:1","error":{"code":-1,"message":"no"}}"#;
    check_answer(refused, &Answer::Error(RpcError::new(-1, "no")));
}
