//! Forgets the time that the store was last used at, where the operator wants that.

use std::io;
use std::path::Path;

use rusqlite::Connection;

use crate::store::clock_trust::RESET;

/// Whether it did.
pub(super) fn reset(conn: &Connection, folder: &Path) -> io::Result<bool> {
    let wish = folder.join(RESET);
    if !wish.try_exists()? {
        return Ok(false);
    }
    conn.execute("UPDATE marks SET value = 0 WHERE name = 'seen'", ()).map_err(io::Error::other)?;
    // In this order: what is done twice does no harm.
    std::fs::remove_file(&wish)?;
    tracing::warn!("the time that the task store was last used at is forgotten, as `{RESET}` says");
    Ok(true)
}
