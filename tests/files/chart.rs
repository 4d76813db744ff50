//! Renders the Helm chart, and compares manifests and refusals with recorded ones.
//!
//! The gateway must accept each configuration of the chart, the plain manifests and the compose files.
//!
//! `UPDATE_GOLDEN=1` rewrites the expected files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use support::check_golden;
use support::peers::install::Peers;
use taskgate::config;

const CHART: &str = "deploy/helm/taskgate";
const VALUE_FILES: usize = 10;
const REFUSED_FILES: usize = 64;
/// The values that each refused file changes.
const BASE: &str = "tests/chart/values/disk.yaml";

/// The environment of the pods and of the replicas in the compose file.
fn env(name: &str) -> Option<String> {
    let value = match name {
        "POD_NAME" | "REPLICA_NAME" => "taskgate-0",
        "POD_IP" => "10.0.0.9",
        "REPLICA_ADDRESS" => "10.0.0.9:9443",
        "REPORTS_TOKEN" | "EVERYTHING_TOKEN" | "LOGIN_SECRET" => "token",
        _ => return None,
    };
    Some(value.to_owned())
}

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(path: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(path)).expect("a readable folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

/// Helm with a temporary folder in place of the home folder.
struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
    _peers: Peers,
}

impl Helm {
    fn find() -> Option<Self> {
        let peers = Peers::find("the chart")?;
        let home = tempfile::tempdir().expect("a folder");
        Some(Self { program: peers.join("py-helm/bin/helm"), home, _peers: peers })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        command.env("HELM", &self.program);
        command.current_dir(folder(""));
        command
    }

