//! Who locks a row in SQLite: there are no locks of rows, and one writer for the whole file. SQLite does not name it, but Linux knows
//! which process it is.

use std::path::Path;
use std::time::Duration;

use posthaste_core::{ErrorKind, Holder, MessageId};
use sqlx_core::Error as SqlxError;
use sqlx_core::connection::Connection as _;
use sqlx_sqlite::{SqliteConnectOptions, SqliteConnection};

use super::holder;
use crate::arg::Arg;
use crate::dialect::Dialect as _;
use crate::naming::Naming;
use crate::open_file::beside;
use crate::sql::Statement;
use crate::sqlite::Sqlite;

const ROW: &str = include_str!("../../sql/sqlite/holder/row.sql");
/// Whoever only writes a message is gone by then.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) async fn find(
    options: &SqliteConnectOptions,
    naming: &Naming,
    id: MessageId,
) -> Result<Option<Holder>, SqlxError> {
    let options = options.clone().busy_timeout(PATIENCE).create_if_missing(false);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let row = Statement::new(naming.render(ROW));
    let is_there = !Sqlite::fetch(&mut connection, &row, &[Arg::Id(Some(id.as_uuid()))]).await?.is_empty();
    let found = match connection.begin_with(Sqlite::BEGIN).await {
        Ok(tx) => {
            tx.rollback().await?;
            None
        }
        Err(SqlxError::Database(error)) if Sqlite::judge(error.as_ref()).kind == ErrorKind::Busy => {
            let unknown = || holder("another connection that writes to the file".to_owned(), &[], None);
            is_there.then(|| writer(options.get_filename()).unwrap_or_else(unknown))
        }
        Err(error) => return Err(error),
    };
    connection.close().await?;
    Ok(found)
}

/// Where Linux lists the locks of files.
const LOCKS: &str = "/proc/locks";
/// The byte of the -shm file that a writer locks in WAL mode, and those of the database that it locks without.
const WAL_WRITE: [u64; 2] = [120, 120];
const RESERVED: [u64; 2] = [0x4000_0000, 0x4000_01ff];

/// The process that writes to the file, or keeps all others from it.
pub(crate) fn writer(file: &Path) -> Option<Holder> {
    let locks = std::fs::read_to_string(LOCKS).ok()?;
    let pid = [(inode_of(&beside(file, "-shm")), WAL_WRITE), (inode_of(file), RESERVED)]
        .into_iter()
        .find_map(|(inode, bytes)| write_lock(&locks, inode?, bytes))?;
    let program =
        std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
    Some(holder(format!("process {pid}"), &[("program", program)], None))
}

#[cfg(unix)]
fn inode_of(file: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Some(std::fs::metadata(file).ok()?.ino())
}

#[cfg(not(unix))]
fn inode_of(_file: &Path) -> Option<u64> {
    None
}

/// The process with a write lock of some of these bytes. Devices are not compared: in a container their numbers differ.
fn write_lock(locks: &str, inode: u64, bytes: [u64; 2]) -> Option<u32> {
    locks.lines().find_map(|line| {
        // A line is `1: POSIX  ADVISORY  WRITE 4711 fe:00:131 120 120`; with `->` behind the number it waits for the lock.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ["POSIX", _, "WRITE", pid, file, first, last] = fields.get(1..)? else { return None };
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        let last = last.parse().unwrap_or(u64::MAX);
        (is_it && first.parse::<u64>().ok()? <= bytes[1] && last >= bytes[0]).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_found_among_other_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 1 fe:00:131 0 EOF\n2: POSIX  ADVISORY  READ 2 fe:00:131 120 120\n\
                     3: POSIX  ADVISORY  WRITE 3 fe:00:131 121 121\n3: -> POSIX  ADVISORY  WRITE 4 fe:00:131 120 120\n\
                     4: POSIX  ADVISORY  WRITE 5 fe:00:132 120 120\n5: POSIX  ADVISORY  WRITE 6 fe:00:131 120 120\n\
                     6: POSIX  ADVISORY  WRITE 7 fe:00:133 1073741824 1073742335\n";
        assert_eq!(write_lock(locks, 131, WAL_WRITE), Some(6));
        assert_eq!(write_lock(locks, 133, RESERVED), Some(7));
        assert_eq!(write_lock(locks, 134, WAL_WRITE), None);
    }
}
