//! What a desk keeps books of: the session, wishes, and those who wait.

use super::ticket::RemoteTicket;
use crate::core::refusal::Reason;
use crate::remote::backend::Session;
use crate::time::Instant;
use std::task::Waker;

/// The session at the store.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) id: Session,
    pub(super) seq: u64,
    /// The last step that was answered; zero before.
    pub(super) heard: u64,
    /// When what it holds is lost, unless it is renewed before.
    pub(super) deadline: Option<Instant>,
    pub(super) renew_at: Instant,
    pub(super) returned: u64,
    pub(super) returned_told: u64,
    pub(super) charged: u64,
    pub(super) charged_told: u64,
    /// The token of the last grant.
    pub(super) seen: u64,
}

/// A wish that is with the store, or on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wished {
    pub(super) need: u64,
    pub(super) want: u64,
    pub(super) queue: bool,
    /// The store has answered it.
    pub(super) told: bool,
    /// How often it has been said.
    pub(super) said: u32,
    /// Who alone is to get what it gives.
    pub(super) owner: Option<u64>,
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) need: u64,
    pub(super) kind: Kind,
    pub(super) waker: Option<Waker>,
    pub(super) wish: Option<u64>,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) enum Kind {
    /// For its turn.
    Turn,
    /// The same, on behalf of a policy: its waker is called once.
    Claim,
    /// For the store's answer, whatever it is.
    Answer,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) enum End {
    Granted(RemoteTicket),
    Refused(Reason),
    /// It was granted, and lost again before anybody took it.
    Lapsed,
}

/// A wait that has ended, until its owner looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) need: u64,
    pub(super) kind: Kind,
}

/// How often things have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct Tally {
    pub(in crate::remote) steps: u64,
    pub(in crate::remote) failures: u64,
    pub(in crate::remote) granted: u64,
    pub(in crate::remote) losses: u64,
    pub(in crate::remote) expired: u64,
    pub(in crate::remote) uncounted: u64,
}
