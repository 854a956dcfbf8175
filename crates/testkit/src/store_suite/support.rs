//! Shared by the cases: messages to enqueue, short forms of the calls, and comparisons that allow for real clocks.
//!
//! Nothing here asserts a requirement; it must never hide a store's answer.

use std::time::{Duration, SystemTime};

use posthaste_core::{
    Attached, Birth, Change, ClaimRequest, EndedJoin, Enqueued, ErrorKind, Failure, Filter, HistoryEntry,
    Join, JoinId, JoinStatus, JoinStore, Lease, Message, MessageBuilder, MessageId, NewJoin, NewMessage,
    Outcome, Record, Reported, Result, Settled, Settlement, State, Stats, Step, StepEnd, StepStatus,
    StoreAdmin, TransactionalStore, WorkerId,
};

use crate::{Fixture, JoinCensus};

/// Long enough to cross a boundary by, and longer than any case takes.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// A round number of hours keeps every comparison far from its boundary.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// The cases' lease, unless they test leases.
pub(crate) const LEASE: Duration = HOUR;
/// How far a time may be off: the machine may be busy.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(30);

/// A worker with this name.
pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

/// A claim of the usual worker.
pub(crate) fn request(limit: u32) -> ClaimRequest {
    ClaimRequest::new(worker("worker-1")).limit(limit).lease(LEASE)
}

/// The beginning of a message.
pub(crate) fn draft(topic: &str) -> MessageBuilder {
    NewMessage::bytes(topic, topic.to_owned())
}

/// A message of no special kind.
pub(crate) fn plain() -> NewMessage {
    draft("topic").build().unwrap()
}

/// So many of them.
pub(crate) fn plains(count: usize) -> Vec<NewMessage> {
    (0..count).map(|_| plain()).collect()
}

/// A message with a key.
pub(crate) fn keyed(key: &str) -> NewMessage {
    draft("topic").key(key).build().unwrap()
}

/// Enqueues messages, all of which must be new.
pub(crate) async fn enqueue<S: StoreAdmin>(store: &S, messages: &[NewMessage]) -> Vec<MessageId> {
    let enqueued = store.enqueue(messages).await.unwrap();
    let expected: Vec<_> =
        messages.iter().map(|message| Enqueued::New { id: message.id(), lease: None }).collect();
    assert_eq!(enqueued, expected);
    messages.iter().map(NewMessage::id).collect()
}

/// Enqueues one message.
pub(crate) async fn enqueue_one<S: StoreAdmin>(store: &S, message: NewMessage) -> MessageId {
    enqueue(store, &[message]).await[0]
}

/// Claims as the usual worker.
pub(crate) async fn claim<S: StoreAdmin>(store: &S, limit: u32) -> Vec<Message> {
    store.claim(&request(limit)).await.unwrap()
}

/// The ids of the claimed messages, in order.
pub(crate) async fn claim_ids<S: StoreAdmin>(store: &S, limit: u32) -> Vec<MessageId> {
    claim(store, limit).await.iter().map(|message| message.id).collect()
}

/// The one message that there is to claim.
pub(crate) async fn claim_one<S: StoreAdmin>(store: &S) -> Message {
    let claimed = claim(store, 10).await;
    assert_eq!(claimed.len(), 1, "one message was to be claimed: {claimed:?}");
    claimed.into_iter().next().unwrap()
}

/// A new message of no special kind, claimed.
pub(crate) async fn leased<S: StoreAdmin>(store: &S) -> Message {
    leased_from(store, plain()).await
}

/// This message, enqueued and claimed.
pub(crate) async fn leased_from<S: StoreAdmin>(store: &S, message: NewMessage) -> Message {
    let id = enqueue_one(store, message).await;
    let claimed = claim_one(store).await;
    assert_eq!(claimed.id, id);
    claimed
}

/// Settles one lease.
pub(crate) async fn settle<S: StoreAdmin>(store: &S, lease: Lease, outcome: Outcome) -> Settled {
    let settled = store.settle(&[Settlement::new(lease, outcome)]).await.unwrap().settled;
    assert_eq!(settled.len(), 1);
    settled[0]
}

/// Settles one lease, which must be in order.
pub(crate) async fn apply<S: StoreAdmin>(store: &S, lease: Lease, outcome: Outcome) {
    assert_eq!(settle(store, lease, outcome).await, Settled::Applied);
}

/// Enqueues this message, claims it, and lets it fail for good.
pub(crate) async fn dead_from<S: StoreAdmin>(store: &S, message: NewMessage) -> MessageId {
    let message = leased_from(store, message).await;
    apply(store, message.lease(), fail()).await;
    message.id
}

/// So many messages that failed for good, in the order of enqueueing.
pub(crate) async fn dead<S: StoreAdmin>(store: &S, count: usize) -> Vec<MessageId> {
    let ids = enqueue(store, &plains(count)).await;
    let claimed = claim(store, u32::try_from(count).unwrap()).await;
    assert_eq!(claimed.len(), count);
    let settlements: Vec<_> =
        claimed.iter().map(|message| Settlement::new(message.lease(), fail())).collect();
    let settled = store.settle(&settlements).await.unwrap().settled;
    assert!(settled.iter().all(|answer| *answer == Settled::Applied));
    ids
}

