//! A quota: a count per period, and a burst.

use crate::core::status::State;
use std::fmt;
use std::time::Duration;

/// A rate of `count` per period, of which up to `burst` may be saved up. Units come one by one, evenly, or all of a
/// period at its end ([`by_interval`](Self::by_interval)).
///
/// From one per 365 days to 10^9 per second; bursts of 1 to 2^40, as long as the burst refills within 584 years. The two
/// extremes have names, so that no number stands for them: [`zero`](Self::zero) and [`unlimited`](Self::unlimited).
///
/// As text: `"100/s"`, `"5000/min burst 200"`, `"10/100ms"`, `"3/20s burst 7 by interval"`, `"zero"`, `"zero burst 5"`,
/// `"unlimited"`.
///
/// ```
/// # use tollgate::Quota;
/// # use std::time::Duration;
/// assert_eq!(Quota::per_second(100).burst(20), "100/s burst 20".parse().unwrap());
/// assert_eq!(Quota::new(10, Duration::from_millis(100)).unwrap().to_string(), "10/100ms");
/// assert!("0/s".parse::<Quota>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Zero and `u64::MAX` stand for the extremes.
    count: u64,
    period_nanos: u64,
    burst: u64,
    by_interval: bool,
}

const NANOS: u64 = 1_000_000_000;
const YEAR_NANOS: u64 = 365 * 86_400 * NANOS;

impl Quota {
    /// The largest burst.
    pub const MAX_BURST: u64 = 1 << 40;

    /// `count` per `period`. The burst is `count` too, unless [`burst`](Self::burst) says otherwise.
    ///
    /// # Errors
    /// [`QuotaError`] when the rate or the burst is out of range.
    pub const fn new(count: u64, period: Duration) -> Result<Self, QuotaError> {
        let nanos = period.as_nanos();
        if nanos == 0 || nanos > YEAR_NANOS as u128 {
            return Err(QuotaError::Period { given: period });
        }
        match Self::checked(count, nanos as u64) {
            Some(quota) => Ok(quota),
            None => Err(QuotaError::Rate { count, period }),
        }
    }

    const fn checked(count: u64, period_nanos: u64) -> Option<Self> {
        // With a period of at most 365 days, a count of one is at least one per 365 days.
        if count == 0 || count > period_nanos {
            return None;
        }
        let burst = if count > Self::MAX_BURST {
            Self::MAX_BURST
        } else {
            count
        };
        Some(Self {
            count,
            period_nanos,
            burst,
            by_interval: false,
        })
    }

    /// Nothing is refilled as time passes. Its burst is zero too, unless one is set: then it is a budget that can be
    /// spent once.
    ///
    /// ```
    /// # use tollgate::{Quota, TokenBucket};
    /// assert!(TokenBucket::new(Quota::zero()).try_acquire(1).is_err());
    /// let budget = TokenBucket::new(Quota::zero().burst(2));
    /// assert!(budget.try_acquire(2).is_ok());
    /// assert_eq!(budget.try_acquire(1).unwrap_err().retry_after(), None);
    /// ```
    pub const fn zero() -> Self {
        Self::extreme(0)
    }

    /// Everything is admitted, and nothing is counted. Its count and its burst read as `u64::MAX`.
    ///
    /// ```
    /// # use tollgate::{Quota, TokenBucket};
    /// let open = TokenBucket::new(Quota::unlimited());
    /// assert!(open.try_acquire(u64::MAX).is_ok());
    /// assert_eq!(open.available(), u64::MAX);
    /// ```
    pub const fn unlimited() -> Self {
        Self::extreme(u64::MAX)
    }

    const fn extreme(count: u64) -> Self {
        Self {
            count,
            period_nanos: NANOS,
            burst: count,
            by_interval: false,
        }
    }

    /// The same rate, refilled by interval: nothing during a period, and all its `count` at the end of it. Periods
    /// start when the limiter is made.
    ///
    /// It says how a [`TokenBucket`](crate::TokenBucket) fills. It changes nothing for limiters that space their
    /// admissions evenly, nor for a quota that is zero or unlimited.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Quota, TokenBucket};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_second(3).burst(7).by_interval()).on(&clock);
    /// bucket.try_acquire(7).unwrap();
    /// clock.advance(Duration::from_millis(999));
    /// assert_eq!(bucket.available(), 0);
    /// clock.advance(Duration::from_millis(1));
    /// assert_eq!(bucket.available(), 3);
    /// ```
    #[must_use]
    pub const fn by_interval(self) -> Self {
        let by_interval = !self.is_zero() && !self.is_unlimited();
        Self { by_interval, ..self }
    }

