//! What a rate counts: the part of a limiter that knows no waiters.

use super::inherit::Inherit;
use crate::core::ticket::Ticket;
use crate::sync::shim::Mutex;
use crate::time::{Clock, Instant};
use std::time::Duration;

/// When a rate admits a demand, once those before it have been admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    Now,
    At(Instant),
    /// No instant is known.
    Event,
    /// Nothing comes back by itself.
    Spent,
    /// No instant can, under the settings in force.
    Never,
}

/// A limit that counts nothing.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// How a meter stands at an instant, if nothing is taken meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The most at once: a bucket's burst, or a window's limit.
    pub limit: u64,
    /// The time in which that many come back.
    pub window: Duration,
    /// Units that are there.
    pub free: u64,
    /// Units that are owed, rounded up.
    pub debt: u64,
    /// When it is as good as new; `None` if that is never.
    pub fresh_at: Option<Instant>,
    /// All comes back at once.
    pub is_window: bool,
    /// A setting is another than the one that it was made with.
    pub is_changed: bool,
}

/// Counts units in time: the part of a [`Rate`](super::Rate) that tells one rate from another. No other crate can implement it.
pub trait Meter: Send + Sync {
    /// The memory of one admission, by which its units come back.
    type Ticket: Ticket;
    /// The name of its leg.
    const LEG: &'static str;

    /// Takes `n` at `now`, or says when they will be there.
    fn take(&self, n: u64, now: Instant) -> Result<Self::Ticket, Forecast>;
    /// When `n` units are there behind `ahead` others.
    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast;
    /// Corrects a charge, to zero when it is cancelled; true if units came back.
    fn settle(&self, ticket: &mut Self::Ticket, actual: u64, clock: &Clock) -> bool;
    /// Takes `n`, in debt if need be.
    fn force(&self, n: u64, clock: &Clock);
    /// Starts anew.
    fn clear(&self, clock: &Clock);
    /// How it stands at `now`.
    fn standing(&self, now: Instant) -> Standing;
    /// True once after an instant that was told has come earlier: the waiters look again.
    fn has_come_early(&self) -> bool {
        false
    }
}

/// A pure state machine that counts units, behind a lock in [`Locked`]. Instants are ticks; the caller first lets time pass, by
/// [`advance`](Machine::advance).
pub trait Machine: Send {
    const LEG: &'static str;

    /// Lets time pass until `now`. An earlier instant than the latest changes nothing.
    fn advance(&mut self, now: u64);
    /// The latest instant so far.
    fn now(&self) -> u64;
    /// The most that may be taken now.
    fn free(&self) -> u64;
    /// Takes `n`, whether they are there or not, and returns a mark by which they are found again.
    fn take(&mut self, n: u64) -> u64;
    /// Corrects a charge, and returns the new one, which is less than `actual` if that is more than can be counted.
    fn settle(&mut self, mark: &mut u64, charged: u64, actual: u64) -> u64;
    /// The first instant at which `n` fit behind `ahead` others; `None` if no instant does.
    fn ready(&self, n: u64, ahead: u64) -> Option<u64>;
    /// Starts anew. Nothing that was taken before comes back any more.
    fn clear(&mut self);
    fn standing(&self) -> Standing;
    /// Set if an instant that was told may come earlier.
    const MAY_COME_EARLY: bool = false;
    /// True once after that has happened.
    fn take_early(&mut self) -> bool {
        false
    }
}

/// A machine whose limit can be changed.
pub trait Limited: Machine {
    fn limit(&mut self) -> &mut u64;
    /// Gives all that counts its share of the limit `new`. Nothing that was taken before comes back any more.
    fn rescale(&mut self, old: u64, new: u64);

    fn set_limit(&mut self, limit: u64, inherit: Inherit) {
        let old = std::mem::replace(self.limit(), limit);
        match inherit {
            _ if limit == UNLIMITED => self.clear(),
            Inherit::Reset => self.clear(),
            Inherit::Proportional if old != UNLIMITED => self.rescale(old, limit),
            _ => {}
        }
    }
}

/// A machine behind a lock. The lock is held for the few steps of the machine, and never while other code runs.
#[derive(Debug)]
pub struct Locked<M> {
    state: Mutex<Guarded<M>>,
}

#[derive(Debug)]
struct Guarded<M> {
    machine: M,
    /// A setting is another than the one that it was made with.
    is_changed: bool,
}

impl<M: Machine> Locked<M> {
    pub(super) fn new(machine: M) -> Self {
        let state = Guarded {
            machine,
            is_changed: false,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Reads the machine as it is.
    pub(super) fn look<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.state.lock().machine)
    }

    /// Reads or moves the machine, as of `now`.
    #[inline(always)] // row: window admit
    pub(super) fn at<R>(&self, now: Instant, run: impl FnOnce(&mut M) -> R) -> R {
        let mut state = self.state.lock();
        state.machine.advance(now.ticks());
        run(&mut state.machine)
    }

    /// Changes a setting as of `now`.
    pub(super) fn change<R>(&self, now: Instant, change: impl FnOnce(&mut M) -> R) -> R {
        let mut state = self.state.lock();
        state.machine.advance(now.ticks());
        state.is_changed = true;
        change(&mut state.machine)
    }
}

fn forecast<M: Machine>(machine: &M, n: u64, ahead: u64) -> Forecast {
    match machine.ready(n, ahead) {
        // A demand for zero units waits for those ahead.
        None if n == 0 => Forecast::Event,
        None => Forecast::Never,
        // Nothing is waited for that is there, also by a stale reading of the clock.
        Some(at) if at <= machine.now() => Forecast::Now,
        Some(at) => Forecast::At(Instant::from_ticks(at)),
    }
}

impl<M: Machine> Meter for Locked<M> {
    /// The units of one admission, and the mark of the machine by which they are found again.
    type Ticket = (u64, u64);
    const LEG: &'static str = M::LEG;

    #[inline(always)] // row: window admit
    fn take(&self, n: u64, now: Instant) -> Result<Self::Ticket, Forecast> {
        self.at(now, |machine| match n == 0 || n <= machine.free() {
            true => Ok((n, machine.take(n))),
            false => Err(forecast(machine, n, 0)),
        })
    }

    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        self.at(now, |machine| forecast(machine, n, ahead))
    }

    fn settle(&self, (units, mark): &mut Self::Ticket, actual: u64, clock: &Clock) -> bool {
        let charged = *units;
        if actual != charged {
            *units = self.at(clock.now(), |machine| machine.settle(mark, charged, actual));
        }
        actual < charged
    }

    fn force(&self, n: u64, clock: &Clock) {
        self.at(clock.now(), |machine| machine.take(n));
    }

    fn clear(&self, clock: &Clock) {
        self.at(clock.now(), Machine::clear);
    }

    fn standing(&self, now: Instant) -> Standing {
        let mut state = self.state.lock();
        state.machine.advance(now.ticks());
        Standing {
            is_changed: state.is_changed,
            ..state.machine.standing()
        }
    }

    fn has_come_early(&self) -> bool {
        M::MAY_COME_EARLY && self.state.lock().machine.take_early()
    }
}

/// The length of `duration` in ticks of `clock`, at least one.
pub(super) fn ticks(duration: Duration, clock: &Clock) -> u64 {
    clock.ticks_of(duration).max(1)
}
