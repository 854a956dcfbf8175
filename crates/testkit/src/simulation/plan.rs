//! What one seed does: its nodes, messages, handlers' answers, transactions and faults. Everything is drawn here, before
//! anything runs, or from the seed's own generator while it runs; nothing may come from elsewhere.

use std::time::Duration;

use fastrand::Rng;
use posthaste_core::{OrderPolicy, Schedule, Settings};

/// Faults and deliberate actions. Each seed has its own subset, with its own rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A call fails, and nothing was changed.
    ErrorBefore,
    /// A call fails, although it took place.
    ErrorAfter,
    /// A call fails with an error that is not transient.
    Refusal,
    /// It is unknown whether a commit took place.
    CommitUnknown,
    /// A call takes as long as leases do.
    Slow,
    /// No node reaches the database for a while.
    Outage,
    /// A store's call panics.
    StorePanic,
    /// A process is killed.
    Crash,
    /// A process stands still for longer than its leases.
    Pause,
    /// A process is asked to end at once.
    Halt,
    /// A process is restarted with a graceful shutdown: no fault at all, as far as deliveries are concerned.
    Restart,
    /// The database's clock is put forward.
    ClockForward,
    /// The database's clock is put back.
    ClockBack,
    /// Operators requeue and bury.
    Operator,
    /// Another session has locked a message that is to be settled.
    Locked,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Self; 15] = [
        Self::ErrorBefore,
        Self::ErrorAfter,
        Self::Refusal,
        Self::CommitUnknown,
        Self::Slow,
        Self::Outage,
        Self::StorePanic,
        Self::Crash,
        Self::Pause,
        Self::Halt,
        Self::Restart,
        Self::ClockForward,
        Self::ClockBack,
        Self::Operator,
        Self::Locked,
    ];

    /// Whether it must not cost anything: no duplicate, no lost lease.
    pub const fn is_harmless(self) -> bool {
        matches!(self, Self::Restart | Self::Operator)
    }

    /// Whether it is a call that fails at once, and can be repeated.
    pub const fn is_light(self) -> bool {
        matches!(self, Self::ErrorBefore | Self::ErrorAfter | Self::Refusal | Self::Locked)
    }

    /// Its name in the coverage.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ErrorBefore => "fault: error before",
            Self::ErrorAfter => "fault: error after",
            Self::Refusal => "fault: refusal",
            Self::CommitUnknown => "fault: commit unknown",
            Self::Slow => "fault: slow",
            Self::Outage => "fault: outage",
            Self::StorePanic => "fault: store panic",
            Self::Crash => "fault: crash",
            Self::Pause => "fault: pause",
            Self::Halt => "fault: halt",
            Self::Restart => "fault: restart",
            Self::ClockForward => "fault: clock forward",
            Self::ClockBack => "fault: clock back",
            Self::Operator => "fault: operator",
            Self::Locked => "fault: locked",
        }
    }
}

/// A handler's behaviour for a message, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    Succeed,
    Business,
    RetryAfter(u64),
    Infrastructure,
    Unroutable,
    Defer(u64),
    Dead,
    Panic,
    /// Never ends, and does not listen.
    Deaf,
    /// Never ends by itself, but fails when it is cancelled.
    Listening,
    /// Never ends by itself, but succeeds when it is cancelled.
    Finishing,
    /// Takes its process with it.
    Kill,
}

/// One call of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) takes: u64,
    pub(super) act: Act,
}

/// One message of the seed.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) topic: &'static str,
    pub(super) key: Option<u64>,
    pub(super) order: OrderPolicy,
    pub(super) dedup: Option<u64>,
    pub(super) delay: Option<u64>,
    pub(super) expires: Option<u64>,
    pub(super) priority: i16,
    /// What its handlers do, call by call; afterwards they succeed.
    pub(super) steps: Vec<Vec<Step>>,
}

/// How messages get into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Style {
    /// `begin()`, `publish()`, `commit()` of the outbox.
    Hot,
    /// `publish()` in the producer's own transaction.
    Own,
    /// `enqueue()`.
    Alone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    Commit,
    Rollback,
    Drop,
}

/// One transaction of a producer.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) at: u64,
    pub(super) node: usize,
    pub(super) style: Style,
    pub(super) end: End,
    pub(super) messages: Vec<usize>,
    /// From and to which of its messages a savepoint is rolled back.
    pub(super) undone: Option<(usize, usize)>,
    pub(super) together: bool,
}

