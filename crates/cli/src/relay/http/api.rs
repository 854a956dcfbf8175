//! The API under `/v1`: its paths, its document, and what is asked about the relay as a whole.
//!
//! Database calls run in tasks of their own: a caller that hangs up, or whose time is over, cancels none.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router};
use posthaste::TenantState;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Rules;
use super::error::{Problem, Refusal};
use super::extract::Names;
use super::{App, changes, messages, why};
use crate::relay::api_stores::ApiAccess;
use crate::relay::config::Role;
use crate::relay::generation::Generation;
use crate::view::StatsView;

/// How many databases one request for the status asks at a time.
const ASKED_AT_A_TIME: usize = 16;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "posthaste relay",
        description = "Messages in the databases of a relay: look at them, enqueue, requeue and bury them, pause topics. \
                       The scope of an operation's security is the role that it needs."
    ),
    modifiers(&Scheme)
)]
struct Document;

struct Scheme;

impl Modify for Scheme {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        openapi.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

fn paths() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(messages::list, messages::enqueue))
        .routes(routes!(messages::show))
        .routes(routes!(why::why))
        .routes(routes!(changes::requeue))
        .routes(routes!(changes::bury))
        .routes(routes!(changes::pauses, changes::pause, changes::resume))
}

/// The paths, and who may use them.
pub(super) fn router() -> (Router<App>, Rules) {
    let (router, document) = paths().split_for_parts();
    (router, rules(&document))
}

/// What there is, for programs to read.
pub(super) fn document() -> utoipa::openapi::OpenApi {
    paths().into_openapi()
}

/// Which role each operation needs, as its document says.
fn rules(document: &utoipa::openapi::OpenApi) -> Rules {
    // Through its JSON: the one form in which all of it can be read.
    let json = serde_json::to_value(document).unwrap_or_default();
    let mut rules = Rules::new();
    for (path, operations) in json["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            if let Some(role) = operation["security"][0]["token"][0].as_str().and_then(Role::parse) {
                rules.insert((method.clone(), path.clone()), role);
            }
        }
    }
    rules
}

/// Calls a database on one of the connections for requests, and waits for the answer until this time. The call itself runs on: the
/// database ends its statement at the deadline, even if the client has left.
pub(super) async fn call<T, F>(
    generation: &Generation,
    database: &str,
    until: Instant,
    call: impl FnOnce(Arc<dyn ApiAccess>) -> F,
) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: Future<Output = posthaste::Result<T>> + Send + 'static,
{
    let store = generation.api.get(database).ok_or_else(no_such_database)?;
    let place = match timeout_at(until, store.enter()).await {
        Ok(Some(place)) => place,
        Ok(None) => return Err(busy("too many requests wait for this database")),
        Err(_) => return Err(busy("other requests keep this database busy")),
    };
    let call = call(Arc::clone(store.store()));
    let running = tokio::spawn(async move {
        let outcome = call.await;
        drop(place);
        outcome
    });
    match timeout_at(until, running).await {
        Ok(Ok(outcome)) => Ok(outcome?),
        Ok(Err(_)) => Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "defect",
            "the relay could not answer",
            "this is a defect of posthaste's: please report it",
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "timeout",
            "the database did not answer in time; what was asked for may take place yet",
            "ask again, or for less",
        )
        .retry_after(1)),
    }
}

fn busy(message: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message, "ask again, and less at a time")
        .retry_after(1)
}

fn no_such_database() -> Refusal {
    Refusal::not_found("there is no such database", "GET /v1/status lists those that there are")
}

/// Refuses a name that no database has.
pub(super) fn known(generation: &Generation, database: &str) -> Result<(), Refusal> {
    generation.api.get(database).map(drop).ok_or_else(no_such_database)
}

/// When a request that came now must be answered.
pub(super) fn deadline(generation: &Generation) -> Instant {
    Instant::now() + generation.config.http.deadline
}

