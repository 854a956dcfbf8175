//! The suite for the runtime: the list of its cases, and the macro that makes tests of them.
//!
//! The list stands here and nowhere else. No case may ask which store it runs on.

use std::sync::Arc;

use crate::observe::listen_on_this_thread;
use crate::{Fixture, Logs, Meters};

pub mod bounds;
pub mod costs;
pub mod drain;
pub mod encryption;
pub mod faults;
pub mod handlers;
pub mod hot;
pub mod housekeeping;
pub mod isolation;
pub mod join_ends;
pub mod join_faults;
pub mod join_waits;
pub mod joins;
pub mod lease;
pub mod order;
pub mod pause;
pub mod publish;
pub mod receivers;
pub mod retry;
pub mod route;
pub mod secrecy;
pub mod shutdown;
pub mod signals;
pub mod sinks;
mod support;
pub mod trace;

/// Makes a test of every case of the runtime: handlers, dispatcher, hot path and housekeeping over one store.
/// It takes the type of the [`Fixture`], and stands in a module of its own, like [`store_suite!`](crate::store_suite!).
#[macro_export]
macro_rules! runtime_suite {
    ($fixture:ty) => {
        $crate::__runtime_suite! { $fixture;
            bounds:
                as_many_as_there_are_workers,
                never_two_at_a_time,
                a_backlog_stays_in_the_table,
                a_backlog_of_bytes,
                slow_handlers_slow_claiming,
                a_claim_is_a_batch,
                looking_adapts,
                hot_before_cold,
                cold_is_not_starved,
                the_hot_queue_is_bounded;
            costs:
                slow_thousand_hot_messages,
                slow_thousand_hot_transactions,
                a_thousand_cold_messages,
                slow_thousand_while_publishing,
                slow_idle_is_quiet,
                a_fan_in_of_a_hundred;
            drain:
                everything_due_and_what_comes_of_it,
                keys_to_their_end,
                suspects_to_their_end,
                a_drain_that_cannot_look;
            encryption:
                only_handlers_can_read,
                off_by_default,
                keys_change,
                without_keys,
                forgeries_are_refused,
                plaintext_can_be_refused,
                joins_are_encrypted,
                claims_are_decrypted,
                its_header_is_reserved,
                errors_do_not_tell,
                a_panicking_cipher;
            faults:
                a_loop_goes_on,
                nothing_new_while_settling_fails,
                a_spoiled_row_stops_nothing,
                a_spoiled_row_is_logged,
                another_process_takes_over;
            handlers:
                in_their_order,
                a_retry_runs_the_others,
                a_retry_in_another_process,
                interrupted_half_way;
            hot:
                rolled_back_is_never_delivered,
                a_savepoint_rolled_back,
                delivered_from_memory,
                enlisted_transactions_are_hot,
                a_full_queue_downgrades,
                a_queue_full_of_bytes,
                the_hot_path_switched_off,
                nobody_runs_yet,
                committed_too_late,
                only_what_can_start_is_hot,
                duplicates_are_delivered_once,
                a_crash_leaves_the_lease,
                a_dropped_commit_strands_nothing,
                one_run_at_a_time;
            housekeeping:
                one_turn_for_all,
                jobs_do_their_work,
                jobs_switched_off,
                one_job_alone,
                a_failed_job_goes_on,
                the_longest_interval;
            isolation:
                neighbours_of_a_blocked_thread,
                publishing_and_blocking,
                committing_and_computing,
                a_policy_that_blocks,
                a_refused_outcome_is_set_aside;
            join_ends:
                a_deadline_passes,
                in_time_for_the_deadline,
                cancelled_sends_nothing,
                a_crash_suspect_ends_it,
                an_expired_step_ends_it,
                a_buried_step_ends_it,
                requeued_in_time,
                old_joins_are_pruned,
                joins_expire_by_themselves;
            join_faults:
                the_end_of_a_join_is_heard,
                a_wait_that_had_just_looked,
                a_claim_that_came_too_early,
                a_crash_before_the_ack,
                a_crash_where_nothing_is_kept,
                settling_fails_for_a_while,
                many_joins_over_the_same_steps;
            join_waits:
                the_topic_of_waits,
                payloads_of_waits,
                an_unknown_join,
                waiting_costs_nothing,
                outages_do_not_end_a_wait,
                the_join_decides,
                several_waits_for_one_join,
                a_continuation_is_whole,
                joins_in_the_log;
            joins:
                three_extracts_and_then_the_transformation,
                a_failed_extract_is_told,
                some_sections_may_fail,
                one_stage_after_another,
                all_or_nothing_of_a_start,
                refused_before_any_sql,
                steps_from_memory,
                a_duplicate_is_the_step,
                the_same_join_again,
                attached_and_reported_by_hand,
                a_drain_runs_it_all;
            lease:
                slow_renewal_keeps_a_lease,
                slow_waiting_messages_are_renewed,
                a_lost_lease_cancels,
                the_deaf_are_dropped,
                not_while_it_is_under_way,
                nothing_starts_on_an_old_lease,
                suspects_run_alone;
            order:
                keys_stay_in_order,
                a_dead_one_and_its_key,
                the_next_of_a_key_follows_at_once;
            pause:
                the_hot_path_obeys,
                slow_learned_while_it_runs,
                slow_what_waits_is_given_back,
                without_an_answer_a_claim_decides,
                the_first_answer_is_waited_for,
                a_drain_leaves_it;
            publish:
                in_a_transaction_of_ones_own,
                without_a_transaction,
                publishing_brings_a_look_forward,
                scheduled_messages_come_on_time,
                known_due_times_are_kept,
                publishing_needs_no_handlers;
            receivers:
                a_healthy_sink_does_not_wait,
                slow_five_thousand_to_one_of_two,
                a_sink_that_comes_and_goes,
                an_outage_outlives_its_process,
                handlers_do_not_wait_for_each_other,
                each_has_its_own_attempts,
                each_keeps_its_own_time,
                a_requeue_is_for_those_that_gave_up,
                one_that_hangs,
                one_that_blocks_its_thread,
                slow_a_late_sink_is_an_outage,
                a_timeout_before_the_deadline_is_refused,
                an_outage_alerts,
                an_idle_sink_is_probed;
            retry:
                attempts_grow_until_it_is_dead,
                the_default_policy,
                delays_of_ones_own,
                deferred_and_dead,
                outages_cost_no_attempt,
                outages_have_a_limit,
                a_panic_is_a_failed_attempt,
                endless_delays_are_cut,
                a_panicking_policy_is_replaced,
                long_errors_are_cut,
                too_slow_is_failed,
                a_blocked_thread;
            route:
                each_to_its_handler,
                unknown_topics_are_nobodys,
                handlers_get_the_whole_message,
                names_of_every_kind,
                handlers_share_values,
                undecodable_events_are_dead;
            secrecy:
                nothing_leaks,
                nothing_of_a_join_leaks;
            shutdown:
                handlers_finish,
                the_deaf_do_not_hold_it_up,
                a_blocked_thread_does_not_hold_it_up,
                twice_is_at_once,
                a_dropped_run_finishes,
                any_future_ends_it,
                begun_before_the_run,
                an_endless_job_does_not_hold_it_up,
                a_silent_job_does_not_hold_it_up,
                settling_fails_to_the_end;
            sinks:
                routes,
                a_trace_goes_along,
                a_retry_sends_to_the_others,
                verdicts_decide,
                batches_gather,
                keys_go_one_by_one,
                a_sink_that_is_down_is_left_alone,
                one_message_tries,
                the_others_wait_for_it,
                nothing_is_born_leased_for_it,
                a_silent_sink_has_a_deadline,
                a_forgotten_verdict_is_no_success,
                a_sink_that_panics,
                what_was_lost_is_not_sent,
                a_stop_while_it_is_down,
                impossible_sinks_do_not_construct;
            signals:
                the_life_of_a_message_in_the_log,
                failures_in_the_log,
                every_metric_counts,
                gauges_go_down,
                figures_have_thresholds;
            trace:
                a_trace_goes_on,
                a_publishers_trace,
                a_joins_trace;
        }
    };
}

