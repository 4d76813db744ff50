//! Checks whether a program may be started, without starting it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StdioUpstreamSettings;

const MAY_RUN: u32 = 0o111;
const PATH: &str = "PATH";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("{}: is no folder to run in", .folder.display())]
    NoFolder { folder: PathBuf },
    #[error("{program}: is not found in PATH; install it, or write the path of its file")]
    NotInPath { program: String },
    #[error("{}: is not found", .file.display())]
    NotFound { file: PathBuf },
    #[error("{}: is not executable", .file.display())]
    NotRunnable { file: PathBuf },
    #[error("{why}")]
    Unusable { why: Arc<str> },
}

impl StdioUpstreamSettings {
    /// Finds the program as a start would: from its working folder if it is a path, else in `PATH`, which `env` may
    /// set.
    ///
    /// # Errors
    /// If a start would fail because the program or its folder is missing. A start may fail for other reasons.
    pub fn find_program(&self) -> Result<PathBuf, ProgramError> {
        if let Some(why) = &self.unusable {
            return Err(ProgramError::Unusable { why: Arc::clone(why) });
        }
        let folder = self.folder.as_deref().unwrap_or_else(|| Path::new(""));
        if let Some(folder) = self.folder.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(ProgramError::NoFolder { folder: folder.clone() });
        }
        if self.program.contains('/') {
            let file = folder.join(&self.program);
            return match (may_run(&file), file.exists()) {
                (true, _) => Ok(file),
                (false, true) => Err(ProgramError::NotRunnable { file }),
                (false, false) => Err(ProgramError::NotFound { file }),
            };
        }
        let own = self.env.iter().find(|(name, _)| name == PATH).map(|(_, value)| OsString::from(value));
        let path = own.or_else(|| env::var_os(PATH)).unwrap_or_default();
        let files = || env::split_paths(&path).map(|entry| folder.join(entry).join(&self.program));
        if let Some(file) = files().find(|file| may_run(file)) {
            return Ok(file);
        }
        Err(match files().find(|file| file.is_file()) {
            Some(file) => ProgramError::NotRunnable { file },
            None => ProgramError::NotInPath { program: self.program.clone() },
        })
    }
}

fn may_run(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & MAY_RUN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_a_start_would() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("runs", 0o700), ("text", 0o600)] {
            let file = folder.path().join(name);
            fs::write(&file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let at = |name: &str| folder.path().join(name);
        let text = at("").display().to_string();
        let absolute = |name: &str| at(name).display().to_string();
        let none = String::new();
        let found = |program: &str, path: Option<&str>, folder: Option<PathBuf>| {
            let env = path.map(|path| (PATH.to_owned(), path.to_owned())).into_iter().collect();
            let settings = StdioUpstreamSettings { program: program.to_owned(), env, folder, ..settings() };
            settings.find_program().map_or_else(|error| error.to_string(), |file| file.display().to_string())
        };
        for (program, path, cwd, expected) in [
            (absolute("runs"), None, None, absolute("runs")),
            (absolute("text"), None, None, format!("{}: is not executable", absolute("text"))),
            (absolute("none"), None, None, format!("{}: is not found", absolute("none"))),
            ("./runs".to_owned(), None, Some(at("")), absolute("./runs")),
            ("runs".to_owned(), Some(&text), None, absolute("runs")),
            ("text".to_owned(), Some(&text), None, format!("{}: is not executable", absolute("text"))),
            (
                "runs".to_owned(),
                Some(&none),
                None,
                "runs: is not found in PATH; install it, or write the path of its file".to_owned(),
            ),
            ("runs".to_owned(), Some(&text), Some(at("none")), format!("{}: is no folder to run in", absolute("none"))),
        ] {
            assert_eq!(found(&program, path.map(String::as_str), cwd), expected);
        }
        assert!(found("sh", None, None).ends_with("/sh"), "from the PATH of this process");
    }

    fn settings() -> StdioUpstreamSettings {
        StdioUpstreamSettings {
            name: "up".into(),
            program: String::new(),
            arguments: Vec::new(),
            env: Vec::new(),
            env_files: Vec::new(),
            folder: None,
            processes_max: 1,
            descriptors_max: None,
            memory_bytes_max: None,
            line_bytes_max: 1024,
            protocol: None,
            apart: Default::default(),
            unusable: None,
        }
    }
}
