//! Every reason that a store in memory can be brought to give, at times that the tests decide.

use std::sync::Arc;

use super::*;
use crate::clock::ManualClock;
use crate::id::WorkerId;
use crate::message::{Message, MessageBuilder, NewMessage};
use crate::order::OrderPolicy;
use crate::outcome::{Failure, Outcome, Settlement};
use crate::store::admin::Change;
use crate::store::memory::MemoryStore;
use crate::store::{ClaimRequest, Store as _};

const MINUTE: Duration = Duration::from_secs(60);

struct Bench {
    store: MemoryStore,
    clock: Arc<ManualClock>,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)));
        Self { store: MemoryStore::with_clock(clock.clone()), clock }
    }

    async fn publish(&self, message: MessageBuilder) -> MessageId {
        self.store.enqueue(&[message.build().unwrap()]).await.unwrap()[0].id()
    }

    async fn claim(&self) -> Vec<Message> {
        self.store.claim(&ClaimRequest::new(WorkerId::new("worker-7").unwrap())).await.unwrap()
    }

    /// Claims all there is, and decides the same about each.
    async fn settle(&self, outcome: Outcome) {
        let settlements: Vec<Settlement> = self
            .claim()
            .await
            .iter()
            .map(|message| Settlement::new(message.lease(), outcome.clone()))
            .collect();
        assert!(!settlements.is_empty(), "nothing could be claimed");
        self.store.settle(&settlements).await.unwrap();
    }

    async fn why(&self, id: MessageId) -> Why {
        self.why_with(id, None).await
    }

    async fn why_with(&self, id: MessageId, routes: Option<&dyn Routes>) -> Why {
        why_at(&self.store, id, routes, self.clock.now()).await.unwrap()
    }

    /// The only reason, which is also in the explanation.
    async fn only(&self, id: MessageId, says: &str) -> Reason {
        let why = self.why(id).await;
        assert!(why.explanation.contains(says), "{}", why.explanation);
        let [reason] = &why.reasons[..] else { panic!("{:?}", why.reasons) };
        reason.clone()
    }

    fn change(&self, id: MessageId) -> Change {
        Change::new(Filter { ids: vec![id], ..Filter::default() }, "ada", "customer left").unwrap()
    }
}

fn message() -> MessageBuilder {
    NewMessage::bytes("order.placed", "secret payload")
}

fn abandon(failure: Failure, max_attempts: u32) -> Outcome {
    Outcome::Abandon { delay: MINUTE, failure, max_attempts, max_age: None }
}

#[tokio::test]
async fn an_id_that_is_not_stored_is_unknown() {
    let bench = Bench::new();
    let why = bench.why(MessageId::new()).await;
    assert_eq!((why.topic, why.state, why.reasons), (None, None, vec![Reason::Unknown]));
    assert!(why.explanation.contains("rolled back") && why.explanation.contains("pruned"));
}

#[tokio::test]
async fn what_nothing_stops_says_so() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    assert_eq!(bench.only(id, "no worker runs for its topic").await, Reason::Nothing);
}

#[tokio::test]
async fn done_names_the_worker_and_the_time() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.settle(Outcome::Ack).await;
    let at = Some(bench.clock.now());
    bench.clock.advance(MINUTE);
    let reason = bench.only(id, "delivered by worker-7 1 min ago, at 2027-01-15 08:00:00 UTC").await;
    assert_eq!(reason, Reason::Done { at, by: Some("worker-7".to_owned()) });
}

#[tokio::test]
async fn dead_names_class_error_and_attempts() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.settle(abandon(Failure::business("card refused"), 1)).await;
    let reason = bench.only(id, "of this: [BUSINESS] card refused, after 1 attempt (business); mend").await;
    assert!(
        matches!(reason, Reason::Dead { class: Some(FailureClass::Business), attempts: 1, .. }),
        "{reason:?}"
    );
}

#[tokio::test]
async fn an_expiry_that_passed_is_told_before_and_after_the_sweep() {
    let bench = Bench::new();
    let id = bench.publish(message().expires_after(MINUTE)).await;
    bench.clock.advance(2 * MINUTE);
    assert!(matches!(bench.only(id, "its expiry passed 1 min ago").await, Reason::ExpiryPassed { .. }));
    bench.store.expire(10).await.unwrap();
    assert!(matches!(bench.only(id, "requeue it if it is still wanted").await, Reason::Expired { .. }));
}

