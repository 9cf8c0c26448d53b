//! The README's tour, pasted line by line.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Output, repository};
use std::fs;

pub const CASES: &[Case] = cases![
    Service:
        the_tour_can_be_pasted;
];

/// In the block marked `sh tour`, lines that start with a client are typed, and
/// a `# → text` below one must occur in what it says.
fn the_tour_can_be_pasted(context: &Context) -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let tour = readme.split_once("```sh tour\n").and_then(|(_, rest)| rest.split_once("```"));
    let (tour, _) = tour.context("the README has no block marked `sh tour`")?;
    let account = context.account()?;
    let port = account.endpoint().address.port();
    let here = |text: &str| text.replace("2222", &port.to_string());
    let mut last: Option<(&str, Output)> = None;
    let mut count = 0;
    for line in tour.lines() {
        let typed = line.trim_start();
        if let Some(expected) = typed.strip_prefix("# → ") {
            let (said, out) = last.as_ref().context("an answer before any line")?;
            let all = format!("{}{}", out.text(), out.errors());
            ensure!(all.contains(&here(expected.trim())), "{said} should say {expected:?}: {}", out.report());
        } else if ["ssh ", "scp ", "sftp ", "rsync "].iter().any(|client| typed.starts_with(client)) {
            // It says that it is typed in the checkout.
            last = Some((typed, account.paste(&here(typed), repository())?));
            count += 1;
        }
    }
    ensure!(count >= 4, "only {count} lines in the tour");
    Ok(())
}