/// The second half of [`runtime_suite!`]: not to be used by itself.
#[doc(hidden)]
#[macro_export]
macro_rules! __runtime_suite {
    ($fixture:ty; $($theme:ident: $($case:ident),+;)+) => {
        $(
            mod $theme {
                #[allow(unused_imports, reason = "the fixture may be named by its full path")]
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        $crate::runtime_suite::run($crate::runtime_suite::$theme::$case::<$fixture>);
                    }
                )+
            }
        )+
    };
}

/// The context of a case: a fresh store, and all log lines and metrics while it runs.
#[derive(Debug)]
pub struct Scene<F> {
    pub(crate) fixture: Arc<F>,
    pub(crate) logs: Logs,
    pub(crate) meters: &'static Meters,
}

impl<F: Fixture> Scene<F> {
    pub(crate) fn store(&self) -> F::Store {
        self.fixture.store().clone()
    }
}

/// Runs one case on a fresh store, on a runtime of its own, which is listened to.
pub fn run<F: Fixture>(case: impl AsyncFnOnce(&Scene<F>)) {
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
        .worker_threads(3)
        .enable_all()
        .on_thread_start(move || listen_on_this_thread(&thread_logs, meters));
    listen_on_this_thread(&logs, meters);
    runtime.build().unwrap().block_on(async {
        let scene = Scene { fixture: Arc::new(F::create().await), logs, meters };
        case(&scene).await;
        Arc::into_inner(scene.fixture).expect("a case leaves no task behind").destroy().await;
    });
}

#[cfg(test)]
mod tests {
    /// A case that is written but not listed would never run, unnoticed.
    #[test]
    fn every_case_is_in_the_list() {
        let list = include_str!("runtime_suite.rs");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/runtime_suite");
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.ends_with("support.rs") {
                continue;
            }
            let theme = path.file_stem().unwrap().to_str().unwrap();
            let (_, cases) = list.split_once(&format!("            {theme}:")).expect(theme);
            let cases: Vec<_> = cases.split_once(';').unwrap().0.split(',').map(str::trim).collect();
            let source = std::fs::read_to_string(&path).unwrap();
            let names = source.split("\npub async fn ").skip(1).map(|rest| rest.split_once('<').unwrap().0);
            for name in names.clone() {
                assert!(cases.contains(&name), "{theme}::{name} is not in the list");
                assert!(source.contains(&format!("\npub async fn {name}<F: Fixture>(scene: &Scene<F>)")));
            }
            assert_eq!(names.count(), cases.len(), "{theme}");
            let documented = source.split("\npub async fn ").collect::<Vec<_>>();
            for before in &documented[..documented.len() - 1] {
                assert!(before.lines().last().unwrap().starts_with("///"), "{theme}: a case without a word");
            }
        }
    }
}
