//! Adaptive limits: a resizable limiter, and a law that sets its limit from latency and drops. A [`Semaphore`] has a limit of
//! permits, a [`TokenBucket`] has a limit of units per period: a [rate](Adaptive#rates) that finds itself.
//!
//! | law | input | prefer it when |
//! |---|---|---|
//! | [`Aimd`] | drops and time-outs | the resource refuses by itself |
//! | [`Cubic`] | drops, and the time since the latest | a rate meets a quota that is not stated |
//! | [`Vegas`] | latency beside the shortest seen | latency is steady, and a queue should stay short |
//! | [`Gradient`] | latency beside the least, which is measured now and then | short dips of the limit are bearable |
//! | [`Gradient2`] | latency beside its long average | latency varies, and bursts should be tolerated |
//! | [`Trend`] | latency beside its recent average, and the effect of concurrency | latency drifts, and is not compared with long ago |
//!
//! `docs/adaptive.md` compares those for latency on the same plant.
//!
//! [`Semaphore`]: tollgate::Semaphore
//! [`TokenBucket`]: tollgate::TokenBucket

mod aimd;
mod builder;
mod cubic;
mod error;
mod gradient;
mod gradient2;
mod law;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod laws;
mod limiter;
mod resizable;
mod trend;
mod tuner;
mod vegas;

pub use aimd::Aimd;
pub use builder::AdaptiveBuilder;
pub use cubic::Cubic;
pub use error::AdaptiveError;
pub use gradient::Gradient;
pub use gradient2::Gradient2;
pub use law::{LimitLaw, Sample};
pub use limiter::{Adaptive, AdaptiveStats};
pub use resizable::Resizable;
pub use trend::Trend;
pub use vegas::Vegas;
