//! Durations as people write them: `30s`, `10m`, `2h`, `1d`, `1h30m`.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSpan {
    #[error("a duration is a number with s, m, h or d behind it")]
    Form,
    #[error("a duration cannot be zero")]
    Zero,
    #[error("that duration is longer than ten years")]
    TooLong,
}

const TEN_YEARS: u64 = 10 * 366 * 86_400;

/// A duration that a person wrote. In config files it is their text; in
/// records and `--json` it is milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SpanForm", into = "u64")]
pub struct Span(Duration);

#[derive(Deserialize)]
#[serde(untagged)]
enum SpanForm {
    Millis(u64),
    Text(String),
}

impl Span {
    pub const fn seconds(count: u64) -> Self {
        Self(Duration::from_secs(count))
    }

    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl TryFrom<SpanForm> for Span {
    type Error = InvalidSpan;

    fn try_from(form: SpanForm) -> Result<Self, InvalidSpan> {
        match form {
            SpanForm::Millis(millis) => Ok(Self(Duration::from_millis(millis))),
            SpanForm::Text(text) => text.parse(),
        }
    }
}

impl From<Span> for u64 {
    fn from(span: Span) -> Self {
        Self::try_from(span.0.as_millis()).unwrap_or(Self::MAX)
    }
}

impl FromStr for Span {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Self, InvalidSpan> {
        let mut seconds = 0u64;
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(InvalidSpan::Form);
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(InvalidSpan::Form)?;
            let (number, tail) = rest.split_at(digits);
            let mut letters = tail.chars();
            let unit = match letters.next() {
                Some('s') => 1,
                Some('m') => 60,
                Some('h') => 3_600,
                Some('d') => 86_400,
                _ => return Err(InvalidSpan::Form),
            };
            if number.is_empty() {
                return Err(InvalidSpan::Form);
            }
            let number: u64 = number.parse().map_err(|_| InvalidSpan::TooLong)?;
            seconds = number
                .checked_mul(unit)
                .and_then(|more| seconds.checked_add(more))
                .ok_or(InvalidSpan::TooLong)?;
            rest = letters.as_str();
        }
        match seconds {
            0 => Err(InvalidSpan::Zero),
            seconds if seconds > TEN_YEARS => Err(InvalidSpan::TooLong),
            seconds => Ok(Self::seconds(seconds)),
        }
    }
}

impl fmt::Display for Span {
    /// At most two units: `2h`, `1h30m`, `3d4h`, `250ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.as_secs();
        if total == 0 {
            return f.pad(&format!("{}ms", self.0.subsec_millis()));
        }
        let units =
            [(total / 86_400, "d"), (total / 3_600 % 24, "h"), (total / 60 % 60, "m"), (total % 60, "s")];
        let shown = units.iter().skip_while(|(count, _)| *count == 0).take(2).filter(|(count, _)| *count > 0);
        f.pad(&shown.map(|(count, unit)| format!("{count}{unit}")).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        for text in ["30s", "10m", "2h", "1d", "1h30m"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("90m".parse::<Span>().unwrap().to_string(), "1h30m");
    }

    #[test]
    fn refuses_the_rest() {
        for (text, why) in [
            ("", InvalidSpan::Form),
            ("2", InvalidSpan::Form),
            ("h", InvalidSpan::Form),
            ("-2h", InvalidSpan::Form),
            ("2w", InvalidSpan::Form),
            ("0s", InvalidSpan::Zero),
            ("99999d", InvalidSpan::TooLong),
            ("99999999999999999999s", InvalidSpan::TooLong),
        ] {
            assert_eq!(text.parse::<Span>(), Err(why), "{text}");
        }
    }
}
