//! Messages over HTTP: lists, one of them with its history, and new ones.
//!
//! What a message carries is for admins, and each look at it is written to the log, without what was seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste::{
    Cursor, Enqueued, FailureClass, Filter, JSON, MessageId, NewMessage, OrderPolicy, State as MessageState,
    Topics, WorkItemId,
};
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::api::{call, deadline, known};
use super::auth::Identity;
use super::error::{Problem, Refusal};
use super::extract::{JsonBody, Names, Params};
use crate::relay::api_stores::ApiAccess;
use crate::relay::config::Role;
use crate::view::{HistoryView, MessageView};

/// The longest delay or expiry in seconds: ten years.
const LONGEST: u32 = 315_360_000;
/// The most messages of one request.
const MOST: usize = 100;

/// Which messages; everything that is given must match.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FilterBody {
    /// `ready`, `leased`, `done` or `dead`.
    pub(super) state: Option<String>,
    /// Topics, or beginnings of topics and a `*`.
    pub(super) topics: Option<Vec<String>>,
    pub(super) key: Option<String>,
    pub(super) tenant_id: Option<String>,
    pub(super) correlation_id: Option<String>,
    /// The class of the last failure, as in `business` or `unroutable`.
    pub(super) class: Option<String>,
    /// Enqueued at or after this time, RFC 3339.
    pub(super) created_from: Option<String>,
    /// Enqueued before this time, RFC 3339.
    pub(super) created_before: Option<String>,
    /// With one of these ids.
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) ids: Option<Vec<String>>,
}

impl FilterBody {
    /// Whether nothing is asked for, and so everything.
    pub(super) fn is_empty(&self) -> bool {
        let Self { state, topics, key, tenant_id, correlation_id, class, created_from, created_before, ids } =
            self;
        let texts = [state, key, tenant_id, correlation_id, class, created_from, created_before];
        texts.iter().all(|text| text.is_none()) && topics.is_none() && ids.is_none()
    }

    pub(super) fn filter(self) -> Result<Filter, Refusal> {
        let topics = match self.topics {
            Some(topics) => Topics::of(topics)?,
            None => Topics::all(),
        };
        // None at all would be all of them to a filter, and never is to whoever has none.
        if self.ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(Refusal::invalid("ids names no message", "name some, or leave it out"));
        }
        let ids = self.ids.unwrap_or_default();
        if ids.len() > 1_000 {
            return Err(Refusal::invalid("more than 1000 ids are named", "name fewer"));
        }
        let filter = Filter {
            state: self.state.map(|text| state(&text)).transpose()?,
            topics,
            key: self.key,
            tenant_id: self.tenant_id,
            correlation_id: self.correlation_id,
            class: self.class.map(|text| class(&text)).transpose()?,
            created_from: self.created_from.map(|text| time("created_from", &text)).transpose()?,
            created_before: self.created_before.map(|text| time("created_before", &text)).transpose()?,
            ids: ids.iter().map(|text| text.parse::<MessageId>()).collect::<Result<_, _>>()?,
        };
        filter.check()?;
        Ok(filter)
    }
}

fn state(text: &str) -> Result<MessageState, Refusal> {
    let known = [MessageState::Ready, MessageState::Leased, MessageState::Done, MessageState::Dead];
    let found = known.into_iter().find(|state| state.to_string() == text);
    found.ok_or_else(|| Refusal::invalid("there is no such state", "give ready, leased, done or dead"))
}

fn class(text: &str) -> Result<FailureClass, Refusal> {
    let plain = text.replace(['_', '-'], " ");
    let found =
        FailureClass::ALL.into_iter().find(|class| class.to_string().replace(['_', '-'], " ") == plain);
    found.ok_or_else(|| {
        let known: Vec<String> = FailureClass::ALL.iter().map(ToString::to_string).collect();
        Refusal::invalid("there is no such class", &format!("give {}", known.join(", ")))
    })
}

fn time(field: &str, text: &str) -> Result<SystemTime, Refusal> {
    let parsed = text.parse::<jiff::Timestamp>().ok().map(SystemTime::from);
    parsed
        .ok_or_else(|| Refusal::invalid(format!("{field} is no time"), "write it like 2026-11-16T12:00:00Z"))
}

/// What a list may be asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// `ready`, `leased`, `done` or `dead`.
    state: Option<String>,
    /// A topic, or the beginning of some and a `*`.
    topic: Option<String>,
    key: Option<String>,
    tenant_id: Option<String>,
    correlation_id: Option<String>,
    /// The class of the last failure.
    class: Option<String>,
    /// Enqueued at or after this time, RFC 3339.
    created_from: Option<String>,
    /// Enqueued before this time, RFC 3339.
    created_before: Option<String>,
    /// How many, at most.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<i64>,
}

/// A page of messages, in the order of enqueueing.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PageView {
    messages: Vec<MessageView>,
    /// What to give as `after` for the next page, if there is one.
    next: Option<i64>,
}

