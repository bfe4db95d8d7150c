//! Permits across machines, tried against real servers: `ci/with-redis cargo test --all-features --test remote`.

#[path = "../rig/mod.rs"]
mod rig;

mod etc_run;
mod etc_steps;
mod etcd;
mod faults;
mod forged;
mod gate;
mod lawful;
mod lined;
mod proxied;
mod rate_steps;
mod redis;
mod served;
mod speaker;
mod steps;
mod store;
mod trips;
mod zoo;
mod zoo_run;
mod zookeeper;
