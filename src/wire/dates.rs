//! Reads the digits of dates and times (RFC 3339).

/// The year, month and day of an existing date.
pub fn date_of(text: &str) -> Option<[i64; 3]> {
    let [year, month, day] = numbers(text, '-', [4, 2, 2])?;
    let is_day = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    is_day.then_some([year, month, day])
}

/// The numbers between separators, each with this many digits.
pub fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(between);
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = is_number.then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(numbers)
}

const fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