/// One join of the seed.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    pub(super) at: u64,
    pub(super) node: usize,
    /// The messages that are published with it.
    pub(super) steps: Vec<usize>,
    /// Messages of others that are attached later, and when.
    pub(super) later: Vec<(u64, usize)>,
    pub(super) cancelled_at: Option<u64>,
    pub(super) expires: Option<u64>,
    /// What waits for it: whether failed steps matter, and whether a failure has a continuation.
    pub(super) wait: Option<(bool, bool)>,
    pub(super) hot: bool,
}

/// One seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) liveness: bool,
    pub(super) faults: Vec<(Fault, f64)>,
    pub(super) nodes: Vec<Settings>,
    pub(super) scripts: Vec<Script>,
    pub(super) jobs: Vec<Job>,
    pub(super) joins: Vec<Joining>,
    /// From when to when each of the sinks is down.
    pub(super) sink_outages: [Vec<(u64, u64)>; 2],
    /// When faults and producers end.
    pub(super) heals_at: u64,
    pub(super) keep_done: bool,
    pub(super) latency: u64,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The topic of two sinks, and their names.
pub(super) const BOTH: &str = "both";
pub(super) const SINKS: [&str; 2] = ["left", "right"];

/// The topics, and the names of their handlers and sinks.
pub(super) fn handlers_of(topic: &str) -> &'static [&'static str] {
    match topic {
        "one" => &["one.a"],
        "two" => &["two.a", "two.b"],
        "next" => &["next.a"],
        "failed" => &["failed.a"],
        BOTH => &SINKS,
        _ => &[],
    }
}

