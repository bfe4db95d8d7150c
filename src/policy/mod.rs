//! Composition: what a leg counts, several legs all-or-nothing, boxed limiters, and the policy that waits.
//!
//! | type | purpose |
//! |---|---|
//! | [`Policy`] | any limiter with a clock and a bounded FIFO queue: the only one that waits for a rate |
//! | [`Bypass`] | the limiter behind a second queue, for callers that shall not wait behind all others |
//! | [`PerCall`], [`Per`] | a leg that counts calls, or a named cost |
//! | [`Named`] | a leg under a name, which its refusals carry |
//! | [`And`] | two limiters as one, statically |
//! | [`Legs`] | any number of limiters as one, boxed |
//! | [`FirstOf`] | several limiters of which one admits: the first that does |
//! | [`Partitions`] | one limit shared by classes: by guaranteed parts, lent parts, or levels of priority |
//! | [`BoxLimiter`] | any limiter behind one type |
//! | [`Shadow`] | a limiter that counts what it would refuse, and refuses nothing |
//! | [`Conditional`](conditional::Conditional) | a limiter that applies only while something else is under load |
//! | [`PolicySpec`](spec::PolicySpec) | a policy as data |
//! | [`PolicySet`] | the policies of a service: named ones, and [a policy for each key](KeyedPolicies), by its tier; of a [`PolicySetSpec`](spec::PolicySetSpec) |
//! | [`explain`] | decisions explained leg by leg, and the best order of the legs |
//! | [`source`] | sources of versions of a policy: a file, this program, your own store |
//! | `file` | policies in files, one or those of a service, TOML or JSON, with legs of kinds of your own; feature `policy-file` |
//! | [`ReloadableLegs`] | legs that change while they run: `Policy<ReloadableLegs>` can be reloaded |

mod builder;
mod bypass;
mod dispatcher;
mod early_rejection;
pub mod explain;
#[cfg(feature = "policy-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "policy-file")))]
pub mod file;
mod kind;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod laws;
mod partitions;
#[allow(clippy::module_inception)]
mod policy;
mod queue;
pub mod reload;
mod run;
mod set;
mod settings;
pub mod source;
pub mod spec;
mod waiter;

pub use crate::core::and::And;
pub use crate::core::boxed::BoxLimiter;
pub use crate::core::conditional;
pub use crate::core::first_of::FirstOf;
pub use crate::core::leg::{AtOnce, Named, Per, PerCall, WaitForRaise};
pub use crate::core::legs::Legs;
pub use crate::core::shadow::{Shadow, ShadowStats};
pub use builder::{PolicyBuilder, PolicyError};
pub use bypass::Bypass;
pub use partitions::{Class, Partitions, PartitionsError};
pub use policy::Policy;
pub use reload::ReloadableLegs;
pub use run::{Run, RunError};
pub use set::{KeyedPolicies, PolicySet, SetChanges, UnknownPolicy};

/// The leg name of refusals by the queue itself.
pub(crate) const QUEUE: &str = "queue";
