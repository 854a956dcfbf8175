//! A busy neighbour on demand: a process that keeps cores and disk busy next to a test run.
//!
//! Like a guard it holds the reading end of a pipe and ends with its owner, however that ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::{hint, thread};

use crate::tools;

/// Busy threads for each core, beside the tests that share it.
const THREADS_PER_CORE: usize = 2;
/// The data that is written and flushed to disk again and again.
const FILE_BYTES: usize = 32 << 20;

/// Load that lasts until this is dropped.
pub(crate) struct Load {
    process: Child,
}

impl Load {
    pub(crate) fn start() -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let file = tools::target().join("load.tmp");
        let process = Command::new(program)
            .arg("load")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start the load: {error}"))?;
        Ok(Self { process })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // How it ended says nothing about the tests.
        let _ = self.process.wait();
    }
}

/// The load's own main function: works until its standard input ends.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let [file] = words else {
        eprintln!("xtask: xtask starts the load for itself; see `cargo xtask help`");
        return ExitCode::from(2);
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..cores * THREADS_PER_CORE {
        thread::spawn(|| {
            loop {
                hint::black_box(0);
            }
        });
    }
    let disk = file.clone();
    thread::spawn(move || flood(Path::new(&disk)));
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    ExitCode::SUCCESS
}

/// Writes a file again and again, and waits each time until it is on the disk.
fn flood(path: &Path) -> io::Result<()> {
    let block = vec![1; 1 << 20];
    let mut file = File::create(path)?;
    // Without a name the file goes when this process does, however that ends.
    std::fs::remove_file(path)?;
    loop {
        file.rewind()?;
        for _ in 0..FILE_BYTES / block.len() {
            file.write_all(&block)?;
        }
        file.sync_all()?;
    }
}
