//! Discards the time of the store's last use if the operator asks for it.

use std::io;
use std::path::Path;

use rusqlite::Connection;

use crate::store::clock_trust::RESET;

/// Returns whether the time was discarded.
pub(super) fn reset(conn: &Connection, folder: &Path) -> io::Result<bool> {
    let wish = folder.join(RESET);
    if !wish.try_exists()? {
        return Ok(false);
    }
    conn.execute("UPDATE marks SET value = 0 WHERE name = 'seen'", ()).map_err(io::Error::other)?;
    // In this order, a repetition is harmless.
    std::fs::remove_file(&wish)?;
    tracing::warn!("the time that the task store was last used at is forgotten, as `{RESET}` says");
    Ok(true)
}
