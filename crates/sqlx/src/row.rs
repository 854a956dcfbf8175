//! From rows to messages, once for all dialects.
//!
//! Every statement that answers with messages gives the columns in the order that is read here.

use std::time::SystemTime;

use posthaste_core::{
    Bytes, EndedJoin, Error, ErrorKind, FailureClass, HistoryEntry, Join, JoinId, JoinStatus, Lease, Message,
    MessageId, OrderPolicy, Pause, Record, Result, State, Step, StepStatus, Topic, WorkItemId, WorkerId,
    decode_handled, decode_headers,
};

/// How a dialect's row gives its values; columns are counted from 0.
pub trait Columns {
    /// A number.
    fn int(&self, column: usize) -> Result<i64>;
    /// A number or none.
    fn opt_int(&self, column: usize) -> Result<Option<i64>>;
    /// A number of an epoch, of attempts, of losses.
    fn int32(&self, column: usize) -> Result<i32>;
    /// A small number.
    fn small(&self, column: usize) -> Result<i16>;
    /// A small number or none.
    fn opt_small(&self, column: usize) -> Result<Option<i16>>;
    /// Yes or no.
    fn bool(&self, column: usize) -> Result<bool>;
    /// A text or none.
    fn opt_text(&self, column: usize) -> Result<Option<String>>;
    /// Bytes.
    fn bytes(&self, column: usize) -> Result<Vec<u8>>;
    /// Bytes or none.
    fn opt_bytes(&self, column: usize) -> Result<Option<Vec<u8>>>;
    /// An id.
    fn id(&self, column: usize) -> Result<MessageId>;
    /// A time or none.
    fn opt_time(&self, column: usize) -> Result<Option<SystemTime>>;

    /// A text.
    fn text(&self, column: usize) -> Result<String> {
        self.opt_text(column)?.ok_or_else(|| null(column))
    }

    /// A time.
    fn time(&self, column: usize) -> Result<SystemTime> {
        self.opt_time(column)?.ok_or_else(|| null(column))
    }

    /// A number that is never negative.
    fn count(&self, column: usize) -> Result<u32> {
        Ok(u32::try_from(self.int32(column)?).unwrap_or_default())
    }
}

fn null(column: usize) -> Error {
    Error::new(ErrorKind::Codec, "a column that must have a value has none").with_context("column", column)
}

/// The lease of a claimed row, which can be read even if the rest cannot.
pub(crate) fn lease(row: &impl Columns) -> Result<Lease> {
    Ok(Lease { item: WorkItemId::new(row.int(0)?), epoch: row.int32(1)? })
}

/// A message: columns 0 to 21.
pub(crate) fn message(row: &impl Columns) -> Result<Message> {
    let created_at = row.time(17)?;
    Ok(Message {
        item: WorkItemId::new(row.int(0)?),
        epoch: row.int32(1)?,
        id: row.id(2)?,
        topic: Topic::new(row.text(3)?)?,
        key: row.opt_text(4)?,
        order: OrderPolicy::from_code(row.small(5)?)?,
        payload: Bytes::from(row.bytes(6)?),
        content_type: row.text(7)?,
        headers: decode_headers(row.opt_text(8)?.as_deref())?,
        correlation_id: row.opt_text(9)?,
        aggregate_type: row.opt_text(10)?,
        aggregate_id: row.opt_text(11)?,
        tenant_id: row.opt_text(12)?,
        priority: row.small(13)?,
        attempts: row.count(14)?,
        lease_losses: row.count(15)?,
        occurred_at: row.opt_time(16)?.unwrap_or(created_at),
        created_at,
        due_at: row.time(18)?,
        expires_at: row.opt_time(19)?,
        failing_since: row.opt_time(20)?,
        handled: decode_handled(row.opt_text(21)?.as_deref()),
    })
}

