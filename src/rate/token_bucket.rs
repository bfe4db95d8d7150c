//! The token bucket as a limiter.

use super::bucket::Bucket;
use super::inherit::Inherit;
use super::limiter::Rate;
use super::quota::Quota;
use crate::time::Clock;

/// Limits how often work starts: at most `burst` at once, and at a quota's rate in the long run.
///
/// ```
/// # use tollgate::{ManualClock, Quota, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let requests = TokenBucket::new(Quota::per_second(10).burst(3)).on(&clock);
/// assert!(requests.try_acquire(3).is_ok());
/// let refused = requests.try_acquire(2).unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
/// clock.advance(Duration::from_millis(200));
/// assert!(requests.try_acquire(2).is_ok());
/// ```
///
/// A bucket admits or refuses at once. To wait for tokens, give the bucket to a [`Policy`](crate::Policy). Several
/// bandwidths are several buckets, which admit all-or-nothing:
///
/// ```
/// # use tollgate::{LimiterExt, Quota, TokenBucket};
/// let gate = TokenBucket::new(Quota::per_second(10)).and(TokenBucket::new(Quota::per_minute(100)));
/// assert!(gate.try_admit(10).is_ok());
/// assert!(gate.try_admit(1).is_err());
/// ```
///
/// The refill is continuous, or [by interval](Quota::by_interval). For evenly spaced starts take a
/// [`LeakyBucket`](crate::LeakyBucket), for a limit in any span of a length a [`SlidingWindow`](crate::SlidingWindow).
///
/// # Exactness
/// In any span of time `t` the bucket admits at most `burst + rate x t`, plus one unit for rounding. A unit is
/// `2^-36` tokens at 10 a second, `2^-22` at 200,000 a second, and `2^-10` at one a nanosecond. Where a token takes no whole
/// number of ticks of the clock, `t` counts one tick longer, so that the rounding of waits loses nothing. All arithmetic
/// is in integers: no rate drifts. An earlier reading of the clock than the latest never adds tokens. By interval, the bound
/// for any span is `burst + n x count`, where `n` ends of intervals lie in the span.
///
/// A request for more than the burst is `Oversized`. A request for zero units is always admitted.
///
/// # Giving back
/// An admission that is cancelled gives back
/// - all its `n` tokens, if it is the newest that still stands, however long ago it was made;
/// - all `n`, as long as the room that the bucket had before the admission covers what was refilled and given back since;
/// - otherwise at least `n` less what was refilled since.
///
/// So the level is never above that of a bucket without the admission. Example: burst 10 at 1/s, take 1, wait 2 s, take 5, and
/// cancel the 1: nothing comes back, since the bucket was full before the second take. A cancel may give back too little: had the 5
/// been taken at once, nothing of the 1 would come back after 2 s either. At a rate of zero every admission gives back all, in any
/// order. The newest loses its rule when the burst grows, or when a settlement raises it.
///
/// [`settle`](crate::Permit::settle) follows the same rule where the actual cost is less. Where it is more, the bucket takes
/// the rest at once, and may go into debt: at most two bursts or half an hour's refill, whichever is more. The part beyond that
/// is not charged.
///
/// # Changes
/// [`set_quota`](Self::set_quota) with [`Inherit::AsIs`] keeps the level, cut to the new burst, and what admissions give back.
/// `Reset` and `Proportional` end the refunds of earlier admissions, and so does a change of rate or burst by a large factor
/// (2^4 up, 2^8 down), at which the bucket changes its unit.
pub type TokenBucket = Rate<Bucket<false>>;

impl<const LEAKY: bool> Rate<Bucket<LEAKY>> {
    pub(super) fn full(quota: Quota, clock: &Clock) -> Self {
        Self::of(Bucket::new(quota, clock), clock)
    }

    /// The same quota on `clock`, full.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::full(self.quota(), clock)
    }

    /// The quota in force. A [`LeakyBucket`](crate::LeakyBucket) has a burst of one and its slack.
    pub fn quota(&self) -> Quota {
        self.meter.quota()
    }

    pub(super) fn change(&self, quota: Quota, inherit: Inherit) {
        self.meter.set_quota(quota, inherit, &self.clock);
        self.notify_changed();
    }
}

impl Rate<Bucket<false>> {
    /// A full bucket on the real clock.
    pub fn new(quota: Quota) -> Self {
        Self::full(quota, &Clock::real())
    }

    /// Changes the quota at once; `inherit` says what becomes of the tokens that are there. `AsIs` and
    /// `Proportional` keep a debt; `Reset` and an unlimited quota clear it.
    ///
    /// An unlimited quota counts nothing: after it the bucket is full by every rule. From one quota by interval to
    /// another, the intervals go on from the end of the latest.
    ///
    /// ```
    /// # use tollgate::{Inherit, ManualClock, Quota, TokenBucket};
    /// let bucket = TokenBucket::new(Quota::per_second(100)).on(&ManualClock::new());
    /// assert!(bucket.try_acquire(70).is_ok());
    /// bucket.set_quota(Quota::per_second(20), Inherit::AsIs);
    /// assert_eq!(bucket.available(), 20);
    /// bucket.set_quota(Quota::per_second(50), Inherit::Proportional);
    /// assert_eq!(bucket.available(), 50);
    /// ```
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) {
        self.change(quota, inherit);
    }
}
