//! A custom limiter: a memory budget, in bytes, that keeps the laws.
//!
//! The budget is a number behind a lock, and a queue of waiters. Three things make it a limiter. It refuses without a trace. It
//! returns exactly what it took. It notifies the waiters, outside the lock, when capacity may be free. The core does everything else:
//! permits, queues, time-outs, composition.
//!
//! `cargo run --example own_limiter`

use std::sync::{Mutex, PoisonError, Weak};
use tollgate::status::{Description, State};
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{Ask, Cost, Demand, Limiter, LimiterExt, Outcome, Policy, Reason, Refusal, Semaphore, Settlement, Wait};
use tollgate_conformance::Suite;

const BYTES: Cost = Cost::new("bytes");
const LEG: &str = "memory";

/// Limits the bytes in use.
struct MemoryBudget {
    total: u64,
    free: Mutex<u64>,
    queue: WaitQueue,
}

impl MemoryBudget {
    fn new(total: u64) -> Self {
        Self {
            total,
            free: Mutex::new(total),
            queue: WaitQueue::new(LEG),
        }
    }

    fn with_free<R>(&self, change: impl FnOnce(&mut u64) -> R) -> R {
        change(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Are there `bytes` more than the waiters `ahead` want?
    fn judge(&self, bytes: u64, ahead: u64) -> Result<(), Refusal> {
        if bytes > self.total {
            return Err(Refusal::new(Reason::Oversized, LEG, Wait::Never));
        }
        match self.with_free(|free| *free >= bytes.saturating_add(ahead)) {
            true => Ok(()),
            // The instant of the next release is unknown: a waiter is notified.
            false => Err(Refusal::new(Reason::Saturated, LEG, Wait::EVENT)),
        }
    }

    /// Changes the state first, and notifies afterwards without a lock: a notification may run any user's code.
    fn give_back(&self, bytes: u64) {
        self.with_free(|free| *free += bytes);
        self.queue.notify();
    }
}

impl Limiter for MemoryBudget {
    /// How many bytes an admission holds.
    type Ticket = u64;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        // While an older head waits, only that one may take.
        self.queue.check(demand, |bytes, ahead| self.judge(bytes, ahead))?;
        let bytes = demand.units();
        match self.with_free(|free| free.checked_sub(bytes).map(|left| *free = left)) {
            Some(()) => Ok(bytes),
            None if bytes > self.total => Err(Refusal::new(Reason::Oversized, LEG, Wait::Never)),
            None => Err(Refusal::new(Reason::Saturated, LEG, Wait::EVENT)),
        }
    }

    fn cancel(&self, bytes: u64) {
        self.give_back(bytes);
    }

    fn finish(&self, bytes: u64, outcome: Outcome) {
        if outcome != Outcome::Forgotten {
            self.give_back(bytes);
        }
    }

    /// The work needed less than was estimated: the difference is free at once. What it needed beyond the estimate
    /// cannot be refused any more, and is not charged.
    fn settle(&self, bytes: &mut u64, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        let unused = bytes.saturating_sub(actual);
        *bytes -= unused;
        self.give_back(unused);
        1
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.look(demand, |bytes, ahead| self.judge(bytes, ahead))
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let state = State::Permits {
            limit: self.total,
            in_use: self.total - self.with_free(|free| *free),
            waiting: self.queue.len() as u64,
        };
        visit(Description::new(LEG).state(state));
    }
}

fn main() {
    let report = Suite::of_permits(4, |_clock| MemoryBudget::new(4_096).per(BYTES))
        .ask(Ask::one().cost(BYTES, 1_024))
        .settle(BYTES, 256)
        .check();
    println!("a memory budget keeps the laws; {report}");

    // It composes with any limiter: at most two at a time, and 4 KiB among them.
    let gate = Policy::new(MemoryBudget::new(4_096).per(BYTES).and(Semaphore::new(2)));
    let mut first = gate.try_admit(Ask::one().cost(BYTES, 4_000)).unwrap();
    let refused = gate.try_admit(Ask::one().cost(BYTES, 1_000)).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), (LEG, Reason::Saturated));
    first.settle(BYTES, 1_500).unwrap();
    assert!(gate.try_admit(Ask::one().cost(BYTES, 1_000)).is_ok());
    println!("4000 bytes settled to 1500 made room for 1000 more");
}
