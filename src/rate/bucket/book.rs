//! Booking: taking now for the first instant at which the tokens will be there.
//!
//! What is left when bookings are given up is what those that are kept would have left alone, each taking at its own instant, as
//! long as no more has been refilled since one was made than there was room before it. Later, less may come back, by at most what
//! was refilled beyond that room: see [`give_back`](super::give_back).

use super::given::behind;
use super::params::MAX_AHEAD;
use super::word::Word;
use super::{BucketTicket, LEG, Short, TokenBucket};
use crate::algo::ahead::Taken;
use crate::core::refusal::{Due, Reason, Refusal, Wait};
use crate::rate::booking::Booking;
use crate::sync::shim::atomic::Ordering;
use crate::time::Instant;
use std::time::Duration;

/// What was taken, and after how many changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Booked {
    era: u64,
    pub(super) ticket: BucketTicket,
}

impl Booked {
    /// With how many changes there have been, and the version that is in force since the last.
    pub(super) fn new(ticket: BucketTicket, era: u64, version: u64) -> Self {
        let era = era.saturating_sub(Word::versions_between(Word(ticket.word).version(), version));
        Self { era, ticket }
    }
}

impl Taken for Booked {
    fn is_before(&self, other: &Self) -> bool {
        let within = || match (self.ticket.gross_position(), other.ticket.gross_position()) {
            (Some(own), Some(other)) => behind(own, other),
            (own, _) => own.is_none(),
        };
        self.era < other.era || self.era == other.era && within()
    }
}

impl TokenBucket {
    /// Takes `n` for the first instant at which they will be there, behind everything booked before. It is given back
    /// by being dropped, as exactly as a reservation.
    ///
    /// Those behind one that is given back keep their instants, although they could start earlier now. Whoever books next
    /// may start beside them, as far as the burst allows: by the instants at which they start no span exceeds its bound.
    /// So one before others gives back at most as much as the bucket, without it, would hold less than the burst when each
    /// of them starts; the rest comes back when those in its way are given back as well. Of more than 256 booked ahead
    /// neighbours count as one, and of more than 64 that wait for the rest the oldest is forgotten: both give back less.
    /// After a change of the quota nothing is given back before others that were booked before it; they keep their
    /// instants whatever the new rate is, and are counted by those of the old one.
    ///
    /// # Errors
    /// `Oversized` when `n` exceeds the burst, `RateExceeded` at a rate of zero: only a change of the quota could admit it.
    /// `QueueFull` when a burst, or a quarter of an hour's refill if that is more, would be booked ahead, with a true
    /// `retry_after`.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Quota, TokenBucket};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_second(10).burst(2)).on(&clock);
    /// let (now, later) = (bucket.book(2).unwrap(), bucket.book(1).unwrap());
    /// assert_eq!((now.wait(), later.wait()), (Duration::ZERO, Duration::from_millis(100)));
    /// drop(later);
    /// assert_eq!(bucket.book(2).unwrap().wait(), Duration::from_millis(200));
    /// # now.commit();
    /// ```
    pub fn book(&self, n: u64) -> Result<Booking<'_, Self>, Refusal<'_>> {
        self.book_within(n, Duration::MAX)
    }

    /// [`book`](Self::book)s `n`, if they will be there within `max_wait`.
    ///
    /// # Errors
    /// Those of `book`, and `TimedOut` when they come later. Its `retry_after` says when they would come in time.
    pub fn book_within(&self, n: u64, max_wait: Duration) -> Result<Booking<'_, Self>, Refusal<'_>> {
        let now = self.clock.now();
        if self.turns.is_waited() {
            self.let_newcomer_book(n, now)?;
        }
        let given = self.given_before();
        // Nothing is always there, and is booked behind the others all the same.
        if n > 0
            && let Ok(word) = self.take(n, now)
        {
            let ticket = self.ticket(n, word, given);
            return Ok(Booking::new(self, ticket, &self.clock, now, now));
        }
        let (ticket, start) = self.book_ahead(n, now, self.clock.ticks_of(max_wait))?;
        Ok(Booking::new(self, ticket, &self.clock, now, start))
    }

