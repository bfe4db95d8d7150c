//! The keys of Consul, as the library's unit tests have them, and the models over them.
#![allow(dead_code, reason = "a model needs a part of each source")]

#[path = "../../../../tollgate-stores/src/consul/kv.rs"]
pub(crate) mod kv;

/// What the sources import.
mod api {
    pub(super) use super::kv::{Entry, MOST_OPS, Op};
}

#[path = "../../../../tollgate-stores/src/consul/tests.rs"]
mod keys;

mod holders;
mod slots;
mod world;
