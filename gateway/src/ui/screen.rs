//! The one owner of what a channel's client sees of the gateway itself.

use crate::ssh::channel::{Gone, Outlet};
use berth_types::Refusal;
use bytes::Bytes;
use serde_json::json;

/// Which of a terminal's two streams a live line goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveOn {
    /// For people: a client prints the live line, what clears it and the answer in the order in
    /// which they were sent, which it does not do across two streams.
    Output,
    /// Where the answer is a value or a command's own output, which programs read.
    Errors,
}

/// Results go to standard output, everything else to standard error.
#[derive(Debug)]
pub struct Screen<'a> {
    outlet: &'a Outlet,
    /// A terminal: lines end in CR LF, colour and live lines are welcome.
    terminal: bool,
}

impl<'a> Screen<'a> {
    pub const fn new(outlet: &'a Outlet, terminal: bool) -> Self {
        Self { outlet, terminal }
    }

    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub async fn result(&self, text: &str) -> Result<(), Gone> {
        self.outlet.data(self.lines(text)).await
    }

    /// `berth: …` on standard error.
    pub async fn notice(&self, text: &str) -> Result<(), Gone> {
        self.outlet.errors(self.lines(&format!("berth: {text}\n"))).await
    }

    pub async fn refusal(&self, refusal: &Refusal) -> Result<(), Gone> {
        self.notice(&refusal.to_string()).await
    }

    /// For `--json`: the same as a value on standard output.
    pub async fn refusal_value(&self, refusal: &Refusal) -> Result<(), Gone> {
        let error = json!({
            "code": refusal.code.as_str(), "message": refusal.message, "hint": refusal.hint,
        });
        self.result(&format!("{}\n", json!({ "error": error }))).await
    }

    /// A line that the next one replaces; only for terminals.
    pub async fn live(&self, on: LiveOn, text: &str) -> Result<(), Gone> {
        let line = Bytes::from(format!("\r\u{1b}[K{text}"));
        match on {
            LiveOn::Output => self.outlet.data(line).await,
            LiveOn::Errors => self.outlet.errors(line).await,
        }
    }

    fn lines(&self, text: &str) -> Bytes {
        if self.terminal { Bytes::from(text.replace('\n', "\r\n")) } else { Bytes::from(text.to_owned()) }
    }
}
