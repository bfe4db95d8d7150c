//! Composition: what a leg counts, several legs all-or-nothing, the boxed door, and the policy that waits.
//!
//! | type | what it is |
//! |---|---|
//! | [`Policy`] | any limiter with a clock and a bounded FIFO line: the only thing that waits for a rate |
//! | [`PerCall`], [`Per`] | a leg that counts calls, or a named cost |
//! | [`Named`] | a leg under a name, which its refusals carry |
//! | [`And`] | two limiters as one, statically |
//! | [`Legs`] | any number of limiters as one, boxed |
//! | [`BoxLimiter`] | any limiter behind one type |

mod admit;
mod and;
mod boxed;
mod builder;
mod leg;
mod legs;
mod line;
#[allow(clippy::module_inception)]
mod policy;
pub(crate) mod pump;

pub use and::And;
pub use boxed::BoxLimiter;
pub use builder::{PolicyBuilder, PolicyError};
pub use leg::{Named, Per, PerCall};
pub use legs::Legs;
pub use policy::Policy;

/// The leg name of refusals by the line itself.
const LINE: &str = "line";
