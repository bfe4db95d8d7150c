//! A rate that warms up: the longer it was idle, the further apart admissions are at first.
//!
//! # The meter
//! Idle time stores permits, up to a maximum. The cost of the next permit depends on how many are stored. In intervals
//! of the stable rate it is one up to the threshold. From there on it is a straight line up to `cold` at the maximum.
//!
//! ```text
//! cost  cold |            /
//!            |          /
//!          1 |---------´
//!            +---------+----+--> stored
//!                 threshold  max
//! ```
//!
//! Taking permits walks to the left, and costs the area under the line. Let `n` be the permits that the stable rate
//! yields in the warm-up period. The threshold is `n / 2` and the maximum `n / 2 + 2n / (1 + cold)`, so that the walk
//! from cold to warm lasts one such period. (The construction is that of Guava's `SmoothWarmingUp`.)
//!
//! An admission starts at once, and the next one pays for it. So admissions are a sequence, and only the latest can be
//! undone.
//!
//! One permit taken while the limiter is free and cold is a [`SingleUnit`] until it is cold again.

use super::drain::Drain;
use super::inherit::Inherit;
use super::meter::Meter;
use super::meter_limiter::{MeterLimiter, RateTicket, meter_limiter};
use super::quota::Quota;
use super::rate_error::RateError;
use super::single_unit::{self, Known, SingleUnit, Times};
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::time::Duration;

const LEG: &str = "warmup";

/// Lets one request start at a time, spaced by its rate, and more slowly at first: for an upstream with caches to fill
/// and connections to open.
///
/// A new limiter is cold: the first interval is nearly the cold factor (3 unless set otherwise) times the stable one.
/// The intervals shrink to the stable one in the course of the warm-up period. Idle time cools it down again: after one
/// such period it is cold. At 2 a second, warmed up in 4 seconds, the intervals from cold are 1.375, 1.125, 0.875,
/// 0.625 and then 0.5 seconds.
///
/// A request of up to the quota's burst starts when the limiter is free, and occupies it for the sum of its units'
/// intervals: the next request waits for that. A larger request is `Oversized`. In any span of time `t` it admits at
/// most `burst + rate x t`, where `t` counts a tick of the clock longer.
///
/// # Giving back
/// A reservation that is cancelled before another is admitted leaves no trace, however late. Later it gives back
/// nothing: its intervals have passed. A [`settle`](crate::Permit::settle) of the latest admission is exact too. A
/// settle of an earlier one only charges more, from now on, and the latest can still be given back. One whose
/// successors were all cancelled may count as either. (When the latest settles after that, its intervals count from
/// then on, not from its admission.) Time without a rate, unlimited or zero, is not idle: it cools nothing down.
///
/// The construction is that of `SmoothWarmingUp` in Guava; for a cold factor of 3 that of Sentinel's warm-up is the
/// same.
///
/// ```
/// # use tollgate::{ManualClock, Quota, Warmup};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let warmup = Warmup::new(Quota::per_second(2), Duration::from_secs(4)).unwrap().on(&clock);
/// let mut waits = Vec::new();
/// for _ in 0..6 {
///     warmup.try_acquire(1).unwrap();
///     let wait = warmup.time_until(1).unwrap();
///     waits.push(wait.as_millis());
///     clock.advance(wait);
/// }
/// assert_eq!(waits, [1_375, 1_125, 875, 625, 500, 500]);
/// ```
pub struct Warmup {
    inner: MeterLimiter<WarmupMeter>,
    settings: Mutex<Settings>,
}

/// The settings in force.
#[derive(Clone, Copy, Debug)]
struct Settings {
    quota: Quota,
    period: Duration,
    cold: u32,
}

