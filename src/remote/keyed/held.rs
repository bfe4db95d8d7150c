//! What this process holds of the permit legs of a key, and who waits for them.
//!
//! The store has a lease for each client and key. Each step at a key with permit legs reports what is held, renews the lease, and keeps
//! the place of the first waiter in the store's queue. The lease counts from the first sending of a step, less 1 %: it ends here
//! before it ends at the store.
//!
//! Invariants: a leg of which nothing is held any more is named until a step has reported that. A lease that has ended has another number than the next one, so its permits give nothing back.

use super::legs::Legs;
use crate::remote::backend::Rule;
use crate::remote::step::{KeyLease, KeyLeg, LegUnits};
use crate::time::{Clock, Instant};
use futures::future::AbortHandle;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Held {
    /// Of the last step: those of a renewal.
    pub(super) legs: Arc<Legs>,
    /// The number of the lease, which its permits have.
    pub(super) lease: u64,
    /// Units by leg, as it was when they were granted.
    units: Vec<(KeyLeg, u64)>,
    /// When all of it is lost; nothing while nothing is held.
    deadline: Option<Instant>,
    /// When the lease, or the place, is to be renewed.
    renew_at: Option<Instant>,
    /// When the first waiter asks again.
    pub(super) retry_at: Option<Instant>,
    /// The waits for permits, in the order of their numbers.
    pub(super) queue: VecDeque<u64>,
    /// The store has refused the first of them, which comes again at `retry_at` or when it is notified.
    pub(super) is_refused: bool,
    /// The store keeps a place for the first of them.
    pub(super) has_place: bool,
    /// Ends the wait for its notifications, while there is one.
    pub(super) listening: Option<AbortHandle>,
    /// A step is to be sent, without another reason.
    pub(super) is_due: bool,
    /// A step with waiters was sent: the store listens for notifications.
    pub(super) is_subscribed: bool,
    /// Woken when the lease is lost, by a number of their own.
    pub(super) watchers: BTreeMap<u64, Waker>,
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
            is_due: false,
            is_subscribed: false,
            watchers: BTreeMap::new(),
        }
    }

    /// True when nothing is held, and no one waits.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_something() && !self.has_place && !self.is_due
    }

    /// True when something is held or awaited.
    pub(super) fn has_something(&self) -> bool {
        self.holds() || !self.queue.is_empty()
    }

    fn holds(&self) -> bool {
        self.permits() > 0
    }

    /// The permits of all legs.
    pub(super) fn permits(&self) -> u64 {
        self.units.iter().map(|(_, units)| units).sum()
    }

    /// A report has arrived: what was returned with it is known.
    pub(super) fn reported(&mut self, counted: &[KeyLeg], report: &KeyLease) {
        let returned = |held: &KeyLeg| {
            counted
                .iter()
                .zip(&report.held)
                .any(|(leg, &units)| leg.name == held.name && units == 0)
        };
        self.units.retain(|(held, units)| *units > 0 || !returned(held));
    }

    /// `legs`, and those of other names of which something is held. Nothing when there is no room for them.
    pub(super) fn counted(&self, legs: &Arc<[KeyLeg]>) -> Option<Arc<[KeyLeg]>> {
        let is_named = |held: &KeyLeg| legs.iter().find(|leg| leg.name == held.name && leg.key.is_none());
        let is_permits = |leg: &KeyLeg| matches!(leg.rule, Rule::Permits { .. });
        let mut all: Option<Vec<KeyLeg>> = None;
        for (held, _) in &self.units {
            match is_named(held) {
                Some(leg) if is_permits(leg) => {}
                Some(_) => return None,
                None => all.get_or_insert_with(|| legs.to_vec()).push(held.clone()),
            }
        }
        match all {
            None => Some(Arc::clone(legs)),
            Some(all) => (all.len() <= KeyLeg::MOST).then(|| all.into()),
        }
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
            let known = self.units.iter().find(|(held, _)| held.name == leg.name);
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
        for (leg, n) in legs.permits(units) {
            match self.units.iter_mut().find(|(known, _)| known.name == leg.name) {
                Some((_, units)) => *units += n,
                None => self.units.push((leg.clone(), n)),
            }
        }
    }

    /// Units of the lease with this number go back. True when that is to be reported.
    pub(super) fn give(&mut self, legs: &Legs, units: &LegUnits, lease: u64) -> bool {
        if lease != self.lease {
            return false;
        }
        for (leg, n) in legs.permits(units) {
            if let Some((_, units)) = self.units.iter_mut().find(|(known, _)| known.name == leg.name) {
                *units = units.saturating_sub(n);
            }
        }
        self.is_due = true;
        true
    }

    /// All that is held is lost. The next lease has this number. Returns who is to be woken.
    pub(super) fn lose(&mut self, next: u64) -> impl Iterator<Item = Waker> + use<> {
        self.units.clear();
        self.lease = next;
        std::mem::take(&mut self.watchers).into_values()
    }

    /// Removes a waiter, if it is one. True when it was the first.
    pub(super) fn leave(&mut self, wait: u64) -> bool {
        let at = self.queue.binary_search(&wait).ok();
        at.map(|at| self.queue.remove(at));
        at == Some(0)
    }

    /// True when the lease ended with something held.
    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.holds() && self.is_over(now)
    }

    /// When the next step is due without another reason.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|_| !self.queue.is_empty());
        let renew = self.renew_at.filter(|_| self.holds() || self.has_place);
        retry.into_iter().chain(renew).min()
    }
}
