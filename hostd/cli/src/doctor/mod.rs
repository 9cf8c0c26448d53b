//! `berth doctor`: what is there, what is missing, what will be used.

mod host;
mod hypervisor;

use crate::{context::Context, output};
use berth_types::{Code, Refusal};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// Worth knowing; nothing has to be done.
    Note,
    Missing,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    detail: String,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { what, verdict, detail: detail.into() }
    }
}

pub fn run(context: &Context) -> Result<(), Refusal> {
    let mut findings = vec![configuration(context)];
    findings.extend(hypervisor::findings(&context.config));
    findings.extend(host::findings(context));
    let missing = findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count();
    if context.json {
        output::json(&findings)?;
    } else {
        let rows = findings.iter().map(|finding| {
            let verdict = match finding.verdict {
                Verdict::Good => "ok",
                Verdict::Note => "note",
                Verdict::Missing => "MISSING",
            };
            [verdict.to_owned(), finding.what.to_owned(), finding.detail.clone()]
        });
        output::table(["", "WHAT", "FOUND"], rows);
    }
    if missing == 0 {
        return Ok(());
    }
    let hint = "'make setup' installs programs, 'make image' makes the image";
    Err(Refusal::new(Code::Failed, format!("missing: {missing}"), hint))
}

fn configuration(context: &Context) -> Finding {
    let from = match &context.path {
        Some(path) => path.display().to_string(),
        None => "built in, for development".to_owned(),
    };
    Finding::new("configuration", Verdict::Good, from)
}

/// A program by its path, or wherever PATH or the administrator's places have it.
fn find(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return program.exists().then(|| program.to_owned());
    }
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.exists())
}
