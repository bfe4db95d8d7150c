//! Retries: work behind a policy that is repeated while that helps, and not while it does harm.
//!
//! | type | what it is |
//! |---|---|
//! | [`Backoff`] | the schedule of delays: exponential, with decorrelated jitter |
//! | [`Retry`] | repeats work: one admission per attempt, within a number of attempts, a deadline and a budget |
//! | [`Repeat`] | whether an attempt may be repeated, and when: what the user's classifier says |
//!
//! A resource that fails everything is asked once for each request, and once more for each retry that the
//! [`RetryBudget`](crate::shed::RetryBudget) allows. With a ratio of 0.1 that is 1.1 times the requests, where three plain
//! attempts are 3 times the requests, at the worst moment.

mod backoff;
mod driver;

pub use backoff::{Backoff, BackoffError, Delays};
pub use driver::{Repeat, Retry, RetryError};
