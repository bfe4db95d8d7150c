//! What the crates around this one use beyond its public interface. No part of that interface: any version may change it.
//!
//! | name | user |
//! |---|---|
//! | [`Mutex`], [`atomic`] | tollgate-resilience: the state of its limiters, as the models of loom and shuttle see it |
//! | [`both`], [`Rest`] | tollgate-observe: an end of work is counted, also when the limiter inside panics; tollgate-resilience: likewise for laws and listeners that panic |
//! | [`ask`] | tollgate-resilience: a probe comes back, also when a classifier panics during a panic |

pub use crate::sync::shim::{Mutex, atomic};
pub use crate::sync::unwind::{Rest, ask, both};
