//! What else a bucket that stands alone can be asked and told.

use super::TokenBucket;
use super::params::{ORIGIN, Params};
use super::word::Word;
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
            // Nothing is there already, also in debt.
            let position = if n == 0 { 0 } else { base.saturating_add(need) };
            (need <= params.burst).then_some(position)
        })
    }

    /// How long until it is full, if nobody takes any meanwhile. `None` when that is never.
    pub fn time_until_full(&self) -> Option<Duration> {
        self.until(|base, params| Some(base.saturating_add(params.whole_burst())))
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
        if self.turns.is_waited() && self.let_try(1, None, self.clock.now()).is_err() {
            return taken;
        }
        let _ = self.move_forward(self.clock.now(), |base, axis, params| {
            let there = axis.saturating_sub(base) >> params.scale;
            taken = if params.is_unlimited() { n } else { n.min(there) };
            Ok::<_, ()>(params.units(taken))
        });
        taken
    }

    /// Takes `n` now whether they are there or not. What is not is a debt, which is paid before anything else is
    /// admitted. It is cut to two bursts or half an hour's refill, whichever is more; at a rate of zero to 2^30 tokens.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Quota, TokenBucket};
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_hour(10)).on(&clock);
    /// bucket.force_acquire(1_000);
    /// assert_eq!(bucket.debt(), 20);
    /// ```
    pub fn force_acquire(&self, n: u64) {
        let _ = self.move_forward(self.clock.now(), |base, axis, params| {
            Ok::<_, ()>(params.units(params.owed(base, axis, n)))
        });
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
                    // Both: as in `take`.
                    if self
                        .word
                        .compare_exchange_weak(word.0, taken.0, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                    {
                        return Ok(taken);
                    }
                }
            }
        }
    }
}
