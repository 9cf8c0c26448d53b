//! `berth audit`: what was done here, and whether that record is whole.

use crate::{context::Context, output};
use berth_audit::{AuditError, Query, Report, query, read_head_file, read_public_key, verify};
use berth_types::{AuditEntry, Code, MachineName, Refusal, Span};
use clap::Subcommand;
use jiff::{SignedDuration, Timestamp};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// The newest entries, everybody's, as lines of JSON
    Show {
        /// Only what concerns machines of this name
        #[arg(long)]
        machine: Option<MachineName>,
        /// Only what is not older than this: 30m, 2h
        #[arg(long)]
        since: Option<Span>,
        /// How many at most
        #[arg(long, default_value_t = 200)]
        most: usize,
    },
    /// Has a line been changed, left out or moved?
    Verify {
        /// The public key that signed it [default: the one beside the log]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// A copy of 'head' or 'egress-head' that was kept elsewhere: its line must be there
        #[arg(long, value_name = "FILE")]
        head: Vec<PathBuf>,
    },
}

pub fn run(context: &Context, command: Command) -> Result<(), Refusal> {
    context.need_root("audit")?;
    let directory = context.config.service.data.join("audit");
    match command {
        Command::Show { machine, since, most } => {
            let since = since.and_then(|span| SignedDuration::try_from(span.duration()).ok());
            let since = since.and_then(|span| Timestamp::now().checked_sub(span).ok());
            let wanted = Query { machine, since, most, ..Query::default() };
            show(context, &query(&directory, &wanted).map_err(unreadable)?)
        }
        Command::Verify { key, head } => {
            let key = read_public_key(key.as_ref().unwrap_or(&directory)).map_err(unreadable)?;
            let kept = head.iter().map(|path| read_head_file(path)).collect::<Result<Vec<_>, _>>();
            let kept = kept.map_err(unreadable)?;
            judge(context, &verify(&directory, &key, &kept).map_err(unreadable)?)
        }
    }
}

fn show(context: &Context, entries: &[AuditEntry]) -> Result<(), Refusal> {
    if context.json {
        return output::json(&entries);
    }
    entries.iter().try_for_each(output::json)
}

fn judge(context: &Context, report: &Report) -> Result<(), Refusal> {
    if context.json {
        output::json(report)?;
    }
    if let Some(first) = report.problems.first() {
        if !context.json {
            for problem in &report.problems {
                show!("{}:{}: {}", problem.file, problem.line, problem.what);
            }
        }
        let message =
            format!("the audit log is not as it was written, first in {} line {}", first.file, first.line);
        return Err(Refusal::new(Code::Failed, message, "compare it with the copy that you keep elsewhere"));
    }
    if !context.json {
        let Report { entries, files, checkpoints, unsigned, signed, .. } = report;
        show!(
            "whole: {entries} entries in {files} files, {checkpoints} checkpoints, {unsigned} entries not signed yet"
        );
        match signed {
            Some(time) => show!("its end was signed at {time}: a copy that is as old looks the same"),
            None => show!("its end is not signed: a version wrote it that did not do that"),
        }
        if report.torn_bytes > 0 {
            show!(
                "its last line is not finished ({} bytes): it is being written, or a crash tore it",
                report.torn_bytes
            );
        }
    }
    Ok(())
}

fn unreadable(error: AuditError) -> Refusal {
    let cause = std::error::Error::source(&error).map(|cause| format!(" ({cause})")).unwrap_or_default();
    Refusal::new(Code::Failed, format!("{error}{cause}"), "has the service run here yet?")
}
