//! Walks through every reachable state, nearest first, so that the first violation has a shortest trace.

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::cursor::Cursor;
use crate::plan::{Plan, Role, Worker};
use crate::world::{Actor, LEASES, Lease, MESSAGES, Message, State, Step, TOKENS, World, bit, each};

/// One statement of one actor, or a part of it, and the world after it.
pub(crate) struct Move {
    pub(crate) label: &'static str,
    pub(crate) about: u8,
    pub(crate) world: World,
}

impl Move {
    pub(crate) fn new(label: &'static str, about: u8, world: World) -> Self {
        Self { label, about, world }
    }
}

/// How many states there are, and the fault of the nearest wrong one.
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) violation: Option<Violation>,
}

pub(crate) struct Violation {
    pub(crate) what: &'static str,
    pub(crate) trace: Vec<String>,
}

/// Quicker than the standard one where tests are not optimized. Two of a million states share a hash with a chance of one in
/// thirty million.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n.unsigned_abs() as u64);
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = mixed ^ (mixed >> 29);
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = Mix::default();
    value.hash(&mut hasher);
    hasher.finish()
}

fn start(plan: &Plan) -> World {
    let mut messages = [Message::default(); MESSAGES];
    for m in each(plan.published) {
        let born = u8::from(plan.due & bit(m) == 0);
        messages[m] = Message { state: State::Ready, token: 0, born };
    }
    World {
        messages,
        leases: [Lease::default(); LEASES],
        turns: 0,
        cursor: (1, Rc::new(Cursor::start())),
        next_cursor: 2,
        next_xid: 2,
        last_ended: 1,
        actors: vec![Actor::default(); plan.roles.len()],
        crashes: plan.crashes,
        timeouts: plan.timeouts,
        holders: [0; MESSAGES],
        wrong: None,
    }
}

/// Whether a twin of this worker has to begin first. Twins are interchangeable, so one order of their beginnings suffices.
fn must_wait_for_twin(world: &World, plan: &Plan, who: usize) -> bool {
    who > 0
        && world.actors[who].rounds == 0
        && world.actors[who - 1].rounds == 0
        && matches!(plan.roles[who], Role::Worker(_))
        && plan.roles[who] == plan.roles[who - 1]
        && !plan.roles.iter().any(|role| matches!(role, Role::Renewer { .. }))
}

fn worker_moves(world: &World, plan: &Plan, who: usize, worker: Worker) -> Vec<Move> {
    let next = || world.clone();
    let silent = |label, change: &dyn Fn(&mut World)| {
        let mut world = next();
        change(&mut world);
        vec![Move::new(label, 0, world)]
    };
    match world.actors[who].step {
        Step::Begin => {
            let can = world.actors[who].rounds < worker.rounds && !must_wait_for_twin(world, plan, who);
            if can { vec![next().begin_claim(who, plan, worker)] } else { Vec::new() }
        }
        Step::FreeTurns => {
            let mut world = next();
            let freed = world.free_next(who, plan);
            world.actors[who].tx.over = 0;
            world.look_due(who, plan, worker);
            vec![Move::new("take_turns: frees; claim: reads the cursor and what is due", freed, world)]
        }
        Step::LockDue => world.lock_due(who, worker),
        Step::LookNew => vec![next().look_new(who, plan, worker)],
        Step::LockNew => vec![next().lock_new(who, plan, worker)],
        Step::LookAgain => vec![next().look_again(who, plan, worker)],
        Step::Chosen => world.chosen(who, plan, worker),
        Step::Advance => {
            silent("first_open: looks at a segment", &|w| w.advance_segment(who, plan, !worker.is_caller))
        }
        Step::LookHeads => silent("lock_heads: reads the first of keys", &|w| w.look_heads(who, plan)),
        Step::LockHeads => silent("lock_heads: locks them", &|w| w.lock_heads(who, plan)),
        Step::PassWaiting => silent("first_open: passes what waits", &|w| w.pass_waiting(who, plan)),
        Step::WriteCursor => vec![next().after_advance(who, plan, worker)],
        Step::WriteLease => vec![next().write_lease(who, plan)],
        Step::Holding => world.settle(who, worker),
        Step::AckRows => next().ack_row(who, plan).into_iter().collect(),
        Step::CheckAcks => vec![next().check_acks(who)],
        Step::LookNext => vec![next().look_behind(who, plan)],
        Step::FreeNext => {
            let mut world = next();
            let freed = world.free_next(who, plan);
            world.actors[who].step = Step::EndLeases;
            vec![Move::new("free_next: frees, or notes the turn of the rest;", freed, world)]
        }
        Step::EndLeases => vec![next().end_leases(who)],
        Step::ReleaseRows => next().release_row(who, plan).into_iter().collect(),
        Step::LookLeases => vec![next().look_leases(who)],
        Step::LetGo => next().let_go(who, plan).into_iter().collect(),
        Step::Commit => vec![next().commit_settlement(who, plan)],
        Step::TakeBack | Step::Trim | Step::KeepLeases | Step::Finished => Vec::new(),
    }
}

