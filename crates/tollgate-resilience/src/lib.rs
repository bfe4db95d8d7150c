//! Keeps a failing or overloaded service from being called too often: circuit breakers, limits that find themselves, retries within a
//! budget, and the limits that an upstream states. Each is a leg of a [`Policy`](tollgate::Policy) of [`tollgate`], or stands alone.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Reason, Semaphore};
//! use tollgate_resilience::{CircuitBreaker, OpenTime};
//!
//! let clock = ManualClock::new();
//! let breaker = CircuitBreaker::builder()
//!     .consecutive_failures(3)
//!     .open_for(OpenTime::fixed(Duration::from_secs(30)))
//!     .on(&clock)
//!     .build()?;
//! let policy = Policy::builder().limit(breaker).limit(Semaphore::new(8)).on(&clock).build()?;
//!
//! for _ in 0..3 {
//!     policy.try_admit(1)?.finish(Outcome::Failure);
//! }
//! let refused = policy.try_admit(1).unwrap_err();
//! assert_eq!((refused.reason(), refused.leg()), (Reason::CircuitOpen, "breaker"));
//! assert_eq!(refused.retry_after(), Some(Duration::from_secs(30)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | you want to | use |
//! |---|---|
//! | stop calling a service that fails | [`CircuitBreaker`] |
//! | let a limit find itself from latency | [`Adaptive`] over a [`Semaphore`](tollgate::Semaphore) |
//! | let a rate find itself from refusals | [`Adaptive`] over a [`TokenBucket`](tollgate::TokenBucket) |
//! | stop all callers of an API when it refuses one, and keep to its remaining quota | [`upstream::Upstream`] |
//! | repeat what has failed, within a budget and a deadline | [`retry::Retry`] |
//! | not make overload worse | [`shed::Throttler`], [`shed::RetryBudget`] |
//! | keep breakers and adaptive limits in a policy file | the feature `resilience` of the crate `tollgate-config` |
//!
//! The [`cookbook`] has a recipe for each. A limiter learns from [`Permit::finish`](tollgate::Permit::finish); a dropped permit says nothing.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod adaptive;
pub mod breaker;
#[doc = include_str!("cookbook.md")]
pub mod cookbook {}
pub mod retry;
mod rng;
pub mod shed;
mod sync;
pub mod upstream;

#[doc(inline)]
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
use tollgate_conformance::inputs as laws;

pub use adaptive::Adaptive;
#[doc(inline)]
pub use breaker::{
    BreakerBuilder, BreakerError, BreakerEvent, BreakerMetrics, BreakerState, BreakerTicket, CircuitBreaker, OpenTime,
    Trip,
};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
