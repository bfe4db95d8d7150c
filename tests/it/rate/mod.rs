//! Rates, and what they are charged.

mod alike;
mod any_window;
mod any_window_rounds;
mod bucket_published;
mod bucket_verbs;
#[cfg(feature = "calendar")]
mod calendar_window;
mod conservation;
mod corners;
mod epochs;
mod fixed_window;
#[cfg(feature = "governor")]
mod governed;
mod governor_oracle;
mod hostile;
mod leaky_bucket;
mod oversized;
mod published;
mod quota;
mod refunds;
mod replay;
mod settled;
mod token_bucket;
mod trace;
mod wakes;
mod warmup;
mod window;
mod windows;

use tollgate::time::ClockReading;
use tollgate::{Ask, Cost, Demand, Limiter, ManualClock, Settlement};

const UNITS: Cost = Cost::new("units");

/// A reservation of `units`, as of now.
fn take<L: Limiter>(limiter: &L, clock: &ManualClock, units: u64) -> L::Ticket {
    let (ask, reading) = (Ask::one().cost(UNITS, units), ClockReading::at(clock, clock.now()));
    let demand = Demand::new(&ask, &reading).per(UNITS).unwrap();
    limiter.try_reserve(&demand).unwrap()
}

/// The reservation has cost `actual` units.
fn settle<L: Limiter>(limiter: &L, ticket: &mut L::Ticket, actual: u64) {
    let settlement = Settlement::new(UNITS, actual).per(UNITS);
    assert_eq!(limiter.settle(ticket, &settlement), 1);
}