    /// Under the writer's lock, so that nobody gives back between the booking and its promise.
    #[cold]
    fn book_ahead(&self, n: u64, now: Instant, max_wait: u64) -> Result<(BucketTicket, Instant), Refusal<'_>> {
        let refuse = |reason, at: Option<Instant>| {
            let wait = at.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
            Refusal::new(reason, LEG, n, wait)
        };
        let (mut writer, params) = self.giver(now);
        let (axis, need) = (params.axis_at(now), params.units(n));
        if need > params.burst {
            return Err(self.refusal_until(n, Short::Oversized, now));
        }
        // Relaxed: written under the lock that we hold. So it is even, and what is newer is known.
        let given = self.given.load(Ordering::Relaxed);
        let mut word = Word(self.word.load(Ordering::Relaxed));
        let (base, start) = loop {
            let base = word.position().max(axis - params.burst);
            let target = base.saturating_add(need);
            let Some(start) = params.reaches(target) else {
                return Err(refuse(Reason::RateExceeded, None));
            };
            let start = start.max(now);
            if target.saturating_sub(axis) > MAX_AHEAD {
                return Err(refuse(Reason::QueueFull, params.reaches(target - MAX_AHEAD)));
            }
            if let Some(late @ 1..) = start.ticks_since(now).checked_sub(max_wait) {
                return Err(refuse(Reason::TimedOut, Some(now.after_ticks(late))));
            }
            let taken = word.at(target);
            // Relaxed: what is given back, and which parameters are in force, changes under the lock that we hold.
            match self
                .word
                .compare_exchange_weak(word.0, taken.0, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    word = taken;
                    break (base, start);
                }
                Err(seen) => word = Word(seen),
            }
        };
        let ticket = BucketTicket {
            tokens: n,
            word: word.0,
            given,
        };
        writer.ahead.pass(now.ticks());
        if start > now && need > 0 {
            let then = params.axis_beyond_life(start);
            let room = base.saturating_add(params.burst).saturating_sub(then);
            let booked = Booked::new(ticket, writer.era, word.version());
            writer.ahead.promise(booked, start.ticks(), room.into());
        }
        Ok((ticket, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many changes, at a position, when so many units had been given back; odd when that is not known.
    fn booked(era: u64, position: u64, given: u64) -> Booked {
        let word = Word::new(2 * era, position).0;
        let ticket = BucketTicket { tokens: 1, word, given };
        // The version in force is the fifth.
        Booked::new(ticket, 105, 5)
    }

    #[test]
    fn what_was_taken_is_told_by_its_change_and_by_all_that_had_been_taken() {
        let order = [
            booked(3, 900, 0),
            booked(4, 700, 0),
            booked(5, 100, 0),
            booked(5, 60, 100),
            booked(5, 70, 100),
        ];
        assert_eq!(order.map(|booked| booked.era), [103, 104, 105, 105, 105]);
        for (index, older) in order.iter().enumerate() {
            assert_eq!(
                order.map(|newer| older.is_before(&newer)),
                [0, 1, 2, 3, 4].map(|at| at > index)
            );
        }
    }

    #[test]
    fn what_nobody_knows_the_order_of_is_older_than_all_since_the_same_change() {
        let (known, unknown) = (booked(5, 100, 6), booked(5, 900, 7));
        assert!(unknown.is_before(&known) && !known.is_before(&unknown));
        assert!(!unknown.is_before(&booked(4, 900, 0)) && booked(4, 900, 0).is_before(&unknown));
        assert_eq!([known, unknown].map(|of| of.ticket.gross_position()), [Some(103), None]);
    }

    /// Half of what counts the units given back has 63 bits.
    #[test]
    fn the_order_outlasts_the_count_of_what_was_given_back() {
        let (last, first) = (booked(5, 100, u64::MAX - 1), booked(5, 100, 0));
        assert!(last.is_before(&first) && !first.is_before(&last));
        assert!(!last.is_before(&booked(5, 50, u64::MAX - 1)));
    }

    /// Versions are counted modulo `2^15`.
    #[test]
    fn the_versions_between_two_wrap_around() {
        let between = [(5, 5), (3, 5), (0x7fff, 2)].map(|(from, to)| Word::versions_between(from, to));
        assert_eq!(between, [0, 2, 3]);
    }
}
