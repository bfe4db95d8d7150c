//! The limits of a service that this program calls, as the service states them.
//!
//! | type | what it is |
//! |---|---|
//! | [`Feedback`] | what one response says: refused or not, for how long, and what is left |
//! | [`RemainingQuota`] | the units that are left of one quota, and when they come back |

mod feedback;

pub use feedback::{Feedback, MAX_QUOTAS, Refill, RemainingQuota};
