//! The suite that decides whether a sink is right: the list of its cases, and the macro that makes tests of them.
//!
//! The list stands here and nowhere else. No case may ask which sink it runs on. After every case its log, at every level
//! and of every target, is searched for secrets.

pub mod content;
pub mod faults;
pub mod outbox;
mod support;
pub mod verdict;

use std::sync::Arc;

use self::support::CANARY;
use crate::observe::listen_on_this_thread;
use crate::{Logs, Meters, SinkFixture};

/// Makes a test of every case of the suite, each at a place of its own.
/// It takes the type of the [`SinkFixture`], and stands in a module of its own.
#[macro_export]
macro_rules! sink_suite {
    ($fixture:ty) => {
        $crate::__sink_suite! { $fixture;
            content:
                everything_arrives,
                as_it_was_published,
                any_bytes,
                odd_headers,
                in_the_order_of_the_batch,
                a_repeated_message_has_the_same_id;
            verdict:
                nobody_takes_it,
                until_somebody_does,
                each_message_has_its_own,
                many_batches_at_a_time,
                too_large_is_said,
                an_empty_batch;
            faults:
                nobody_is_there,
                a_name_without_secrets,
                a_lost_connection_is_replaced,
                a_lost_answer_is_no_success,
                a_silent_server_has_a_deadline,
                late_answers_are_nobody_s,
                a_batch_given_up_harms_no_other;
            outbox:
                slow_through_an_outage,
                slow_through_lost_answers,
                an_unroutable_message_waits;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __sink_suite {
    ($fixture:ty; $($theme:ident: $($case:ident),+;)+) => {
        $(
            mod $theme {
                #[allow(unused_imports, reason = "the fixture may be named by its full path")]
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        $crate::sink_suite::run($crate::sink_suite::$theme::$case::<$fixture>);
                    }
                )+
            }
        )+
    };
}

/// Runs one case at a fresh place, on a runtime of its own. A failed case leaves its place behind for inspection.
pub fn run<F: SinkFixture>(case: impl AsyncFnOnce(&Arc<F>)) {
    if !F::available() {
        #[allow(clippy::print_stderr, reason = "a test that passes without having run must say so")]
        {
            eprintln!("skipped: {} is not available", std::any::type_name::<F>());
        }
        return;
    }
    let logs = Logs::default();
    let meters: &'static Meters = Box::leak(Box::default());
    let (thread_logs, mut runtime) = (logs.clone(), tokio::runtime::Builder::new_multi_thread());
    runtime
        .worker_threads(2)
        .enable_all()
        .on_thread_start(move || listen_on_this_thread(&thread_logs, meters));
    listen_on_this_thread(&logs, meters);
    runtime.build().unwrap().block_on(async {
        let fixture = Arc::new(F::create().await);
        case(&fixture).await;
        Arc::into_inner(fixture).expect("a case leaves no task behind").destroy().await;
    });
    // OBX-125, RMQ-002: neither posthaste nor the client of the broker shows anything of a message.
    for logged in logs.all() {
        assert!(!format!("{logged:?}").contains(CANARY), "in a log: {logged:?}");
    }
}

#[cfg(test)]
mod tests {
    /// A case that is written but not listed would never run, unnoticed.
    #[test]
    fn every_case_is_in_the_list() {
        let list = include_str!("sink_suite.rs");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sink_suite");
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.ends_with("support.rs") {
                continue;
            }
            let theme = path.file_stem().unwrap().to_str().unwrap();
            let (_, cases) = list.split_once(&format!("            {theme}:")).expect(theme);
            let cases: Vec<_> = cases.split_once(';').unwrap().0.split(',').map(str::trim).collect();
            let source = std::fs::read_to_string(&path).unwrap();
            let names: Vec<_> =
                source.split("\npub async fn ").skip(1).map(|rest| rest.split_once('<').unwrap().0).collect();
            assert_eq!(names, cases, "{theme}");
        }
    }
}
