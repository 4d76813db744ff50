//! Keeps the last lines of standard error of programs that died, and the tasks that failed with them. In memory alone,
//! for operators, and only where the configuration says so: lines may hold arguments of calls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::task::TaskKey;

/// Beyond that the oldest are dropped.
const PROGRAMS_MAX: usize = 64;
const TASKS_MAX: usize = 1_024;

static NEXT: AtomicU64 = AtomicU64::new(1);
static DIED: Mutex<DiedPrograms> = Mutex::new(DiedPrograms { programs: VecDeque::new(), tasks: VecDeque::new() });

#[derive(Debug)]
struct DiedPrograms {
    programs: VecDeque<(u64, Arc<[String]>)>,
    tasks: VecDeque<(TaskKey, u64)>,
}

/// A number for a program's process, unique in the gateway's process.
pub(crate) fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn keep(process: u64, lines: Vec<String>) {
    push(&mut DIED.lock().programs, PROGRAMS_MAX, (process, lines.into()));
}

pub(crate) fn note(task: &TaskKey, process: u64) {
    push(&mut DIED.lock().tasks, TASKS_MAX, (task.clone(), process));
}

/// The last lines of the process with which a task failed.
pub(crate) fn lines(task: &TaskKey) -> Option<Arc<[String]>> {
    let died = DIED.lock();
    let (_, process) = died.tasks.iter().rev().find(|(known, _)| known == task)?;
    died.programs.iter().find(|(known, _)| known == process).map(|(_, lines)| Arc::clone(lines))
}

fn push<T>(all: &mut VecDeque<T>, max: usize, one: T) {
    if all.len() == max {
        all.pop_front();
    }
    all.push_back(one);
}
