//! A quota compiled for a clock, and the slots in which a bucket publishes it.
//!
//! A bucket's axis gains `mul / 2^(64 - shift)` units per tick since `epoch`; one token is `2^scale` units. `mul` is
//! rounded up, so that the axis has a whole token at the instant at which the exact rate has gained it. It never gains
//! a unit more than `ticks x rate + 1`.
//!
//! A bucket that is refilled by interval gains `step` units at the end of each interval, which is `mul / 2^shift` ticks
//! long. That takes a division, and has its own slow path.

use super::POSITION;
use crate::rate::quota::Quota;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::time::axis;
use crate::time::{Clock, Instant};

/// Where every axis starts: above the largest burst, so that no position is negative.
pub(super) const ORIGIN: u64 = 1 << 46;
/// The largest burst in units.
const MAX_BURST_UNITS: u64 = 1 << 45;
/// How far ahead of the axis bookings may reach. So a position keeps within its 48 bits.
pub(super) const MAX_AHEAD: u64 = MAX_BURST_UNITS;
/// How far an axis may go before it is restarted.
const MAX_GAIN: u64 = 1 << 47;
/// The least lifetime of an axis; the start of a restarted one lies at most a quarter of it back.
const MIN_LIFE_NANOS: u128 = 3_600_000_000_000;

/// A quota compiled for a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) epoch: Instant,
    pub(super) mul: u64,
    pub(super) shift: u32,
    pub(super) scale: u32,
    /// The units that come at the end of each interval; zero for a continuous refill.
    pub(super) step: u64,
    /// The most that the bucket holds, in units: the burst, plus less than a token for the rounding of waits.
    pub(super) burst: u64,
    /// The axis at its epoch, less the burst.
    pub(super) floor: u64,
    /// The axis lives for fewer ticks than this.
    pub(super) life: u64,
    /// The largest debt, in units.
    pub(super) debt: u64,
}

/// The scale of an unlimited quota: every number of tokens is zero units.
const UNLIMITED_SCALE: u32 = 49;

impl Params {
    pub(super) fn compile(quota: &Quota, clock: &Clock, epoch: Instant) -> Self {
        if quota.is_unlimited() {
            Self::constant(UNLIMITED_SCALE, 0, epoch)
        } else if quota.is_zero() {
            // Not finer, so that a debt finds room.
            let scale = fits(quota.burst_size().into(), MAX_BURST_UNITS).min(16);
            Self::constant(scale, quota.burst_size(), epoch)
        } else if quota.is_by_interval() {
            Self::stepping(quota, clock, epoch)
        } else {
            Self::flowing(quota, clock, epoch)
        }
    }

    /// An axis that gains nothing.
    fn constant(scale: u32, burst: u64, epoch: Instant) -> Self {
        Self {
            epoch,
            mul: 0,
            shift: 0,
            scale,
            step: 0,
            burst: burst << scale,
            floor: ORIGIN - (burst << scale),
            life: u64::MAX,
            debt: ORIGIN,
        }
    }

    /// Whole tokens at a time need no fractions: a unit is a token.
    fn stepping(quota: &Quota, clock: &Clock, epoch: Instant) -> Self {
        let burst = quota.burst_size();
        // More would overflow any bucket, however deep in debt.
        let step = quota.count().min(MAX_GAIN);
        let ticks = clock.ticks_of(quota.period());
        // As fine as at least four intervals leave room for: at most 2^58 ticks are 365 days.
        let shift = ticks.leading_zeros().saturating_sub(2).min(16);
        let nanos = quota.period().as_nanos() << (40 + shift);
        let mul = nanos.div_ceil(clock.nanos_scale().into());
        let mul = u64::try_from(mul).unwrap_or(u64::MAX);
        let life = (u128::from(MAX_GAIN / step) * u128::from(mul)) >> shift;
        Self {
            epoch,
            mul,
            shift,
            scale: 0,
            step,
            burst,
            floor: ORIGIN - burst,
            life: (u64::MAX >> shift)
                .min(u64::try_from(life).unwrap_or(u64::MAX))
                .saturating_add(1),
            debt: Self::debt(quota, 0),
        }
    }

