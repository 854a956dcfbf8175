//! Database roles.

/// The task of a database role. Each has rights of its own; see [`PgStore::grants_sql`].
///
/// [`PgStore::grants_sql`]: crate::PgStore::grants_sql
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Publishes messages.
    Publisher,
    /// Starts joins and attaches messages to them.
    Joins,
    /// Claims and delivers messages, and keeps house.
    Relay,
    /// Lists, requeues, buries, pauses and prunes messages.
    Operator,
    /// Receives messages and remembers them in an inbox.
    Consumer,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Publisher, Self::Joins, Self::Relay, Self::Operator, Self::Consumer];
}
