//! Booking: taking now for the first instant at which the tokens will be there.

use super::params::{MAX_AHEAD, ORIGIN};
use super::word::Word;
use super::{BucketTicket, LEG, TokenBucket};
use crate::rate::booking::Booking;
use crate::refusal::{Due, Reason, Refusal, Wait};
use crate::sync::shim::atomic::Ordering;
use crate::time::Instant;
use std::time::Duration;

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
    /// `RateExceeded` when `n` exceeds the burst, or at a rate of zero: only a change of the quota could admit it.
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
        let given = self.given_before();
        if let Ok(word) = self.take(n, now) {
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
            return Err(refuse(Reason::RateExceeded, None));
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
            let then = ORIGIN.saturating_add(params.gained_beyond_life(start));
            let room = base.saturating_add(params.burst).saturating_sub(then);
            let booked = writer.booked(ticket, word.version());
            writer.ahead.promise(booked, start.ticks(), room.into());
        }
        Ok((ticket, start))
    }
}
