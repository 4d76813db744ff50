//! Packs a stand-in program as releases are packed, starts it through npm's launcher, and installs it by the script for users.

mod install_script;
mod launcher;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use support::peers::install::{self, Peers};
use tempfile::TempDir;

const TARGET: &str = "x86_64-unknown-linux-musl";
const OTHER_TARGET: &str = "aarch64-unknown-linux-musl";
const VERSION: &str = "9.8.7";
/// A pinned action is a commit's digest, or this word, which `RELEASING.md` lists as a step.
const UNPINNED: &str = "DIGEST";

/// Stands in for the built program: completions and manual pages come from the program of this build.
const PROGRAM: &str = "#!/bin/sh\nexec \"$TASKGATE_STAND_IN\" \"$@\"\n";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn write_program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().expect("a program is in a folder")).expect("a folder is created");
    fs::write(path, script).expect("a program is written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a program is executable");
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// The standard output of a program that must succeed.
fn output_of(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8(stdout).expect("text");
    assert!(status.success(), "{command:?} ended with {status}: {stdout}\n{}", String::from_utf8_lossy(&stderr));
    stdout
}

/// Runs `packaging/pack.sh` into `release`, for both targets.
fn pack(parts: &str, release: &Path) {
    let work = folder();
    for target in [TARGET, OTHER_TARGET] {
        write_program(&work.path().join("programs").join(target).join("taskgate"), PROGRAM);
    }
    let mut pack = Command::new(repository("packaging/pack.sh"));
    pack.args([VERSION.as_ref(), release, work.path(), TARGET.as_ref(), OTHER_TARGET.as_ref()]);
    pack.env("TASKGATE_STAND_IN", support::taskgate()).env("PARTS", parts).env("SOURCE_DATE_EPOCH", "1750000000");
    // cargo-deb and cargo-generate-rpm look for it.
    pack.env_remove("CARGO_TARGET_DIR").env_remove("MINISIGN_KEY").env("PATH", path_with_tools());
    output_of(&mut pack);
}

/// `make dist` installs its tools below the repository.
fn path_with_tools() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", repository("target/tools/bin").display())
}

/// The folder of one release that several tests read. It stays until the next run: nothing drops a static.
static RELEASE: LazyLock<PathBuf> = LazyLock::new(|| {
    let release = support::target_dir().join("tmp/packaging");
    // Without an earlier run there is none.
    let _ = fs::remove_dir_all(&release);
    pack("archives npm wheels formula", &release);
    release
});

fn release(file: &str) -> PathBuf {
    RELEASE.join(file)
}

/// The entries of a compressed archive, without the first folder.
fn entries(archive: &Path) -> BTreeSet<String> {
    let list = output_of(Command::new("tar").arg("-tzf").arg(archive));
    let names = list.lines().filter_map(|line| line.split_once('/')).map(|(_, name)| name.to_owned());
    names.filter(|name| !name.is_empty() && !name.ends_with('/')).collect()
}

#[test]
fn an_archive_holds_the_program_its_pages_and_its_files() {
    if !Peers::are_asked_for("archives of a release") {
        return;
    }
    let archive = release(&format!("taskgate-{VERSION}-{TARGET}.tar.gz"));
    let found = entries(&archive);
    for name in [
        "taskgate",
        "LICENSE",
        "README.md",
        "config/minimal.toml",
        "config/taskgate.example.toml",
        "systemd/taskgate.service",
        "systemd/taskgate.socket",
        "completions/taskgate.bash",
        "completions/_taskgate",
        "completions/taskgate.fish",
        "man/taskgate.1",
        "man/taskgate-serve.1",
    ] {
        assert!(found.contains(name), "{name} is missing: {found:?}");
    }
    let long = output_of(Command::new("tar").args(["-tvz", "--full-time", "-f"]).arg(&archive).env("TZ", "UTC"));
    for line in long.lines() {
        assert!(line.contains(" 0/0 ") && line.contains("2025-06-15 15:06:40"), "{line}");
    }
    let image = fs::read_to_string(release(&format!("{TARGET}/taskgate"))).expect("the program for images");
    assert_eq!(image, PROGRAM);
}