fn publisher_moves(world: &World, plan: &Plan, who: usize, set: u8) -> Vec<Move> {
    let mut world = world.clone();
    match world.actors[who].step {
        Step::Begin => {
            let born = world.xid(who);
            world.actors[who].tx.is_open = true;
            for m in each(set) {
                world.change(who, m, Message { state: State::Ready, token: 0, born });
            }
            world.actors[who].step = Step::Commit;
            vec![Move::new("inserts", set, world)]
        }
        Step::Commit => {
            world.commit(who, &plan.keys);
            world.actors[who].step = Step::Finished;
            vec![Move::new("commits", set, world)]
        }
        _ => Vec::new(),
    }
}

fn upkeep_moves(world: &World, plan: &Plan, who: usize) -> Vec<Move> {
    let step = world.actors[who].step;
    let rounds = world.actors[who].rounds;
    let world = world.clone();
    let moved = match (step, plan.roles[who]) {
        (Step::Begin, Role::Reaper(most)) if rounds < most => world.begin_reap(who),
        (Step::Begin, Role::Renewer { of, items }) if rounds == 0 => world.begin_renewal(who, of, items),
        (Step::TakeBack, _) => Some(world.take_back(who, plan)),
        (Step::Trim, _) => Some(world.trim_leases(who)),
        (Step::KeepLeases, _) => Some(world.keep_leases(who)),
        (Step::Commit, _) => Some(world.commit_upkeep(who, plan)),
        _ => None,
    };
    moved.into_iter().collect()
}

fn actor_moves(world: &World, plan: &Plan, who: usize) -> Vec<Move> {
    match plan.roles[who] {
        Role::Publisher(set) => publisher_moves(world, plan, who, set),
        Role::Worker(worker) => worker_moves(world, plan, who, worker),
        Role::Reaper(_) | Role::Renewer { .. } => upkeep_moves(world, plan, who),
    }
}

/// All that can happen next, and by whom; and whether no actor can go on although a transaction is open, which is a deadlock.
fn moves(world: &World, plan: &Plan) -> (Vec<(usize, Move)>, bool) {
    let mut all = Vec::new();
    for who in 0..plan.roles.len() {
        all.extend(actor_moves(world, plan, who).into_iter().map(|next| (who, next)));
    }
    let is_stuck = all.is_empty() && !world.is_quiet();
    for who in 0..plan.roles.len() {
        if world.crashes > 0 && world.actors[who].tx.xid != 0 {
            let mut world = world.clone();
            world.crashes -= 1;
            world.abort(who);
            world.actors[who] = Actor { step: Step::Finished, ..Actor::default() };
            all.push((who, Move::new("crashes", 0, world)));
        }
    }
    for lease in 0..LEASES {
        let row = world.leases[lease];
        if world.timeouts > 0 && row.items != 0 && !row.ran_out {
            let mut world = world.clone();
            world.timeouts -= 1;
            world.leases[lease].ran_out = true;
            all.push((usize::MAX, Move::new("a lease runs out, of", row.items, world)));
        }
    }
    (all, is_stuck)
}

/// Whether a message could start that a fresh claim would not find. Asked when no transaction is open.
fn hides(world: &World, plan: &Plan) -> bool {
    let cursor = world.newest_cursor(None);
    let leased = world.leased_since(None, &cursor);
    let has_turn = |m: usize| {
        each(world.turns).any(|over| {
            let is_behind = |n: &usize| plan.keys[*n] == plan.keys[over] && world.is_ready(None, *n);
            (over + 1..MESSAGES).find(is_behind) == Some(m)
        })
    };
    (0..MESSAGES).any(|m| {
        let row = world.messages[m];
        let can_start =
            row.state == State::Ready && world.holders[m] == 0 && !world.waits(None, &plan.keys, m);
        let is_found = leased & bit(m) == 0 && (row.born == 0 || cursor.has(row.born, m) || has_turn(m));
        can_start && !is_found
    })
}