    fn flowing(quota: &Quota, clock: &Clock, epoch: Instant) -> Self {
        let (count, nanos) = quota.reduced();
        let scale = Self::scale(quota, count, nanos);
        // Units per 2^40 ticks, times 2^24: an exact fraction over `nanos`, with 64 fractional bits per tick.
        let units = u128::from(count) << scale;
        let per_tick = ((units * u128::from(clock.nanos_scale())) << 24).div_ceil(u128::from(nanos));
        let mut shift = 0;
        let mul = loop {
            match u64::try_from(per_tick.div_ceil(1 << shift)) {
                Ok(mul) => break mul,
                Err(_) => shift += 1,
            }
        };
        let burst = (quota.burst_size() << scale) + Self::slack(mul, shift, 1 << scale);
        Self {
            epoch,
            mul,
            shift,
            scale,
            step: 0,
            burst,
            floor: ORIGIN - burst,
            debt: Self::debt(quota, scale),
            // Where ticks are shifted, `mul` is 2^63 at the least: shifted ticks stay within 2^48.
            life: axis::ticks_until(MAX_GAIN, mul, shift).saturating_add(1),
        }
    }

    /// How much a bucket may hold beyond its burst: the gain of one tick, but less than a token. So a bucket whose
    /// burst is wanted each time loses nothing when each wait is rounded up to a tick. Zero where no wait is rounded,
    /// or by less than a millionth.
    fn slack(mul: u64, shift: u32, token: u64) -> u64 {
        let ticks = axis::ticks_until(token, mul, shift);
        let exact = u128::from(token) << 64;
        let rounded = u128::from(ticks << shift) * u128::from(mul);
        if rounded.saturating_sub(exact) <= exact / 1_000_000 {
            return 0;
        }
        (axis::gained(1, mul, shift) + 1).min(token - 1)
    }

    /// Two bursts, or half an hour's refill, in units.
    fn debt(quota: &Quota, scale: u32) -> u64 {
        let nanos = quota.period().as_nanos();
        let refill = u128::from(quota.count()) * MIN_LIFE_NANOS / 2 / nanos;
        let tokens = refill.max(2 * u128::from(quota.burst_size()));
        // Both leave room for as many units.
        u64::try_from(tokens << scale).unwrap_or(u64::MAX)
    }

    /// The burst, in units.
    #[inline]
    pub(super) fn whole_burst(&self) -> u64 {
        self.burst >> self.scale << self.scale
    }

    /// How many of `tokens` can be taken at `base` before the debt is cut.
    pub(super) fn owed(&self, base: u64, axis: u64, tokens: u64) -> u64 {
        let most = axis.saturating_add(self.debt).min(POSITION);
        tokens.min(most.saturating_sub(base) >> self.scale)
    }

    /// As fine as the burst, one exact period, and an hour's life leave room for.
    fn scale(quota: &Quota, count: u64, nanos: u64) -> u32 {
        let per_hour = u128::from(count) * MIN_LIFE_NANOS / u128::from(nanos);
        fits(u128::from(quota.burst_size()), MAX_BURST_UNITS)
            .min(fits(u128::from(count), MAX_BURST_UNITS))
            .min(fits(per_hour, MAX_GAIN))
    }

    /// Ticks since the epoch; an earlier instant counts as the epoch.
    #[inline]
    pub(super) fn ticks(&self, now: Instant) -> u64 {
        now.ticks_since(self.epoch)
    }

    /// Ticks since the epoch, as long as the axis lives. Zero for an earlier instant; `None` beyond its life, and for
    /// an axis that never lives.
    #[inline(always)]
    pub(super) fn living_ticks(&self, now: Instant) -> Option<u64> {
        // An earlier instant is excluded first. Its wrapped difference would be the end of time, at which the axis of a
        // slow rate still lives.
        match now.ticks().checked_sub(self.epoch.ticks()) {
            Some(ticks) => (ticks < self.life).then_some(ticks),
            None => (self.life > 0).then_some(0),
        }
    }

