//! Writes what a client is told of a call before its answer: progress, which only rises, signs of life between it, and log
//! messages.
//!
//! A sign of life is the last value plus next to nothing, so that the upstream's own progress still rises above it.

use bytes::Bytes;

use crate::dialect::negotiate::LogLevel;
use crate::upstream::Progress;
use crate::wire::framing::{sse_comment, sse_message};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, envelope, meta, method};

/// What one client is told of a call before its answer, but for questions.
#[derive(Debug)]
pub struct CallNotices {
    /// Where progress is shown, if the client wants any.
    pub progress: Option<MonotonicProgress>,
    /// Whether silence shows as progress, where the client wants any, and not as a comment.
    pub life_signs: bool,
    pub logs: LogFilter,
}

/// Which log messages a client is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFilter {
    None,
    /// Those of this level and above.
    From(LogLevel),
    All,
}

impl CallNotices {
    /// Shows that the call lives, as it stands on a stream: to clients that let progress reset their timers as progress,
    /// to balancers and all others as a comment.
    #[must_use]
    pub fn sign(&mut self) -> Bytes {
        match &mut self.progress {
            Some(rising) if self.life_signs => sse_message(&rising.sign()),
            Some(_) | None => sse_comment(),
        }
    }

    /// Progress under the client's own token, rising only (MOD-22, T-73).
    #[must_use]
    pub fn progress(&mut self, progress: &Progress) -> Option<Bytes> {
        let rising = self.progress.as_mut()?;
        let value = rising.real(&progress.progress, progress.total.as_ref())?;
        Some(rising.notification(&value, progress.message.as_deref()))
    }

    /// A log message, unless the client set no level, or one above it (MOD-23).
    #[must_use]
    pub fn log(&self, log: &Payload) -> Option<Bytes> {
        let level = || Object::of(log)?.get_string("level").as_deref().and_then(LogLevel::parse);
        let is_wanted = match self.logs {
            LogFilter::None => false,
            LogFilter::From(wanted) => level().is_some_and(|level| level >= wanted),
            LogFilter::All => true,
        };
        is_wanted.then(|| envelope::notification(method::LOG_MESSAGE, Some(log)))
    }
}

/// By how much a sign of life rises: far less than any progress means, and 240 an hour stay so.
const STEP: f64 = 1e-9;

/// What was shown under one progress token.
#[derive(Clone, Debug)]
pub struct MonotonicProgress {
    token: Payload,
    total: Option<Payload>,
    /// The upstream's last value, and the last that the client saw.
    real: Option<f64>,
    shown: Option<f64>,
}

impl MonotonicProgress {
    /// Nothing was shown yet under this token, which is repeated exactly as it is spelt.
    #[must_use]
    pub const fn new(token: Payload) -> Self {
        Self { token, total: None, real: None, shown: None }
    }

    /// The token.
    #[must_use]
    pub const fn token(&self) -> &Payload {
        &self.token
    }

    /// Takes note of the upstream's progress. Returns the value to show: the upstream's own text where it rises
    /// above what was shown, a little more than that where only signs of life stand above it. `None` where the
    /// upstream's progress does not rise (MOD-22, T-73), or is no number.
    pub fn real(&mut self, value: &Payload, total: Option<&Payload>) -> Option<Payload> {
        let number = value.as_str().parse::<f64>().ok().filter(|number| number.is_finite())?;
        if self.real.is_some_and(|real| number <= real) {
            return None;
        }
        self.real = Some(number);
        self.total = total.map(Payload::detached);
        if self.shown.is_none_or(|shown| number > shown) {
            self.shown = Some(number);
            return Some(value.clone());
        }
        Some(self.raise())
    }

    /// What there is in all, as the upstream said last.
    #[must_use]
    pub const fn total(&self) -> Option<&Payload> {
        self.total.as_ref()
    }

    /// Whether signs of life stand above the upstream's last value.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.shown > self.real
    }

    /// A sign of life, as a message.
    #[must_use]
    pub fn sign(&mut self) -> Bytes {
        let value = self.raise();
        self.notification(&value, None)
    }

    /// `notifications/progress` with a value that was given out here.
    #[must_use]
    pub fn notification(&self, value: &Payload, message: Option<&str>) -> Bytes {
        let mut params = ObjectWriter::new().member(meta::PROGRESS_TOKEN, &self.token).member("progress", value);
        if let Some(total) = &self.total {
            params = params.member("total", total);
        }
        if let Some(message) = message {
            params = params.text("message", message);
        }
        envelope::notification(method::PROGRESS, Some(&params.finish()))
    }

    /// The value of a sign of life: next to nothing above what was shown.
    #[must_use]
    pub fn raise(&mut self) -> Payload {
        let last = self.shown.unwrap_or(0.0);
        // A large number may have no neighbour that near.
        let next = if last + STEP > last { last + STEP } else { last.next_up() };
        self.shown = Some(next);
        Payload::of(&next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(rising: &mut MonotonicProgress, text: &str) -> Option<String> {
        let value = Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), crate::wire::ScanLimits::CLIENT).unwrap();
        rising.real(&value, None).map(|shown| shown.as_str().to_owned())
    }

    fn value(sign: &Bytes) -> f64 {
        serde_json::from_slice::<serde_json::Value>(sign).unwrap()["params"]["progress"].as_f64().unwrap()
    }

    /// MOD-22, T-73.
    #[test]
    fn mod_22_signs_rise_and_real_progress_rises_above_them_as_it_is_spelt() {
        let mut rising = MonotonicProgress::new(Payload::of("t"));
        let first = rising.sign();
        assert!(value(&first) > 0.0 && value(&rising.sign()) > value(&first) && rising.is_ahead());
        // It may begin with 0, which signs stand above already.
        let zero: f64 = real(&mut rising, "0").unwrap().parse().unwrap();
        assert!(zero > value(&first) && zero < 1e-6);
        assert_eq!(real(&mut rising, "1.50").as_deref(), Some("1.50"));
        assert!(!rising.is_ahead());
        assert_eq!(real(&mut rising, "1.5"), None, "the upstream's own values must rise");
        assert_eq!((real(&mut rising, "1"), real(&mut rising, "\"2\"")), (None, None));
        for _ in 0..10_000 {
            let sign = value(&rising.sign());
            assert!(sign > 1.5 && sign < 1.500_02);
        }
        assert_eq!(real(&mut rising, "1.51").as_deref(), Some("1.51"));
        for large in ["9007199254740993", "1e300"] {
            let shown: f64 = real(&mut rising, large).unwrap().parse().unwrap();
            assert!(value(&rising.sign()) > shown, "{large}");
        }
    }
}
