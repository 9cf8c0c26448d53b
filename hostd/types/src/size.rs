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

/// Units with the power of two that each stands for, largest first.
const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
/// A whole number of a smaller unit is shown up to here: 1500M, but not 1205632K.
const EXACT_BELOW: u64 = 10_000;

/// The largest unit in which one decimal is exact, else one unit smaller if that is a
/// short whole number: what was asked for as 1500M is not shown as 1.4G. All other sizes
/// are rounded down to one decimal.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(shift, _): &&(u32, &str)| self.0 >> shift > 0;
        let Some((shift, unit)) = UNITS.iter().find(fits) else { return f.pad(&self.0.to_string()) };
        let tenfold = u128::from(self.0) * 10;
        let exact = tenfold.trailing_zeros() >= *shift;
        let smaller = UNITS.iter().find(|(smaller, _)| smaller < shift);
        if let Some((smaller, unit)) = smaller.filter(|_| !exact)
            && self.0.trailing_zeros() >= *smaller
            && self.0 >> smaller < EXACT_BELOW
        {
            return f.pad(&format!("{}{unit}", self.0 >> smaller));
        }
        let (whole, tenth) = ((tenfold >> shift) / 10, (tenfold >> shift) % 10);
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
        for text in ["512M", "1.5G", "10G", "2T", "900", "1500M", "1025K", "9999M"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn rounds_what_has_no_short_form() {
        for (bytes, shown) in [((1 << 30) + 4096, "1G"), (10_001 << 20, "9.7G"), (1_234_567_168, "1.1G")] {
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
    }
}
