//! Permits across machines, tried against real servers:
//! `ci/with-stores cargo test --all-features --test remote`.

#[path = "../rig/mod.rs"]
mod rig;

mod certificates;
mod change;
mod clock;
mod cluster;
mod cluster_failover;
mod consul;
mod consul_acl;
mod consul_faults;
mod consul_policy;
mod consul_store;
mod consul_sync;
mod consul_tls;
mod consul_trips;
mod demoted;
mod encrypted;
mod etcd;
mod etcd_corners;
mod etcd_faults;
mod etcd_rates;
mod etcd_secured;
mod etcd_sync;
mod faults;
mod forged;
mod forged_spending;
mod forgetful;
mod forked;
mod gate;
mod kinds;
mod lawful;
mod leaders;
mod minute;
mod proxied;
mod queued;
mod quorum;
mod rate_sync;
mod rates_shared;
mod rates_swarm;
mod raw_session;
mod redis;
mod rights;
mod served;
mod store;
mod sync;
mod takeover;
mod trips;
mod window_sync;
mod zookeeper;
mod zookeeper_corners;
mod zookeeper_faults;
mod zookeeper_secured;
mod zookeeper_sync;
