//! The leaky bucket: a token bucket that saves little or nothing.

use super::bucket::Bucket;
use super::inherit::Inherit;
use super::limiter::Rate;
use super::quota::{Quota, QuotaError};
use crate::time::Clock;

/// Lets work start evenly spaced, one unit after the other: at ten a second, one each 100 ms.
///
/// ```
/// # use tollgate::{LeakyBucket, ManualClock, Policy, Quota};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let calls = Policy::new(LeakyBucket::new(Quota::per_second(10)).on(&clock));
/// clock.run(async {
///     // A long pause earns nothing.
///     clock.sleep(Duration::from_secs(60)).await;
///     let start = clock.now();
///     for expected in [0, 100, 200] {
///         calls.admit(1).await.unwrap();
///         assert_eq!(clock.between(start, clock.now()).as_millis(), expected);
///     }
/// });
/// ```
///
/// A bucket admits units that may start now and refuses the rest. In a [`Policy`](crate::Policy) the refused requests wait in the
/// queue, and start evenly spaced.
///
/// Idle time is lost, except for the *slack*: up to `slack` more units may start at once, to catch up with the spacing.
///
/// | 4 at one instant, at 10/s | admitted | refused |
/// |---|---|---|
/// | no slack | 1 | 3 |
/// | slack 1 | 2 | 2 |
///
/// # Exactness
/// A leaky bucket is a [`TokenBucket`](crate::TokenBucket) with a burst of `1 + slack`, whatever the quota's own burst: in any span of time `t` it
/// admits at most `1 + slack + rate x t`, where `t` counts one tick of the clock longer. The rounding of waits is not lost: of seven a
/// minute the eighth starts at the minute. A request for more than `1 + slack` units is `Oversized`. At [`Quota::zero`]
/// nothing is admitted.
///
/// # Giving back
/// As a [`TokenBucket`](crate::TokenBucket) gives back.
pub type LeakyBucket = Rate<Bucket<true>>;

impl Rate<Bucket<true>> {
    /// A bucket without slack, on the real clock.
    pub fn new(quota: Quota) -> Self {
        let Ok(even) = quota.even(0) else {
            unreachable!("one unit of a quota comes within 365 days")
        };
        Self::full(even, &Clock::real())
    }

    /// The same bucket with another slack, where nothing has been taken yet.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when it is 2^40 or more, or takes longer than 584 years to come.
    ///
    /// ```
    /// # use tollgate::{Inherit, LeakyBucket, ManualClock, Quota};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let spaced = LeakyBucket::new(Quota::per_second(10)).slack(2)?.on(&clock);
    /// assert_eq!(spaced.acquire_up_to(5), 3, "one, and two to catch up");
    /// assert_eq!(spaced.time_until(1), Some(Duration::from_millis(100)));
    /// spaced.force_acquire(4);
    /// spaced.set_quota(Quota::per_second(20), 0, Inherit::AsIs)?;
    /// spaced.reset();
    /// assert_eq!(spaced.available(), 1);
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    pub fn slack(self, slack: u64) -> Result<Self, QuotaError> {
        Ok(Self::full(self.quota().even(slack)?, &self.clock))
    }

    /// Changes the rate and the slack at once; `inherit` says what becomes of the units that could start now. `AsIs`
    /// and `Proportional` keep a debt; `Reset` and an unlimited quota clear it.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] as for [`slack`](Self::slack). Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, slack: u64, inherit: Inherit) -> Result<(), QuotaError> {
        self.change(quota.even(slack)?, inherit);
        Ok(())
    }
}
