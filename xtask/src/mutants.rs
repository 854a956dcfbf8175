//! `cargo xtask mutants`: proof that the tests can fail: of stores, runtime, tenants, sinks, brokers, inbox and encryption.
//!
//! Each mutant of the list is built and tested in a copy of the workspace. A mutant that passes its tests has
//! survived: there is a hole in the tests, and the run fails. The workspace itself is never written to. The servers
//! are always private ones, because a test that fails, as these must, leaves its databases behind for a look.

mod list;
mod trial;
mod workshop;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::args::MutantOptions;
use crate::servers::Servers;
use crate::{programs, stages};
use list::{Mutant, Program};
use trial::Ended;
use workshop::Workshop;

/// What became of a mutant.
#[derive(Debug, PartialEq)]
enum Verdict {
    Killed,
    Survived,
    /// The text that it replaces is not where it was.
    DoesNotApply(String),
    /// No test had a chance: it does not build, or its filter chooses nothing.
    Broken(String),
}

/// Lists the mutants, or tries them.
pub(crate) fn run(options: &MutantOptions) -> ExitCode {
    let chosen: Vec<&Mutant> = list::all().filter(|mutant| is_chosen(mutant, options)).collect();
    if chosen.is_empty() {
        eprintln!("xtask: no mutant has that in its name or file; `cargo xtask mutants --list` prints all");
        return ExitCode::from(2);
    }
    if options.list {
        chosen
            .iter()
            .for_each(|mutant| println!("{:<28} {}\n{:<28} {}", mutant.name, mutant.why, "", mutant.file));
        println!("{} mutants", chosen.len());
        return ExitCode::SUCCESS;
    }
    match try_all(&chosen) {
        Ok(passed) if passed => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("xtask: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn is_chosen(mutant: &Mutant, options: &MutantOptions) -> bool {
    let is_like = |part: &str| mutant.name.contains(part) || mutant.file.contains(part);
    options.only.as_deref().is_none_or(|parts| parts.split(',').any(is_like))
}

/// Whether every one of them was killed.
fn try_all(mutants: &[&Mutant]) -> Result<bool, String> {
    programs::answer(stages::cargo().args(["nextest", "--version"]))
        .map_err(|_| "cargo-nextest is not installed; `cargo install cargo-nextest --locked` adds it")?;
    let servers = Servers::find(true);
    // A test without its server passes, and its mutant would seem to have survived.
    if let Some((name, why)) =
        servers.all().iter().find_map(|one| Some((one.name, one.state.as_ref().err()?)))
    {
        return Err(format!("mutants need every server, and {name} cannot be had: {why}"));
    }
    let workshop = Workshop::open(stages::environment(servers.all(), true))?;
    baseline(&workshop, mutants)?;
    let started = Instant::now();
    let mut verdicts = Vec::new();
    for (index, mutant) in mutants.iter().enumerate() {
        print!("[{:>2} of {}] {:<28} ", index + 1, mutants.len(), mutant.name);
        // Progress is a courtesy: a reader that went away is no reason to stop.
        let _ = io::stdout().flush();
        let (begun, verdict) = (Instant::now(), attempt(&workshop, mutant)?);
        println!("{}", line(&verdict, begun.elapsed(), mutant));
        verdicts.push(verdict);
    }
    println!("\n{}", summary(&verdicts, started.elapsed()));
    Ok(verdicts.iter().all(|verdict| *verdict == Verdict::Killed))
}

/// Without any change all the tests must pass, else their failures prove nothing.
fn baseline(workshop: &Workshop, mutants: &[&Mutant]) -> Result<(), String> {
    for program in Program::ALL {
        let filters: Vec<&str> =
            mutants.iter().filter(|mutant| mutant.program == program).map(|m| m.killers).collect();
        if filters.is_empty() {
            continue;
        }
        print!("unchanged: {} ", program.arguments().join(" "));
        let _ = io::stdout().flush();
        let begun = Instant::now();
        match workshop.test(program, &filters.join(" | "))? {
            Ended::Passed => println!("passes in {}", seconds(begun.elapsed())),
            Ended::Failed(output) | Ended::Broken(output) => {
                return Err(format!("fails without any mutant:\n{output}"));
            }
        }
    }
    Ok(())
}

fn attempt(workshop: &Workshop, mutant: &Mutant) -> Result<Verdict, String> {
    let mutation = match workshop.apply(mutant) {
        Ok(mutation) => mutation,
        Err(why) => return Ok(Verdict::DoesNotApply(why)),
    };
    let ended = workshop.test_mutant(mutant);
    mutation.revert()?;
    Ok(match ended? {
        Ended::Failed(_) => Verdict::Killed,
        Ended::Passed => Verdict::Survived,
        Ended::Broken(output) => Verdict::Broken(output),
    })
}

fn line(verdict: &Verdict, took: Duration, mutant: &Mutant) -> String {
    match verdict {
        Verdict::Killed => format!("killed in {}", seconds(took)),
        Verdict::Survived => format!("SURVIVED {}: {}", mutant.killers, mutant.why),
        Verdict::DoesNotApply(why) => format!("does not apply: {why}"),
        Verdict::Broken(output) => format!("BROKEN: no test could kill it\n{output}"),
    }
}

fn summary(verdicts: &[Verdict], took: Duration) -> String {
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| wanted(verdict)).count();
    let killed = count(|verdict| *verdict == Verdict::Killed);
    let mut text = format!("{killed} of {} mutants killed in {}", verdicts.len(), seconds(took));
    for (number, what) in [
        (count(|verdict| *verdict == Verdict::Survived), "survived: write the test that is missing"),
        (count(|verdict| matches!(verdict, Verdict::DoesNotApply(_))), "no longer apply: update the list"),
        (count(|verdict| matches!(verdict, Verdict::Broken(_))), "broken: update the list"),
    ] {
        if number > 0 {
            text.push_str(&format!("; {number} {what}"));
        }
    }
    text
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chooses_by_parts_of_names_and_files() {
        let chosen = |only: &str| {
            let options = MutantOptions { only: Some(only.to_owned()), list: false };
            list::all().filter(|mutant| is_chosen(mutant, &options)).count()
        };
        assert_eq!(chosen("M-01"), list::all().filter(|mutant| mutant.name.starts_with("M-01-")).count());
        assert!(chosen("M-01") >= 3 && chosen("M-01-sqlite") == 1 && chosen("no such") == 0);
        assert_eq!(chosen("M-01-sqlite,no such,M-01-postgres"), 2);
        assert!(chosen("crates/core/src/dispatch/held.rs") > 0);
    }

    #[test]
    fn the_summary_tells_what_to_do() {
        let verdicts =
            [Verdict::Killed, Verdict::Survived, Verdict::DoesNotApply(String::new()), Verdict::Killed];
        let text = summary(&verdicts, Duration::from_millis(1_500));
        assert!(text.starts_with("2 of 4 mutants killed in 1.5 s; 1 survived: write"), "{text}");
        assert!(text.contains("1 no longer apply: update the list") && !text.contains("broken"), "{text}");
    }
}
