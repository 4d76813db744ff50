//! The `taskgate` program: an allocator, a runtime, and the command line.

use std::process::ExitCode;

use anyhow::Context as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?;
    Ok(runtime.block_on(taskgate::cli::run(std::env::args_os())))
}
