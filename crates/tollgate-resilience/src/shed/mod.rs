//! Shedding: which requests are refused under overload.
//!
//! | type | what it is |
//! |---|---|
//! | [`Throttler`] | a client drops its own requests, the more of them the more the server refuses |
//! | [`RetryBudget`] | retries are a fixed part of the requests, so that they cannot pile up |

mod drop_probability;
mod error;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod laws;
mod retry_budget;
mod throttler;

pub use error::ShedError;
pub use retry_budget::RetryBudget;
pub use throttler::Throttler;
