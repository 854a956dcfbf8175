//! The file of a database that is open. Connections to a file that was replaced, moved or deleted still work, but no other process
//! sees what they write, or writes what they read.
//!
//! Looks at a file's name and number only; never opens or reads it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// How long a look counts: a message in a new file waits no longer, and statements cost no look each.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What became of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is where it was.
    Same,
    /// There is another one in its place.
    Replaced,
    /// The same, but with the write-ahead log of the old one beside it, which would spoil the new one.
    Mixed,
    /// There is none in its place.
    Gone,
}

/// A file that connections have open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    path: PathBuf,
    id: String,
    /// Its write-ahead log, if it has one.
    wal: Option<String>,
    last_look: (Instant, Fate),
}

impl OpenFile {
    /// The file that is at this path now; none if that cannot be told.
    pub(crate) fn new(path: PathBuf, now: Instant) -> Option<Self> {
        let id = id_of(&path).ok()?;
        let wal = id_of(&wal_of(&path)).ok();
        Some(Self { path, id, wal, last_look: (now, Fate::Same) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What became of it, as of at most a second ago.
    pub(crate) fn look(&mut self, now: Instant) -> Fate {
        let (at, fate) = self.last_look;
        if fate == Fate::Same && now.duration_since(at) < LOOK_EVERY {
            return fate;
        }
        let wal = id_of(&wal_of(&self.path)).ok();
        let fate = match id_of(&self.path) {
            Ok(id) if id == self.id => {
                self.wal = wal;
                Fate::Same
            }
            Ok(_) if wal.is_some() && wal == self.wal => Fate::Mixed,
            Ok(_) => Fate::Replaced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Fate::Gone,
            // It cannot be looked at, which says nothing about where it is.
            Err(_) => Fate::Same,
        };
        self.last_look = (now, fate);
        fate
    }

    /// The error of a call that cannot go on with it.
    pub(crate) fn error(&self, what: &str) -> io::Error {
        let text = format!("the database file {} was {what} while it was open", self.path.display());
        io::Error::new(io::ErrorKind::NotFound, text)
    }
}

/// Where the write-ahead log of a database is.
fn wal_of(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

/// A file of the same name with something added.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What tells a file apart from all others, by whatever path it is reached.
#[cfg(unix)]
pub(crate) fn id_of(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt as _;
    let file = std::fs::metadata(path)?;
    Ok(format!("{} {}", file.dev(), file.ino()))
}

/// What tells a file apart from all others; one that takes the place of another looks the same.
#[cfg(not(unix))]
pub(crate) fn id_of(path: &Path) -> io::Result<String> {
    Ok(std::fs::canonicalize(path)?.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_counts_for_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let [path, moved, other] = ["a", "b", "c"].map(|name| folder.path().join(name));
        std::fs::write(&path, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let begin = Instant::now();
        let mut file = OpenFile::new(path.clone(), begin).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        assert_eq!(file.look(begin + LOOK_EVERY / 2), Fate::Same);
        assert_eq!(file.look(begin + LOOK_EVERY), Fate::Gone);
        // While it is gone, every look counts.
        std::fs::rename(&moved, &path).unwrap();
        assert_eq!(file.look(begin + LOOK_EVERY), Fate::Same);
        if cfg!(unix) {
            std::fs::rename(&other, &path).unwrap();
            assert_eq!(file.look(begin + 2 * LOOK_EVERY), Fate::Replaced);
        }
    }

    #[test]
    fn a_missing_file_is_not_watched() {
        assert!(OpenFile::new(PathBuf::from("no such folder/outbox.db"), Instant::now()).is_none());
    }
}