impl Settings {
    /// The pace for a clock, and the most units of one request.
    fn compile(&self, clock: &Clock) -> Result<(Pace, u64), RateError> {
        if self.period.is_zero() || self.period > Duration::from_secs(365 * 86_400) {
            return Err(RateError::Period { given: self.period });
        }
        if self.cold == 0 || self.cold > Shape::MAX_COLD {
            return Err(RateError::ColdFactor { given: self.cold });
        }
        let quota = self.quota;
        if quota.is_zero() {
            return Ok((Pace::Stopped, 0));
        }
        if quota.is_unlimited() {
            return Ok((Pace::Unlimited, 0));
        }
        let (count, nanos) = quota.reduced();
        let interval = Drain::new(count, nanos, clock.nanos_scale()).interval();
        let shape = Shape::new(
            (count, nanos),
            // At most 365 days.
            self.period.as_nanos() as u64,
            self.cold,
            interval.unwrap_or(u128::MAX),
            clock.ticks_of(self.period),
        );
        match shape {
            Some(shape) => Ok((Pace::Shaped(shape), quota.burst_size())),
            None => Err(RateError::Permits {
                quota,
                period: self.period,
            }),
        }
    }
}

impl Warmup {
    /// At the quota's rate once it is warm, `period` after a cold start; cold, on the real clock. At [`Quota::zero`] it
    /// admits nothing.
    ///
    /// # Errors
    /// [`RateError::Period`] when the period is zero or above 365 days; [`RateError::Permits`] when the rate yields more
    /// than 2^31 permits in that time.
    pub fn new(quota: Quota, period: Duration) -> Result<Self, RateError> {
        let set = Settings { quota, period, cold: 3 };
        Self::build(set, &Clock::real())
    }

    /// The same limiter on `clock`, cold.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let set = *self.settings.lock();
        // The bounds do not depend on the clock: they were checked when this limiter was made.
        Self::build(set, clock).unwrap_or(self)
    }

    /// The same limiter with another cold factor: how many times longer the interval is when it is cold.
    ///
    /// # Errors
    /// [`RateError::ColdFactor`] when it is none of 1 to 100.
    ///
    /// ```
    /// # use tollgate::{Inherit, ManualClock, Quota, Warmup};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let cache = Warmup::new(Quota::per_second(10), Duration::from_secs(3))?.cold_factor(2)?.on(&clock);
    /// assert_eq!(cache.acquire_up_to(5), 5, "paid for by the next caller");
    /// cache.force_acquire(1);
    /// assert!(cache.time_until(1) > Some(Duration::from_millis(200)));
    /// cache.set_quota(Quota::per_second(20), Inherit::AsIs)?;
    /// cache.reset();
    /// assert!(cache.available() > 0);
    /// # Ok::<(), tollgate::RateError>(())
    /// ```
    pub fn cold_factor(self, cold: u32) -> Result<Self, RateError> {
        let set = Settings {
            cold,
            ..*self.settings.lock()
        };
        Self::build(set, self.inner.clock())
    }

    fn build(set: Settings, clock: &Clock) -> Result<Self, RateError> {
        let (pace, burst) = set.compile(clock)?;
        Ok(Self {
            inner: MeterLimiter::new(LEG, clock, |now| WarmupMeter::new(now, pace, burst)),
            settings: Mutex::new(set),
        })
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.settings.lock().quota
    }

    /// Changes the rate at once. Earlier admissions are paid for at the old rate. `inherit` is the rule for the stored
    /// permits: as many as before, the same share of the maximum, or as many more or less as the maximum has changed
    /// by. After a [`Reset`](Inherit::Reset) all permits are stored, and it is free.
    ///
    /// # Errors
    /// [`RateError::Permits`] as for [`new`](Self::new). Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) -> Result<(), RateError> {
        let mut set = self.settings.lock();
        let new = Settings { quota, ..*set };
        let (pace, burst) = new.compile(self.inner.clock())?;
        self.inner.change(|warmup| {
            let (stored, old) = warmup.stored();
            let kept = inherit.room(stored.into(), old, pace.max()).max(0);
            warmup.set_pace(pace, burst, kept as u64);
            if inherit == Inherit::Reset {
                warmup.clear();
            }
        });
        *set = new;
        drop(set);
        self.inner.notify_changed();
        Ok(())
    }

    /// How far apart it admits single units just now: the stable interval, up to the cold factor times that. `None`
    /// when the rate is zero or unlimited. Rounded down to a nanosecond.
    pub fn interval(&self) -> Option<Duration> {
        let ticks = self.inner.read(WarmupMeter::interval)?;
        let nanos = (ticks >> 32).saturating_mul(u128::from(self.inner.clock().nanos_scale())) >> 40;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl Warmup {
    fn status(&self) -> Option<State> {
        self.quota().status(self.available(), self.time_until(1))
    }
}

meter_limiter!(Warmup, 1, status);

impl fmt::Debug for Warmup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = *self.settings.lock();
        f.debug_struct("Warmup")
            .field("quota", &format_args!("{}", set.quota))
            .field("period", &set.period)
            .field("cold_factor", &set.cold)
            .field("interval", &self.interval())
            .finish_non_exhaustive()
    }
}

