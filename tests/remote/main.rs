//! Permits across machines, tried against real servers:
//! `ci/with-redis ci/with-consul ci/with-zookeeper ci/with-etcd cargo test --all-features --test remote`.

#[path = "../rig/mod.rs"]
mod rig;

#[cfg(feature = "remote-tls")]
mod certificates;
mod change;
mod clock;
#[cfg(feature = "redis-cluster")]
mod cluster;
#[cfg(feature = "redis-cluster")]
mod cluster_failover;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "consul")]
mod consul_acl;
#[cfg(feature = "consul")]
mod consul_faults;
#[cfg(feature = "consul")]
mod consul_policy;
#[cfg(feature = "consul")]
mod consul_steps;
#[cfg(feature = "consul")]
mod consul_store;
#[cfg(all(feature = "consul", feature = "remote-tls"))]
mod consul_tls;
#[cfg(feature = "consul")]
mod consul_trips;
mod demoted;
#[cfg(feature = "remote-tls")]
mod encrypted;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
mod etcd_corners;
#[cfg(feature = "etcd")]
mod etcd_faults;
#[cfg(feature = "etcd")]
mod etcd_rates;
#[cfg(feature = "etcd")]
mod etcd_secured;
#[cfg(feature = "etcd")]
mod etcd_steps;
mod faults;
mod forged;
mod forged_spending;
mod forgetful;
mod gate;
mod kinds;
mod lawful;
mod leaders;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod lined;
mod minute;
mod proxied;
mod quorum;
mod rate_steps;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod rates_shared;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
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
#[cfg(feature = "zookeeper")]
mod zookeeper;
#[cfg(feature = "zookeeper")]
mod zookeeper_corners;
#[cfg(feature = "zookeeper")]
mod zookeeper_faults;
#[cfg(feature = "zookeeper")]
mod zookeeper_secured;
#[cfg(feature = "zookeeper")]
mod zookeeper_steps;
