//! Formats an error with all its causes for log lines.

use std::error::Error;
use std::fmt;

/// More causes than any error here has; bounds a cyclic chain.
const DEPTH_MAX: usize = 16;

/// Formats an error, followed by each cause that adds text: `the store failed: disk I/O error`.
#[derive(Clone, Copy)]
pub struct CauseChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for CauseChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut cause = self.0.source();
        for _ in 0..DEPTH_MAX {
            let Some(found) = cause else { break };
            let words = found.to_string();
            // Wrappers often repeat the wrapped text.
            if !said.contains(&words) {
                write!(f, ": {words}")?;
                said = words;
            }
            cause = found.source();
        }
        Ok(())
    }
}

impl fmt::Debug for CauseChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct LayeredError {
        words: &'static str,
        #[source]
        cause: Option<Box<dyn Error + Send + Sync>>,
    }

    #[test]
    fn every_cause_is_said_once() {
        let deepest = LayeredError { words: "disk I/O error", cause: None };
        let middle = io::Error::other(deepest);
        let outer = LayeredError { words: "the store failed", cause: Some(middle.into()) };
        let whole = LayeredError { words: "the store did not do it", cause: Some(Box::new(outer)) };
        assert_eq!(CauseChain(&whole).to_string(), "the store did not do it: the store failed: disk I/O error");
    }
}
