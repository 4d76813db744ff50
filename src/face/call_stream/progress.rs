//! Writes a call's progress, life signs and log messages. A life sign is the last progress value plus almost nothing,
//! so that the upstream's next value still exceeds it. Forwarded bytes are parsed for the last value; progress is
//! changed only where earlier life signs exceed it.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::dialect::negotiate::LogLevel;
use crate::upstream::reply::ReadLimits;
use crate::upstream::{Progress, ServerNotification};
use crate::wire::framing::{BodyPart, SseEvent};
use crate::wire::progress::{self, ProgressView};
use crate::wire::{Message, Notification, Object, Payload, RequestId, Response, ScanLimits, envelope, meta, method};

#[derive(Debug)]
pub struct CallNotices {
    /// Absent if the client requested no progress.
    pub progress: Option<MonotonicProgress>,
    /// Whether life signs are progress, if the client requested any, and not comments.
    pub life_signs: bool,
    pub logs: LogFilter,
    pub(crate) limits: ReadLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFilter {
    None,
    From(LogLevel),
    All,
}

impl CallNotices {
    /// Progress resets the timeouts of clients; a comment serves proxies.
    pub fn life_sign(&mut self) -> BodyPart {
        match &mut self.progress {
            Some(rising) if self.life_signs => rising.life_sign(None),
            Some(_) | None => BodyPart::comment(),
        }
    }

    pub const fn signs_are_progress(&self) -> bool {
        self.life_signs && self.progress.is_some()
    }

    /// Progress under the client's token, strictly increasing (MOD-22, T-73).
    pub fn progress(&mut self, progress: &Progress) -> Option<Bytes> {
        let rising = self.progress.as_mut()?;
        let value = rising.real(&progress.progress, progress.total.as_ref())?;
        Some(rising.notification(&value, progress.message.as_deref(), None))
    }

    /// A log message, unless the client set no level, or a higher one (MOD-23).
    pub fn log(&self, received: &ServerNotification) -> Option<Bytes> {
        let (name, params) = received;
        let is_wanted = match self.logs {
            LogFilter::None => false,
            LogFilter::From(wanted) => LogLevel::of(params.as_ref().and_then(Object::of).as_ref()) >= Some(wanted),
            LogFilter::All => true,
        };
        (is_wanted && **name == *method::LOG_MESSAGE).then(|| self.notification(received))
    }

    /// A notification for the client. It takes the bytes that the server's message held until now (B190).
    pub fn notification(&self, (name, params): &ServerNotification) -> Bytes {
        self.limits.rehold(envelope::notification(name, params.as_ref()))
    }
}

/// The increment is far below any real progress, even at 240 life signs an hour.
const STEP: f64 = 1e-9;

#[derive(Clone, Debug)]
pub struct MonotonicProgress {
    token: Payload,
    total: Option<Payload>,
    /// The upstream's last value, and the last value sent.
    real: Option<f64>,
    shown: Option<f64>,
}

impl MonotonicProgress {
    /// Writes the token exactly as it is spelt.
    pub const fn new(token: Payload) -> Self {
        Self { token, total: None, real: None, shown: None }
    }

    /// The upstream's value, or slightly more than life signs; `None` unless it is a number that rises (MOD-22, T-73).
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
        self.raise()
    }

    /// Whether a life sign exceeds the upstream's last value.
    pub fn is_ahead(&self) -> bool {
        self.shown > self.real
    }

    /// Progress, or a comment if no number exceeds the last one. `related` names the task, if the client needs it.
    pub fn life_sign(&mut self, related: Option<&Payload>) -> BodyPart {
        let sign = self.raise().map(|value| BodyPart::message(self.notification(&value, None, related)));
        sign.unwrap_or_else(BodyPart::comment)
    }

    pub fn notification(&self, value: &Payload, message: Option<&str>, related: Option<&Payload>) -> Bytes {
        let step = ProgressView { progress: value, total: self.total.as_ref(), message };
        progress::notification(&self.token, step, related)
    }

    fn raise(&mut self) -> Option<Payload> {
        let last = self.shown.unwrap_or(0.0);
        // Adding the step to a large number may not change it.
        let next = if last + STEP > last { last + STEP } else { last.next_up() };
        next.is_finite().then(|| Payload::of(self.shown.insert(next)))
    }
}

/// The largest event that is parsed. A larger one is a response, after which nothing is sent.
const EVENT_BYTES_MAX: usize = 16 * 1024;

/// Shared by all writers of one call's response.
#[derive(Clone, Debug)]
pub(in crate::face) struct LifeSigns(Arc<Mutex<ProgressWatch>>);

#[derive(Debug)]
struct ProgressWatch {
    rising: MonotonicProgress,
    id: RequestId,
    /// Whether progress is no longer allowed, or its state is unknown.
    is_over: bool,
}

impl LifeSigns {
    pub(in crate::face) fn new(id: RequestId, token: Payload) -> Self {
        Self(Arc::new(Mutex::new(ProgressWatch { rising: MonotonicProgress::new(token), id, is_over: false })))
    }

    /// Must be written between two events.
    pub(in crate::face) fn life_sign(&self) -> BodyPart {
        let mut watch = self.0.lock();
        if watch.is_over { BodyPart::comment() } else { watch.rising.life_sign(None) }
    }

