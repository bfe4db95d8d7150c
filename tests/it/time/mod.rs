//! The clock and its timers.

mod clock;
