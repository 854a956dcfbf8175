//! Runs the cases: repetitions are interleaved over the subjects of a group, so that other activity of the machine affects all of
//! them alike.
//!
//! A failure is kept as a line of the report. Nothing is left out because it failed.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use posthaste::Shutdown;
use tokio::time::timeout;

use crate::measure::{Case, Line};

/// How long one repetition may take.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Runs all of them, or as many as there is time for until Ctrl-C, and reports progress on standard error.
pub(crate) async fn run(cases: Vec<Case>, repetitions: u32, stop: &Shutdown) -> Vec<Line> {
    let mut lines: Vec<Line> = cases.iter().map(Line::of).collect();
    let mut progress = Progress::new(cases.len() * repetitions as usize);
    let mut start = 0;
    while start < cases.len() {
        let same = cases[start..].iter().zip(&lines[start..]);
        let first = lines[start].group();
        let end = start + same.take_while(|(_, line)| line.group() == first).count();
        for repetition in 1..=repetitions {
            for (case, line) in cases[start..end].iter().zip(&mut lines[start..end]) {
                progress.show(case, repetition, repetitions);
                let outcome = tokio::select! {
                    outcome = timeout(PATIENCE, (case.run)()) => outcome,
                    () = stop.begun() => {
                        progress.tell("stopped: what is not measured by now is missing below");
                        return lines;
                    }
                };
                match outcome {
                    Ok(Ok(sample)) => line.samples.push(sample),
                    Ok(Err(error)) => {
                        progress
                            .tell(&format!("{} on {}: {}: {error}", case.scenario, case.store, case.subject));
                        line.failures.push(error.to_string());
                    }
                    Err(_) => line.failures.push(format!("it did not end within {PATIENCE:?}")),
                }
            }
        }
        start = end;
    }
    progress.end();
    lines
}

/// How far it is, on one line of a terminal, or a line for each repetition elsewhere.
struct Progress {
    begin: Instant,
    done: usize,
    all: usize,
    terminal: bool,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { begin: Instant::now(), done: 0, all, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, case: &Case, repetition: u32, repetitions: u32) {
        let Case { scenario, store, subject, variation, .. } = case;
        let elapsed = self.begin.elapsed().as_secs_f64();
        let left = if self.done == 0 {
            String::new()
        } else {
            let left = elapsed / self.done as f64 * (self.all - self.done) as f64;
            format!(", about {} left", duration(left))
        };
        let variation = if variation.is_empty() { String::new() } else { format!(" ({variation})") };
        let text = format!(
            "[{}/{}{left}] {scenario}{variation}, {store}: {subject}, {repetition} of {repetitions}",
            self.done + 1,
            self.all
        );
        self.write(&text, !self.terminal);
        self.done += 1;
    }

    fn tell(&self, text: &str) {
        self.write(text, true);
    }

    fn end(&self) {
        if self.terminal {
            self.write("", false);
        }
    }

    fn write(&self, text: &str, whole: bool) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let end = if whole { "\n" } else { "" };
        // Failing to print progress is no reason to stop.
        let _ = write!(std::io::stderr(), "{clear}{text}{end}");
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::measure::{Sample, Unit};

    #[tokio::test(flavor = "current_thread")]
    async fn subjects_take_turns_within_their_group_and_failures_stay() {
        let seen = Arc::new(Mutex::new(String::new()));
        let case = |scenario, subject: &'static str| {
            let seen = Arc::clone(&seen);
            Case::new(scenario, "sqlite", subject, Unit::Messages, move || {
                let seen = Arc::clone(&seen);
                async move {
                    seen.lock().unwrap().push_str(subject);
                    if subject == "b" { Err("no such thing".into()) } else { Ok(Sample::rate(1, 1.0)) }
                }
            })
        };
        let lines =
            run(vec![case("one", "a"), case("one", "b"), case("two", "c")], 2, &Shutdown::new()).await;
        assert_eq!(*seen.lock().unwrap(), "ababcc");
        assert_eq!(lines[0].samples.len(), 2);
        assert_eq!(lines[1].failures, ["no such thing", "no such thing"]);
    }
}
