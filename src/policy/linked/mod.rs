//! Linked limits: a limiter that applies only while something else is under load.
//!
//! | type | what it is |
//! |---|---|
//! | [`Meter`] | measures what limiters admit: rate, latency, refusals, how much is in flight |
//! | [`Metered`] | a limiter of any kind, alone, composed, keyed or pacing, seen by a meter |
//! | [`Load`] | anything that has a number and can say when it has fallen |
//! | [`Mark`] | above which load a limit applies, and below which it stops to |
//! | [`Linked`] | a limiter that applies only while a mark is exceeded |

mod limiter;
mod load;
mod mark;
mod meter;
mod recent;

pub use limiter::Linked;
pub(super) use limiter::sooner;
pub use load::Load;
pub(crate) use mark::Gate;
pub use mark::Mark;
pub use meter::{Meter, Metered, MeteredTicket};
