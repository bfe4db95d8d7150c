//! Leases: what lies at the store under one goes with it.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The lease of one session. It is renewed by the steps that have nothing else to say.
pub(crate) struct Lease {
    pub(super) id: i64,
    /// How long it lasts, as the store has rounded it.
    pub(super) lasts: Duration,
    state: Mutex<State>,
}

struct State {
    /// When the last renewal that was answered was sent.
    renewed: Instant,
    over: bool,
    /// The revision by which the session's own key was last changed: every change names the one before it, so that one which
    /// arrives late does nothing.
    changed_by: i64,
    /// How many changes there were.
    changes: u64,
}

impl Lease {
    pub(super) fn new(id: i64, lasts: Duration, sent: Instant) -> Self {
        let state = State {
            renewed: sent,
            over: false,
            changed_by: 0,
            changes: 0,
        };
        Self {
            id,
            lasts,
            state: Mutex::new(state),
        }
    }

    pub(super) fn renewed(&self, sent: Instant) {
        let mut state = self.state.lock();
        state.renewed = state.renewed.max(sent);
    }

    pub(super) fn age(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.state.lock().renewed)
    }

    pub(super) fn end(&self) {
        self.state.lock().over = true;
    }

    /// True once the store has said so, or must have ended it.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.over || state.renewed.elapsed() >= self.lasts
    }

    /// The revision that the next change names, and its own number.
    pub(super) fn next_change(&self) -> (i64, u64) {
        let mut state = self.state.lock();
        state.changes += 1;
        (state.changed_by, state.changes)
    }

    pub(super) fn note_change(&self, revision: i64) {
        let mut state = self.state.lock();
        state.changed_by = state.changed_by.max(revision);
    }
}
