//! Defines why opening a store fails, and the remedy.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}: {source}; `store.path` names a folder that the gateway may write to", .path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error(
        "{}: is {medium}, where no promise can be kept; name a folder on a local disk, or write `ephemeral = true` in \
         [store] if tasks may be lost", .path.display()
    )]
    Medium { path: PathBuf, medium: &'static str },
    #[error("{}: another gateway has the store open; end it, or name another folder as `store.path`", .path.display())]
    Locked { path: PathBuf },
    #[error("{}: is not a database; move it away, and a new one is made in its place", .path.display())]
    NotADatabase { path: PathBuf },
    #[error("{}: is another program's database; name another folder as `store.path`", .path.display())]
    Foreign { path: PathBuf },
    #[error(
        "{}: was written by a newer taskgate (version {found}, this one knows {known}); run that one. The file is left \
         as it is", .path.display()
    )]
    Newer { path: PathBuf, found: i32, known: i32 },
    #[error(
        "{}: was written by an older taskgate (version {found}; this one reads {known} only); let that one finish its \
         tasks, then move it away together with the files beside it, and a new one is made in its place. The file is left as it is", .path.display()
    )]
    Older { path: PathBuf, found: i32, known: i32 },
    #[error(
        "{}: is damaged ({what}); move it away together with the files beside it and keep them. A new one is made in \
         its place, without the tasks", .path.display()
    )]
    Corrupt { path: PathBuf, what: String },
    #[error("{}: cannot be opened: {what}", .path.display())]
    Failed { path: PathBuf, what: String },
}
