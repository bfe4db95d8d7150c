//! One limiter per key: per tenant, per route, per address.
//!
//! | type | what it is |
//! |---|---|
//! | [`Keyed`] | a map from keys to limiters or policies, bounded, which never hands a limited key a fresh limiter |
//! | [`KeyedRate`] | one quota for all keys, a few dozen bytes each, and nothing but `try_acquire` |
//! | [`FairBudget`] | one rate that the keys share, max-min fairly; [`FairShare`] is one key's part of it |
//! | [`Shared`] | a leg that the limiters of several keys have in common: a global budget |
//!
//! A [`Keyed`] is a map, not a limiter: what it hands out is one.
//!
//! # Keys that somebody chooses
//! Addresses and names come from outside, and whoever can choose keys that have one hash makes a map slow for everybody. So
//! each map hashes by a secret of its own, of 128 bits that the operating system draws, and tells nobody a hash or an order
//! that depends on one. The hash is foldhash, which is fast, and stands up to keys that were chosen without knowing the
//! secret. It is no cryptographic hash: where you fear somebody who can time single lookups of one process long and finely
//! enough to solve for the secret, take [`Keyed::siphash`], [`KeyedRate::siphash`], for some 8 ns more a lookup.

mod fair;
mod hashing;
mod map;
mod max_min;
mod rate;
mod shards;
mod shared;
mod table;

pub use fair::{FairBudget, FairShare, FairTicket};
pub use map::{Keyed, KeysFull};
pub use rate::KeyedRate;
pub use shared::Shared;