    /// True when the axis lives at `now`.
    pub(super) fn lives(&self, now: Instant) -> bool {
        self.ticks(now) < self.life
    }

    /// True for an unlimited quota.
    pub(super) fn is_unlimited(&self) -> bool {
        self.scale == UNLIMITED_SCALE
    }

    /// The axis's gain in `ticks`, which must lie within its life.
    #[inline]
    pub(super) fn gained(&self, ticks: u64) -> u64 {
        if self.step == 0 {
            self.flowed(ticks)
        } else {
            self.gained_by_steps(ticks)
        }
    }

    /// The same for a continuous refill.
    #[inline(always)]
    pub(super) fn flowed(&self, ticks: u64) -> u64 {
        axis::gained(ticks, self.mul, self.shift)
    }

    /// Parameters that are being replaced may be a mixture until the reader notices: no value may cause a panic.
    #[cold]
    fn gained_by_steps(&self, ticks: u64) -> u64 {
        let steps = (ticks << self.shift).checked_div(self.mul).unwrap_or(0);
        steps.saturating_mul(self.step).min(MAX_GAIN)
    }

    /// The axis at `now`, which must lie within its life.
    #[inline]
    pub(super) fn axis_at(&self, now: Instant) -> u64 {
        ORIGIN + self.gained(self.ticks(now).min(self.life.saturating_sub(1)))
    }

    /// The axis at `now`, also beyond its life; saturating.
    pub(super) fn axis_beyond_life(&self, now: Instant) -> u64 {
        ORIGIN.saturating_add(self.gained_beyond_life(now))
    }

    /// How many intervals have ended at `now`.
    fn steps(&self, now: Instant) -> u128 {
        (u128::from(self.ticks(now)) << self.shift) / u128::from(self.mul)
    }

    /// The axis's gain at `now`, also beyond its life; saturating.
    pub(super) fn gained_beyond_life(&self, now: Instant) -> u64 {
        let gained = if self.step == 0 {
            (u128::from(self.ticks(now)) * u128::from(self.mul)) >> (64 - self.shift)
        } else {
            self.steps(now).saturating_mul(self.step.into())
        };
        u64::try_from(gained).unwrap_or(u64::MAX)
    }

    /// The end of the latest interval until `now`.
    pub(super) fn latest_step(&self, now: Instant) -> Instant {
        self.end_of(self.steps(now))
    }

