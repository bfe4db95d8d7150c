//! Composition: what a leg counts, several legs all-or-nothing, the boxed door, and the policy that waits.
//!
//! | type | what it is |
//! |---|---|
//! | [`Policy`] | any limiter with a clock and a bounded FIFO line: the only thing that waits for a rate |
//! | [`Lane`] | a second line in front of the same limiter, for those who shall not stand behind everybody |
//! | [`PerCall`], [`Per`] | a leg that counts calls, or a named cost |
//! | [`Named`] | a leg under a name, which its refusals carry |
//! | [`And`] | two limiters as one, statically |
//! | [`Legs`] | any number of limiters as one, boxed |
//! | [`BoxLimiter`] | any limiter behind one type |
//! | [`Shadow`] | a limiter that counts what it would refuse, and refuses nothing |
//! | [`Linked`](linked::Linked) | a limiter that applies only while something else is under load |
//! | [`PolicySpec`](spec::PolicySpec) | a policy as data |
//! | [`source`] | where versions of a policy come from: a file, this program, your own store |
//! | `file` | policies in files, TOML or JSON; feature `policy-file` |
//! | [`LiveLegs`] | legs that are changed while they run: `Policy<LiveLegs>` is a policy that can be reloaded |

mod admit;
mod and;
mod bounds;
mod boxed;
mod builder;
mod explain;
#[cfg(feature = "policy-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "policy-file")))]
pub mod file;
mod lane;
mod leg;
mod legs;
mod line;
pub mod linked;
pub mod live;
#[allow(clippy::module_inception)]
mod policy;
pub(crate) mod pump;
mod reload;
mod run;
mod shadow;
pub mod source;
pub mod spec;
mod whole;

pub use and::And;
pub use boxed::BoxLimiter;
pub use builder::{PolicyBuilder, PolicyError};
pub use lane::Lane;
pub use leg::{AtOnce, Named, Per, PerCall, WaitForRaise};
pub use legs::Legs;
pub use live::LiveLegs;
pub use policy::Policy;
pub use run::{Run, RunError};
pub use shadow::{Shadow, ShadowStats};

/// The leg name of refusals by the line itself.
pub(crate) const LINE: &str = "line";