#[test]
fn two_runs_make_equal_bytes_and_the_checksums_hold() {
    if !Peers::are_asked_for("equal bytes of two packed releases") {
        return;
    }
    let other = folder();
    pack("archives npm wheels formula", other.path());
    let sums = fs::read_to_string(release("SHA256SUMS")).expect("checksums");
    assert_eq!(fs::read_to_string(other.path().join("SHA256SUMS")).expect("checksums"), sums);
    // Two archives, three npm packages, two wheels, the formula and the script.
    assert_eq!(sums.lines().count(), 9, "{sums}");
    output_of(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&*RELEASE));
}

#[test]
fn npm_packages_hold_the_launcher_and_the_program_of_one_platform() {
    if !Peers::are_asked_for("npm packages") {
        return;
    }
    let package = |file: &str| release("npm").join(file);
    let launcher = package(&format!("taskgate-{VERSION}.tgz"));
    let expected = ["LICENSE", "README.md", "bin/taskgate.mjs", "package.json"].map(str::to_owned);
    assert_eq!(entries(&launcher), BTreeSet::from(expected));
    let json = output_of(Command::new("tar").arg("-xzOf").arg(&launcher).arg("package/package.json"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["optionalDependencies"]["@taskgate/linux-x64"], VERSION);
    assert_eq!(json["optionalDependencies"]["@taskgate/linux-arm64"], VERSION);
    assert_eq!(json["scripts"], serde_json::Value::Null, "an installation runs no script");

    let program = package(&format!("taskgate-linux-x64-{VERSION}.tgz"));
    let expected = ["LICENSE", "README.md", "bin/taskgate", "package.json"].map(str::to_owned);
    assert_eq!(entries(&program), BTreeSet::from(expected));
    let json = output_of(Command::new("tar").arg("-xzOf").arg(&program).arg("package/package.json"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["os"][0], &json["cpu"][0]), (&"linux".into(), &"x64".into()));
}

#[test]
fn a_wheel_holds_the_program_with_the_metadata_of_the_project() {
    if !Peers::are_asked_for("wheels") {
        return;
    }
    let name = format!("taskgate-{VERSION}-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl");
    let wheel = release("pypi").join(name);
    let list = output_of(Command::new("python3").args(["-m", "zipfile", "-l"]).arg(&wheel));
    assert_eq!(list.lines().count(), 6, "a heading and five files: {list}");
    let unpacked = folder();
    output_of(Command::new("python3").args(["-m", "zipfile", "-e"]).args([&wheel, unpacked.path()]));
    let read =
        |file: &str| fs::read_to_string(unpacked.path().join(format!("taskgate-{VERSION}.{file}"))).expect("text");
    assert_eq!(read("data/scripts/taskgate"), PROGRAM);
    let metadata = read("dist-info/METADATA");
    for line in ["Name: taskgate", "Version: 9.8.7", "License-Expression: Apache-2.0", "Requires-Python: >=3.8"] {
        assert!(metadata.lines().any(|found| found == line), "{line} is missing: {metadata}");
    }
    let tags = read("dist-info/WHEEL");
    for tag in ["py3-none-manylinux2014_x86_64", "py3-none-musllinux_1_1_x86_64"] {
        assert!(tags.contains(&format!("Tag: {tag}\n")), "{tag} is missing: {tags}");
    }
    assert_eq!(read("dist-info/RECORD").lines().count(), 5);
}

#[test]
fn debian_and_rpm_packages_keep_the_configuration_and_name_their_files() {
    if !Peers::are_asked_for("Debian and RPM packages") {
        return;
    }
    let tools = ["target/tools/bin/cargo-deb", "target/tools/bin/cargo-generate-rpm"].map(repository);
    if !tools.iter().all(|tool| tool.exists()) || install::program("dpkg-deb").is_none() {
        println!("left out: packaging/tools.sh installs cargo-deb and cargo-generate-rpm");
        return;
    }
    let release = folder();
    pack("packages", release.path());
    let deb = release.path().join(format!("taskgate_{VERSION}-1_amd64.deb"));
    let field = |name: &str| output_of(Command::new("dpkg-deb").arg("-f").arg(&deb).arg(name)).trim().to_owned();
    assert_eq!(field("Version"), format!("{VERSION}-1"));
    assert_eq!(field("Architecture"), "amd64");
    let conffiles = output_of(Command::new("dpkg-deb").arg("--info").arg(&deb).arg("conffiles"));
    assert_eq!(conffiles.trim(), "/etc/taskgate/taskgate.toml");
    let files = output_of(Command::new("dpkg-deb").arg("-c").arg(&deb));
    let shared = ["/usr/bin/taskgate", "/etc/taskgate/taskgate.toml", "/usr/lib/systemd/system/taskgate.service"];
    let shared =
        shared.into_iter().chain(["/usr/lib/systemd/system/taskgate.socket", "/usr/lib/sysusers.d/taskgate.conf"]);
    let shared = shared.chain(["/usr/share/man/man1/taskgate.1.gz", "/usr/share/bash-completion/completions/taskgate"]);
    let shared: Vec<&str> = shared.collect();
    for file in &shared {
        assert!(files.lines().any(|line| line.ends_with(&format!(" .{file}"))), "{file} is missing: {files}");
    }
    let unit = folder();
    output_of(Command::new("dpkg-deb").arg("-x").args([&deb, unit.path()]));
    let unit = fs::read_to_string(unit.path().join("usr/lib/systemd/system/taskgate.service")).expect("a unit");
    assert!(unit.contains("ExecStart=/usr/bin/taskgate serve") && unit.contains("\nUser=taskgate\n"), "{unit}");
    assert!(!unit.contains("DynamicUser=") && !unit.contains("/usr/local"), "{unit}");

    let rpm = release.path().join(format!("taskgate-{VERSION}-1.x86_64.rpm"));
    assert!(rpm.exists(), "the RPM package is missing");
    if install::program("rpm").is_some() {
        let files = output_of(Command::new("rpm").arg("-qlp").arg(&rpm));
        for file in &shared {
            assert!(files.lines().any(|line| line == *file), "{file} is missing: {files}");
        }
        let configuration = output_of(Command::new("rpm").args(["-qp", "--configfiles"]).arg(&rpm));
        assert_eq!(configuration.trim(), "/etc/taskgate/taskgate.toml");
    }
}

/// A minimal image has no useradd, and the file for sysusers is not there yet.
#[test]
fn the_rpm_package_makes_its_user_without_useradd() {
    let programs = folder();
    let written = programs.path().join("line");
    write_program(&programs.path().join("getent"), "#!/bin/sh\nexit 2\n");
    let sysusers = format!("#!/bin/sh\n/bin/cat > '{}'\n", written.display());
    write_program(&programs.path().join("systemd-sysusers"), &sysusers);
    output_of(Command::new("/bin/sh").arg(repository("packaging/rpm/pre.sh")).env("PATH", programs.path()));
    let conf = fs::read_to_string(repository("packaging/sysusers.conf")).expect("a file");
    let line = fs::read_to_string(written).expect("it runs systemd-sysusers");
    assert!(conf.ends_with(&line) && line.starts_with("u taskgate "), "{line}");
}

/// Without openssl a key would be a prefix, and would be kept.
#[test]
fn the_compose_secrets_are_whole_and_other_files_of_the_folder_stay() {
    let (programs, secrets) = (folder(), folder());
    let other = secrets.path().join("other");
    fs::write(&other, "").expect("a file");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).expect("a mode");
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap_or_default());
    let run = || {
        let mut command = Command::new("bash");
        command.arg(repository("deploy/compose/secrets.sh")).arg(secrets.path()).env("PATH", &path);
        command.output().expect("bash runs")
    };
    write_program(&programs.path().join("id"), "#!/bin/sh\necho 0\n");
    write_program(&programs.path().join("chown"), "#!/bin/sh\n");
    write_program(&programs.path().join("openssl"), "#!/bin/sh\nexit 1\n");
    assert!(!run().status.success());
    assert!(!secrets.path().join("ada.key").exists());
    fs::remove_file(programs.path().join("openssl")).expect("removed");
    if install::program("openssl").is_none() {
        println!("left out: openssl is not installed");
        return;
    }
    let output = run();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mode = |name: &str| fs::metadata(secrets.path().join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!(["ada.key", "replica.key", "ca.crt", "other"].map(mode), [0o400, 0o400, 0o444, 0o644]);
    let key = fs::read_to_string(secrets.path().join("ada.key")).expect("a key");
    assert_eq!((&key[..8], key.len()), ("tg_ada1_", 8 + 64 + 1));
}

