//! Aligned columns; colour is added after the widths are known.

use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Faint,
    Good,
    Bad,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Faint => "\u{1b}[2m",
            Self::Good => "\u{1b}[32m",
            Self::Bad => "\u{1b}[31m",
        }
    }
}

#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    pub fn with_header(titles: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(titles.iter().map(|title| ((*title).to_owned(), Style::Faint)));
        table
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = (String, Style)>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// A name and its value, for records.
    pub fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.row([(name.to_owned(), Style::Faint), (value.into(), Style::Plain)]);
    }

    pub fn render(&self, colour: bool) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let lengths = self.rows.iter().filter_map(|row| row.get(column));
            lengths.map(|(text, _)| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let last = row.len().saturating_sub(1);
            for (column, ((cell, style), width)) in row.iter().zip(&widths).enumerate() {
                let coloured = colour && !style.code().is_empty();
                let (start, end) = if coloured { (style.code(), "\u{1b}[0m") } else { ("", "") };
                let room = if column == last { 0 } else { width.saturating_sub(cell.chars().count()) + 2 };
                let _ = write!(text, "{start}{cell}{end}{:room$}", "");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let mut table = Table::with_header(&["NAME", "STATE"]);
        table.row([("a".into(), Style::Plain), ("running".into(), Style::Good)]);
        assert_eq!(table.render(false), "NAME  STATE\na     running\n");
        assert!(table.render(true).contains("a     \u{1b}[32mrunning\u{1b}[0m\n"));
    }
}
