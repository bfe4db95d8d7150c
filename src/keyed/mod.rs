//! One limiter per key: per tenant, per route, per address.
//!
//! | type | what it is |
//! |---|---|
//! | [`Keyed`] | a limiter or a policy for each key, in a bounded map that never gives a limited key a new limiter |
//! | [`KeyedRate`] | one quota for all keys, a few dozen bytes each, and nothing but `try_acquire` |
//! | [`FairBudget`] | one rate that the keys share, max-min fairly; [`FairShare`] is one key's part of it |
//! | [`Shared`] | a leg that the limiters of several keys share: a global budget |
//!
//! A [`Keyed`] is a map, not a limiter: its values are limiters.
//!
//! # Keys from outside
//! Addresses and names come from outside. An attacker who chooses keys of one hash makes a map slow for every caller.
//! So each map hashes by a secret of its own, of 128 bits from the operating system, and never reveals a hash or an
//! order that depends on one. The hash is foldhash, which is fast, and resists keys that were chosen without the
//! secret. Foldhash is no cryptographic hash. If an attacker may time single lookups of one process long and finely enough to
//! solve for the secret, take [`Keyed::siphash`], [`KeyedRate::siphash`], for some 8 ns more per lookup.

mod fair;
mod hashing;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod laws;
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
