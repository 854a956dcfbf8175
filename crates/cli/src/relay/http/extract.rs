//! What a request says, read with limits, and refused in the one shape that all refusals have.
//!
//! A body is never quoted in a refusal: it has payloads in it.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::App;
use super::auth::Identity;
use super::error::Refusal;

/// A body of JSON.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let essence = content_type.and_then(|value| value.split(';').next()).map(str::trim);
        if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
            let message = "the body is not said to be JSON";
            let remedy = "send content-type: application/json";
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported media type",
                message,
                remedy,
            ));
        }
        let generation = app.generation();
        let http = &generation.config.http;
        let reading = Limited::new(request.into_body(), http.body_limit).collect();
        let bytes = match tokio::time::timeout(http.deadline, reading).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() || is_length(&*error) => {
                let message = format!("the body has more than {} bytes", http.body_limit);
                return Err(Refusal::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "too large",
                    message,
                    "send fewer messages at a time, or raise http.body_limit",
                ));
            }
            Ok(Err(_)) => return Err(unreadable("the body broke off")),
            Err(_) => {
                let message = "the body did not come in time";
                return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message, "send it faster"));
            }
        };
        serde_json::from_slice(&bytes).map(Self).map_err(|error| of_json(&error))
    }
}

/// Whether one of the causes is that there was too much.
fn is_length(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<LengthLimitError>() {
            return true;
        }
        next = error.source();
    }
    false
}

fn unreadable(message: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad request", message, "send it again")
}

fn of_json(error: &serde_json::Error) -> Refusal {
    let text = without_values(&error.to_string());
    let remedy = "see /v1/openapi.json for what a body looks like";
    if error.is_data() {
        return Refusal::invalid(format!("the body does not say what it should: {text}"), remedy);
    }
    Refusal::new(StatusCode::BAD_REQUEST, "bad request", format!("the body is no JSON: {text}"), remedy)
}

/// A text without what stands in quotation marks: the values of a body. Names of fields stand in others.
fn without_values(text: &str) -> String {
    let mut parts = text.split('"');
    let mut shown = parts.next().unwrap_or_default().to_owned();
    let rest: Vec<&str> = parts.collect();
    if let Some(last) = rest.last() {
        shown.push_str("\"…\"");
        shown.push_str(last);
    }
    // An unknown field's name is the caller's, too.
    match shown.split_once("unknown field `") {
        Some((before, after)) => {
            let after = after.split_once("`, ").map_or("", |(_, after)| after);
            format!("{before}unknown field, {after}")
        }
        None => shown,
    }
}

/// The query.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Query::<T>::try_from_uri(&parts.uri).map(|Query(query)| Self(query)).map_err(|error| {
            let text =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            let message = format!("the query does not say what it should: {}", without_values(&text));
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad request",
                message,
                "see /v1/openapi.json for what a query may have",
            )
        })
    }
}

/// Names in the path.
pub(super) struct Names<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Names<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let names = Path::<T>::from_request_parts(parts, state).await;
        let refused = |_: PathRejection| {
            Refusal::not_found("there is nothing at this path", "see /v1/openapi.json for what there is")
        };
        names.map(|Path(names)| Self(names)).map_err(refused)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Identity {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let nobody = || Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "nobody asks", "send a token");
        parts.extensions.get::<Self>().cloned().ok_or_else(nobody)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_no_values_of_the_body() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Small {
            #[allow(dead_code, reason = "only read")]
            limit: u32,
        }
        for body in [r#"{"limit":"hu\"sh"}"#, r#"{"hush":1}"#, r#"{"hush`, x":1}"#, r#"{"limit":1,"hush":2}"#]
        {
            let error = serde_json::from_str::<Small>(body).unwrap_err();
            let shown = format!("{:?}", of_json(&error));
            assert!(!shown.contains("hush") && !shown.contains("hu"), "{shown}");
        }
        let missing = of_json(&serde_json::from_str::<Small>("{}").unwrap_err());
        assert!(format!("{missing:?}").contains("missing field `limit`"));
    }
}
