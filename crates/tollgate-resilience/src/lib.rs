//! Limiters that learn from how the admitted work ended, and what to do when it failed. Each is a leg of a [`Policy`](tollgate::Policy)
//! of [`tollgate`], or stands alone.
//!
//! | you want to | use |
//! |---|---|
//! | stop all callers of an API when it refuses one, and keep to its remaining quota | [`upstream::Upstream`] |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc = include_str!("cookbook.md")]
pub mod cookbook {}
pub mod upstream;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
