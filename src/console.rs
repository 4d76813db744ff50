//! The stdout and stderr of the program's commands; in unit tests both go to the test harness.

#[cfg(not(test))]
pub(crate) use std::io::{stderr, stdout};

#[cfg(test)]
pub(crate) use captured::{stderr, stdout};

use std::io;

/// Prints a message of `clap`, in colour on a terminal.
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