/// One permit is `2^GRAIN` grains.
const GRAIN: u32 = 24;
/// The number of bits by which instants are finer than ticks.
const FINE: u32 = 32;

/// The fractional bits of idle time in ticks.
const IDLE: u32 = 12;

/// The shape of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The stable interval, in fine ticks.
    pub(super) interval: u128,
    /// How long an idle limiter takes to turn cold, in ticks.
    pub(super) period: u64,
    /// In grains.
    threshold: u64,
    /// In grains.
    max: u64,
    cold: u32,
    /// The cost of one permit when all are stored, in fine ticks.
    first: u128,
}

impl Shape {
    /// The most permits that can be stored.
    pub(super) const MAX_PERMITS: u64 = 1 << 32;
    /// The largest cold factor.
    pub(super) const MAX_COLD: u32 = 100;

    /// The shape for `count` per `nanos` and a period of `period_nanos`; `None` if it would store too many permits.
    pub(super) fn new(
        (count, nanos): (u64, u64),
        period_nanos: u64,
        cold: u32,
        interval: u128,
        period: u64,
    ) -> Option<Self> {
        let permits = u128::from(count) * u128::from(period_nanos) / u128::from(nanos);
        if permits > u128::from(Self::MAX_PERMITS / 2) {
            return None;
        }
        // Counts and periods are below 2^55, and their yield is below 2^32: each part fits.
        let grains = |numerator: u128, denominator: u128| {
            let (whole, rest) = (numerator / denominator, numerator % denominator);
            ((whole << GRAIN) + (rest << GRAIN) / denominator) as u64
        };
        let yielded = u128::from(count) * u128::from(period_nanos);
        let threshold = grains(yielded, 2 * u128::from(nanos));
        let max = threshold + grains(2 * yielded, u128::from(1 + cold) * u128::from(nanos));
        let shape = Self {
            interval,
            period,
            threshold,
            max,
            cold,
            first: 0,
        };
        let first = shape.cost_of(max, 1);
        Some(Self { first, ..shape })
    }

    /// The cost of `n` permits at `stored` grains, in fine ticks, rounded up.
    #[inline]
    pub(super) fn cost(&self, stored: u64, n: u64) -> u128 {
        if stored == self.max && n == 1 {
            return self.first;
        }
        self.cost_of(stored, n)
    }

    fn cost_of(&self, stored: u64, n: u64) -> u128 {
        let taken = u128::from(n) << GRAIN;
        let above = |stored: u128| stored.saturating_sub(u128::from(self.threshold));
        let (from, to) = (above(stored.into()), above(u128::from(stored).saturating_sub(taken)));
        let mut intervals = taken;
        if from > 0 && self.threshold > 0 {
            let steepness = u128::from(self.cold) * u128::from(self.cold) - 1;
            intervals += (steepness * (from * from - to * to)).div_ceil(8 * u128::from(self.threshold));
        }
        intervals.saturating_mul(self.interval).div_ceil(1 << GRAIN)
    }

    /// How long an idle limiter takes to store `missing` grains, rounded up to a tick.
    pub(super) fn idle_for(&self, missing: u64) -> u64 {
        let idle = (u128::from(missing) * u128::from(self.period)).div_ceil(u128::from(self.max.max(1)));
        u64::try_from(idle).unwrap_or(u64::MAX)
    }

