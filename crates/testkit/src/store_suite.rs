//! The suite: the list of its cases, and the macro that makes tests of them.
//!
//! The list stands here and nowhere else. No case may ask which store it runs on.

use std::sync::Arc;

use crate::Fixture;
pub(crate) use support::records;

pub mod birth;
pub mod change;
pub mod claim;
pub mod concurrency;
pub mod encoding;
pub mod enqueue;
pub mod expiry;
pub mod handled;
pub mod inbox;
pub mod inbox_consumer;
pub mod inbox_failure;
pub mod inbox_forget;
pub mod inbox_race;
pub mod join_attach;
pub mod join_count;
pub mod join_end;
pub mod join_list;
pub mod join_prune;
pub mod join_race;
pub mod join_report;
pub mod join_requeue;
pub mod join_start;
pub mod join_wait;
pub mod limits;
pub mod list;
pub mod model;
pub mod order;
pub mod outage;
pub mod park;
pub mod pause;
pub mod prune;
pub mod race;
pub mod reap;
pub mod renew;
pub mod settle;
pub mod settle_batch;
pub mod stats;
mod support;
pub mod transaction;
pub mod turn;
pub mod wrong_state;

/// Makes a test of every case of the suite, each on a store of its own.
/// It takes the type of the [`Fixture`], and stands in a module of its own; the crate's documentation has an example.
#[macro_export]
macro_rules! store_suite {
    ($fixture:ty) => {
        $crate::__store_suite! { $fixture;
            birth:
                born_leased,
                only_a_claim_knows_their_turn,
                a_lost_birth_is_reaped,
                a_birth_rolled_back,
                a_duplicate_is_not_born,
                survivors_of_a_transaction,
                survivors_of_a_savepoint,
                survivors_by_their_lease;
            change:
                requeue_is_a_new_chance,
                only_the_dead_are_requeued,
                requeue_removes_a_past_expiry,
                requeue_by_filter_limit_and_dry_run,
                requeued_in_order,
                bury_gives_up,
                bury_takes_only_what_waits,
                bury_by_filter_limit_and_dry_run;
            claim:
                a_claim_leases,
                every_claim_has_its_epoch,
                an_empty_queue_has_nothing,
                what_is_over_is_not_claimed,
                the_limit_holds,
                the_order_of_a_claim,
                whoever_waited_longer_goes_first,
                topics_choose,
                topics_are_compared_byte_by_byte,
                other_topics_do_not_use_up_the_limit,
                an_undecodable_row_stops_nothing;
            concurrency:
                slow_each_is_claimed_once,
                slow_keys_stay_in_order,
                slow_one_of_many_duplicates,
                slow_one_of_many_with_one_id,
                slow_two_requeues,
                slow_settle_storm,
                slow_conservation;
            encoding:
                payloads_of_any_bytes,
                a_payload_of_1_mib,
                a_payload_of_16_mib,
                a_batch_of_different_payloads,
                headers_of_any_characters,
                hostile_text_is_text,
                prefixes_are_text,
                names_of_full_length,
                error_texts_of_any_kind,
                reasons_of_full_length,
                times_are_kept,
                distant_times_are_kept;
            enqueue:
                a_message_is_stored_as_given,
                what_is_left_out_is_none,
                impossible_messages_are_refused,
                numbers_follow_the_order_of_enqueueing,
                nothing_can_be_enqueued,
                batches_of_any_size,
                a_batch_of_five_thousand,
                scheduled_messages_wait,
                a_past_due_time_means_now,
                duplicates_are_stored_once,
                duplicates_within_a_batch,
                dedup_keys_that_differ_are_different,
                a_dedup_key_lives_as_long_as_its_message;
            expiry:
                expired_is_not_claimed,
                not_expired_is_claimed,
                expired_from_the_first,
                only_ready_ones_expire,
                expired_and_buried_hold_no_key,
                expire_in_portions;
            handled:
                handlers_that_are_done_are_remembered,
                what_is_not_mentioned_stays,
                an_empty_list_is_a_list,
                only_the_holder_says_who_is_done;
            inbox:
                first_repeated_altered,
                consumers_and_sources_are_apart,
                names_are_compared_byte_by_byte,
                names_of_full_length,
                seen_by_its_own_transaction,
                a_rollback_leaves_no_row,
                a_savepoint_takes_it_back,
                what_is_dropped_is_rolled_back,
                row_and_effect_share_one_fate,
                a_transaction_goes_on,
                what_is_kept_for_audit,
                odd_times_stop_nobody,
                payloads_of_any_size,
                impossible_names_are_refused;
            inbox_consumer:
                acts_once,
                a_failed_handler_leaves_no_row,
                a_panic_is_a_failure,
                attempts_come_to_an_end,
                outages_cost_no_attempt,
                deferrals_cost_no_attempt,
                dead_at_once,
                an_altered_message_is_dead,
                slow_storm_through_a_consumer;
            inbox_failure:
                a_database_that_is_away,
                a_commit_that_fails,
                a_commit_whose_answer_is_lost,
                a_commit_is_asked_for_before_it_is_told,
                a_conflict_is_tried_again_at_once;
            inbox_forget:
                by_age,
                of_one_consumer,
                up_to_a_limit,
                impossible_limits_are_refused,
                retention_is_positive,
                in_batches,
                slow_by_schedule,
                slow_one_process_at_a_time;
            inbox_race:
                the_second_waits_for_a_commit,
                the_second_waits_for_a_rollback,
                one_of_many_is_first,
                in_opposite_order,
                slow_forget_against_remember,
                slow_duplicate_storm;
            join_attach:
                attach_makes_a_step,
                attaching_again_changes_nothing,
                nothing_can_be_attached,
                an_unknown_join_refuses,
                a_message_that_is_not_stored_is_refused,
                steps_beyond_the_expected_are_refused,
                a_join_that_is_over_takes_no_new_steps,
                the_first_objection_is_told,
                a_late_attach_counts_at_once,
                a_late_attach_can_end_the_join,
                attach_in_the_transaction_that_publishes,
                attach_what_is_born_leased,
                an_attach_rolled_back,
                a_savepoint_takes_back_publishing_and_attaching;
            join_count:
                an_ack_counts,
                a_failure_counts,
                the_last_abandonment_counts,
                an_expired_step_counts,
                the_fifth_loss_counts,
                a_burial_counts,
                what_is_no_end_does_not_count,
                a_repeated_ack_counts_once,
                what_is_deleted_counts,
                the_last_step_ends_the_join,
                a_join_that_is_over_stays_as_it_is,
                a_message_of_many_joins,
                a_batch_of_many_joins,
                a_batch_that_ends_many_joins,
                the_time_of_the_last_change,
                messages_of_no_join,
                a_wait_can_be_a_step;
            join_end:
                cancel_ends_a_pending_join,
                steps_of_a_cancelled_join_are_late,
                a_cancellation_rolled_back,
                a_whole_life_in_one_transaction,
                a_deadline_ends_a_join,
                deadlines_in_portions,
                many_deadlines_at_once,
                looking_ends_an_overdue_join,
                a_look_tells_what_the_join_is,
                a_deadline_in_the_past,
                steps_of_an_expired_join_are_late,
                deadlines_come_before_expired_messages,
                nobody_looked_in_time;
            join_list:
                every_join_filter_chooses,
                grouping_keys_are_compared_byte_by_byte,
                pages_of_joins_visit_each_once,
                pages_of_steps_visit_each_once,
                an_unknown_join_is_none,
                a_list_of_joins_and_one_agree,
                impossible_lists_of_joins_are_refused;
            join_prune:
                steps_of_pending_joins_are_kept,
                kept_steps_hold_nothing_up,
                joins_go_when_their_time_is_over,
                joins_go_in_portions,
                a_wait_keeps_its_join,
                kept_joins_hold_nothing_up,
                messages_outlive_their_join;
            join_race:
                slow_attach_against_ack,
                slow_ackers_of_shared_joins,
                slow_a_join_of_ten_thousand_steps,
                two_cancellations,
                slow_report_against_ack,
                slow_deadline_against_the_last_ack,
                slow_cancellation_against_the_last_ack,
                slow_wait_against_the_last_ack,
                slow_deferral_against_the_end,
                many_attach_at_once,
                many_start_and_attach_the_same,
                many_continue_at_once,
                slow_prune_against_attach,
                slow_prune_of_many_against_attach;
            join_report:
                a_report_counts,
                a_report_can_be_repeated,
                of_report_and_end_the_first_counts,
                a_report_is_for_one_join,
                a_report_rolled_back,
                only_steps_are_reported,
                a_late_report_is_recorded;
            join_requeue:
                a_failure_is_taken_back,
                a_step_that_fails_again,
                nothing_else_is_taken_back,
                what_is_over_stays_counted,
                late_failures_are_taken_back,
                a_report_is_not_taken_back,
                a_late_attach_is_taken_back;
            join_start:
                a_join_begins_with_nothing,
                what_is_left_out_of_a_join_is_none,
                every_join_has_an_id_of_its_own,
                impossible_joins_are_refused,
                joins_of_full_size,
                a_join_started_twice_is_one,
                all_of_a_join_is_visible_at_once,
                a_join_rolled_back_was_never_there;
            join_wait:
                a_settlement_makes_waits_due,
                an_ack_that_deletes_makes_waits_due,
                a_transaction_makes_waits_due,
                housekeeping_makes_waits_due,
                many_waits_for_one_join,
                a_wait_that_is_leased_meanwhile,
                a_deferral_beside_the_last_ack,
                other_deferrals_stay_as_they_are,
                a_wait_that_has_gone_on_is_not_touched,
                waits_that_need_no_waking,
                registering_tells_what_the_join_is,
                a_wait_and_an_end_in_one_transaction,
                a_wait_rolled_back,
                continued_once,
                continued_once_though_its_row_is_gone,
                each_wait_continues_by_itself,
                a_continuation_that_is_a_duplicate;
            limits:
                endless_spans_are_very_long_ones,
                impossible_requests_change_nothing,
                batches_that_are_too_large,
                the_largest_requests;
            list:
                every_filter_chooses,
                created_from_is_inclusive,
                pages_visit_each_once,
                the_last_page_has_no_next,
                list_and_show_agree;
            model:
                slow_model;
            order:
                one_of_a_key_at_a_time,
                a_key_waits_for_its_first,
                nothing_overtakes_within_a_key,
                a_key_spans_topics,
                keys_are_compared_byte_by_byte,
                block_holds_until_requeued,
                block_ends_with_burial_or_pruning,
                every_death_blocks,
                skip_goes_on,
                the_dead_ones_policy_decides,
                a_death_holds_back_only_what_is_behind_it,
                what_waits_may_die_and_come_back,
                a_requeued_one_is_in_front_again;
            outage:
                an_outage_has_a_beginning,
                a_pause_is_no_break,
                a_charged_failure_breaks_it,
                an_outage_may_last_so_long,
                the_age_given_decides,
                a_requeue_breaks_it,
                the_end_of_an_outage_makes_it_due,
                made_due_it_keeps_its_place;
            park:
                a_parked_message_expires,
                waiting_messages_are_set_aside,
                requeueing_replays_in_order,
                burying_the_head_unparks,
                pruning_the_head_unparks,
                only_what_is_due_is_parked,
                a_parked_message_can_be_buried,
                what_is_ahead_is_not_parked,
                keys_are_parked_apart;
            pause:
                paused_is_not_claimed,
                pauses_overlap,
                twice_is_once,
                workers_are_told,
                names_are_bytes,
                impossible_pauses_are_refused,
                suspects_are_paused,
                keys_wait_behind_it,
                the_others_fill_the_limit,
                everything_else_goes_on;
            prune:
                retention_decides,
                age_counts_from_the_end,
                archived_messages_leave_the_queue,
                an_archived_message_can_return,
                prune_in_portions,
                history_goes_with_its_message;
            race:
                slow_ack_against_reap,
                slow_renew_against_reap,
                slow_abandon_against_reap;
            reap:
                a_suspect_waits_for_its_turn,
                reap_takes_back,
                reap_takes_nothing_else,
                reap_in_portions,
                the_fifth_loss_is_the_last,
                suspects_are_claimed_alone,
                suspects_do_not_overtake,
                an_overdue_suspect_goes_first,
                once_a_suspect,
                suspects_of_other_topics,
                reap_a_thousand;
            renew:
                renewal_lasts_from_now,
                renewal_can_shorten,
                a_lease_that_ran_out_is_renewed,
                renewals_of_all_sorts,
                a_thousand_renewals;
            settle:
                ack_is_done,
                ack_deletes_where_done_is_not_kept,
                an_ack_can_be_repeated,
                answers_come_as_they_were_asked_for,
                abandon_comes_back_later,
                abandon_at_the_limit_is_dead,
                outages_cost_no_attempt,
                defer_is_uncharged,
                release_keeps_its_place,
                fail_is_dead,
                the_last_failure_is_kept,
                late_but_still_the_holder;
            settle_batch:
                a_batch_of_all_sorts,
                the_first_of_a_lease_decides,
                stale_and_current_in_one_batch,
                a_thousand_at_once,
                nothing_can_be_settled;
            stats:
                nothing_to_count,
                small_numbers_are_exact,
                the_oldest_is_ready_and_due,
                what_fails_without_charge_is_counted;
            transaction:
                commit_decides,
                rollback_leaves_nothing,
                a_savepoint_takes_back_what_came_after_it,
                claims_do_not_see_what_is_uncommitted,
                duplicates_do_not_doom_a_transaction,
                a_repeated_transaction_is_harmless,
                a_large_transaction,
                opened_by_the_store,
                dropped_is_rolled_back;
            turn:
                every_so_often,
                at_a_given_time,
                both_kinds_of_turns,
                jobs_are_apart,
                one_of_many;
            wrong_state:
                deleted_by_its_holder_only,
                ready_is_nobodys,
                unclaimed_is_nobodys,
                leased_by_a_newer_epoch,
                taken_over_after_a_reap,
                done_is_final,
                dead_is_nobodys,
                requeued_is_nobodys,
                gone_is_gone;
        }
    };
}

