//! The clock: real (raw ticks of the processor's counter) or manual (virtual nanoseconds, advanced by hand).
//!
//! An [`Instant`] counts ticks of its clock, whatever a tick is: limiters compile their rates for it once, so that an
//! admission multiplies raw ticks and converts nothing.

use super::manual::Manual;
use super::sleep::Sleep;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant of one [`Clock`], in its ticks. Instants of different clocks must not be compared.
///
/// Only the clock knows the length of a tick, so `Debug` prints ticks (nanoseconds on a manual clock).
/// The time from [`ZERO`](Self::ZERO) by [`Clock::between`] is readable.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let start = clock.now();
/// let deadline = clock.after(start, Duration::from_secs(2));
/// assert!(start < deadline);
/// assert_eq!(clock.between(start, deadline), Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant at which every clock starts, or earlier.
    pub const ZERO: Self = Self(0);

    /// Later than any instant of a clock.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant of this many [`ticks`](Self::ticks): for the ticket of a limiter of your own, which keeps instants as words.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Clock, Instant};
    /// let clock = Clock::real();
    /// let started = clock.now().ticks(); // Into the ticket.
    /// let ended = clock.after(Instant::from_ticks(started), Duration::from_secs(1));
    /// assert_eq!(ended.ticks() - started, clock.ticks_of(Duration::from_secs(1)));
    /// ```
    pub const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// The ticks of its clock since [`ZERO`](Self::ZERO).
    pub const fn ticks(self) -> u64 {
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

/// A source of time. Cheap to clone; clones are the same clock.
///
/// Clocks are monotonic: a manual clock never runs backwards, and neither does the real one, as far as the processor's counter
/// does not. It cannot be set, as the time of day can. Where a counter starts anew (a machine that was suspended, or moved to
/// another host), readings are earlier than before. For limiters an earlier instant counts as the latest, so they stand still
/// until the counter has caught up.
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
pub struct Clock(Kind);

#[derive(Clone)]
enum Kind {
    Real(&'static quanta::Clock),
    Manual(Arc<Manual>),
}

/// Ticks are converted by a fixed-point factor with this many fractional bits.
const SCALE_BITS: u32 = 40;

impl Clock {
    /// The machine's own clock. The first call in a process calibrates the counter, which takes up to 200 ms.
    pub fn real() -> Self {
        static COUNTER: OnceLock<quanta::Clock> = OnceLock::new();
        Self(Kind::Real(COUNTER.get_or_init(quanta::Clock::new)))
    }

    /// A clock that shows the time of `manual`.
    pub(super) fn of(manual: Arc<Manual>) -> Self {
        Self(Kind::Manual(manual))
    }

    pub(super) fn manual(&self) -> Option<&Arc<Manual>> {
        match &self.0 {
            Kind::Manual(manual) => Some(manual),
            Kind::Real(_) => None,
        }
    }

    /// The instant now.
    #[inline(always)] // row: token bucket admit
    pub fn now(&self) -> Instant {
        Instant(match &self.0 {
            Kind::Real(counter) => counter.raw(),
            Kind::Manual(manual) => manual.now(),
        })
    }

    /// The time of day: of the system, which may be set, and is read anew each time. A manual clock shows 1970-01-01
    /// 00:00:00 UTC at its origin, or what [`ManualClock::set_wall`](super::ManualClock::set_wall) says.
    ///
    /// ```
    /// # use tollgate::ManualClock;
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// let clock = ManualClock::new();
    /// clock.advance(Duration::from_secs(86_400));
    /// assert_eq!(clock.wall(), UNIX_EPOCH + Duration::from_secs(86_400));
    /// ```
    pub fn wall(&self) -> SystemTime {
        match self.manual() {
            Some(manual) => manual.wall(self.now()),
            None => SystemTime::now(),
        }
    }

    /// A timer that ends `duration` from now: the runtime's where one runs, virtual under a manual clock.
    ///
    /// # Panics
    /// When it is polled on the real clock in a tokio runtime that was built without timers, as tokio's own sleeps do.
    ///
    /// # Cancel safety
    /// Dropping it disarms it.
    ///
    /// ```
    /// # use tollgate::ManualClock;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// clock.run(async {
    ///     clock.sleep(Duration::from_secs(3_600)).await;
    ///     clock.sleep_until(clock.after(clock.now(), Duration::from_secs(60))).await;
    /// });
    /// assert_eq!(clock.elapsed(), Duration::from_secs(3_660));
    /// ```
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.after(self.now(), duration))
    }

    /// A timer that ends at `instant`; at once when that has passed.
    ///
    /// # Panics
    /// As [`sleep`](Self::sleep).
    pub fn sleep_until(&self, instant: Instant) -> Sleep {
        Sleep::until(self, instant)
    }

    /// The time from `earlier` to `later`, rounded up to a nanosecond; zero if `later` is earlier.
    ///
    /// ```
    /// # use tollgate::{Clock, ManualClock};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let start = clock.now();
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(clock.between(start, clock.now()), Duration::from_secs(2));
    /// assert!(clock.is_same(&clock.clone()) && !clock.is_same(&Clock::real()));
    /// ```
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

    /// The ticks of `duration`, rounded up, saturating.
    pub fn ticks_of(&self, duration: Duration) -> u64 {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let ticks = (u128::from(nanos) << SCALE_BITS).div_ceil(u128::from(self.nanos_scale()));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Nanoseconds per `2^40` ticks, by which a limiter compiles its rate for this clock.
    pub(crate) fn nanos_scale(&self) -> u64 {
        match &self.0 {
            Kind::Real(counter) => counter.delta_as_nanos(0, 1 << SCALE_BITS).max(1),
            Kind::Manual(_) => 1 << SCALE_BITS,
        }
    }

    /// The identity of the clock: every real clock is the same one.
    #[inline] // row: policy try_admit
    pub(crate) fn id(&self) -> usize {
        match &self.0 {
            Kind::Real(_) => 0,
            Kind::Manual(manual) => Arc::as_ptr(manual) as usize,
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.manual().is_some()
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

/// Nanoseconds from 1970-01-01 00:00:00 UTC to `wall`.
pub(crate) fn nanos_since_1970(wall: SystemTime) -> i128 {
    match wall.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::real()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Real(_) => "Clock(real)",
            Kind::Manual(_) => "Clock(manual)",
        })
    }
}