    /// The current interval, in fine ticks.
    pub(super) fn slope_at(&self, stored: u64) -> u128 {
        let above = u128::from(stored.saturating_sub(self.threshold));
        if above == 0 || self.threshold == 0 {
            return self.interval;
        }
        let steepness = u128::from(self.cold) * u128::from(self.cold) - 1;
        let extra = ((steepness * above) << GRAIN) / (4 * u128::from(self.threshold));
        self.interval + (extra.saturating_mul(self.interval) >> GRAIN)
    }
}

/// The state that the next admission finds.
#[derive(Clone, Copy, Debug)]
struct PaceState {
    /// When the next may start, in fine ticks.
    free_at: u128,
    /// In grains.
    stored: u64,
}

/// The rate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    Stopped,
    Shaped(Shape),
    Unlimited,
}

#[derive(Debug)]
pub(super) struct WarmupMeter {
    now: u64,
    pace: Pace,
    /// The most units of one admission.
    burst: u64,
    state: PaceState,
    /// The state before the latest take.
    before: PaceState,
    /// The number of the latest take that can be undone.
    taken: u64,
    /// The times of one permit taken when cold.
    times: Times,
    /// Set while the only take since it was cold is one permit.
    single_unit: SingleUnit<u64>,
}

impl WarmupMeter {
    /// Free, and cold.
    pub(super) fn new(now: u64, pace: Pace, burst: u64) -> Self {
        let state = PaceState {
            free_at: fine(now),
            stored: pace.max(),
        };
        Self {
            now,
            pace,
            burst,
            state,
            before: state,
            taken: 1,
            times: pace.times(),
            single_unit: SingleUnit::new(0),
        }
    }

    /// The stored grains, and the maximum.
    pub(super) fn stored(&self) -> (u64, u64) {
        (self.current().stored, self.pace.max())
    }

    /// Changes the rate; `stored` grains are stored from now on. Earlier admissions are still paid for.
    pub(super) fn set_pace(&mut self, pace: Pace, burst: u64, stored: u64) {
        self.state = self.current();
        self.state.free_at = self.state.free_at.max(fine(self.now)); // Time without a rate was not idle.
        (self.pace, self.burst) = (pace, burst);
        self.times = pace.times();
        self.single_unit.end();
        self.state.stored = stored.min(pace.max());
        self.taken += 1;
    }

    /// The current interval, in fine ticks; `None` if it is stopped or unlimited.
    pub(super) fn interval(&self) -> Option<u128> {
        match self.pace {
            Pace::Shaped(shape) => Some(shape.slope_at(self.current().stored)),
            _ => None,
        }
    }

    /// The state now: idle time stores permits.
    fn current(&self) -> PaceState {
        let (now, Pace::Shaped(shape)) = (fine(self.now), self.pace) else {
            return self.state;
        };
        // Less than a tick is the rounding of a wait, and no idle time.
        if self.state.free_at.saturating_add(fine(1)) > now {
            return self.state;
        }
        // As fine as 128 bits allow, so that no part of a tick is lost each time.
        let period = u128::from(shape.period) << IDLE;
        let idle = ((now - self.state.free_at) >> (FINE - IDLE)).min(period);
        let (gained, period) = (idle * u128::from(shape.max), period.max(1));
        let missing = u128::from(shape.max.saturating_sub(self.state.stored));
        // A limiter that is full again needs no division.
        let stored = if gained >= missing * period {
            shape.max
        } else {
            self.state.stored + (gained / period) as u64
        };
        PaceState { free_at: now, stored }
    }

    /// True if the mark is that of the latest take, and that can be undone.
    fn is_latest(&self, mark: [u64; 1]) -> bool {
        match self.single_unit.find(mark[0]) {
            None => mark[0] == self.taken,
            Some(Known::As(number)) => number == self.taken,
            Some(Known::Past | Known::Cleared) => false,
        }
    }

    fn is_free(&self) -> bool {
        ticks(self.state.free_at) <= self.now
    }

