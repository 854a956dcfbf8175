//! The demo's live view: a few lines that are drawn again in place, or one line a second where there is no terminal.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use console::{Style, Term, measure_text_width, truncate_str};
use posthaste::{Result, StoreAdmin as _};

use super::Summary;
use super::latency::Percentiles;
use super::next::Next;
use super::shop::{SHELVES, Shop};

/// Where it is drawn.
pub(super) struct Screen {
    term: Term,
    live: bool,
    silent: bool,
    /// How many lines were drawn last.
    lines: usize,
    last_line: Option<Instant>,
    rate: Rate,
}

/// How many were handled in the last seconds.
#[derive(Default)]
struct Rate(Vec<(Instant, u64)>);

impl Rate {
    fn per_second(&mut self, now: Instant, handled: u64) -> f64 {
        const WINDOW: Duration = Duration::from_secs(2);
        self.0.push((now, handled));
        self.0.retain(|(at, _)| now.duration_since(*at) <= WINDOW);
        let Some((first, before)) = self.0.first().copied() else { return 0.0 };
        let seconds = now.duration_since(first).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a figure to look at")]
        if seconds > 0.2 { (handled - before) as f64 / seconds } else { 0.0 }
    }
}

impl Screen {
    /// On standard error, so that the answer is alone on standard output.
    pub(super) fn new(json: bool) -> Self {
        let term = Term::stderr();
        let live = term.is_term() && !json;
        if live {
            let _ = term.hide_cursor();
        }
        Self { term, live, silent: json, lines: 0, last_line: None, rate: Rate::default() }
    }

    /// Draws the shop as it is now.
    pub(super) async fn draw(&mut self, shop: &Shop, elapsed: Duration, length: Duration) -> Result<()> {
        let now = Instant::now();
        let due = self.live || self.last_line.is_none_or(|last| now - last >= Duration::from_secs(1));
        if self.silent || !due {
            return Ok(());
        }
        self.last_line = Some(now);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (stats, counted) = (shop.store.stats().await?, shop.shelves_counted().await?);
        let tally = shop.tally();
        let rate = self.rate.per_second(now, read(&tally.handled));
        let orders = format!(
            "{} placed, {} rolled back, {} shipped, {} refused",
            read(&tally.orders),
            read(&tally.rolled_back),
            read(&tally.shipped),
            read(&tally.refused)
        );
        let queue = format!(
            "{} done, {} dead, {} running, {} ready, {} for later",
            stats.done.value, stats.dead.value, stats.leased.value, stats.ready.value, stats.scheduled.value
        );
        let speed = format!("{rate:.0} messages/s; commit to handler {}", latency(shop.latency()));
        if !self.live {
            let _ = self.term.write_line(&format!("{:>3} s  {orders}; {queue}; {speed}", elapsed.as_secs()));
            return Ok(());
        }
        let (bold, dim) = (Style::new().for_stderr().bold(), Style::new().for_stderr().dim());
        let title = if elapsed < length && !shop.is_closed() {
            format!("orders come in for {} s more; Ctrl-C ends it", (length - elapsed).as_secs() + 1)
        } else {
            "no more orders; delivering the rest".to_owned()
        };
        let provider = if shop.provider_is_down() {
            Style::new().for_stderr().red().apply_to("down").to_string()
        } else {
            Style::new().for_stderr().green().apply_to("up, fails now and then").to_string()
        };
        let mut lines = vec![
            format!("{}  {}", bold.apply_to("posthaste demo"), dim.apply_to(title)),
            String::new(),
            format!("{} {orders}", bold.apply_to("orders   ")),
            format!("{} {queue}", bold.apply_to("messages ")),
            format!("{} {speed}", bold.apply_to("speed    ")),
            format!("{} {provider}", bold.apply_to("payments ")),
            format!("{} {} {counted} of {SHELVES} steps", bold.apply_to("join     "), bar(counted, SHELVES)),
            String::new(),
        ];
        let news = shop.news();
        lines.extend((0..6).map(|i| {
            let text = news.get(i).map_or("", String::as_str);
            format!("  {}", dim.apply_to(text))
        }));
        self.frame(&lines);
        Ok(())
    }

    /// Draws lines over those drawn before, in one write, so that nothing flickers.
    fn frame(&mut self, lines: &[String]) {
        let width = usize::from(self.term.size().1).max(20);
        let mut text = String::new();
        if self.lines > 0 {
            let _ = write!(text, "\x1b[{}A", self.lines);
        }
        for line in lines {
            let _ = writeln!(text, "\r\x1b[2K{}", truncate_str(line, width.saturating_sub(1), "…"));
        }
        self.lines = lines.len();
        let _ = (&self.term).write_all(text.as_bytes());
        let _ = self.term.flush();
    }

    /// Erases the last frame.
    pub(super) fn clear(&mut self) {
        if self.live {
            let _ = self.term.clear_last_lines(self.lines);
            self.lines = 0;
            let _ = self.term.show_cursor();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.live {
            let _ = self.term.show_cursor();
        }
    }
}

fn bar(done: u32, all: u32) -> String {
    const WIDTH: u32 = 30;
    let full = done.min(all) * WIDTH / all.max(1);
    let (full, empty) = ("█".repeat(full as usize), "░".repeat((WIDTH - full) as usize));
    format!("{}{empty}", Style::new().for_stderr().cyan().apply_to(full))
}

fn latency(percentiles: Option<Percentiles>) -> String {
    match percentiles {
        Some(Percentiles { p50, p99 }) => format!("{p50:.1} ms p50, {p99:.1} ms p99"),
        None => "–".to_owned(),
    }
}

/// The final lines on the terminal: the result, and commands to try next.
pub(super) fn last_screen(summary: &Summary, next: &[Next]) -> String {
    let bold = Style::new().bold();
    let Summary { orders, rolled_back, shipped, refused, delivered, retried, dead, .. } = summary;
    let mut text = String::new();
    let mut line = |what: &str, said: String| {
        let _ =
            writeln!(text, "  {}{}{said}", bold.apply_to(what), " ".repeat(11 - measure_text_width(what)));
    };
    line("orders", format!("{orders} placed, {rolled_back} rolled back with their messages"));
    line("messages", format!("{delivered} delivered, {retried} failed attempts retried, {dead} dead"));
    line("ends", format!("{shipped} shipped, {refused} refused; each once, after all three of its steps"));
    line("speed", format!("commit to handler {}", latency(summary.hot_latency_ms)));
    if summary.broken.is_empty() {
        let good = Style::new().green().bold();
        line("checked", good.apply_to("nothing lost, nothing twice, nothing from a rollback").to_string());
    }
    for broken in &summary.broken {
        line("broken", Style::new().red().bold().apply_to(broken).to_string());
    }
    let _ = writeln!(text);
    if next.is_empty() {
        let _ = writeln!(
            text,
            "The database is deleted. Without --clean it stays, for the other commands to examine."
        );
        return text;
    }
    let _ = writeln!(text, "{}", bold.apply_to("Try next"));
    let dim = Style::new().dim();
    for Next { command, what } in next {
        let _ = writeln!(text, "  {command}\n      {}", dim.apply_to(what));
    }
    text
}
