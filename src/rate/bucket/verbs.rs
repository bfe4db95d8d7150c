//! What else a bucket that stands alone can be asked and told.

use super::params::{MAX_AHEAD, ORIGIN, Params};
use super::word::Word;
use super::{LEG, TokenBucket};
use crate::rate::booking::Booking;
use crate::refusal::{Due, Reason, Refusal, Wait};
use crate::sync::shim::atomic::Ordering;
use crate::time::Instant;
use std::time::Duration;

impl TokenBucket {
    /// Whole tokens that could be taken now. A snapshot.
    pub fn available(&self) -> u64 {
        self.look(self.clock.now(), |base, axis, params| match params.is_unlimited() {
            true => u64::MAX,
            false => axis.saturating_sub(base) >> params.scale,
        })
    }

    /// How many tokens are owed, by bookings and debts, before the first can be taken; rounded up.
    pub fn debt(&self) -> u64 {
        self.look(self.clock.now(), |base, axis, params| {
            base.saturating_sub(axis).div_ceil(1 << params.scale)
        })
    }

    /// How long until `n` could be taken, if nobody takes any meanwhile; rounded up to a nanosecond. `None` when no
    /// instant, but only a change of the quota, could admit them.
    pub fn time_until(&self, n: u64) -> Option<Duration> {
        self.until(|base, params| {
            let need = params.units(n);
            (need <= params.burst).then(|| base.saturating_add(need))
        })
    }

    /// How long until it is full, if nobody takes any meanwhile. `None` when that is never.
    pub fn time_until_full(&self) -> Option<Duration> {
        self.until(|base, params| Some(base.saturating_add(params.burst)))
    }

    /// How long until the axis reaches the position that `target` makes of the bucket's.
    fn until(&self, target: impl Fn(u64, &Params) -> Option<u64>) -> Option<Duration> {
        let now = self.clock.now();
        let at = self.look(now, |base, _, params| params.reaches(target(base, params)?))?;
        Some(self.clock.between(now, at))
    }

    /// Takes as many as there are, up to `n`, and says how many that were.
    pub fn acquire_up_to(&self, n: u64) -> u64 {
        let mut taken = 0;
        let _ = self.move_forward(self.clock.now(), |base, axis, params| {
            let there = axis.saturating_sub(base) >> params.scale;
            taken = if params.is_unlimited() { n } else { n.min(there) };
            Ok::<_, ()>(params.units(taken))
        });
        taken
    }

    /// Takes `n` now whether they are there or not. What is not is a debt, which is paid before anybody else is
    /// admitted. It is cut to two bursts or half an hour's refill, whichever is more.
    pub fn force_acquire(&self, n: u64) {
        let _ = self.move_forward(self.clock.now(), |_, _, params| Ok::<_, ()>(params.units(n)));
    }

    /// Takes `n` for the first instant at which they will be there, behind everything booked before. It is given back
    /// by being dropped, as exactly as a reservation.
    ///
    /// Those behind one that is given back keep their instants, although they could start earlier now; and whoever books
    /// next may start beside them. So it is by the instants at which they could start, not by those at which they do,
    /// that no span exceeds its bound.
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
        let max_wait = self.clock.ticks_of(max_wait);
        let mut start = now;
        let refuse = |reason, at: Option<Instant>| {
            let wait = at.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
            Refusal::new(reason, LEG, n, wait)
        };
        let given = self.given_before();
        let word = self.move_forward(now, |base, axis, params| {
            let need = params.units(n);
            let target = base.saturating_add(need);
            if need > params.burst {
                return Err(refuse(Reason::RateExceeded, None));
            }
            start = match params.reaches(target) {
                Some(at) => at.max(now),
                None => return Err(refuse(Reason::RateExceeded, None)),
            };
            if target.saturating_sub(axis) > MAX_AHEAD {
                return Err(refuse(Reason::QueueFull, params.reaches(target - MAX_AHEAD)));
            }
            match start.ticks_since(now).checked_sub(max_wait) {
                None | Some(0) => Ok(need),
                Some(late) => Err(refuse(Reason::TimedOut, Some(now.after_ticks(late)))),
            }
        })?;
        let ticket = self.ticket(n, word, given);
        Ok(Booking::new(self, ticket, &self.clock, now, start))
    }

    /// Moves the position forward by as many units as `choose` says, which is given the position, the axis, and the
    /// parameters. It may be asked more than once.
    pub(super) fn move_forward<E>(
        &self,
        now: Instant,
        mut choose: impl FnMut(u64, u64, &Params) -> Result<u64, E>,
    ) -> Result<Word, E> {
        loop {
            let (word, params) = self.read();
            let Some(ticks) = params.living_ticks(now) else {
                self.start_anew(now);
                continue;
            };
            let gained = params.gained(ticks);
            let base = word.position().max(params.floor + gained);
            match choose(base, ORIGIN + gained, &params) {
                Err(refused) if self.still(word) => return Err(refused),
                Err(_) => {}
                Ok(units) => {
                    let taken = word.at(base.saturating_add(units));
                    // Acquire: as in `take`.
                    if self
                        .word
                        .compare_exchange_weak(word.0, taken.0, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
                    {
                        return Ok(taken);
                    }
                }
            }
        }
    }
}
