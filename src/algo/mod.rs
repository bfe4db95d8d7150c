//! Pure state machines: no atomics, no clock, no waiting.

pub(crate) mod axis;
#[cfg(feature = "channel")]
pub(crate) mod ledger;
pub(crate) mod window;
