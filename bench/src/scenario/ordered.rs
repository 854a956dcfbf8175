//! Ordered: the drain once more, with messages that have keys, few or many.
//!
//! Of a key only the first message may be under way, so few keys ask for many claims. The limit is the drain without keys.

use std::sync::Arc;

use posthaste::Settings;

use super::drain;
use crate::args::Scale;
use crate::measure::{Case, Role, Unit};
use crate::store::{Product, in_room};

const SCENARIO: &str = "ordered";

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let case = |(subject, keys): (&str, Option<u64>)| {
        let product = Arc::clone(product);
        let run = move || {
            in_room(Arc::clone(&product), move |room| {
                let key = move |n: u64| keys.map(|keys| format!("key-{}", n % keys));
                Box::pin(drain::runtime(room, scale.ordered, Settings::default(), false, key, false))
            })
        };
        let role = if keys.is_none() { Role::Limit } else { Role::Posthaste };
        Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run).role(role)
    };
    [("no keys", None), ("50 keys", Some(50)), ("50,000 keys", Some(50_000))].map(case).into()
}
