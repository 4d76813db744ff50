//! The operators' view: `/tasks` of the admin listener, and `taskgate tasks`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::program::{Call, Folder, Program, Worker, block, send};

async fn started() -> (Worker, Folder, Program) {
    let worker = Worker::start().await;
    let folder = Folder::new();
    folder.write(&format!("{}{}", block("up", &worker.server), block("other", &worker.server)));
    let program = Program::serve(&folder).await;
    (worker, folder, program)
}

fn tasks(answer: &Value) -> &Vec<Value> {
    answer["tasks"].as_array().unwrap()
}

async fn operate(program: &Program, arguments: &[&str]) -> (Option<i32>, String, String) {
    program.operate(&[&["tasks"], arguments].concat()).await
}

/// B165.
#[tokio::test]
async fn b165_the_list_has_digests_and_states_and_never_an_id_an_argument_or_a_result() {
    let (worker, _folder, program) = started().await;
    let id = program.task("/up/mcp", "hush-hush").await;
    worker.calls(1).await;
    let list = program.get("/tasks").await;
    let listed = list.json();
    let entry = &tasks(&listed)[0];
    let names: BTreeSet<&str> = entry.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = ["created_at", "expires_at", "principal", "ref", "state", "tool", "updated_at", "upstream"];
    assert_eq!(names, BTreeSet::from(expected));
    assert_eq!(
        (&entry["upstream"], &entry["tool"], &entry["state"]),
        (&"up".into(), &"work".into(), &"working".into())
    );
    worker.answer_all();
    program.until("/up/mcp", &id, "completed").await;
    let reference = entry["ref"].as_str().unwrap();
    let shown = program.get(&format!("/tasks/{reference}")).await;
    assert_eq!(shown.json()["state"], "completed");
    for page in [&list, &program.get("/tasks").await, &shown, &program.get("/").await] {
        assert_eq!(page.status, 200);
        for secret in [id.as_str().unwrap(), "hush", "secret", "done", "\"local\""] {
            assert!(!page.body.contains(secret), "{secret} in {}", page.body);
        }
    }
}

/// They are no tasks, so no list of tasks has them.
#[tokio::test]
async fn calls_of_clients_without_tasks_are_counted_and_listed() {
    let (worker, _folder, program) = started().await;
    let call = Call::plain(&json!({"key": "hush-hush"}));
    let looking = async {
        worker.calls(1).await;
        program.task("/up/mcp", "k").await;
        worker.calls(2).await;
        let (listed, page) = (program.get("/calls").await, program.get("/").await.body);
        let calls = listed.json();
        let one = &calls["calls"][0];
        assert_eq!((&calls["count"], &one["upstream"], &one["tool"]), (&1.into(), &"up".into(), &"work".into()));
        assert!(one["age_seconds"].is_u64() && one["principal"].is_string(), "{one}");
        assert!(page.contains("calls: 1 held for clients without tasks\n  up  work  "), "{page}");
        assert!(!listed.body.contains("hush") && !page.contains("hush"), "{page}");
        worker.answer_all();
    };
    let (answer, ()) = tokio::join!(call.send(program.clients, "/up/mcp"), looking);
    assert!(answer.body.contains("done"), "{answer:?}");
}

