//! How things are done, page by page. There is no code here, only text, and examples that run.
//!
//! | page | for whom |
//! |---|---|
//! | [`from_tokio`] | those who use tokio's `Semaphore`: what stays, what differs, what is new |
//! | [`semaphores`] | which semaphore to take, and what can be built from one |

#[doc = include_str!("from_tokio.md")]
pub mod from_tokio {}

#[doc = include_str!("semaphores.md")]
pub mod semaphores {}
