//! Checks the four formats of a form's texts. Refuses only clear violations, as the server decides.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Email,
    Uri,
    Date,
    DateTime,
}

impl Format {
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "email" => Some(Self::Email),
            "uri" => Some(Self::Uri),
            "date" => Some(Self::Date),
            "date-time" => Some(Self::DateTime),
            _ => None,
        }
    }

    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Email => "email address",
            Self::Uri => "address with its scheme",
            Self::Date => "date, YYYY-MM-DD",
            Self::DateTime => "time, YYYY-MM-DDThh:mm:ssZ",
        }
    }

    /// The error is the expected form.
    pub(super) fn check(self, text: &str) -> Result<(), String> {
        let fits = match self {
            Self::Email => is_email(text),
            Self::Uri => url::Url::parse(text).is_ok(),
            Self::Date => is_date(text),
            Self::DateTime => is_date_time(text),
        };
        if fits { Ok(()) } else { Err(format!("this is wanted: {}", self.hint())) }
    }
}

fn is_email(text: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c == '@');
    text.rsplit_once('@').is_some_and(|(user, host)| is_plain(user) && is_plain(host))
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let &[year, month, day] = parts.as_slice() else { return false };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2)) else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// RFC 3339, section 5.6.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let Some(at) = time.find(['Z', 'z', '+', '-']) else { return false };
    let (time, zone) = time.split_at(at);
    let zone_fits = zone.eq_ignore_ascii_case("z") || is_clock(&zone[1..], 2);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let fraction_fits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    is_date(date) && is_clock(time, 3) && fraction_fits && zone_fits
}

/// Hours and minutes, and seconds if there are three `parts`. Leap seconds are accepted.
fn is_clock(text: &str, parts: usize) -> bool {
    let ends = [23, 59, 60];
    let found: Vec<_> = text.split(':').map(|part| digits(part, 2)).collect();
    found.len() == parts && found.iter().zip(ends).all(|(part, end)| part.is_some_and(|part| part <= end))
}

fn digits(text: &str, count: usize) -> Option<u32> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}
