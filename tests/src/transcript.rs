//! What people read, kept as text and compared with what they get.
//!
//! ```text
//! $ stop dev               what follows `ssh HOST`
//! dev is stopped           its standard output
//! $ info none
//! ! berth: there is …      the last line of its errors, when it fails
//! = 3                      its status, when that is not 0
//! ```
//!
//! `<…>` stands for anything within a line, PORT for the instance's port.
//! Runs of spaces count as one: columns are as wide as the ages in them.

use crate::{Account, Output};
use anyhow::{Result, ensure};

#[derive(Debug, Default)]
struct Step<'a> {
    words: &'a str,
    stdout: Vec<&'a str>,
    error: Option<&'a str>,
    status: i32,
}

/// Types every line of a transcript and compares what comes.
pub fn replay(account: &Account, transcript: &str) -> Result<()> {
    for step in steps(transcript)? {
        let output = account.verb(step.words)?;
        check(&step, &output, account.endpoint().address.port())?;
    }
    Ok(())
}

fn steps(transcript: &str) -> Result<Vec<Step<'_>>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in transcript.lines().filter(|line| !line.starts_with('#')) {
        if let Some(words) = line.strip_prefix("$ ") {
            steps.push(Step { words, ..Step::default() });
            continue;
        }
        let Some(step) = steps.last_mut() else { continue };
        if let Some(status) = line.strip_prefix("= ") {
            step.status = status.parse()?;
        } else if let Some(error) = line.strip_prefix("! ") {
            step.error = Some(error);
        } else {
            step.stdout.push(line);
        }
    }
    Ok(steps)
}

fn check(step: &Step<'_>, output: &Output, port: u16) -> Result<()> {
    ensure!(output.status == step.status, "expected status {}: {}", step.status, output.report());
    // Notices and progress come and go with the host's speed; a refusal is the last word.
    if let Some(error) = step.error {
        let errors = output.errors();
        let last: Vec<&str> = errors.lines().last().into_iter().collect();
        same(&[error], &last, port, output)?;
    }
    let said = output.text();
    same(&step.stdout, &said.lines().collect::<Vec<_>>(), port, output)
}

fn same(expected: &[&str], seen: &[&str], port: u16, output: &Output) -> Result<()> {
    let expected: Vec<String> =
        expected.iter().map(|line| squeeze(&line.replace("PORT", &port.to_string()))).collect();
    let seen: Vec<String> = seen.iter().map(|line| squeeze(line)).collect();
    let fits = expected.len() == seen.len()
        && expected.iter().zip(&seen).all(|(wanted, line)| matches(wanted, line));
    ensure!(fits, "expected:\n{}\ngot:\n{}\nof {}", expected.join("\n"), seen.join("\n"), output.report());
    Ok(())
}

fn squeeze(line: &str) -> String {
    let indent = if line.starts_with(' ') { " " } else { "" };
    format!("{indent}{}", line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Does a line fit a pattern in which `<…>` stands for anything?
pub fn matches(pattern: &str, line: &str) -> bool {
    let mut pieces = pattern.split("<…>");
    let Some(mut rest) = pieces.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut wild = false;
    for piece in pieces {
        wild = true;
        if piece.is_empty() {
            continue;
        }
        let Some(at) = rest.find(piece) else { return false };
        rest = rest.get(at + piece.len()..).unwrap_or_default();
    }
    rest.is_empty() || (wild && pattern.ends_with("<…>"))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_pattern_fits_what_it_says() {
        assert!(matches("a <…> c", "a b c"));
        assert!(matches("a <…>", "a b c"));
        assert!(matches("<…>c", "a b c"));
        assert!(matches("same", "same"));
        assert!(!matches("same", "same and more"));
        assert!(!matches("a <…> d", "a b c"));
    }
}
