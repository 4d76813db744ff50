//! `packaging/install.sh` in front of a server on loopback: refused input changes nothing, and good input prints the replaced version.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use super::{folder, output_of, repository, write_program};
use support::peers::install::Peers;
use tempfile::TempDir;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// A body, and how many of its bytes are sent.
type Body = (Vec<u8>, usize);

/// A folder of a release, served on loopback.
struct Release {
    from: String,
}

impl Release {
    fn serve(files: BTreeMap<String, Body>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        // The thread ends with the test process; it waits at the socket.
        thread::spawn(move || listener.incoming().flatten().for_each(|client| respond(client, &files)));
        Self { from: format!("http://{address}/release") }
    }
}

fn respond(mut client: TcpStream, files: &BTreeMap<String, Body>) {
    let mut lines = BufReader::new(&client).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    for _ in lines.take_while(|line| !line.is_empty()) {}
    let name = request.split_whitespace().nth(1).and_then(|path| path.strip_prefix("/release/")).unwrap_or_default();
    // A client that closed early fails its own check.
    let _ = match files.get(name) {
        Some((body, sent)) => {
            write!(client, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len())
                .and_then(|()| client.write_all(&body[..*sent]))
        }
        None => write!(client, "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
    };
}

/// The archive of a script that says its version, and the archive's name.
fn archive(version: &str) -> (String, Vec<u8>) {
    let folder = folder();
    let name = format!("taskgate-{version}-{TARGET}");
    write_program(&folder.path().join(&name).join("taskgate"), &format!("#!/bin/sh\necho taskgate {version}\n"));
    let file = folder.path().join("archive.tar.gz");
    output_of(Command::new("tar").arg("-czf").arg(&file).arg("-C").args([folder.path(), Path::new(&name)]));
    (format!("{name}.tar.gz"), fs::read(file).expect("an archive"))
}

fn checksum(name: &str, bytes: &[u8]) -> String {
    let file = folder();
    fs::write(file.path().join(name), bytes).expect("a file");
    output_of(Command::new("sha256sum").arg(name).current_dir(file.path()))
}

/// A whole release of `version`.
fn files(version: &str) -> BTreeMap<String, Body> {
    let (name, bytes) = archive(version);
    let sums = checksum(&name, &bytes).into_bytes();
    let whole = |bytes: Vec<u8>| {
        let length = bytes.len();
        (bytes, length)
    };
    BTreeMap::from([(name, whole(bytes)), ("SHA256SUMS".to_owned(), whole(sums))])
}

/// A machine for the script: a home folder, and a `uname` that names a system and a processor.
struct Machine {
    home: TempDir,
    script: String,
}

impl Machine {
    fn new(system: &str, processor: &str) -> Self {
        let home = folder();
        let uname = format!("#!/bin/sh\ncase $1 in -s) echo {system} ;; *) echo {processor} ;; esac\n");
        write_program(&home.path().join("programs/uname"), &uname);
        Self { home, script: fs::read_to_string(repository("packaging/install.sh")).expect("the script") }
    }

    fn linux() -> Self {
        Self::new("Linux", "x86_64")
    }

    /// Runs the script from a pipe; returns its exit code and output.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let path =
            format!("{}:{}", self.home.path().join("programs").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command
            .args(["-s", "--"])
            .args(words)
            .env("PATH", path)
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path());
        command.env_remove("TASKGATE_FROM").env_remove("TASKGATE_TO");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("sh runs");
        let mut stdin = child.stdin.take().expect("piped");
        // A script that refuses early leaves the rest unread.
        let _ = stdin.write_all(self.script.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    }

    fn installed(&self) -> PathBuf {
        self.home.path().join(".local/bin/taskgate")
    }

    /// Nothing of a run is left but the program, if it was installed.
    fn is_clean(&self) -> bool {
        let found = fs::read_dir(self.home.path()).expect("a folder").flatten().map(|entry| entry.file_name());
        let found: Vec<_> = found.filter(|name| name != ".local").collect();
        assert_ne!(found.len(), 0, "the folder of `uname` is there");
        let bin = fs::read_dir(self.home.path().join(".local/bin")).map_or(0, Iterator::count);
        found == ["programs"] && bin == usize::from(self.installed().exists())
    }
}

#[test]
fn a_release_is_installed_and_replaces_an_earlier_one() {
    if !Peers::are_asked_for("downloads of the script for users") {
        return;
    }
    let machine = Machine::linux();
    let first = Release::serve(files("1.2.3"));
    let (code, text) = machine.run(&["--from", &first.from]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("installed taskgate 1.2.3") && text.contains("is not in PATH"), "{text}");
    let second = Release::serve(files("1.3.0"));
    let (code, text) = machine.run(&["--from", &format!("{}/", second.from)]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("replaced taskgate 1.2.3 by 1.3.0"), "{text}");
    assert!(machine.is_clean());

    let spaces = machine.home.path().join(".local/a folder/bin");
    let (code, text) =
        machine.run(&["--to", &spaces.display().to_string(), "--from", &second.from, "--version", "1.3.0"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(output_of(Command::new(spaces.join("taskgate")).arg("--version")), "taskgate 1.3.0\n");
}

#[test]
fn a_bad_download_is_refused_and_changes_nothing() {
    if !Peers::are_asked_for("downloads of the script for users") {
        return;
    }
    let (name, bytes) = archive("1.2.3");
    let good = files("1.2.3");
    let with = |file: &str, body: Body| {
        let mut files = good.clone();
        files.insert(file.to_owned(), body);
        files
    };
    let half = bytes.len() / 2;
    let other = checksum(&name, b"other").into_bytes();
    let length = other.len();
    let nothing_for_us = b"0  taskgate-1.2.3-riscv64gc-unknown-linux-musl.tar.gz\n".to_vec();
    let none = nothing_for_us.len();
    let no_archive = "for x86_64-unknown-linux-musl";
    for (what, files, code, text) in [
        ("a connection that ends half-way", with(&name, (bytes.clone(), half)), 65, "the download failed"),
        ("half a file", with(&name, (bytes[..half].to_vec(), half)), 65, "SHA256SUMS says"),
        ("another checksum", with("SHA256SUMS", (other, length)), 65, "SHA256SUMS says"),
        ("no checksums", BTreeMap::new(), 65, "SHA256SUMS: the download failed"),
        ("no archive of this machine", with("SHA256SUMS", (nothing_for_us, none)), 69, no_archive),
    ] {
        let machine = Machine::linux();
        let release = Release::serve(files);
        let (found, said) = machine.run(&["--from", &release.from]);
        assert_eq!(found, Some(code), "{what}: {said}");
        assert!(said.contains(text), "{what}: {said}");
        assert!(machine.is_clean() && !machine.installed().exists(), "{what} left something");
    }
}

#[test]
fn a_folder_of_several_releases_needs_the_name_of_one() {
    if !Peers::are_asked_for("downloads of the script for users") {
        return;
    }
    let mut several = files("0.9.0");
    for (name, body) in files("0.10.0") {
        let (sums, length) = several.entry(name).or_default();
        sums.extend(body.0);
        *length = sums.len();
    }
    let (machine, release) = (Machine::linux(), Release::serve(several));
    let (code, text) = machine.run(&["--from", &release.from]);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("holds several versions: 0.9.0 0.10.0; name one by --version"), "{text}");
    assert!(machine.is_clean() && !machine.installed().exists());
    let (code, text) = machine.run(&["--from", &release.from, "--version", "0.10.0"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_program_that_does_not_run_replaces_nothing() {
    if !Peers::are_asked_for("downloads of the script for users") {
        return;
    }
    let machine = Machine::linux();
    assert_eq!(machine.run(&["--from", &Release::serve(files("1.2.3")).from]).0, Some(0));
    let broken = folder();
    let name = format!("taskgate-1.3.0-{TARGET}");
    write_program(&broken.path().join(&name).join("taskgate"), "#!/bin/sh\nexit 1\n");
    let file = broken.path().join("archive.tar.gz");
    output_of(Command::new("tar").arg("-czf").arg(&file).arg("-C").args([broken.path(), Path::new(&name)]));
    let bytes = fs::read(file).expect("an archive");
    let name = format!("{name}.tar.gz");
    let sums = checksum(&name, &bytes).into_bytes();
    let lengths = (bytes.len(), sums.len());
    let files = BTreeMap::from([(name, (bytes, lengths.0)), ("SHA256SUMS".to_owned(), (sums, lengths.1))]);
    let (code, text) = machine.run(&["--from", &Release::serve(files).from]);
    assert_eq!(code, Some(69), "{text}");
    assert_eq!(output_of(Command::new(machine.installed()).arg("--version")), "taskgate 1.2.3\n");
    assert!(machine.is_clean());
}

#[test]
fn mistakes_in_the_call_are_refused_in_a_sentence() {
    let linux = Machine::linux();
    let file = linux.home.path().join("programs/uname").display().to_string();
    fs::create_dir_all(linux.home.path().join(".local/taken/taskgate")).expect("a folder");
    let taken = linux.home.path().join(".local/taken").display().to_string();
    let from = "http://127.0.0.1:9/release";
    for (machine, words, code, text) in [
        (&linux, vec![], 64, "no public address yet"),
        (&linux, vec!["--from"], 64, "has no value"),
        (&linux, vec!["--form", from], 64, "--form is unknown"),
        (&linux, vec!["--from", from, "--to", &file], 73, "cannot be created"),
        (&linux, vec!["--from", from, "--to", &taken], 73, "is a folder"),
        (&Machine::new("Linux", "riscv64"), vec!["--from", from], 69, "no program for Linux on riscv64"),
        (&Machine::new("FreeBSD", "amd64"), vec!["--from", from], 69, "no program for FreeBSD on x86_64"),
    ] {
        let (found, said) = machine.run(&words);
        assert_eq!(found, Some(code), "{words:?}: {said}");
        assert!(said.contains(text), "{words:?}: {said}");
        assert!(machine.is_clean(), "{words:?} left something");
    }
}

#[test]
fn half_a_script_does_nothing() {
    if !Peers::are_asked_for("the script for users, cut at each line") {
        return;
    }
    let mut machine = Machine::linux();
    let whole = machine.script.clone();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    for cut in (0..lines.len()).step_by(9) {
        machine.script = lines[..cut].concat();
        let (_, said) = machine.run(&["--from", "http://127.0.0.1:9/release"]);
        assert!(machine.is_clean() && !machine.home.path().join(".local").exists(), "{cut} lines: {said}");
    }
}
