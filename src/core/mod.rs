//! The core: what every limiter, policy and pool is made of.
//!
//! | module | what it holds |
//! |---|---|
//! | [`limiter`] | the trait, its laws, and the verbs of every limiter |
//! | `ask` | the request of a caller, and the part of it that one leg sees |
//! | `ticket`, `permit` | the memory of one admission, and its guard |
//! | `refusal` | why a request was refused, and when it could be admitted |
//! | `leg` | a limiter with a name, a cost that it counts, and the condition under which it applies |
//! | `tuple`, `legs` | several limiters as one: known when the program is built, or when it runs |
//! | `first_of` | several limiters of which one admits |
//! | [`conditional`] | conditions, and the loads that they depend on |
//! | `decision` | the decision on a request as data, for explanations |
//! | [`status`] | what each leg is, and how it stands |

pub(crate) mod ask;
pub mod conditional;
pub(crate) mod decision;
pub(crate) mod first_of;
pub(crate) mod leg;
pub(crate) mod legs;
pub mod limiter;
pub(crate) mod permit;
pub(crate) mod refusal;
pub mod status;
pub(crate) mod ticket;
pub(crate) mod tuple;
