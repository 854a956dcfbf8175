//! Which connections are served: so many in all, so many from one address, and beside them a few that get health and metrics only.
//!
//! The reserved connections keep health checks working when clients hold all others. If all of them are in use, the one that has been
//! silent for longest makes room for the next.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// How many connections get health and metrics only.
pub(super) const RESERVED: usize = 32;

/// Clients that count as one: an IPv4 address, or the IPv6 network that a site has.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

/// One connection, as requests and the server see it.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) peer: SocketAddr,
    /// Whether it gets health and metrics only, for one request.
    pub(super) is_reserved: bool,
    has_asked: AtomicBool,
    evicted: Notify,
    held_until: Mutex<Option<Instant>>,
}

impl Visit {
    fn new(peer: SocketAddr, is_reserved: bool) -> Arc<Self> {
        Arc::new(Self {
            peer,
            is_reserved,
            has_asked: AtomicBool::new(false),
            evicted: Notify::new(),
            held_until: Mutex::new(None),
        })
    }

    /// A request has been read.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Resolves when another connection takes its place.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Keeps its place until then, even if the client leaves.
    pub(super) fn hold_until(&self, time: Instant) {
        *self.held_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
    }

    pub(super) fn held_until(&self) -> Option<Instant> {
        *self.held_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of all connections.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    most_per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    by_address: HashMap<IpAddr, usize>,
    /// The oldest one first.
    reserved: VecDeque<Arc<Visit>>,
}

impl Places {
    pub(super) fn new(most: usize, most_per_address: usize) -> Arc<Self> {
        Arc::new(Self { most, most_per_address, taken: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for this client. None if even the reserved ones are all being answered.
    pub(super) fn take(self: &Arc<Self>, peer: SocketAddr) -> Option<Place> {
        let mut taken = self.lock();
        let of_address = taken.by_address.get(&network(peer.ip())).copied().unwrap_or(0);
        let is_reserved = taken.count >= self.most || of_address >= self.most_per_address;
        let visit = Visit::new(peer, is_reserved);
        if is_reserved {
            if taken.reserved.len() >= RESERVED {
                let silent =
                    taken.reserved.iter().position(|visit| !visit.has_asked.load(Ordering::Relaxed))?;
                taken.reserved.remove(silent)?.evicted.notify_one();
            }
            taken.reserved.push_back(Arc::clone(&visit));
        } else {
            taken.count += 1;
            *taken.by_address.entry(network(peer.ip())).or_default() += 1;
        }
        Some(Place { places: Arc::clone(self), visit })
    }

    fn give_back(&self, visit: &Arc<Visit>) {
        let mut taken = self.lock();
        if visit.is_reserved {
            taken.reserved.retain(|other| !Arc::ptr_eq(other, visit));
            return;
        }
        taken.count -= 1;
        let address = network(visit.peer.ip());
        if let Some(count) = taken.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

/// The place of a connection, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    visit: Arc<Visit>,
}

impl Place {
    pub(super) fn visit(&self) -> &Arc<Visit> {
        &self.visit
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.give_back(&self.visit);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 1))
    }

    #[test]
    fn an_address_has_so_many_places_and_all_together_have_so_many() {
        let places = Places::new(3, 2);
        let mut held = vec![places.take(peer(1)).unwrap(), places.take(peer(1)).unwrap()];
        assert!(places.take(peer(1)).unwrap().visit().is_reserved, "a third one of this address");
        held.push(places.take(peer(2)).unwrap());
        assert!(held.iter().all(|place| !place.visit().is_reserved));
        assert!(places.take(peer(3)).unwrap().visit().is_reserved, "a fourth one of all");
        held.remove(0);
        assert!(!places.take(peer(3)).unwrap().visit().is_reserved, "one has left");
        held.clear();
        assert!(places.lock().by_address.is_empty() && places.lock().reserved.is_empty());
    }

    #[test]
    fn a_silent_connection_makes_room_for_the_next() {
        let places = Places::new(0, 1);
        let mut held: Vec<Place> = (0..RESERVED).map(|_| places.take(peer(1)).unwrap()).collect();
        held[0].visit().asks();
        let next = places.take(peer(2)).unwrap();
        let evicted: Vec<bool> =
            held.iter().map(|place| place.visit().evicted().now_or_never().is_some()).collect();
        assert!(!evicted[0] && evicted[1] && !evicted[2], "the oldest one that has not asked: {evicted:?}");
        held.iter().skip(2).chain([&next]).for_each(|place| place.visit().asks());
        assert!(places.take(peer(3)).is_none(), "all are being answered");
        held.pop();
        assert!(places.take(peer(3)).is_some());
    }

    #[test]
    fn a_site_counts_as_one_client() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(network(ip("2001:db8::1")), network(ip("2001:db8::ffff:1")));
        assert_ne!(network(ip("2001:db8::1")), network(ip("2001:db8:0:1::1")));
        assert_eq!(network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(network(ip("10.0.0.1")), network(ip("10.0.0.2")));
    }
}
