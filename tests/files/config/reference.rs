//! `docs/configuration.md` against the reader of configurations: keys, their values, defaults, bounds, and the keys
//! that a reload applies.
//!
//! A table of keys stands between `<!-- keys TABLE -->` and `<!-- /keys -->`; `.` names the keys outside of tables. It is written
//! from the declarations of the keys (`UPDATE_REFERENCE=1`). Its defaults and bounds are tried with the reader.

use std::collections::BTreeMap;
use std::fs;

use taskgate::config::{self, KeyContent, KeyRow};

use super::{env, example, folder, parse, uncomment};

const PAGE: &str = "docs/configuration.md";
const HEAD: &str = "| key | takes | bounds | default | changes at | meaning |\n|---|---|---|---|---|---|\n";

/// The columns of a row beside its key, and the values of the key.
#[derive(Clone, Default)]
struct Row {
    bounds: String,
    default: String,
    changes: String,
    meaning: String,
}

/// The tables of the page: the name of each, and its rows in order.
type Tables = Vec<(String, Vec<(String, Row)>)>;

fn page() -> String {
    fs::read_to_string(folder(PAGE)).expect("a readable page")
}

fn tables(page: &str) -> Tables {
    let mut tables = Vec::new();
    for part in page.split("<!-- keys ").skip(1) {
        let (name, rest) = part.split_once(" -->\n").expect("a table has a name");
        let (body, _) = rest.split_once("<!-- /keys -->").expect("a table has an end");
        let rows = body.lines().filter(|line| line.starts_with("| `")).map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [key, _, bounds, default, changes, meaning] = cells[..] else { panic!("{name}: six cells: {line}") };
            let [bounds, default, changes, meaning] = [bounds, default, changes, meaning].map(str::to_owned);
            (key.trim_matches('`').to_owned(), Row { bounds, default, changes, meaning })
        });
        tables.push((name.to_owned(), rows.collect()));
    }
    tables
}

/// The keys of one table that take a value, with the description of each value.
fn keys_of(table: &str) -> BTreeMap<String, String> {
    let in_table = |path: &str| {
        let (parent, key) = path.rsplit_once('.').unwrap_or((".", path));
        (parent == table).then(|| key.to_owned())
    };
    let values = config::known_keys().into_iter().filter_map(|(path, takes)| match takes {
        KeyContent::Value(wanted) => Some((in_table(&path)?, wanted)),
        KeyContent::Table => None,
    });
    values.collect()
}

/// The values of a key, in as few words as a column needs.
fn short(wanted: &str) -> String {
    let kinds = [("a duration ", "duration"), ("a size ", "size"), ("a whole number ", "whole number")];
    let found = kinds.iter().find(|(start, _)| wanted.starts_with(start));
    found.map_or_else(|| wanted.to_owned(), |(_, name)| (*name).to_owned())
}

/// The bounds that every value of a kind has.
fn bounds_of(wanted: &str) -> String {
    let numbers = wanted.strip_prefix("a whole number from ").and_then(|range| range.split_once(" to "));
    match (short(wanted).as_str(), numbers) {
        (_, Some((low, high))) => format!("`{low}` to `{high}`"),
        ("size", None) => "`\"1B\"` to `\"1PiB\"`".to_owned(),
        ("duration", None) => "`\"1ms\"` to `\"3650d\"`".to_owned(),
        _ => String::new(),
    }
}

/// A declared key as a row of the page.
fn row(declared: &KeyRow, wanted: &str) -> Row {
    Row {
        bounds: declared.bounds.map_or_else(|| bounds_of(wanted), str::to_owned),
        default: declared.default.unwrap_or("–").to_owned(),
        changes: if declared.changes == "restart" { "next start" } else { declared.changes }.to_owned(),
        meaning: declared.sentence.trim().replace("](docs/", "]("),
    }
}

