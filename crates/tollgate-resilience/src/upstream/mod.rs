//! The client side of limits: follows what a service that this program calls says about its own.
//!
//! | type | what it is |
//! |---|---|
//! | [`Upstream`] | the limiter: one refusal pauses all callers, and remaining quotas are not exceeded |
//! | [`UpstreamBuilder`] | its settings: the rate after a pause, the ramp, the cap |
//! | [`Call`] | a call that has begun, whose response is observed |
//! | [`Feedback`] | what one response says: refused or not, for how long, and what is left |
//! | [`RemainingQuota`] | the units that are left of one quota, and when they come back |

mod feedback;
mod limiter;
mod machine;

pub use feedback::{Feedback, MAX_QUOTAS, Refill, RemainingQuota};
pub use limiter::{Call, Upstream, UpstreamBuilder, UpstreamError, UpstreamStats, UpstreamTicket};
