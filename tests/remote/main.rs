//! Permits across machines, tried against real servers: `ci/with-redis cargo test --all-features --test remote`.

#[path = "../rig/mod.rs"]
mod rig;

mod forged;
mod lawful;
mod proxied;
mod redis;
mod served;
