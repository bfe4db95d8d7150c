//! Pure state machines: no atomics, no clock, no waiting.

pub(crate) mod axis;
pub(crate) mod window;
