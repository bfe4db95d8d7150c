//! Limits that find themselves: a resizable limiter, and a law that sets its limit from what its work has met.
//!
//! | law | what it goes by | prefer it when |
//! |---|---|---|
//! | [`Aimd`] | drops and time-outs | the resource says no by itself |
//! | [`Vegas`] | latency beside the shortest seen | latency is steady, and a queue should stay short |
//! | [`Gradient2`] | latency beside its long average | latency varies, and bursts should be borne |
//!
//! `docs/adaptive.md` has the three on the same plant.

mod builder;
mod error;
mod limiter;
mod resizable;
mod tuner;

pub use crate::algo::adaptive::{Aimd, Gradient2, LimitLaw, Sample, Vegas};
pub use builder::AdaptiveBuilder;
pub use error::AdaptiveError;
pub use limiter::Adaptive;
pub use resizable::Resizable;
