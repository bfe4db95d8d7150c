//! Stores for the limits that several machines share: Redis, PostgreSQL, Consul, etcd and ZooKeeper, as a
//! [`Backend`](tollgate::remote::Backend) of [`tollgate::remote::Remote`].
//!
//! | store | what it needs | feature |
//! |---|---|---|
//! | `Redis` | Redis 6.2 or Valkey, one server, with sentinels or not, or a cluster | `redis`, `redis-cluster`, `redis-sentinel` |
//! | `Postgres` | PostgreSQL 13 or later, and a schema | `postgres` |
//! | `Etcd` | etcd 3.4 or later, by its JSON gateway | `etcd` |
//! | `Zookeeper` | ZooKeeper 3.6 or later | `zookeeper` |
//! | `Consul` | Consul: all permits of a limiter in one document | `consul` |
//! | `ConsulSlots` | Consul: a key for each permit | `consul` |
//!
//! All keep permits. Redis and PostgreSQL have a clock, and keep the tokens of rates and windows too. In `Consul`, `Etcd` and
//! `Zookeeper` a rate is [leased](tollgate::remote::RemoteBuilder::capacity), and windows are
//! [unsupported](tollgate::remote::RemoteError::Unsupported). `ConsulSlots` has permits alone. [`tollgate::remote`] says what is
//! promised; each store says what it adds, what it costs, and what it cannot promise.
//!
//! # Features
//! Each store has a feature, and none is on unless it is asked for.
//!
//! | feature | what it adds |
//! |---|---|
//! | `redis` | `Redis`, and with it redis 1 |
//! | `redis-cluster` | `Redis::cluster` |
//! | `redis-sentinel` | `Redis::sentinel`, and with it rand |
//! | `postgres` | `Postgres`, and with it tokio-postgres 0.7 |
//! | `postgres-tls` | `ConnectOptions::tls` for PostgreSQL, and with it tokio-postgres-rustls 0.14 |
//! | `consul` | `Consul` and `ConsulSlots`, with a client of HTTP of its own on hyper 1 |
//! | `etcd` | `Etcd`, with the same client |
//! | `zookeeper` | `Zookeeper`, and with it zookeeper-client 0.11 |
//! | `tls` | `Tls`: encrypted connections, with rustls 0.23 |
//! | `policy-file` | `ConsulPolicy` and `EtcdPolicy`: policies pushed from a key |
//! | `full` | all of them |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "postgres", feature = "redis"))]
mod answer;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod clockless;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod connect;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "consul")]
mod document;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(any(feature = "consul", feature = "etcd"))]
#[allow(dead_code, reason = "not every store needs all of it")]
mod http;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod queue;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod subscriptions;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "zookeeper")]
mod zookeeper;

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
pub use connect::ConnectOptions;
#[cfg(all(feature = "consul", feature = "policy-file"))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "consul", feature = "policy-file"))))]
pub use consul::ConsulPolicy;
#[cfg(feature = "consul")]
#[cfg_attr(docsrs, doc(cfg(feature = "consul")))]
pub use consul::{Consul, ConsulSlots};
#[cfg(feature = "etcd")]
#[cfg_attr(docsrs, doc(cfg(feature = "etcd")))]
pub use etcd::Etcd;
#[cfg(all(feature = "etcd", feature = "policy-file"))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "etcd", feature = "policy-file"))))]
pub use etcd::EtcdPolicy;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use postgres::Postgres;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use redis::Redis;
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use tls::Tls;
#[cfg(feature = "zookeeper")]
#[cfg_attr(docsrs, doc(cfg(feature = "zookeeper")))]
pub use zookeeper::Zookeeper;

/// The examples of the README compile and run.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