    fn template(&self, values: &[&Path]) -> Output {
        let mut command = self.command(&self.program);
        command.args(["template", "taskgate", CHART, "--namespace", "tools"]);
        for file in values {
            command.arg("--values").arg(file);
        }
        command.output().expect("helm runs")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The text of `taskgate.toml` in rendered manifests.
fn configuration(manifests: &str) -> String {
    let mut lines = manifests.lines();
    lines.find(|line| *line == "  taskgate.toml: |").expect("a ConfigMap");
    let block = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    block.map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect()
}

#[track_caller]
fn check_accepted(name: &str, toml: &str) {
    let loaded = config::parse("taskgate.toml", toml, &env).unwrap_or_else(|error| panic!("{name}: {error}\n{toml}"));
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.is_empty(), "{name}: {warnings:?}");
}

/// Helm's message for refused values, without the location in the templates.
fn refusal(output: &Output) -> String {
    let said = text(&output.stderr);
    let lines = said.lines().filter(|line| {
        !line.is_empty()
            && !line.starts_with("Error: ")
            && !line.starts_with("Use --debug")
            // The schema's refusals come below the chart's name.
            && *line != "taskgate:"
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn each_file_of_values_renders_as_expected_and_its_configuration_is_accepted() {
    let values = files("tests/chart/values", "yaml");
    assert_eq!(values.len(), VALUE_FILES);
    let Some(helm) = Helm::find() else { return };
    for file in &values {
        let output = helm.template(&[file]);
        assert!(output.status.success(), "{}: {}", file.display(), text(&output.stderr));
        let rendered = text(&output.stdout);
        check_accepted(&file.display().to_string(), &configuration(&rendered));
        let golden = folder("tests/chart/golden").join(file.file_name().expect("a file"));
        check_golden(&golden, &rendered);
    }
}

/// Without helm: the recorded renderings, so that a change of the parser is noticed where no peers are.
#[test]
fn the_configuration_of_each_recorded_rendering_is_accepted() {
    let renderings = [files("tests/chart/golden", "yaml"), files("deploy/kubernetes/values", "yaml")].concat();
    for file in &renderings {
        let manifest = folder("deploy/kubernetes").join(file.file_name().expect("a file"));
        let file = if file.starts_with(folder("deploy")) { &manifest } else { file };
        check_accepted(&file.display().to_string(), &configuration(&read(file)));
    }
    assert_eq!(renderings.len(), VALUE_FILES + 2);
}

#[test]
fn values_that_would_lose_tasks_or_leave_the_gateway_open_are_refused_in_a_sentence() {
    let refused = files("tests/chart/refused", "yaml");
    assert_eq!(refused.len(), REFUSED_FILES);
    let Some(helm) = Helm::find() else { return };
    for file in &refused {
        let output = helm.template(&[&folder(BASE), file]);
        assert!(!output.status.success(), "{} is accepted", file.display());
        let said = refusal(&output);
        assert!(!said.is_empty(), "{}: {}", file.display(), text(&output.stderr));
        check_golden(&file.with_extension("expected"), &said);
    }
}

#[test]
fn each_refusal_of_the_templates_is_in_a_recorded_one() {
    let recorded: String = files("tests/chart/refused", "expected").iter().map(|file| read(file)).collect();
    let templates = read(&folder(CHART).join("templates/_refusals.tpl"));
    let mut sentences = BTreeSet::new();
    for (_, rest) in templates.match_indices("append $found ").map(|(at, found)| templates.split_at(at + found.len())) {
        let sentence = rest.trim_start_matches("(printf ").trim_start_matches('"');
        let end = sentence.replace("\\\"", "__").find('"').expect("the end of a text");
        let sentence = sentence[..end].replace("\\\"", "\"");
        // The longest part that no value is written into.
        let sentence = sentence.replace("%d", "%s");
        sentences.insert(sentence.split("%s").max_by_key(|part| part.len()).expect("a part").to_owned());
    }
    let missing: Vec<_> = sentences.iter().filter(|part| !recorded.contains(part.as_str())).collect();
    assert!(missing.is_empty() && sentences.len() > 25, "not refused by a file in tests/chart/refused: {missing:?}");
}

#[test]
fn the_plain_manifests_are_those_of_the_chart() {
    let Some(helm) = Helm::find() else { return };
    let rendered = tempfile::tempdir().expect("a folder");
    let mut script = helm.command(&folder("deploy/kubernetes/render.sh"));
    let output = script.arg(rendered.path()).output().expect("the script runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for values in files("deploy/kubernetes/values", "yaml") {
        let name = values.file_name().expect("a file");
        check_golden(&folder("deploy/kubernetes").join(name), &read(&rendered.path().join(name)));
    }
}

/// The first block is complete, and the others change it.
#[test]
fn the_values_of_the_page_render() {
    let page = read(&folder("docs/kubernetes.md"));
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 5);
    let Some(helm) = Helm::find() else { return };
    let (base, changes) = (helm.home.path().join("base.yaml"), helm.home.path().join("changes.yaml"));
    fs::write(&base, blocks[0]).expect("a writable folder");
    for block in blocks {
        fs::write(&changes, block).expect("a writable folder");
        let output = helm.template(&[&base, &changes]);
        assert!(output.status.success(), "{block}{}", text(&output.stderr));
        check_accepted(block, &configuration(&text(&output.stdout)));
    }
}

/// The keys of a table, and whether each is read at the next start alone.
fn keys_of(documented: &str, table: &str) -> Vec<(String, bool)> {
    let (_, after) = documented.split_once(&format!("<!-- keys {table} -->")).expect("a table of keys");
    let (rows, _) = after.split_once("<!-- /keys -->").expect("its end");
    let key = |row: &str| {
        let (key, rest) = row.strip_prefix("| `")?.split_once('`')?;
        Some((key.to_owned(), rest.contains("| next start |")))
    };
    rows.lines().filter_map(key).collect()
}

/// A pod that is replaced ends its calls; the gateway reads most keys again.
#[test]
fn only_keys_of_the_next_start_replace_the_pods() {
    let Some(helm) = Helm::find() else { return };
    let file = helm.home.path().join("changes.yaml");
    let workload = |changes: &Value| {
        fs::write(&file, changes.to_string()).expect("a writable folder");
        let output = helm.template(&[&folder(BASE), &file]);
        assert!(output.status.success(), "{changes}: {}", text(&output.stderr));
        let manifests = text(&output.stdout);
        manifests.split("\n---\n").find(|one| one.contains("\nkind: StatefulSet\n")).expect("one").to_owned()
    };
    let unchanged = workload(&json!({}));
    let mut changes: Vec<(Value, bool)> = vec![
        (json!({ "upstreams": { "other": { "url": "http://other:9000/mcp" } } }), false),
        (json!({ "endpoints": [{ "path": "/all/mcp", "upstreams": ["reports"] }] }), false),
        (json!({ "auth": { "groups": { "analysts": ["key:ada"] } } }), false),
        (json!({ "listen": { "allowedHosts": ["gateway.example"] } }), false),
        (json!({ "store": { "kind": "memory", "memory": { "acceptLoss": true } } }), true),
        (json!({ "audit": { "enabled": true } }), true),
    ];
    let documented = read(&folder("docs/configuration.md"));
    for table in ["limits", "audit"] {
        let keys = keys_of(&documented, table).into_iter().filter(|(key, _)| key != "drain_max");
        changes.extend(keys.map(|(key, replaces)| (json!({ table: { key: "/dev/stdout" } }), replaces)));
    }
    assert!(changes.len() > 20, "{changes:?}");
    for (change, replaces) in changes {
        assert_eq!(workload(&change) != unchanged, replaces, "{change}");
    }
}

/// A key that the gateway does not have would otherwise end the new pod, after the old one has ended.
#[test]
fn the_schema_of_the_values_has_the_keys_of_the_configuration() {
    let documented = read(&folder("docs/configuration.md"));
    let schema: Value = serde_json::from_str(&read(&folder(CHART).join("values.schema.json"))).expect("JSON");
    let upstream = "/properties/upstreams/additionalProperties";
    for (place, table, further) in [
        (upstream.to_owned(), "upstreams.NAME", &["auth", "credential", "tls", "tasks", "tools"][..]),
        (format!("{upstream}/properties/auth"), "upstreams.NAME.auth", &[]),
        (format!("{upstream}/properties/tls"), "upstreams.NAME.tls", &[]),
        (format!("{upstream}/properties/tasks"), "upstreams.NAME.tasks", &[]),
        (format!("{upstream}/properties/tools/items"), "upstreams.NAME.tools", &["split"]),
        ("/properties/endpoints/items".to_owned(), "endpoints", &[]),
        ("/properties/limits".to_owned(), "limits", &[]),
        ("/properties/audit".to_owned(), "audit", &["enabled"]),
        ("/properties/auth/properties/issuers/items".to_owned(), "auth.issuers", &["introspection"]),
        ("/properties/auth/properties/rules/items".to_owned(), "auth.rules", &["who"]),
    ] {
        let table_schema = schema.pointer(&place).unwrap_or_else(|| panic!("{place} is missing"));
        assert_eq!(table_schema["additionalProperties"], false, "{place}");
        let properties = table_schema["properties"].as_object().expect("properties");
        let found: BTreeSet<String> = properties.keys().cloned().collect();
        let mut expected: BTreeSet<String> = keys_of(&documented, table).into_iter().map(|(key, _)| key).collect();
        expected.extend(further.iter().map(|&key| key.to_owned()));
        assert_eq!(found, expected, "{place}");
    }
}

#[test]
fn the_chart_has_no_lint() {
    let Some(helm) = Helm::find() else { return };
    let output = helm.command(&helm.program).args(["lint", "--strict", CHART, "--values", BASE]).output();
    let output = output.expect("helm runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_chart_and_the_images_have_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read(&folder(CHART).join("Chart.yaml"));
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: \"{version}\"\n")), "{chart}");
    let images = read(&folder("deploy/Dockerfile"));
    assert_eq!(images.matches(&format!("ARG VERSION={version}\n")).count(), 1);
}

#[test]
fn the_configurations_of_the_compose_files_are_accepted() {
    let files = files("deploy/compose", "toml");
    for file in &files {
        check_accepted(&file.display().to_string(), &read(file));
    }
    assert_eq!(files.len(), 2);
}

/// A panel of a metric that the gateway does not have would stay empty.
#[test]
fn the_dashboard_draws_metrics_of_the_gateway() {
    let dashboard: Value = serde_json::from_str(&read(&folder("deploy/grafana.json"))).expect("JSON");
    let declared = read(&folder("src/metric.rs"));
    let (mut positions, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(positions.insert(panel["gridPos"].to_string()), "{panel} is behind another one");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a query");
            let words = query.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
            let names = words.filter(|word| word.starts_with("taskgate_"));
            seen.extend(names.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()));
        }
    }
    let unknown: Vec<&String> = seen.iter().filter(|name| !declared.contains(&format!("\"{name}\""))).collect();
    assert!(unknown.is_empty() && seen.len() >= 25, "{unknown:?} of {}", seen.len());
}
