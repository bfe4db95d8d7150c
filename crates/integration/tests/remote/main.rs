//! Permits across machines, tried against real servers:
//! `ci/with-redis ci/with-consul ci/with-zookeeper ci/with-etcd cargo test --all-features --test remote`.

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
mod consul_steps;
mod consul_store;
mod consul_tls;
mod consul_trips;
mod demoted;
mod encrypted;
mod etcd;
mod etcd_corners;
mod etcd_faults;
mod etcd_rates;
mod etcd_secured;
mod etcd_steps;
mod faults;
mod forged;
mod forged_spending;
mod forgetful;
mod forked;
mod gate;
mod kinds;
mod lawful;
mod leaders;
mod lined;
mod minute;
mod proxied;
mod quorum;
mod rate_steps;
mod rates_shared;
mod rates_swarm;
mod redis;
mod rights;
mod served;
mod speaker;
mod steps;
mod store;
mod takeover;
mod trips;
mod window_steps;
mod zookeeper;
mod zookeeper_corners;
mod zookeeper_faults;
mod zookeeper_secured;
mod zookeeper_steps;
