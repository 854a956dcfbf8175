//! Confirmation of a change: a question on a terminal, `--yes` in scripts.
//!
//! Without a terminal and without `--yes`, nothing is changed.

use std::io::{IsTerminal as _, stderr, stdin};

use console::Term;
use posthaste::{Error, ErrorKind, Result};

/// Where the confirmation comes from.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Consent {
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

impl Consent {
    /// Whether there is a terminal for a question.
    pub(crate) fn can_ask() -> bool {
        stdin().is_terminal() && stderr().is_terminal()
    }

    /// Asks, unless that was answered on the command line.
    pub(crate) fn ask(self, question: &str) -> Result<bool> {
        if self.yes {
            return Ok(true);
        }
        if !Self::can_ask() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("nobody is there to be asked: {question}"),
            )
            .with_remedy("say --yes if it is meant so"));
        }
        let terminal = Term::stderr();
        let answer = (|| {
            terminal.write_str(&format!("{} [y/N] ", crate::human::printable(question)))?;
            terminal.read_line()
        })();
        Ok(answer.is_ok_and(|answer| matches!(answer.trim(), "y" | "Y" | "yes")))
    }
}