    /// `count` per second, for constants.
    ///
    /// # Panics
    /// If `count` is zero or above 10^9. For numbers that come from elsewhere: [`new`](Self::new).
    pub const fn per_second(count: u64) -> Self {
        Self::constant(count, 1)
    }

    /// `count` per minute, for constants.
    ///
    /// # Panics
    /// If `count` is zero or above 6 x 10^10.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_minute(60).burst(1).to_string(), "60/min burst 1");
    /// assert_eq!(Quota::per_hour(3_600).count(), 3_600);
    /// assert!(Quota::per_second(1).with_burst(0).is_err());
    /// ```
    pub const fn per_minute(count: u64) -> Self {
        Self::constant(count, 60)
    }

    /// `count` per hour, for constants.
    ///
    /// # Panics
    /// If `count` is zero or above 3.6 x 10^12.
    pub const fn per_hour(count: u64) -> Self {
        Self::constant(count, 3_600)
    }

    const fn constant(count: u64, seconds: u64) -> Self {
        match Self::checked(count, seconds * NANOS) {
            Some(quota) => quota,
            None => panic!("a rate is at least one per period and at most one per nanosecond"),
        }
    }

    /// The same rate with another burst, for constants.
    ///
    /// # Panics
    /// If `burst` is out of range. For numbers that come from elsewhere: [`with_burst`](Self::with_burst).
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        assert!(self.fits(burst), "a burst is 1 to 2^40 and refills within 584 years");
        Self { burst, ..self }
    }

    /// The same rate with another burst.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when it is zero, above [`MAX_BURST`](Self::MAX_BURST), or would not refill within 584
    /// years; and for [`unlimited`](Self::unlimited), which has none.
    pub const fn with_burst(self, burst: u64) -> Result<Self, QuotaError> {
        if !self.fits(burst) {
            return Err(QuotaError::Burst { given: burst });
        }
        Ok(Self { burst, ..self })
    }

    const fn fits(&self, burst: u64) -> bool {
        if burst == 0 || burst > Self::MAX_BURST || self.is_unlimited() {
            return false;
        }
        self.is_zero() || burst as u128 * self.period_nanos as u128 / self.count as u128 <= u64::MAX as u128
    }

    /// True for [`zero`](Self::zero), with any burst.
    pub const fn is_zero(&self) -> bool {
        self.count == 0
    }

    /// True for [`unlimited`](Self::unlimited).
    pub const fn is_unlimited(&self) -> bool {
        self.count == u64::MAX
    }

    /// True when it is refilled [`by_interval`](Self::by_interval).
    pub const fn is_by_interval(&self) -> bool {
        self.by_interval
    }

    /// How many per [`period`](Self::period).
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The period that [`count`](Self::count) is counted by.
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_nanos)
    }

    /// How many may be saved up.
    pub const fn burst_size(&self) -> u64 {
        self.burst
    }

    /// `count` per the same period, with the same burst, as far as both can be: at most one per nanosecond, and a burst that
    /// refills within 584 years. From an unlimited quota, with a burst of `count`.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_minute(60).burst(5).with_count(90), Quota::per_minute(90).burst(5));
    /// ```
    #[must_use]
    pub fn with_count(self, count: u64) -> Self {
        let burst = if self.is_unlimited() { count } else { self.burst };
        let count = count.min(self.period_nanos);
        let fits = u128::from(u64::MAX) * u128::from(count.max(1)) / u128::from(self.period_nanos);
        Self {
            count,
            burst: burst.min(Self::MAX_BURST).min(u64::try_from(fits).unwrap_or(u64::MAX)),
            by_interval: self.by_interval && count > 0,
            ..self
        }
    }

    /// The rate in lowest terms: tokens, and the nanoseconds that they take. For a rate that is neither zero nor
    /// unlimited.
    pub(crate) fn reduced(&self) -> (u64, u64) {
        let (mut a, mut b) = (self.count, self.period_nanos);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (self.count / a, self.period_nanos / a)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return f.write_str("unlimited");
        }
        if self.is_zero() {
            f.write_str("zero")?;
            return match self.burst {
                0 => Ok(()),
                burst => write!(f, " burst {burst}"),
            };
        }
        write!(f, "{}/", self.count)?;
        let units = super::parse::UNITS;
        // The largest unit that divides the period; nanoseconds always do.
        for (name, _, nanos) in units.iter().rev() {
            if self.period_nanos % *nanos == 0 {
                match self.period_nanos / nanos {
                    1 => write!(f, "{name}")?,
                    n => write!(f, "{n}{name}")?,
                }
                break;
            }
        }
        if self.burst != self.count {
            write!(f, " burst {}", self.burst)?;
        }
        if self.by_interval {
            f.write_str(" by interval")?;
        }
        Ok(())
    }
}