#[tokio::test]
async fn buried_names_who_and_why() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.store.bury(&bench.change(id)).await.unwrap();
    let reason = bench.only(id, "buried by ada").await;
    let Reason::Buried { by, why, .. } = reason else { panic!("{reason:?}") };
    assert_eq!((by.as_deref(), why.as_deref()), (Some("ada"), Some("customer left")));
}

#[tokio::test]
async fn a_scheduled_one_says_when_it_is_due() {
    let bench = Bench::new();
    let id = bench.publish(message().delay(2 * MINUTE)).await;
    let until = bench.clock.now() + 2 * MINUTE;
    assert_eq!(bench.only(id, "due in 2 min, at 2027-01-15 08:02:00 UTC").await, Reason::Scheduled { until });
}

#[tokio::test]
async fn a_retry_says_after_what_and_a_requeued_one_forgets_it() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.settle(abandon(Failure::business("no stock"), 9)).await;
    let reason = bench.only(id, "after 1 attempt failed: business ([BUSINESS] no stock)").await;
    assert!(matches!(reason, Reason::Retry { attempts: 1, class: FailureClass::Business, .. }), "{reason:?}");
    bench.clock.advance(MINUTE);
    bench.settle(Outcome::Fail { failure: Failure::permanent("never") }).await;
    bench.store.requeue(&bench.change(id)).await.unwrap();
    bench.settle(Outcome::Defer { delay: MINUTE }).await;
    assert!(matches!(bench.only(id, "scheduled or deferred").await, Reason::Scheduled { .. }));
}

#[tokio::test]
async fn a_failure_that_costs_no_attempt_is_a_retry_too() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.settle(abandon(Failure::infrastructure("broker is down"), 9)).await;
    let reason = bench.only(id, "failures that cost none: infrastructure").await;
    assert!(matches!(reason, Reason::Retry { attempts: 0, .. }), "{reason:?}");
}

#[tokio::test]
async fn a_lease_names_its_worker_until_it_runs_out() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.claim().await;
    assert!(matches!(bench.only(id, "worker-7 has it until 2027-01-15").await, Reason::Leased { .. }));
    bench.clock.advance(2 * MINUTE);
    let reason = bench.only(id, "its lease ran out 1 min 30 s ago").await;
    assert!(matches!(reason, Reason::LeaseRanOut { .. }), "{reason:?}");
}

#[tokio::test]
async fn one_that_lost_a_lease_is_a_suspect() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    bench.claim().await;
    bench.clock.advance(2 * MINUTE);
    bench.store.reap(10).await.unwrap();
    assert_eq!(bench.only(id, "1 lease ran out on it").await, Reason::Suspect { lease_losses: 1 });
}

#[tokio::test]
async fn the_first_open_message_of_the_key_is_named() {
    let bench = Bench::new();
    let first = bench.publish(message().key("secret key").delay(MINUTE)).await;
    let _second = bench.publish(message().key("secret key")).await;
    let third = bench.publish(message().key("secret key")).await;
    let other = bench.publish(message().key("another")).await;
    let reason =
        bench.only(third, &format!("message {first} (order.placed, ready) of its key comes first")).await;
    assert!(matches!(&reason, Reason::KeyBlocked { by } if by.message == first), "{reason:?}");
    assert_eq!(bench.only(other, "").await, Reason::Nothing);

    bench.clock.advance(MINUTE);
    assert_eq!(bench.claim().await.len(), 2);
    bench.only(third, &format!("message {first} (order.placed, leased)")).await;
}

#[tokio::test]
async fn a_dead_message_that_holds_the_key_is_found_behind_many_that_do_not() {
    let bench = Bench::new();
    for _ in 0..250 {
        bench.publish(message().key("k").order(OrderPolicy::Skip)).await;
    }
    for _ in 0..250 {
        bench.settle(Outcome::Fail { failure: Failure::permanent("no") }).await;
    }
    let blocking = bench.publish(message().key("k")).await;
    bench.settle(Outcome::Fail { failure: Failure::permanent("no") }).await;
    let id = bench.publish(message().key("k")).await;
    let reason = bench.only(id, "dead: permanent), which was enqueued before it").await;
    assert!(matches!(&reason, Reason::KeyBlocked { by } if by.message == blocking), "{reason:?}");

    bench.store.bury(&bench.change(blocking)).await.unwrap();
    assert_eq!(bench.only(id, "").await, Reason::Nothing);
}