/// The page with each table as it is declared.
fn rendered(page: &str) -> String {
    let mut text = page.to_owned();
    for (table, rows) in config::key_tables() {
        let keys = keys_of(table);
        let mut body = HEAD.to_owned();
        for declared in rows {
            let wanted = &keys[declared.key];
            let Row { bounds, default, changes, meaning } = row(&declared, wanted);
            let cells = [format!("`{}`", declared.key), short(wanted), bounds, default, changes, meaning];
            body.extend(["| ", cells.join(" | ").as_str(), " |\n"]);
        }
        let start = format!("<!-- keys {table} -->\n");
        let (before, rest) = text.split_once(&start).unwrap_or_else(|| panic!("{PAGE}: no table {table}"));
        let (_, after) = rest.split_once("<!-- /keys -->").expect("a table has an end");
        text = format!("{before}{start}{body}<!-- /keys -->{after}");
    }
    text
}

#[test]
fn the_reference_has_every_key_with_its_values() {
    let page = page();
    let rendered = rendered(&page);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(folder(PAGE), &rendered).expect("a writable page");
    } else {
        assert!(page == rendered, "{PAGE} differs from the reader; UPDATE_REFERENCE=1 rewrites it");
    }
    let shown = tables(&rendered);
    let known = config::known_keys();
    let values = known.iter().filter(|(_, takes)| matches!(takes, KeyContent::Value(_)));
    assert_eq!(
        shown.iter().map(|(_, rows)| rows.len()).sum::<usize>(),
        values.count(),
        "a key is not declared, or twice"
    );
}

/// The example with the sentence of each key above its first line. A comment above a table's head is written by hand, as are
/// those above keys that inherit their sentence.
fn rendered_example(example: &str) -> String {
    let mut declared: BTreeMap<_, _> = config::key_tables().into_iter().collect();
    let (mut table, mut lines, mut comment) = (".".to_owned(), Vec::new(), Vec::new());
    for line in example.lines() {
        if line.starts_with("# ") || line == "#" {
            comment.push(line.to_owned());
            continue;
        }
        if let Some(header) = uncomment(line).strip_prefix('[') {
            table = header.trim_start_matches('[').split(']').next().unwrap_or_default().to_owned();
            for name in ["reports", "hosted", "remote", "local"] {
                table = table.replace(&format!("upstreams.{name}"), "upstreams.NAME");
            }
        }
        let key = uncomment(line).split_once(" = ").map_or("", |(key, _)| key);
        let row = declared.get_mut(table.as_str()).and_then(|rows: &mut Vec<KeyRow>| {
            let at = rows.iter().position(|row| row.key == key && row.default != Some("inherited"))?;
            Some(rows.remove(at))
        });
        if let Some(row) = row {
            comment = wrapped(row.sentence.trim());
        }
        lines.append(&mut comment);
        // The sentence stands for a remark behind the value.
        let end = row.and_then(|_| line.find("  # ")).unwrap_or(line.len());
        lines.push(line[..end].trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}

/// A text as lines of comment.
fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 118;
    let mut lines = vec!["#".to_owned()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < WIDTH => line.extend([" ", word]),
            _ => lines.push(format!("# {word}")),
        }
    }
    lines
}

#[test]
fn the_example_agrees_with_the_reference() {
    const EXAMPLE: &str = "config/taskgate.example.toml";
    let (shown, rendered) = (example(), rendered_example(&example()));
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(folder(EXAMPLE), &rendered).expect("a writable example");
    } else {
        assert!(shown == rendered, "{EXAMPLE} differs from the declared keys; UPDATE_REFERENCE=1 rewrites it");
    }
}

fn all(tables: &Tables) -> impl Iterator<Item = (&str, &str, &Row)> {
    tables.iter().flat_map(|(table, rows)| rows.iter().map(move |(key, row)| (table.as_str(), key.as_str(), row)))
}

