//! Policies that share legs: each event ends, no capacity is left unused for good, each policy is served.

mod livelocks;
mod threads;
mod use_of_legs;
mod worlds;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use tollgate::sync::{Place, Watch};
use tollgate::{Demand, Description, Limiter, Outcome, Refusal, Settlement};

/// More looks at legs than this in one event are taken for a livelock.
const STEPS: u64 = 10_000;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
    static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Runs one event. Returns the number of looks at legs that it took.
fn event<R>(run: impl FnOnce() -> R) -> (R, u64) {
    LOOKS.set(0);
    LIMIT.set(STEPS);
    let result = run();
    LIMIT.set(u64::MAX);
    assert!(LOOKS.get() <= STEPS, "one event took more than {STEPS} looks at legs");
    (result, LOOKS.get())
}

/// A leg that counts the looks at it, and panics when one event takes too many of them.
struct Counted<L>(L);

impl<L: Limiter> Limiter for Counted<L> {
    type Ticket = L::Ticket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        self.0.try_reserve(demand)
    }
    fn cancel(&self, ticket: Self::Ticket) {
        self.0.cancel(ticket);
    }
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        self.0.finish(ticket, outcome);
    }
    fn settle(&self, ticket: &mut Self::Ticket, settlement: &Settlement) -> u32 {
        self.0.settle(ticket, settlement)
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        LOOKS.set(LOOKS.get() + 1);
        assert!(LOOKS.get() <= LIMIT.get(), "a livelock");
        self.0.look(demand)
    }
    fn leave(&self, place: &Place) {
        self.0.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.describe(visit);
    }
}

/// A waker that notes that it was woken.
struct Woken(AtomicBool);

impl Woken {
    fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self(AtomicBool::new(true)));
        (Arc::clone(&woken), Waker::from(woken))
    }
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Numbers that a seed repeats.
struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// From `low` to `high - 1`.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }
    fn one_in(&mut self, of: u64) -> bool {
        self.next() % of == 0
    }
}
