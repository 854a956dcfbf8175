//! How a command asks a running relay instead of a store. A build without the relay has no HTTP client, and refuses.

#[cfg(feature = "relay")]
mod http;

use posthaste::Result;
use serde_json::Value;

/// Where a relay's API is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RelayArgs {
    /// Ask this relay, which knows its routes and sinks, instead of a store: http://127.0.0.1:7070
    #[arg(long, value_name = "URL", requires = "database", help_heading = "Relay")]
    // Read later: the parser of arguments would quote a wrong one.
    pub(crate) relay: Option<String>,
    /// Which of the relay's databases
    #[arg(long, value_name = "NAME", requires = "relay", help_heading = "Relay")]
    pub(crate) database: Option<String>,
    /// The environment variable that holds the token for the relay
    #[arg(long, value_name = "NAME", default_value = "POSTHASTE_TOKEN", help_heading = "Relay")]
    pub(crate) token_env: String,
}

impl RelayArgs {
    /// The answer to a GET of this path below the relay's database; none if no relay is named.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<Value>> {
        let (Some(relay), Some(database)) = (&self.relay, &self.database) else { return Ok(None) };
        let token = std::env::var(&self.token_env).ok().filter(|token| !token.is_empty());
        http::get(relay, database, path, token.as_deref()).await.map(Some)
    }
}

#[cfg(not(feature = "relay"))]
mod http {
    pub(super) async fn get(_: &str, _: &str, _: &str, _: Option<&str>) -> super::Result<super::Value> {
        Err(crate::missing::missing("the relay and its client", "relay"))
    }
}
