//! Reads the configuration of a start or a reload, with what is to be said of it.

use std::path::Path;

use super::descriptors::DescriptorShortage;
use super::files;
use crate::config::{Config, ConfigError, LoadedConfig};

/// A configuration, and what is to be said of it.
pub(super) struct PreparedConfig {
    pub(super) config: Config,
    /// In the order in which they are told.
    pub(super) warnings: Vec<String>,
    /// Where descriptors are provided for it.
    pub(super) shortage: Option<DescriptorShortage>,
}

impl PreparedConfig {
    pub(super) fn new(loaded: LoadedConfig) -> Self {
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        Self { config: loaded.config, warnings, shortage: None }
    }
}

/// The warnings that were told last. The same ones are not told again: files are looked at whenever anything in their
/// folder changes, and that may be the log.
#[derive(Debug, Default)]
pub(super) struct ReportedWarnings {
    texts: Vec<String>,
    shortage: Option<DescriptorShortage>,
}

impl ReportedWarnings {
    /// Logs what is to be said of a configuration, unless it is what was said last.
    pub(super) fn tell(&mut self, read: &PreparedConfig) {
        if self.texts != read.warnings {
            for warning in &read.warnings {
                tracing::warn!("{warning}");
            }
            self.texts.clone_from(&read.warnings);
        }
        if self.shortage != read.shortage {
            self.shortage = read.shortage;
            if let Some(shortage) = self.shortage {
                shortage.tell();
            }
        }
    }
}

/// Reads the file and looks at what it names. Logs nothing.
pub(super) fn configured(file: &Path) -> Result<PreparedConfig, ConfigError> {
    files::load(file).map(PreparedConfig::new)
}

/// The same for a gateway that serves.
pub(super) fn configured_again(file: &Path) -> Result<PreparedConfig, ConfigError> {
    files::load_again(file).map(PreparedConfig::new)
}
