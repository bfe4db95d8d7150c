//! The state that a process keeps of a key.

use super::clock::StoreClock;
use crate::document::{Observer, RateDocument};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate::remote::{Session, StoreError};

/// The cached value of a key. One sync at a time runs there.
pub(super) struct CachedValue<A> {
    pub(super) state: tokio::sync::Mutex<State<A>>,
    /// The present clients of this process, with the numbers of their sessions.
    pub(super) clients: Mutex<BTreeMap<u64, u64>>,
    /// Signals that it is due earlier than before.
    pub(super) earlier: Notify,
    /// When the store last answered a sync.
    pub(super) answered: Mutex<Option<Instant>>,
}

pub(super) struct State<A> {
    /// The value at the store, as far as it is known.
    pub(super) known: Option<(RateDocument, A)>,
    /// No other process changed it of late: it is not read again.
    pub(super) is_alone: bool,
    /// The number of attempts in a row that were overtaken.
    pub(super) attempts: u32,
    pub(super) observer: Option<Observer>,
    /// The store's own clock.
    pub(super) store_clock: StoreClock,
    /// When the last write may be deleted.
    pub(super) due: Option<Instant>,
    /// A collector task runs for it.
    pub(super) has_collector: bool,
    pub(super) ttl: Duration,
}

impl<A> CachedValue<A> {
    pub(super) fn new(ttl: Duration) -> Self {
        let state = State {
            known: None,
            is_alone: true,
            attempts: 0,
            observer: None,
            store_clock: StoreClock::default(),
            due: None,
            has_collector: false,
            ttl,
        };
        Self {
            state: tokio::sync::Mutex::new(state),
            clients: Mutex::default(),
            earlier: Notify::new(),
            answered: Mutex::default(),
        }
    }

    /// A client comes.
    pub(super) fn enter(&self, session: Session) {
        self.clients.lock().insert(session.client, session.number);
    }

    /// A client leaves, unless it is there again in a later session.
    pub(super) fn leave(&self, session: Session) {
        let mut clients = self.clients.lock();
        if clients.get(&session.client) == Some(&session.number) {
            clients.remove(&session.client);
        }
    }

    /// Records an answer of the store.
    pub(super) fn note_answer(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// Why a sync that began then was not reached: the one before it may have waited for a silent store.
    pub(super) fn late(&self, begun: Instant) -> StoreError {
        let after = begun.elapsed();
        if self.answered.lock().is_some_and(|answered| answered >= begun) {
            StoreError::Busy { after }
        } else {
            StoreError::TimedOut { after }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.lock().is_empty()
    }
}
