//! A terminal with someone in front of it.
//!
//! tmux is the terminal: it understands what full-screen programs send, so a
//! case can look at the screen as a person would instead of at escape codes.

use crate::{
    Account, Remote,
    process::{Output, Run},
    scratch::MARK,
    wait::until,
};
use anyhow::{Context, Result};
use std::{path::PathBuf, time::Duration};

const LIMIT: Duration = Duration::from_secs(90);

pub struct Terminal {
    account: Account,
    socket: PathBuf,
}

impl Terminal {
    /// `ssh -tt` in a terminal of 80 by 24. `socket` is a name in the account's
    /// directory that no other terminal of it has.
    pub fn open(remote: &Remote, socket: &str, options: &[&str], command: &str) -> Result<Self> {
        let account = remote.account().clone();
        let terminal = Self { socket: account.directory().join(socket), account };
        let mut words = vec![remote.ssh_command(), "-tt".into()];
        words.extend(options.iter().map(|option| (*option).to_owned()));
        words.push(remote.target());
        if !command.is_empty() {
            words.push(format!("'{}'", command.replace('\'', r"'\''")));
        }
        // The pane stays when ssh has ended, so that its last words can be read.
        let line = format!("{}; echo \"[ended with $?]\"; exec cat", words.join(" "));
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &line])?;
        Ok(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Result<Output> {
        Run::new("tmux")
            .env(MARK, &self.account.endpoint().scratch)
            .env("LC_ALL", "C.UTF-8")
            .without_env("TMUX")
            .args(["-f", "/dev/null", "-S"])
            .arg(&self.socket)
            .args(words)
            .ok()
    }

    pub fn screen(&self) -> Result<String> {
        Ok(self.tmux(&["capture-pane", "-p"])?.text())
    }

    /// Types text as it is.
    pub fn type_text(&self, text: &str) -> Result<()> {
        self.tmux(&["send-keys", "-l", text]).map(drop)
    }

    /// Presses a key by its name in tmux: `Enter`, `C-c`, `Escape`.
    pub fn press(&self, key: &str) -> Result<()> {
        self.tmux(&["send-keys", key]).map(drop)
    }

    pub fn enter(&self, line: &str) -> Result<()> {
        self.type_text(line)?;
        self.press("Enter")
    }

    pub fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]).map(drop)
    }

    /// Waits until the screen is as wanted, and returns it.
    pub fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = String::new();
        until(what, LIMIT, || {
            last = self.screen()?;
            Ok(wanted(&last).then(|| last.clone()))
        })
        .with_context(|| format!("the screen shows:\n{}", self.screen().unwrap_or_default()))
    }

    /// Waits for a line that is exactly this, spaces around it aside.
    pub fn shows_line(&self, line: &str) -> Result<String> {
        self.shows(&format!("the line {line:?}"), |screen| screen.lines().any(|shown| shown.trim() == line))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have gone with its last session.
        let _ = self.tmux(&["kill-server"]);
    }
}
