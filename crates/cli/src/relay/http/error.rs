//! What every refusal looks like: `{"error": {"kind", "message", "remedy"}}`, whoever refuses.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use posthaste::ErrorKind;
use serde::Serialize;
use tracing::{error, warn};
use utoipa::ToSchema;

/// Why a request was refused.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    pub(crate) error: ProblemBody,
}

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// A few words that stay the same, for programs.
    pub(crate) kind: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) remedy: Option<String>,
}

/// A refusal, with its status.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    body: ProblemBody,
    retry_after: Option<u32>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, kind: &str, message: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty());
        let body = ProblemBody { kind: kind.to_owned(), message: message.into(), remedy };
        Self { status, body, retry_after: None }
    }

    #[cfg(test)]
    pub(crate) fn kind(&self) -> &str {
        &self.body.kind
    }

    /// What is wrong, in words.
    pub(crate) fn message(&self) -> &str {
        &self.body.message
    }

    /// A value that is not acceptable.
    pub(crate) fn invalid(message: impl Into<String>, remedy: &str) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid input", message, remedy)
    }

    /// Something that does not exist.
    pub(crate) fn not_found(message: &str, remedy: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not found", message, remedy)
    }

    /// And after how many seconds to try again.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl From<posthaste::Error> for Refusal {
    fn from(error: posthaste::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Codec => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Refused => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            warn!(error = %error, "a request to the relay failed");
        }
        let (text, remedy) = (error.to_string(), error.remedy().unwrap_or_default());
        // The remedy has a field of its own.
        let message = text.strip_suffix(remedy).map_or(text.as_str(), |text| text.trim_end_matches("; "));
        let refusal = Self::new(status, &error.kind().to_string(), message, remedy);
        if error.is_transient() { refusal.retry_after(1) } else { refusal }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(Problem { error: self.body })).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// More connections than the relay serves.
pub(super) fn too_many_connections() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many connections",
        "the relay serves no more connections, or none from this address",
        "close connections that are idle, or raise http.connections or http.connections_per_address",
    )
    .retry_after(1)
}

pub(super) async fn no_such_path() -> Refusal {
    Refusal::not_found("there is nothing at this path", "see /v1/openapi.json for what there is")
}

pub(super) async fn no_such_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method not allowed",
        "this path does not take this method",
        "see /v1/openapi.json for those that it takes",
    )
}

#[allow(clippy::needless_pass_by_value, reason = "the layer gives it so")]
pub(super) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    error!("a request to the relay panicked");
    let remedy = "this is a defect of posthaste's: please report it";
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "defect", "the relay could not answer", remedy)
        .into_response()
}
