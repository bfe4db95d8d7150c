//! Who is turned away under overload: shares of a limit, and odds. No clock, no atomics.

mod odds;
mod shares;

pub(crate) use odds::{rejection_rate, throttle_rate};
pub(crate) use shares::{Rule, Shares};