/// A failure for good.
pub(crate) fn fail() -> Outcome {
    Outcome::Fail { failure: Failure::permanent("broken") }
}

/// A failed attempt of ten.
pub(crate) fn abandon(delay: Duration) -> Outcome {
    Outcome::Abandon { delay, failure: Failure::business("refused"), max_attempts: 10, max_age: None }
}

/// Everything stored about a message.
pub(crate) async fn record<S: StoreAdmin>(store: &S, id: MessageId) -> Record {
    store.show(id).await.unwrap().expect("the message is stored").0
}

/// What operators did to a message.
pub(crate) async fn history<S: StoreAdmin>(store: &S, id: MessageId) -> Vec<HistoryEntry> {
    store.show(id).await.unwrap().expect("the message is stored").1
}

/// The state of a message; none if it is not stored.
pub(crate) async fn state<S: StoreAdmin>(store: &S, id: MessageId) -> Option<State> {
    store.show(id).await.unwrap().map(|(record, _)| record.state)
}

/// The whole table, page by page.
pub(crate) async fn records<S: StoreAdmin>(store: &S) -> Vec<Record> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&Filter::default(), after, 200).await.unwrap();
        all.extend(page.records);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// The ids of a filter's first page.
pub(crate) async fn listed<S: StoreAdmin>(store: &S, filter: &Filter) -> Vec<MessageId> {
    let page = store.list(filter, None, 200).await.unwrap();
    assert_eq!(page.next, None);
    page.records.iter().map(|record| record.message.id).collect()
}

/// The numbers of a store: ready, scheduled, parked, leased, done, dead; all of which must be exact.
pub(crate) fn numbers(stats: &Stats) -> [u64; 6] {
    let counts = [stats.ready, stats.scheduled, stats.parked, stats.leased, stats.done, stats.dead];
    assert!(counts.iter().all(|count| count.exact), "{stats:?}");
    counts.map(|count| count.value)
}

/// A change of everything.
pub(crate) fn change() -> Change {
    change_of(Filter::default())
}

/// A change of what matches.
pub(crate) fn change_of(filter: Filter) -> Change {
    Change::new(filter, "ada", "the broker is back").unwrap()
}

/// A filter for these ids.
pub(crate) fn only(ids: &[MessageId]) -> Filter {
    Filter { ids: ids.to_vec(), ..Filter::default() }
}

/// Asserts that a time is about another.
#[track_caller]
pub(crate) fn assert_near(actual: SystemTime, expected: SystemTime) {
    let off = actual.duration_since(expected).unwrap_or_else(|error| error.duration());
    assert!(off <= TOLERANCE, "{actual:?} is {off:?} off {expected:?}");
}

/// Every verb that takes a lease, by name; none is renewal.
pub(crate) fn verbs() -> Vec<(&'static str, Option<Outcome>)> {
    vec![
        ("ack", Some(Outcome::Ack)),
        ("abandon", Some(abandon(HOUR))),
        (
            "abandon at the limit",
            Some(Outcome::Abandon {
                delay: HOUR,
                failure: Failure::business("last straw"),
                max_attempts: 1,
                max_age: None,
            }),
        ),
        (
            "abandon uncharged",
            Some(Outcome::Abandon {
                delay: HOUR,
                failure: Failure::infrastructure("down"),
                max_attempts: 1,
                max_age: None,
            }),
        ),
        ("defer", Some(Outcome::Defer { delay: HOUR })),
        ("release", Some(Outcome::Release)),
        ("fail", Some(fail())),
        ("renew", None),
    ]
}

/// Does what [`verbs`] named.
pub(crate) async fn attempt<S: StoreAdmin>(store: &S, lease: Lease, verb: Option<Outcome>) -> Settled {
    match verb {
        Some(outcome) => settle(store, lease, outcome).await,
        None => store.renew(&[lease], 2 * LEASE).await.unwrap()[0],
    }
}

/// Longer than any case lets pass.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A join of so many steps, which is not started yet.
pub(crate) fn expecting(steps: u32) -> NewJoin {
    NewJoin::expecting(steps).build().unwrap()
}

/// Starts a join, in a transaction of its own.
pub(crate) async fn start<F: Fixture>(fixture: &F, join: NewJoin) -> JoinId {
    let mut tx = fixture.begin().await;
    fixture.store().start_join(fixture.connection(&mut tx), &join).await.unwrap();
    fixture.commit(tx).await;
    join.id()
}

/// Attaches messages to a join, in a transaction of its own, which is committed even if that is refused.
pub(crate) async fn try_attach<F: Fixture>(
    fixture: &F,
    join: JoinId,
    messages: &[MessageId],
) -> Result<Attached> {
    let mut tx = fixture.begin().await;
    let attached = fixture.store().attach(fixture.connection(&mut tx), join, messages).await;
    fixture.commit(tx).await;
    attached
}

