//! Limits by key.

mod fair;
mod idle;
mod map;
mod rate;

#[path = "../../../fuzz/targets/keyed.rs"]
mod program;
