//! `snapshots NAME`: the points in time that can be gone back to.

use super::{Answer, Context, Help, args, ls, unexpected};
use crate::ui::{Style, Table};
use berth_api::{PointView, Reply, Request};
use berth_types::Refusal;
use jiff::Timestamp;

pub const HELP: Help = Help {
    verb: "snapshots",
    usage: "snapshots NAME",
    summary: "the points in time that a machine can go back to",
    examples: &["{ssh} {host} snapshots dev"],
    notes: "Those with an @ were kept automatically, the last few sleeps and restores; @1 is the newest. OWN is what\nremoving that point alone would give back; the rest it shares with others.",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let name = args::only_name(&HELP, words, context.address)?;
    match context.call(Request::Snapshots { name: name.clone() }).await? {
        Reply::Points(points) if points.is_empty() => {
            let text = format!("none yet; make one: {} snapshot {name}\n", context.address.lobby());
            Answer::new(text, &points)
        }
        Reply::Points(points) => {
            Answer::new(table(&points, Timestamp::now()).render(context.colour), &points)
        }
        _ => Err(unexpected()),
    }
}

fn table(points: &[PointView], now: Timestamp) -> Table {
    let mut table = Table::with_header(&["POINT", "WHY", "AGE", "MEMORY", "DISK", "OWN"]);
    for point in points {
        let memory = if point.has_memory { point.memory.to_string() } else { "none".to_owned() };
        let cells = [
            point.point.clone(),
            point.why.clone(),
            ls::since(point.created, now),
            memory,
            point.disk.to_string(),
            point.own.to_string(),
        ];
        table.row(cells.map(|text| (text, Style::Plain)));
    }
    table
}
