//! Limits that several machines share: permits, tokens and windows are kept in a store, and each process spends its grants.
//!
//! A [`Remote`] is a [`Limiter`](crate::Limiter) like any other, alone or as a leg of a policy. It admits from what the store
//! has granted, through a [`Driver`]: a task that talks to the store, so that no other code has to wait for it. Dropping a
//! permit does no I/O.
//!
//! | part | what it is |
//! |---|---|
//! | [`Remote::permits`], [`Remote::rate`], [`Remote::window`] | the constructors |
//! | [`Remote::keyed`] | rates, windows and permits for each of many keys, such as tenants |
//! | [`Remote::levels`] | keys of several levels, such as organisations and users, of which one step decides on some together |
//! | [`Backend`] | a store: [`Memory`], the reference, or one of the crate `tollgate-stores`, such as `Redis` |
//! | [`model`] | the counting, for authors of stores |
//! | [`RemoteBuilder::capacity`] | a part of a rate leased to each process, and spent at the speed of a local limiter |
//! | [`Prefetch`] | several units fetched at a time, and spent at the speed of a local limiter |
//! | [`OnUnavailable`] | the behaviour while the store cannot be reached |
//! | [`Fence`], [`FenceGuard`] | a token that grows with each grant, and the check of a resource |
//!
//! # Leases
//! Each process keeps a *session* at the store, and renews it. The units of a session are lost, and go to others, when the
//! store has not heard of it for the [time to live](RemoteBuilder::ttl). The process knows before the store does: its lease
//! ends a time to live *after the last renewal was sent*, less 1 %, whether it reaches the store or not. From then on `is_lost`
//! of a [permit](RemotePermit) is true, and `lost` ends. A holder that neither checks nor can be stopped, such as a process
//! that was suspended in the middle of a write, may still act on a lost permit. The fence is for that case.
//!
//! # Time
//! The store uses its own clock; that of a process only measures how long ago it sent something. Clocks may differ by any
//! amount, and drift apart by 1 %.
//!
//! Some stores do not report the time, and keep permits alone. A rate is [leased](RemoteBuilder::capacity) there:
//! each process fills its part by its own clock, which does not have to be set right. Windows are
//! [unsupported](RemoteError::Unsupported).

mod acquire;
mod backend;
mod builder;
mod client;
mod config;
mod driver;
mod error;
mod fence;
mod key;
mod keyed;
mod lent;
mod limiter;
mod lost;
mod memory;
pub mod model;
mod permit;
mod random;
mod settings;
mod shared;
mod stats;
mod step;

pub use acquire::Acquire;
pub use backend::{Backend, Grant, Notification, Request, Rule, Session, StoreError, SyncReply, SyncRequest, Usage};
pub use builder::{OneKey, RemoteBuilder, RemoteKind};
pub use client::RemoteTicket;
pub use config::{MAX_UNITS, OnUnavailable, Prefetch};
pub use driver::Driver;
pub use error::RemoteError;
pub use fence::{Fence, FenceGuard, Stale};
pub use key::Key;
pub use keyed::{
    KeyedLimits, ManyKeys, RemoteKey, RemoteKeyPermit, RemoteKeyTicket, RemoteKeyUsage, RemoteKeyed,
    RemoteKeyedBuilder, RemoteKeyedStats, RemoteLeg,
};
pub use limiter::Remote;
pub use lost::Lost;
pub use memory::Memory;
pub use permit::{OwnedRemotePermit, RemotePermit};
pub use stats::RemoteStats;
pub use step::{Correction, KeyLease, KeyLeg, LegUnits, LegUsage, Reserved, Step, StepRefusal, StepReply};