impl Quota {
    /// The state of a rate by this quota: none if it is unlimited.
    pub(crate) fn status(&self, available: u64, next: Option<Duration>) -> State {
        if self.is_unlimited() {
            return State::Unknown;
        }
        State::Rate {
            limit: self.burst_size(),
            window: self.window(),
            available,
            next,
            reset: None,
        }
    }

    /// The time in which the burst comes.
    pub(crate) fn window(&self) -> Duration {
        match self.count() {
            0 => Duration::MAX,
            count => scaled(self.period(), self.burst_size(), count),
        }
    }

    /// One unit after the other: the same rate with a burst of `1 + slack`. A quota that is zero or unlimited has no slack.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the slack is 2^40 or more, or takes longer than 584 years to come.
    pub(super) fn even(self, slack: u64) -> Result<Self, QuotaError> {
        let given = slack.saturating_add(1);
        if given > Self::MAX_BURST {
            return Err(QuotaError::Burst { given });
        }
        match self {
            _ if self.is_zero() => Ok(Self::zero()),
            _ if self.is_unlimited() => Ok(self),
            _ => Self {
                by_interval: false,
                ..self
            }
            .with_burst(given),
        }
    }
}

/// `time x by / of`, rounded up to a nanosecond.
fn scaled(time: Duration, by: u64, of: u64) -> Duration {
    let nanos = time.as_nanos().saturating_mul(by.into()).div_ceil(of.max(1).into());
    let (secs, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    u64::try_from(secs).map_or(Duration::MAX, |secs| Duration::new(secs, nanos as u32))
}

/// Why a number or a text is not a quota.
///
/// ```
/// # use tollgate::{Quota, QuotaError};
/// let error = "100/minute burst x".parse::<Quota>().unwrap_err();
/// assert!(matches!(error, QuotaError::Text { .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The period must be above zero and at most 365 days.
    Period {
        /// The given period.
        given: Duration,
    },
    /// The rate must be at least one per period and at most one per nanosecond.
    Rate {
        /// The given count.
        count: u64,
        /// The given period.
        period: Duration,
    },
    /// The burst must be 1 to 2^40 and refill within 584 years. An unlimited quota takes none.
    Burst {
        /// The given burst.
        given: u64,
    },
    /// The text is not of the form `COUNT/PERIOD`, then optionally `burst COUNT` and `by interval`; nor `zero`, nor
    /// `unlimited`.
    Text {
        /// The whole text.
        given: Box<str>,
        /// The column of the error, from 1.
        column: usize,
        /// What the parser expects there.
        expected: &'static str,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Period { given } => {
                write!(
                    f,
                    "a period of {given:?} was given, and above zero to 365 days is allowed"
                )
            }
            Self::Rate { count, period } => write!(
                f,
                "{count} per {period:?} was given, and one per period to one per nanosecond is allowed"
            ),
            Self::Burst { given } => write!(
                f,
                "a burst of {given} was given, and 1 to 2^40 that refills within 584 years is allowed"
            ),
            Self::Text {
                given,
                column,
                expected,
            } => write!(f, "`{given}` is no quota: {expected} expected at column {column}"),
        }
    }
}

impl std::error::Error for QuotaError {}
