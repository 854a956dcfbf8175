//! Store operations for starting joins, all in the user's own transaction.
//!
//! Counting is not here: it is part of what ends a message, in [`Store::settle`](super::Store::settle) and its kin.

use crate::error::Result;
use crate::id::MessageId;
use crate::join::{Attached, EndedJoin, JoinId, Look, NewJoin, Reported, StepEnd};
use crate::store::TransactionalStore;

/// A database whose transactions joins can be started in.
///
/// # Behavior of every call
///
/// - Through the user's own connection, as [`TransactionalStore::insert`]: never begins, commits, rolls back or retries.
/// - A refused call changes nothing, and the transaction can go on.
/// - Messages are locked before joins, as settling does, so that neither misses the other's change.
pub trait JoinStore: TransactionalStore {
    /// Whether this join is stored, as far as the transaction sees.
    fn has_join(
        &self,
        connection: &mut Self::Connection,
        join: JoinId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Stores a join: pending, with nothing attached and nothing counted. One whose id is stored already is left as it is.
    fn start_join(
        &self,
        connection: &mut Self::Connection,
        join: &NewJoin,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Makes messages steps of a join.
    ///
    /// # Behavior
    /// - All of them, or none. Messages that are steps already stay so.
    /// - A message that is done or dead counts at once; the join may end by it.
    /// - Refused: a join that does not exist ([`unknown_join`](crate::unknown_join)); for messages that are not steps yet, one
    ///   that is not stored ([`unknown_step`](crate::unknown_step)), a join that is over
    ///   ([`join_is_over`](crate::join_is_over)), and more steps than the join expects
    ///   ([`too_many_steps`](crate::too_many_steps)); in this order.
    fn attach(
        &self,
        connection: &mut Self::Connection,
        join: JoinId,
        messages: &[MessageId],
    ) -> impl Future<Output = Result<Attached>> + Send;

    /// Counts a step by hand, as the end of its message would.
    ///
    /// # Behavior
    /// - Of several reports, and the message's own end, the first one counts.
    /// - Refused: a join that does not exist, and a message that is not a step of it
    ///   ([`not_a_step`](crate::not_a_step)).
    fn report(
        &self,
        connection: &mut Self::Connection,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> impl Future<Output = Result<Reported>> + Send;

    /// Ends a pending join: what waits for it is due, and sends nothing. Answers the join, if it was pending.
    ///
    /// # Behavior
    /// - Refused: a join that does not exist.
    fn cancel_join(
        &self,
        connection: &mut Self::Connection,
        join: JoinId,
    ) -> impl Future<Output = Result<Option<EndedJoin>>> + Send;

    /// Registers a message, which is about to be stored in the same transaction, as one that waits for a join, and returns
    /// the join's state.
    ///
    /// # Behavior
    /// - From here to the end of the transaction the join's end waits: it will make the message due.
    /// - A join whose deadline has passed is answered as pending, with no time left.
    /// - Refused: a join that does not exist.
    fn wait_for_join(
        &self,
        connection: &mut Self::Connection,
        join: JoinId,
        wait: MessageId,
    ) -> impl Future<Output = Result<Look>> + Send;
}
