//! Reads the configuration of a start or a reload, with its warnings.

use std::path::Path;

use super::descriptors::DescriptorShortage;
use super::files;
use crate::config::{Config, ConfigError, LoadedConfig};

pub(super) struct PreparedConfig {
    pub(super) config: Config,
    pub(super) warnings: Vec<String>,
    pub(super) shortage: Option<DescriptorShortage>,
}

impl PreparedConfig {
    pub(super) fn new(loaded: LoadedConfig) -> Self {
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        Self { config: loaded.config, warnings, shortage: None }
    }
}

/// The warnings logged last, which are not repeated: any change in the folder, even of the log, reads the files again.
#[derive(Debug, Default)]
pub(super) struct ReportedWarnings {
    texts: Vec<String>,
    shortage: Option<DescriptorShortage>,
}

impl ReportedWarnings {
    pub(super) fn log(&mut self, read: &PreparedConfig) {
        if self.texts != read.warnings {
            for warning in &read.warnings {
                tracing::warn!("{warning}");
            }
            self.texts.clone_from(&read.warnings);
        }
        if self.shortage != read.shortage {
            self.shortage = read.shortage;
            if let Some(shortage) = self.shortage {
                shortage.log();
            }
        }
    }
}

/// Reads the file and checks the files that it names. Logs nothing.
pub(super) fn configured(file: &Path) -> Result<PreparedConfig, ConfigError> {
    files::load(file).map(PreparedConfig::new)
}

pub(super) fn configured_again(file: &Path) -> Result<PreparedConfig, ConfigError> {
    files::load_again(file).map(PreparedConfig::new)
}