/// Whether a message is never delivered: all leases run out, a reap takes them back, and a last worker claims
/// everything that it finds.
fn loses(world: &World, plan: &Plan) -> bool {
    let mut world = world.clone();
    let worker = Worker { rounds: 1, limit: MESSAGES, acks: true, ..Worker::default() };
    world.actors = vec![Actor::default(), Actor::default()];
    let end = Plan {
        keys: plan.keys,
        published: 0,
        due: 0,
        roles: vec![Role::Reaper(1), Role::Worker(worker)],
        crashes: 0,
        timeouts: 0,
        fault: plan.fault,
    };
    world.leases.iter_mut().for_each(|lease| lease.ran_out = true);
    for _ in 0..2 * MESSAGES {
        world.actors[1] = Actor::default();
        loop {
            let mut all = actor_moves(&world, &end, 0);
            if all.is_empty() {
                all = actor_moves(&world, &end, 1);
            }
            let Some(next) = all.into_iter().next() else { break };
            world = next.world;
            if world.actors[1].token != 0 {
                // One token serves for all: this worker settles what it has before it claims again.
                world.actors[1].token = u8::try_from(TOKENS).unwrap();
            }
        }
    }
    world.messages.iter().any(|row| row.state == State::Ready)
}

fn judge(world: &World, plan: &Plan, drained: &mut HashSet<u64>) -> Option<&'static str> {
    if world.wrong.is_some() || !world.is_quiet() {
        return world.wrong;
    }
    if hides(world, plan) {
        return Some("a message can start, and a claim would not find it");
    }
    let known = hash_of(&(&world.messages, &world.leases, world.turns, &world.cursor, world.holders));
    let is_lost = drained.insert(known) && loses(world, plan);
    is_lost.then_some("a message is never delivered")
}

fn set_text(set: u8) -> String {
    each(set).map(|m| format!(" m{}", m + 1)).collect()
}

/// Repeats the moves that led to a state, and names them.
fn trace(plan: &Plan, path: &[u16]) -> Vec<String> {
    let mut world = start(plan);
    let mut lines = Vec::new();
    for index in path {
        let (all, _) = moves(&world, plan);
        let (who, next) = all.into_iter().nth(usize::from(*index)).unwrap();
        let actor = if who == usize::MAX { "time".to_owned() } else { plan.name(who) };
        lines.push(format!("{:3}. {actor}: {}{}", lines.len() + 1, next.label, set_text(next.about)));
        world = next.world;
        world.canonicalize();
    }
    lines
}

pub(crate) fn search(plan: &Plan) -> Report {
    let mut nodes: Vec<(u32, u16)> = vec![(0, 0)];
    let mut visited = HashSet::new();
    let mut drained = HashSet::new();
    let mut open = VecDeque::from([(0_u32, start(plan))]);
    let path = |nodes: &[(u32, u16)], mut node: usize| {
        let mut path = Vec::new();
        while node != 0 {
            path.push(nodes[node].1);
            node = nodes[node].0 as usize;
        }
        path.reverse();
        path
    };
    while let Some((node, world)) = open.pop_front() {
        let (all, is_stuck) = moves(&world, plan);
        let mut wrong = is_stuck.then_some((node as usize, "a deadlock"));
        for (index, (_, next)) in all.into_iter().enumerate() {
            let mut next = next.world;
            next.canonicalize();
            if wrong.is_some() || !visited.insert(hash_of(&next)) {
                continue;
            }
            nodes.push((node, u16::try_from(index).unwrap()));
            wrong = judge(&next, plan, &mut drained).map(|what| (nodes.len() - 1, what));
            open.push_back((u32::try_from(nodes.len() - 1).unwrap(), next));
        }
        if let Some((node, what)) = wrong {
            let violation = Violation { what, trace: trace(plan, &path(&nodes, node)) };
            return Report { states: nodes.len(), violation: Some(violation) };
        }
    }
    Report { states: nodes.len(), violation: None }
}
