//! Limiters that learn from how the admitted work ended, and what to do when it failed. Each is a leg of a [`Policy`](tollgate::Policy)
//! of [`tollgate`], or stands alone.
//!
//! | you want to | use |
//! |---|---|
//! | let a limit find itself from latency | [`Adaptive`] over a [`Semaphore`](tollgate::Semaphore) |
//! | let a rate find itself from refusals | [`Adaptive`] over a [`TokenBucket`](tollgate::TokenBucket) |
//! | the same in a policy file | [`policy`] |
//! | stop all callers of an API when it refuses one, and keep to its remaining quota | [`upstream::Upstream`] |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod adaptive;
#[doc = include_str!("cookbook.md")]
pub mod cookbook {}
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
#[path = "../../../src/laws.rs"]
mod laws;
pub mod policy;
pub mod upstream;

#[doc(inline)]
pub use adaptive::Adaptive;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
