//! The clock: real (raw ticks of the processor's counter) or manual (virtual nanoseconds that somebody advances).
//!
//! An [`Instant`] counts ticks of its clock, whatever a tick is: limiters compile their rates for it once, so that an
//! admission multiplies raw ticks and converts nothing.

use super::manual::Manual;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An instant of one [`Clock`], in its ticks. Instants of different clocks must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant at which every clock starts, or earlier.
    pub const ZERO: Self = Self(0);

    pub(crate) const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    pub(crate) const fn ticks(self) -> u64 {
        self.0
    }

    /// Saturating.
    pub(crate) const fn after_ticks(self, ticks: u64) -> Self {
        Self(self.0.saturating_add(ticks))
    }

    /// Saturating: zero when `earlier` is later.
    pub(crate) const fn ticks_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({} ticks)", self.0)
    }
}

/// Where time comes from. Cheap to clone; clones are the same clock.
///
/// A clock never runs backwards: a source that jumps back is answered with the latest reading.
///
/// ```
/// # use tollgate::{ManualClock, Quota, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock);
/// assert!(bucket.try_acquire(1).is_ok());
/// assert!(bucket.try_acquire(1).is_err());
/// clock.advance(Duration::from_millis(100));
/// assert!(bucket.try_acquire(1).is_ok());
/// ```
#[derive(Clone)]
pub struct Clock {
    /// What is read unless the clock is manual.
    counter: quanta::Clock,
    manual: Option<Arc<Manual>>,
}

/// Ticks are converted by a fixed-point factor with this many fractional bits.
const SCALE_BITS: u32 = 40;

fn counter() -> &'static quanta::Clock {
    static COUNTER: OnceLock<quanta::Clock> = OnceLock::new();
    COUNTER.get_or_init(quanta::Clock::new)
}

impl Clock {
    /// The machine's own clock. The first call in a process calibrates the counter, which takes up to 200 ms.
    pub fn real() -> Self {
        Self {
            counter: counter().clone(),
            manual: None,
        }
    }

    /// A clock that shows what `manual` says.
    pub(super) fn of(manual: Arc<Manual>) -> Self {
        // Never read, and needs no calibration.
        let (counter, _) = quanta::Clock::mock();
        Self {
            counter,
            manual: Some(manual),
        }
    }

    pub(super) fn manual(&self) -> Option<&Arc<Manual>> {
        self.manual.as_ref()
    }

    /// The instant now.
    #[inline(always)]
    pub fn now(&self) -> Instant {
        match &self.manual {
            None => Instant(self.counter.raw()),
            Some(manual) => Instant(manual.now()),
        }
    }

    /// From `earlier` to `later`, rounded up to a nanosecond; zero when they stand the other way round.
    pub fn between(&self, earlier: Instant, later: Instant) -> Duration {
        let ticks = u128::from(later.ticks_since(earlier));
        let nanos = (ticks * u128::from(self.nanos_scale())).div_ceil(1 << SCALE_BITS);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos)
    }

    /// The instant `duration` after `instant`, rounded up to a tick. Saturates at the end of time.
    pub fn after(&self, instant: Instant, duration: Duration) -> Instant {
        instant.after_ticks(self.ticks_of(duration))
    }

    /// How many ticks `duration` takes, rounded up, saturating.
    pub(crate) fn ticks_of(&self, duration: Duration) -> u64 {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let ticks = (u128::from(nanos) << SCALE_BITS).div_ceil(u128::from(self.nanos_scale()));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Nanoseconds per `2^40` ticks: what a limiter needs to compile its rate for this clock.
    pub(crate) fn nanos_scale(&self) -> u64 {
        match &self.manual {
            None => self.counter.delta_as_nanos(0, 1 << SCALE_BITS).max(1),
            Some(_) => 1 << SCALE_BITS,
        }
    }

    /// What tells clocks apart: every real clock is the same one.
    #[inline]
    pub(crate) fn id(&self) -> usize {
        self.manual.as_ref().map_or(0, |manual| Arc::as_ptr(manual) as usize)
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// True when both read the same time.
    pub fn is_same(&self, other: &Clock) -> bool {
        self.id() == other.id()
    }

    /// Runs `future` to its end on this thread, without any runtime.
    ///
    /// Under a manual clock time advances by itself: whenever nothing can run, to the next timer. On one thread that
    /// is deterministic. With no timer left it waits for another thread.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        super::manual::run(self, future)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::real()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.manual {
            None => "Clock(real)",
            Some(_) => "Clock(manual)",
        })
    }
}
