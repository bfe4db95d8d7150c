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

use super::inherit::{Inherit, share};
use super::limiter::Rate;
use super::meter::{Locked, Machine, Standing};
use super::quota::Quota;
use super::rate_error::{RateError, check_length};
use crate::time::{Clock, Instant};
use std::time::Duration;

/// Lets one request start at a time, spaced by its rate, and more slowly at first: for an upstream with caches to fill
/// and connections to open.
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
/// An admission that is cancelled before another is made leaves no trace, however late. Later it gives back
/// nothing: its intervals have passed. A [`settle`](crate::Permit::settle) of the latest admission is exact too. A
/// settle of an earlier one only charges more, from now on, and the latest can still be given back. One whose
/// successors were all cancelled may count as either. (When the latest settles after that, its intervals count from
/// then on, not from its admission.) Time without a rate, unlimited or zero, is not idle: it cools nothing down.
///
/// The construction is that of `SmoothWarmingUp` in Guava; for a cold factor of 3 that of Sentinel's warm-up is the
/// same.
pub type Warmup = Rate<Locked<Ramp>>;

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
        check_length(self.period)?;
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
        let shape = Shape::new(
            (count, nanos),
            // At most 365 days.
            self.period.as_nanos() as u64,
            self.cold,
            interval(count, nanos, clock.nanos_scale()),
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

impl Rate<Locked<Ramp>> {
    /// At the quota's rate once it is warm, `period` after a cold start; cold, on the real clock. At [`Quota::zero`] it
    /// admits nothing.
    ///
    /// # Errors
    /// [`RateError::Length`] when the period is zero or above 365 days; [`RateError::Permits`] when the rate yields more
    /// than 2^31 permits in that time.
    pub fn new(quota: Quota, period: Duration) -> Result<Self, RateError> {
        let set = Settings { quota, period, cold: 3 };
        Self::build(set, &Clock::real())
    }

    /// The same limiter on `clock`, cold.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let set = self.meter.look(|ramp| ramp.settings);
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
        let set = self.meter.look(|ramp| Settings { cold, ..ramp.settings });
        Self::build(set, &self.clock)
    }

    fn build(set: Settings, clock: &Clock) -> Result<Self, RateError> {
        let ramp = Ramp::new(clock.now().ticks(), set, set.compile(clock)?);
        Ok(Self::of(Locked::new(ramp), clock))
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.meter.look(|ramp| ramp.settings.quota)
    }

    /// Changes the rate at once. Earlier admissions are paid for at the old rate. `inherit` is the rule for the stored
    /// permits: as many as before, or the same share of the maximum. After a [`Reset`](Inherit::Reset) all permits are stored, and it is free.
    ///
    /// # Errors
    /// [`RateError::Permits`] as for [`new`](Self::new). Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) -> Result<(), RateError> {
        let settings = self.meter.look(|ramp| Settings { quota, ..ramp.settings });
        let compiled = settings.compile(&self.clock)?;
        self.meter
            .change(self.clock.now(), |ramp| ramp.set_pace(settings, compiled, inherit));
        self.notify_changed();
        Ok(())
    }

    /// How far apart it admits single units just now: the stable interval, up to the cold factor times that. `None`
    /// when the rate is zero or unlimited. Rounded down to a nanosecond.
    pub fn interval(&self) -> Option<Duration> {
        let now = self.clock.now();
        let ticks = self.meter.at(now, |ramp| ramp.interval())?;
        let nanos = (ticks >> 32).saturating_mul(u128::from(self.clock.nanos_scale())) >> 40;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

/// How long one unit takes at `count` per `nanos`, in `2^-32` ticks, of which `2^40` last `scale` nanoseconds; rounded up.
fn interval(count: u64, nanos: u64, scale: u64) -> u128 {
    // At most 2^55 nanoseconds are a period.
    (u128::from(nanos) << 72).div_ceil(u128::from(count) * u128::from(scale))
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
    /// How much a grain costs more for each two grains above the threshold, in `2^-96` intervals of a permit; rounded up.
    steepness: u128,
    /// The cost of one permit from the maximum, in fine ticks: the usual take of a rate that is seldom reached.
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
        let rise = u128::from(cold) * u128::from(cold) - 1;
        let shape = Self {
            interval,
            period,
            threshold,
            max,
            steepness: (rise << 93).checked_div(threshold.into()).map_or(0, |exact| exact + 1),
            first: 0,
        };
        let first = shape.cost(max, max.saturating_sub(1 << GRAIN), 1);
        Some(Self { first, ..shape })
    }

    /// The state after `n` permits were taken from `state`.
    fn take(&self, PaceState { free_at, stored }: PaceState, n: u64) -> PaceState {
        let left = stored - (u128::from(n) << GRAIN).min(stored.into()) as u64;
        let cost = match n == 1 && stored == self.max {
            true => self.first,
            false => self.cost(stored, left, n),
        };
        PaceState {
            free_at: free_at.saturating_add(cost),
            stored: left,
        }
    }

    /// The cost of `n` permits on the way from `stored` to `left` grains, in fine ticks: at least `n` intervals, and exact to
    /// `2^-24` of an interval and `2^-32` of each permit's.
    fn cost(&self, stored: u64, left: u64, n: u64) -> u128 {
        let [from, to] = [stored, left].map(|stored| stored.saturating_sub(self.threshold));
        let slope = (u128::from(from + to) * self.steepness) >> 64;
        let intervals = (u128::from(n) << GRAIN) + (u128::from(from - to) * slope).div_ceil(1 << 32);
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
        let extra = (2 * above * self.steepness) >> (96 - GRAIN);
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

/// The meter of a [`Warmup`].
#[derive(Debug)]
pub struct Ramp {
    now: u64,
    settings: Settings,
    pace: Pace,
    /// The most units of one admission.
    burst: u64,
    state: PaceState,
    /// The state before the latest take.
    before: PaceState,
    /// The number of the latest take that can be undone.
    taken: u64,
}

impl Ramp {
    /// Free, and cold.
    fn new(now: u64, settings: Settings, (pace, burst): (Pace, u64)) -> Self {
        let state = PaceState {
            free_at: fine(now),
            stored: pace.max(),
        };
        Self {
            now,
            settings,
            pace,
            burst,
            state,
            before: state,
            taken: 1,
        }
    }

    /// Changes the rate. Earlier admissions are still paid for.
    fn set_pace(&mut self, settings: Settings, (pace, burst): (Pace, u64), inherit: Inherit) {
        self.state = self.current();
        self.state.free_at = self.state.free_at.max(fine(self.now)); // Time without a rate was not idle.
        let (stored, old) = (self.state.stored, self.pace.max());
        (self.settings, self.pace, self.burst) = (settings, pace, burst);
        self.state.stored = match inherit {
            Inherit::Proportional => share(stored, old, pace.max()),
            _ => stored.min(pace.max()),
        };
        // A state stores at most what its pace can.
        (self.before, self.taken) = (self.state, self.taken + 1);
        if inherit == Inherit::Reset {
            self.clear();
        }
    }

    /// The current interval, in fine ticks; `None` if it is stopped or unlimited.
    pub(super) fn interval(&self) -> Option<u128> {
        match self.pace {
            Pace::Shaped(shape) => Some(shape.slope_at(self.current().stored)),
            _ => None,
        }
    }

    /// The state now.
    fn current(&self) -> PaceState {
        self.stored_since(self.state)
    }

    /// What has become of `state` by now: idle time stores permits.
    fn stored_since(&self, state: PaceState) -> PaceState {
        let (now, Pace::Shaped(shape)) = (fine(self.now), &self.pace) else {
            return state;
        };
        // Less than a tick is the rounding of a wait, and no idle time.
        if state.free_at.saturating_add(fine(1)) > now {
            return state;
        }
        // As fine as 128 bits allow, so that no part of a tick is lost each time.
        let period = u128::from(shape.period) << IDLE;
        let idle = ((now - state.free_at) >> (FINE - IDLE)).min(period);
        let (gained, period) = (idle * u128::from(shape.max), period.max(1));
        let missing = u128::from(shape.max.saturating_sub(state.stored));
        // A limiter that is full again needs no division.
        let stored = if gained >= missing * period {
            shape.max
        } else {
            state.stored + (gained / period) as u64
        };
        PaceState { free_at: now, stored }
    }

    /// True if the mark is that of the latest take, and that can be undone.
    fn is_latest(&self, mark: u64) -> bool {
        mark == self.taken
    }

    fn is_free(&self) -> bool {
        ticks(self.state.free_at) <= self.now
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
}

fn fine(ticks: u64) -> u128 {
    u128::from(ticks) << FINE
}

/// Rounded up.
fn ticks(fine: u128) -> u64 {
    u64::try_from(fine.div_ceil(1 << FINE)).unwrap_or(u64::MAX)
}

impl Machine for Ramp {
    const LEG: &'static str = "warmup";

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn free(&self) -> u64 {
        match self.pace {
            Pace::Unlimited => u64::MAX,
            Pace::Shaped(_) if self.is_free() => self.burst,
            _ => 0,
        }
    }

    fn take(&mut self, n: u64) -> u64 {
        let Pace::Shaped(shape) = &self.pace else { return 0 };
        if n == 0 {
            return 0;
        }
        self.before = self.current();
        self.state = shape.take(self.before, n);
        self.taken += 1;
        self.taken
    }

    fn settle(&mut self, mark: &mut u64, charged: u64, actual: u64) -> u64 {
        let Pace::Shaped(shape) = self.pace else { return actual };
        if self.is_latest(*mark) {
            self.state = shape.take(self.before, actual);
        } else if let Some(more) = actual.checked_sub(charged) {
            // It is paid for with the latest take, and also without it, in case that is undone.
            self.before = shape.take(self.stored_since(self.before), more);
            self.state = shape.take(self.current(), more);
        }
        actual
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if n == 0 && ahead == 0 {
            return Some(self.now);
        }
        match self.pace {
            Pace::Unlimited => Some(self.now),
            Pace::Shaped(shape) if n <= self.burst => Some(ticks(shape.take(self.current(), ahead).free_at)),
            _ => None,
        }
    }

    fn clear(&mut self) {
        let taken = self.taken + 1;
        *self = Self {
            taken,
            ..Self::new(self.now, self.settings, (self.pace, self.burst))
        };
    }

    fn standing(&self) -> Standing {
        let fresh_at = match self.pace {
            Pace::Shaped(shape) => {
                let PaceState { free_at, stored } = self.current();
                ticks(free_at).saturating_add(shape.idle_for(shape.max - stored.min(shape.max)))
            }
            _ => self.now,
        };
        Standing {
            limit: self.settings.quota.burst_size(),
            window: self.settings.quota.window(),
            free: self.free(),
            debt: 0,
            fresh_at: Some(Instant::from_ticks(fresh_at)),
            is_window: false,
            is_changed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::meter::Meter;

    const SECOND: u64 = 1_000_000_000;

    fn ramp(shape: Shape, burst: u64) -> Ramp {
        let settings = Settings {
            quota: Quota::per_second(10),
            period: Duration::from_secs(1),
            cold: 3,
        };
        Ramp::new(0, settings, (Pace::Shaped(shape), burst))
    }

    /// Counters of 2.6 GHz, 24 MHz and 1 GHz: each permit is taken at the first tick at which it may be.
    #[test]
    fn steady_demand_on_a_warm_rate_loses_no_part_of_a_tick() {
        const PERMITS: u128 = 50_000;
        for scale in [(1u64 << 40) * 5 / 13, (1 << 40) * 125 / 3, 1 << 40] {
            for count in [7, 900_000, 1_000_003, 3_000_000] {
                let period = (u128::from(SECOND) << 40) / u128::from(scale);
                let shape = Shape::new(
                    (count, SECOND),
                    SECOND,
                    1,
                    interval(count, SECOND, scale),
                    period as u64,
                );
                let mut warmup = ramp(shape.unwrap(), 1);
                for _ in 0..PERMITS {
                    assert!(warmup.free() >= 1);
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
    fn cold() -> Ramp {
        let shape = Shape::new((10, SECOND), SECOND, 3, interval(10, SECOND, 1 << 40), SECOND);
        ramp(shape.unwrap(), 4)
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
        assert_eq!(warmup.current().stored, warmup.pace.max() / 2);
    }

    #[test]
    fn a_take_from_before_a_clear_gives_nothing_back() {
        for n in [1, 2] {
            let mut warmup = cold();
            let mut old = warmup.take(n);
            warmup.clear();
            assert_eq!(warmup.standing().fresh_at, Some(Instant::ZERO));
            warmup.take(n);
            let paid = warmup.state.free_at;
            warmup.settle(&mut old, n, 0);
            assert_eq!(warmup.state.free_at, paid, "{n}");
        }
    }

    /// Given a take before a change to a far lower rate, when it is settled to more, then that is charged.
    #[test]
    fn a_take_from_before_a_change_of_the_rate_is_settled() {
        for inherit in [Inherit::AsIs, Inherit::Proportional, Inherit::Reset] {
            let warmup = Warmup::new(Quota::per_second(1_000_000_000), Duration::from_secs(2)).unwrap();
            let warmup = warmup.on(&crate::ManualClock::new());
            let mut ticket = Meter::take(&warmup.meter, 1, Instant::ZERO).unwrap();
            let slow = Quota::new(1, Duration::from_secs(8_000_000)).unwrap();
            warmup.set_quota(slow, inherit).unwrap();
            Meter::settle(&warmup.meter, &mut ticket, 2, &warmup.clock);
            assert_eq!(warmup.available(), 0);
        }
    }
}
