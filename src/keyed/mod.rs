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

mod deal;
mod fair;
mod map;
mod rate;
mod shards;
mod shared;
mod table;

pub use fair::{FairBudget, FairShare, FairTicket};
pub use map::{Keyed, KeysFull};
pub use rate::KeyedRate;
pub use shared::Shared;
