//! The API under `/v1`: its paths, its document, and what is asked about the relay as a whole.
//!
//! Database calls run in tasks of their own: a caller who hangs up, or whose time is over, cancels none.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Json, Router};
use posthaste::{Enqueued, NewMessage, Result, TenantState};
use serde::Serialize;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Rules;
use super::error::{Problem, Refusal};
use super::extract::Names;
use super::{App, changes, messages, why};
use crate::relay::config::Role;
use crate::relay::generation::Generation;
use crate::target::Kind;
use crate::view::StatsView;

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

/// Runs a call of a database to its end, whatever becomes of the caller, and waits for it no longer than a caller may.
pub(super) async fn work<T: Send + 'static>(
    deadline: Duration,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::time::timeout(deadline, tokio::spawn(call)).await {
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
            "ask again",
        )
        .retry_after(1)),
    }
}

/// The kind of database of this name.
pub(super) fn kind_of(generation: &Generation, database: &str) -> Result<Kind, Refusal> {
    let found = generation.config.databases.iter().find(|known| known.name == database);
    found.map(|database| database.kind).ok_or_else(|| {
        Refusal::not_found("there is no such database", "GET /v1/status lists those that there are")
    })
}

/// Does something with the outbox of a database, whatever its kind.
macro_rules! with_outbox {
    ($generation:expr, $kind:expr, $database:expr, |$outbox:ident| $work:expr) => {
        $crate::target::with_kind!($kind, Description => {
            let $outbox = $generation.tenants.outbox::<$crate::target::StoreOf<Description>>($database).await?;
            $work
        })
    };
}
pub(super) use with_outbox;

/// Stores messages in a database, in one transaction.
pub(super) async fn enqueue(
    generation: &Generation,
    kind: Kind,
    database: &str,
    messages: Vec<NewMessage>,
) -> Result<Vec<Enqueued>> {
    with_outbox!(generation, kind, database, |outbox| outbox.enqueue_all(messages).await)
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
    let tenants = generation.tenants.clone();
    let stats = work(generation.config.http.deadline, async move { Ok(tenants.stats().await) }).await?;
    let databases = generation.tenants.list().into_iter().map(|tenant| {
        let own = stats.tenants.iter().find(|(key, _)| *key == tenant.key).map(|(_, stats)| stats);
        let failing = match &tenant.state {
            TenantState::Failing { error, .. } => Some(error.clone()),
            _ => own.and_then(|own| own.as_ref().err()).map(ToString::to_string),
        };
        let state = if failing.is_some() { "failing" } else { tenant.state.as_str() };
        let stats = own.and_then(|own| own.as_ref().ok()).map(StatsView::from);
        DatabaseView {
            name: tenant.key.to_string(),
            database: tenant.database,
            state: state.to_owned(),
            error: failing,
            stats,
        }
    });
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
        databases: databases.collect(),
        sinks: sinks.collect(),
        routes: routes
            .map(|route| RouteView { topics: route.topics.clone(), sink: route.sink.clone() })
            .collect(),
    }))
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
    kind_of(&generation, &db)?;
    let tenants = generation.tenants.clone();
    let stats =
        work(generation.config.http.deadline, async move { tenants.admin(db).await?.stats().await }).await?;
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
