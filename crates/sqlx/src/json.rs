//! For databases without arrays: lists as JSON texts, and inserts with a row of values per message.

use posthaste_core::{Lease, MessageId, NewMessage, Settlement};
use serde_json::{Value, json};

use crate::arg::{Arg, span_micros};

/// The JSON text of a list, or none for a list that is not given.
pub(crate) fn list(arg: &Arg<'_>) -> Option<String> {
    match arg {
        Arg::Ints(list) => Some(json!(list).to_string()),
        Arg::Texts(list) => list.as_ref().map(|list| json!(list).to_string()),
        Arg::Ids(list) => list.map(|ids| ids_of(ids.iter().copied())),
        Arg::Leases(list) => Some(leases(*list)),
        Arg::Ends(list) => Some(ends(list)),
        _ => None,
    }
}

/// Ids in hexadecimal.
pub(crate) fn ids_of(ids: impl Iterator<Item = MessageId>) -> String {
    json!(ids.map(|id| hex(id.as_bytes())).collect::<Vec<_>>()).to_string()
}

/// The dedup hashes of a batch, in hexadecimal.
pub(crate) fn hashes_of(messages: &[NewMessage]) -> String {
    json!(messages.iter().filter_map(|message| message.dedup().map(|hash| hex(hash))).collect::<Vec<_>>())
        .to_string()
}

/// `[[seq, epoch, outcome, delay, class, error, most attempts, max age, handled], ..]`
pub(crate) fn settlements(settlements: &[&Settlement]) -> String {
    let rows = settlements.iter().map(|settlement| {
        let Settlement { lease, outcome, .. } = settlement;
        let failure = outcome.failure();
        json!([
            lease.item.get(),
            lease.epoch,
            outcome.code(),
            span_micros(outcome.delay()),
            failure.map(|failure| failure.class().code()),
            failure.map(posthaste_core::Failure::text),
            i32::try_from(outcome.max_attempts()).unwrap_or(i32::MAX),
            outcome.max_age().map(span_micros),
            settlement.encoded_handled(),
        ])
    });
    Value::Array(rows.collect()).to_string()
}

/// `[[seq, epoch], ..]`
pub(crate) fn leases<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> String {
    let pair = |lease: &Lease| json!([lease.item.get(), lease.epoch]);
    Value::Array(leases.into_iter().map(pair).collect()).to_string()
}

/// `[[message, end], ..]`, messages in hexadecimal
fn ends(ends: &[(MessageId, i16)]) -> String {
    Value::Array(ends.iter().map(|(id, end)| json!([hex(id.as_bytes()), end])).collect()).to_string()
}

/// How many of so many rows the next insert takes. Each size is a statement of its own, and costs far more to prepare than to
/// run; on a user's connection the store's statements must not displace the user's. So there are eleven sizes, and any batch
/// consists of them.
pub(crate) fn insert_rows(left: usize) -> usize {
    match left {
        0..=8 => left,
        9..=15 => 8,
        16..=31 => 16,
        32..=63 => 32,
        _ => 64,
    }
}

/// The insert of one message, repeated for so many: what stands between `/*rows*/` and `/*end*/` is one row.
pub(crate) fn repeat_rows(sql: &str, rows: usize) -> String {
    let Some((head, rest)) = sql.split_once("/*rows*/") else { return sql.to_owned() };
    let Some((row, tail)) = rest.split_once("/*end*/") else { return sql.to_owned() };
    let mut out = String::with_capacity(head.len() + rows * (row.len() + 2) + tail.len());
    out.push_str(head);
    for n in 0..rows {
        if n > 0 {
            out.push_str(",\n");
        }
        out.push_str(row);
    }
    out.push_str(tail);
    out
}

/// Binds the values of every row of an insert, in the order of `enqueue.sql`.
macro_rules! bind_rows {
    ($args:ident, $messages:expr, $birth:expr) => {
        for message in $messages {
            let text = |value: Option<&str>| value.map(str::to_owned);
            $args.add(message.id().as_bytes().to_vec())?;
            $args.add(message.topic().to_owned())?;
            $args.add(text(message.key()))?;
            $args.add(message.order().unwrap_or_default().code())?;
            $args.add(message.dedup().map(|hash| hash.to_vec()))?;
            $args.add(message.payload().to_vec())?;
            $args.add(message.content_type().to_owned())?;
            $args.add(message.encoded_headers())?;
            $args.add(text(message.correlation_id()))?;
            $args.add(text(message.aggregate_type()))?;
            $args.add(text(message.aggregate_id()))?;
            $args.add(text(message.tenant_id()))?;
            $args.add(message.priority())?;
            $args.add(message.occurred_at().map($crate::arg::micros))?;
            for when in [Some(message.due()), message.expires()] {
                let (from_now, value) = $crate::arg::moment(when);
                $args.add(from_now)?;
                $args.add(value)?;
            }
            let (state, worker, lease) = match $birth.for_message(message) {
                posthaste_core::Birth::Ready => (0, None, None),
                posthaste_core::Birth::Leased { worker, lease } => {
                    (1, Some(worker.as_str().to_owned()), Some($crate::arg::span_micros(lease)))
                }
            };
            $args.add(state)?;
            $args.add(state)?;
            $args.add(worker)?;
            $args.add(lease)?;
        }
    };
}
pub(crate) use bind_rows;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_repeated_between_the_marks() {
        assert_eq!(repeat_rows("a /*rows*/(?)/*end*/ z", 3), "a (?),\n(?),\n(?) z");
        assert_eq!(repeat_rows("plain", 3), "plain");
    }

    /// Batches of every size are inserted by few statements, of a few sizes.
    #[test]
    fn batches_are_made_of_few_statements() {
        let mut sizes = std::collections::BTreeSet::new();
        for rows in 1..1_000 {
            let (mut left, mut count) = (rows, 0);
            while left > 0 {
                sizes.insert(insert_rows(left));
                left -= insert_rows(left);
                count += 1;
            }
            assert!(count <= rows / 64 + 4, "{rows} rows are {count} statements");
        }
        assert_eq!(sizes, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64].into());
    }

    #[test]
    fn lists_that_are_not_given_are_null() {
        assert_eq!(list(&Arg::Texts(None)), None);
        assert_eq!(list(&Arg::Texts(Some(vec![Some("a\"b"), None]))).as_deref(), Some(r#"["a\"b",null]"#));
        assert_eq!(list(&Arg::Ints(&[1, 2])).as_deref(), Some("[1,2]"));
        assert_eq!(list(&Arg::Leases(&[])).as_deref(), Some("[]"));
    }
}
