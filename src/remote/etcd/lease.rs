//! Leases: what lies at the store under one goes with it.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The lease of one session. It is renewed by the steps that have nothing else to say, and beside the others when it is due.
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
    /// The lease under which it lies; none when it lies there for ever.
    pub(super) lease: i64,
    /// The revision by which it was put; none when it is not there any more.
    pub(super) revision: i64,
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
    limit: Option<Limit>,
    /// The lease of a limit that is known to outlive this one.
    outlives: Option<i64>,
    /// One that was granted for a limit, and when, and has not been seen to have one.
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

    /// True when it is to be renewed, whatever else there is to say.
    pub(super) fn is_due(&self) -> bool {
        self.age(Instant::now()) >= self.ttl / 4
    }

    /// Takes note of the limit of the key; of none, when there is none.
    pub(super) fn note_limit(&self, limit: Option<Limit>) {
        let mut state = self.state.lock();
        if limit.is_some_and(|limit| state.spare.is_some_and(|(spare, _)| limit.lease == spare)) {
            state.spare = None;
        }
        let known = &mut state.limit;
        match (limit, known) {
            // What a watch tells may have been seen before.
            (Some(limit), Some(known)) if limit.revision < known.revision => {}
            (Some(limit), known) => *known = Some(limit),
            // It is remembered what it was.
            (None, Some(known)) => (known.lease, known.revision) = (0, 0),
            (None, None) => {}
        }
    }

    pub(super) fn limit(&self) -> Option<Limit> {
        self.state.lock().limit
    }

    /// Takes note of a lease of a limit that outlives this one.
    pub(super) fn is_outlived_by(&self, lease: i64) {
        self.state.lock().outlives = Some(lease);
    }

    /// A lease for a limit that was granted, and could not be used: a change that is refused again and again takes one. It lasts
    /// three times as long as this one, and has most of that left.
    pub(super) fn spare(&self) -> Option<i64> {
        let spare = self.state.lock().spare;
        spare
            .filter(|(_, since)| since.elapsed() < self.lasts)
            .map(|(id, _)| id)
    }

    /// Takes note of a lease for a limit.
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

    /// True once the store has said so, or must have ended it.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.over || state.renewed.elapsed() >= self.lasts
    }

    /// True once the store must have ended it, also when a new leader has prolonged it.
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
