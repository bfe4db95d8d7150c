//! The leaky bucket: a token bucket that saves little or nothing.

use super::bucket::{Bucket, BucketTicket};
use super::inherit::Inherit;
use super::limiter::Rate;
use super::meter::{Counts, Forecast};
use super::quota::Quota;
use super::rate_error::RateError;
use crate::core::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, Instant};
use std::fmt;
use std::time::Duration;

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
/// A leaky bucket is a [`TokenBucket`] with a burst of `1 + slack`, whatever the quota's own burst: in any span of time `t` it
/// admits at most `1 + slack + rate x t`, where `t` counts one tick of the clock longer. The rounding of waits is not lost: of seven a
/// minute the eighth starts at the minute. A request for more than `1 + slack` units is `Oversized`. At [`Quota::zero`]
/// nothing is admitted.
///
/// # Giving back
/// As a [`TokenBucket`] gives back.
pub type LeakyBucket = Rate<Leaky>;

/// The meter of a [`LeakyBucket`]: a bucket of `1 + slack` tokens.
#[derive(Debug)]
pub struct Leaky {
    tokens: Bucket,
    settings: Mutex<Settings>,
}

/// The settings in force.
#[derive(Clone, Copy, Debug)]
struct Settings {
    quota: Quota,
    slack: u64,
}

impl Settings {
    /// The quota of the bucket of tokens.
    fn tokens(&self) -> Result<Quota, RateError> {
        let given = self.slack;
        let refused = |_| RateError::Slack { given };
        if given >= Quota::MAX_BURST {
            return Err(RateError::Slack { given });
        }
        if self.quota.is_zero() || self.quota.is_unlimited() {
            let zero = self.quota.is_zero();
            return Ok(if zero { Quota::zero() } else { Quota::unlimited() });
        }
        let even = Quota::new(self.quota.count(), self.quota.period());
        even.and_then(|even| even.with_burst(given + 1)).map_err(refused)
    }

    fn bucket(self, clock: &Clock) -> Result<LeakyBucket, RateError> {
        let meter = Leaky {
            tokens: Bucket::new(self.tokens()?, clock),
            settings: Mutex::new(self),
        };
        Ok(Rate::of(meter, clock))
    }
}

impl Rate<Leaky> {
    /// A bucket without slack, on the real clock.
    pub fn new(quota: Quota) -> Self {
        let settings = Settings { quota, slack: 0 };
        let Ok(bucket) = settings.bucket(&Clock::real()) else {
            unreachable!("one unit of a quota comes within 365 days")
        };
        bucket
    }

    /// The same bucket on `clock`, where nothing has been taken yet.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let settings = *self.meter.settings.lock();
        // They were checked when this bucket was made.
        settings.bucket(clock).unwrap_or(self)
    }

    /// The same bucket with another slack, where nothing has been taken yet.
    ///
    /// # Errors
    /// [`RateError::Slack`] when it is 2^40 or more, or takes longer than 584 years to come.
    ///
    /// ```
    /// # use tollgate::{Inherit, LeakyBucket, ManualClock, Quota};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let spaced = LeakyBucket::new(Quota::per_second(10)).slack(2)?.on(&clock);
    /// assert_eq!(spaced.acquire_up_to(5), 3, "one, and two to catch up");
    /// assert_eq!(spaced.time_until(1), Some(Duration::from_millis(100)));
    /// spaced.force_acquire(4);
    /// spaced.set_quota(Quota::per_second(20), Inherit::AsIs)?;
    /// spaced.set_slack(0, Inherit::AsIs)?;
    /// spaced.reset();
    /// assert_eq!(spaced.available(), 1);
    /// # Ok::<(), tollgate::RateError>(())
    /// ```
    pub fn slack(self, slack: u64) -> Result<Self, RateError> {
        let quota = self.quota();
        Settings { quota, slack }.bucket(&self.clock)
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.meter.settings.lock().quota
    }

    /// Changes the rate at once. The slack stays; `inherit` says what becomes of the units that could start now.
    ///
    /// # Errors
    /// [`RateError::Slack`] when the slack would take longer than 584 years to come. Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) -> Result<(), RateError> {
        self.set(|set| Settings { quota, ..set }, inherit)
    }

    /// Changes the slack at once; `inherit` says what becomes of the units that could start now. A debt stays.
    ///
    /// # Errors
    /// [`RateError::Slack`] as for [`slack`](Self::slack). Nothing is changed then.
    pub fn set_slack(&self, slack: u64, inherit: Inherit) -> Result<(), RateError> {
        self.set(|set| Settings { slack, ..set }, inherit)
    }

    fn set(&self, change: impl FnOnce(Settings) -> Settings, inherit: Inherit) -> Result<(), RateError> {
        {
            let mut settings = self.meter.settings.lock();
            let new = change(*settings);
            self.meter.tokens.set_quota(new.tokens()?, inherit, &self.clock);
            *settings = new;
        }
        self.notify_changed();
        Ok(())
    }
}

impl Counts for Leaky {
    type Ticket = BucketTicket;
    const LEG: &'static str = "leaky_bucket";
    const TYPE: &'static str = "LeakyBucket";

    #[inline(always)]
    fn take(&self, n: u64, now: Instant) -> Result<BucketTicket, Forecast> {
        self.tokens.take(n, now)
    }
    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        self.tokens.forecast(n, ahead, now)
    }
    fn give_back(&self, ticket: BucketTicket, clock: &Clock) {
        self.tokens.give_back(ticket, clock);
    }
    fn settle(&self, ticket: &mut BucketTicket, actual: u64, clock: &Clock) -> bool {
        self.tokens.settle(ticket, actual, clock)
    }
    fn force(&self, n: u64, clock: &Clock) {
        self.tokens.force(n, clock);
    }
    fn free(&self, now: Instant) -> u64 {
        self.tokens.free(now)
    }
    fn debt(&self, now: Instant) -> u64 {
        self.tokens.debt(now)
    }
    fn fresh_at(&self, now: Instant) -> Option<Instant> {
        self.tokens.fresh_at(now)
    }
    fn clear(&self, clock: &Clock) {
        self.tokens.clear(clock);
    }
    fn is_as_new(&self, now: Instant) -> bool {
        self.tokens.is_as_new(now)
    }
    fn state(&self, available: u64, next: Option<Duration>, _: Option<Duration>) -> State {
        self.settings.lock().quota.status(available, next)
    }
    fn debug(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        let settings = *self.settings.lock();
        out.field("quota", &format_args!("{}", settings.quota))
            .field("slack", &settings.slack);
    }
}
