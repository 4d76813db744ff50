//! The `taskgate` program: an allocator, a runtime, and the command line.

use std::process::ExitCode;

use anyhow::Context as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    // Not a command that people give: see the module.
    if let Some(code) = taskgate::upstream::supervisor::run(std::env::args_os()) {
        return Ok(code);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?;
    let code = runtime.block_on(taskgate::cli::run(std::env::args_os()));
    // What blocks is not waited for: a second signal ends the process at once.
    runtime.shutdown_background();
    Ok(code)
}
