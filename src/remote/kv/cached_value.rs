//! What a process knows of a key.

use super::clock::StoreClock;
use crate::remote::backend::{Session, StoreError};
use crate::remote::model::{Observer, RateDocument};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What is known of a key. One step at a time is taken there.
pub(super) struct CachedValue<A> {
    pub(super) state: tokio::sync::Mutex<State<A>>,
    /// The clients of this process who are there, and in which of their sessions.
    pub(super) clients: Mutex<BTreeMap<u64, u64>>,
    /// It is due earlier than before.
    pub(super) earlier: Notify,
    /// When the store last answered a step.
    pub(super) answered: Mutex<Option<Instant>>,
}

pub(super) struct State<A> {
    /// What is there, as far as is known.
    pub(super) known: Option<(RateDocument, A)>,
    /// Nobody else was seen to change it of late: it is not read again.
    pub(super) is_alone: bool,
    /// How many attempts in a row were overtaken.
    pub(super) attempts: u32,
    pub(super) observer: Option<Observer>,
    /// What the store's own clock says.
    pub(super) store_clock: StoreClock,
    /// When what was written last is as good as none.
    pub(super) due: Option<Instant>,
    /// Somebody looks after that.
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

    /// A client is there.
    pub(super) fn enter(&self, session: Session) {
        self.clients.lock().insert(session.client, session.number);
    }

    /// It has gone, unless it is there again in a later session.
    pub(super) fn leave(&self, session: Session) {
        let mut clients = self.clients.lock();
        if clients.get(&session.client) == Some(&session.number) {
            clients.remove(&session.client);
        }
    }

    /// The store has answered.
    pub(super) fn note_answer(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// Why a step that began then did not get its turn: whoever had it may have waited for a store that says nothing.
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
