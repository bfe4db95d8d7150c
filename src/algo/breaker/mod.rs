//! The circuit breaker without clocks and atomics: what a result says, how a window is judged, what state follows.

mod history;
mod judge;
mod machine;
mod trial;

pub(crate) use history::{BATCHES, Chart};
pub(crate) use judge::{Alarm, Counts, Judge, Mark};
pub(crate) use machine::{Answer, Machine, State};
pub(crate) use trial::Verdict;
