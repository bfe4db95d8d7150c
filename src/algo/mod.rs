//! Pure state machines: no atomics, no clock, no waiting.

pub(crate) mod adaptive;
pub(crate) mod ahead;
pub(crate) mod axis;
pub(crate) mod breaker;
pub(crate) mod chance;
pub(crate) mod drain;
pub(crate) mod fixed;
pub(crate) mod leaky;
#[cfg(feature = "channel")]
pub(crate) mod ledger;
pub(crate) mod load;
pub(crate) mod log;
pub(crate) mod lone;
pub(crate) mod meter;
pub(crate) mod shed;
pub(crate) mod warmup;
pub(crate) mod window;
