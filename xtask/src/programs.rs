//! Other programs of the machine: where they are, their answers, the user they run as.
//!
//! Knows no server and no cargo. Everything here asks; nothing may change the machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where servers are installed though the search path of ordinary users does not lead there.
const SERVER_FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec"];

/// The program of this name in the search path, or where distributions put servers.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SERVER_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

/// The first of several names that is installed.
pub(crate) fn find_any(names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| find(name))
}

/// Whether this is an executable file.
pub(crate) fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Runs a command to its end and returns its output, or its last error line.
pub(crate) fn answer(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{name} did not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(match complaint.trim().lines().last() {
        Some(line) if line.starts_with(&name) => line.to_owned(),
        Some(line) => format!("{name}: {line}"),
        None => format!("{name}: {}", output.status),
    })
}

/// A user of the machine.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Looks a user up by name.
pub(crate) fn account(name: &str) -> Result<Account, String> {
    let number = |flag| {
        let text = answer(Command::new("id").args([flag, name]))?;
        text.parse().map_err(|_| format!("id {flag} {name} answered `{text}`, not a number"))
    };
    Ok(Account { user: number("-u")?, group: number("-g")? })
}

/// Whether this process may do everything; the standard library does not tell, `id` does.
pub(crate) fn is_root() -> bool {
    answer(Command::new("id").arg("-u")).is_ok_and(|user| user == "0")
}

/// The words in front of a command line that make root run it as another user.
pub(crate) fn become_user(name: &str) -> Result<Vec<OsString>, String> {
    let setpriv =
        find("setpriv").ok_or("as root, it needs setpriv (Debian: package util-linux) to change the user")?;
    let user = [format!("--reuid={name}"), format!("--regid={name}"), "--clear-groups".to_owned()];
    Ok(std::iter::once(setpriv.into()).chain(user.map(OsString::from)).collect())
}

/// A command line as one readable string, for announcements only: it is not quoted for a shell.
pub(crate) fn spelled(words: &[OsString]) -> String {
    words.join(OsStr::new(" ")).display().to_string()
}
