//! Parking: what waits behind a dead message is set aside, and comes back in order when that one's fate is decided.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_core::{MessageId, NewMessage, OrderPolicy, Outcome, Retention, State, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

fn parking() -> NewMessage {
    draft("topic").key("k").order(OrderPolicy::Park).build().unwrap()
}

/// A dead head, and this many behind it that are set aside.
async fn parked<F: Fixture>(fixture: &F, behind: usize) -> (MessageId, Vec<MessageId>) {
    let store = fixture.store();
    let head = dead_from(store, parking()).await;
    let batch: Vec<_> = (0..behind).map(|_| parking()).collect();
    let ids = enqueue(store, &batch).await;
    assert!(claim(store, 10).await.is_empty(), "they wait, parked or not");
    assert_eq!(store.park(1_000).await.unwrap(), behind as u64);
    (head, ids)
}

/// Claims and acks all there is, one by one.
async fn drain<S: StoreAdmin>(store: &S) -> Vec<MessageId> {
    let mut ids = Vec::new();
    loop {
        let claimed = claim(store, 10).await;
        if claimed.is_empty() {
            return ids;
        }
        for message in claimed {
            ids.push(message.id);
            apply(store, message.lease(), Outcome::Ack).await;
        }
    }
}

/// `park`: what waits is set aside, counted apart, and costs the queue nothing.
pub async fn waiting_messages_are_set_aside<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (_, ids) = parked(&**fixture, 3).await;
    let free = enqueue_one(store, keyed("other")).await;
    let stats = store.stats().await.unwrap();
    assert_eq!(numbers(&stats), [1, 0, 3, 0, 0, 1]);
    for id in &ids {
        let record = record(store, *id).await;
        assert_eq!((record.state, record.parked, record.message.attempts), (State::Ready, true, 0));
    }
    assert_eq!(store.park(1_000).await.unwrap(), 0, "once");
    assert_eq!(claim_ids(store, 10).await, [free]);
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.oldest_ready, None, "what is parked is not waiting to be delivered");
    fixture.advance(1_000 * HOUR).await;
    assert!(claim(store, 10).await.is_empty());
    assert_eq!(numbers(&store.stats().await.unwrap())[2], 3, "time does not bring it back");
}

/// `park`: requeueing the dead one replays it and all that waited, in order.
pub async fn requeueing_replays_in_order<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (head, ids) = parked(&**fixture, 3).await;
    fixture.advance(HOUR).await;
    assert_eq!(store.requeue(&change_of(only(&[head]))).await.unwrap(), [head]);
    assert_eq!(numbers(&store.stats().await.unwrap()), [4, 0, 0, 0, 0, 0]);
    for id in &ids {
        let record = record(store, *id).await;
        assert!(!record.parked);
        assert_near(record.message.due_at, fixture.now().await);
    }
    assert_eq!(store.park(10).await.unwrap(), 0, "nothing is dead any more");
    assert_eq!(drain(store).await, [head, ids[0], ids[1], ids[2]]);
}

/// `park`: burying the dead one brings back what waited, without it.
pub async fn burying_the_head_unparks<F: Fixture>(fixture: &Arc<F>) {
    let (head, ids) = parked(&**fixture, 2).await;
    assert_eq!(fixture.store().bury(&change_of(only(&[head]))).await.unwrap(), [head]);
    assert!(!record(fixture.store(), ids[0]).await.parked);
    assert_eq!(drain(fixture.store()).await, ids);
}

/// `park`: pruning the dead one brings back what waited, and so does archiving it.
pub async fn pruning_the_head_unparks<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for retention in [Retention::done(99 * HOUR).dead(HOUR), Retention::done(99 * HOUR).dead(HOUR).archive()]
    {
        let (_, ids) = parked(&**fixture, 2).await;
        fixture.advance(2 * HOUR).await;
        assert_eq!(store.prune(&retention, 1_000).await.unwrap(), 1);
        assert!(!record(store, ids[1]).await.parked);
        assert_eq!(drain(store).await, ids);
    }
}

