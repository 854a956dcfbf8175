//! Joins through the outbox: started, filled and watched in your own transaction.
//!
//! Nothing here counts: the database does, in the transaction that ends a step.

use std::collections::HashSet;

use tracing::{debug, info};

use super::{Inner, Outbox, trace};
use crate::error::{Error, Result};
use crate::id::MessageId;
use crate::join::wait::{Continuation, Wait};
use crate::join::{Attached, JoinBuilder, JoinId, JoinWait, Look, NewJoin, Parts, StartedJoin, StepEnd};
use crate::message::{Enqueued, NewMessage};
use crate::store::Birth;
use crate::store::join::JoinStore;

/// A join that is ready to be stored, its steps apart.
pub(super) struct PreparedJoin {
    parts: Parts,
    waits: Vec<PreparedWait>,
}

/// A message that will wait for a join.
struct PreparedWait {
    id: MessageId,
    payload: Wait,
}

impl<S: JoinStore> Outbox<S> {
    /// Starts a join in your own transaction: the join, the steps and the waits that were given with it exist if, and only
    /// if, that transaction commits, and are invisible before.
    ///
    /// A join with an id of your own that is stored already is left as it is, and nothing is published. Elsewhere, a
    /// step whose id or dedup key is stored already is not stored again: the stored message becomes the step, and counts
    /// at once if it is over. Steps can also be [attached](Self::attach) later, as long as the join expects more.
    ///
    /// See [`JoinBuilder`] for an example, and [`OutboxTransaction::start_join`](crate::OutboxTransaction::start_join) for
    /// steps that take the hot path.
    pub async fn start_join(&self, connection: &mut S::Connection, join: JoinBuilder) -> Result<StartedJoin> {
        let (parts, steps) = self.prepare_join(join)?;
        if let Some(started) = self.started_before(connection, &parts).await? {
            return Ok(started);
        }
        let steps =
            if steps.is_empty() { Vec::new() } else { self.publish_prepared(connection, &steps).await? };
        self.complete_start(connection, parts, steps).await
    }

    /// The join and its waits, and its steps, ready to be stored. Refuses invalid values here, before any SQL.
    pub(super) fn prepare_join(&self, join: JoinBuilder) -> Result<(PreparedJoin, Vec<NewMessage>)> {
        let mut parts = join.parts().map_err(starting)?;
        let steps = self.prepare_all(std::mem::take(&mut parts.steps))?;
        let (id, waits) = (parts.join.id(), std::mem::take(&mut parts.waits));
        let waits = waits.into_iter().map(|wait| self.prepare_wait(id, wait)).collect::<Result<_>>()?;
        Ok((PreparedJoin { parts, waits }, steps))
    }

    /// A join with an id of the user's own may have been started before: then there is nothing to do.
    pub(super) async fn started_before(
        &self,
        connection: &mut S::Connection,
        prepared: &PreparedJoin,
    ) -> Result<Option<StartedJoin>> {
        let Parts { known, join, .. } = &prepared.parts;
        let id = join.id();
        if !known || !self.inner.store.has_join(connection, id).await.map_err(starting)? {
            return Ok(None);
        }
        debug!(store = %self.inner.name, join_id = %id, "this join was started before");
        Ok(Some(StartedJoin { id, new: false, steps: Vec::new(), waits: Vec::new() }))
    }

    /// Stores what belongs to a join, once its steps are stored.
    pub(super) async fn complete_start(
        &self,
        connection: &mut S::Connection,
        prepared: PreparedJoin,
        steps: Vec<Enqueued>,
    ) -> Result<StartedJoin> {
        let inner = &self.inner;
        let PreparedJoin { mut parts, waits: prepared } = prepared;
        let mut seen = HashSet::new();
        let messages: Vec<MessageId> =
            steps.iter().map(Enqueued::id).filter(|message| seen.insert(*message)).collect();
        parts.expect(messages.len());
        let id = parts.join.id();
        inner.store.start_join(connection, &parts.join).await.map_err(starting)?;
        started(inner, &parts.join);
        if !messages.is_empty() {
            self.attach_all(connection, id, &messages).await?;
        }
        let mut waits = Vec::with_capacity(prepared.len());
        for wait in prepared {
            waits.push(self.enqueue_wait(connection, wait).await?);
        }
        Ok(StartedJoin { id, new: true, steps, waits })
    }

    /// Makes a stored message a step of a join, in your own transaction; a message that is a step already stays so.
    ///
    /// A message that is done or dead already counts at once. Publish and attach in one transaction where you can: a message
    /// that is not stored any more, because done messages are not kept, cannot become a step.
    pub async fn attach(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        message: MessageId,
    ) -> Result<Attached> {
        self.attach_all(connection, join, &[message]).await
    }

