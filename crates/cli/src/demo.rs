//! `posthaste demo`: a shop with an outbox, on the terminal, for as long as it takes to see what posthaste does.
//!
//! Everything in it is real but the shop: the database, the transactions, the failures, the retries. At the end it checks its own
//! promises against the tables, and fails if one did not hold.

mod latency;
mod next;
mod screen;
mod shop;

use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste::{Error, ErrorKind, Result, Shutdown, StoreAdmin as _, shutdown_signal};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::next::{commands, quoted};
use self::screen::{Screen, last_screen};
use self::shop::Shop;
use crate::exit::Exit;
use crate::output::Output;

/// How long the remaining messages may take after the last order.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the screen is drawn.
const FRAME: Duration = Duration::from_millis(125);

/// Play a small shop in the terminal: nothing to install, no server needed
///
/// Orders are saved and their messages published in one transaction; handlers charge, reserve, print labels and ship. The payment
/// provider fails now and then, and is down for a while. Some cards are refused for good. At the end the tables are checked.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  posthaste demo\n  posthaste demo --seconds 60 --rate 50\n  posthaste demo --file shop.db"
)]
pub(crate) struct Args {
    /// For how long orders come in
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How many orders come in per second
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=500))]
    rate: u64,
    /// The database's file, which must not exist yet, instead of one in the system's temporary folder
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Delete the database at the end
    #[arg(long)]
    clean: bool,
}

/// How it went, for programs.
#[derive(Debug, Serialize)]
struct Summary {
    store: String,
    orders: u64,
    rolled_back: u64,
    shipped: u64,
    refused: u64,
    delivered: u64,
    retried: u64,
    dead: u64,
    hot_latency_ms: Option<latency::Percentiles>,
    /// Broken promises; empty if all is well.
    broken: Vec<String>,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let file = Place::new(args.file.as_deref())?;
    let length = Duration::from_secs(args.seconds);
    let shop = Shop::open(&file.path, length).await?;
    let stop = Shutdown::new();
    let running = tokio::spawn(shop.outbox.run(stop.clone()));
    let mut screen = Screen::new(output.is_json());
    let begin = Instant::now();
    let trading = tokio::spawn(Shop::trade(shop.clone(), begin, length, args.rate));
    let interrupted = watch(&shop, &mut screen, begin, length).await?;
    if interrupted {
        shop.close().await?;
    }
    trading.await.map_err(|_| Error::new(ErrorKind::Refused, "the shop panicked"))??;
    let settled = timeout(PATIENCE, rest(&shop, &mut screen, begin, length)).await;
    stop.begin();
    running.await.map_err(|_| Error::new(ErrorKind::Refused, "the outbox panicked"))??;
    screen.clear();

    let mut broken = shop.check().await?;
    if settled.is_err() {
        broken.push(format!("something was still not over {} s after the last order", PATIENCE.as_secs()));
    }
    let stats = shop.store.stats().await?;
    let summary = shop.summary(&file.url(), &stats, broken);
    let next = if args.clean { Vec::new() } else { commands(&file, shop.dead_letter().await?) };
    output.answer(&summary, || last_screen(&summary, &next));
    let holds = summary.broken.is_empty();
    shop.store.close().await;
    if args.clean {
        file.remove();
    }
    Ok(if holds { Exit::Done } else { Exit::Failed })
}

/// Draws until no more orders come in; true if Ctrl-C came before.
async fn watch(shop: &Shop, screen: &mut Screen, begin: Instant, length: Duration) -> Result<bool> {
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let signal = shutdown_signal();
    while begin.elapsed() < length {
        tokio::select! {
            _ = frames.tick() => screen.draw(shop, begin.elapsed(), length).await?,
            () = signal.begun() => return Ok(true),
        }
    }
    Ok(false)
}

/// Draws until nothing is left to deliver.
async fn rest(shop: &Shop, screen: &mut Screen, begin: Instant, length: Duration) -> Result<()> {
    // A second Ctrl-C ends it now.
    let signal = shutdown_signal();
    while !shop.is_over().await? && !signal.has_begun() {
        screen.draw(shop, begin.elapsed(), length).await?;
        sleep(FRAME).await;
    }
    screen.draw(shop, begin.elapsed(), length).await
}

/// Where the database is.
struct Place {
    path: PathBuf,
    /// The folder that was made for it.
    folder: Option<PathBuf>,
}

impl Place {
    fn new(file: Option<&Path>) -> Result<Self> {
        if let Some(file) = file {
            if file.exists() {
                return Err(Error::new(ErrorKind::Configuration, "the file is there already")
                    .with_context("file", file.display())
                    .with_remedy("name another one: the demo never touches what is not its own"));
            }
            return Ok(Self { path: file.to_owned(), folder: None });
        }
        let folder = tempfile::Builder::new().prefix("posthaste-demo-").tempdir().map_err(|error| {
            Error::new(ErrorKind::Configuration, "no folder can be made in the temporary one")
                .with_remedy("name a file by --file, or another folder in TMPDIR")
                .with_source(error)
        })?;
        let folder = folder.keep();
        Ok(Self { path: folder.join("shop.db"), folder: Some(folder) })
    }

    fn url(&self) -> String {
        // The driver reads these as the end of the path, or as the beginning of an escape.
        let path =
            self.path.display().to_string().replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        format!("sqlite:{path}")
    }

    /// The database's file, and the files that SQLite keeps beside it while it is in use or after a crash.
    fn files(&self) -> [PathBuf; 3] {
        ["", "-wal", "-shm"].map(|end| {
            let mut file = self.path.clone().into_os_string();
            file.push(end);
            file.into()
        })
    }

    /// The command that deletes it.
    fn removal(&self) -> String {
        match &self.folder {
            Some(folder) => format!("rm -r {}", quoted(&folder.display().to_string())),
            None => {
                let files = self.files().map(|file| quoted(&file.display().to_string()));
                format!("rm -f {}", files.join(" "))
            }
        }
    }

    fn remove(&self) {
        // What cannot be deleted is in the temporary folder, or where its user put it.
        match &self.folder {
            Some(folder) => drop(std::fs::remove_dir_all(folder)),
            None => self.files().iter().for_each(|file| drop(std::fs::remove_file(file))),
        }
    }
}
