//! How things are done, page by page. There is no code here, only text, and examples that run.
//!
//! | page | for whom |
//! |---|---|
//! | [`from_tokio`] | those who use tokio's `Semaphore`: what stays, what differs, what is new |
//! | [`semaphores`] | which semaphore to take, and what can be built from one |
//! | [`rates`] | those who use another rate limiter: what it is called here, what differs |
//! | `pools` (feature `fan-out`) | the same for pools and fan-out |

#[doc = include_str!("from_tokio.md")]
pub mod from_tokio {}

#[doc = include_str!("semaphores.md")]
pub mod semaphores {}

#[doc = include_str!("rates.md")]
pub mod rates {}

#[cfg(feature = "fan-out")]
#[doc = include_str!("pools.md")]
pub mod pools {}
