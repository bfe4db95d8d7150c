//! Shedding: who is turned away when not all can be served.
//!
//! | type | what it is |
//! |---|---|
//! | [`Partitions`] | one limit shared by classes: by guaranteed parts, lent parts, or levels of priority |
//! | [`Throttler`] | a client turns its own requests away, the more of them the more are refused anyway |
//! | [`RetryBudget`] | retries are a fixed part of the requests, so that they cannot pile up |

mod error;
mod partitions;
mod retry_budget;
mod throttler;

pub use error::ShedError;
pub use partitions::{Class, Partitions};
pub use retry_budget::RetryBudget;
pub use throttler::Throttler;
