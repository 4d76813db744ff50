//! Shifts the wall clock of a program by a preloaded library; the monotonic clock stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, and the file that it reads.
#[derive(Debug)]
pub struct ClockShift {
    library: PathBuf,
    shift: PathBuf,
}

impl ClockShift {
    /// Builds the library in a folder. The clock is not moved yet.
    pub fn build(folder: &Path) -> Self {
        let clock = Self { library: folder.join("clock.so"), shift: folder.join("shift") };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock_shift.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&clock.library).arg(source).status();
        assert!(built.expect("a C compiler").success());
        clock.set(0);
        clock
    }

    /// The environment of a program with this clock.
    pub fn environment(&self) -> [(&'static str, &str); 2] {
        [("LD_PRELOAD", &self.library), ("SHIFT", &self.shift)]
            .map(|(name, path)| (name, path.to_str().expect("a path as text")))
    }

    /// Moves the clock by so many seconds from the true time.
    pub fn set(&self, seconds: i64) {
        // A reader that finds the file empty reads no shift at all.
        let draft = self.shift.with_extension("draft");
        fs::write(&draft, seconds.to_string()).expect("written");
        fs::rename(&draft, &self.shift).expect("replaced");
    }
}
