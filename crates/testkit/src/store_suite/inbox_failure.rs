//! A consumer whose database fails it: at the beginning, at the commit, and in between. Nothing may be done twice, and the
//! broker may not be told that it is done when it is not.

use std::sync::Arc;

use posthaste_core::{Disposal, Received, Tries};

use super::inbox::{assert_acted, received, remembered};
use super::inbox_consumer::{Answer, assert_nothing, consumer};
use crate::{Counting, Fixture};

/// Again, at no cost, and nothing is there.
async fn assert_put_off<F: Fixture>(fixture: &F, disposal: &Disposal, message: &Received) {
    assert!(matches!(disposal, Disposal::Again { charged: false, .. }), "{disposal:?}");
    assert_nothing(fixture, message).await;
}

/// INB-006, rule 13: a database that cannot be reached costs no attempt.
pub async fn a_database_that_is_away<F: Fixture>(fixture: &Arc<F>) {
    let store = Counting::new(fixture.store().clone());
    let (consumer, actor) = consumer(&store, &[]);
    let (message, last) = (received(), Tries { charged: 9, free: 0 });
    for operation in ["begin", "remember"] {
        store.fail(operation, 1);
        assert_put_off(&**fixture, &consumer.receive(&message, last).await, &message).await;
        assert_eq!(actor.runs(), 0);
    }
    // The handler's statement, and the check before the commit.
    for (runs, operation) in (1..).zip(["insert", "survivors"]) {
        store.fail(operation, 1);
        assert_put_off(&**fixture, &consumer.receive(&message, last).await, &message).await;
        assert_eq!(actor.runs(), runs);
    }
    assert_eq!(consumer.receive(&message, last).await, Disposal::Ack);
    assert_acted(fixture.store(), &[&message]).await;
}

/// INB-002: a commit that did not take place is no success.
pub async fn a_commit_that_fails<F: Fixture>(fixture: &Arc<F>) {
    let store = Counting::new(fixture.store().clone());
    let (consumer, actor) = consumer(&store, &[]);
    let message = received();
    store.fail("commit", 1);
    assert_put_off(&**fixture, &consumer.receive(&message, Tries::default()).await, &message).await;
    assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
    assert_eq!(actor.runs(), 2);
    assert_acted(fixture.store(), &[&message]).await;
}

/// Rule 7, crash point B3: after a commit with an unknown outcome the consumer checks at once: it finds the row, and the
/// handler does not run again. If the outcome stays unknown, the message comes again, at no cost.
pub async fn a_commit_whose_answer_is_lost<F: Fixture>(fixture: &Arc<F>) {
    let store = Counting::new(fixture.store().clone());
    let (consumer, actor) = consumer(&store, &[]);
    let (message, other) = (received(), received());
    store.lose_commits(1);
    assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
    assert_eq!((actor.runs(), store.calls("commit")), (1, 2));
    store.lose_commits(100);
    let disposal = consumer.receive(&other, Tries::default()).await;
    assert!(matches!(disposal, Disposal::Again { charged: false, .. }), "{disposal:?}");
    store.lose_commits(0);
    assert_eq!(consumer.receive(&other, Tries::default()).await, Disposal::Ack);
    assert_eq!(actor.runs(), 2);
    assert_acted(fixture.store(), &[&message, &other]).await;
}

/// INB-003: the broker is not told before the commit, and no failed handler's transaction is committed.
pub async fn a_commit_is_asked_for_before_it_is_told<F: Fixture>(fixture: &Arc<F>) {
    let store = Counting::new(fixture.store().clone());
    let (consumer, _) = consumer(&store, &[Answer::Business]);
    let message = received();
    consumer.receive(&message, Tries::default()).await;
    assert_eq!((store.calls("commit"), store.calls("rollback")), (0, 1));
    assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
    assert_eq!((store.calls("commit"), store.calls("rollback")), (1, 1));
    assert!(remembered(fixture.store(), &message).await.is_some());
}

/// OBX-099: a transaction that lost a conflict is run again at once, handler and all, a few times; then the message is put off.
pub async fn a_conflict_is_tried_again_at_once<F: Fixture>(fixture: &Arc<F>) {
    let store = Counting::new(fixture.store().clone());
    let (consumer, actor) = consumer(&store, &[]);
    let message = received();
    store.conflict("survivors", 2);
    assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
    assert_eq!(actor.runs(), 3);
    assert_acted(fixture.store(), &[&message]).await;
    let message = received();
    store.conflict("remember", 100);
    let before = store.calls("begin");
    let disposal = consumer.receive(&message, Tries { charged: 9, free: 0 }).await;
    assert!(matches!(disposal, Disposal::Again { charged: false, .. }), "{disposal:?}");
    assert_eq!(store.calls("begin") - before, 6);
    assert_eq!(actor.runs(), 3);
}