#[tokio::test]
async fn a_list_is_bounded_paged_newest_first_and_filtered() {
    let (worker, _folder, program) = started().await;
    for n in 0..7 {
        program.task(if n < 5 { "/up/mcp" } else { "/other/mcp" }, &format!("k{n}")).await;
    }
    worker.calls(7).await;
    let all = program.get("/tasks").await.json();
    let times: Vec<&str> = tasks(&all).iter().map(|task| task["created_at"].as_str().unwrap()).collect();
    assert!(times.len() == 7 && times.is_sorted_by(|a, b| a >= b), "{times:?}");
    let (mut seen, mut after, mut sizes) = (BTreeSet::new(), String::new(), Vec::new());
    for _ in 0..4 {
        let page = program.get(&format!("/tasks?limit=3{after}")).await.json();
        sizes.push(tasks(&page).len());
        seen.extend(tasks(&page).iter().map(|task| task["ref"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!((sizes, seen.len()), (vec![3, 3, 1], 7));
    for (query, count) in [("upstream=up", 5), ("upstream=other&state=working", 2), ("state=failed", 0)] {
        assert_eq!(tasks(&program.get(&format!("/tasks?{query}")).await.json()).len(), count, "{query}");
    }
    for query in ["limit=0", "limit=5000", "state=x", "owner=local", "after=x", "principal=a&who=b"] {
        assert_eq!(program.get(&format!("/tasks?{query}")).await.status, 400, "{query}");
    }
    assert_eq!(program.get("/tasks/000000000000").await.status, 404);
    assert_eq!(program.get("/tasks/../metrics").await.status, 404);
}

#[tokio::test]
async fn a_cancelled_task_is_settled_and_its_upstream_is_told() {
    let (worker, _folder, program) = started().await;
    let id = program.task("/up/mcp", "k").await;
    worker.calls(1).await;
    let (code, table, _) = operate(&program, &["list"]).await;
    assert_eq!(code, Some(0));
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[1..4], ["working", "up", "work"], "{table}");
    assert!(!table.contains(id.as_str().unwrap()));
    let (code, shown, _) = operate(&program, &["show", row[0]]).await;
    assert!(code == Some(0) && shown.contains("state     working\n"), "{shown}");
    let (code, shown, _) = operate(&program, &["cancel", row[0]]).await;
    assert!(code == Some(0) && shown.contains("state     cancelled\n"), "{shown}");
    assert_eq!(program.status("/up/mcp", &id).await, "cancelled");
    worker.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    let (code, _, why) = operate(&program, &["cancel", row[0]]).await;
    assert_eq!((code, why.trim()), (Some(1), "taskgate: the task has ended: it is cancelled"));
    let (code, _, why) = operate(&program, &["show", "000000000000"]).await;
    assert_eq!((code, why.trim()), (Some(1), "taskgate: no task has this reference"));
    let (code, _, said) = operate(&program, &["list", "--state", "Working"]).await;
    assert!(code == Some(64) && said.contains("[possible values: queued, working, "), "{code:?} {said}");
    let (code, _, said) = operate(&program, &["list", "--upstream", "nosuch", "--state", "working"]).await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "taskgate: there is no task with upstream \"nosuch\", state \"working\"\n")
    );
    let (code, table, _) = operate(&program, &["list", "--state", "working"]).await;
    assert_eq!((code, table.lines().count()), (Some(0), 1));
}

/// L25-61: by digests, the same as in the list of tasks. At the default level there is one line for a task.
#[tokio::test]
async fn l25_61_creation_end_and_retrieval_are_logged_with_the_tasks_owner() {
    let (worker, folder, quiet) = started().await;
    let id = quiet.task("/up/mcp", "k").await;
    worker.calls(1).await;
    worker.answer_all();
    quiet.until("/up/mcp", &id, "completed").await;
    quiet.says("task settled", 1).await;
    assert_eq!(quiet.log().lines().filter(|line| line.contains("\"principal\"")).count(), 1, "{}", quiet.log());
    let mut command = folder.command();
    command.env("TASKGATE_LOG", "info,taskgate=debug");
    let program = Program::launch(command).await;
    let id = program.task("/up/mcp", "k").await;
    worker.calls(2).await;
    let list = program.get("/tasks").await.json();
    let principal = tasks(&list)[0]["principal"].as_str().unwrap().to_owned();
    let reference = tasks(&list)[0]["ref"].as_str().unwrap().to_owned();
    worker.answer_all();
    program.until("/up/mcp", &id, "completed").await;
    for event in ["a call became a task", "task settled", "an outcome was read"] {
        program.says(event, 1).await;
        let log = program.log();
        let line = log.lines().find(|line| line.contains(event)).unwrap();
        let fields: Value = serde_json::from_str(line).unwrap();
        assert_eq!(fields["fields"]["principal"], principal.as_str(), "{line}");
        assert!(line.contains(&reference), "{line}");
        assert!(!line.contains(id.as_str().unwrap()) && !line.contains("\"local\""), "{line}");
    }
}

/// A client reports its task's id; the operator finds the task by it, and sees its reference.
#[tokio::test]
async fn a_task_is_found_by_its_id_too_and_a_long_list_says_on_stderr_that_it_is_cut() {
    let (worker, _folder, program) = started().await;
    let id = program.task("/up/mcp", "k").await;
    program.task("/up/mcp", "l").await;
    worker.calls(2).await;
    let (code, table, said) = operate(&program, &["list", "--limit", "1"]).await;
    assert_eq!((code, table.lines().count(), said.contains("there are more")), (Some(0), 2, true), "{table}{said}");
    let (_, listed, said) = operate(&program, &["list", "--limit", "1", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap().as_array().unwrap().len(), 1, "{listed}");
    assert!(said.contains("there are more"), "{said}");
    let (code, shown, _) = operate(&program, &["show", id.as_str().unwrap(), "--json"]).await;
    let task: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &task["state"], &task["client"]), (Some(0), &"working".into(), &"stateless".into()), "{shown}");
    let whose = task["principal"].as_str().unwrap();
    for (principal, rows) in [(whose, 3), ("somebody", 1)] {
        let (_, table, _) = operate(&program, &["list", "--principal", principal]).await;
        assert_eq!(table.lines().count(), rows, "{principal}: {table}");
    }
    let (code, shown, _) = operate(&program, &["show", id.as_str().unwrap()]).await;
    assert!(code == Some(0) && shown.contains("state     working\n") && shown.contains(" bytes\n"), "{shown}");
    assert!(!shown.contains(id.as_str().unwrap()), "{shown}");
    let (code, shown, _) = operate(&program, &["cancel", id.as_str().unwrap()]).await;
    assert!(code == Some(0) && shown.contains("state     cancelled\n"), "{shown}");
    let (code, _, why) = operate(&program, &["show", &"0".repeat(32)]).await;
    assert_eq!((code, why.trim()), (Some(1), "taskgate: no task has this reference"));
    assert!(!program.log().contains(id.as_str().unwrap()), "{}", program.log());
}

