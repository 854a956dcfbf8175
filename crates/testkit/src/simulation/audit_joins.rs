//! The part of the audit that watches joins: I7, that the counts match the events, and I8, that a wait sends one
//! continuation when its join has ended, and none before.
//!
//! The simulated database reports its changes, and the audit compares them with the joins and steps at the end.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{EndedJoin, Join, JoinId, JoinStatus, MessageId, NewMessage, State, Step, StepStatus};

use super::audit::{Audit, join_number};
use super::plan::{Joining, Plan};

/// The audit's knowledge of joins.
#[derive(Debug)]
pub(super) struct JoinAudit {
    plans: Vec<Joining>,
    /// Each message that waits, with its join.
    waits: BTreeMap<MessageId, JoinId>,
    /// What each of them has sent: one continuation, or none.
    continued: BTreeMap<MessageId, Option<MessageId>>,
    ended: BTreeSet<JoinId>,
    /// The joins that had ended at the last check.
    over: BTreeMap<JoinId, Join>,
}

impl JoinAudit {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            plans: plan.joins.clone(),
            waits: BTreeMap::new(),
            continued: BTreeMap::new(),
            ended: BTreeSet::new(),
            over: BTreeMap::new(),
        }
    }

    pub(super) fn has_continued(&self, wait: MessageId) -> bool {
        self.continued.contains_key(&wait)
    }

    pub(super) fn is_wait_of_over(&self, wait: MessageId) -> bool {
        self.waits.get(&wait).is_some_and(|join| self.over.contains_key(join))
    }

    /// The topic that is to be sent for a join that ended so: the plan's, said once more.
    fn topic(&self, join: &Join) -> Option<&'static str> {
        let (strict, on_fail) = self.plans.get(join_number(join.id))?.wait?;
        let failed = on_fail.then_some("failed");
        match join.status {
            JoinStatus::Pending | JoinStatus::Cancelled => None,
            JoinStatus::Expired => failed,
            JoinStatus::Completed => Some("next"),
            JoinStatus::Failed => {
                if strict {
                    failed
                } else {
                    Some("next")
                }
            }
        }
    }
}

impl Audit {
    /// A message that waits for a join became visible.
    pub(super) fn waits(&mut self, join: JoinId, wait: MessageId) {
        // Each has one at most, and producers that repeat themselves must not make it two.
        if self.joins.waits.iter().any(|(other, of)| *of == join && *other != wait) {
            self.object(format!("I8: two messages wait for join {}", join_number(join)));
        }
        self.joins.waits.insert(wait, join);
    }

    /// A change of messages ended joins.
    pub(super) fn joins_ended(&mut self, joins: &[EndedJoin]) {
        for join in joins {
            if !self.joins.ended.insert(join.id) {
                self.object(format!("I7: join {} ended twice", join_number(join.id)));
            }
        }
    }

    /// A waiting message goes on, with the join as it is; the first time, or again.
    pub(super) fn continues(
        &mut self,
        join: Option<&Join>,
        wait: MessageId,
        continuation: Option<&NewMessage>,
        first: bool,
    ) {
        let Some(join) = join else {
            return self.object("I8: a message goes on for a join that is not there".to_owned());
        };
        let n = join_number(join.id);
        let (topic, expected) = (continuation.map(NewMessage::topic), self.joins.topic(join));
        if join.status == JoinStatus::Pending || topic != expected {
            let status = join.status;
            self.object(format!("I8: join {n} is {status}, and {topic:?} is sent instead of {expected:?}"));
        }
        let id = continuation.map(NewMessage::id);
        let known = self.joins.continued.get(&wait).copied();
        if known.is_some() == first {
            self.object(format!(
                "I8: a message that waits for join {n} is said to go on for the first time: {first}"
            ));
        }
        if known.is_some_and(|known| known != id) {
            self.object(format!("I8: a message that waits for join {n} sends a second continuation"));
        }
        self.joins.continued.entry(wait).or_insert(id);
    }

