//! Keeps web pages out that a browser on this machine or in this network has open: pages of other sites, and pages whose name was made
//! to lead here.
//!
//! Tokens make no difference: a page could guess one, and could ask for what needs none.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::error::Refusal;
use super::{App, health};

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Refuses what a web page of another site asks, and what is asked by a name that is not the relay's.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let generation = app.generation();
    match check(&request, &generation.config.http.allowed_hosts, app.address) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check(request: &Request, allowed: &[String], own: SocketAddr) -> Result<(), Refusal> {
    let headers = request.headers();
    let refuse = |kind, message, remedy| Err(Refusal::new(StatusCode::FORBIDDEN, kind, message, remedy));
    let sites = headers.get_all(SEC_FETCH_SITE).iter();
    if sites.map(|site| site.as_bytes()).any(|site| site != b"same-origin" && site != b"none") {
        return refuse("foreign site", "a web page of another site asks", "call it from a program");
    }
    let asked = host(request);
    let is_for_machines = health::is_for_machines(request.uri().path());
    let is_expected = match asked.as_deref() {
        // A browser always sends one. Some load balancers do not.
        None | Some("") => is_for_machines,
        Some(host) => is_own(host, allowed, own) || (is_for_machines && address(host).is_some()),
    };
    if !is_expected {
        let message = "the relay does not know the name in Host as its own";
        return refuse(
            "foreign host",
            message,
            "call it by 127.0.0.1 or localhost, or add the name to http.allowed_hosts",
        );
    }
    if !is_same_origin(headers, asked.as_deref().unwrap_or_default()) {
        return refuse("foreign origin", "a web page of another origin asks", "call it from a program");
    }
    Ok(())
}

/// The host that was asked for; an empty text if it cannot be read.
fn host(request: &Request) -> Option<String> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host.to_str().unwrap_or("?").to_owned()),
        (Some(_), Some(_)) => Some("?".to_owned()),
        (None, _) => request.uri().authority().map(ToString::to_string),
    }
}

fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host));
    headers.get_all(header::ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own))
}

/// Whether a `Host` is loopback, the address that the relay listens on, or one that the configuration allows.
fn is_own(host: &str, allowed: &[String], own: SocketAddr) -> bool {
    let name = name(host);
    let is_loopback =
        name.eq_ignore_ascii_case("localhost") || address(host).is_some_and(|ip| ip.is_loopback());
    let is_allowed = |allowed: &String| {
        allowed.eq_ignore_ascii_case(name)
            || (address(host).is_some() && allowed.parse().ok() == address(host))
    };
    is_loopback || address(host) == Some(own.ip()) || allowed.iter().any(is_allowed)
}

/// The address in a `Host`, if it is one.
fn address(host: &str) -> Option<IpAddr> {
    name(host).parse().ok()
}

/// A `Host` without its port and brackets; nothing if it is not well formed.
fn name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').filter(|(_, port)| is_port(port)).map_or("", |(name, _)| name),
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            if is_port(port) { name } else { "" }
        }
    }
}

/// Whether this is nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const OWN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 5)), 7070);

    #[test]
    fn only_loopback_the_own_address_and_allowed_names_are_own() {
        let allowed = ["relay.example".to_owned(), "2001:db8::1".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "127.1.2.3",
            "[::1]:7070",
            "[::1]",
            "10.0.0.5:7070",
            "Relay.Example",
            "relay.example:443",
            "[2001:db8:0::1]:7070",
        ] {
            assert!(is_own(host, &allowed, OWN), "{host}");
        }
        for host in [
            "",
            "?",
            "evil.example",
            "localhost.evil.example:7070",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "[::2]:1",
            "[::1].evil.example",
            "localhost:evil.example",
            "relay.example.evil.example",
            "a.relay.example",
        ] {
            assert!(!is_own(host, &allowed, OWN), "{host}");
        }
    }

    fn asked(path: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        check(&request, &["relay.example".to_owned()], OWN).map_err(|refusal| refusal.kind().to_owned())
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let host = ("host", "localhost:7070");
        for site in ["cross-site", "same-site", "", "anything"] {
            for path in ["/v1/status", "/metrics", "/healthz", "/v1/openapi.json"] {
                assert_eq!(asked(path, &[host, (SEC_FETCH_SITE, site)]), Err("foreign site".to_owned()));
            }
        }
        for site in ["same-origin", "none"] {
            assert_eq!(asked("/v1/status", &[host, (SEC_FETCH_SITE, site)]), Ok(()));
        }
        let origin = |origin| asked("/v1/status", &[host, ("origin", origin)]);
        assert_eq!(origin("http://localhost:7070"), Ok(()));
        for other in ["null", "http://localhost:7071", "https://evil.example", "http://localhost"] {
            assert_eq!(origin(other), Err("foreign origin".to_owned()), "{other}");
        }
    }

    #[test]
    fn health_checks_call_by_address_and_the_api_is_called_by_name() {
        let foreign = Err("foreign host".to_owned());
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(asked(path, &[]), Ok(()), "some load balancers send no Host");
            for host in ["10.9.9.9:7070", "[2001:db8::2]:7070", "relay.example"] {
                assert_eq!(asked(path, &[("host", host)]), Ok(()), "{path} {host}");
            }
            assert_eq!(asked(path, &[("host", "evil.example")]), foreign, "{path}");
        }
        for path in ["/v1/status", "/v1/openapi.json", "/", "/healthz/", "/other"] {
            assert_eq!(asked(path, &[]), foreign);
            assert_eq!(asked(path, &[("host", "10.9.9.9:7070")]), foreign);
            assert_eq!(asked(path, &[("host", "relay.example")]), Ok(()));
            assert_eq!(asked(path, &[("host", "localhost"), ("host", "relay.example")]), foreign);
        }
    }
}
