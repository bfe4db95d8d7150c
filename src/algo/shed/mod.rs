//! Who is turned away under overload: shares of a limit, odds, and when to come back. No clock, no atomics.

mod appointments;
mod odds;
mod reserve;
mod shares;
mod throughput;

pub(crate) use appointments::{Appointments, Booked};
pub(crate) use odds::{rejection_rate, throttle_rate};
pub(crate) use reserve::Reserve;
pub(crate) use shares::{Rule, Shares};
pub(crate) use throughput::Throughput;