    /// Lets `n` permits go from `state`.
    fn charge(&mut self, shape: &Shape, state: PaceState, n: u64) {
        let cost = shape.cost(state.stored, n);
        let taken = (u128::from(n) << GRAIN).min(u128::from(state.stored));
        self.state = PaceState {
            free_at: state.free_at.saturating_add(cost),
            stored: state.stored - taken as u64,
        };
    }
}

impl Pace {
    /// The most that can be stored, in grains.
    pub(super) fn max(&self) -> u64 {
        match self {
            Self::Shaped(shape) => shape.max,
            _ => 0,
        }
    }

    /// The times of one permit taken when all are stored: until it is paid and all are stored again.
    fn times(&self) -> Times {
        let Self::Shaped(shape) = self else { return Times::NEVER };
        let missing = shape.max.min(1 << GRAIN);
        let rest = shape.idle_for(missing);
        Times {
            lasts: ticks(shape.first).saturating_add(rest),
            rest,
        }
    }
}

fn fine(ticks: u64) -> u128 {
    u128::from(ticks) << FINE
}

/// Rounded up.
fn ticks(fine: u128) -> u64 {
    u64::try_from(fine.div_ceil(1 << FINE)).unwrap_or(u64::MAX)
}

impl Meter for WarmupMeter {
    type Mark = [u64; 1];

    const BY_WORD: Option<fn(u64) -> Self::Mark> = Some(|until| [single_unit::mark_of(until)]);

    fn went_by_word(&mut self, word: u64) {
        if self.single_unit.is(word) {
            return;
        }
        let freed = single_unit::since_of(word);
        let since = freed.unwrap_or_else(|| word - self.times.lasts);
        // It was cold: what was taken before was undone, or by then it was cold again.
        self.now = self.now.max(since);
        self.state = PaceState {
            free_at: fine(since),
            stored: self.pace.max(),
        };
        if freed.is_some() {
            // The latest was undone: no earlier one can be.
            self.taken += 1;
            return self.single_unit.is_free(since, self.times);
        }
        let [mark] = self.take(1);
        self.single_unit.went(word, mark);
    }

    #[inline(always)]
    fn open(&mut self) -> u64 {
        self.single_unit.open(self.now, self.times)
    }

    #[inline(always)]
    fn times(&self) -> Times {
        self.times
    }

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    fn free(&self) -> u64 {
        match self.pace {
            Pace::Unlimited => u64::MAX,
            Pace::Shaped(_) if self.is_free() => self.burst,
            _ => 0,
        }
    }

    fn take(&mut self, n: u64) -> Self::Mark {
        let shape = match self.pace {
            Pace::Shaped(shape) if n > 0 => shape,
            _ => return [0],
        };
        self.before = self.current();
        self.charge(&shape, self.before, n);
        self.taken += 1;
        if n == 1 && self.before.stored == shape.max && self.before.free_at == fine(self.now) && self.burst > 0 {
            self.single_unit.begin(self.now.saturating_add(self.times.lasts));
        } else {
            self.single_unit.end();
        }
        [self.taken]
    }

    fn restore(&mut self, mark: &Self::Mark, _: u64) {
        if self.is_latest(*mark) {
            self.state = self.before;
            self.single_unit.end();
        }
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        let Pace::Shaped(shape) = self.pace else { return actual };
        if self.is_latest(*mark) {
            self.charge(&shape, self.before, actual);
            self.single_unit.end();
        } else if let Some(more) = actual.checked_sub(charged) {
            // It is paid for with the latest take, and also without it, in case that is undone.
            //
            let latest = std::mem::replace(&mut self.state, self.before);
            self.charge(&shape, self.current(), more);
            self.before = std::mem::replace(&mut self.state, latest);
            self.charge(&shape, self.current(), more);
            self.single_unit.end();
        }
        actual
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if n == 0 && ahead == 0 {
            return Some(self.now);
        }
        match self.pace {
            Pace::Unlimited => Some(self.now),
            Pace::Shaped(shape) if n <= self.burst => {
                let PaceState { free_at, stored } = self.current();
                Some(ticks(free_at.saturating_add(shape.cost(stored, ahead))))
            }
            _ => None,
        }
    }

