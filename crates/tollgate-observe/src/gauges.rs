//! Gauges of all legs, set on request.

use metrics::{Gauge, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use std::fmt;
use tollgate::status::{BreakerState, State};
use tollgate::{Description, Limiter};

/// At most this number of legs of one limiter has gauges.
const MOST_LEGS: usize = 64;

/// The gauges of all legs of a limiter. [`record`](Self::record) sets them: before each scrape, or once a second.
///
/// ```
/// # use tollgate_observe::Gauges;
/// # use tollgate::status::State;
/// # use tollgate::{Limiter, Semaphore};
/// let gate = Semaphore::new(4);
/// let _held = gate.try_acquire();
/// // Before each scrape: `tollgate.permits.in_use` is 1.
/// Gauges::new("api").record(&gate);
/// gate.describe(&mut |leg| assert!(matches!(leg.state, State::Permits { in_use: 1, .. })));
/// ```
pub struct Gauges {
    limiter: &'static str,
    legs: Vec<Leg>,
    /// The number of records so far.
    round: u64,
}

/// The gauges of one leg.
struct Leg {
    name: Box<str>,
    kind: &'static str,
    gauges: Vec<(&'static str, Gauge)>,
    /// The address of the limiter that last showed it.
    of: usize,
    /// The round in which it was last seen.
    round: u64,
    /// Its gauges may be non-zero.
    present: bool,
}

impl Gauges {
    /// Gauges under the name `limiter`, a constant of the program. Keep them: they remember the legs.
    pub fn new(limiter: &'static str) -> Self {
        Self {
            limiter,
            legs: Vec::new(),
            round: 0,
        }
    }

    /// Sets the gauges of each leg of `limiter`, under the name of the leg: never call it for a limiter that was made for a key.
    /// Legs with the same name and kind share their gauges. The gauges of a leg that is gone, or no longer limits, become zero.
    ///
    /// Only the first 64 legs have gauges, since a recorder never forgets one.
    pub fn record(&mut self, limiter: &(impl Limiter + ?Sized)) {
        let of = std::ptr::from_ref(limiter).cast::<()>() as usize;
        // A limiter or a gauge that panics leaves the legs that were not shown as they were: the next record looks at them.
        self.round += 1;
        limiter.describe(&mut |shown| self.set(&shown, of));
        let round = self.round;
        for leg in self
            .legs
            .iter_mut()
            .filter(|leg| leg.of == of && leg.present && leg.round != round)
        {
            leg.gauges.iter().for_each(|(_, gauge)| gauge.set(0.0));
            leg.present = false;
        }
    }

    fn set(&mut self, shown: &Description<'_>, of: usize) {
        let same = |leg: &Leg| *leg.name == *shown.leg && leg.kind == shown.kind;
        let at = match self.legs.iter().position(same) {
            Some(at) => at,
            None if self.legs.len() == MOST_LEGS => return,
            None => {
                self.legs.push(Leg {
                    name: shown.leg.into(),
                    kind: shown.kind,
                    gauges: Vec::new(),
                    of,
                    round: 0,
                    present: false,
                });
                self.legs.len() - 1
            }
        };
        let leg = &mut self.legs[at];
        (leg.of, leg.round, leg.present) = (of, self.round, true);
        let limiter = self.limiter;
        let mut set = |metric, value| leg.set(limiter, metric, value);
        match shown.state {
            State::Permits { limit, in_use, waiting } => {
                set(super::PERMITS_LIMIT, limit as f64);
                set(super::PERMITS_IN_USE, in_use as f64);
                set(super::WAITERS, waiting as f64);
                if shown.kind == "adaptive" {
                    set(super::ADAPTIVE_LIMIT, limit as f64);
                }
            }
            State::Rate {
                limit,
                window,
                available,
                ..
            } => {
                set(super::RATE_LIMIT, limit as f64);
                set(super::RATE_AVAILABLE, available as f64);
                if shown.kind == "adaptive" {
                    set(super::ADAPTIVE_LIMIT, limit as f64 / window.as_secs_f64());
                }
            }
            State::Budget { limit, available } => {
                set(super::BUDGET_LIMIT, limit as f64);
                set(super::BUDGET_AVAILABLE, available as f64);
            }
            State::Breaker { state, .. } => set(super::BREAKER_STATE, code(state)),
            State::Shed { likelihood } => set(super::SHED_LIKELIHOOD, likelihood),
            State::Lease {
                units,
                requests,
                recalls,
                lapses,
            } => {
                set(super::LEASE_UNITS, units as f64);
                let totals = [
                    (super::LEASE_REQUESTS, requests),
                    (super::LEASE_RECALLS, recalls),
                    (super::LEASE_LAPSES, lapses),
                ];
                for (metric, total) in totals {
                    let leg = shown.leg.to_owned();
                    counter!(metric, "limiter" => limiter, "leg" => leg, "kind" => shown.kind).absolute(total);
                }
            }
            State::Queue { waiting } => set(super::QUEUE_DEPTH, waiting as f64),
            // Its numbers are unknown: opaque legs, and what a later version adds.
            _ => {}
        }
    }
}

impl Leg {
    fn set(&mut self, limiter: &'static str, metric: &'static str, value: f64) {
        let known = self.gauges.iter().find(|(name, _)| *name == metric);
        if let Some((_, gauge)) = known {
            return gauge.set(value);
        }
        let gauge = gauge!(metric, "limiter" => limiter, "leg" => self.name.to_string(), "kind" => self.kind);
        gauge.set(value);
        self.gauges.push((metric, gauge));
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gauges")
            .field("limiter", &self.limiter)
            .field("legs", &self.legs.len())
            .finish()
    }
}

/// 0 for closed, 1 for half-open, 2 for open. A forced or disabled circuit counts by its effect on callers.
fn code(state: BreakerState) -> f64 {
    match state {
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open | BreakerState::ForcedOpen => 2.0,
        // Closed, disabled or metrics only: callers pass.
        _ => 0.0,
    }
}

/// Registers the unit and the description of each metric. Call it once, after the recorder has been installed.
pub fn describe() {
    describe_counter!(super::ACQUIRE_TOTAL, Unit::Count, "admissions asked for, by outcome");
    describe_counter!(super::REFUSALS_TOTAL, Unit::Count, "refusals, by the leg that refused");
    describe_histogram!(super::WAIT_TIME, Unit::Seconds, "time from asking to admission");
    describe_histogram!(
        super::HELD_TIME,
        Unit::Seconds,
        "time from admission to the end of the work"
    );
    describe_gauge!(super::PERMITS_LIMIT, Unit::Count, "the limit of permits");
    describe_gauge!(super::PERMITS_IN_USE, Unit::Count, "permits held");
    describe_gauge!(super::WAITERS, Unit::Count, "waiters for a permit");
    describe_gauge!(
        super::ADAPTIVE_LIMIT,
        Unit::Count,
        "the limit that an adaptive limit has found: permits, or units per second"
    );
    describe_gauge!(super::RATE_LIMIT, Unit::Count, "a bucket's burst, or a window's limit");
    describe_gauge!(super::RATE_AVAILABLE, Unit::Count, "units available now");
    describe_gauge!(super::BUDGET_LIMIT, Unit::Count, "the limit of a budget");
    describe_gauge!(super::BUDGET_AVAILABLE, Unit::Count, "units left of a budget");
    describe_gauge!(
        super::SHED_LIKELIHOOD,
        Unit::Count,
        "probability that the next request is refused, 0 to 1"
    );
    describe_gauge!(
        super::LEASE_UNITS,
        Unit::Count,
        "units of a shared limit that this process holds: permits, or parts of 2^20 of a rate"
    );
    describe_counter!(
        super::LEASE_REQUESTS,
        Unit::Count,
        "requests for units sent to the store"
    );
    describe_counter!(
        super::LEASE_RECALLS,
        Unit::Count,
        "returns of units because other processes waited"
    );
    describe_counter!(
        super::LEASE_LAPSES,
        Unit::Count,
        "leases that lapsed while they had units"
    );
    describe_gauge!(super::BREAKER_STATE, Unit::Count, "0 closed, 1 half-open, 2 open");
    describe_gauge!(super::QUEUE_DEPTH, Unit::Count, "waiters in a policy's queue");
}
