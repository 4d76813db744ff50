//! Reads the files with the database's URL, password and certificate authority.

use std::path::Path;

use tokio_postgres::Config;

use super::open_error::PostgresOpenError;
use super::settings::{DatabaseAccess, DatabaseUrl, read_url};
use crate::secret_file;
use crate::tls::read_roots;

const SECRET_BYTES_MAX: usize = 4 << 10;

impl DatabaseAccess {
    /// From the files' current contents.
    pub(super) fn read(&self) -> Result<Config, PostgresOpenError> {
        let mut config = self.url.read()?;
        if let Some(path) = &self.password_file {
            config.password(read_password(path)?.trim_ascii_end());
        }
        Ok(config)
    }

    /// Returns each fault with the key in `[store]` that names the file. Connects to nothing.
    pub fn mistakes(&self) -> impl Iterator<Item = (&'static str, PostgresOpenError)> {
        let url = match &self.url {
            // Checked when the configuration is read.
            DatabaseUrl::Here(_) => None,
            DatabaseUrl::File(_) => self.url.read().err(),
        };
        let password = self.password_file.as_deref().and_then(|path| read_password(path).err());
        let ca = self.ca.as_deref().and_then(|path| read_roots(path).err());
        [("url_file", url), ("password_file", password), ("ca", ca.map(PostgresOpenError::from))]
            .into_iter()
            .filter_map(|(key, mistake)| Some((key, mistake?)))
    }
}

impl DatabaseUrl {
    fn read(&self) -> Result<Config, PostgresOpenError> {
        match self {
            Self::Here(url) => read_url(url),
            Self::File(path) => {
                let text = secret(path, "the database's url")?;
                read_url(std::str::from_utf8(&text).map_err(|_| PostgresOpenError::Url)?)
            }
        }
    }
}

fn read_password(path: &Path) -> Result<Vec<u8>, PostgresOpenError> {
    secret(path, "the database's password")
}

fn secret(path: &Path, what: &'static str) -> Result<Vec<u8>, PostgresOpenError> {
    let read = secret_file::read(path, what, SECRET_BYTES_MAX);
    read.map_err(|source| PostgresOpenError::Secret { path: path.to_owned(), source })
}