    /// Reads a forwarded part with the `events` that end in it, `None` once one was too large; `is_whole`: it begins
    /// and ends between events. Returns whether they carry progress, by which alone some clients reset timers.
    pub(in crate::face) fn pass(
        &self,
        part: BodyPart,
        events: Option<&[SseEvent]>,
        is_whole: bool,
    ) -> (BodyPart, bool) {
        let mut watch = self.0.lock();
        let is_looked_into = |events: &&[SseEvent]| events.iter().all(|event| event.data.len() <= EVENT_BYTES_MAX);
        let Some(events) = events.filter(is_looked_into).filter(|_| !watch.is_over) else {
            watch.is_over = true;
            return (part, true);
        };
        let mut says = false;
        let is_single = is_whole && events.len() == 1;
        let mut passed = part;
        for event in events {
            match event.data.read(ScanLimits::UPSTREAM).as_deref() {
                Ok(Message::Notification(notification)) if notification.method == method::PROGRESS => {
                    says = true;
                    let raised = watch.raised(notification).filter(|_| is_single);
                    if let Some(text) = raised.and_then(|value| with_progress(&event.data, &value)) {
                        passed = passed.with_data(&[text.into()]).swap_remove(0);
                    }
                }
                // Progress ends with the response (MOD-22).
                Ok(Message::Response(Response { id: Some(id), .. })) if *id == watch.id => watch.is_over = true,
                Ok(Message::Notification(_) | Message::Request(_) | Message::Response(_)) | Err(_) => (),
            }
        }
        (passed, says)
    }
}

impl ProgressWatch {
    /// The value to send if the upstream's own would not increase.
    fn raised(&mut self, notification: &Notification) -> Option<Payload> {
        let params = notification.params.object()?;
        let (token, value) = (params.get(meta::PROGRESS_TOKEN)?, params.get("progress")?);
        // The same token may be spelt differently.
        let decoded = |token: &Payload| token.read::<serde_json::Value>().ok();
        if token != self.rising.token && decoded(&token) != decoded(&self.rising.token) {
            return None;
        }
        let was_ahead = self.rising.is_ahead();
        let shown = self.rising.real(&value, params.get("total").as_ref())?;
        (was_ahead && shown != value).then_some(shown)
    }
}

fn with_progress(message: &Bytes, value: &Payload) -> Option<Bytes> {
    let message = Object::of(&Payload::parse(message, ScanLimits::UPSTREAM).ok()?)?;
    let params = message.get_object("params")?.edit().set("progress", value.clone()).finish();
    Some(message.edit().set("params", params).finish().into_bytes())
}

pub(in crate::face) fn progress_token(params: &Object) -> Option<Payload> {
    progress::token(params).map(|token| token.payload())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_budget::{AnswerBudget, FREE_BYTES};
    use crate::task::Principal;
    use crate::wire::framing::SseDecoder;

    /// B190: it is a copy of the server's message.
    #[test]
    fn b190_a_log_message_holds_its_bytes_until_its_client_has_it() {
        let budget = AnswerBudget::default();
        let share = budget.share(&Principal::local(), usize::MAX);
        let limits = ReadLimits::within(0, share);
        let notices = CallNotices { progress: None, life_signs: false, logs: LogFilter::All, limits };
        let log = Payload::text(&"x".repeat(2 * FREE_BYTES));
        let message = notices.log(&(Arc::from(method::LOG_MESSAGE), Some(log))).unwrap();
        assert_eq!(budget.in_use(), message.len());
        drop(message);
        assert_eq!(budget.in_use(), 0);
    }

    fn real(rising: &mut MonotonicProgress, text: &str) -> Option<String> {
        let value = Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap();
        rising.real(&value, None).map(|shown| shown.as_str().to_owned())
    }

    fn value(sign: &BodyPart) -> f64 {
        let text = &sign.event().expect("a sign with progress").data;
        serde_json::from_slice::<serde_json::Value>(text).unwrap()["params"]["progress"].as_f64().unwrap()
    }

    /// MOD-22, T-73.
    #[test]
    fn mod_22_signs_rise_and_real_progress_rises_above_them_as_it_is_spelt() {
        let mut rising = MonotonicProgress::new(Payload::of("t"));
        let first = rising.life_sign(None);
        assert!(value(&first) > 0.0 && value(&rising.life_sign(None)) > value(&first) && rising.is_ahead());
        // It may begin with 0, which earlier life signs exceed.
        let zero: f64 = real(&mut rising, "0").unwrap().parse().unwrap();
        assert!(zero > value(&first) && zero < 1e-6);
        assert_eq!(real(&mut rising, "1.50").as_deref(), Some("1.50"));
        assert!(!rising.is_ahead());
        assert_eq!(real(&mut rising, "1.5"), None, "the upstream's own values must rise");
        assert_eq!((real(&mut rising, "1"), real(&mut rising, "\"2\"")), (None, None));
        for _ in 0..10_000 {
            let life_sign = value(&rising.life_sign(None));
            assert!(life_sign > 1.5 && life_sign < 1.500_02);
        }
        assert_eq!(real(&mut rising, "1.51").as_deref(), Some("1.51"));
        for large in ["9007199254740993", "1e300"] {
            let shown: f64 = real(&mut rising, large).unwrap().parse().unwrap();
            assert!(value(&rising.life_sign(None)) > shown, "{large}");
        }
        assert!(real(&mut rising, "1.7976931348623157e308").is_some());
        assert!(rising.life_sign(None).is_comment(), "no number is larger");
    }

    /// MOD-22: servers may spell an id in another way.
    #[test]
    fn mod_22_no_progress_follows_a_response_whose_id_is_spelt_in_another_way() {
        let signs = LifeSigns::new(RequestId::text("\u{e9}"), Payload::of("t"));
        assert!(!signs.life_sign().is_comment());
        let part = BodyPart::message(Bytes::from_static(br#"{"jsonrpc":"2.0","id":"\u00e9","result":{}}"#));
        let events = SseDecoder::new(EVENT_BYTES_MAX).take(&part).unwrap();
        signs.pass(part, Some(&events), true);
        assert!(signs.life_sign().is_comment());
    }
}