/// The texts between backquotes in a cell.
fn literals(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Adds the keys that a line about credentials of clients needs.
fn add_credentials<'t>(parts: &mut BTreeMap<&'t str, String>, table: &'t str, key: &str) {
    if table == "auth.issuers" {
        parts.insert("listen", "public_url = \"https://mcp.example\"".to_owned());
        parts.insert("auth", "mode = \"tokens\"".to_owned());
        let needed = if key == "issuer" { "" } else { "issuer = \"https://login.example\"" };
        parts.insert(table, needed.to_owned());
    }
    if table == "listen.tls" && key.starts_with("client_") {
        let needed = "certificate = \"a.pem\"\nkey = \"a.key\"".to_owned();
        parts.insert(table, if key == "client_ca" { needed } else { format!("{needed}\nclient_ca = \"a.pem\"") });
        parts.insert("auth", "mode = \"certificates\"".to_owned());
        parts.insert("auth.certificates", "san = \"agent.corp\"".to_owned());
    }
    if table == "auth.issuers.introspection" {
        parts.insert("listen", "public_url = \"https://mcp.example\"".to_owned());
        parts.insert("auth", "mode = \"tokens\"".to_owned());
        parts.insert("auth.issuers", "issuer = \"https://login.example\"".to_owned());
        let needed = "url = \"https://login.example/i\"\nclient_id = \"x\"\nclient_secret = \"${HOSTED_TOKEN}\"";
        parts.insert(table, needed.to_owned());
    }
    if table == "upstreams.NAME.credential.exchange" && ["subject_token_type", "bound_tokens"].contains(&key) {
        parts.insert("listen", "public_url = \"https://mcp.example\"".to_owned());
        parts.insert("auth", "mode = \"tokens\"".to_owned());
        parts.insert("auth.issuers", "issuer = \"https://login.example\"".to_owned());
        let needed = "token_url = \"https://login.example/t\"\nclient_id = \"x\"\nclient_secret = \"${HOSTED_TOKEN}\"";
        parts.insert(table, format!("{needed}\nresource = \"https://reports.internal/mcp\""));
    }
    if table == "auth.api_keys.limits" {
        parts.insert("auth", "mode = \"api_keys\"".to_owned());
        parts.insert("auth.api_keys", "id = \"ada\"\nkey = \"${ADA_KEY}\"".to_owned());
    }
    if table.starts_with("upstreams.NAME.credential.") && key == "client_auth" {
        parts.insert("listen", "public_url = \"https://mcp.example\"".to_owned());
        parts.insert("auth", "mode = \"tokens\"".to_owned());
        parts.insert("auth.issuers", "issuer = \"https://login.example\"".to_owned());
        let needed = "token_url = \"https://login.example/t\"\nclient_id = \"x\"\nclient_secret = \"${HOSTED_TOKEN}\"";
        let with_resource = format!("{needed}\nresource = \"https://reports.internal/mcp\"");
        if table.ends_with(".id_jag") {
            let audience = format!("{with_resource}\naudience = \"https://login.partner.example\"");
            parts.insert("upstreams.NAME.credential.exchange", audience);
        }
        parts.insert(table, with_resource);
    }
}

