//! Limits by key.

mod fair;
mod idle;
mod map;
mod rate;