/// `systemctl kill` signals all processes of a unit, programs of upstreams among them.
#[test]
fn pages_signal_the_gateway_alone() {
    let pages = fs::read_dir(repository("docs")).expect("pages").flatten().map(|entry| entry.path());
    for page in pages.filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(&page).expect("a page");
        let killed = text.lines().filter(|line| line.contains("systemctl kill"));
        let others: Vec<_> = killed.filter(|line| !line.contains("--kill-whom=main")).collect();
        assert!(others.is_empty(), "{}: {others:?}", page.display());
    }
}

/// Only the job that a person approves has the key, and no tool of the packing.
#[test]
fn the_key_of_signatures_is_in_the_job_that_signs_alone() {
    let text = fs::read_to_string(repository(".github/workflows/release.yml")).expect("a workflow");
    let jobs = text.split("\n  sign:\n").collect::<Vec<_>>();
    let [before, rest] = jobs[..] else { panic!("{} jobs sign", jobs.len() - 1) };
    let (sign, after) = rest.split_once("\n\n  github:\n").expect("the next job");
    assert!(sign.contains("secrets.MINISIGN_SECRET") && sign.contains("environment: release"), "{sign}");
    assert!(!before.contains("MINISIGN") && !after.contains("MINISIGN") && !sign.contains("pack.sh"), "{text}");
}

