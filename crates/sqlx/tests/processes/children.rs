//! Worker processes: this very program, started again as a worker; their signals, their memory, their end.
//!
//! Only processes that were started here are signalled, by the handle of the child, and all of them end with the test:
//! they are killed when they are dropped, and end by themselves when the pipe to their standard input closes.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::worker::Orders;

/// A worker process.
pub struct Worker {
    pub name: String,
    child: Child,
}

impl Worker {
    /// Starts one.
    pub fn start(orders: &Orders) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::worker_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(Orders::VARIABLE, orders.to_json())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(if orders.silent { Stdio::null() } else { Stdio::inherit() })
            .spawn()
            .unwrap();
        Self { name: orders.name.clone(), child }
    }

    /// Ends it as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal, by the name that `kill -s` knows.
    pub fn signal(&mut self, signal: &str) {
        // The number cannot belong to another process: a child that was not waited for keeps it.
        assert!(self.child.try_wait().unwrap().is_none(), "{} has ended already", self.name);
        send(signal, self.child.id());
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub async fn wait(&mut self, most: Duration) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return (status, begun.elapsed());
            }
            assert!(begun.elapsed() < most, "{} did not end within {most:?}", self.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How much memory it has, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Also one that was paused: nothing holds this signal up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a child of ours that was not waited for yet. The shell's own `kill`, because small containers lack the
/// program of that name.
pub fn send(signal: &str, process: u32) {
    let sent = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, signal, &process.to_string()]).status();
    assert!(sent.unwrap().success(), "the signal {signal} could not be sent");
}
