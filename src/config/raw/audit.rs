//! Declares the keys of `[audit]`.

use std::path::PathBuf;

use super::super::keys::keys;
use super::super::value::{StringFormat, ValueError, path};
use crate::audit::AuditAnchor;

const AUDIT_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"audit.jsonl\"", read: path };
const ANCHOR: StringFormat<AuditAnchor> =
    StringFormat { wanted: "a file such as \"audit.anchor\", or \"syslog\"", read: anchor };
/// The syslog daemon's socket on Linux. Elsewhere, and in containers, the configuration names it.
const SYSLOG_SOCKET: &str = "/dev/log";

fn anchor(text: &str) -> Result<AuditAnchor, ValueError> {
    match text.strip_prefix("syslog") {
        Some("") => Ok(AuditAnchor::Syslog(SYSLOG_SOCKET.into())),
        Some(rest) if rest.starts_with(':') => path(&rest[1..]).map(AuditAnchor::Syslog),
        Some(_) | None => path(text).map(AuditAnchor::File),
    }
}

keys! {
    /// `[audit]`
    struct RawAudit {
        /// The audit file, with a line of JSON for each event ([Audit](docs/operating.md#audit)); relative to
        /// the working directory. Its folder must exist. One gateway for each file, which is created as its owner's alone. A
        /// pipe or a device is written, but has a new chain for each process.
        restart path: PathBuf = read(&AUDIT_FILE);
        /// `true`: a call is recorded on the disk before it is sent, and refused with `audit_unavailable` if that fails.
        restart required: bool = flag(), default false;
        /// `false` leaves out calls that become no task.
        restart calls: bool = flag(), default true;
        /// `true` adds the SHA-256 of a call's `arguments`, as the client wrote them.
        restart arguments_sha256: bool = flag(), default false;
        /// A file, best on another machine, that gets the digest of each 1,000th line; or `"syslog"` for the system's log at
        /// `/dev/log`, or `"syslog:/run/log.sock"` for another socket.
        restart anchor: AuditAnchor = read(&ANCHOR);
    }
}
