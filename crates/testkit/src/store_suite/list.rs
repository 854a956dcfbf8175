//! Operators' queries: lists, filters, pages, one message.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_core::{FailureClass, Filter, MessageId, Outcome, State, StoreAdmin, Topics};

use super::support::*;
use crate::Fixture;

/// Every field of a filter chooses, and all that are set must match.
pub async fn every_filter_chooses<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let old = leased_from(
        store,
        draft("order.paid").key("k").tenant_id("acme").correlation_id("c1").build().unwrap(),
    )
    .await;
    apply(store, old.lease(), fail()).await;
    let done = leased_from(store, draft("order.placed").tenant_id("acme").build().unwrap()).await;
    apply(store, done.lease(), Outcome::Ack).await;
    fixture.advance(HOUR).await;
    let failed = leased_from(store, draft("payment").correlation_id("c1").build().unwrap()).await;
    apply(store, failed.lease(), abandon(HOUR)).await;
    let held = leased_from(store, draft("payment").key("k2").tenant_id("other").build().unwrap()).await;
    let ids = [old.id, done.id, failed.id, held.id];
    let middle = record(store, old.id).await.message.created_at + HOUR / 2;
    let text = |text: &str| Some(text.to_owned());
    let none = Filter::default;
    let expectations: Vec<(Filter, &[usize])> = vec![
        (none(), &[0, 1, 2, 3]),
        (Filter { state: Some(State::Dead), ..none() }, &[0]),
        (Filter { state: Some(State::Done), ..none() }, &[1]),
        (Filter { state: Some(State::Ready), ..none() }, &[2]),
        (Filter { state: Some(State::Leased), ..none() }, &[3]),
        (Filter { topics: Topics::of(["order.*"]).unwrap(), ..none() }, &[0, 1]),
        (Filter { topics: Topics::of(["payment", "order.paid"]).unwrap(), ..none() }, &[0, 2, 3]),
        (Filter { topics: Topics::of([""; 0]).unwrap(), ..none() }, &[]),
        (Filter { key: text("k"), ..none() }, &[0]),
        (Filter { key: text("K"), ..none() }, &[]),
        (Filter { tenant_id: text("acme"), ..none() }, &[0, 1]),
        (Filter { tenant_id: text("acme "), ..none() }, &[]),
        (Filter { correlation_id: text("c1"), ..none() }, &[0, 2]),
        (Filter { correlation_id: text("C1"), ..none() }, &[]),
        (Filter { class: Some(FailureClass::Permanent), ..none() }, &[0]),
        (Filter { class: Some(FailureClass::Business), ..none() }, &[2]),
        (Filter { class: Some(FailureClass::Expired), ..none() }, &[]),
        (Filter { created_from: Some(middle), ..none() }, &[2, 3]),
        (Filter { created_before: Some(middle), ..none() }, &[0, 1]),
        (Filter { created_from: Some(middle), created_before: Some(middle), ..none() }, &[]),
        (only(&[held.id, old.id, MessageId::new()]), &[0, 3]),
        (only(&[MessageId::new()]), &[]),
        (Filter { tenant_id: text("acme"), state: Some(State::Done), ..none() }, &[1]),
        (Filter { correlation_id: text("c1"), tenant_id: text("acme"), ..none() }, &[0]),
        (Filter { key: text("k"), state: Some(State::Ready), ..none() }, &[]),
        (Filter { topics: Topics::of(["payment"]).unwrap(), ..only(&[old.id, failed.id]) }, &[2]),
    ];
    for (filter, expected) in expectations {
        let expected: Vec<_> = expected.iter().map(|index| ids[*index]).collect();
        assert_eq!(listed(store, &filter).await, expected, "{filter:?}");
    }
}

/// A boundary of the time of enqueueing belongs to what begins there.
pub async fn created_from_is_inclusive<F: Fixture>(fixture: &Arc<F>) {
    let id = enqueue_one(fixture.store(), plain()).await;
    let created = record(fixture.store(), id).await.message.created_at;
    let from = Filter { created_from: Some(created), ..Filter::default() };
    let before = Filter { created_before: Some(created), ..Filter::default() };
    assert_eq!(listed(fixture.store(), &from).await, [id]);
    assert!(listed(fixture.store(), &before).await.is_empty());
}

/// Pages visit each message once, in the order of enqueueing, even when messages are added meanwhile.
pub async fn pages_visit_each_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &plains(450)).await;
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.list(&Filter::default(), after, 100).await.unwrap();
        assert!(page.records.len() <= 100);
        seen.extend(page.records.iter().map(|record| record.message.id));
        pages += 1;
        let Some(next) = page.next else { break };
        after = Some(next);
        if pages <= 3 {
            enqueue_one(store, plain()).await;
            let gone = claim(&fixture.store_that_deletes(), 1).await;
            apply(&fixture.store_that_deletes(), gone[0].lease(), Outcome::Ack).await;
        }
    }
    assert_eq!(seen[..450], ids);
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len(), "none twice");
    assert_eq!((pages, seen.len()), (5, 453));
}

/// The last page says that it is the last, also when it is full.
pub async fn the_last_page_has_no_next<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    assert_eq!(store.list(&Filter::default(), None, 200).await.unwrap().next, None);
    let ids = enqueue(store, &plains(4)).await;
    let first = store.list(&Filter::default(), None, 2).await.unwrap();
    let second = store.list(&Filter::default(), first.next, 2).await.unwrap();
    assert_eq!(second.records[1].message.id, ids[3]);
    assert_eq!(second.next, None);
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    let page = store.list(&dead, None, 2).await.unwrap();
    assert!(page.records.is_empty() && page.next.is_none());
}

/// A list shows exactly what one message shows, payload and all.
pub async fn list_and_show_agree<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    dead_from(store, draft("topic").key("k").header("a", "b").build().unwrap()).await;
    enqueue(store, &[draft("topic").tenant_id("t").expires_after(HOUR).build().unwrap(), plain()]).await;
    claim(store, 1).await;
    for listed in records(store).await {
        assert_eq!(record(store, listed.message.id).await, listed);
    }
    assert!(store.show(MessageId::new()).await.unwrap().is_none());
}
