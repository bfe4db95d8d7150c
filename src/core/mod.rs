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
//! | `and`, `legs`, `all_or_nothing` | several limiters as one |
//! | `first_of` | several limiters of which one admits |
//! | `boxed` | any limiter behind one type |
//! | `delegate` | the macro by which adapters pass methods on |
//! | `leg`, `shadow`, [`conditional`] | adapters: what a leg counts, its name, how it is waited for, when it applies |
//! | `turns` | the queue of limiters whose units cannot be handed over |
//! | [`status`] | the status of a limiter, leg by leg |

pub(crate) mod all_or_nothing;
pub(crate) mod and;
pub(crate) mod ask;
pub(crate) mod boxed;
pub mod conditional;
pub(crate) mod decision;
pub(crate) mod delegate;
pub(crate) mod first_of;
pub(crate) mod leg;
pub(crate) mod legs;
pub mod limiter;
pub(crate) mod permit;
pub(crate) mod ready;
pub(crate) mod refusal;
pub(crate) mod shadow;
pub mod status;
pub(crate) mod ticket;
pub(crate) mod turns;
