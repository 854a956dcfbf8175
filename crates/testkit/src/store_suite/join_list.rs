//! Operators' views of joins: one, many, their steps, and the filters.

use std::sync::Arc;

use posthaste_core::{
    ErrorKind, JoinFilter, JoinId, JoinStatus, JoinStore, MessageId, NewJoin, Outcome, Result, StoreAdmin,
};

use super::support::*;
use crate::Fixture;

/// The ids of a filter's first page.
async fn found<S: StoreAdmin>(store: &S, filter: &JoinFilter) -> Vec<JoinId> {
    let page = store.joins(filter, None, 200).await.unwrap();
    assert_eq!(page.next, None);
    page.joins.iter().map(|join| join.id).collect()
}

fn by_key(key: &str) -> JoinFilter {
    JoinFilter { grouping_key: Some(key.to_owned()), ..JoinFilter::default() }
}

/// Starts so many joins of one step, in one transaction.
async fn start_many<F: Fixture>(fixture: &F, count: usize) -> Vec<JoinId> {
    let mut tx = fixture.begin().await;
    let mut ids = Vec::new();
    for _ in 0..count {
        let new = NewJoin::expecting(1).grouping_key("many").build().unwrap();
        fixture.store().start_join(fixture.connection(&mut tx), &new).await.unwrap();
        ids.push(new.id());
    }
    fixture.commit(tx).await;
    ids
}

/// JOIN-080, JOIN-082, OBX-095: joins are found by grouping key, by status and by message, and all that is set must match.
pub async fn every_join_filter_chooses<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let keyed = |key: &str| NewJoin::expecting(1).grouping_key(key).build().unwrap();
    let mut ids = Vec::new();
    for new in [keyed("a"), keyed("a"), keyed("b"), expecting(1), keyed("a")] {
        ids.push(start(&**fixture, new).await);
    }
    enqueue(store, &plains(2)).await;
    let held = claim(store, 2).await;
    for index in [0, 2, 3] {
        attach(&**fixture, ids[index], &[held[0].id]).await;
    }
    attach(&**fixture, ids[1], &[held[1].id]).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, held[1].lease(), fail()).await;
    let all = JoinFilter::default;
    let step = |n: usize| Some(held[n].id);
    for (filter, expected) in [
        (all(), &[0, 1, 2, 3, 4][..]),
        (by_key("a"), &[0, 1, 4]),
        (by_key("b"), &[2]),
        (by_key("c"), &[]),
        (JoinFilter { status: Some(JoinStatus::Completed), ..all() }, &[0, 2, 3]),
        (JoinFilter { status: Some(JoinStatus::Failed), ..all() }, &[1]),
        (JoinFilter { status: Some(JoinStatus::Pending), ..all() }, &[4]),
        (JoinFilter { status: Some(JoinStatus::Cancelled), ..all() }, &[]),
        (JoinFilter { status: Some(JoinStatus::Expired), ..all() }, &[]),
        (JoinFilter { message: step(0), ..all() }, &[0, 2, 3]),
        (JoinFilter { message: step(1), ..all() }, &[1]),
        (JoinFilter { message: Some(MessageId::new()), ..all() }, &[]),
        (JoinFilter { status: Some(JoinStatus::Completed), ..by_key("a") }, &[0]),
        (JoinFilter { message: step(0), ..by_key("a") }, &[0]),
        (JoinFilter { message: step(1), status: Some(JoinStatus::Completed), ..all() }, &[]),
        (JoinFilter { message: step(0), status: Some(JoinStatus::Completed), ..by_key("b") }, &[2]),
    ] {
        let expected: Vec<_> = expected.iter().map(|index| ids[*index]).collect();
        assert_eq!(found(store, &filter).await, expected, "{filter:?}");
    }
    assert_exact(store).await;
}

/// OBX-095: grouping keys are compared byte by byte: neither case, nor accents, nor spaces at the end are the same.
pub async fn grouping_keys_are_compared_byte_by_byte<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let keys = ["key", "KEY", "Key", "key ", " key", "key\t", "kéy", "ke\u{301}y", "%", "_", "k%"];
    let mut ids = Vec::new();
    for key in keys {
        ids.push(start(&**fixture, NewJoin::expecting(1).grouping_key(key).build().unwrap()).await);
    }
    for (key, id) in keys.iter().zip(&ids) {
        assert_eq!(found(store, &by_key(key)).await, [*id], "{key:?}");
        assert_eq!(join(store, *id).await.grouping_key.as_deref(), Some(*key));
    }
    assert_exact(store).await;
}