/// Attaches messages to a join, in a transaction of its own.
pub(crate) async fn attach<F: Fixture>(fixture: &F, join: JoinId, messages: &[MessageId]) -> Attached {
    try_attach(fixture, join, messages).await.unwrap()
}

/// Reports the end of a step, in a transaction of its own.
pub(crate) async fn report<F: Fixture>(
    fixture: &F,
    join: JoinId,
    message: MessageId,
    end: StepEnd,
) -> Reported {
    let mut tx = fixture.begin().await;
    let reported = fixture.store().report(fixture.connection(&mut tx), join, message, end).await;
    fixture.commit(tx).await;
    reported.unwrap()
}

/// Cancels a join, in a transaction of its own.
pub(crate) async fn cancel<F: Fixture>(fixture: &F, join: JoinId) -> Option<EndedJoin> {
    let mut tx = fixture.begin().await;
    let ended = fixture.store().cancel_join(fixture.connection(&mut tx), join).await;
    fixture.commit(tx).await;
    ended.unwrap()
}

/// A join of so many new steps, all of them attached.
pub(crate) async fn fan<F: Fixture>(fixture: &F, steps: usize) -> (JoinId, Vec<MessageId>) {
    let ids = enqueue(fixture.store(), &plains(steps)).await;
    let join = start(fixture, expecting(u32::try_from(steps).unwrap())).await;
    attach(fixture, join, &ids).await;
    (join, ids)
}

/// The same, claimed; there must be nothing else to claim.
pub(crate) async fn leased_fan<F: Fixture>(fixture: &F, steps: usize) -> (JoinId, Vec<Message>) {
    let (join, ids) = fan(fixture, steps).await;
    let held = claim(fixture.store(), 1_000).await;
    assert_eq!(held.iter().map(|message| message.id).collect::<Vec<_>>(), ids);
    (join, held)
}

/// Stores a message that waits for a join and is due in a day.
pub(crate) async fn wait_for<F: Fixture>(fixture: &F, join: JoinId) -> MessageId {
    let wait = draft("wait").delay(DAY).build().unwrap();
    let mut tx = fixture.begin().await;
    fixture.store().wait_for_join(fixture.connection(&mut tx), join, wait.id()).await.unwrap();
    let id = wait.id();
    fixture.store().insert(fixture.connection(&mut tx), &[wait], Birth::Ready).await.unwrap();
    fixture.commit(tx).await;
    id
}

/// Everything stored about a join.
pub(crate) async fn join<S: StoreAdmin>(store: &S, id: JoinId) -> Join {
    store.join(id).await.unwrap().expect("the join is stored")
}

/// The numbers of a join: attached, completed, failed.
pub(crate) async fn tally<S: StoreAdmin>(store: &S, id: JoinId) -> (JoinStatus, [u32; 3]) {
    let join = join(store, id).await;
    (join.status, [join.attached_steps, join.completed_steps, join.failed_steps])
}

/// All steps of a join, page by page.
pub(crate) async fn steps<S: StoreAdmin>(store: &S, join: JoinId) -> Vec<Step> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.steps(join, after, 200).await.unwrap();
        all.extend(page.steps);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// The stored state of these steps of a join, each of which must be there.
pub(crate) async fn statuses<S: StoreAdmin>(
    store: &S,
    join: JoinId,
    messages: &[MessageId],
) -> Vec<StepStatus> {
    let steps = steps(store, join).await;
    let status = |id: &MessageId| steps.iter().find(|step| step.message == *id).unwrap().status;
    messages.iter().map(status).collect()
}

/// Settles one lease, which must be in order, and answers the joins that ended by it.
pub(crate) async fn end<S: StoreAdmin>(store: &S, lease: Lease, outcome: Outcome) -> Vec<EndedJoin> {
    let batch = store.settle(&[Settlement::new(lease, outcome)]).await.unwrap();
    assert_eq!(batch.settled, [Settled::Applied]);
    batch.joins
}

/// A join of this many expected, completed and failed steps that ended so.
pub(crate) fn ended(id: JoinId, status: JoinStatus, numbers: [u32; 3]) -> EndedJoin {
    let [expected_steps, completed_steps, failed_steps] = numbers;
    EndedJoin { id, status, expected_steps, completed_steps, failed_steps }
}

/// The failure of an attempt that was the last.
pub(crate) fn last_straw() -> Outcome {
    let failure = Failure::business("last straw");
    Outcome::Abandon { delay: HOUR, failure, max_attempts: 1, max_age: None }
}

/// I7: asserts that every join agrees with its steps, and every step with its message.
pub(crate) async fn assert_exact<S: StoreAdmin>(store: &S) {
    JoinCensus::of(store).await.exact().unwrap();
}

/// Asserts that a join was refused something for this reason, and that the error names it.
#[track_caller]
pub(crate) fn assert_names<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, join: JoinId) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    let named = |(name, value): (&str, &str)| name == "join_id" && value == join.to_string();
    assert!(error.context().any(named), "{error}");
}
