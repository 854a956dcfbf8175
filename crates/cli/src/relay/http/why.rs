//! Why a message has not arrived, by somebody who knows the routes and the sinks, too.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use posthaste::{MessageId, RouteState, Routes, Topics};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::api::{call, deadline, known};
use super::error::{Problem, Refusal};
use super::extract::Names;
use crate::relay::api_stores::ApiAccess;
use crate::relay::generation::Generation;

/// Why a message has not arrived.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WhyView {
    /// Which message.
    message: String,
    /// Its topic, if it is stored.
    topic: Option<String>,
    /// Its state, if it is stored.
    state: Option<String>,
    /// The reasons as text, one a line.
    explanation: String,
    /// The reasons, the most decisive one first: each has the field `reason`, and facts.
    #[schema(value_type = Vec<Object>)]
    reasons: serde_json::Value,
}

/// What runs now knows where topics go.
struct Known(Arc<Generation>);

impl Routes for Known {
    fn route(&self, topic: &str) -> Vec<RouteState> {
        let routes = &self.0.config.routes;
        if topic == self.0.config.settings.join_wait_topic {
            // Handled by the relay itself.
            return vec![RouteState { sink: "posthaste".to_owned(), down: None }];
        }
        let takes = |sink: &str| {
            let mut topics = routes.iter().filter(|route| route.sink == sink).map(|route| &route.topics);
            topics.any(|topics| Topics::of(topics).is_ok_and(|topics| topics.contains(topic)))
        };
        let sinks = self.0.sinks.iter().filter(|sink| takes(sink.name()));
        let state = sinks.map(|sink| RouteState {
            sink: sink.name().to_owned(),
            down: sink.trouble().map(|error| error.failure().text().to_owned()),
        });
        state.collect()
    }
}

/// Why a message has not arrived, and what to do about it
#[utoipa::path(get, path = "/v1/databases/{db}/messages/{id}/why", tag = "messages", security(("token" = ["viewer"])),
    params(
        ("db" = String, Path, description = "The database's name in the configuration"),
        ("id" = String, Path, pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description = "The message's id"),
    ),
    responses(
        (status = 200, description = "The reasons; `unknown` if no such message is stored", body = WhyView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn why(
    State(app): State<App>,
    Names((db, id)): Names<(String, String)>,
) -> Result<Json<WhyView>, Refusal> {
    let generation = app.generation();
    known(&generation, &db)?;
    let id = id.parse::<MessageId>()?;
    let routes = Known(Arc::clone(&generation));
    let why = async move |store: Arc<dyn ApiAccess>| posthaste::why(&*store, id, Some(&routes)).await;
    let why = call(&generation, &db, deadline(&generation), why).await?;
    Ok(Json(WhyView {
        message: why.message.to_string(),
        topic: why.topic,
        state: why.state.map(|state| state.to_string()),
        explanation: why.explanation,
        reasons: serde_json::to_value(&why.reasons).unwrap_or_default(),
    }))
}
