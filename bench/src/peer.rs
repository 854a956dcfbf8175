//! Other projects: programs in any language that are installed, started, and asked for one JSON object.
//!
//! `bench/peers/README.md` has the protocol. What fails to install or to run is a line of the report with its reason.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::args::Scale;
use crate::measure::{Case, Result, Role, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Postgres, Product as _, Room, in_room};
use crate::workload::PAYLOAD_BYTES;

/// How long a peer may take for one verb, and to be installed.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// The contents of a peer's `peer.toml`.
#[derive(Clone, Debug, Deserialize)]
struct Description {
    name: String,
    #[serde(default)]
    install: Vec<String>,
    command: Vec<String>,
    /// How many messages it drains at the most, if it would take all day for more.
    #[serde(default)]
    most_drained: Option<u64>,
}

/// A peer that is installed.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    folder: PathBuf,
    install_folder: PathBuf,
    description: Description,
    about: String,
}

/// The peers that can be had, and why others cannot: all of them, or those that are named.
pub(crate) async fn find(names: &[String], output: &Path) -> Vec<(String, Result<Peer>)> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let entries = std::fs::read_dir(&home).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join("peer.toml").exists()).collect();
    folders.sort();
    let name_of = |folder: &PathBuf| folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let there: Vec<String> = folders.iter().filter_map(name_of).collect();
    let mut peers = Vec::new();
    for unknown in names.iter().filter(|name| !there.contains(name)) {
        let why = format!("there is no such peer; there are {}", there.join(", "));
        peers.push((unknown.clone(), Err(why.into())));
    }
    if there.is_empty() && names.is_empty() {
        peers.push(("peers".to_owned(), Err("there are none in bench/peers".into())));
    }
    for (name, folder) in there.into_iter().zip(folders) {
        if names.is_empty() || names.contains(&name) {
            let _ = writeln!(std::io::stderr(), "installing {name}; the first time that takes minutes");
            let peer = Peer::install(&folder, &output.join("peers").join(&name)).await;
            peers.push((name, peer));
        }
    }
    peers
}

impl Peer {
    async fn install(folder: &Path, install_folder: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(folder.join("peer.toml"))?;
        let description: Description =
            toml::from_str(&text).map_err(|error| format!("peer.toml: {}", error.message()))?;
        std::fs::create_dir_all(install_folder)?;
        let install_folder = install_folder.canonicalize()?;
        let mut peer =
            Self { folder: folder.to_owned(), install_folder, about: description.name.clone(), description };
        if !peer.description.install.is_empty() {
            peer.run(&peer.description.install, &[], None).await.map_err(|why| format!("install: {why}"))?;
        }
        let about = peer.ask("about", &[], None).await?;
        let text = |name: &str| about.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        peer.about = format!("{} {}", peer.description.name, text("version")).trim().to_owned();
        Ok(peer)
    }

    /// Runs a verb, and returns the object on the last line of its output.
    async fn ask(&self, verb: &str, flags: &[String], url: Option<&str>) -> Result<Value> {
        let words: Vec<String> = std::iter::once(verb.to_owned()).chain(flags.iter().cloned()).collect();
        let output =
            self.run(&self.description.command, &words, url).await.map_err(|why| format!("{verb}: {why}"))?;
        let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("{}");
        serde_json::from_str(last).map_err(|_| format!("{verb}: its last line is no JSON: {last}").into())
    }

    async fn run(&self, command: &[String], words: &[String], url: Option<&str>) -> Result<String> {
        let (program, rest) = command.split_first().ok_or("peer.toml names no command")?;
        let mut command = Command::new(program);
        command.args(rest).args(words).current_dir(&self.folder).stdin(Stdio::null()).kill_on_drop(true);
        command.env("BENCH_INSTALL_DIR", &self.install_folder);
        if let Some(url) = url {
            command.env("BENCH_URL", url);
        }
        let output = timeout(PATIENCE, command.output())
            .await
            .map_err(|_| format!("not done after {PATIENCE:?}"))??;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        Err(format!("{}: {}", output.status, last.trim()).into())
    }