/// `park`: in batches, and only due messages behind the dead one, of its key.
pub async fn only_what_is_due_is_parked<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    dead_from(store, parking()).await;
    let later = draft("topic").key("k").delay(HOUR).build().unwrap();
    enqueue(store, &[parking(), later, keyed("other"), plain(), parking()]).await;
    assert_eq!(store.park(1).await.unwrap(), 1);
    assert_eq!(store.park(10).await.unwrap(), 1);
    assert_eq!(numbers(&store.stats().await.unwrap()), [2, 1, 2, 0, 0, 1]);
    fixture.advance(HOUR + MINUTE).await;
    assert_eq!(store.park(10).await.unwrap(), 1);
    assert_eq!(numbers(&store.stats().await.unwrap()), [2, 0, 3, 0, 0, 1]);
}

/// `park`: a parked message can be buried itself, and then is not parked any more.
pub async fn a_parked_message_can_be_buried<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (head, ids) = parked(&**fixture, 2).await;
    assert_eq!(store.bury(&change_of(only(&ids[1..]))).await.unwrap(), ids[1..]);
    let buried = record(store, ids[1]).await;
    assert_eq!((buried.state, buried.parked), (State::Dead, false));
    assert_near(buried.message.due_at, fixture.now().await);
    store.requeue(&change_of(only(&[head]))).await.unwrap();
    assert_eq!(drain(store).await, [head, ids[0]]);
}

/// `park`: a message ahead of the dead one is not behind it, however late it comes back.
pub async fn what_is_ahead_is_not_parked<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let skipped = draft("topic").key("k").order(OrderPolicy::Skip).build().unwrap();
    let ahead = dead_from(store, skipped).await;
    let (head, ids) = parked(&**fixture, 1).await;
    store.requeue(&change_of(only(&[ahead]))).await.unwrap();
    // Whether what waits is brought back meanwhile is the store's business: it is set aside again, and not claimed.
    store.park(10).await.unwrap();
    assert!(record(store, ids[0]).await.parked);
    assert_eq!(drain(store).await, [ahead]);
    store.bury(&change_of(only(&[head]))).await.unwrap();
    assert_eq!(drain(store).await, ids);
}

/// `park`: messages behind another key's dead message stay where they are.
pub async fn keys_are_parked_apart<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let of = |key: &str| draft("topic").key(key).order(OrderPolicy::Park).build().unwrap();
    let heads =
        [dead_from(store, of("a")).await, dead_from(store, of("b")).await, dead_from(store, of("c")).await];
    let behind = enqueue(store, &[of("a"), of("b"), of("c"), of("d")]).await;
    assert_eq!(store.park(10).await.unwrap(), 3);
    store.requeue(&change_of(only(&heads[..1]))).await.unwrap();
    store.bury(&change_of(only(&heads[1..2]))).await.unwrap();
    let mut parked = Vec::new();
    for id in &behind {
        parked.push(record(store, *id).await.parked);
    }
    assert_eq!(parked, [false, false, true, false]);
    let delivered: HashSet<_> = drain(store).await.into_iter().collect();
    assert_eq!(delivered, HashSet::from([heads[0], behind[0], behind[1], behind[3]]));
}

/// A parked message that expires is as dead as any other: it is no longer set aside, and has a due time again.
pub async fn a_parked_message_expires<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    dead_from(store, draft("topic").key("k").order(OrderPolicy::Park).build().unwrap()).await;
    let id = enqueue_one(store, draft("topic").key("k").expires_after(HOUR).build().unwrap()).await;
    assert_eq!(store.park(10).await.unwrap(), 1);
    fixture.advance(HOUR + MINUTE).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
    let record = record(store, id).await;
    assert_eq!((record.state, record.parked), (State::Dead, false));
    assert_near(record.message.due_at, fixture.now().await);
}