#[test]
fn the_formula_names_the_archives_and_their_checksums() {
    if !Peers::are_asked_for("the formula") {
        return;
    }
    let formula = fs::read_to_string(release("taskgate.rb")).expect("the formula");
    let sums = fs::read_to_string(release("SHA256SUMS")).expect("checksums");
    for target in [TARGET, OTHER_TARGET] {
        let name = format!("taskgate-{VERSION}-{target}.tar.gz");
        let sum = sums.lines().find_map(|line| line.strip_suffix(&format!("  {name}"))).expect("a checksum");
        assert!(formula.contains(&format!("/v{VERSION}/{name}\"")) && formula.contains(sum), "{formula}");
    }
}

#[test]
fn workflows_parse_and_pin_each_action_or_say_that_it_is_not_pinned() {
    let releasing = fs::read_to_string(repository("RELEASING.md")).expect("a page");
    let mut used = 0;
    for name in ["ci.yml", "release.yml"] {
        let path = repository(".github/workflows").join(name);
        let text = fs::read_to_string(&path).expect("a workflow");
        for action in text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: ")) {
            used += 1;
            let (action, pin) = action.split_once('@').expect("an action has a version");
            let pin = pin.split_whitespace().next().unwrap_or_default();
            let is_digest = pin.len() == 40 && pin.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_digest || pin == UNPINNED, "{name}: {action}@{pin} can be moved");
            assert!(is_digest || releasing.contains(&format!("`{action}`")), "RELEASING.md does not list {action}");
        }
        for build in text.lines().filter(|line| line.contains("buildah build")) {
            assert!(build.contains("--format docker"), "{name}: an image of another format has no probe: {build}");
        }
        if let Some(peers) = Peers::find("a parser of workflows") {
            let parse = "import sys, yaml; jobs = yaml.safe_load(open(sys.argv[1]))['jobs']; print(len(jobs))";
            let jobs = output_of(Command::new(peers.join("py-modern/bin/python")).args(["-c", parse]).arg(&path));
            assert_ne!(jobs.trim(), "0");
        }
    }
    assert!(used >= 10, "only {used} uses of actions were seen");
}