#[tokio::test]
async fn a_parked_one_names_what_it_is_parked_behind() {
    let bench = Bench::new();
    let dead = bench.publish(message().key("k").order(OrderPolicy::Park)).await;
    bench.settle(Outcome::Fail { failure: Failure::permanent("no") }).await;
    let id = bench.publish(message().key("k")).await;
    bench.store.park(10).await.unwrap();
    let reason = bench.only(id, &format!("parked behind message {dead}")).await;
    assert!(
        matches!(&reason, Reason::Parked { behind: Some(behind) } if behind.message == dead),
        "{reason:?}"
    );
}

#[tokio::test]
async fn every_pause_of_its_topic_is_named_before_what_comes_after() {
    let bench = Bench::new();
    let id = bench.publish(message().delay(MINUTE)).await;
    for topics in ["order.*", "order.placed", "invoice.*"] {
        bench.store.pause(topics, "ada", "broker moves").await.unwrap();
    }
    let why = bench.why(id).await;
    let paused = |reason: &Reason| matches!(reason, Reason::Paused { .. });
    assert_eq!(why.reasons.len(), 3, "{:?}", why.reasons);
    assert!(paused(&why.reasons[0]) && paused(&why.reasons[1]));
    assert!(why.explanation.contains("order.* was paused by ada 0 ms ago"), "{}", why.explanation);
    assert!(!why.explanation.contains("invoice"), "{}", why.explanation);
}

struct Known;

impl Routes for Known {
    fn route(&self, topic: &str) -> Vec<RouteState> {
        let sink = |sink: &str, down: Option<&str>| RouteState {
            sink: sink.to_owned(),
            down: down.map(str::to_owned),
        };
        if topic == "order.placed" {
            vec![sink("rabbit", None), sink("nats", Some("connection refused"))]
        } else {
            Vec::new()
        }
    }
}

#[tokio::test]
async fn who_knows_the_routes_tells_of_missing_ones_and_of_sinks_that_are_down() {
    let bench = Bench::new();
    let routed = bench.publish(message()).await;
    let unrouted = bench.publish(NewMessage::bytes("odd", "")).await;
    let why = bench.why_with(routed, Some(&Known)).await;
    let down = Reason::SinkDown { sink: "nats".to_owned(), why: "connection refused".to_owned() };
    assert_eq!(why.reasons, [down]);
    let why = bench.why_with(unrouted, Some(&Known)).await;
    assert_eq!(why.reasons, [Reason::NoRoute { topic: "odd".to_owned() }]);
}

#[tokio::test]
async fn a_sink_that_has_it_already_is_no_reason() {
    let bench = Bench::new();
    let id = bench.publish(message()).await;
    let claimed = bench.claim().await;
    let mut settlement = Settlement::new(claimed[0].lease(), Outcome::Release);
    settlement.handled = Some(vec!["nats".to_owned()]);
    bench.store.settle(&[settlement]).await.unwrap();
    assert_eq!(bench.why_with(id, Some(&Known)).await.reasons, [Reason::Nothing]);
}

#[tokio::test]
async fn programs_get_tagged_reasons_and_readable_times_and_nobody_gets_content() {
    let bench = Bench::new();
    let first = bench.publish(message().key("secret key").header("h", "secret header").delay(MINUTE)).await;
    let second = bench.publish(message().key("secret key")).await;
    let json = serde_json::to_value(bench.why(first).await).unwrap();
    assert_eq!(json["reasons"][0]["reason"], "scheduled");
    assert_eq!(json["reasons"][0]["until"], "2027-01-15T08:01:00.000000Z");
    assert_eq!(json["state"], "ready");
    let json = serde_json::to_string(&bench.why(second).await).unwrap();
    assert!(json.contains("key_blocked") && !json.contains("secret"), "{json}");
}

#[test]
fn a_session_that_holds_the_row_is_named() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let reason = Reason::Held {
        session: "process 4711".to_owned(),
        about: "app, idle in transaction".to_owned(),
        since: Some(now - MINUTE),
    };
    let text = reason.sentence(now);
    assert!(text.starts_with("process 4711 keeps its row locked since 2027-01-15 07:59:00 UTC"), "{text}");
}
