//! Whether the relay is alive, whether it can work, and its metrics: what machines ask, without a token.
//!
//! Names of databases and sinks are all that is told here; why they fail is for those with a token.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use posthaste::TenantState;
use serde::{Deserialize, Serialize};

use super::App;
use super::error::Refusal;
use super::extract::Params;
use super::{api, auth};
use crate::relay::generation::Generation;

pub(super) fn router() -> Router<App> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/openapi.json", get(openapi))
}

/// Whether machines ask this: it is answered on reserved connections, and when it is called by address.
pub(super) fn is_for_machines(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

async fn healthz() -> &'static str {
    "ok\n"
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Strictness {
    /// Whether anything that fails is too much.
    #[serde(default)]
    strict: bool,
}

/// How the relay is.
#[derive(Debug, Serialize)]
struct Readiness {
    /// `ready`, `degraded`, `down` or `stopping`.
    status: &'static str,
    failing_databases: Vec<String>,
    sinks_down: Vec<String>,
}

impl Readiness {
    /// Degraded: some databases or some sinks fail, and the rest is served. Down: nothing can be delivered.
    fn of(generation: &Generation) -> Self {
        let tenants = generation.tenants.list();
        let failing = tenants.iter().filter(|tenant| matches!(tenant.state, TenantState::Failing { .. }));
        let failing_databases: Vec<String> = failing.map(|tenant| tenant.key.to_string()).collect();
        let down = generation.sinks.iter().filter(|sink| sink.is_down());
        let sinks_down: Vec<String> = down.map(|sink| sink.name().to_owned()).collect();
        let status = if generation.is_stopping() {
            "stopping"
        } else if failing_databases.len() == tenants.len() || sinks_down.len() == generation.sinks.len() {
            "down"
        } else if failing_databases.is_empty() && sinks_down.is_empty() {
            "ready"
        } else {
            "degraded"
        };
        Self { status, failing_databases, sinks_down }
    }
}

async fn readyz(State(app): State<App>, Params(Strictness { strict }): Params<Strictness>) -> Response {
    let readiness = Readiness::of(&app.generation());
    let fine = readiness.status == "ready" || (readiness.status == "degraded" && !strict);
    let status = if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    if !app.address.ip().is_loopback() {
        let generation = app.generation();
        auth::identify(&app, &generation.config.http, request.headers(), auth::visit(&request)).await?;
    }
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((content_type, app.metrics.render().await).into_response())
}

async fn openapi() -> Response {
    Json(api::document()).into_response()
}
