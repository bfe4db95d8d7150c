//! What this process holds of the permit legs of a key, and who waits for them.
//!
//! The store has a lease for each client and key. Each step at a key with permit legs reports what is held, renews the lease, and keeps
//! the place of the first waiter in the store's queue. The lease counts from the first sending of a step, less 1 %: it ends here
//! before it ends at the store.
//!
//! Invariants: `held` has no zeros. A lease that has ended has another number than the next one, so its permits give nothing back.

use super::legs::Legs;
use crate::remote::step::{KeyLease, KeyLeg, LegUnits};
use crate::time::{Clock, Instant};
use futures::future::AbortHandle;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Held {
    /// Of the last step: those of a renewal.
    pub(super) legs: Arc<Legs>,
    /// The number of the lease, which its permits have.
    pub(super) lease: u64,
    /// Units by the name of the leg.
    units: Vec<(Box<str>, u64)>,
    /// When all of it is lost; nothing while nothing is held.
    deadline: Option<Instant>,
    /// When the lease, or the place, is to be renewed.
    renew_at: Option<Instant>,
    /// When the first waiter asks again.
    pub(super) retry_at: Option<Instant>,
    /// The waits for permits, in order.
    pub(super) queue: VecDeque<u64>,
    /// The store has refused the first of them, which comes again at `retry_at` or when it is notified.
    pub(super) is_refused: bool,
    /// The store keeps a place for the first of them.
    pub(super) has_place: bool,
    /// Ends the wait for its notifications, while there is one.
    pub(super) listening: Option<AbortHandle>,
    /// When the driver looks at the key.
    pub(super) timer: Option<Instant>,
    /// A step is to be sent, without another reason.
    pub(super) is_due: bool,
}

impl Held {
    pub(super) fn new(legs: &Arc<Legs>, lease: u64) -> Self {
        Self {
            legs: Arc::clone(legs),
            lease,
            units: Vec::new(),
            deadline: None,
            renew_at: None,
            retry_at: None,
            queue: VecDeque::new(),
            is_refused: false,
            has_place: false,
            listening: None,
            timer: None,
            is_due: false,
        }
    }

    /// True when nothing is held, and no one waits.
    pub(super) fn is_idle(&self) -> bool {
        self.units.is_empty() && self.queue.is_empty() && !self.has_place && !self.is_due
    }

    /// Whether the permits of this lease may have another holder by now.
    pub(super) fn is_lost(&self, lease: u64, now: Instant) -> bool {
        lease != self.lease || self.is_over(now)
    }

    /// True when what is held is lost at `now`.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_none_or(|deadline| deadline <= now)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The report of a step. Its waiters stand from position `waiting` on.
    pub(super) fn report(&self, legs: &[KeyLeg], ttl: Duration, waiting: usize) -> KeyLease {
        let mut held = LegUnits::default();
        for (leg, units) in legs.iter().zip(&mut held) {
            let known = self.units.iter().find(|(name, _)| *name == leg.name);
            *units = known.map_or(0, |(_, units)| *units);
        }
        KeyLease { ttl, held, waiting }
    }

    /// A step that was first sent at `sent` was answered.
    pub(super) fn renew(&mut self, sent: Instant, ttl: Duration, clock: &Clock) {
        self.deadline = Some(clock.after(sent, ttl * 99 / 100));
        self.renew_at = Some(clock.after(sent, ttl / 3));
    }

    /// Units were granted.
    pub(super) fn add(&mut self, legs: &Legs, units: &LegUnits) {
        for (name, n) in legs.permits(units) {
            match self.units.iter_mut().find(|(known, _)| **known == *name) {
                Some((_, units)) => *units += n,
                None => self.units.push((name.into(), n)),
            }
        }
    }

    /// Units of the lease with this number go back. True when that is to be reported.
    pub(super) fn give(&mut self, legs: &Legs, units: &LegUnits, lease: u64) -> bool {
        if lease != self.lease {
            return false;
        }
        for (name, n) in legs.permits(units) {
            if let Some((_, units)) = self.units.iter_mut().find(|(known, _)| **known == *name) {
                *units = units.saturating_sub(n);
            }
        }
        self.units.retain(|(_, units)| *units > 0);
        self.is_due = true;
        true
    }

    /// All that is held is lost. The next lease has this number.
    pub(super) fn lose(&mut self, next: u64) {
        self.units.clear();
        self.lease = next;
    }

    /// Removes a waiter. True when it was the first.
    pub(super) fn leave(&mut self, wait: u64) -> bool {
        // In the order of their numbers, nearly.
        let at = self.queue.binary_search(&wait).ok();
        let at = at.or_else(|| self.queue.iter().position(|&other| other == wait));
        if let Some(at) = at {
            self.queue.remove(at);
        }
        at == Some(0)
    }

    /// True when the lease ended with something held.
    pub(super) fn has_ended(&self, now: Instant) -> bool {
        !self.units.is_empty() && self.is_over(now)
    }

    /// When the next step is due without another reason.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|_| !self.queue.is_empty());
        let renew = self.renew_at.filter(|_| !self.units.is_empty() || self.has_place);
        retry.into_iter().chain(renew).min()
    }
}
