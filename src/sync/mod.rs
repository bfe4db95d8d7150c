//! The concurrent parts that limiters share: wait queues, turns, bells and the line of a policy.
//!
#![doc = include_str!("README.md")]

pub(crate) mod arena;
mod places;
pub(crate) mod queue;
pub(crate) mod rules;
pub(crate) mod shim;
#[cfg_attr(not(feature = "stats"), path = "counters_off.rs")]
pub(crate) mod counters;
pub(crate) mod unwind;
pub(crate) mod wake;
pub(crate) mod watchers;

pub mod notify;
pub mod turn;
pub(crate) mod turns;
pub mod watch;
