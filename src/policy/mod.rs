//! Composition: what a leg counts, several legs all-or-nothing, boxed limiters, and the policy that waits.
//!
//! | type | purpose |
//! |---|---|
//! | [`Policy`] | any limiter with a clock and a bounded queue: the only one that waits for a rate |
//! | [`PolicyBuilder`], [`Order`], [`Eviction`] | how a policy is built, and in which order its waiters are served |
//! | [`Bypass`] | the limiter behind a second queue, for callers that shall not wait behind all others |
//! | [`Leg`] | a limiter under a name, with a price, in shadow mode, or under a condition |
//! | tuples, [`Legs`] | limiters as one: all or nothing |
//! | [`FirstOf`] | several limiters of which one admits: the first that does |
//! | [`Partitions`] | one limit shared by classes: by guaranteed parts, lent parts, or levels of priority |
//! | [`conditional`] | loads on which a leg depends |
//! | [`explain`] | decisions explained leg by leg |
//!
//! Policies in files, and their reload, are in the crate `tollgate-config`.

mod builder;
mod bypass;
mod driver;
pub mod explain;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod laws;
mod order;
mod partitions;
#[allow(clippy::module_inception)]
mod policy;
mod queue;
mod run;
mod timer;
mod waits;

pub use crate::core::conditional;
pub use crate::core::first_of::{FirstOf, SourceTicket};
pub use crate::core::leg::{Leg, ShadowStats};
pub use crate::core::legs::{BoxLimiter, Legs};
pub use builder::{PolicyBuilder, PolicyError};
pub use bypass::Bypass;
pub use order::{Eviction, Order, OrderError};
pub use partitions::{Class, Partitions, PartitionsError};
pub use policy::Policy;
pub use run::{Run, RunError};
pub use waits::WaitStats;

/// The leg name of refusals by the queue itself.
pub(crate) const QUEUE: &str = "queue";
