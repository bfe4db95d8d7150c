//! The clock and its timers.

mod clock;
mod coarse_clock;