#[tokio::test]
async fn several_tasks_are_cancelled_by_name_or_as_all_of_a_principal() {
    let (worker, _folder, program) = started().await;
    for key in ["a", "b", "c", "d"] {
        program.task("/up/mcp", key).await;
    }
    worker.calls(4).await;
    let list = program.get("/tasks").await.json();
    let references: Vec<&str> = tasks(&list).iter().map(|task| task["ref"].as_str().unwrap()).collect();
    let (code, said, _) = operate(&program, &["cancel", references[0], references[1]]).await;
    assert_eq!((code, said.as_str()), (Some(0), "cancelled: 2\n"));
    let (code, said, why) = operate(&program, &["cancel", references[1], references[2]]).await;
    assert_eq!((code, said.as_str()), (Some(1), ""));
    let ended = format!("taskgate: {}: the task has ended: it is cancelled\n", references[1]);
    assert_eq!(why, format!("{ended}taskgate: 1 of 2 tasks were cancelled\n"));
    // `local` is the principal's whole name, as the audit has it.
    let all = ["cancel", "--principal", "local"];
    let (code, _, why) = operate(&program, &all).await;
    assert_eq!((code, why.contains("add --yes")), (Some(64), true), "{why}");
    let (code, said, _) = operate(&program, &[&all[..], &["--upstream", "other", "--yes"]].concat()).await;
    assert_eq!((code, said.as_str()), (Some(1), ""));
    let (code, said, _) = operate(&program, &[&all[..], &["--yes"]].concat()).await;
    assert_eq!((code, said.as_str()), (Some(0), "cancelled: 1\n"));
    let (code, _, why) = operate(&program, &[&all[..], &["--yes"]].concat()).await;
    assert_eq!((code, why.trim()), (Some(1), "taskgate: no such task is unsettled; nothing was cancelled"));
}

