//! Sizes as people write them: `512M`, `4G`, `1.5G`. Powers of 1024 throughout.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSize {
    #[error("a size is a number with K, M, G or T behind it")]
    Form,
    #[error("a size cannot be zero")]
    Zero,
    #[error("a size cannot be negative")]
    Negative,
    #[error("that size is larger than any machine")]
    Overflow,
}

/// A number of bytes. In records and `--json` it is the plain number; config
/// files may write it as people do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(try_from = "SizeForm", into = "u64")]
pub struct ByteSize(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeForm {
    Bytes(u64),
    Text(String),
}

impl TryFrom<SizeForm> for ByteSize {
    type Error = InvalidSize;

    fn try_from(form: SizeForm) -> Result<Self, InvalidSize> {
        match form {
            SizeForm::Bytes(bytes) => Ok(Self(bytes)),
            SizeForm::Text(text) => text.parse(),
        }
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

impl ByteSize {
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let text = text.trim();
        if text.starts_with('-') {
            return Err(InvalidSize::Negative);
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(InvalidSize::Form),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if number.is_empty() || whole.is_empty() || fraction.is_empty() || fraction.len() > 9 {
            return Err(InvalidSize::Form);
        }
        if fraction.contains('.') {
            return Err(InvalidSize::Form);
        }
        let unit = 1u128 << shift;
        let whole: u128 = whole.parse().map_err(|_| InvalidSize::Overflow)?;
        let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| InvalidSize::Overflow)?);
        let part = fraction.parse::<u128>().map_err(|_| InvalidSize::Overflow)? * unit / scale;
        let bytes =
            whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(part)).ok_or(InvalidSize::Overflow)?;
        match u64::try_from(bytes).map_err(|_| InvalidSize::Overflow)? {
            0 => Err(InvalidSize::Zero),
            bytes => Ok(Self(bytes)),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = match self.0 {
            bytes if bytes >= 1 << 40 => (40, "T"),
            bytes if bytes >= 1 << 30 => (30, "G"),
            bytes if bytes >= 1 << 20 => (20, "M"),
            bytes if bytes >= 1 << 10 => (10, "K"),
            bytes => return f.pad(&bytes.to_string()),
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        let (whole, tenth) = (tenths / 10, tenths % 10);
        f.pad(&if tenth == 0 { format!("{whole}{unit}") } else { format!("{whole}.{tenth}{unit}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in
            [("1", 1), ("512M", 512 << 20), ("4g", 4 << 30), ("1.5G", 3 << 29), ("10GiB", 10 << 30)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_with_a_reason() {
        for (text, why) in [
            ("", InvalidSize::Form),
            ("lots", InvalidSize::Form),
            ("1.2.3G", InvalidSize::Form),
            (".5G", InvalidSize::Form),
            ("1X", InvalidSize::Form),
            ("0", InvalidSize::Zero),
            ("0G", InvalidSize::Zero),
            ("-1G", InvalidSize::Negative),
            ("99999999999999999999G", InvalidSize::Overflow),
            ("17000000T", InvalidSize::Overflow),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Err(why), "{text}");
        }
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["512M", "1.5G", "10G", "2T", "900"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }
}
