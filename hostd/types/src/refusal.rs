//! A refusal is an answer, not an accident: a kind, a sentence and a hint.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of refusal; each has its exit status for verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Failed,
    Usage,
    NotFound,
    NotAllowed,
    Conflict,
    Limit,
    Unavailable,
}

impl Code {
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::NotAllowed => 4,
            Self::Conflict => 5,
            Self::Limit => 6,
            Self::Unavailable => 7,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::NotAllowed => "not_allowed",
            Self::Conflict => "conflict",
            Self::Limit => "limit",
            Self::Unavailable => "unavailable",
        }
    }
}

/// `message` says what went wrong, `hint` what to do about it. Both are one
/// line and are shown as `berth: message: hint`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, ": {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_the_interface() {
        let all = [
            Code::Failed,
            Code::Usage,
            Code::NotFound,
            Code::NotAllowed,
            Code::Conflict,
            Code::Limit,
            Code::Unavailable,
        ];
        assert!(all.iter().map(|code| code.exit_status()).eq(1..=7));
        for code in all {
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{}\"", code.as_str()));
        }
    }
}