/// A file with this line in this table, and without it. Both have all other keys that the line needs.
fn files(table: &str, key: &str, line: &str) -> (String, String) {
    let of_programs =
        ["command", "args", "cwd", "processes_max", "descriptors_max", "memory_max", "stderr", "process_per_call"];
    let reached = match key {
        "command" => "path = \"/reports/mcp\"",
        _ if of_programs.contains(&key) => "command = [\"true\"]",
        "url" => "path = \"/reports/mcp\"",
        _ => "url = \"http://127.0.0.1:9000/mcp\"",
    };
    let mut parts = BTreeMap::from([("upstreams.NAME", reached.to_owned())]);
    if table == "upstreams.NAME.tools" {
        parts.insert(table, if key == "match" { String::new() } else { "match = \"any\"".to_owned() });
    }
    if table == "admin.tokens" {
        parts.insert(table, if key == "file" { String::new() } else { "file = \"ops.token\"".to_owned() });
    }
    if table == "audit" {
        parts.insert(table, if key == "path" { String::new() } else { "path = \"audit.jsonl\"".to_owned() });
    }
    if table == "endpoints" {
        let needed = [("path", "path = \"/all/mcp\""), ("upstreams", "upstreams = [\"reports\"]")];
        let needed = needed.iter().filter(|(name, _)| *name != key);
        parts.insert(table, needed.map(|(_, line)| *line).collect::<Vec<_>>().join("\n"));
    }
    if table == "replica" || (table == "store" && !["kind", "path", "ephemeral"].contains(&key)) {
        let needed = [("url", "url = \"postgres://t@db/t\""), ("durability", "durability = \"single\"")];
        let needed = needed.iter().filter(|(name, _)| *name != key && (*name, key) != ("url", "url_file"));
        let lines: Vec<_> = needed.map(|(_, line)| *line).collect();
        parts.insert("store", format!("kind = \"postgres\"\n{}", lines.join("\n")));
    }
    add_credentials(&mut parts, table, key);
    if table == "upstreams.NAME.tools.split" {
        parts.insert("upstreams.NAME.tools", "match = \"any\"".to_owned());
        parts.insert(table, if key == "argument" { String::new() } else { "argument = \"any\"".to_owned() });
    }
    let text = |parts: &BTreeMap<&str, String>| {
        let header = |table: &str| {
            if table.ends_with(".tools")
                || ["admin.tokens", "auth.api_keys", "auth.certificates", "auth.issuers", "endpoints"].contains(&table)
            {
                format!("[[{table}]]")
            } else if table == "." {
                String::new()
            } else {
                format!("[{table}]")
            }
        };
        let parts: String = parts.iter().map(|(table, lines)| format!("{}\n{lines}\n", header(table))).collect();
        parts.replace("NAME", "reports")
    };
    let without = text(&parts);
    let lines = parts.entry(table).or_default();
    *lines = format!("{lines}\n{line}");
    (text(&parts), without)
}

#[test]
fn the_defaults_of_the_reference_are_those_of_the_reader_and_of_the_example() {
    let mut count = 0;
    let tables = tables(&page());
    for (table, key, row) in all(&tables) {
        let Some(default) = literals(&row.default).first().copied() else { continue };
        count += 1;
        let (with, without) = files(table, key, &format!("{key} = {default}"));
        let (with, without) = (parse(&with), parse(&without));
        assert_eq!(format!("{with:?}"), format!("{without:?}"), "{table}.{key} = {default} is not the default");
    }
    assert!(count >= 35, "only {count} defaults were tried");
    // A default in the example has a default here, too.
    let mut table = ".".to_owned();
    for line in example().lines() {
        if let Some(header) = uncomment(line).strip_prefix('[') {
            table = header.trim_start_matches('[').split(']').next().unwrap_or_default().to_owned();
            table = table.replace("upstreams.reports", "upstreams.NAME");
        }
        let Some((key, value)) = line.split_once(" = ").filter(|(key, _)| !key.contains([' ', '#'])) else { continue };
        if table == "upstreams.NAME.tools" || key == "url" {
            continue;
        }
        let shown = all(&tables).find(|(of, name, _)| (*of, *name) == (table.as_str(), key));
        let (.., row) = shown.unwrap_or_else(|| panic!("{table}.{key} is not on the page"));
        let literals = literals(&row.default);
        let expected = value.replace("/reports/", "/NAME/");
        assert_eq!(literals.first(), Some(&expected.as_str()), "{table}.{key}");
    }
}

/// Whether the reader accepts this value, with any error about other keys.
fn is_taken(table: &str, key: &str, value: &str) -> bool {
    let (with, _) = files(table, key, &format!("{key} = {value}"));
    let path = format!("{table}.{key}")
        .replace("NAME", "reports")
        .replace(".tools.", ".tools[0].")
        .replace("issuers.", "issuers[0].")
        .replace("api_keys.", "api_keys[0].");
    let error = config::parse("test.toml", &with, &env).err();
    error.is_none_or(|error| !error.mistakes.iter().any(|mistake| mistake.key.as_deref() == Some(&path)))
}