/// The second half of [`store_suite!`]: not to be used by itself.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_suite {
    ($fixture:ty; $($theme:ident: $($case:ident),+;)+) => {
        $(
            mod $theme {
                #[allow(unused_imports, reason = "the fixture may be named by its full path")]
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        $crate::store_suite::run($crate::store_suite::$theme::$case::<$fixture>);
                    }
                )+
            }
        )+
    };
}

/// Runs one case on a fresh store, on a runtime of its own. A failed case leaves its store behind for inspection.
pub fn run<F: Fixture>(case: impl AsyncFnOnce(&Arc<F>)) {
    if !F::available() {
        #[allow(clippy::print_stderr, reason = "a test that passes without having run must say so")]
        {
            eprintln!("skipped: {} is not available", std::any::type_name::<F>());
        }
        return;
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        let fixture = Arc::new(F::create().await);
        case(&fixture).await;
        Arc::into_inner(fixture).expect("a case leaves no task behind").destroy().await;
    });
}

#[cfg(test)]
mod tests {
    /// A case that is written but not listed would never run, unnoticed.
    #[test]
    fn every_case_is_in_the_list() {
        let list = include_str!("store_suite.rs");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store_suite");
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
                assert!(source.contains(&format!("\npub async fn {name}<F: Fixture>(fixture: &Arc<F>)")));
            }
            assert_eq!(names.count(), cases.len(), "{theme}");
            let documented = source.split("\npub async fn ").collect::<Vec<_>>();
            for before in &documented[..documented.len() - 1] {
                assert!(before.lines().last().unwrap().starts_with("///"), "{theme}: a case without a word");
            }
        }
    }
}
