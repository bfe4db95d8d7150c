//! Those who wait in this process.
//!
//! Without blocks each of them has a wish of its own at the store, and gets what that wish is given: the store's queue is the
//! queue. With blocks, and for rates, they stand in one line here, which is served from whatever comes to this process.

use super::{Desk, End, Ended, Kind, RemoteTicket, Waiter};
use crate::core::refusal::Reason;
use crate::time::Instant;
use std::task::Waker;

impl Desk {
    /// Joins those who wait for `need`. The wait may have ended at once; then nobody is woken.
    pub(in crate::remote) fn join(&mut self, need: u64, kind: Kind, waker: Waker, now: Instant) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        if let Some(end) = self.answer_at_once(need, now) {
            self.ended.insert(key, Ended { end, need, kind });
            self.wakers.push(waker);
            return key;
        }
        if self.away && kind == Kind::Answer {
            let end = End::Refused(Reason::Saturated);
            self.ended.insert(key, Ended { end, need, kind });
            self.wakers.push(waker);
            return key;
        }
        self.stand(key, need, kind, Some(waker));
        if self.away {
            self.serve_share(now);
        }
        self.poke();
        key
    }

    /// Takes a place where such a wait belongs.
    fn stand(&mut self, key: u64, need: u64, kind: Kind, waker: Option<Waker>) {
        let waiter = Waiter {
            need,
            kind,
            waker,
            wish: None,
        };
        let places = if self.has_line(kind) {
            &mut self.line
        } else {
            &mut self.bound
        };
        places.insert(key, waiter);
    }

    /// Those who wait in turn stand in a line of this process, unless each of them stands in that of the store.
    fn has_line(&self, kind: Kind) -> bool {
        kind != Kind::Answer && (self.plan.blocks.is_some() || self.plan.spends())
    }

    fn answer_at_once(&mut self, need: u64, now: Instant) -> Option<End> {
        match self.take(need, now) {
            Ok(ticket) => Some(End::Granted(ticket)),
            Err(Reason::Saturated | Reason::RateExceeded | Reason::Oversized) => None,
            Err(reason) => Some(End::Refused(reason)),
        }
    }

    /// How the wait `key` ended, if it has. Otherwise `waker` will be woken; the one before is returned, to be dropped. A wait
    /// that is not known any more has ended with nothing.
    pub(in crate::remote) fn look(
        &mut self,
        key: u64,
        waker: Option<Waker>,
        now: Instant,
    ) -> (Option<End>, Option<Waker>) {
        if let Some(End::Granted(ticket)) = self.ended.get(&key).map(|ended| ended.end) {
            // A permit that was lost before anybody took it is waited for once more, in the same place.
            let counts = !self.plan.spends() && ticket.term == self.term && ticket.units > 0;
            if counts && !self.is_valid(now) {
                self.lapse(now);
            }
        }
        if let Some(ended) = self.ended.remove(&key) {
            return (Some(ended.end), waker);
        }
        let waiter = match self.line.get_mut(&key) {
            Some(waiter) => waiter,
            None => match self.bound.get_mut(&key) {
                Some(waiter) => waiter,
                None => return (Some(End::Refused(Reason::Closed)), waker),
            },
        };
        match waker {
            Some(waker) => (None, waiter.waker.replace(waker)),
            None => (None, None),
        }
    }

    /// True while the wait `key` has not ended.
    pub(in crate::remote) fn waits(&self, key: u64) -> bool {
        self.line.contains_key(&key) || self.bound.contains_key(&key)
    }

    /// The owner of `key` goes. What it had been given goes to whoever is next. Returns a waker, to be dropped.
    pub(in crate::remote) fn leave(&mut self, key: u64, now: Instant) -> Option<Waker> {
        if let Some(ended) = self.ended.remove(&key) {
            if let End::Granted(ticket) = ended.end
                && !seeded!("remote_leaks_granted")
            {
                self.put_back(ticket, true, now);
            }
            return None;
        }
        if let Some(waiter) = self.bound.remove(&key) {
            if let Some(wish) = waiter.wish {
                self.withdraw(wish);
            }
            return waiter.waker;
        }
        let waiter = self.line.remove(&key)?;
        self.ask_at = None;
        self.serve(now);
        self.poke();
        waiter.waker
    }

    /// Ends the wait `key`, of which the waiter has been taken out.
    pub(super) fn end(&mut self, key: u64, waiter: Waiter, end: End) {
        let (need, kind) = (waiter.need, waiter.kind);
        self.ended.insert(key, Ended { end, need, kind });
        self.wakers.extend(waiter.waker);
    }

    /// Serves the line from what is free.
    pub(super) fn serve(&mut self, now: Instant) {
        if self.away {
            self.serve_share(now);
        }
        // While others wait, what comes free is ours for a turn only.
        if self.recall.is_some_and(|until| now >= until) {
            return;
        }
        while let Some((&key, head)) = self.line.first_key_value()
            && head.need <= self.free(now)
        {
            let Some(waiter) = self.line.remove(&key) else { return };
            let ticket = self.take_free(waiter.need, now);
            self.end(key, waiter, End::Granted(ticket));
        }
    }

    /// Serves everybody in order of arrival from this process's own share.
    pub(super) fn serve_share(&mut self, now: Instant) {
        while let Some(key) = self.first() {
            let waiter = self.line.get(&key).or_else(|| self.bound.get(&key));
            let Some(need) = waiter.map(|waiter| waiter.need) else {
                return;
            };
            let end = match self.take_while_away(need, now) {
                Ok(ticket) => End::Granted(ticket),
                Err(reason @ (Reason::Unavailable | Reason::Closed)) => End::Refused(reason),
                Err(_) => {
                    let of = if let super::Away::Share { of } = self.plan.away {
                        of.max(1)
                    } else {
                        1
                    };
                    let wait = self.share.wait(need.saturating_mul(of)).filter(|_| self.plan.spends());
                    let wait = wait.map(|micros| std::time::Duration::from_micros(micros.max(1)));
                    self.share_at = wait.map(|wait| self.clock.after(now, wait));
                    return;
                }
            };
            self.dismiss(key, end);
        }
    }

    /// Who came first of all who wait.
    fn first(&self) -> Option<u64> {
        let line = self.line.keys().next();
        let bound = self.bound.keys().next();
        line.into_iter().chain(bound).min().copied()
    }

    /// Ends the wait of `key`, wherever it waits, and withdraws its wish.
    pub(super) fn dismiss(&mut self, key: u64, end: End) {
        if let Some(waiter) = self.line.remove(&key) {
            self.end(key, waiter, end);
        } else if let Some(waiter) = self.bound.remove(&key) {
            if let Some(wish) = waiter.wish {
                self.withdraw(wish);
            }
            self.end(key, waiter, end);
        }
    }

    /// Ends all waits so.
    pub(super) fn dismiss_all(&mut self, end: End) {
        while let Some(key) = self.first() {
            self.dismiss(key, end);
        }
    }

    /// Puts those back who had been granted permits of this term and have not taken them, each to its place: they wait again.
    pub(super) fn recall_granted(&mut self) {
        let term = self.term;
        let of_term = |end: &End| matches!(end, End::Granted(RemoteTicket { units: 1.., term: of, .. }) if *of == term);
        let lost = self.ended.iter().filter(|(_, ended)| of_term(&ended.end));
        let lost: Vec<_> = lost.map(|(&key, _)| key).collect();
        for key in lost {
            let Some(Ended { need, kind, .. }) = self.ended.remove(&key) else {
                continue;
            };
            if kind == Kind::Claim {
                let end = End::Lapsed;
                self.ended.insert(key, Ended { end, need, kind });
                continue;
            }
            // Its owner has been woken, and leaves a waker when it looks.
            self.stand(key, need, kind, None);
        }
    }
}
