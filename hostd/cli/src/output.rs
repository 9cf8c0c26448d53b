//! What commands print: one JSON value for programs, aligned text for people.

use berth_types::{Code, Refusal};
use serde::Serialize;
use std::{fmt, io::Write};

/// A result, on standard output.
macro_rules! show {
    ($($text:tt)*) => { $crate::output::write(std::io::stdout(), format_args!($($text)*)) };
}

/// Progress and notices, on standard error.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::write(std::io::stderr(), format_args!($($text)*)) };
}

/// A terminal that was closed, or a reader that has seen enough, ends no work:
/// the supervisor still has machines to stop.
pub fn write(mut stream: impl Write, text: fmt::Arguments<'_>) {
    let _ = writeln!(stream, "{text}");
}

pub fn json<T: Serialize>(value: &T) -> Result<(), Refusal> {
    let text = serde_json::to_string(value)
        .map_err(|error| Refusal::new(Code::Failed, format!("cannot write JSON ({error})"), "report this"))?;
    show!("{text}");
    Ok(())
}

/// Columns as wide as their widest cell, two spaces apart.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows);
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        show!("{}", cells.join("  ").trim_end());
    }
}

/// One fact per line, its name first.
pub fn pairs(rows: impl IntoIterator<Item = [String; 2]>) {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|[name, _]| name.chars().count()).max().unwrap_or(0);
    for [name, value] in rows {
        show!("{name:width$}  {value}");
    }
}

/// The error on one line, and for programs also as JSON.
pub fn refusal(refusal: &Refusal, json: bool) {
    say!("berth: {refusal}");
    if json {
        show!("{}", serde_json::json!({ "error": refusal }));
    }
}
