//! Who asks, and whether they may: tokens, roles, and what keeps web pages away.
//!
//! The rules are those of the API's own document: a path without one is for nobody. Tokens are compared as hashes, all of them, in
//! constant time; they are never logged.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::App;
use super::error::Refusal;
use crate::relay::config::{Http, Role};

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
    let peer = peer(&request);
    let identity = match identify(&app, http, request.headers(), peer) {
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

pub(super) fn peer(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<ConnectInfo<std::net::SocketAddr>>();
    peer.map_or(IpAddr::from([0, 0, 0, 0]), |ConnectInfo(peer)| peer.ip())
}

/// Who shows this token; without any tokens, whoever is on this machine.
pub(super) fn identify(
    app: &App,
    http: &Http,
    headers: &HeaderMap,
    peer: IpAddr,
) -> Result<Identity, Refusal> {
    if http.tokens.is_empty() {
        return Ok(Identity { name: "local".to_owned(), role: Role::Admin });
    }
    let unauthorized = |message| {
        Refusal::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            message,
            "send Authorization: Bearer TOKEN, with a token of the configuration",
        )
    };
    let shown = headers.get(header::AUTHORIZATION).ok_or_else(|| unauthorized("no token"))?;
    let token = shown.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    // Before anything is counted: behind a proxy all callers are one address, and nobody may shut the others out.
    if let Some(identity) = token.and_then(|token| find(http, token)) {
        return Ok(identity);
    }
    let now = Instant::now();
    if let Some(seconds) = app.limits.shut_out(peer, http.failures, now) {
        let message = "too many wrong tokens came from this address";
        let refusal =
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many failures", message, "wait a minute");
        return Err(refusal.retry_after(seconds));
    }
    app.limits.failed(peer, now);
    tracing::warn!(%peer, "a wrong token was shown");
    Err(unauthorized("the token is wrong"))
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

/// Keeps away the web pages that the operator's browser has open: those of another origin, and those whose name was made to lead
/// here.
pub(super) async fn same_origin(State(app): State<App>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let host = host.or_else(|| request.uri().authority().map(ToString::to_string)).unwrap_or_default();
    if app.generation().config.http.tokens.is_empty() && !is_loopback(&host) {
        let remedy = "call it by 127.0.0.1 or localhost, or give it tokens";
        let refusal = Refusal::new(
            StatusCode::FORBIDDEN,
            "foreign host",
            "without tokens the relay answers this machine only",
            remedy,
        );
        return refusal.into_response();
    }
    let origins: Vec<_> = request.headers().get_all(header::ORIGIN).iter().collect();
    let own = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(&host));
    if origins.iter().any(|origin| !origin.to_str().is_ok_and(own)) {
        let refusal = Refusal::new(
            StatusCode::FORBIDDEN,
            "foreign origin",
            "a web page of another origin asks",
            "call it from a program",
        );
        return refusal.into_response();
    }
    next.run(request).await
}

/// Whether a `Host` is this machine, by name or address.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').filter(|(_, port)| is_port(port)).map_or("", |(name, _)| name),
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            if is_port(port) { name } else { "" }
        }
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether this is nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::config::Token;
    use crate::relay::secret::Secret;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:7070", "127.0.0.1:7070", "127.1.2.3", "[::1]:7070", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:7070",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "[::2]:1",
            "[::1].evil.example",
            "localhost:evil.example",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_its_owners_only_if_it_is_the_whole_token() {
        let token =
            |name: &str, role, token: &str| Token { name: name.to_owned(), role, token: Secret::new(token) };
        let http = Http {
            listen: None,
            body_limit: 1,
            deadline: std::time::Duration::from_secs(1),
            connections: 1,
            database_connections: 1,
            queue: 1,
            rate: 1,
            failures: 1,
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
