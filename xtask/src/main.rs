//! The repository's chores, reached as `cargo xtask <command>`: reading the command line and handing over.
//!
//! Nothing is decided here beyond the exit code, and no other crate may depend on this one. It uses the standard
//! library alone, so that it builds in a moment on a fresh machine, before any dependency has been fetched.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks on its terminal")]

mod args;
mod book;
mod flaky;
mod guard;
mod load;
mod mutants;
mod programs;
mod results;
mod servers;
mod stages;
mod summary;
mod tools;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use args::{Task, TestOptions};
use servers::Servers;

fn main() -> ExitCode {
    match args::parse(std::env::args_os().skip(1)) {
        Ok(Task::Help) => {
            print!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Ok(Task::Test(options)) => test(&options),
        Ok(Task::Servers { private }) => hold_servers(private),
        Ok(Task::Mutants(options)) => mutants::run(&options),
        Ok(Task::Book) => book::make(),
        Ok(Task::Guard(orders)) => guard::obey(&orders),
        Ok(Task::Watch(words)) => watch::run(&words),
        Ok(Task::Load(words)) => load::run(&words),
        Err(mistake) => {
            eprintln!("xtask: {mistake}");
            // Not 1: a mistyped command and a failing test are different news to a script.
            ExitCode::from(2)
        }
    }
}

/// Finds the servers, runs every stage, cleans up, and only then speaks its verdict.
fn test(options: &TestOptions) -> ExitCode {
    let started = Instant::now();
    let strict = in_ci();
    let mut servers = Servers::find(options.private);
    if !options.fast {
        servers.add_tool(tools::schemathesis());
    }
    let stages = stages::run_all(options, servers.all(), strict);
    // Before the summary: a server that resists being stopped must not have the last word on the terminal.
    let servers = servers.stop();
    let list = flaky::file();
    let flaky: Vec<_> = stages
        .iter()
        .filter_map(|stage| stage.results.as_ref())
        .flat_map(|results| flaky::note(&list, results))
        .collect();
    let took = started.elapsed();
    let report = summary::Report { stages: &stages, servers: &servers, flaky: &flaky, strict, took };
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    print!("{}", report.render(colour));
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Keeps the servers alive for a developer's own test runs, until the input ends or a signal ends this process.
fn hold_servers(private: bool) -> ExitCode {
    let servers = Servers::find(private);
    for server in servers.all() {
        match &server.state {
            Ok(ready) => eprintln!("xtask: {} {}: {}", server.name, ready.version, ready.source),
            Err(why) => eprintln!("xtask: {}: {why}", server.name),
        }
    }
    let exports = summary::exports(servers.all());
    if servers.all().iter().all(|server| server.state.is_err()) {
        return ExitCode::FAILURE;
    }
    print!("{exports}");
    eprintln!("xtask: ready; Ctrl-C or the end of the input stops what was started here");
    // A reader that went away (a closed pipe) is no reason to leave servers behind, so failures only end the wait.
    let _ = io::stdout().flush();
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    servers.stop();
    ExitCode::SUCCESS
}

/// Under CI nothing may be skipped quietly: a missing server or tool fails the run.
fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}
