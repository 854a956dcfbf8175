//! What operators change over HTTP: requeue, bury, pause and resume. Who did it is the token's name, and is kept with the message.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use posthaste::{Change, Pause};
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::api::{call, deadline, known};
use super::auth::Identity;
use super::error::{Problem, Refusal};
use super::extract::{JsonBody, Names, Params};
use super::messages::FilterBody;
use crate::relay::api_stores::ApiAccess;
use crate::view::PauseView;

/// Which messages to change, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeBody {
    /// Which ones. An empty filter is refused, unless `all` is true.
    #[serde(default)]
    filter: FilterBody,
    /// Whether all that can be are meant.
    #[serde(default)]
    all: bool,
    /// Why: kept with each message.
    #[schema(min_length = 1, max_length = 1000)]
    why: String,
    /// How many, at most. Default: 1000.
    #[schema(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// Only tell which would be changed.
    #[serde(default)]
    dry_run: bool,
}

/// Which messages were changed, in the order of enqueueing.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangedView {
    ids: Vec<String>,
    /// Whether nothing was changed, and these would have been.
    dry_run: bool,
}

impl ChangeBody {
    fn change(self, by: &str) -> Result<Change, Refusal> {
        if self.filter.is_empty() && !self.all {
            return Err(Refusal::invalid(
                "the filter is empty",
                "say which messages are meant, or \"all\": true",
            ));
        }
        if self.why.len() > 1_000 {
            return Err(Refusal::invalid("why has more than 1000 bytes", "say it in fewer words"));
        }
        let mut change = Change::new(self.filter.filter()?, by, self.why)?;
        if let Some(limit) = self.limit {
            change = change.limit(limit);
        }
        change.check()?;
        Ok(if self.dry_run { change.dry_run() } else { change })
    }
}

/// Gives dead messages another chance
#[utoipa::path(post, path = "/v1/databases/{db}/requeue", tag = "changes", security(("token" = ["operator"])),
    params(("db" = String, Path, description = "The database's name in the configuration")),
    request_body = ChangeBody,
    responses(
        (status = 200, description = "Those that are ready again", body = ChangedView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn requeue(
    State(app): State<App>,
    identity: Identity,
    Names(db): Names<String>,
    JsonBody(body): JsonBody<ChangeBody>,
) -> Result<Json<ChangedView>, Refusal> {
    change(&app, &identity, db, body, Verb::Requeue).await
}

/// Gives up messages that are ready, or dead and holding their key back
#[utoipa::path(post, path = "/v1/databases/{db}/bury", tag = "changes", security(("token" = ["operator"])),
    params(("db" = String, Path, description = "The database's name in the configuration")),
    request_body = ChangeBody,
    responses(
        (status = 200, description = "Those that are dead now", body = ChangedView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn bury(
    State(app): State<App>,
    identity: Identity,
    Names(db): Names<String>,
    JsonBody(body): JsonBody<ChangeBody>,
) -> Result<Json<ChangedView>, Refusal> {
    change(&app, &identity, db, body, Verb::Bury).await
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Requeue,
    Bury,
}

async fn change(
    app: &App,
    identity: &Identity,
    db: String,
    body: ChangeBody,
    verb: Verb,
) -> Result<Json<ChangedView>, Refusal> {
    let generation = app.generation();
    known(&generation, &db)?;
    let change = body.change(&identity.name)?;
    let dry_run = change.is_dry_run();
    let change = async move |store: Arc<dyn ApiAccess>| match verb {
        Verb::Requeue => store.requeue(&change).await,
        Verb::Bury => store.bury(&change).await,
    };
    let ids = call(&generation, &db, deadline(&generation), change).await?;
    info!(by = %identity.name, database = %db, verb = ?verb, messages = ids.len(), dry_run, "messages were changed over HTTP");
    Ok(Json(ChangedView { ids: ids.iter().map(ToString::to_string).collect(), dry_run }))
}

/// What is paused.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PausesView {
    pauses: Vec<PauseView>,
}

/// Topics to pause, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseBody {
    /// A topic, or the beginning of some and a `*`.
    #[schema(min_length = 1, max_length = 255)]
    topics: String,
    #[schema(min_length = 1, max_length = 1000)]
    why: String,
}

/// Whether anything changed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PausedView {
    topics: String,
    changed: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ResumeQuery {
    /// What was paused, written the same way.
    topics: String,
}

/// Which topics nobody claims
#[utoipa::path(get, path = "/v1/databases/{db}/pauses", tag = "changes", security(("token" = ["viewer"])),
    params(("db" = String, Path, description = "The database's name in the configuration")),
    responses(
        (status = 200, description = "What is paused", body = PausesView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn pauses(
    State(app): State<App>,
    Names(db): Names<String>,
) -> Result<Json<PausesView>, Refusal> {
    let generation = app.generation();
    let pauses = call(&generation, &db, deadline(&generation), async |store| store.pauses().await).await?;
    Ok(Json(PausesView { pauses: pauses.iter().map(PauseView::from).collect() }))
}

/// Pauses topics: nobody claims their messages until they are resumed
#[utoipa::path(post, path = "/v1/databases/{db}/pauses", tag = "changes", security(("token" = ["operator"])),
    params(("db" = String, Path, description = "The database's name in the configuration")),
    request_body = PauseBody,
    responses(
        (status = 201, description = "They are paused now", body = PausedView),
        (status = 200, description = "They were paused already", body = PausedView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn pause(
    State(app): State<App>,
    identity: Identity,
    Names(db): Names<String>,
    JsonBody(PauseBody { topics, why }): JsonBody<PauseBody>,
) -> Result<(StatusCode, Json<PausedView>), Refusal> {
    let generation = app.generation();
    known(&generation, &db)?;
    Pause::check(&topics, &identity.name, &why)?;
    let (of, by) = (topics.clone(), identity.name.clone());
    let pause = async move |store: Arc<dyn ApiAccess>| store.pause(&of, &by, &why).await;
    let changed = call(&generation, &db, deadline(&generation), pause).await?;
    info!(by = %identity.name, database = %db, %topics, changed, "topics were paused over HTTP");
    let status = if changed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(PausedView { topics, changed })))
}

/// Ends a pause
#[utoipa::path(delete, path = "/v1/databases/{db}/pauses", tag = "changes", security(("token" = ["operator"])),
    params(("db" = String, Path, description = "The database's name in the configuration"), ResumeQuery),
    responses(
        (status = 200, description = "They are claimed again", body = PausedView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn resume(
    State(app): State<App>,
    identity: Identity,
    Names(db): Names<String>,
    Params(ResumeQuery { topics }): Params<ResumeQuery>,
) -> Result<Json<PausedView>, Refusal> {
    let generation = app.generation();
    let of = topics.clone();
    let resume = async move |store: Arc<dyn ApiAccess>| store.resume(&of).await;
    let changed = call(&generation, &db, deadline(&generation), resume).await?;
    if !changed {
        return Err(Refusal::not_found(
            "these topics are not paused",
            "write them as they were paused; GET lists them",
        ));
    }
    info!(by = %identity.name, database = %db, %topics, "topics were resumed over HTTP");
    Ok(Json(PausedView { topics, changed }))
}