    /// The instant at which `steps` intervals have ended. Rounded up to a tick, as the ends of intervals are: so it is
    /// never too early.
    fn end_of(&self, steps: u128) -> Instant {
        let ticks = (steps * u128::from(self.mul)).div_ceil(1 << self.shift);
        self.epoch.after_ticks(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// The epoch of a restart at `now` that loses nothing: whole intervals, or whole numbers of `whole` ticks, after
    /// the last start, if an axis lasts longer than these.
    ///
    /// The epoch is not `now` but earlier, by the time that a burst takes. An earlier instant than the epoch counts as
    /// the epoch: there the bucket is empty at any level it has `now`, as it was before. If an axis lasts for only a
    /// few intervals, the epoch goes back at most half as many.
    pub(super) fn epoch_anew(&self, whole: u64, now: Instant) -> Instant {
        if self.step > 0 {
            let lasts = (u128::from(self.life) << self.shift) / u128::from(self.mul);
            let back = u128::from(self.burst.div_ceil(self.step)).min(lasts / 2);
            return self.end_of(self.steps(now).saturating_sub(back));
        }
        // A burst takes a quarter of an axis at most.
        let back = match self.mul {
            0 => 0,
            mul => axis::ticks_until(self.burst, mul, self.shift),
        };
        let passed = self.ticks(now).saturating_sub(back);
        let left = passed % whole;
        let until = if back.saturating_add(left) < self.life {
            passed - left
        } else {
            passed
        };
        self.epoch.after_ticks(until)
    }

    /// When the axis reaches `position`; `None` if it never does.
    pub(super) fn reaches(&self, position: u64) -> Option<Instant> {
        let distance = position.saturating_sub(ORIGIN);
        let ticks = match self.step {
            _ if self.mul == 0 && distance > 0 => return None,
            0 => axis::ticks_until(distance, self.mul, self.shift),
            step => {
                let ticks = (u128::from(distance.div_ceil(step)) * u128::from(self.mul)).div_ceil(1 << self.shift);
                u64::try_from(ticks).unwrap_or(u64::MAX)
            }
        };
        Some(self.epoch.after_ticks(ticks))
    }

    /// `tokens` in units, saturating well above every position.
    #[inline(always)]
    pub(super) fn units(&self, tokens: u64) -> u64 {
        tokens.min((1 << 48) >> self.scale) << self.scale
    }
}

/// The number of ticks in which an axis gains whole tokens exactly, where the clock counts nanoseconds; otherwise one.
pub(super) fn whole_ticks(quota: &Quota, clock: &Clock) -> u64 {
    match clock.is_manual() && !quota.is_zero() && !quota.is_unlimited() {
        true => quota.reduced().1,
        false => 1,
    }
}

/// The largest power of two by which `units` stay within `limit`.
fn fits(units: u128, limit: u64) -> u32 {
    (u128::from(limit) / units.max(1)).checked_ilog2().unwrap_or(0)
}

/// Parameters that are read without a lock while one writer replaces them.
///
/// An admission reads the first five. For an axis that gains by steps they say that it never lives: so the admission
/// takes the slow path, which reads all.
#[derive(Debug, Default)]
pub(super) struct Slot {
    epoch: AtomicU64,
    mul: AtomicU64,
    shift_and_scale: AtomicU64,
    burst: AtomicU64,
    life: AtomicU64,
    step: AtomicU64,
    epoch_of_steps: AtomicU64,
    life_of_steps: AtomicU64,
    debt: AtomicU64,
}

impl Slot {
    /// The parameters of an admission, as if the axis gained continuously.
    ///
    /// Acquire throughout: a reader that sees a field of a *later* set of parameters also sees that the word's tag has
    /// moved on, so its compare-exchange fails. Pairs with the stores in `store`. In the ordinary case the fields are
    /// published by the word itself.
    #[inline(always)]
    pub(super) fn load_flow(&self) -> Params {
        let order = Ordering::Acquire;
        let shift_and_scale = self.shift_and_scale.load(order);
        let burst = self.burst.load(order);
        Params {
            epoch: Instant::from_ticks(self.epoch.load(order)),
            mul: self.mul.load(order),
            shift: (shift_and_scale & 63) as u32,
            scale: (shift_and_scale >> 32 & 63) as u32,
            step: 0,
            burst,
            floor: ORIGIN - burst,
            life: self.life.load(order),
            debt: 0,
        }
    }

    /// All of them. Acquire: as in `load_flow`.
    pub(super) fn load(&self) -> Params {
        let flow = Params {
            debt: self.debt.load(Ordering::Acquire),
            ..self.load_flow()
        };
        match self.step.load(Ordering::Acquire) {
            0 => flow,
            step => Params {
                step,
                epoch: Instant::from_ticks(self.epoch_of_steps.load(Ordering::Acquire)),
                life: self.life_of_steps.load(Ordering::Acquire),
                ..flow
            },
        }
    }

    /// Under the writer's lock. Release: pairs with `load_flow` and `load`.
    pub(super) fn store(&self, params: &Params) {
        let order = Ordering::Release;
        let (epoch, life) = (params.epoch.ticks(), params.life);
        let (flow_epoch, flow_life) = if params.step == 0 { (epoch, life) } else { (u64::MAX, 0) };
        self.epoch.store(flow_epoch, order);
        self.mul.store(params.mul, order);
        self.shift_and_scale
            .store(u64::from(params.shift) | u64::from(params.scale) << 32, order);
        self.burst.store(params.burst, order);
        self.life.store(flow_life, order);
        self.step.store(params.step, order);
        self.epoch_of_steps.store(epoch, order);
        self.life_of_steps.store(life, order);
        self.debt.store(params.debt, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ManualClock;
    use std::time::Duration;

    /// At any quota the axis is the exact line up to its rounding, never slower; an instant that is told is the first at which the
    /// axis is there; and an axis that begins anew has a burst behind it.
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    #[test]
    fn an_axis_is_the_line_of_its_quota() {
        crate::laws::holds([1, 1], |inputs| {
            let manual = ManualClock::new();
            let (clock, nanos) = (manual.clock(), 1 + inputs.number(1 << 50, 3));
            let count = 1 + inputs.number(1 << 30, 2);
            let Ok(quota) = Quota::new(count, Duration::from_nanos(nanos)) else {
                return;
            };
            let Ok(quota) = quota.with_burst(1 + inputs.number(1 << 30, 2)) else {
                return;
            };
            let by_interval = inputs.below(2) == 1;
            let quota = if by_interval { quota.by_interval() } else { quota };
            let epoch = inputs.number(1 << 40, 1);
            let at = |ticks: u64| Instant::from_ticks(epoch.saturating_add(ticks));
            let params = Params::compile(&quota, clock, at(0));
            let token = 1u64 << params.scale;
            assert_eq!(params.whole_burst(), quota.burst_size() * token);
            assert!(params.burst >= params.whole_burst() && params.burst - params.whole_burst() < token);
            assert_eq!(params.floor, ORIGIN - params.burst);
            let ticks = inputs.number(params.life.min(1 << 60) - 1, 4);
            let exact = |ticks: u64| match by_interval {
                true => u128::from(ticks / nanos) * u128::from(count),
                // Halves of both products fit.
                false => {
                    let product = u128::from(ticks) * u128::from(count);
                    (product / u128::from(nanos)) * u128::from(token)
                        + (product % u128::from(nanos)) * u128::from(token) / u128::from(nanos)
                }
            };
            let gained = u128::from(params.gained(ticks));
            let wanted = exact(ticks);
            assert!(
                gained >= wanted && gained <= wanted + 1 + wanted / 1_000_000,
                "{quota}: {gained} of {wanted}"
            );
            assert_eq!(params.axis_at(at(ticks)), ORIGIN + params.gained(ticks));
            assert_eq!(u128::from(params.gained_beyond_life(at(ticks))), gained);
            assert_eq!(params.axis_beyond_life(at(ticks)), params.axis_at(at(ticks)));
            assert!(params.lives(at(ticks)) && params.living_ticks(at(ticks)) == Some(ticks));
            assert!(params.life > 1 << 60 || params.living_ticks(at(params.life)).is_none());
            assert_eq!(
                params.living_ticks(Instant::from_ticks(epoch.saturating_sub(1))),
                Some(0)
            );
            // The first instant for a gain.
            let gain = inputs.number(MAX_GAIN / 2, 9);
            let first = params.reaches(ORIGIN + gain).expect("it flows").ticks_since(at(0));
            if first < params.life.min(1 << 62) {
                assert!(params.gained(first) >= gain && (first == 0 || params.gained(first - 1) < gain));
            }
            let tokens = inputs.number(u64::MAX, 3);
            assert_eq!(params.units(tokens), tokens.min((1 << 48) >> params.scale) * token);
            let base = ORIGIN + inputs.number(params.debt.min(MAX_AHEAD), 3);
            let owed = params.owed(base, ORIGIN, tokens);
            let fits = |owed: u64| {
                u128::from(base) + u128::from(owed) * u128::from(token)
                    <= u128::from(ORIGIN.saturating_add(params.debt).min(POSITION))
            };
            assert!(owed <= tokens && fits(owed) && (owed == tokens || !fits(owed + 1)));
            let whole = whole_ticks(&quota, clock);
            let new = params.epoch_anew(whole, at(ticks)).ticks_since(at(0));
            if by_interval {
                let step = params.latest_step(at(ticks)).ticks_since(at(0));
                assert!(step <= ticks && ticks - step < nanos && params.gained(step) == params.gained(ticks));
                // Anew: at the end of an interval, a burst back, but not by more than half of an axis.
                let (ended, lasts) = (ticks / nanos, params.life / nanos);
                let back = quota.burst_size().div_ceil(params.step).min(lasts / 2);
                assert_eq!(new, ended.saturating_sub(back) * nanos, "{quota}");
                // As long as what it has gained fits its bits.
                assert!(params.gained_beyond_life(at(params.life - 1)) <= MAX_GAIN);
                let is_full = params.gained_beyond_life(at(params.life)).saturating_add(params.step) > MAX_GAIN;
                assert!(is_full || params.life > u64::MAX >> 17, "{quota}");
            } else {
                is_as_fine_as_fits(&params, &quota);
                // Anew: by the time of a burst back, and by less than `whole` ticks more, so that these are a whole number: if an axis
                // lasts as long.
                let burst = axis::ticks_until(params.burst, params.mul, params.shift);
                let latest = ticks.saturating_sub(burst);
                let left = latest % whole;
                let lasts = burst.saturating_add(left) < params.life;
                assert_eq!(new, if lasts { latest - left } else { latest }, "{quota}");
                if params.life < 1 << 60 {
                    // An axis that would be at its end is none.
                    let new = params.epoch_anew(1 << 61, at(params.life)).ticks_since(at(0));
                    assert_eq!(new, params.life - burst, "{quota}");
                }
            }
            // What admissions read while it is published.
            let slot = Slot::default();
            slot.store(&params);
            assert_eq!(slot.load(), params);
            let (early, late) = (Instant::from_ticks(epoch.saturating_sub(1)), at(ticks));
            for now in [early, late] {
                let lives = params.living_ticks(now).filter(|_| !by_interval);
                assert_eq!(slot.load_flow().living_ticks(now), lives, "by steps it never lives");
            }
            // Two bursts, or half an hour's refill.
            let refill = u128::from(count) * 1_800_000_000_000 / u128::from(nanos);
            let debt = refill.max(2 * u128::from(quota.burst_size())) << params.scale;
            assert_eq!(params.debt, u64::try_from(debt).unwrap_or(u64::MAX));
            assert!(!params.is_unlimited() && whole == quota.reduced().1);
            assert!(params.lives(at(params.life - 1)));
            assert!(params.life > u64::MAX - epoch || !params.lives(at(params.life)));
        });
        // A budget that is not refilled stays as it is, for ever.
        crate::laws::holds([1, 1], |inputs| {
            let (manual, burst) = (ManualClock::new(), 1 + inputs.number(Quota::MAX_BURST - 1, 4));
            let (epoch, now) = [inputs.number(1 << 40, 1), inputs.number(u64::MAX, 1)]
                .map(Instant::from_ticks)
                .into();
            let quota = Quota::zero().with_burst(burst).expect("it fits");
            let params = Params::compile(&quota, manual.clock(), epoch);
            assert_eq!(params.burst, burst << params.scale);
            assert!(params.whole_burst() == params.burst && params.burst <= MAX_BURST_UNITS);
            assert_eq!((params.floor, params.axis_at(now)), (ORIGIN - params.burst, ORIGIN));
            assert!(params.lives(now) || now.ticks_since(epoch) == u64::MAX);
            assert_eq!(params.epoch_anew(1, now.max(epoch)), now.max(epoch));
            // A debt of its burst finds room.
            assert!(params.debt >= params.burst && params.owed(ORIGIN, ORIGIN, burst) == burst);
        });
        crate::laws::holds([1, 1], |inputs| {
            let shift = inputs.number(20, 2) as u32;
            let fine = if shift == 0 { inputs.number(20, 2) } else { 0 };
            let mul = ((1 << 63) + inputs.number(u64::MAX >> 1, 3)) >> fine;
            let token = 1 << inputs.number(40, 4);
            assert_eq!(
                Params::slack(mul, shift, token),
                slack_due(mul, shift, token),
                "{mul} {shift} {token}"
            );
            assert!(Params::slack(mul, shift, token) < token);
        });
        // A quota of nothing gains nothing, and an unlimited one is known.
        let (clock, zero, unlimited) = (ManualClock::new(), Quota::zero(), Quota::unlimited());
        let stopped = Params::compile(&zero, clock.clock(), Instant::ZERO);
        assert_eq!(
            (stopped.reaches(ORIGIN + 1), stopped.reaches(ORIGIN)),
            (None, Some(Instant::ZERO))
        );
        assert!(!stopped.is_unlimited() && Params::compile(&unlimited, clock.clock(), Instant::ZERO).is_unlimited());
        let real = Clock::real();
        for (quota, clock) in [
            (&zero, clock.clock()),
            (&unlimited, clock.clock()),
            (&Quota::per_second(3), &real),
        ] {
            assert_eq!(whole_ticks(quota, clock), 1, "{quota}");
        }
    }

    /// The finest scale at which the burst, a period and an hour's gain have room; and above the burst the gain of a tick, if waits for a
    /// token are rounded by a millionth or more.
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    fn is_as_fine_as_fits(params: &Params, quota: &Quota) {
        let (count, nanos) = quota.reduced();
        let per_hour = u128::from(count) * 3_600_000_000_000 / u128::from(nanos);
        let fits = |scale: u32| {
            let most = [
                (quota.burst_size().into(), MAX_BURST_UNITS),
                (count.into(), MAX_BURST_UNITS),
                (per_hour, MAX_GAIN),
            ];
            most.iter()
                .all(|&(units, most): &(u128, u64)| units << scale <= most.into())
        };
        assert!(params.scale == 0 || fits(params.scale), "{quota}");
        assert!(!fits(params.scale + 1), "{quota}");
        let slack = slack_due(params.mul, params.shift, 1 << params.scale);
        assert_eq!(params.burst - params.whole_burst(), slack, "{quota}");
    }

    /// The gain of a tick, less than a token, if waits for a token are rounded by a millionth or more.
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    fn slack_due(mul: u64, shift: u32, token: u64) -> u64 {
        // In 2^-64 units.
        let (tick, exact) = (u128::from(mul) << shift, u128::from(token) << 64);
        let over = exact.div_ceil(tick) * tick - exact;
        match over > exact / 1_000_000 {
            true => token.min((tick >> 64) as u64 + 2) - 1,
            false => 0,
        }
    }

    /// Rows of (units of gain in a tick, as a factor and a shift; the units of a token; the slack).
    #[test]
    fn slack_is_the_gain_of_a_tick_where_waits_are_rounded() {
        for (mul, shift, token, slack) in [
            (1 << 63, 4, 1 << 20, 0),
            // Six units in a tick, and 66 for a token of 64.
            (3 << 61, 4, 64, 7),
            // A tick gains more than a token.
            (3 << 61, 4, 4, 3),
            // Two units too many are less than a millionth.
            (3 << 61, 4, 1 << 32, 0),
        ] {
            assert_eq!(Params::slack(mul, shift, token), slack, "{mul} {shift} {token}");
        }
    }

    /// Given any rate that flows, then an axis lasts an hour at least, and its gain leaves room for bookings ahead.
    #[test]
    fn an_axis_lasts_an_hour_and_stays_within_its_bits() {
        let second = Duration::from_secs(1);
        let rates = [1, 7, 1_000, 999_999_937, 1_000_000_000];
        for clock in [&Clock::real(), ManualClock::new().clock()] {
            for (count, burst) in rates
                .into_iter()
                .flat_map(|count| [(count, 1), (count, 1_000), (count, 1 << 40)])
            {
                for period in [second, second * 60, second * 86_400] {
                    let quota = Quota::new(count, period).unwrap();
                    let Ok(quota) = quota.with_burst(burst) else { continue };
                    let params = Params::compile(&quota, clock, Instant::ZERO);
                    let hour = clock.ticks_of(second * 3_600);
                    // Less a tick for rounding.
                    assert!(params.life >= hour - 1, "{quota}: {} ticks", params.life);
                    assert!(params.gained(params.life - 1) + ORIGIN + MAX_AHEAD < 1 << 48, "{quota}");
                }
            }
        }
    }

    /// Given rates whose axis lives for ever, and one whose axis never does by its admission parameters. Then an instant before the
    /// start is never taken for one at the end.
    #[test]
    fn before_the_start_is_not_the_end() {
        let manual = ManualClock::new();
        let epoch = Instant::from_ticks(1 << 40);
        let early = [0, (1 << 40) - 1].map(Instant::from_ticks);
        let slow = Quota::per_second(1).burst(1 << 34);
        for quota in [
            slow,
            Quota::zero().burst(5),
            Quota::unlimited(),
            Quota::per_second(10),
            slow.by_interval(),
        ] {
            let params = Params::compile(&quota, manual.clock(), epoch);
            assert_eq!(early.map(|now| params.living_ticks(now)), [Some(0); 2], "{quota}");
        }
        let slot = Slot::default();
        slot.store(&Params::compile(&slow.by_interval(), manual.clock(), epoch));
        for now in [Instant::ZERO, epoch, Instant::from_ticks(u64::MAX)] {
            assert_eq!(slot.load_flow().living_ticks(now), None);
        }
    }

    #[test]
    fn a_constant_axis_has_been_where_it_starts() {
        let epoch = Instant::from_ticks(1 << 40);
        let params = Params::compile(&Quota::zero().burst(5), ManualClock::new().clock(), epoch);
        assert_eq!(params.reaches(ORIGIN), Some(epoch));
        assert_eq!(params.reaches(ORIGIN - 1), Some(epoch));
        assert_eq!(params.reaches(ORIGIN + 1), None);
    }

    /// On any clock an axis reaches a number of tokens at the first tick at which it has gained them. That is when the
    /// quota says, within 1 ppm of it and a tick.
    #[test]
    fn gain_and_instant_of_an_axis_agree() {
        let second = Duration::from_secs(1);
        let quotas = [
            Quota::per_second(10),
            Quota::new(3, Duration::from_micros(7)).unwrap(),
            Quota::new(1, second * 86_400 * 365).unwrap(),
            Quota::per_second(1_000_000_000).burst(1),
        ];
        for clock in [&Clock::real(), ManualClock::new().clock()] {
            for quota in quotas.iter().flat_map(|quota| [*quota, quota.by_interval()]) {
                let epoch = Instant::from_ticks(1 << 40);
                let params = Params::compile(&quota, clock, epoch);
                for periods in [1u64, 2, 1_000] {
                    let units = (periods * quota.count()) << params.scale;
                    let at = params.reaches(ORIGIN + units).unwrap();
                    let exact = u128::from(quota.period().as_nanos() as u64) * u128::from(periods);
                    let Ok(exact) = u64::try_from(exact) else { continue };
                    let ticks = clock.ticks_of(Duration::from_nanos(exact));
                    let off = at.ticks_since(epoch).abs_diff(ticks);
                    assert!(off <= 1 + ticks / 1_000_000, "{quota}: {off} of {ticks}");
                    if params.lives(at) {
                        assert!(params.gained(at.ticks_since(epoch)) >= units, "{quota}");
                        assert!(params.gained(at.ticks_since(epoch) - 1) < units, "{quota}");
                    }
                }
            }
        }
    }
}