/// A page of messages, without what they carry
#[utoipa::path(get, path = "/v1/databases/{db}/messages", tag = "messages", security(("token" = ["viewer"])),
    params(("db" = String, Path, description = "The database's name in the configuration"), ListQuery),
    responses(
        (status = 200, description = "A page", body = PageView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn list(
    State(app): State<App>,
    Names(db): Names<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<PageView>, Refusal> {
    let generation = app.generation();
    known(&generation, &db)?;
    let limit = query.limit.unwrap_or(50);
    if !(1..=200).contains(&limit) {
        return Err(Refusal::invalid(format!("limit is {limit}"), "give it 1 to 200"));
    }
    let after = query.after.map(|item| Cursor::after(WorkItemId::new(item)));
    let filter = FilterBody {
        state: query.state,
        topics: query.topic.map(|topic| vec![topic]),
        key: query.key,
        tenant_id: query.tenant_id,
        correlation_id: query.correlation_id,
        class: query.class,
        created_from: query.created_from,
        created_before: query.created_before,
        ids: None,
    };
    let filter = filter.filter()?;
    let list = async move |store: Arc<dyn ApiAccess>| store.list(&filter, after, limit).await;
    let listing = call(&generation, &db, deadline(&generation), list).await?;
    let messages = listing.records.iter().map(MessageView::new).collect();
    Ok(Json(PageView { messages, next: listing.next.map(|cursor| cursor.item().get()) }))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ShowQuery {
    /// Whether to show what it carries, too: for the role admin.
    content: bool,
}

/// A message, and what operators did to it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ShownView {
    message: MessageView,
    history: Vec<HistoryView>,
}

/// One message, and what operators did to it; with `content=true` what it carries
#[utoipa::path(get, path = "/v1/databases/{db}/messages/{id}", tag = "messages", security(("token" = ["viewer"])),
    params(
        ("db" = String, Path, description = "The database's name in the configuration"),
        ("id" = String, Path, pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description = "The message's id"),
        ShowQuery,
    ),
    responses(
        (status = 200, description = "The message", body = ShownView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn show(
    State(app): State<App>,
    identity: Identity,
    Names((db, id)): Names<(String, String)>,
    Params(ShowQuery { content }): Params<ShowQuery>,
) -> Result<Json<ShownView>, Refusal> {
    let generation = app.generation();
    known(&generation, &db)?;
    let id = id.parse::<MessageId>()?;
    if content {
        identity.needs(Role::Admin)?;
        info!(by = %identity.name, database = %db, message_id = %id, "the content of a message was looked at");
    }
    let (tenants, database) = (generation.tenants.clone(), db.clone());
    let show = async move |store: Arc<dyn ApiAccess>| {
        let mut found = store.show(id).await?;
        if let (true, Some((record, _))) = (content, &mut found) {
            store.decrypt_for(&tenants, &database, &mut record.message).await?;
        }
        Ok(found)
    };
    let found = call(&generation, &db, deadline(&generation), show).await?;
    let Some((record, history)) = found else {
        return Err(Refusal::not_found("there is no such message", "check its id, and the database's name"));
    };
    let message = if content { MessageView::with_content(&record) } else { MessageView::new(&record) };
    Ok(Json(ShownView { message, history: history.iter().map(HistoryView::from).collect() }))
}

/// Messages to store, all of them or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EnqueueBody {
    #[schema(min_items = 1, max_items = 100)]
    messages: Vec<MessageBody>,
}

/// A message to store. Its payload is one of `json`, `text` and `base64`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MessageBody {
    #[schema(required = true, min_length = 1, max_length = 255)]
    topic: String,
    /// The payload as a JSON value.
    #[schema(value_type = serde_json::Value, required = false)]
    json: Option<Box<serde_json::value::RawValue>>,
    /// The payload as a text.
    text: Option<String>,
    /// The payload as bytes.
    base64: Option<String>,
    content_type: Option<String>,
    /// The ordering key.
    #[schema(max_length = 255)]
    key: Option<String>,
    /// What becomes of its key when it dies: `block`, `park` or `skip`.
    order: Option<String>,
    /// Default: a new UUID of version 7.
    id: Option<String>,
    /// A second message with the same one is not stored.
    dedup_key: Option<String>,
    headers: BTreeMap<String, String>,
    #[schema(max_length = 255)]
    correlation_id: Option<String>,
    #[schema(max_length = 255)]
    aggregate_type: Option<String>,
    #[schema(max_length = 255)]
    aggregate_id: Option<String>,
    #[schema(max_length = 255)]
    tenant_id: Option<String>,
    /// Not before so long from now.
    #[schema(maximum = 315_360_000)]
    delay_seconds: Option<u32>,
    /// Dead, if nobody claimed it so long from now.
    #[schema(maximum = 315_360_000)]
    expires_after_seconds: Option<u32>,
    /// Smaller numbers go first.
    priority: i16,
}

impl MessageBody {
    fn build(self) -> Result<NewMessage, Refusal> {
        let mut message = match (self.json, self.text, self.base64) {
            // As it was written: numbers keep their digits.
            (Some(value), None, None) => {
                // So deep that most readers would refuse it.
                if serde_json::from_str::<serde_json::Value>(value.get()).is_err() {
                    return Err(Refusal::invalid("json is nested too deeply", "send it as text, or base64"));
                }
                NewMessage::bytes(&self.topic, value.get().to_owned()).content_type(JSON)
            }
            (None, Some(text), None) => {
                NewMessage::bytes(&self.topic, text.into_bytes()).content_type("text/plain")
            }
            (None, None, Some(base64)) => {
                let bytes = STANDARD.decode(base64);
                let bytes = bytes.map_err(|_| {
                    Refusal::invalid("base64 is none", "write it in the standard alphabet, with its padding")
                })?;
                NewMessage::bytes(&self.topic, bytes)
            }
            // A payload of null.
            (None, None, None) => NewMessage::bytes(&self.topic, "null").content_type(JSON),
            _ => {
                return Err(Refusal::invalid(
                    "a message has several payloads",
                    "give one of json, text and base64",
                ));
            }
        };
        if let Some(order) = self.order {
            let known = [OrderPolicy::Block, OrderPolicy::Park, OrderPolicy::Skip];
            let found = known.into_iter().find(|policy| policy.to_string() == order);
            message = message.order(
                found
                    .ok_or_else(|| Refusal::invalid("there is no such order", "give block, park or skip"))?,
            );
        }
        if let Some(id) = self.id {
            message = message.id(id.parse::<MessageId>()?);
        }
        match (self.aggregate_type, self.aggregate_id) {
            (Some(kind), Some(id)) => message = message.aggregate(kind, id),
            (None, None) => {}
            _ => return Err(Refusal::invalid("an aggregate is its type and its id", "give both, or none")),
        }
        macro_rules! set {
            ($($field:ident),*) => {$(if let Some(value) = self.$field { message = message.$field(value); })*};
        }
        set!(content_type, key, dedup_key, correlation_id, tenant_id);
        let longest = self.delay_seconds.max(self.expires_after_seconds);
        if longest.is_some_and(|seconds| seconds > LONGEST) {
            return Err(Refusal::invalid(
                "a delay or an expiry is too far away",
                &format!("give it up to {LONGEST} seconds"),
            ));
        }
        if let Some(seconds) = self.delay_seconds {
            message = message.delay(Duration::from_secs(seconds.into()));
        }
        if let Some(seconds) = self.expires_after_seconds {
            message = message.expires_after(Duration::from_secs(seconds.into()));
        }
        Ok(message.headers(self.headers).priority(self.priority).build()?)
    }
}

/// What became of the messages, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EnqueuedView {
    messages: Vec<OneEnqueuedView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct OneEnqueuedView {
    /// Its id, or that of the message that is there already.
    id: String,
    /// Whether one with the same id or dedup key is there already, and this one was not stored.
    duplicate: bool,
}

/// Stores messages in one transaction
#[utoipa::path(post, path = "/v1/databases/{db}/messages", tag = "messages", security(("token" = ["operator"])),
    params(("db" = String, Path, description = "The database's name in the configuration")),
    request_body = EnqueueBody,
    responses(
        (status = 201, description = "Stored; perhaps not all of them", body = EnqueuedView),
        (status = 200, description = "All were there already", body = EnqueuedView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn enqueue(
    State(app): State<App>,
    identity: Identity,
    Names(db): Names<String>,
    JsonBody(body): JsonBody<EnqueueBody>,
) -> Result<(StatusCode, Json<EnqueuedView>), Refusal> {
    let generation = app.generation();
    known(&generation, &db)?;
    if !(1..=MOST).contains(&body.messages.len()) {
        let message = format!("the body has {} messages", body.messages.len());
        return Err(Refusal::invalid(message, &format!("give it 1 to {MOST}")));
    }
    let messages = body.messages.into_iter().map(MessageBody::build).collect::<Result<Vec<_>, _>>()?;
    let (tenants, database) = (generation.tenants.clone(), db.clone());
    let store = async move |store: Arc<dyn ApiAccess>| store.enqueue_for(&tenants, &database, messages).await;
    let enqueued = call(&generation, &db, deadline(&generation), store).await?;
    info!(by = %identity.name, database = %db, messages = enqueued.len(), "messages were enqueued over HTTP");
    let messages: Vec<OneEnqueuedView> = enqueued
        .into_iter()
        .map(|enqueued| match enqueued {
            Enqueued::New { id, .. } => OneEnqueuedView { id: id.to_string(), duplicate: false },
            Enqueued::Duplicate { id } => OneEnqueuedView { id: id.to_string(), duplicate: true },
        })
        .collect();
    let status =
        if messages.iter().all(|message| message.duplicate) { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(EnqueuedView { messages })))
}
