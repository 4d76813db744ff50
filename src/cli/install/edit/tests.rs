//! The edits of each syntax, and the way back.

use proptest::prelude::*;

use super::super::shape::MeantProjects;
use super::*;

fn shape(syntax: Syntax) -> HostShape {
    HostShape {
        syntax,
        lists: vec![vec!["s".to_owned()]],
        projects: MeantProjects::None,
        command_key: "command",
        environment_key: "env",
        url_key: "url",
        remote_type: Some("http"),
    }
}

fn own() -> Vec<String> {
    vec!["/bin/taskgate".to_owned()]
}

/// Wraps, and checks each way back.
#[track_caller]
fn check(syntax: Syntax, first: &str, wrapped: &str) {
    let shape = shape(syntax);
    let edited = wrap(first, &shape, &[], &own()).unwrap();
    assert_eq!(edited.text, wrapped, "{first}");
    assert_eq!(edited.skipped, []);
    for names in [vec![], edited.changed.clone()] {
        let back = unwrap(wrapped, &shape, &names, Some(first)).unwrap();
        assert_eq!(back.text, first, "with the copy");
        assert_eq!(back.changed, edited.changed);
    }
    let back = unwrap(wrapped, &shape, &[], None).unwrap();
    assert_eq!((back.changed, back.skipped), (edited.changed, vec![]), "without a copy");
    let again = wrap(wrapped, &shape, &[], &own()).unwrap();
    assert_eq!((again.text.as_str(), again.changed.len()), (wrapped, 0));
}

#[test]
fn json_keeps_its_comments_order_spaces_and_commas() {
    for (first, wrapped) in [
        (
            r#"{"s": {"a": {"command": "np\u0078", "args": ["-y", "b"]}}}"#,
            r#"{"s": {"a": {"command": "/bin/taskgate", "args": ["wrap", "--", "np\u0078", "-y", "b"]}}}"#,
        ),
        (
            "{\"s\": { // c\n \"a\": {\"args\": [ /* x */ ], /* y */\n  \"command\" : \"n\",},\n},}",
            "{\"s\": { // c\n \"a\": {\"args\": [\"wrap\", \"--\", \"n\" /* x */ ], /* y */\n  \"command\" : \"/bin/taskgate\",},\n},}",
        ),
        (
            "\u{feff}{\"s\": {\"a\": {\n    \"command\": \"n\" // why\n  }}}",
            "\u{feff}{\"s\": {\"a\": {\n    \"command\": \"/bin/taskgate\",\n    \"args\": [\"wrap\", \"--\", \"n\"] // why\n  }}}",
        ),
        (
            "{\"s\": {\"a\": {\"command\": \"n\", \"args\": [\n    \"x\",\n    \"y\",\n  ]}}}",
            "{\"s\": {\"a\": {\"command\": \"/bin/taskgate\", \"args\": [\n    \"wrap\",\n    \"--\",\n    \"n\",\n    \"x\",\n    \"y\",\n  ]}}}",
        ),
        (
            r#"{"s": {"a": {"type": "sse", "serverUrl": "http:\/\/h"}, "b": {"url": "http://i"}}}"#,
            r#"{"s": {"a": {"type": "stdio", "command": "/bin/taskgate", "args": ["wrap", "--url", "http:\/\/h"]}, "b": {"command": "/bin/taskgate", "args": ["wrap", "--url", "http://i"]}}}"#,
        ),
        (
            "{\"s\": {\"a\": {\r\n  \"url\": \"http://h\",\r\n  \"headers\": {\"authorization\": \"Bearer ${K}\"}\r\n}}}",
            "{\"s\": {\"a\": {\r\n  \"command\": \"/bin/taskgate\",\r\n  \"args\": [\"wrap\", \"--key-env\", \"TASKGATE_SERVER_KEY\", \"--url\", \"http://h\"],\r\n  \"env\": {\"TASKGATE_SERVER_KEY\": \"${K}\"}\r\n}}}",
        ),
    ] {
        check(Syntax::Json, first, wrapped);
    }
}

