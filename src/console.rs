//! The stdout and stderr of the program's commands; in unit tests both go to the test harness.

#[cfg(not(test))]
pub(crate) use std::io::{stderr, stdout};

#[cfg(test)]
pub(crate) use captured::{stderr, stdout};

use std::ffi::OsStr;
use std::io;

/// Whether output has colours, by the value of `NO_COLOR` (no-color.org).
pub(crate) fn has_colours(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

pub(crate) fn print_usage(error: &clap::Error) -> io::Result<()> {
    #[cfg(not(test))]
    return error.print();
    #[cfg(test)]
    return io::Write::write_all(&mut stderr(), error.to_string().as_bytes());
}

#[cfg(test)]
mod captured {
    use std::io;

    pub(crate) struct Captured;

    pub(crate) fn stdout() -> Captured {
        Captured
    }

    pub(crate) fn stderr() -> Captured {
        Captured
    }

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            print!("{}", String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_colours_unless_no_color_has_a_value() {
        for (is_terminal, no_color, expected) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (true, Some("0"), false),
            (false, None, false),
        ] {
            assert_eq!(has_colours(is_terminal, no_color.map(OsStr::new)), expected, "{is_terminal} {no_color:?}");
        }
    }
}
