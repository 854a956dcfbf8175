//! Invariants of the tables after any run, and proof that each check can fail.
//!
//! Pure. The business rows are the truth about commits; the journal is the truth about calls of handlers. Every check
//! names the first violation that it finds.

use std::collections::{BTreeMap, HashMap, HashSet};

const DONE: u32 = 2;
const DEAD: u32 = 3;

/// A message as it stands in the outbox.
#[derive(Clone, Debug)]
pub struct Row {
    pub seq: i64,
    pub id: String,
    pub state: u32,
    pub attempts: u32,
    pub lease_losses: u32,
    pub class: u32,
    pub topic: String,
    pub key: Option<String>,
    pub error: String,
}

/// One call of a handler.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub id: String,
    pub process: String,
    pub attempt: u32,
    pub epoch: u32,
    /// Whether it had done its work.
    pub finished: bool,
}

/// Everything that there is at the end, deliveries in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub orders: Vec<String>,
    pub rows: Vec<Row>,
    pub deliveries: Vec<Delivered>,
}

/// What producers know about their transactions.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Their commit returned success.
    pub committed: Vec<String>,
    /// They, or their savepoint, were rolled back; or the message was a duplicate, and not stored.
    pub refused: Vec<String>,
}

/// The faults of a run.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// How often each process was killed, paused or cut off.
    pub faults: BTreeMap<String, u64>,
    /// How many handlers a process runs at a time.
    pub concurrency: u64,
    /// How many messages of a process may have been handled and not be settled yet.
    pub unsettled: u64,
    /// Whether messages may have lost leases.
    pub lease_losses: bool,
    /// What becomes of messages of a topic; all others are done without an attempt charged.
    pub ends: BTreeMap<&'static str, End>,
}

/// How the messages of a topic end.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Done, or dead for this class of reasons.
    pub dead: Option<u32>,
    /// How many attempts are charged.
    pub attempts: u32,
    /// How many leases it has lost exactly, if that is known.
    pub lease_losses: Option<u32>,
    /// What its error says.
    pub error: &'static str,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub messages: usize,
    pub deliveries: usize,
    pub faults: u64,
    pub duplicates: u64,
    /// How many duplicates there may have been.
    pub bound: u64,
    /// The most that one process caused.
    pub most_of_one: u64,
}

type Verdict<T = ()> = Result<T, String>;

impl Picture {
    /// All checks.
    pub fn check(&self, ledger: &Ledger, allowed: &Allowed) -> Verdict<Figures> {
        self.atomic(ledger)?;
        self.at_rest(allowed)?;
        self.no_phantom(ledger)?;
        self.no_loss()?;
        self.each_lease_once()?;
        self.key_order()?;
        let (duplicates, most_of_one) = self.bounded_duplicates(allowed)?;
        let faults = allowed.faults.values().sum();
        Ok(Figures {
            messages: self.rows.len(),
            deliveries: self.deliveries.len(),
            faults,
            duplicates,
            bound: faults * (allowed.concurrency + allowed.unsettled),
            most_of_one,
        })
    }

    /// I3: a message is there if, and only if, its business row is; an acknowledged one is there, a refused one is
    /// not.
    pub fn atomic(&self, ledger: &Ledger) -> Verdict {
        let orders: HashSet<&str> = self.orders.iter().map(String::as_str).collect();
        let rows: HashSet<&str> = self.rows.iter().map(|row| row.id.as_str()).collect();
        if let Some(id) = orders.difference(&rows).next() {
            return Err(format!("order {id} has no message"));
        }
        if let Some(id) = rows.difference(&orders).next() {
            return Err(format!("message {id} has no order"));
        }
        if let Some(id) = ledger.committed.iter().find(|id| !rows.contains(id.as_str())) {
            return Err(format!("{id} was committed and is not there"));
        }
        match ledger.refused.iter().find(|id| rows.contains(id.as_str())) {
            Some(id) => Err(format!("{id} was rolled back and is there")),
            None => Ok(()),
        }
    }

