//! The program's stdout and stderr, as its commands write to them.
//!
//! In unit tests what is written goes to the harness, as what `print!` writes does. Written past it, it could stand between a
//! test's name and its result, and whoever reads them from the log would miss a test that passed.

#[cfg(not(test))]
pub(crate) use std::io::{stderr, stdout};

#[cfg(test)]
pub(crate) use captured::{stderr, stdout};

use std::io;

/// Prints what `clap` says of a command line, in colours where the terminal has them.
///
/// # Errors
/// If it cannot be written.
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