/// A record: a message, and columns 22 to 29.
pub(crate) fn record(row: &impl Columns) -> Result<Record> {
    // Facts for people to read: one that makes no sense must not hide the record.
    let worker = |name: Option<String>| name.and_then(|name| WorkerId::new(name).ok());
    Ok(Record {
        message: message(row)?,
        state: State::from_code(row.small(22)?)?,
        parked: row.bool(23)?,
        leased_until: row.opt_time(24)?,
        worker: worker(row.opt_text(25)?),
        done_at: row.opt_time(26)?,
        done_by: worker(row.opt_text(27)?),
        error_class: row.opt_small(28)?.and_then(|code| FailureClass::from_code(code).ok()),
        last_error: row.opt_text(29)?,
    })
}

/// An entry of a message's history.
pub(crate) fn history(row: &impl Columns) -> Result<HistoryEntry> {
    Ok(HistoryEntry {
        at: row.time(0)?,
        action: row.text(1)?,
        by: row.text(2)?,
        why: row.text(3)?,
        attempts: row.count(4)?,
        lease_losses: row.count(5)?,
        last_error: row.opt_text(6)?,
    })
}

/// A pause.
pub(crate) fn pause(row: &impl Columns) -> Result<Pause> {
    Ok(Pause { topics: row.text(0)?, by: row.text(1)?, why: row.text(2)?, since: row.time(3)? })
}

/// A join.
pub(crate) fn join(row: &impl Columns) -> Result<Join> {
    Ok(Join {
        id: join_id(row, 0)?,
        grouping_key: row.opt_text(1)?,
        status: JoinStatus::from_code(row.small(2)?)?,
        expected_steps: row.count(3)?,
        attached_steps: row.count(4)?,
        completed_steps: row.count(5)?,
        failed_steps: row.count(6)?,
        metadata: row.opt_text(7)?,
        created_at: row.time(8)?,
        updated_at: row.time(9)?,
        ended_at: row.opt_time(10)?,
        expires_at: row.opt_time(11)?,
    })
}

/// The id of a join.
pub(crate) fn join_id(row: &impl Columns, column: usize) -> Result<JoinId> {
    Ok(JoinId::from_uuid(*row.id(column)?.as_uuid()))
}

/// A step of a join.
pub(crate) fn step(row: &impl Columns) -> Result<Step> {
    Ok(Step {
        message: row.id(0)?,
        status: StepStatus::from_code(row.small(1)?)?,
        created_at: row.time(2)?,
        updated_at: row.time(3)?,
    })
}

/// The joins among the rows of a statement that ends messages: those whose first column is null.
pub(crate) fn ended_joins<R: Columns>(rows: &[R]) -> Result<(Vec<&R>, Vec<EndedJoin>)> {
    let (mut answers, mut joins) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        if row.opt_int(0)?.is_some() {
            answers.push(row);
            continue;
        }
        joins.push(EndedJoin {
            id: join_id(row, 1)?,
            status: JoinStatus::from_code(row.small(2)?)?,
            expected_steps: row.count(3)?,
            completed_steps: row.count(4)?,
            failed_steps: row.count(5)?,
        });
    }
    Ok((answers, joins))
}

/// Reads a dialect's rows: what all of them do alike, and then what this one does in its own way.
macro_rules! columns {
    ($row:ty { $($own:item)* }) => {
        impl $crate::row::Columns for $row {
            columns!(@plain int: i64, opt_int: Option<i64>, int32: i32, small: i16, opt_small: Option<i16>, bool: bool,
                     bytes: Vec<u8>, opt_bytes: Option<Vec<u8>>);
            $($own)*
        }
    };
    // Unchecked by the driver: the declared type of a column does not matter, its value does.
    (@plain $($name:ident: $type:ty),*) => {
        $(fn $name(&self, column: usize) -> posthaste_core::Result<$type> {
            $crate::row::read(self.try_get_unchecked(column))
        })*
    };
}
pub(crate) use columns;

pub(crate) fn read<T>(value: Result<T, sqlx_core::Error>) -> Result<T> {
    value.map_err(|source| Error::new(ErrorKind::Codec, "a column cannot be read").with_source(source))
}

/// The id with these bytes.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn id_of(bytes: &[u8]) -> Result<MessageId, sqlx_core::Error> {
    let uuid = posthaste_core::Uuid::from_slice(bytes);
    uuid.map(MessageId::from_uuid).map_err(|error| sqlx_core::Error::Decode(error.into()))
}
