//! Who asks, and whether they may: tokens and roles.
//!
//! The rules are those of the API's own document: a path without one is for nobody. Tokens are compared as hashes, all of them, in
//! constant time; they are never logged.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::App;
use super::error::Refusal;
use super::places::Visit;
use crate::relay::config::{Http, Role};

/// How long a wrong token takes, and keeps its connection's place, after too many from its address.
const DELAY: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) role: Role,
}

impl Identity {
    /// Refuses who may not do this.
    pub(super) fn needs(&self, role: Role) -> Result<(), Refusal> {
        if self.role >= role {
            return Ok(());
        }
        let message = format!("this needs the role {}", role.as_str());
        Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message, "use a token that has it"))
    }
}

/// Which role a method of a path needs, by the API's document.
pub(super) type Rules = BTreeMap<(String, String), Role>;

/// Lets through who may.
pub(super) async fn guard(
    State((app, rules)): State<(App, Arc<Rules>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let generation = app.generation();
    let http = &generation.config.http;
    let identity = match identify(&app, http, request.headers(), visit(&request)).await {
        Ok(identity) => identity,
        Err(refusal) => return refusal.into_response(),
    };
    if !app.limits.may_ask(&identity.name, http.rate, Instant::now()) {
        let message = format!("more than {} requests a second", http.rate);
        let refusal =
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many requests", message, "ask less often");
        return refusal.retry_after(1).into_response();
    }
    if let Err(refusal) = allowed(&rules, &request, &identity) {
        return refusal.into_response();
    }
    request.extensions_mut().insert(identity);
    next.run(request).await
}

fn allowed(rules: &Rules, request: &Request, identity: &Identity) -> Result<(), Refusal> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let method = match *request.method() {
        Method::HEAD => "get".to_owned(),
        ref method => method.as_str().to_lowercase(),
    };
    let known = rules.keys().any(|(_, of)| of == path);
    match rules.get(&(method, path.to_owned())) {
        Some(role) => identity.needs(*role),
        // The router says itself that there is no such method.
        None if known => Ok(()),
        None => Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", "nobody may do this", "")),
    }
}

/// The connection that a request came on.
pub(super) fn visit(request: &Request) -> Option<Arc<Visit>> {
    request.extensions().get::<Arc<Visit>>().map(Arc::clone)
}

/// Identifies the caller by its token; without any tokens, every caller is on this machine.
pub(super) async fn identify(
    app: &App,
    http: &Http,
    headers: &HeaderMap,
    visit: Option<Arc<Visit>>,
) -> Result<Identity, Refusal> {
    if http.tokens.is_empty() {
        return Ok(Identity { name: "local".to_owned(), role: Role::Admin });
    }
    let shown = headers.get(header::AUTHORIZATION).ok_or_else(|| unauthorized("no token"))?;
    let token = shown.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    // Before anything is counted: behind a proxy all callers are one address, and none may shut the others out.
    match token.and_then(|token| find(http, token)) {
        Some(identity) => Ok(identity),
        None => Err(wrong_token(app, http, visit).await),
    }
}

fn unauthorized(message: &str) -> Refusal {
    Refusal::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        message,
        "send Authorization: Bearer TOKEN, with a token of the configuration",
    )
}

/// Counts a wrong token. After too many from its address, each takes a while and a place: guesses are as slow as the places are few.
async fn wrong_token(app: &App, http: &Http, visit: Option<Arc<Visit>>) -> Refusal {
    let (peer, now) =
        (visit.as_ref().map_or(IpAddr::from([0, 0, 0, 0]), |visit| visit.peer.ip()), Instant::now());
    let shut_out = app.limits.shut_out(peer, http.failures, now);
    app.limits.failed(peer, now);
    let Some(seconds) = shut_out else { return unauthorized("the token is wrong") };
    if let Some(visit) = visit {
        visit.hold_until(now + DELAY);
    }
    tokio::time::sleep(DELAY).await;
    let message = "too many wrong tokens came from this address";
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many failures", message, "wait a minute")
        .retry_after(seconds)
}

/// The token's owner. How long it takes says nothing about any token.
fn find(http: &Http, token: &str) -> Option<Identity> {
    let shown = Sha256::digest(token.as_bytes());
    let mut found = u32::MAX;
    for (i, known) in http.tokens.iter().enumerate() {
        let same: Choice = Sha256::digest(known.token.reveal().as_bytes()).as_slice().ct_eq(shown.as_slice());
        found.conditional_assign(&u32::try_from(i).unwrap_or(u32::MAX), same);
    }
    let token = http.tokens.get(usize::try_from(found).ok()?)?;
    Some(Identity { name: token.name.clone(), role: token.role })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::config::Token;
    use crate::relay::secret::Secret;

    #[test]
    fn a_token_is_its_owners_only_if_it_is_the_whole_token() {
        let token =
            |name: &str, role, token: &str| Token { name: name.to_owned(), role, token: Secret::new(token) };
        let http = Http {
            listen: None,
            body_limit: 1,
            deadline: std::time::Duration::from_secs(1),
            connections: 1,
            connections_per_address: 1,
            database_connections: 1,
            queue: 1,
            rate: 1,
            failures: 1,
            allowed_hosts: Vec::new(),
            metrics_topics: 1,
            tokens: vec![
                token("ada", Role::Admin, "0123456789abcdef"),
                token("eve", Role::Viewer, "fedcba9876543210"),
            ],
        };
        let name = |token: &str| find(&http, token).map(|identity| (identity.name, identity.role));
        assert_eq!(name("0123456789abcdef"), Some(("ada".to_owned(), Role::Admin)));
        assert_eq!(name("fedcba9876543210"), Some(("eve".to_owned(), Role::Viewer)));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"] {
            assert_eq!(name(wrong), None);
        }
    }
}