/// The least and the most that a key takes, each with the next value beyond it; `None` where it is no fixed number.
fn bounds(wanted: &str, row: &Row) -> [Option<(String, String)>; 2] {
    if let Some((low, high)) = wanted.strip_prefix("a whole number from ").and_then(|range| range.split_once(" to ")) {
        let [low, high] = [low, high].map(|number| number.parse::<i64>().expect("a number"));
        return [Some((low, low - 1)), Some((high, high + 1))]
            .map(|bound| bound.map(|(is, beyond)| (is.to_string(), beyond.to_string())));
    }
    let literals = literals(&row.bounds);
    let low = literals.first().filter(|literal| literal.starts_with('"'));
    let high = literals.get(1).filter(|literal| literal.starts_with('"'));
    let beyond = |literal: &str| match literal.trim_matches('"') {
        "1ms" => "\"0s\"".to_owned(),
        "0s" => "\"-1s\"".to_owned(),
        "4s" => "\"3999ms\"".to_owned(),
        "10s" => "\"9999ms\"".to_owned(),
        "1B" => "\"0B\"".to_owned(),
        "1PiB" => "\"2PiB\"".to_owned(),
        span => format!("\"{span} 1ms\""),
    };
    [low, high].map(|literal| literal.map(|literal| ((*literal).to_owned(), beyond(literal))))
}

#[test]
fn the_reader_accepts_exactly_the_bounds_of_the_reference() {
    let mut count = 0;
    for (table, key, row) in all(&tables(&page())) {
        let wanted = &keys_of(table)[key];
        let bounds = bounds(wanted, row);
        if ["duration", "size", "whole number"].contains(&short(wanted).as_str()) {
            assert!(bounds[0].is_some() && literals(&row.bounds).len() == 2, "{table}.{key} has no bounds on the page");
        }
        for (bound, beyond) in bounds.into_iter().flatten() {
            count += 1;
            assert!(is_taken(table, key, &bound), "{table}.{key} = {bound}");
            assert!(!is_taken(table, key, &beyond), "{table}.{key} = {beyond}");
        }
    }
    assert!(count >= 50, "only {count} bounds were tried");
}

/// A file with one issuer of tokens, which has this line too.
macro_rules! issuer {
    ($line:literal) => {
        concat!(
            "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\n",
            "issuer = \"https://login.example\"\n",
            $line
        )
    };
}

/// The keys that certificates need elsewhere.
const CLIENT_CA: &str =
    "[listen.tls]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nclient_ca = \"a.pem\"\nclient_certificates = \"required\"";

