//! A limiter of one's own: a memory budget, in bytes, that knows the eight laws.
//!
//! It is a number behind a lock. What makes it a limiter: it refuses without a trace, it gives back what it took and
//! no more, and it fires its `Notify`, outside the lock, whenever there may be room for somebody who waits. Everything
//! else (permits, waiting in line, time-outs, composition) is the core's.
//!
//! `cargo run --example own_limiter --features conformance`

use std::sync::{Mutex, PoisonError};
use tollgate::conformance::Suite;
use tollgate::sync::Notify;
use tollgate::{
    Ask, ClockReading, Cost, Demand, Limiter, LimiterExt, Outcome, Policy, ReadyAt, Reason, Refusal, Semaphore,
    Settlement, Wait,
};

const BYTES: Cost = Cost::new("bytes");
const LEG: &str = "memory";

/// So many bytes may be in use at once.
struct MemoryBudget {
    total: u64,
    free: Mutex<u64>,
    notify: Notify,
}

impl MemoryBudget {
    fn new(total: u64) -> Self {
        Self {
            total,
            free: Mutex::new(total),
            notify: Notify::new(),
        }
    }

    fn with_free<R>(&self, change: impl FnOnce(&mut u64) -> R) -> R {
        change(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state first, rings afterwards, holds no lock while ringing: a ring may run anybody's code.
    fn give_back(&self, bytes: u64) {
        self.with_free(|free| *free += bytes);
        self.notify.notify_all();
    }
}

impl Limiter for MemoryBudget {
    /// How many bytes an admission holds.
    type Ticket = u64;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<u64, Refusal<'_>> {
        let bytes = demand.units();
        if bytes > self.total {
            return Err(Refusal::new(Reason::Oversized, LEG, bytes, Wait::Never));
        }
        let taken = self.with_free(|free| free.checked_sub(bytes).map(|left| *free = left));
        // Nobody knows when memory comes back: whoever waits listens to the `Notify`.
        taken
            .map(|()| bytes)
            .ok_or_else(|| Refusal::new(Reason::Saturated, LEG, bytes, Wait::Event))
    }

    fn cancel(&self, bytes: u64, _: &ClockReading) {
        self.give_back(bytes);
    }

    fn finish(&self, bytes: u64, _: Outcome, _: &ClockReading) {
        self.give_back(bytes);
    }

    fn forget(&self, _: u64) {}

    /// The work needed less than was estimated: the difference is free at once. What it needed beyond the estimate
    /// cannot be refused any more, and is not charged.
    fn settle(&self, bytes: &mut u64, actual: Settlement<'_>) -> u32 {
        let Some(actual) = actual.actual() else { return 0 };
        let unused = bytes.saturating_sub(actual);
        *bytes -= unused;
        self.give_back(unused);
        1
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        // Listen first, look afterwards: what comes back in between is then heard.
        demand.listen(&self.notify);
        if demand.units() > self.total {
            return ReadyAt::never(LEG);
        }
        let wanted = demand.units().saturating_add(demand.ahead());
        if self.with_free(|free| *free >= wanted) {
            ReadyAt::NOW
        } else {
            ReadyAt::on_event(LEG)
        }
    }

    /// None: there is no queue in it. All callers share one `Policy`, whose queue is first come, first served. Several policies
    /// would race for what comes free. Where they have to take turns, hold the capacity in a `Semaphore` or a rate and show the
    /// queues of that, or implement `WaitQueue`.
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn tollgate::sync::WaitQueue)) {}
}

fn main() {
    let report = Suite::of_permits(4, |_clock| MemoryBudget::new(4_096).per(BYTES))
        .ask(Ask::one().cost(BYTES, 1_024))
        .settle(BYTES, 256)
        .check();
    println!("a memory budget keeps the eight laws; {report}");

    // And it composes with whatever is there: at most two at a time, and 4 KiB among them.
    let gate = Policy::new(MemoryBudget::new(4_096).per(BYTES).and(Semaphore::new(2)));
    let mut first = gate.try_admit(Ask::one().cost(BYTES, 4_000)).unwrap();
    let refused = gate.try_admit(Ask::one().cost(BYTES, 1_000)).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), (LEG, Reason::Saturated));
    first.settle(BYTES, 1_500).unwrap();
    assert!(gate.try_admit(Ask::one().cost(BYTES, 1_000)).is_ok());
    println!("4000 bytes settled to 1500 made room for 1000 more");
}