    /// I10, I12: nothing is ready or leased any more, and every message has ended as its topic says: dead for no other
    /// reason, and with no other attempts charged.
    pub fn at_rest(&self, allowed: &Allowed) -> Verdict {
        for row in &self.rows {
            let end = allowed.ends.get(row.topic.as_str());
            let (state, class) = match end.and_then(|end| end.dead) {
                Some(class) => (DEAD, class),
                None => (DONE, row.class),
            };
            if (row.state, row.class) != (state, class) {
                return Err(format!("it did not end as it should: {row:?}"));
            }
            let attempts = end.map_or(0, |end| end.attempts);
            if row.attempts != attempts {
                return Err(format!("{} attempts were charged instead of {attempts}: {row:?}", row.attempts));
            }
            let losses = end.and_then(|end| end.lease_losses);
            let wrong =
                losses.map_or(!allowed.lease_losses && row.lease_losses > 0, |n| n != row.lease_losses);
            if wrong {
                return Err(format!("it lost {} leases: {row:?}", row.lease_losses));
            }
            if end.is_some_and(|end| !row.error.contains(end.error)) {
                return Err(format!("its error says something else: {row:?}"));
            }
        }
        Ok(())
    }

    /// I2: nothing was delivered that was not committed.
    pub fn no_phantom(&self, ledger: &Ledger) -> Verdict {
        let orders: HashSet<&str> = self.orders.iter().map(String::as_str).collect();
        let refused: HashSet<&str> = ledger.refused.iter().map(String::as_str).collect();
        let phantom =
            |one: &&Delivered| !orders.contains(one.id.as_str()) || refused.contains(one.id.as_str());
        match self.deliveries.iter().find(phantom) {
            Some(one) => Err(format!("{} was delivered and never committed", one.id)),
            None => Ok(()),
        }
    }

    /// I1: a done message was delivered, to the end of a handler; a dead one was delivered, too, or it could not be
    /// dead.
    pub fn no_loss(&self) -> Verdict {
        let begun: HashSet<&str> = self.deliveries.iter().map(|one| one.id.as_str()).collect();
        let finished: HashSet<&str> =
            self.deliveries.iter().filter(|one| one.finished).map(|one| one.id.as_str()).collect();
        let lost = |row: &&Row| {
            let delivered = if row.state == DONE { &finished } else { &begun };
            !delivered.contains(row.id.as_str())
        };
        match self.rows.iter().find(lost) {
            Some(row) => Err(format!("it was never delivered: {row:?}")),
            None => Ok(()),
        }
    }

    /// I4: one lease is handed to handlers once.
    pub fn each_lease_once(&self) -> Verdict {
        let mut seen = HashSet::new();
        match self.deliveries.iter().find(|one| !seen.insert((&one.id, one.epoch))) {
            Some(one) => Err(format!("one lease was delivered twice: {one:?}")),
            None => Ok(()),
        }
    }

    /// I6: per key, first deliveries are in the order of enqueueing.
    pub fn key_order(&self) -> Verdict {
        let rows: HashMap<&str, &Row> = self.rows.iter().map(|row| (row.id.as_str(), row)).collect();
        let mut seen = HashSet::new();
        let mut latest: HashMap<&str, &Row> = HashMap::new();
        for one in self.deliveries.iter().filter(|one| seen.insert(&one.id)) {
            let Some(row) = rows.get(one.id.as_str()) else { continue };
            let Some(key) = row.key.as_deref() else { continue };
            if let Some(before) = latest.insert(key, row)
                && before.seq > row.seq
            {
                return Err(format!("{row:?} was delivered after {before:?}"));
            }
        }
        Ok(())
    }