/// Another value for each key outside of the upstreams, with the other keys that a file with it needs.
const OTHERS: &[(&str, &str)] = &[
    ("endpoints.path", "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"reports\"]"),
    ("endpoints.upstreams", "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"reports\"]"),
    ("endpoints.prefix", "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"reports\"]\nprefix = \"auto\""),
    ("endpoints.sse_path", "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"reports\"]\nsse_path = \"/x\""),
    ("listen.address", "[listen]\naddress = \"127.0.0.1:7777\""),
    ("listen.plaintext", "[listen]\nplaintext = true"),
    ("listen.allowed_hosts", "[listen]\nallowed_hosts = [\"mcp.example\"]"),
    ("listen.allowed_origins", "[listen]\nallowed_origins = [\"https://mcp.example\"]"),
    ("listen.public_url", "[listen]\npublic_url = \"https://mcp.example\""),
    ("listen.trusted_proxies", "[listen]\ntrusted_proxies = [\"10.0.0.0/8\"]"),
    ("listen.tls.certificate", "[listen.tls]\ncertificate = \"a.pem\"\nkey = \"server.key\""),
    ("listen.tls.key", "[listen.tls]\ncertificate = \"server.pem\"\nkey = \"b.key\""),
    ("listen.tls.client_ca", CLIENT_CA),
    (
        "listen.tls.client_crl",
        "[listen.tls]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nclient_ca = \"a.pem\"\nclient_certificates = \"required\"\nclient_crl = \"a.crl\"",
    ),
    ("listen.tls.client_certificates", CLIENT_CA),
    (
        "auth.dpop",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\ndpop = \"accept\"\n[[auth.issuers]]\nissuer = \"https://login.example\"",
    ),
    ("auth.certificates.san", "[auth]\nmode = \"certificates\"\n[[auth.certificates]]\nsan = \"b.corp\""),
    (
        "auth.certificates.same_as",
        "[auth]\nmode = \"certificates\"\n[[auth.certificates]]\nsan = \"a.corp\"\nsame_as = \"jwt:x:ada\"",
    ),
    (
        "auth.certificates.groups",
        "[auth]\nmode = \"certificates\"\n[[auth.certificates]]\nsan = \"a.corp\"\ngroups = [\"x\"]",
    ),
    (
        "auth.certificates.scopes",
        "[auth]\nmode = \"certificates\"\n[[auth.certificates]]\nsan = \"a.corp\"\nscopes = [\"x\"]",
    ),
    ("admin.address", "[admin]\naddress = \"127.0.0.1:7777\""),
    ("admin.tokens.file", "[[admin.tokens]]\nfile = \"ops.token\""),
    ("admin.tokens.may", "[[admin.tokens]]\nfile = \"ops.token\"\nmay = \"act\""),
    ("audit.path", "[audit]\npath = \"a.jsonl\""),
    ("audit.required", "[audit]\npath = \"a.jsonl\"\nrequired = true"),
    ("audit.calls", "[audit]\npath = \"a.jsonl\"\ncalls = false"),
    ("audit.arguments_sha256", "[audit]\npath = \"a.jsonl\"\narguments_sha256 = true"),
    ("audit.anchor", "[audit]\npath = \"a.jsonl\"\nanchor = \"b\""),
    ("metrics.address", "[metrics]\naddress = \"127.0.0.1:7777\""),
    ("store.kind", "[store]\nkind = \"memory\""),
    ("store.path", "[store]\npath = \"elsewhere\""),
    ("store.ephemeral", "[store]\nephemeral = true"),
    ("store.url", "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\""),
    ("store.url_file", "[store]\nkind = \"postgres\"\nurl_file = \"db.url\"\ndurability = \"single\""),
    ("store.durability", "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\""),
    (
        "store.password_file",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\npassword_file = \"p\"",
    ),
    ("store.ca", "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\nca = \"ca.pem\""),
    (
        "store.schema",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\nschema = \"other\"",
    ),
    (
        "store.write_max",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\nwrite_max = \"7s\"",
    ),
    (
        "store.read_trust",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\nread_trust = \"7s\"",
    ),
    (
        "store.accept_loss",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\naccept_loss = \"6f1c7c52-0d61-4d2c-9d0f-0a3b9a5f0c11\"",
    ),
    (
        "replica.name",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\nname = \"b\"",
    ),
    (
        "replica.address",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\naddress = \"127.0.0.1:7777\"",
    ),
    (
        "replica.lease",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\nlease = \"7s\"",
    ),
    (
        "replica.alone_max",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\nalone_max = \"7m\"",
    ),
    (
        "replica.divide",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\ndivide = false",
    ),
    (
        "replica.ca",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nca = \"ca.pem\"",
    ),
    (
        "replica.certificate",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nca = \"ca.pem\"",
    ),
    (
        "replica.key",
        "[store]\nkind = \"postgres\"\nurl = \"postgres://t@db/t\"\ndurability = \"single\"\n[replica]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nca = \"ca.pem\"",
    ),
    ("limits.body_bytes_max", "[limits]\nbody_bytes_max = \"7MiB\""),
    ("limits.result_bytes_max", "[limits]\nresult_bytes_max = \"7MiB\""),
    ("limits.tasks_max", "[limits]\ntasks_max = 7_000"),
    ("limits.tasks_per_principal_max", "[limits]\ntasks_per_principal_max = 77"),
    ("limits.stored_bytes_max", "[limits]\nstored_bytes_max = \"7GiB\""),
    ("limits.stored_bytes_per_principal_max", "[limits]\nstored_bytes_per_principal_max = \"77MiB\""),
    ("limits.answer_bytes_max", "[limits]\nanswer_bytes_max = \"77MiB\""),
    ("limits.answer_bytes_per_principal_max", "[limits]\nanswer_bytes_per_principal_max = \"77MiB\""),
    ("limits.requests_per_second", "[limits]\nrequests_per_second = 7"),
    ("limits.requests_burst", "[limits]\nrequests_burst = 7"),
    ("limits.polls_per_task", "[limits]\npolls_per_task = 7"),
    ("limits.streams_per_principal_max", "[limits]\nstreams_per_principal_max = 7"),
    ("limits.permits_percent_max", "[limits]\npermits_percent_max = 7"),
    (
        "auth.api_keys.limits.requests_per_second",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.requests_per_second = 7",
    ),
    (
        "auth.api_keys.limits.answer_bytes_per_principal_max",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.answer_bytes_per_principal_max = \"7MiB\"",
    ),
    (
        "auth.api_keys.limits.requests_burst",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.requests_burst = 7",
    ),
    (
        "auth.api_keys.limits.polls_per_task",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.polls_per_task = 7",
    ),
    (
        "auth.api_keys.limits.streams_per_principal_max",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.streams_per_principal_max = 7",
    ),
    (
        "auth.api_keys.limits.permits_percent_max",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.permits_percent_max = 7",
    ),
    (
        "auth.api_keys.limits.tasks_per_principal_max",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.tasks_per_principal_max = 7",
    ),
    (
        "auth.api_keys.limits.stored_bytes_per_principal_max",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nlimits.stored_bytes_per_principal_max = \"7MiB\"",
    ),
    ("limits.connections_max", "[limits]\nconnections_max = 77"),
    ("limits.drain_max", "[limits]\ndrain_max = \"7s\""),
    ("auth.mode", "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\""),
    ("auth.anonymous", "[auth]\nanonymous = true"),
    (
        "auth.scopes",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n[[auth.issuers]]\nissuer = \"https://login.example\"",
    ),
    ("auth.issuers.issuer", issuer!("")),
    ("auth.issuers.jwks_url", issuer!("jwks_url = \"https://login.example/keys\"")),
    ("auth.issuers.jwks_file", issuer!("jwks_file = \"keys.json\"")),
    ("auth.issuers.algorithms", issuer!("algorithms = [\"EdDSA\"]")),
    ("auth.issuers.audiences", issuer!("audiences = [\"api://mcp\"]")),
    ("auth.issuers.token_types", issuer!("token_types = [\"JWT\"]")),
    ("auth.issuers.groups", issuer!("groups = \"groups\"")),
    ("auth.issuers.owner_claim", issuer!("owner_claim = \"team\"")),
    ("auth.issuers.implies", issuer!("implies = { admin = [\"mcp\"] }")),
    ("auth.issuers.max_stale", issuer!("max_stale = \"1h\"")),
    (
        "auth.api_key_files",
        "[auth]\nmode = \"api_keys\"\napi_key_files = []\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"",
    ),
    (
        "auth.api_keys.upstreams",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nupstreams = [\"reports\"]",
    ),
    (
        "auth.api_keys.tools",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\ntools = [\"read_*\"]",
    ),
    ("auth.groups", "[auth]\ngroups = { team = [\"group:x\"] }"),
    (
        "auth.api_keys.deny",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\ndeny = [\"x\"]",
    ),
    (
        "auth.api_keys.scopes",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nscopes = [\"x\"]",
    ),
    (
        "auth.api_keys.groups",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\ngroups = [\"x\"]",
    ),
    (
        "auth.api_keys.expires",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nexpires = 2027-01-31",
    ),
    ("auth.rules.upstreams", "[[auth.rules]]\nupstreams = [\"rep*\"]\nallow = true"),
    ("auth.rules.tools", "[[auth.rules]]\ntools = [\"x\"]\nallow = true"),
    ("auth.rules.prompts", "[[auth.rules]]\nprompts = [\"x\"]\nallow = true"),
    ("auth.rules.resources", "[[auth.rules]]\nresources = [\"x:*\"]\nallow = true"),
    ("auth.rules.arguments", "[[auth.rules]]\narguments = { env = \"x\" }\nallow = true"),
    ("auth.rules.allow", "[[auth.rules]]\nallow = true"),
    (
        "auth.rules.who.ids",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\n[[auth.rules]]\nwho = { ids = [\"key:ada\"] }\nallow = true",
    ),
    (
        "auth.rules.who.groups",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\ngroups = [\"x\"]\n[[auth.rules]]\nwho = { groups = [\"x\"] }\nallow = true",
    ),
    (
        "auth.rules.who.scopes",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\nscopes = [\"x\"]\n[[auth.rules]]\nwho = { scopes = [\"x\"] }\nallow = true",
    ),
    (
        "auth.rules.who.issuer",
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"\n[[auth.rules]]\nwho = { issuer = \"https://login.example\" }\nallow = true",
    ),
    (
        "auth.issuers.introspection.url",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\nintrospection = { url = \"https://login.example/i\", client_id = \"x\", client_secret = \"${HOSTED_TOKEN}\" }",
    ),
    (
        "auth.issuers.introspection.client_id",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\nintrospection = { url = \"https://login.example/i\", client_id = \"x\", client_secret = \"${HOSTED_TOKEN}\" }",
    ),
    (
        "auth.issuers.introspection.client_secret",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\nintrospection = { url = \"https://login.example/i\", client_id = \"x\", client_secret = \"${HOSTED_TOKEN}\" }",
    ),
    (
        "auth.issuers.introspection.client_secret_file",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\nintrospection = { url = \"https://login.example/i\", client_id = \"x\", client_secret_file = \"s\" }",
    ),
    (
        "auth.issuers.introspection.client_auth",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\nintrospection = { url = \"https://login.example/i\", client_id = \"x\", client_secret = \"${HOSTED_TOKEN}\", client_auth = \"post\" }",
    ),
    (
        "auth.issuers.introspection.tokens",
        "[listen]\npublic_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\nintrospection = { url = \"https://login.example/i\", client_id = \"x\", client_secret = \"${HOSTED_TOKEN}\", tokens = \"all\" }",
    ),
    ("auth.api_keys.id", "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"bob\"\nkey = \"${ADA_KEY}\""),
    ("auth.api_keys.key", "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\""),
    ("auth.api_keys.key_file", "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey_file = \"k\""),
];

/// A reload replaces a changed upstream, with any difference.
#[test]
fn a_reload_applies_the_keys_that_the_reference_names() {
    let upstream = "\n[upstreams.reports]\nurl = \"http://127.0.0.1:9000/mcp\"";
    let (plain, with_ca) = (parse(upstream), parse(&format!("{CLIENT_CA}{upstream}")));
    let mut others = OTHERS.iter().copied().collect::<BTreeMap<_, _>>();
    for (table, key, row) in all(&tables(&page())) {
        let path = format!("{table}.{key}");
        // A program's test changes such a file.
        if table.starts_with("upstreams.") || table == "." || path == "auth.api_keys.key_sha256" {
            assert_eq!(row.changes, "reload", "{path}");
            continue;
        }
        let text = others.remove(path.as_str()).unwrap_or_else(|| panic!("{path} has no other value here"));
        let needed = if table == "auth.certificates" { CLIENT_CA } else { "" };
        let started = if needed.is_empty() { &plain } else { &with_ca };
        let config = parse(&format!("{text}\n{needed}{upstream}"));
        assert_ne!(format!("{config:?}"), format!("{started:?}"), "{path} has no effect");
        let named = config.need_restart(started);
        let expected = if named.is_empty() { "reload" } else { "next start" };
        assert_eq!(row.changes, expected, "{path}");
        let mut names = named.iter().flat_map(|keys| keys.split(", "));
        let is_named = names.any(|name| path == name || path.starts_with(&format!("{name}.")));
        assert!(is_named || named.is_empty(), "{path} is told of as {named:?}");
        let in_force = if expected == "reload" { &config } else { started };
        assert_eq!(format!("{:?}", config.clone().within(started)), format!("{in_force:?}"), "{path}");
    }
    assert_eq!(others, BTreeMap::new(), "a key that the page does not have");
}