    /// Its unit.
    pub(crate) fn cases(&self, product: &Arc<Postgres>, scale: Scale, wanted: &[&'static str]) -> Vec<Case> {
        let case = |scenario: &'static str, unit, variation: &str| {
            let (peer, product) = (self.clone(), Arc::clone(product));
            let run = move || {
                let peer = peer.clone();
                in_room(Arc::clone(&product), move |room| {
                    Box::pin(async move { peer.measure(room, scale, scenario).await })
                })
            };
            Case::new(scenario, Postgres::NAME, &self.about, unit, run).variation(variation).role(Role::Peer)
        };
        let all = [
            case("enqueue", Unit::Transactions, ""),
            case("drain", Unit::Messages, ""),
            case("latency", Unit::Milliseconds, "100 msg/s"),
        ];
        all.into_iter().filter(|case| wanted.contains(&case.scenario)).collect()
    }

    async fn measure(&self, room: &Room<Postgres>, scale: Scale, scenario: &str) -> Result<Sample> {
        let url = room.url();
        let flags = |text: String| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        self.ask("setup", &[], Some(&url)).await?;
        let seconds = scale.seconds.max(2);
        let messages = scale.drain.min(self.description.most_drained.unwrap_or(u64::MAX));
        let words = match scenario {
            "enqueue" => {
                format!("--clients {} --seconds {seconds} --payload-bytes {PAYLOAD_BYTES}", scale.clients)
            }
            "drain" => {
                let words = format!("--count {messages} --payload-bytes {PAYLOAD_BYTES}");
                self.ask("preload", &flags(words), Some(&url)).await?;
                room.analyze().await?;
                format!("--count {messages}")
            }
            _ => format!("--rate 100 --seconds {seconds}"),
        };
        let meter = Meter::start(room).await?;
        let answer = self.ask(scenario, &flags(words), Some(&url)).await?;
        let stopped = meter.stop(room).await?;
        let (mut sample, work) = sample(&answer)?;
        stopped.costs(room, work, &mut sample).await?;
        let configuration = answer.get("configuration").and_then(Value::as_str);
        let fewer = (scenario == "drain" && messages < scale.drain).then(|| format!("{messages} messages"));
        let parts: Vec<String> = configuration.map(str::to_owned).into_iter().chain(fewer).collect();
        sample.configuration = Some(parts.join("; ")).filter(|text| !text.is_empty());
        Ok(sample)
    }
}

/// The sample in an answer, and how much work it was.
fn sample(answer: &Value) -> Result<(Sample, u64)> {
    if let Some(samples) = answer.get("samples_ms").and_then(Value::as_array) {
        let samples: Vec<f64> = samples.iter().filter_map(Value::as_f64).collect();
        return Ok((Sample::latency(&samples)?, samples.len() as u64));
    }
    let work = answer.get("transactions").or_else(|| answer.get("messages")).and_then(Value::as_u64);
    let seconds = answer.get("seconds").and_then(Value::as_f64).filter(|seconds| *seconds > 0.0);
    match (work, seconds) {
        (Some(work), Some(seconds)) => Ok((Sample::rate(work, seconds), work)),
        _ => Err(format!("its answer has neither samples nor a count and seconds: {answer}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_rates_or_latencies() {
        let answer = |text: &str| sample(&serde_json::from_str(text).unwrap());
        let (rate, work) =
            answer(r#"{"messages": 100, "seconds": 2.0, "configuration": "batch 10"}"#).unwrap();
        assert_eq!((rate.value, work), (50.0, 100));
        assert_eq!(answer(r#"{"transactions": 30, "seconds": 3}"#).unwrap().0.value, 10.0);
        assert_eq!(answer(r#"{"samples_ms": [1.5, 0.5, 2.5]}"#).unwrap().0.value, 1.5);
        for bad in ["{}", r#"{"messages": 5, "seconds": 0}"#, r#"{"samples_ms": []}"#] {
            assert!(answer(bad).is_err(), "{bad}");
        }
    }
}