#[tokio::test]
async fn the_status_page_is_a_command() {
    let (worker, _folder, program) = started().await;
    program.task("/up/mcp", "k").await;
    worker.calls(1).await;
    let (code, text, _) = program.operate(&["status"]).await;
    assert_eq!((code, text), (Some(0), program.get("/").await.body));
    let (code, text, _) = program.operate(&["status", "--json"]).await;
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &status["ready"], &status["tasks"]["unsettled"]), (Some(0), &true.into(), &1.into()), "{text}");
}

/// GW-39: this is how the poisonous are found.
#[tokio::test]
async fn tasks_are_found_by_the_reason_for_which_they_failed() {
    let worker = Worker::start().await;
    let folder = Folder::new();
    // The call is sent before: the session is open, and the machine may be busy.
    let keys = "deadline = \"10s\"\n";
    folder.write(&format!("{}{keys}", block("up", &worker.server)));
    let program = Program::serve(&folder).await;
    assert_eq!(Call::new("tools/list", &json!({})).send(program.clients, "/up/mcp").await.status, 200);
    let id = program.task("/up/mcp", "k").await;
    program.until("/up/mcp", &id, "failed").await;
    for (reason, count) in [("deadline_exceeded", 1), ("poison", 0)] {
        let list = program.get(&format!("/tasks?state=failed&reason={reason}")).await.json();
        assert_eq!(tasks(&list).len(), count, "{reason}");
        let (code, table, _) = operate(&program, &["list", "--reason", reason]).await;
        assert_eq!((code, table.lines().count()), (Some(0), count + 1), "{reason}: {table}");
    }
    let (_, shown, _) = operate(&program, &["show", id.as_str().unwrap()]).await;
    assert!(shown.contains("why       The call ran longer than its deadline"), "{shown}");
    assert!(shown.contains("\ntook      "), "{shown}");
}

/// SEC-06, B66: the protection of clients' paths from web pages protects these paths, too.
#[tokio::test]
async fn foreign_hosts_and_pages_reach_no_task() {
    let (worker, _folder, program) = started().await;
    let id = program.task("/up/mcp", "k").await;
    worker.calls(1).await;
    let list = program.get("/tasks").await;
    assert!(list.head.contains("\nx-content-type-options: nosniff"), "no browser guesses its type: {list:?}");
    let cancel = format!("/tasks/{}/cancel", tasks(&list.json())[0]["ref"].as_str().unwrap());
    let json = ("content-type", "application/json");
    for (method, target, headers) in [
        ("GET", "/tasks", vec![("host", "evil.example")]),
        ("GET", "/tasks", vec![("origin", "https://evil.example")]),
        ("POST", &cancel, vec![json, ("origin", "https://evil.example")]),
        ("POST", &cancel, vec![json, ("host", "evil.example")]),
        // Requests that a page can send without a preflight.
        ("POST", &cancel, vec![("content-type", "text/plain")]),
        ("GET", &cancel, vec![]),
        ("DELETE", "/tasks", vec![]),
    ] {
        let body = if method == "POST" { "{}" } else { "" };
        let answer = send(program.admin, method, target, &headers, body).await;
        assert!((400..500).contains(&answer.status), "{method} {target} {headers:?}: {answer:?}");
        assert!(!answer.body.contains("\"ref\""), "{answer:?}");
    }
    assert_eq!(program.status("/up/mcp", &id).await, "working");
    assert_eq!(send(program.clients, "GET", "/tasks", &[], "").await.status, 404, "not where clients are served");
}