#[test]
fn toml_keeps_its_tables_comments_and_quotes() {
    for (first, wrapped) in [
        (
            "# c\n[s.a]\ncommand = 'n' # why\nargs = [\n  \"x\", # y\n]\n\n[s.a.env]\nK = \"v\"\n",
            "# c\n[s.a]\ncommand = \"/bin/taskgate\" # why\nargs = [\n  \"wrap\",\n  \"--\",\n  'n',\n  \"x\", # y\n]\n\n[s.a.env]\nK = \"v\"\n",
        ),
        (
            "[s]\na = { command = \"n\" }\nb.command = \"m\"\n",
            "[s]\na = { command = \"/bin/taskgate\", args = [\"wrap\", \"--\", \"n\"] }\nb.command = \"/bin/taskgate\"\nb.args = [\"wrap\", \"--\", \"m\"]\n",
        ),
        (
            "[s.\"a b\"]\nurl = \"http://h\"\n[s.\"a b\".http_headers]\nAuthorization = \"Bearer k\"\n",
            "[s.\"a b\"]\ncommand = \"/bin/taskgate\"\nargs = [\"wrap\", \"--key-env\", \"TASKGATE_SERVER_KEY\", \"--url\", \"http://h\"]\n[s.\"a b\".env]\nTASKGATE_SERVER_KEY = \"k\"\n",
        ),
    ] {
        check(Syntax::Toml, first, wrapped);
    }
}

#[test]
fn yaml_keeps_its_styles_and_comments() {
    for (first, wrapped) in [
        (
            "# ü\ns:\n  a:\n    command: n   # why\n    args:\n    - -y\n    # z\n    - 'b c'\n",
            "# ü\ns:\n  a:\n    command: \"/bin/taskgate\"   # why\n    args:\n    - \"wrap\"\n    - \"--\"\n    - n\n    - -y\n    # z\n    - 'b c'\n",
        ),
        (
            "s:\n  a: {command: n, args: [x, \"y\"]}\n  b: { command: 'm' } # z\n",
            "s:\n  a: {command: \"/bin/taskgate\", args: [\"wrap\", \"--\", n, x, \"y\"]}\n  b: { command: \"/bin/taskgate\", args: [\"wrap\", \"--\", 'm'] } # z\n",
        ),
        (
            "s:\n  a:\n    command: a{b}\n  b:\n    type: sse\n    url: http://h/x,y\n    timeout: 3\n",
            "s:\n  a:\n    command: \"/bin/taskgate\"\n    args: [\"wrap\", \"--\", \"a{b}\"]\n  b:\n    type: stdio\n    command: \"/bin/taskgate\"\n    args: [\"wrap\", \"--url\", \"http://h/x,y\"]\n    timeout: 3\n",
        ),
        (
            "s:\r\n    a:\r\n        url: 'http://h'\r\n        headers:\r\n            Authorization: Bearer k\r\n",
            "s:\r\n    a:\r\n        command: \"/bin/taskgate\"\r\n        args: [\"wrap\", \"--key-env\", \"TASKGATE_SERVER_KEY\", \"--url\", 'http://h']\r\n        env:\r\n            TASKGATE_SERVER_KEY: \"k\"\r\n",
        ),
        (
            "s:\n  a: {url: http://h, headers: {Authorization: Bearer 12345678}}\n  b:\n    url: http://h\n    headers:\n      Authorization: Bearer {{X}} # y\n",
            "s:\n  a: {command: \"/bin/taskgate\", args: [\"wrap\", \"--key-env\", \"TASKGATE_SERVER_KEY\", \"--url\", http://h], env: {TASKGATE_SERVER_KEY: \"12345678\"}}\n  b:\n    command: \"/bin/taskgate\"\n    args: [\"wrap\", \"--key-env\", \"TASKGATE_SERVER_KEY\", \"--url\", http://h]\n    env:\n      TASKGATE_SERVER_KEY: \"{{X}}\" # y\n",
        ),
    ] {
        check(Syntax::Yaml, first, wrapped);
    }
}

