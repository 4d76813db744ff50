//! The `taskgate` program: allocator, runtime and command line.

use std::process::ExitCode;

use anyhow::Context as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    // An internal command: see the module.
    if let Some(code) = taskgate::upstream::supervisor::run(std::env::args_os()) {
        return Ok(code);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?;
    let code = runtime.block_on(taskgate::cli::run(std::env::args_os()));
    // Blocking tasks are not awaited: a second signal ends the process at once.
    runtime.shutdown_background();
    Ok(code)
}