impl Plan {
    pub(super) fn new(seed: u64, without: &[Fault]) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let liveness = rng.u32(0..10) < 3;
        let faults = Self::faults(&mut rng, without);
        let nodes = Self::nodes(&mut rng);
        let longest = nodes.iter().map(|node| node.lease.as_millis()).max().unwrap_or(1_000);
        let longest = u64::try_from(longest).unwrap_or(1_000);
        let timeout = u64::try_from(nodes[0].handler_timeout.as_millis()).unwrap_or(1_000);
        let heals_at = rng.u64(8_000..25_000);
        let keys = rng.u64(1..8);
        let trouble = rng.u32(0..60);
        let count = rng.usize(15..52);
        let mut scripts: Vec<Script> =
            (0..count).map(|_| Self::script(&mut rng, keys, trouble, longest, timeout)).collect();
        let killers = if rng.u32(0..4) == 0 { rng.usize(1..4) } else { 0 };
        for script in scripts.iter_mut().filter(|script| script.topic == "one").take(killers) {
            script.steps = vec![vec![Step { takes: rng.u64(0..200), act: Act::Kill }; 6]];
        }
        let jobs = Self::jobs(&mut rng, &scripts, nodes.len(), heals_at);
        let mut joins = Vec::new();
        for _ in 0..rng.usize(0..11).min(rng.usize(0..11)).min(rng.usize(0..11)) {
            let steps: Vec<usize> = (0..rng.usize(0..4)).map(|step| scripts.len() + step).collect();
            for _ in &steps {
                let mut script = Self::script(&mut rng, keys, trouble, longest, timeout);
                // A step is a message of its own, and keys that are blocked for ever are enough elsewhere.
                script.dedup = None;
                script.key = script.key.filter(|_| rng.u32(0..4) == 0);
                if script.topic != "nobody" && rng.u32(0..8) == 0 {
                    script.steps[0] = vec![Step { takes: 0, act: Act::Dead }];
                }
                scripts.push(script);
            }
            joins.push(Self::joining(&mut rng, steps, count, nodes.len(), heals_at));
        }
        let keep_done = rng.bool();
        let latency = rng.u64(0..6);
        let sink_outages = [Self::sink_outages(&mut rng, heals_at), Self::sink_outages(&mut rng, heals_at)];
        Self {
            seed,
            liveness,
            faults,
            nodes,
            scripts,
            jobs,
            joins,
            sink_outages,
            heals_at,
            keep_done,
            latency,
        }
    }

    fn sink_outages(rng: &mut Rng, heals_at: u64) -> Vec<(u64, u64)> {
        let outage = |rng: &mut Rng| {
            let from = rng.u64(0..heals_at);
            (from, (from + rng.u64(100..8_000)).min(heals_at))
        };
        (0..rng.usize(0..3)).map(|_| outage(rng)).collect()
    }

    /// Whether a sink is down at this moment.
    pub(super) fn is_down(&self, sink: usize, at: u64) -> bool {
        self.sink_outages[sink].iter().any(|(from, to)| (*from..*to).contains(&at))
    }

    fn joining(rng: &mut Rng, steps: Vec<usize>, others: usize, nodes: usize, heals_at: u64) -> Joining {
        let at = rng.u64(0..heals_at * 8 / 10);
        let mut late = |from: u64| rng.u64(from..from + 4_000).min(heals_at * 9 / 10);
        let times = [late(at), late(at), late(at)];
        let attached =
            rng.usize(usize::from(steps.is_empty())..3) * usize::from(rng.bool() || steps.is_empty());
        let later = times[..attached.max(usize::from(steps.is_empty()))]
            .iter()
            .map(|time| (*time, rng.usize(0..others)))
            .collect();
        Joining {
            at,
            node: rng.usize(0..nodes),
            steps,
            later,
            cancelled_at: (rng.u32(0..6) == 0).then_some(times[2]),
            expires: (rng.u32(0..3) == 0).then(|| rng.u64(1..8_000)),
            wait: (rng.u32(0..8) > 0).then(|| (rng.u32(0..4) > 0, rng.u32(0..4) > 0)),
            hot: rng.bool(),
        }
    }

    /// Swarm: one seed in seven has no faults; of the others each has its own subset.
    fn faults(rng: &mut Rng, without: &[Fault]) -> Vec<(Fault, f64)> {
        let faultless = rng.u32(0..7) == 0;
        let share = 0.15 + 0.5 * rng.f64();
        let drawn = Fault::ALL.map(|fault| (fault, rng.f64() < share, 0.1 + 0.9 * rng.f64()));
        let kept = drawn
            .into_iter()
            .filter(|(fault, on, _)| *on && (fault.is_harmless() || !faultless) && !without.contains(fault));
        kept.map(|(fault, _, rate)| (fault, rate)).collect()
    }

    fn nodes(rng: &mut Rng) -> Vec<Settings> {
        let count = 1 + (rng.usize(0..5) * rng.usize(0..5)) / 4;
        let (retry_base, max_attempts) = (rng.u64(50..1_000), rng.u32(2..6));
        let timeout = rng.u64(2_000..20_000);
        let outage_limit = rng.bool().then(|| ms(rng.u64(500..6_000)));
        let small = rng.bool();
        let node = |rng: &mut Rng| {
            let mut settings = Settings::default();
            settings.workers = if small { rng.u32(1..4) } else { rng.u32(1..17) };
            settings.hot_capacity = rng.u32(0..12);
            settings.hot_bytes = rng.u32(10..1_000);
            settings.cold_capacity = rng.u32(1..12);
            settings.batch = rng.u32(1..12);
            settings.settle_batch = rng.u32(1..8);
            settings.lease = ms(rng.u64(1_000..10_000));
            settings.poll_floor = ms(rng.u64(5..100));
            settings.poll_ceiling = settings.poll_floor + ms(rng.u64(100..1_500));
            settings.max_attempts = max_attempts;
            settings.retry_base = ms(retry_base);
            settings.retry_max = ms(retry_base * 3);
            settings.unroutable_delay = ms(retry_base * 2);
            settings.outage_limit = outage_limit;
            settings.handler_timeout = ms(timeout);
            settings.cancel_grace = ms(rng.u64(50..6_000));
            settings.shutdown_grace = ms(rng.u64(400..5_000));
            settings.keep_done_for = ms(rng.u64(0..10_000));
            settings.keep_dead_for = rng.bool().then(|| ms(rng.u64(2_000..10_000)));
            settings.archive = rng.bool();
            settings.reap = Schedule::every(ms(rng.u64(1_000..3_000)));
            settings.expire = Schedule::every(ms(rng.u64(1_000..3_000)));
            settings.park = Schedule::every(ms(rng.u64(1_000..3_000)));
            settings.prune = Schedule::every(ms(rng.u64(1_000..5_000)));
            settings.stats = Schedule::every(ms(5_000));
            settings.join_check = ms(rng.u64(200..3_000));
            settings
        };
        (0..count).map(|_| node(rng)).collect()
    }

    fn script(rng: &mut Rng, keys: u64, trouble: u32, longest: u64, timeout: u64) -> Script {
        let topic = match rng.u32(0..20) {
            0 => "nobody",
            1..8 => "two",
            8..10 => BOTH,
            _ => "one",
        };
        let one_in = |rng: &mut Rng, n: u32| rng.u32(0..n) == 0;
        let key = one_in(rng, 3).then(|| rng.u64(0..keys));
        let policies = [OrderPolicy::Block, OrderPolicy::Park, OrderPolicy::Park, OrderPolicy::Skip];
        let order = policies[rng.usize(0..4)];
        let steps = handlers_of(topic).iter().map(|_| Self::steps(rng, trouble, longest, timeout)).collect();
        Script {
            topic,
            key,
            order,
            dedup: one_in(rng, 8).then(|| rng.u64(0..6)),
            delay: one_in(rng, 6).then(|| rng.u64(1..5_000)),
            expires: one_in(rng, 12).then(|| rng.u64(1..6_000)),
            priority: if one_in(rng, 4) { rng.i16(-2..3) } else { 0 },
            steps,
        }
    }

    fn steps(rng: &mut Rng, trouble: u32, longest: u64, timeout: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        if rng.u32(0..40) == 0 {
            // An outage that may last too long.
            return vec![Step { takes: 0, act: Act::Infrastructure }; 8];
        }
        while steps.len() < 6 {
            let takes = match rng.u32(0..12) {
                0 => rng.u64(0..3 * longest),
                1..4 => rng.u64(0..500),
                4..8 => 0,
                _ => rng.u64(0..30),
            };
            let act = if rng.u32(0..100) >= trouble {
                Act::Succeed
            } else {
                match rng.u32(0..24) {
                    0..7 => Act::Business,
                    7 => Act::RetryAfter(rng.u64(0..2_000)),
                    8..11 => Act::Infrastructure,
                    11 => Act::Unroutable,
                    12..15 => Act::Defer(rng.u64(0..2_000)),
                    15 => Act::Dead,
                    16..18 => Act::Panic,
                    18 => Act::Deaf,
                    19 => Act::Listening,
                    20 => Act::Finishing,
                    _ => Act::Succeed,
                }
            };
            // A time-out must be one, however its handler ends.
            let takes =
                if act == Act::Succeed { takes.min(timeout.saturating_sub(300)) } else { takes.min(1_000) };
            steps.push(Step { takes, act });
            if act == Act::Succeed {
                break;
            }
        }
        steps
    }

    fn jobs(rng: &mut Rng, scripts: &[Script], nodes: usize, heals_at: u64) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut next = 0;
        let bursts: Vec<u64> = (0..rng.u64(1..4)).map(|_| rng.u64(0..heals_at * 8 / 10)).collect();
        while next < scripts.len() {
            let size = 1 + rng.usize(0..8) * rng.usize(0..8) / 7;
            let end = (next + size).min(scripts.len());
            let mut messages: Vec<usize> = (next..end).collect();
            next = end;
            // Only one of a transaction has a dedup key, or two transactions could wait for one another.
            let mut seen = false;
            messages.retain(|n| scripts[*n].dedup.is_none() || !std::mem::replace(&mut seen, true));
            let style = match rng.u32(0..10) {
                0..6 => Style::Hot,
                6..9 => Style::Own,
                _ => Style::Alone,
            };
            let end = match rng.u32(0..12) {
                0 => End::Rollback,
                1 => End::Drop,
                _ => End::Commit,
            };
            let undone = (rng.u32(0..4) == 0).then(|| {
                let from = rng.usize(0..=messages.len());
                (from, rng.usize(from..=messages.len()))
            });
            let at = if rng.u32(0..3) == 0 {
                bursts[rng.usize(0..bursts.len())] + rng.u64(0..100)
            } else {
                rng.u64(0..heals_at * 9 / 10)
            };
            let (node, together) = (rng.usize(0..nodes), rng.bool());
            jobs.push(Job { at, node, style, end, messages, undone, together });
        }
        jobs
    }

    pub(super) fn rate(&self, fault: Fault) -> Option<f64> {
        self.faults.iter().find(|(kind, _)| *kind == fault).map(|(_, rate)| *rate)
    }

    /// Whether nothing goes wrong by itself; messages may still kill their process.
    pub(super) fn is_calm(&self) -> bool {
        self.faults.iter().all(|(fault, _)| fault.is_harmless())
    }

    pub(super) fn is_killer(script: &Script) -> bool {
        script.steps.iter().flatten().any(|step| step.act == Act::Kill)
    }

    /// Whether nothing goes wrong at all.
    pub(super) fn is_faultless(&self) -> bool {
        self.is_calm() && !self.scripts.iter().any(Self::is_killer)
    }
}
