//! Whose turn it is: jobs that one process does for all.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Store, Turn};
use tokio::task::JoinSet;

use super::support::*;
use crate::Fixture;

/// INB-007: a turn comes so long after the last one, whichever process had that.
pub async fn every_so_often<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    assert!(store.turn("job", Turn::Every(HOUR)).await.unwrap(), "the first");
    assert!(!store.turn("job", Turn::Every(HOUR)).await.unwrap());
    fixture.advance(HOUR - MINUTE).await;
    assert!(!store.turn("job", Turn::Every(HOUR)).await.unwrap());
    fixture.advance(2 * MINUTE).await;
    assert!(store.turn("job", Turn::Every(HOUR)).await.unwrap());
    assert!(!store.turn("job", Turn::Every(HOUR)).await.unwrap(), "it counts from the last");
    fixture.advance(10 * HOUR).await;
    assert!(store.turn("job", Turn::Every(HOUR)).await.unwrap());
    assert!(
        !store.turn("job", Turn::Every(HOUR)).await.unwrap(),
        "those that were missed are not made up for"
    );
}

/// INB-007: the turn of a given time is had once, not before that time, and not after a later one.
pub async fn at_a_given_time<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let now = fixture.now().await;
    assert!(!store.turn("job", Turn::At(now + HOUR)).await.unwrap(), "it is not that time yet");
    assert!(store.turn("job", Turn::At(now - HOUR)).await.unwrap(), "nobody had a turn by asking too early");
    assert!(!store.turn("job", Turn::At(now - HOUR)).await.unwrap(), "once");
    assert!(!store.turn("job", Turn::At(now - 2 * HOUR)).await.unwrap(), "a later one was had");
    assert!(!store.turn("job", Turn::At(now + HOUR)).await.unwrap());
    assert!(store.turn("job", Turn::At(now - MINUTE)).await.unwrap());
    assert!(!store.turn("job", Turn::At(now - MINUTE)).await.unwrap());
}

/// INB-007: both kinds of turns of one job know of each other.
pub async fn both_kinds_of_turns<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    assert!(store.turn("job", Turn::Every(HOUR)).await.unwrap());
    assert!(!store.turn("job", Turn::At(fixture.now().await - HOUR)).await.unwrap());
    fixture.advance(2 * HOUR).await;
    assert!(store.turn("job", Turn::At(fixture.now().await - HOUR)).await.unwrap());
    assert!(!store.turn("job", Turn::Every(3 * HOUR)).await.unwrap());
    assert!(store.turn("job", Turn::Every(Duration::ZERO)).await.unwrap());
}

/// INB-007: jobs have turns of their own, and their names are compared byte by byte.
pub async fn jobs_are_apart<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let long = "j".repeat(255);
    let names = ["job", "Job", "job ", "jöb", "job' or 1=1 --", &long];
    for name in names {
        assert!(store.turn(name, Turn::Every(HOUR)).await.unwrap(), "{name:?}");
    }
    for name in names {
        assert!(!store.turn(name, Turn::Every(HOUR)).await.unwrap(), "{name:?}");
    }
}

/// INB-007, OBX-099: of sixteen that ask at the same moment one has the turn, whether it is the first or not.
pub async fn one_of_many<F: Fixture>(fixture: &Arc<F>) {
    let long_ago = fixture.now().await - 1_000 * HOUR;
    for round in 0..6u32 {
        let turn = if round % 2 == 0 { Turn::Every(HOUR) } else { Turn::At(long_ago + round * HOUR) };
        let job = if round % 2 == 0 { "every" } else { "at" };
        let mut askers = JoinSet::new();
        for _ in 0..16 {
            let store = fixture.store().clone();
            askers.spawn(async move { store.turn(job, turn).await.unwrap() });
        }
        let answers = askers.join_all().await;
        assert_eq!(answers.iter().filter(|mine| **mine).count(), 1, "round {round}");
        fixture.advance(2 * HOUR).await;
    }
}
