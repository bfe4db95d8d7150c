//! Exhaustive models of the protocols. Build with `RUSTFLAGS="--cfg tollgate_loom"`.
#![cfg(tollgate_loom)]
mod bucket;
mod compose;
mod line;
mod semaphore;
