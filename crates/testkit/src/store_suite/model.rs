//! The store against the reference, step by step; see [`crate::run_model`].

use std::sync::Arc;

use crate::Fixture;

/// Every requirement of a store at once: after any sequence of calls, results and tables match the reference.
pub async fn slow_model<F: Fixture>(fixture: &Arc<F>) {
    crate::model::run_on(fixture, 40).await;
}