/// Pages visit each join once, in the order of their ids, even when joins are added meanwhile; the last page is
/// marked.
pub async fn pages_of_joins_visit_each_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut ids = start_many(&**fixture, 25).await;
    let other = start(&**fixture, expecting(1)).await;
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.joins(&by_key("many"), after, 10).await.unwrap();
        assert!(page.joins.len() <= 10);
        seen.extend(page.joins.iter().map(|join| join.id));
        pages += 1;
        let Some(next) = page.next else { break };
        assert_eq!(Some(&next), seen.last());
        after = Some(next);
        if pages == 1 {
            ids.extend(start_many(&**fixture, 5).await);
        }
    }
    assert_eq!((pages, seen), (3, ids));
    assert_eq!(found(store, &JoinFilter::default()).await.len(), 31);
    let last = store.joins(&JoinFilter::default(), Some(JoinId::new()), 10).await.unwrap();
    assert!(last.joins.is_empty() && last.next.is_none(), "{other} is before it");
    assert_exact(store).await;
}

/// Pages visit each step once, in the order of the messages' ids, however they were attached; the last page is
/// marked.
pub async fn pages_of_steps_visit_each_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (other, _) = fan(&**fixture, 3).await;
    let mut ids = enqueue(store, &plains(30)).await;
    let id = start(&**fixture, expecting(40)).await;
    let shuffled: Vec<_> = (0..30).map(|n| ids[n * 7 % 30]).collect();
    attach(&**fixture, id, &shuffled[..11]).await;
    attach(&**fixture, id, &shuffled[11..]).await;
    ids.sort_unstable();
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.steps(id, after, 10).await.unwrap();
        seen.extend(page.steps.iter().map(|step| step.message));
        pages += 1;
        let Some(next) = page.next else { break };
        assert_eq!(Some(&next), seen.last());
        after = Some(next);
    }
    assert_eq!((pages, seen), (3, ids));
    assert_eq!(steps(store, other).await.len(), 3);
    assert_exact(store).await;
}

/// A missing join is none, and has no steps.
pub async fn an_unknown_join_is_none<F: Fixture>(fixture: &Arc<F>) {
    let (store, unknown) = (fixture.store(), JoinId::new());
    assert_eq!(store.join(unknown).await.unwrap(), None);
    let page = store.steps(unknown, None, 10).await.unwrap();
    assert!(page.steps.is_empty() && page.next.is_none());
    assert!(found(store, &JoinFilter::default()).await.is_empty());
    let id = start(&**fixture, expecting(1)).await;
    assert!(store.steps(id, None, 10).await.unwrap().steps.is_empty());
    assert_exact(store).await;
}

/// A list shows exactly what one join shows.
pub async fn a_list_of_joins_and_one_agree<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let whole = NewJoin::expecting(2).grouping_key("k").metadata("m").expires_after(HOUR).build().unwrap();
    start(&**fixture, whole).await;
    let (_, held) = leased_fan(&**fixture, 1).await;
    apply(store, held[0].lease(), fail()).await;
    for listed in store.joins(&JoinFilter::default(), None, 10).await.unwrap().joins {
        assert_eq!(join(store, listed.id).await, listed);
    }
    assert_exact(store).await;
}

/// Rule 15: pages out of range, and keys that no join can have, are refused.
pub async fn impossible_lists_of_joins_are_refused<F: Fixture>(fixture: &Arc<F>) {
    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(result: Result<T>) {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let (store, id) = (fixture.store(), start(&**fixture, expecting(1)).await);
    for limit in [0, 201] {
        assert_refused(store.joins(&JoinFilter::default(), None, limit).await);
        assert_refused(store.steps(id, None, limit).await);
    }
    for key in [String::new(), "a\0b".to_owned(), "x".repeat(256)] {
        assert_refused(store.joins(&by_key(&key), None, 10).await);
    }
    assert_exact(store).await;
}
