//! The core: what every limiter, policy and pool is made of.
//!
//! | module | what it holds |
//! |---|---|
//! | [`limiter`] | the trait, its laws, and the verbs of every limiter |
//! | `ask` | the request of a caller, and the part of it that one leg sees |
//! | `ticket` | the memory of one admission |
//! | `permit` | the guards of an admission |
//! | `refusal`, `ready` | why a request was refused, and when it could be admitted |
//! | `decision` | the decision on a request as data, for explanations |
//! | [`status`] | the status of a limiter, leg by leg |

pub(crate) mod ask;
pub(crate) mod decision;
pub mod limiter;
pub(crate) mod permit;
pub(crate) mod ready;
pub(crate) mod refusal;
pub mod status;
pub(crate) mod ticket;
