//! The state of a key as a document, for stores of plain values.

mod observer;
#[cfg(feature = "consul")]
mod permits;
mod rates;
mod store_clock;
mod transaction;

pub(crate) use observer::Observer;
#[cfg(feature = "consul")]
pub(crate) use permits::{PermitsDocument, is_near, sync_at_version, wants_news};
pub(crate) use rates::RateDocument;
pub(crate) use store_clock::{Clock, Time};
pub(crate) use transaction::{DocumentChange, Mismatch, Transaction, fresh_in, transact};