    /// I5: an attempt was delivered more than once only if a process that had begun it met with a fault, and each fault
    /// explains no more than the messages under way: as many as handlers run at a time, and messages that were handled and
    /// about to be settled.
    pub fn bounded_duplicates(&self, allowed: &Allowed) -> Verdict<(u64, u64)> {
        let mut attempts: BTreeMap<(&str, u32), Vec<&Delivered>> = BTreeMap::new();
        for one in &self.deliveries {
            attempts.entry((&one.id, one.attempt)).or_default().push(one);
        }
        let mut caused: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (_, calls) in attempts.into_iter().filter(|(_, calls)| calls.len() > 1) {
            let innocent: Vec<_> =
                calls.iter().filter(|one| !allowed.faults.contains_key(&one.process)).collect();
            if innocent.len() > 1 {
                return Err(format!("it was delivered twice without a fault: {innocent:?}"));
            }
            // If all of them met with faults, the last one is the one that came through.
            let to_blame = calls.len() - usize::from(innocent.is_empty());
            let guilty = calls[..to_blame].iter().filter(|one| allowed.faults.contains_key(&one.process));
            for one in guilty {
                let (all, under_way) = caused.entry(&one.process).or_default();
                *all += 1;
                *under_way += u64::from(!one.finished);
            }
        }
        let mut total = 0;
        for (process, (all, under_way)) in &caused {
            let faults = allowed.faults[*process];
            let (most_running, most_unsettled) = (faults * allowed.concurrency, faults * allowed.unsettled);
            if *under_way > most_running || *all > most_running + most_unsettled {
                return Err(format!(
                    "{process} caused {all} duplicates, {under_way} of them unfinished, by {faults} faults; a fault \
                     explains {} and {}",
                    allowed.concurrency, allowed.unsettled
                ));
            }
            total += all;
        }
        Ok((total, caused.values().map(|(all, _)| *all).max().unwrap_or(0)))
    }

    /// How many messages lost how many leases.
    pub fn suspects(&self) -> BTreeMap<u32, usize> {
        let mut suspects = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.lease_losses > 0) {
            *suspects.entry(row.lease_losses).or_default() += 1;
        }
        suspects
    }
}

/// A violation planted for each check, in a run that is otherwise right.
mod tests {
    use super::*;

    fn row(seq: i64) -> Row {
        Row {
            seq,
            id: format!("m{seq}"),
            state: DONE,
            attempts: 0,
            lease_losses: 0,
            class: 0,
            topic: "work".to_owned(),
            key: (seq < 3).then(|| "k".to_owned()),
            error: "-".to_owned(),
        }
    }

    fn delivered(id: &str, process: &str, epoch: u32) -> Delivered {
        Delivered { id: id.to_owned(), process: process.to_owned(), attempt: 1, epoch, finished: true }
    }

    fn right() -> (Picture, Ledger, Allowed) {
        let mut flaky = Row { attempts: 1, topic: "flaky".to_owned(), class: 1, ..row(4) };
        flaky.error = "[BUSINESS] no".to_owned();
        let rows = vec![row(1), row(2), row(3), flaky];
        let mut deliveries = vec![
            delivered("m1", "a", 1),
            delivered("m2", "b", 1),
            delivered("m3", "a", 1),
            delivered("m4", "b", 1),
            delivered("m4", "b", 2),
        ];
        deliveries[3].finished = false;
        deliveries[4].attempt = 2;
        let orders = rows.iter().map(|row| row.id.clone()).collect();
        let ledger = Ledger { committed: vec!["m1".to_owned()], refused: vec!["m9".to_owned()] };
        let ends = [("flaky", End { dead: None, attempts: 1, lease_losses: None, error: "no" })];
        let allowed = Allowed { concurrency: 1, unsettled: 1, ends: ends.into(), ..Allowed::default() };
        (Picture { orders, rows, deliveries }, ledger, allowed)
    }

    fn objection(spoil: impl Fn(&mut Picture, &mut Ledger, &mut Allowed)) -> String {
        let (mut picture, mut ledger, mut allowed) = right();
        spoil(&mut picture, &mut ledger, &mut allowed);
        picture.check(&ledger, &allowed).unwrap_err()
    }

    #[test]
    fn a_right_run_has_no_objection() {
        let (picture, ledger, allowed) = right();
        let figures = picture.check(&ledger, &allowed).unwrap();
        assert_eq!((figures.messages, figures.deliveries, figures.duplicates, figures.bound), (4, 5, 0, 0));
    }

    #[test]
    fn a_message_without_its_order_is_found_and_an_order_without_its_message() {
        assert!(objection(|p, _, _| drop(p.orders.pop())).contains("m4 has no order"));
        assert!(objection(|p, _, _| drop(p.rows.pop())).contains("m4 has no message"));
    }