    /// The same for many messages, all or none, in one round trip.
    pub async fn attach_all(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        messages: &[MessageId],
    ) -> Result<Attached> {
        let attached = self
            .inner
            .store
            .attach(connection, join, messages)
            .await
            .map_err(|error| error.during("attach"))?;
        for message in messages {
            debug!(store = %self.inner.name, join_id = %join, message_id = %message, "attached");
        }
        self.inner.joins_will_end(attached.ended.as_slice());
        Ok(attached)
    }

    /// Stores, in your own transaction, what to send when a join has ended: a message of the topic `join.wait` waits for it,
    /// uncharged, and sends the continuation. Returns that message's id. The same wait for the same join, enqueued twice, is
    /// one message.
    pub async fn enqueue_join_wait(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        wait: JoinWait,
    ) -> Result<MessageId> {
        let wait = self.prepare_wait(join, wait)?;
        self.enqueue_wait(connection, wait).await
    }

    fn prepare_wait(&self, join: JoinId, wait: JoinWait) -> Result<PreparedWait> {
        let JoinWait { on_complete, on_fail, fail_if_any_step_failed } = wait;
        let (on_complete, on_fail) = (on_complete.map_err(waiting)?, on_fail.transpose().map_err(waiting)?);
        let asked = Wait {
            join_id: join,
            fail_if_any_step_failed,
            on_complete: Continuation::of(&on_complete),
            on_fail: on_fail.as_ref().map(Continuation::of),
        };
        let prepare = |message| self.prepare_plain(message).map(|message| Continuation::of(&message));
        Ok(PreparedWait {
            // Derived from the given wait, before the outbox adds its own trace to it.
            id: asked.message_id().map_err(waiting)?,
            payload: Wait {
                on_complete: prepare(on_complete)?,
                on_fail: on_fail.map(prepare).transpose()?,
                ..asked
            },
        })
    }

    async fn enqueue_wait(&self, connection: &mut S::Connection, wait: PreparedWait) -> Result<MessageId> {
        let (inner, PreparedWait { id, payload }) = (&self.inner, wait);
        let look = inner.store.wait_for_join(connection, payload.join_id, id).await.map_err(waiting)?;
        let mut message = NewMessage::json(&inner.plan.settings.join_wait_topic, &payload).id(id);
        if let Look::Pending { expires_in } = look {
            let check = inner.plan.settings.join_check;
            message = message.delay(expires_in.map_or(check, |left| left.min(check)));
        }
        let mut message = [message.build().map_err(waiting)?];
        trace(&mut message[0]);
        inner.plan.seal(&mut message[0])?;
        inner.store.insert(connection, &message, Birth::Ready).await?;
        self.published(&message);
        self.announce(&message);
        Ok(id)
    }

    /// Ends a pending join, in your own transaction: what waits for it sends nothing. Answers whether it was pending.
    pub async fn cancel_join(&self, connection: &mut S::Connection, join: JoinId) -> Result<bool> {
        let cancelled = self.inner.store.cancel_join(connection, join).await;
        let ended = cancelled.map_err(|error| error.during("cancel a join"))?;
        self.inner.joins_will_end(ended.as_slice());
        Ok(ended.is_some())
    }

    /// Counts a step as completed, in your own transaction, before its message has ended. Returns whether it counted:
    /// of several reports, and the message's own end, the first one does.
    ///
    /// Rarely needed: messages that are done count by themselves. Handlers need not call it.
    pub async fn report_step_completed(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        message: MessageId,
    ) -> Result<bool> {
        self.report(connection, join, message, StepEnd::Completed).await
    }

    /// Counts a step as failed; otherwise as [`report_step_completed`](Self::report_step_completed).
    pub async fn report_step_failed(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        message: MessageId,
    ) -> Result<bool> {
        self.report(connection, join, message, StepEnd::Failed).await
    }

    async fn report(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> Result<bool> {
        let reported = self.inner.store.report(connection, join, message, end).await;
        let reported = reported.map_err(|error| error.during("report a step"))?;
        self.inner.joins_will_end(reported.ended.as_slice());
        Ok(reported.counted)
    }
}

fn starting(error: Error) -> Error {
    error.during("start a join")
}

fn waiting(error: Error) -> Error {
    error.during("wait for a join")
}

fn started<S>(inner: &Inner<S>, join: &NewJoin) {
    // Without the grouping key, which is the user's.
    info!(store = %inner.name, join_id = %join.id(), expected = join.expected_steps(), "join started");
}
