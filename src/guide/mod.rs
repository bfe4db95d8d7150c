//! The guide: only text, and examples that run.
//!
//! | page | what it answers |
//! |---|---|
//! | [`choosing`] | which limiter to take: a decision tree, sizes, costs |
//! | [`tutorials`] | a limited axum service, a polite crawler, a pool with a database cap, limits over Redis, a proxy of a language model |
//! | [`cookbook`] | one task each, ready to copy |
//! | [`peers`] | the same task by other crates, side by side, and when to stay with them |
//! | [`from_tokio`] | moving from tokio's `Semaphore`: what stays, what differs, what is new |
//! | [`semaphores`] | patterns built from a semaphore |
//! | [`rates`] | moving from other rate limiters: names here, and differences |
//! | `pools` (feature `fan-out`) | moving from other pools and fan-outs: names here, and differences |
//! | [`operations`] | what to watch, alerts, sizing, changing a limit, failure modes of each store |
//! | [`faq`] | questions, and the errors that people meet |
//! | [`glossary`] | the words |

#[doc = include_str!("choosing.md")]
pub mod choosing {}

// Its examples need packages around this one: those of `tollgate-examples` run them.
#[cfg_attr(not(doctest), doc = include_str!("tutorials.md"))]
pub mod tutorials {}

#[doc = include_str!("cookbook.md")]
pub mod cookbook {}

// Its examples need the peers: those of `tollgate-compare` run them.
#[cfg_attr(not(doctest), doc = include_str!("peers.md"))]
pub mod peers {}

#[doc = include_str!("from_tokio.md")]
pub mod from_tokio {}

#[doc = include_str!("semaphores.md")]
pub mod semaphores {}

#[doc = include_str!("rates.md")]
pub mod rates {}

#[cfg(feature = "fan-out")]
#[doc = include_str!("pools.md")]
pub mod pools {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("faq.md")]
pub mod faq {}

#[doc = include_str!("glossary.md")]
pub mod glossary {}