    /// Compares everything that is counted with what happened.
    pub(super) fn look_at_joins(&mut self, joins: &[(Join, Vec<Step>)]) {
        for (join, steps) in joins {
            if let Err(why) = self.counted(join, steps) {
                self.object(format!("I7: join {}: {why}", join_number(join.id)));
            }
            if join.status != JoinStatus::Pending {
                self.joins.over.insert(join.id, join.clone());
            }
        }
        let gone = self.joins.over.keys().find(|id| !joins.iter().any(|(join, _)| join.id == **id));
        if let Some(id) = gone {
            let why = format!("I7: join {} is not there any more", join_number(*id));
            self.object(why);
        }
    }

    fn counted(&self, join: &Join, steps: &[Step]) -> Result<(), String> {
        let count = |wanted: StepStatus| steps.iter().filter(|step| step.status == wanted).count();
        let (completed, failed) = (count(StepStatus::Completed), count(StepStatus::Failed));
        let said = (join.attached_steps as usize, join.completed_steps as usize, join.failed_steps as usize);
        if said != (steps.len(), completed, failed) {
            return Err(format!("it says {said:?}, and there are {:?}", (steps.len(), completed, failed)));
        }
        let (sum, expected) = (completed + failed, join.expected_steps as usize);
        let as_counted = match join.status {
            JoinStatus::Completed => sum == expected && failed == 0,
            JoinStatus::Failed => sum == expected && failed > 0,
            JoinStatus::Pending | JoinStatus::Cancelled | JoinStatus::Expired => sum < expected,
        };
        let ended = join.ended_at.is_some() == (join.status != JoinStatus::Pending);
        if !as_counted || !ended || steps.len() > expected {
            return Err(format!("it is {}, with {sum} of {expected} steps", join.status));
        }
        if self.joins.over.get(&join.id).is_some_and(|before| before != join) {
            return Err("it changed after its end".to_owned());
        }
        steps.iter().try_for_each(|step| self.counted_step(step))
    }

    fn counted_step(&self, step: &Step) -> Result<(), String> {
        let n = self.number_of(step.message);
        let Some((state, first_life)) = self.fate(step.message) else {
            return Err(format!("its step {n} was never committed"));
        };
        let right = match step.status {
            StepStatus::Pending => matches!(state, Some(State::Ready | State::Leased)),
            StepStatus::Completed | StepStatus::LateCompleted => matches!(state, Some(State::Done) | None),
            StepStatus::Failed | StepStatus::LateFailed => matches!(state, Some(State::Dead) | None),
        };
        // A requeued step may differ from the count.
        if right || (!first_life && step.status != StepStatus::Pending) {
            return Ok(());
        }
        Err(format!("its step {n} is {:?}, and the message is {state:?}", step.status))
    }

    /// I8, at the end: each wait for an ended join has gone on, and its continuation has been delivered.
    pub(super) fn finish_joins(&mut self, joins: &[(Join, Vec<Step>)], liveness: bool) {
        // What ended while the nodes did could not go on any more.
        let rested: BTreeSet<JoinId> = self.joins.over.keys().copied().collect();
        self.look_at_joins(joins);
        let mut why = None;
        for (wait, id) in &self.joins.waits {
            let Some((join, _)) = joins.iter().find(|(join, _)| join.id == *id) else { continue };
            let (n, sent) = (join_number(*id), self.joins.continued.get(wait));
            if join.status == JoinStatus::Pending && sent.is_some() {
                why = Some(format!("I8: join {n} is pending, and its continuation was sent"));
            }
            // An operator may have buried it, and outages may have outlived it: then people see that.
            if !liveness || self.has_died(*wait) || !rested.contains(id) {
                continue;
            }
            match sent {
                None => why = Some(format!("I8: join {n} is over, and nothing went on")),
                Some(Some(continuation)) => {
                    if !self.was_delivered(*continuation) && !self.has_died(*continuation) {
                        let fate = self.fate(*continuation);
                        why = Some(format!("I8: the continuation of join {n} was not delivered: {fate:?}"));
                    }
                }
                Some(None) => {}
            }
        }
        if let Some(why) = why {
            self.object(why);
        }
    }
}

#[cfg(test)]
#[path = "audit_joins_tests.rs"]
mod tests;
