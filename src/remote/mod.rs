//! Limits that several machines share: the permits, tokens and windows lie in a store, and each process spends what it has
//! been given.
//!
//! A [`Remote`] is a [`Limiter`](crate::Limiter) like any other, alone or as a leg of a policy. What it admits it has been
//! given by the store, through a [`Driver`]: a task that talks to the store, so that nothing else has to wait for it. Dropping
//! a permit does no I/O.
//!
//! | part | what it is |
//! |---|---|
//! | [`Remote::permits`], [`Remote::rate`], [`Remote::window`] | how one is made |
//! | [`Backend`] | the store as it is seen from here: [`Memory`], the reference, or `Redis` (feature `redis`), `Consul` and `ConsulSlots` (feature `consul`), `Zookeeper` (feature `zookeeper`), or `Etcd` (feature `etcd`) |
//! | [`Prefetch`] | several units taken at a time, and spent at the speed of a local limiter |
//! | [`OnUnavailable`] | what happens while the store cannot be reached |
//! | [`Fence`], [`FenceGuard`] | a token that grows with each grant, and what a resource checks it with |
//!
//! # Leases
//! Each process keeps a *session* at the store, and renews it. What the session holds is lost when the store has not heard of
//! it for the [time to live](RemoteBuilder::ttl), and goes to others. The process knows before the store does: its lease ends
//! a time to live *after the last renewal was sent*, less a hundredth, whether it reaches the store or not. From then on
//! `is_lost` of a [permit](RemotePermit) is true, and `lost` ends. A holder that neither looks nor can be
//! stopped, such as a process that was suspended in the middle of a write, may still act on a permit that it has lost: that is
//! what the fence is for.
//!
//! # Time
//! The store goes by its own clock; that of a process only measures how long ago it sent something. Clocks may differ by
//! anything, and run apart by one in a hundred.
//!
//! Consul, ZooKeeper and etcd tell nobody the time. What comes back to a rate or window there is counted by what each process has
//! seen itself: that of so many tokens each was taken *before* an instant of its own, from which on it counts the time. It
//! compares no instant with those of others, so that no clock has to be set right, and none that is set wrong brings a token too
//! many: in no span of time is there more than the burst and what comes in it. Only their speed counts: where a clock is fast by
//! one in a hundred, tokens come faster by as much. What is lost by that is the time in which nobody looked on: a process that
//! comes new finds a bucket as it was when somebody last took from it. In Consul it counts from then on: that is one filling of the
//! bucket, or one window, at most, and only where none of those is left who took before. But many that live for an instant each
//! never see anything come back: there one should live long, or take [`Prefetch`]. ZooKeeper and etcd keep a clock of their own, the
//! one in the times of its changes, the other in what has passed of a lease, by which a process that comes new counts what came
//! before. What is said by one leader is compared with nothing that another one says. etcd's cannot be set; if somebody sets that of
//! ZooKeeper's leader forward, those who come new are given what comes in as much time, one filling or window at most.

mod acquire;
mod backend;
mod builder;
mod client;
mod config;
#[cfg(feature = "consul")]
mod consul;
mod driver;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod fence;
#[cfg(any(feature = "consul", feature = "etcd"))]
#[allow(dead_code, reason = "not every store needs all of it")]
mod http;
mod key;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod kv;
mod limiter;
mod lost;
mod memory;
mod model;
mod permit;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod queue;
mod random;
#[cfg(feature = "redis")]
mod redis;
mod settings;
mod shared;
mod stats;
#[cfg(feature = "remote-tls")]
mod tls;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use acquire::Acquire;
pub use backend::{Backend, Grant, Notification, Request, Rule, Session, StoreError, SyncReply, SyncRequest, Usage};
pub use builder::RemoteBuilder;
pub use client::RemoteTicket;
pub use config::{MAX_UNITS, OnUnavailable, Prefetch};
#[cfg(all(feature = "consul", feature = "policy-file"))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "consul", feature = "policy-file"))))]
pub use consul::ConsulPolicy;
#[cfg(feature = "consul")]
#[cfg_attr(docsrs, doc(cfg(feature = "consul")))]
pub use consul::{Consul, ConsulOptions, ConsulSlots};
pub use driver::Driver;
pub use error::RemoteError;
#[cfg(all(feature = "etcd", feature = "policy-file"))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "etcd", feature = "policy-file"))))]
pub use etcd::EtcdPolicy;
#[cfg(feature = "etcd")]
#[cfg_attr(docsrs, doc(cfg(feature = "etcd")))]
pub use etcd::{Etcd, EtcdOptions};
pub use fence::{Fence, FenceGuard, Stale};
pub use key::Key;
pub use limiter::Remote;
pub use lost::Lost;
pub use memory::Memory;
pub use permit::{OwnedRemotePermit, RemotePermit};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use redis::{Redis, RedisOptions};
pub use stats::RemoteStats;
#[cfg(feature = "remote-tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "remote-tls")))]
pub use tls::Tls;
#[cfg(feature = "zookeeper")]
#[cfg_attr(docsrs, doc(cfg(feature = "zookeeper")))]
pub use zookeeper::{Zookeeper, ZookeeperOptions};
