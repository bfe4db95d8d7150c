//! The lease of a session: all its keys go with it.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The lease of one session. Syncs without changes renew it, and others beside their changes when it is due.
pub(crate) struct Lease {
    pub(super) id: i64,
    /// How long it lasts, as the store has rounded it.
    pub(super) lasts: Duration,
    /// How long it was asked to last.
    ttl: Duration,
    state: Mutex<State>,
}

/// The limit of a key, as it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) units: u64,
    /// The lease of its key; zero without one.
    pub(super) lease: i64,
    /// The revision that wrote it; zero when it is gone.
    pub(super) revision: i64,
}

struct State {
    /// When the last confirmed renewal was sent.
    renewed: Instant,
    over: bool,
    /// The revision that changed the session's own key last. Each change names the one before it, so that a late one does
    /// nothing.
    changed_by: i64,
    /// The number of changes.
    changes: u64,
    limit: Option<Limit>,
    /// The lease of a limit that is known to outlive this one.
    outlives: Option<i64>,
    /// An unused lease for a limit, and when it was granted.
    spare: Option<(i64, Instant)>,
}

impl Lease {
    pub(super) fn new(id: i64, lasts: Duration, ttl: Duration, sent: Instant) -> Self {
        let state = State {
            renewed: sent,
            over: false,
            changed_by: 0,
            changes: 0,
            limit: None,
            outlives: None,
            spare: None,
        };
        Self {
            id,
            lasts,
            ttl,
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

    /// True when it must be renewed, beside other changes.
    pub(super) fn is_due(&self) -> bool {
        self.age(Instant::now()) >= self.ttl / 4
    }

    /// Records the limit of the key, if there is one.
    pub(super) fn note_limit(&self, limit: Option<Limit>) {
        let mut state = self.state.lock();
        if limit.is_some_and(|limit| state.spare.is_some_and(|(spare, _)| limit.lease == spare)) {
            state.spare = None;
        }
        let known = &mut state.limit;
        match (limit, known) {
            // A watch may report what a read has shown before.
            (Some(limit), Some(known)) if limit.revision < known.revision => {}
            (Some(limit), known) => *known = Some(limit),
            // Its value is remembered.
            (None, Some(known)) => (known.lease, known.revision) = (0, 0),
            (None, None) => {}
        }
    }

    pub(super) fn limit(&self) -> Option<Limit> {
        self.state.lock().limit
    }

    /// Records a lease of a limit that outlives this one.
    pub(super) fn is_outlived_by(&self, lease: i64) {
        self.state.lock().outlives = Some(lease);
    }

    /// An unused lease for a limit, left by a refused change: so repeated refusals take one lease. It lasts three times as long
    /// as this one, and has most of that left.
    pub(super) fn spare(&self) -> Option<i64> {
        let spare = self.state.lock().spare;
        spare
            .filter(|(_, since)| since.elapsed() < self.lasts)
            .map(|(id, _)| id)
    }

    /// Records a lease for a limit.
    pub(super) fn has_spare(&self, lease: i64, since: Instant) {
        let mut state = self.state.lock();
        (state.outlives, state.spare) = (Some(lease), Some((lease, since)));
    }

    /// True when the limit is known to be there as long as this lease is renewed.
    pub(super) fn has_limit(&self) -> bool {
        let state = self.state.lock();
        let there = state.limit.filter(|limit| limit.revision > 0);
        there.is_some_and(|limit| limit.lease == 0 || state.outlives == Some(limit.lease))
    }

    pub(super) fn end(&self) {
        self.state.lock().over = true;
    }

    /// True once the store has ended it, or must have.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.over || state.renewed.elapsed() >= self.lasts
    }

    /// True once the store must have ended it, even if a new leader has prolonged it.
    pub(super) fn is_gone(&self) -> bool {
        self.state.lock().renewed.elapsed() >= self.lasts * 2
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
