//! Composition: what a leg counts, several legs all-or-nothing, the boxed door, and the policy that waits.

mod and;
mod boxed;
mod leg;

pub use and::And;
pub use boxed::BoxLimiter;
pub use leg::{Named, Per, PerCall};
