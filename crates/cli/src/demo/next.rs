//! "Try next": commands that work when they are pasted, in this folder, with what this build has.
//!
//! Every command stands for itself: none needs a variable that another one sets, and none rebuilds anything.

use std::env;
use std::path::{Path, PathBuf};

use posthaste::MessageId;

use super::Place;

/// The name that this program is usually called by.
const NAME: &str = "posthaste";

/// A command, and its effect.
pub(super) struct Next {
    pub(super) command: String,
    pub(super) what: &'static str,
}

/// What to try after the demo; `dead` is one of its dead letters, if there are any.
pub(super) fn commands(place: &Place, dead: Option<MessageId>) -> Vec<Next> {
    let program = program();
    let store = quoted(&place.url());
    let next = |rest: &str, what| Next { command: format!("{program} {rest} --store {store}"), what };
    let mut all = vec![next("status", "count the messages by state")];
    if let Some(id) = dead {
        all.push(next("list --state dead", "list the dead letters"));
        all.push(next(&format!("why {id}"), "ask why one of them was not delivered"));
        all.push(next("joins --status failed", "list the orders that were refused"));
        all.push(next("requeue --state dead --why 'new card' --yes", "make the dead letters ready again"));
    }
    if dead.is_some() && cfg!(feature = "relay") {
        let command = format!("{program} relay --from {store} --to log: --listen off");
        all.push(Next { command, what: "let a relay deliver them to its log, until Ctrl-C" });
    }
    all.push(Next { command: place.removal(), what: "delete the database; the demo left nothing else" });
    all
}

/// How to call this program: by its name if the PATH leads to it, otherwise by its path.
fn program() -> String {
    let Ok(own) = env::current_exe().and_then(|file| file.canonicalize()) else { return NAME.to_owned() };
    let here = env::current_dir().and_then(|folder| folder.canonicalize()).ok();
    let on_path = env::var_os("PATH").and_then(|path| found(&env::split_paths(&path).collect::<Vec<_>>()));
    called(&own, on_path.as_deref(), here.as_deref())
}

/// The first program of our name in these folders.
fn found(folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().find_map(|folder| folder.join(NAME).canonicalize().ok().filter(|file| file.is_file()))
}

fn called(own: &Path, on_path: Option<&Path>, here: Option<&Path>) -> String {
    if on_path == Some(own) {
        return NAME.to_owned();
    }
    match here.and_then(|here| own.strip_prefix(here).ok()) {
        // Without a slash, a shell would look for it on the PATH.
        Some(file) if file.components().count() == 1 => quoted(&format!("./{}", file.display())),
        Some(file) => quoted(&file.display().to_string()),
        None => quoted(&own.display().to_string()),
    }
}

/// A word as a shell reads it back.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_shell_would_read_otherwise_is_quoted() {
        assert_eq!(
            quoted("sqlite:/var/posthaste-demo-Ab1/shop.db"),
            "sqlite:/var/posthaste-demo-Ab1/shop.db"
        );
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn the_program_is_called_by_its_name_only_if_the_path_leads_to_it() {
        let own = Path::new("/clone/target/demo/posthaste");
        let called = |on_path: Option<&str>, here: &str| {
            super::called(own, on_path.map(Path::new), Some(Path::new(here)))
        };
        assert_eq!(called(Some("/clone/target/demo/posthaste"), "/clone"), "posthaste");
        assert_eq!(called(Some("/usr/bin/posthaste"), "/clone"), "target/demo/posthaste");
        assert_eq!(called(None, "/clone/target/demo"), "./posthaste");
        assert_eq!(called(None, "/elsewhere"), "/clone/target/demo/posthaste");
    }
}
