//! The format of answers: tables and sentences for people, JSON for programs, colour only where it is wanted.
//!
//! Answers go to standard output, everything else to standard error, so that a pipe gets answers alone. Texts that come from
//! a database are shown without control characters, and with escapes in JSON: they must not be able to command the terminal.

use std::io::{Write as _, stdout};

use clap::ColorChoice;
use console::{Alignment, Style, measure_text_width, pad_str, truncate_str};
use posthaste::Error;
use serde::Serialize;

use crate::args::OutputArgs;
pub(crate) use crate::human::printable;
use crate::human::{printable_answer, printable_json, printable_lines};

/// What stands between two columns.
const GAP: &str = "  ";
/// How far the last column of a table may shrink.
const LEAST: usize = 10;

/// Where a command's answers go.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(args: &OutputArgs) -> Self {
        match args.color {
            ColorChoice::Always => colours(true),
            ColorChoice::Never => colours(false),
            // The console itself checks for a terminal, NO_COLOR and CLICOLOR.
            ColorChoice::Auto => {}
        }
        Self { json: args.json }
    }

    /// Whether JSON is wanted.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Answers: with this value as JSON, or with the text that people get.
    pub(crate) fn answer<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) {
        self.put(serde_json::to_string_pretty(value), text);
    }

    /// Writes one of many answers: JSON on one line, or text. False if the reader has closed the pipe.
    pub(crate) fn answer_line<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> bool {
        self.put(serde_json::to_string(value), text)
    }

    /// Every answer goes through here, and leaves without what could command a terminal.
    fn put(&self, json: serde_json::Result<String>, text: impl FnOnce() -> String) -> bool {
        let answer = match json {
            Ok(json) if self.json => printable_json(&json),
            Err(error) if self.json => {
                eprintln!("error: {error}");
                return false;
            }
            _ => printable_answer(&text(), console::colors_enabled()),
        };
        // `println!` would panic when the reader closes the pipe, as `head` does.
        writeln!(stdout(), "{}", answer.trim_end_matches('\n')).is_ok()
    }

    /// Says something that is not the answer.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        eprintln!("{}", printable_lines(text.as_ref()));
    }

    /// Says what went wrong, and what to do.
    pub(crate) fn error(&self, error: &Error) {
        if self.json {
            let value = serde_json::json!({ "error": {
                "kind": error.kind().to_string(), "message": error.to_string(), "remedy": error.remedy(),
            }});
            eprintln!("{}", printable_json(&value.to_string()));
        } else {
            eprintln!(
                "{} {}",
                Style::new().for_stderr().red().bold().apply_to("error:"),
                printable(&format!("{error:?}"))
            );
        }
    }
}

fn colours(on: bool) {
    console::set_colors_enabled(on);
    console::set_colors_enabled_stderr(on);
}

/// What stands in a table: a text without what could command a terminal, and its colour.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(text: &str, style: Style) -> Self {
        Self { text: printable(text), style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text.as_ref(), Style::new())
    }
}

/// A table for people: columns as wide as their contents, two spaces apart.
#[derive(Debug, Default)]
pub(crate) struct Table {
    heads: Vec<(&'static str, Alignment)>,
    rows: Vec<Vec<Cell>>,
    columns: Option<usize>,
}

impl Table {
    /// A table with these columns; a head that begins with `>` stands over numbers, which are set to the right.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        let head = |head: &&'static str| match head.strip_prefix('>') {
            Some(head) => (head, Alignment::Right),
            None => (*head, Alignment::Left),
        };
        Self { heads: heads.iter().map(head).collect(), rows: Vec::new(), columns: None }
    }

    /// Lines no longer than this: the last column is cut.
    pub(crate) fn fit(mut self, columns: Option<usize>) -> Self {
        self.columns = columns;
        self
    }

    /// And a row.
    pub(crate) fn row<T: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, with a line end after each row.
    pub(crate) fn render(&self) -> String {
        let heads: Vec<Cell> =
            self.heads.iter().map(|(head, _)| Cell::styled(head, Style::new().bold())).collect();
        let widths = self.widths();
        std::iter::once(&heads).chain(&self.rows).map(|cells| self.line(cells, &widths)).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| measure_text_width(&cell.text)).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> =
            self.heads.iter().enumerate().map(|(i, (head, _))| widest(i).max(head.len())).collect();
        if let (Some(columns), Some((last, others))) = (self.columns, widths.split_last_mut()) {
            let taken: usize = others.iter().map(|width| width + GAP.len()).sum();
            *last = (*last).min(columns.saturating_sub(taken).max(LEAST));
        }
        widths
    }

    fn line(&self, cells: &[Cell], widths: &[usize]) -> String {
        let cells = cells.iter().zip(widths).enumerate().map(|(i, (cell, width))| {
            let alignment = self.heads.get(i).map_or(Alignment::Left, |(_, alignment)| *alignment);
            let text = truncate_str(&cell.text, *width, "…");
            // The last column needs no padding.
            let padded = if i + 1 == widths.len() && alignment == Alignment::Left {
                text
            } else {
                pad_str(&text, *width, alignment, None).into_owned().into()
            };
            cell.style.apply_to(padded).to_string()
        });
        format!("{}\n", cells.collect::<Vec<_>>().join(GAP).trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_their_cells_and_no_wider_than_the_terminal() {
        let mut table = Table::new(&["id", ">n", "error"]).fit(Some(20));
        table.row(["a", "1", "short"]);
        table.row(["abc", "100", "a very long text that goes on"]);
        assert_eq!(table.render(), "id     n  error\na      1  short\nabc  100  a very lo…\n");
    }

    #[test]
    fn cells_cannot_command_the_terminal() {
        let mut table = Table::new(&["topic"]);
        table.row(["\u{1b}]0;owned\u{7}"]);
        assert!(!table.render().contains(['\u{1b}', '\u{7}']));
    }
}
