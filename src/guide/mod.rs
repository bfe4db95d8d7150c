//! Guides, page by page: only text, and examples that run.
//!
//! | page | for users of |
//! |---|---|
//! | [`from_tokio`] | tokio's `Semaphore`: what stays, what differs, what is new |
//! | [`semaphores`] | any semaphore: which to take, and patterns built from one |
//! | [`rates`] | other rate limiters: names here, and differences |
//! | `pools` (feature `fan-out`) | other pools and fan-outs: names here, and differences |

#[doc = include_str!("from_tokio.md")]
pub mod from_tokio {}

#[doc = include_str!("semaphores.md")]
pub mod semaphores {}

#[doc = include_str!("rates.md")]
pub mod rates {}

#[cfg(feature = "fan-out")]
#[doc = include_str!("pools.md")]
pub mod pools {}