    fn fresh_at(&self) -> Option<u64> {
        let Pace::Shaped(shape) = self.pace else {
            return Some(self.now);
        };
        let PaceState { free_at, stored } = self.current();
        Some(ticks(free_at).saturating_add(shape.idle_for(shape.max - stored.min(shape.max))))
    }

    fn clear(&mut self) {
        self.single_unit.clear();
        *self = Self {
            taken: self.taken + 1,
            single_unit: self.single_unit,
            ..Self::new(self.now, self.pace, self.burst)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of 2.6 GHz, 24 MHz and 1 GHz: each permit is taken at the first tick at which it may be.
    #[test]
    fn steady_demand_on_a_warm_rate_loses_no_part_of_a_tick() {
        const PERMITS: u128 = 50_000;
        const SECOND: u64 = 1_000_000_000;
        for scale in [(1u64 << 40) * 5 / 13, (1 << 40) * 125 / 3, 1 << 40] {
            for count in [7, 900_000, 1_000_003, 3_000_000] {
                let interval = Drain::new(count, SECOND, scale).interval().unwrap();
                let period = (u128::from(SECOND) << 40) / u128::from(scale);
                let shape = Shape::new((count, SECOND), SECOND, 1, interval, period as u64).unwrap();
                let mut warmup = WarmupMeter::new(0, Pace::Shaped(shape), 1);
                for _ in 0..PERMITS {
                    assert!(warmup.fits(1));
                    warmup.take(1);
                    let ready = warmup.ready(1, 0).unwrap();
                    warmup.advance(ready);
                }
                let exact = ((PERMITS * u128::from(SECOND)) << 40) / u128::from(count) / u128::from(scale);
                let off = u128::from(warmup.now).abs_diff(exact);
                assert!(
                    off <= 2 + exact / 1_000_000,
                    "{count}/s of {scale}: {} for {exact}",
                    warmup.now
                );
            }
        }
    }

    /// Ten a second, cold, and a burst of four.
    fn cold() -> WarmupMeter {
        const SECOND: u64 = 1_000_000_000;
        let interval = Drain::new(10, SECOND, 1 << 40).interval().unwrap();
        let shape = Shape::new((10, SECOND), SECOND, 3, interval, SECOND).unwrap();
        WarmupMeter::new(0, Pace::Shaped(shape), 4)
    }

    #[test]
    fn half_a_period_of_idle_time_stores_half_of_the_permits() {
        let mut warmup = cold();
        warmup.state = PaceState {
            free_at: fine(100),
            stored: 0,
        };
        warmup.advance(101);
        assert_eq!(warmup.current().free_at, fine(101), "a whole tick counts");
        warmup.advance(100 + 500_000_000);
        let (stored, max) = warmup.stored();
        assert_eq!(stored, max / 2);
    }

    #[test]
    fn a_take_from_before_a_clear_gives_nothing_back() {
        for n in [1, 2] {
            let mut warmup = cold();
            let old = warmup.take(n);
            warmup.clear();
            assert_eq!(warmup.fresh_at(), Some(0));
            warmup.take(n);
            let paid = warmup.state.free_at;
            warmup.restore(&old, n);
            assert_eq!(warmup.state.free_at, paid, "{n}");
        }
    }

    /// Given a take through the word, a clear, and a take under the lock that counts until the same instant, then the word stays
    /// closed: it would give the later take to the mark of the earlier one.
    #[test]
    fn a_word_from_before_a_clear_is_not_opened_again() {
        let mut warmup = cold();
        let lasts = warmup.times.lasts;
        warmup.take(1);
        warmup.advance(lasts);
        warmup.went_by_word(2 * lasts);
        assert_eq!(warmup.open(), 2 * lasts);
        warmup.clear();
        warmup.take(1);
        assert_eq!(warmup.open(), single_unit::CLOSED);
    }
}