#[test]
fn a_server_that_cannot_be_wrapped_is_skipped_or_refused_with_the_reason() {
    for (server, expected) in [
        ("{}", "has neither a command nor an address, so the host itself provides it"),
        ("1", "has neither a command nor an address, so the host itself provides it"),
        (r#"{"command": "n", "url": "http://h"}"#, "names both a command and an address; remove one of them"),
        (r#"{"command": ["n"]}"#, "has a `command` that is not text on one line; write it so"),
        (r#"{"command": ""}"#, "has an empty `command`; write one"),
        (r#"{"command": "n", "args": "x"}"#, "has `args` that are not a list; write a list"),
        (r#"{"url": "http://h", "args": []}"#, "has `args` beside its address; remove them"),
        (r#"{"url": 1}"#, "has a `url` that is not text on one line; write it so"),
        (
            r#"{"type": "ws", "url": "ws://h"}"#,
            "has an address that `wrap` cannot use: has another scheme than http and https",
        ),
        (r#"{"command": "npx -y s"}"#, "has arguments in its command; write them into `args`"),
        (r#"{"url": "http://h", "oauth": {}}"#, "has `oauth`, by which the host logs in; `wrap` cannot do that"),
        (
            r#"{"url": "http://h", "headers": {"X-Key": "k"}}"#,
            "has headers, which other users of this machine could read in the arguments of `wrap`; write the server \
             into a configuration for `wrap --config`",
        ),
        (
            r#"{"url": "http://h", "headers": {"Authorization": "Bearer k"}, "env": {}}"#,
            "has `env` beside its address; remove it",
        ),
        (
            r#"{"url": "https://h/mcp/?key=${KEY}", "headers": {"Authorization": "Bearer k"}}"#,
            "has a query in its address, which other users of this machine could read in the arguments of `wrap`; \
             write the server into a configuration for `wrap --config`",
        ),
    ] {
        let text = format!(r#"{{"s": {{"a": {server}, "b": {{"command": "m"}}}}}}"#);
        let all = wrap(&text, &shape(Syntax::Json), &[], &own()).unwrap();
        assert_eq!((all.changed, all.skipped), (vec!["b".to_owned()], vec![("a".to_owned(), expected.to_owned())]));
        let named = wrap(&text, &shape(Syntax::Json), &["a".to_owned()], &own()).unwrap_err();
        assert_eq!(named.to_string(), format!("a: {expected}"));
    }
}

#[test]
fn values_that_an_alias_repeats_elsewhere_are_not_changed() {
    let text = "s:\n  a: &a\n    command: n\n  b:\n    <<: *a\n    args: [x]\n  c: {command: &c n}\n  d: {command: *c}\n  e: {command: n, args: &e [y]}\n";
    let all = wrap(text, &shape(Syntax::Yaml), &[], &own()).unwrap();
    let why = "shares values with other entries of the file (an anchor, an alias or `<<`); write them out";
    assert_eq!(all.text, text);
    assert_eq!(all.skipped, ["a", "b", "c", "d", "e"].map(|name| (name.to_owned(), why.to_owned())));
}

#[test]
fn a_text_without_servers_and_an_unknown_name_are_refused() {
    let json = shape(Syntax::Json);
    for (text, names, expected) in [
        ("{}", "", "`s` is missing: the file names no servers; add one in the host first"),
        (r#"{"s": []}"#, "", "`s` holds no servers: each needs a name and settings"),
        (r#"{"s": {"b": {}, "c": {}}}"#, "a", "there is no server `a`; there are b, c"),
        (r#"{"s": {"b": {}}}"#, "a", "there is no server `a`; there is `b`"),
        (r#"{"s": {}}"#, "a", "there is no server `a`; there is none"),
        ("{\n  \"s\" {}}", "", "line 2, column 7: Expected colon after the string or word in object property"),
        (
            r#"{"s": {"a": {"args": [], "args": []}}}"#,
            "",
            "line 1, column 26: `args` is there twice; remove one of them",
        ),
    ] {
        let names: Vec<String> = names.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        assert_eq!(wrap(text, &json, &names, &own()).unwrap_err().to_string(), expected, "{text}");
        assert_eq!(unwrap(text, &json, &names, None).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn a_file_that_its_user_or_host_changed_meanwhile_is_unwrapped_in_place() {
    let json = shape(Syntax::Json);
    let first = r#"{"s": {"a": {"command": "n"}, "u": {"type": "sse", "serverUrl": "http://h"}}}"#;
    // A host rewrites its file.
    let now = "{\n  \"s\": {\n    \"a\": {\n      \"command\": \"/bin/taskgate\",\n      \"args\": [\n        \"wrap\",\n        \"--\",\n        \"n\"\n      ]\n    },\n    \
               \"u\": {\n      \"type\": \"stdio\",\n      \"command\": \"/bin/taskgate\",\n      \"args\": [\n        \"wrap\",\n        \"--url\",\n        \"http://h\"\n      ]\n    }\n  },\n  \"theme\": 1\n}";
    let back = unwrap(now, &json, &[], Some(first)).unwrap();
    let expected = "{\n  \"s\": {\n    \"a\": {\n      \"command\": \"n\"\n    },\n    \
                    \"u\": {\n      \"type\": \"sse\",\n      \"serverUrl\": \"http://h\"\n    }\n  },\n  \"theme\": 1\n}";
    assert_eq!(back.text, expected);
    // Without a copy the usual spelling is written.
    let back = unwrap(r#"{"s": {"a": {"type": "stdio", "command": "taskgate", "args": ["wrap", "--grace", "1s", "--url", "http://h"], "env": {"TASKGATE_SERVER_KEY": "k"}}}}"#, &json, &[], None).unwrap();
    assert_eq!(
        back.text,
        r#"{"s": {"a": {"type": "http", "url": "http://h", "headers": {"Authorization": "Bearer k"}}}}"#
    );
    for (server, why) in [
        (r#"["wrap", "--config", "f"]"#, "starts the servers of a configuration; edit the entry by hand"),
        (
            r#"["wrap", "--header", "A: b", "--url", "http://h"]"#,
            "has options of `wrap` that the host has no settings for; edit it by hand",
        ),
        (
            r#"["wrap", "--key-env", "K", "--url", "http://h"]"#,
            "has options of `wrap` that the host has no settings for; edit it by hand",
        ),
        (r#"["wrap", "--url", "http://h"], "x": 1"#, ""),
    ] {
        let text = format!(r#"{{"s": {{"a": {{"command": "taskgate", "args": {server}}}}}}}"#);
        let back = unwrap(&text, &json, &[], None).unwrap();
        assert_eq!(back.skipped.first().map_or("", |(_, why)| why.as_str()), why);
    }
    let apart = r#"{"s": {"a": {"command": "taskgate", "x": 1, "args": ["wrap", "--url", "http://h"]}}}"#;
    let refused = unwrap(apart, &json, &["a".to_owned()], None).unwrap_err();
    assert_eq!(refused.to_string(), "a: has other text between its command and its `args`; edit it by hand");
}

#[test]
fn a_server_that_was_wrapped_by_hand_stays_so_unless_it_is_named() {
    let json = shape(Syntax::Json);
    let by_hand = r#""h": {"command": "taskgate", "args": ["wrap", "--grace", "5s", "--", "m"]}"#;
    let first = format!(r#"{{"s": {{"a": {{"command": "n"}}, {by_hand}}}}}"#);
    let wrapped = wrap(&first, &json, &[], &own()).unwrap();
    assert_eq!((wrapped.changed, wrapped.unchanged), (vec!["a".to_owned()], vec!["h".to_owned()]));
    let now = format!("{} // mine", wrapped.text);
    let back = unwrap(&now, &json, &[], Some(&first)).unwrap();
    assert_eq!((back.text, back.changed), (format!("{first} // mine"), vec!["a".to_owned()]));
    let named = unwrap(&now, &json, &["h".to_owned()], Some(&first)).unwrap();
    assert!(named.text.contains(r#""h": {"command": "m", "args": []}"#), "{}", named.text);
}

#[test]
fn a_server_is_moved_to_the_path_of_the_running_program_and_back() {
    let json = shape(Syntax::Json);
    let first = r#"{"s": {"a": {"command": "n"}, "h": {"command": "/old/taskgate", "args": ["wrap", "--grace", "5s", "--", "m"]}}}"#;
    let old = wrap(first, &json, &["a".to_owned()], &["/old/taskgate".to_owned()]).unwrap().text;
    let new = wrap(&old, &json, &[], &own()).unwrap();
    assert_eq!((new.text.as_str(), new.changed.len()), (old.replace("/old/", "/bin/").as_str(), 2));
    for now in [new.text.clone(), format!("{} // mine", new.text)] {
        assert_eq!(unwrap(&now, &json, &[], Some(first)).unwrap().text, now.replace(&new.text, first));
    }
    for unmoved in
        [r#""npx", "args": ["-y", "taskgate", "wrap", "--", "n"]"#, r#""taskgate", "args": ["wrap", "--", "n"]"#]
    {
        let text = format!(r#"{{"s": {{"a": {{"command": {unmoved}}}}}}}"#);
        assert_eq!(wrap(&text, &json, &[], &own()).unwrap().changed, Vec::<String>::new(), "{text}");
    }
}

#[test]
fn an_https_server_without_a_token_is_wrapped_only_by_its_name() {
    let json = shape(Syntax::Json);
    let login = "has an https address and no token, so the host may log in there (OAuth), which `wrap` cannot do; if it does \
                 not, name the server";
    for (server, is_skipped) in [
        (r#"{"url": "https://mcp.example/mcp"}"#, true),
        (r#"{"url": "https://mcp.example:8443", "headers": {}}"#, true),
        (r#"{"url": "https://localhost.example/mcp"}"#, true),
        (r#"{"url": "${BASE}/mcp"}"#, true),
        (r#"{"url": "https://mcp.example/mcp", "headers": {"Authorization": "Bearer k"}}"#, false),
        (r#"{"url": "https://localhost:8443/mcp"}"#, false),
        (r#"{"url": "https://[::1]/mcp"}"#, false),
        (r#"{"url": "HTTP://tools/mcp"}"#, false),
    ] {
        let text = format!(r#"{{"s": {{"a": {server}}}}}"#);
        let all = wrap(&text, &json, &[], &own()).unwrap();
        let expected = if is_skipped { vec![("a".to_owned(), login.to_owned())] } else { vec![] };
        assert_eq!(all.skipped, expected, "{server}");
        let names = ["a".to_owned()];
        let named = wrap(&text, &json, &names, &own()).unwrap();
        assert_eq!(named.changed, names, "{server}");
        assert_eq!(unwrap(&named.text, &json, &[], Some(&text)).unwrap().text, text);
    }
}

/// A launcher has several words; servers that were wrapped at different times go back together.
#[test]
fn servers_that_were_wrapped_one_after_the_other_go_back_to_the_first_text() {
    let json = shape(Syntax::Json);
    let first = r#"{"s": {"a": {"command": "n"}, "b": {"command": "m", "args": []}}}"#;
    let launcher = ["npx", "-y", "taskgate"].map(str::to_owned);
    let one = wrap(first, &json, &["a".to_owned()], &launcher).unwrap().text;
    assert!(one.contains(r#"{"command": "npx", "args": ["-y", "taskgate", "wrap", "--", "n"]}"#), "{one}");
    let both = wrap(&one, &json, &["b".to_owned()], &own()).unwrap().text;
    let back = unwrap(&both, &json, &["a".to_owned()], Some(first)).unwrap().text;
    assert_eq!(back, wrap(first, &json, &["b".to_owned()], &own()).unwrap().text);
    assert_eq!(unwrap(&both, &json, &[], Some(first)).unwrap().text, first);
}

fn blank() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just(" "), Just("\n    "), Just("\t"), Just("/* c, [ */"), Just(" // }\n"), Just("\r\n  "),]
}

fn text() -> impl Strategy<Value = String> {
    "[a-z,/*\\[\\]{}:ü-]{1,8}".prop_map(|text| serde_json::Value::from(text).to_string())
}

prop_compose! {
    /// A list with blanks and comments anywhere, and perhaps a comma at its end.
    fn list()(items in prop::collection::vec((blank(), text(), blank()), 0..4), inner in blank(), comma: bool) -> String {
        let comma = if comma && !items.is_empty() { "," } else { "" };
        let items: Vec<_> = items.iter().map(|(before, item, after)| format!("{before}{item}{after}")).collect();
        format!("[{}{comma}{inner}]", items.join(","))
    }
}

prop_compose! {
    fn server()(
        word in text(), arguments in prop::option::of(list()), is_url: bool, is_last: bool, kind in 0..3_usize, token: bool,
        b in prop::collection::vec(blank(), 6), comma: bool,
    ) -> String {
        let mut members = vec![];
        if kind > 0 {
            members.push(format!("\"type\"{}:{}\"http\"", b[0], b[1]));
        }
        let key = if is_url { ["url", "serverUrl", "httpUrl"][kind] } else { "command" };
        let word = if is_url { "\"http:\\/\\/h\"".to_owned() } else { word };
        members.push(format!("\"{key}\"{}:{}{word}", b[2], b[3]));
        let list = arguments.filter(|_| !is_url).map(|list| format!("\"args\":{}{list}", b[4]));
        if is_last { members.extend(list) } else { members.splice(0..0, list); }
        if is_url && token {
            members.push(format!("\"headers\":{{{}\"Authorization\" : \"Bearer k\"}}", b[5]));
        }
        let members: Vec<_> = members.iter().zip(b.iter().rev()).map(|(member, blank)| format!("{blank}{member}")).collect();
        format!("{{{}{}{}}}", members.join(","), if comma { "," } else { "" }, b[5])
    }
}

proptest! {
    #[test]
    fn unwrapping_gives_the_first_bytes_back(servers in prop::collection::vec((blank(), server(), blank()), 1..4), end in blank()) {
        let servers: Vec<_> = servers.iter().enumerate()
            .map(|(index, (before, server, after))| format!("{before}\"{index}\":{after}{server}")).collect();
        let first = format!("{end}{{\"s\":{{{}{end}}}{end}}}", servers.join(","));
        let shape = shape(Syntax::Json);
        let wrapped = wrap(&first, &shape, &[], &own()).unwrap();
        prop_assert_eq!((wrapped.changed.len(), &wrapped.skipped), (servers.len(), &vec![]));
        let listed = super::servers(&wrapped.text, &shape).unwrap();
        prop_assert!(listed.iter().all(|server| server.own.as_ref() == Some(&own())));
        for names in [vec![], wrapped.changed.clone()] {
            let back = unwrap(&wrapped.text, &shape, &names, Some(&first)).unwrap();
            prop_assert_eq!(&back.text, &first);
        }
        let changed = format!("{}\n// mine", wrapped.text);
        let back = unwrap(&changed, &shape, &[], Some(&first)).unwrap();
        prop_assert_eq!(back.text, format!("{first}\n// mine"));
        // Without the copy the words are the same.
        let back = unwrap(&wrapped.text, &shape, &[], None).unwrap();
        prop_assert_eq!((back.changed, back.skipped), (wrapped.changed, vec![]));
    }

    /// No text panics.
    #[test]
    fn any_text_is_edited_or_refused(text in "(s|a|command|args|\\[|\\]|\\{|\\}|\"|:|=|,|-|\n| |'|#|ü){0,60}") {
        for syntax in [Syntax::Json, Syntax::Toml, Syntax::Yaml] {
            let _ = (wrap(&text, &shape(syntax), &[], &own()), unwrap(&text, &shape(syntax), &[], None));
        }
    }
}