/// How the relay is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatusView {
    version: &'static str,
    name: String,
    databases: Vec<DatabaseView>,
    sinks: Vec<SinkView>,
    routes: Vec<RouteView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DatabaseView {
    name: String,
    /// Where it is, without any login.
    database: String,
    /// `running`, `failing` or `twin`.
    state: String,
    /// Why it fails.
    error: Option<String>,
    stats: Option<StatsView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct SinkView {
    name: String,
    kind: String,
    down: bool,
    /// Why it is down.
    error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RouteView {
    topics: Vec<String>,
    sink: String,
}

/// How the relay is: its databases, sinks and routes
#[utoipa::path(get, path = "/v1/status", tag = "relay", security(("token" = ["viewer"])), responses(
    (status = 200, description = "How it is", body = StatusView),
    (status = "4XX", description = "Refused", body = Problem),
    (status = "5XX", description = "Failed", body = Problem),
))]
pub(super) async fn status(State(app): State<App>) -> Result<Json<StatusView>, Refusal> {
    let generation = app.generation();
    let databases = databases(&generation).await;
    let sinks = generation.sinks.iter().zip(&generation.config.sinks).map(|(sink, config)| SinkView {
        name: config.name.clone(),
        kind: config.kind.as_str().to_owned(),
        down: sink.is_down(),
        error: sink.trouble().map(|error| error.failure().text().to_owned()),
    });
    let routes = generation.config.routes.iter();
    Ok(Json(StatusView {
        version: env!("CARGO_PKG_VERSION"),
        name: generation.config.name.clone(),
        databases,
        sinks: sinks.collect(),
        routes: routes
            .map(|route| RouteView { topics: route.topics.clone(), sink: route.sink.clone() })
            .collect(),
    }))
}

/// How every database is. One that fails is not asked, and several are asked at a time.
async fn databases(generation: &Arc<Generation>) -> Vec<DatabaseView> {
    let until = deadline(generation);
    let turns = Arc::new(Semaphore::new(ASKED_AT_A_TIME));
    let mut asked = JoinSet::new();
    for tenant in generation.tenants.list() {
        let (generation, turns) = (Arc::clone(generation), Arc::clone(&turns));
        asked.spawn(async move {
            let state = tenant.state.as_str();
            let (name, database) = (tenant.key.to_string(), tenant.database);
            if let TenantState::Failing { error, .. } = tenant.state {
                return DatabaseView {
                    name,
                    database,
                    state: state.to_owned(),
                    error: Some(error),
                    stats: None,
                };
            }
            let _turn = turns.acquire().await;
            let stats = call(&generation, &name, until, async |store| store.stats().await).await;
            let error = stats.as_ref().err().map(|refusal| refusal.message().to_owned());
            let state = if error.is_some() { "failing" } else { state };
            let stats = stats.ok().as_ref().map(StatsView::from);
            DatabaseView { name, database, state: state.to_owned(), error, stats }
        });
    }
    let mut views = asked.join_all().await;
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

/// How many messages of a database are in which state
#[utoipa::path(get, path = "/v1/databases/{db}/stats", tag = "messages", security(("token" = ["viewer"])),
    params(("db" = String, Path, description = "The database's name in the configuration")),
    responses(
        (status = 200, description = "The numbers", body = StatsView),
        (status = "4XX", description = "Refused", body = Problem),
        (status = "5XX", description = "Failed", body = Problem),
    )
)]
pub(super) async fn stats(
    State(app): State<App>,
    Names(db): Names<String>,
) -> Result<Json<StatsView>, Refusal> {
    let generation = app.generation();
    let stats = call(&generation, &db, deadline(&generation), async |store| store.stats().await).await?;
    Ok(Json(StatsView::from(&stats)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_rule() {
        let document = document();
        let json = serde_json::to_value(&document).unwrap();
        let rules = rules(&document);
        let mut operations = 0;
        for (path, of) in json["paths"].as_object().unwrap() {
            for method in of.as_object().unwrap().keys().filter(|method| *method != "parameters") {
                operations += 1;
                assert!(rules.contains_key(&(method.clone(), path.clone())), "{method} {path} has no role");
            }
        }
        assert!(operations >= 10);
    }
}