    #[test]
    fn a_commit_that_was_lost_is_found_and_a_rollback_that_was_kept() {
        assert!(
            objection(|_, l, _| l.committed.push("m8".to_owned())).contains("m8 was committed and is not")
        );
        assert!(
            objection(|_, l, _| l.refused.push("m2".to_owned())).contains("m2 was rolled back and is there")
        );
    }

    #[test]
    fn what_did_not_end_is_found() {
        assert!(objection(|p, _, _| p.rows[0].state = 0).contains("did not end"));
        assert!(objection(|p, _, _| p.rows[0].state = 1).contains("did not end"));
        assert!(objection(|p, _, _| (p.rows[0].state, p.rows[0].class) = (DEAD, 7)).contains("did not end"));
    }

    #[test]
    fn a_wrong_reason_to_be_dead_is_found() {
        let end = End { dead: Some(7), attempts: 0, lease_losses: Some(5), error: "suspect" };
        let dead = |class, losses, error: &str| {
            let (mut picture, ledger, mut allowed) = right();
            allowed.ends.insert("work", end);
            for row in picture.rows.iter_mut().filter(|row| row.topic == "work") {
                (row.state, row.class, row.lease_losses, row.error) = (DEAD, class, losses, error.to_owned());
            }
            picture.check(&ledger, &allowed)
        };
        assert!(dead(7, 5, "crash suspect").is_ok());
        assert!(dead(1, 5, "crash suspect").is_err() && dead(7, 4, "crash suspect").is_err());
        assert!(dead(7, 5, "other").unwrap_err().contains("something else"));
    }

    #[test]
    fn a_charge_is_found_and_a_lost_lease() {
        assert!(objection(|p, _, _| p.rows[0].attempts = 1).contains("1 attempts were charged instead of 0"));
        assert!(objection(|p, _, _| p.rows[3].attempts = 0).contains("0 attempts were charged instead of 1"));
        assert!(objection(|p, _, _| p.rows[0].lease_losses = 1).contains("it lost 1 leases"));
    }

    #[test]
    fn a_phantom_is_found() {
        assert!(objection(|p, _, _| p.deliveries.push(delivered("m9", "a", 1))).contains("never committed"));
    }

    #[test]
    fn a_loss_is_found() {
        assert!(objection(|p, _, _| drop(p.deliveries.remove(0))).contains("never delivered"));
        assert!(objection(|p, _, _| p.deliveries[0].finished = false).contains("never delivered"));
    }

    #[test]
    fn a_lease_that_was_used_twice_is_found() {
        let twice = |p: &mut Picture, _: &mut Ledger, a: &mut Allowed| {
            a.faults.insert("a".to_owned(), 1);
            p.deliveries.push(delivered("m1", "b", 1));
        };
        assert!(objection(twice).contains("one lease was delivered twice"));
    }

    #[test]
    fn a_wrong_order_is_found() {
        assert!(objection(|p, _, _| p.deliveries.swap(0, 1)).contains("was delivered after"));
    }

    #[test]
    fn a_duplicate_without_a_fault_is_found() {
        assert!(objection(|p, _, _| p.deliveries.push(delivered("m1", "b", 2))).contains("without a fault"));
    }

    #[test]
    fn more_duplicates_than_were_under_way_are_found() {
        let spoiled = |again: &[i64], faults: u64, finished: bool| {
            let (mut picture, ledger, mut allowed) = right();
            allowed.faults.insert("a".to_owned(), faults);
            for seq in again {
                picture.deliveries.insert(0, Delivered { finished, ..delivered(&format!("m{seq}"), "a", 7) });
            }
            for one in picture.deliveries.iter_mut().filter(|one| one.epoch == 1) {
                one.process = "b".to_owned();
            }
            picture.check(&ledger, &allowed)
        };
        assert_eq!(spoiled(&[1], 1, false).unwrap().duplicates, 1);
        assert_eq!(spoiled(&[2, 1], 1, true).unwrap().duplicates, 2);
        assert!(
            spoiled(&[2, 1], 1, false).unwrap_err().contains("caused 2 duplicates, 2 of them unfinished")
        );
        assert!(spoiled(&[3, 2, 1], 1, true).unwrap_err().contains("caused 3 duplicates"));
        assert_eq!(spoiled(&[3, 2, 1], 3, false).unwrap().bound, 6);
    }
}
