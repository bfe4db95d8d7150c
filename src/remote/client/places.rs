//! The heads of policies among the waiters of this process: each has one wait at most, by the number of its place.
//!
//! Of heads that wait for as many units the oldest is served first: it swaps its wait with a younger one that was granted, and is not
//! redeemed yet. To the store both waits are the same.

use super::{Client, End, Reason, RemoteTicket, WaitKind};
use crate::time::Instant;
use std::task::Waker;

/// What is missing: the reason of a refusal, and the instant from which the units are there, as far as it is known.
pub(in crate::remote) type Lack = (Reason, Option<Instant>);

/// The wait of a head.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct PlaceWait {
    wait: u64,
    /// The age of the head.
    age: u64,
    waker: Waker,
}

impl Client {
    /// Would `n` units be admitted behind `ahead` others? Takes nothing.
    pub(in crate::remote) fn judge(&mut self, n: u64, ahead: u64, now: Instant) -> Result<(), Lack> {
        self.drop_stale(now);
        if self.is_closed() {
            return Err((Reason::Closed, None));
        }
        if self.is_oversized(n, now) {
            return Err((Reason::Oversized, None));
        }
        if let Some(reason) = self.refuses() {
            return Err((reason, None));
        }
        let all = n.saturating_add(ahead);
        match self.has_free(all, now) {
            true => Ok(()),
            // A grant for later needs no request.
            false => Err((self.lacks_units(), self.arrives_at(all))),
        }
    }

    /// How the wait of the head of `place` for `n` units stands; `None` if it does not wait here. A wait for another number is given up.
    pub(in crate::remote) fn look_of_place(&mut self, place: u64, n: u64, now: Instant) -> Option<Result<(), Lack>> {
        let wait = self.places.get(&place)?.wait;
        // The driver may be late.
        self.drop_stale(now);
        self.serve_queue(now);
        if self.ended.get(&wait).is_some_and(|ended| ended.need == n) {
            return Some(Ok(()));
        }
        if self.waits_for(wait) == Some(n) {
            let is_first = self.queue.keys().next() == Some(&wait);
            let at = self.tokens.arrives_at(n).filter(|_| is_first);
            return Some(Err((self.lacks_units(), at)));
        }
        // The waker is that of a place: it runs no code of a user's when it is dropped.
        drop(self.leave_place(place, now));
        None
    }

    /// Adds the head of `place`, of this age, to the waiters. Its wait may end at once.
    pub(in crate::remote) fn join_of_place(&mut self, place: u64, age: u64, n: u64, waker: Waker, now: Instant) {
        let wait = self.join(n, WaitKind::Policy, waker.clone(), now);
        self.places.insert(place, PlaceWait { wait, age, waker });
        if self.waits_for(wait) == Some(n) {
            let is_granted = |other: &PlaceWait| {
                let ended = self.ended.get(&other.wait);
                ended.is_some_and(|ended| ended.need == n && matches!(ended.end, End::Granted(_)))
            };
            let younger = self
                .places
                .iter()
                .filter(|(_, other)| other.age > age && is_granted(other));
            let youngest = younger.max_by_key(|(_, other)| other.age).map(|(&other, _)| other);
            if let Some(other) = youngest {
                self.swap_waits(place, other);
            }
        }
    }

    /// The number of units for which this wait waits, if it does.
    pub(in crate::remote) fn waits_for(&self, wait: u64) -> Option<u64> {
        let waiter = self.queue.get(&wait).or_else(|| self.direct.get(&wait))?;
        Some(waiter.need)
    }

    /// The wait `wait` for `n` units is about to be granted: it goes to the oldest head that waits for as many, whose waker is set then.
    pub(super) fn hand_to_oldest(&mut self, wait: u64, n: u64, waker: &mut Option<Waker>) {
        let Some((&own, place)) = self.places.iter().find(|(_, place)| place.wait == wait) else {
            return;
        };
        let waits = |other: &PlaceWait| other.age < place.age && self.waits_for(other.wait) == Some(n);
        let older = self.places.iter().filter(|(_, other)| waits(other));
        if let Some((&oldest, other)) = older.min_by_key(|(_, other)| other.age) {
            *waker = Some(other.waker.clone());
            self.swap_waits(own, oldest);
        }
    }

    /// Two heads that want the same have each other's wait from now on.
    fn swap_waits(&mut self, one: u64, other: u64) {
        let (Some(mut a), Some(mut b)) = (self.places.remove(&one), self.places.remove(&other)) else {
            return;
        };
        std::mem::swap(&mut a.wait, &mut b.wait);
        for (place, owner) in [(one, a), (other, b)] {
            if let Some(waiter) = self.waiter_mut(owner.wait) {
                // The wakers are those of places: they run no code of a user's.
                waiter.waker = Some(owner.waker.clone());
            }
            self.places.insert(place, owner);
        }
    }

    fn waiter_mut(&mut self, wait: u64) -> Option<&mut super::Waiter> {
        match self.queue.get_mut(&wait) {
            Some(waiter) => Some(waiter),
            None => self.direct.get_mut(&wait),
        }
    }

    /// Takes `n` units for the head of `place`: what it was granted, or what is here if it does not wait.
    pub(in crate::remote) fn redeem(&mut self, place: u64, n: u64, now: Instant) -> Result<RemoteTicket, Reason> {
        let Some(wait) = self.places.get(&place).map(|place| place.wait) else {
            return self.acquire(n, now);
        };
        let Some(end) = self.poll_wait(wait, None, now).0 else {
            return Err(self.lacks_units());
        };
        self.places.remove(&place);
        match end {
            End::Granted(ticket) if ticket.units == n => return Ok(ticket),
            End::Granted(ticket) => self.refund(ticket, true, now),
            End::Refused(_) | End::Lapsed => {}
        }
        self.acquire(n, now)
    }

    /// The head of `place` leaves. Its grant, if any, goes to the next waiter. Returns a waker, to be dropped.
    pub(in crate::remote) fn leave_place(&mut self, place: u64, now: Instant) -> Option<Waker> {
        let wait = self.places.remove(&place)?.wait;
        self.leave(wait, now)
    }
}
