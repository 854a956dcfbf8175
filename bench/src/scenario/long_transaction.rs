//! Long transaction: the drain and the steady load once more, while another session's transaction stays open.
//!
//! What that session could still see may not be vacuumed away, so a queue that walks over it gets slower and slower. The limit is
//! the same run without that session, in the same turn.

use std::sync::Arc;

use posthaste::Settings;

use super::{drain, steady};
use crate::args::Scale;
use crate::measure::{Case, Role, Unit};
use crate::store::{Product, in_room};

const SCENARIO: &str = "long-transaction";

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let both =
        [("posthaste, alone", false, Role::Limit), ("posthaste, transaction open", true, Role::Posthaste)];
    let mut cases = Vec::new();
    for (subject, hold, role) in both {
        let product = Arc::clone(product);
        let run = move || {
            in_room(Arc::clone(&product), move |room| {
                Box::pin(drain::runtime(room, scale.drain, Settings::default(), false, |_| None, hold))
            })
        };
        let case = Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run);
        cases.push(case.variation("drain").role(role));
    }
    for (subject, hold, role) in both {
        let product = Arc::clone(product);
        let run = move || {
            in_room(Arc::clone(&product), move |room| Box::pin(steady::measure(room, scale, false, hold)))
        };
        let case = Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run);
        cases.push(case.variation("steady").role(role));
    }
    cases
}
