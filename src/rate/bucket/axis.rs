//! A quota compiled for a clock: the axis of tokens on which the level of a bucket is a difference of two positions.
//!
//! The axis is at `origin` when the clock shows `epoch`, and gains `mul / 2^(64 - shift)` units a tick; one token is
//! `2^scale` units. `mul` is rounded up, so that a whole token is there at the instant at which the exact rate has gained
//! it. All positions wrap: only differences count, and these stay below 2^62.
//!
//! A quota by interval gains `step` units at the end of each interval, which is `mul / 2^shift` ticks long.

use crate::rate::quota::Quota;
use crate::time::{Clock, Instant, axis};

/// The largest burst of an axis, in units, when its unit is chosen; a change of quota may raise it by 2^4.
const MAX_BURST: u64 = 1 << 48;
/// The largest gain of an hour when the unit is chosen, and of the life of an axis.
const MAX_GAIN_PER_HOUR: u64 = 1 << 52;
const MAX_GAIN: u64 = 1 << 60;
/// The largest debt.
pub(super) const MAX_DEBT: u64 = 1 << 54;
/// More units than any burst and any debt: what a number of tokens is cut to.
const BEYOND: u64 = 1 << 60;
/// The finest unit is `2^-44` tokens: at one token in an hour a unit takes less than a nanosecond.
const FINEST: u32 = 44;
/// The scale of an unlimited quota: every number of tokens is zero units.
const UNLIMITED: u32 = 63;
const HOUR_NANOS: u128 = 3_600_000_000_000;

/// Where every axis starts.
pub(crate) const ORIGIN: u64 = BEYOND;

/// A quota compiled for a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(super) epoch: Instant,
    /// Where it is at its epoch.
    pub(crate) origin: u64,
    pub(super) mul: u64,
    pub(super) shift: u32,
    pub(super) scale: u32,
    /// The units that come at the end of each interval; zero for a continuous refill.
    pub(super) step: u64,
    /// The most that a bucket holds: the burst, and less than a token for the rounding of waits to a tick.
    pub(super) burst: u64,
    /// The axis lives for fewer ticks than this.
    pub(super) life: u64,
}

impl Axis {
    /// The axis of `quota` from `now` on, in its best unit.
    pub(crate) fn new(quota: &Quota, clock: &Clock, now: Instant) -> Self {
        Self::compile(quota, clock, now, ORIGIN, Self::best_scale(quota))
    }

    pub(super) fn compile(quota: &Quota, clock: &Clock, epoch: Instant, origin: u64, scale: u32) -> Self {
        let mut compiled = Self {
            epoch,
            origin,
            mul: 0,
            shift: 0,
            scale,
            step: 0,
            burst: 0,
            life: u64::MAX,
        };
        if quota.is_unlimited() {
            return compiled;
        }
        compiled.burst = quota.burst_size() << scale;
        if quota.is_by_interval() {
            compiled.step_by(quota, clock);
        } else if !quota.is_zero() {
            compiled.flow(quota, clock);
        }
        compiled
    }

    fn flow(&mut self, quota: &Quota, clock: &Clock) {
        let (count, nanos) = quota.reduced();
        let units = u128::from(count) << self.scale;
        // Units per 2^40 ticks, times 2^24: a fraction over `nanos`, with 64 fractional bits per tick.
        let per_tick = ((units * u128::from(clock.nanos_scale())) << 24).div_ceil(nanos.into());
        self.shift = 64_u32.saturating_sub(per_tick.leading_zeros());
        self.mul = per_tick.div_ceil(1 << self.shift) as u64;
        self.life = axis::ticks_until(MAX_GAIN, self.mul, self.shift).min(u64::MAX >> self.shift.max(1));
        self.burst += self.tick_slack();
    }

    /// How much a bucket may hold beyond its burst: the gain of one tick, and less than a token. So a caller who takes the
    /// burst each time it is there loses nothing when each wait is rounded up to a tick. Zero where no wait is rounded.
    fn tick_slack(&self) -> u64 {
        let token = 1 << self.scale;
        let ticks = axis::ticks_until(token, self.mul, self.shift);
        let is_whole = axis::gained(ticks, self.mul, self.shift) <= token;
        if is_whole {
            0
        } else {
            (axis::gained(1, self.mul, self.shift) + 1).min(token - 1)
        }
    }

    fn step_by(&mut self, quota: &Quota, clock: &Clock) {
        // More would overflow every bucket, however deep in debt.
        self.step = (quota.count() << self.scale).min(MAX_GAIN >> 2);
        let ticks = clock.ticks_of(quota.period());
        // As fine as at least four intervals leave room for: at most 2^58 ticks are 365 days.
        self.shift = ticks.leading_zeros().saturating_sub(2).min(16);
        let ticks = (quota.period().as_nanos() << (40 + self.shift)).div_ceil(clock.nanos_scale().into());
        self.mul = u64::try_from(ticks).unwrap_or(u64::MAX);
        let life = (u128::from(MAX_GAIN / self.step) * u128::from(self.mul)) >> self.shift;
        self.life = u64::try_from(life)
            .unwrap_or(u64::MAX)
            .min(u64::MAX >> self.shift.max(1));
    }

    /// The finest unit in which a burst, an hour's refill and a period's count find room.
    pub(super) fn best_scale(quota: &Quota) -> u32 {
        if quota.is_unlimited() {
            return UNLIMITED;
        }
        // Not finer than this at a rate of zero, whose debt has room for 2^30 tokens.
        let finest = if quota.is_zero() { FINEST - 20 } else { FINEST };
        let per_hour = u128::from(quota.count()) * HOUR_NANOS / quota.period().as_nanos();
        let count = if quota.is_by_interval() {
            quota.count()
        } else {
            quota.reduced().0
        };
        finest
            .min(fits(quota.burst_size().into(), MAX_BURST))
            .min(fits(per_hour, MAX_GAIN_PER_HOUR))
            .min(fits(count.into(), MAX_GAIN >> 5))
    }

    /// True if `quota` may be counted in this axis's unit, which is about as fine as its own best.
    pub(super) fn suits(&self, quota: &Quota) -> bool {
        let best = Self::best_scale(quota);
        let leaves_room = self.scale <= best + 4 && (!quota.is_zero() || self.scale <= best);
        leaves_room && best <= self.scale + 8 && self.is_unlimited() == quota.is_unlimited()
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.scale == UNLIMITED
    }

    /// The burst, without the slack of a tick.
    pub(crate) fn whole_burst(&self) -> u64 {
        self.burst >> self.scale << self.scale
    }

    /// `tokens` in units, cut to more than any burst and debt.
    #[inline(always)] // row: token bucket admit
    pub(crate) fn units(&self, tokens: u64) -> u64 {
        tokens.min(BEYOND >> self.scale) << self.scale
    }

    /// Whole tokens of `level`.
    pub(crate) fn tokens(&self, level: i64) -> u64 {
        if self.is_unlimited() {
            u64::MAX
        } else {
            level.max(0) as u64 >> self.scale
        }
    }

    /// Tokens that are owed at `level`, rounded up.
    pub(super) fn owed(&self, level: i64) -> u64 {
        (level.min(0).unsigned_abs()).div_ceil(1 << self.scale)
    }

    /// The position at `now`; an earlier instant counts as the epoch. `None` beyond the life of the axis.
    #[inline(always)] // row: token bucket admit
    pub(crate) fn at(&self, now: Instant) -> Option<u64> {
        let ticks = now.ticks_since(self.epoch);
        (ticks < self.life).then(|| self.origin.wrapping_add(self.gained(ticks)))
    }

    /// The same, also beyond the life; cut to the gain of two lives, by which every bucket is full.
    pub(crate) fn at_any(&self, now: Instant) -> u64 {
        let ticks = u128::from(now.ticks_since(self.epoch));
        let gained = match self.step {
            0 => (ticks * u128::from(self.mul)) >> (64 - self.shift),
            step => (ticks << self.shift) / u128::from(self.mul.max(1)) * u128::from(step),
        };
        self.origin.wrapping_add(gained.min(u128::from(2 * MAX_GAIN)) as u64)
    }

    #[inline(always)] // row: token bucket admit
    fn gained(&self, ticks: u64) -> u64 {
        if self.step == 0 {
            axis::gained(ticks, self.mul, self.shift)
        } else {
            self.gained_by_steps(ticks)
        }
    }

    /// Parameters that are being replaced may be a mixture until the reader notices: no value may cause a panic.
    #[cold]
    fn gained_by_steps(&self, ticks: u64) -> u64 {
        let steps = (ticks << self.shift).checked_div(self.mul).unwrap_or(0);
        steps.wrapping_mul(self.step)
    }

    /// The level of a bucket at `position` when the axis is at `axis`: negative in debt.
    #[inline(always)] // row: token bucket admit
    pub(crate) fn level(&self, position: u64, axis: u64) -> i64 {
        (axis.wrapping_sub(position) as i64).min(self.burst as i64)
    }

    /// The position of a bucket that is just full, when the axis is at `axis`.
    pub(crate) fn full(&self, axis: u64) -> u64 {
        axis.wrapping_sub(self.whole_burst())
    }

    /// How far `position` lies beyond the origin.
    pub(super) fn distance(&self, position: u64) -> u64 {
        (position.wrapping_sub(self.origin) as i64).max(0) as u64
    }

    /// The first instant at which the axis has come to `position`; `None` if that is never.
    pub(crate) fn reaches(&self, position: u64) -> Option<Instant> {
        let distance = self.distance(position);
        let ticks = match self.step {
            _ if distance == 0 => 0,
            _ if self.mul == 0 => return None,
            0 => axis::ticks_until(distance, self.mul, self.shift),
            step => {
                let ticks = (u128::from(distance.div_ceil(step)) * u128::from(self.mul)).div_ceil(1 << self.shift);
                u64::try_from(ticks).unwrap_or(u64::MAX)
            }
        };
        Some(self.epoch.after_ticks(ticks))
    }

    /// The end of the latest interval until `now`; `now` itself for a continuous refill.
    pub(super) fn latest_step(&self, now: Instant) -> Instant {
        if self.step == 0 {
            return now;
        }
        let steps = (u128::from(now.ticks_since(self.epoch)) << self.shift) / u128::from(self.mul.max(1));
        let ticks = (steps * u128::from(self.mul)).div_ceil(1 << self.shift);
        self.epoch.after_ticks(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// The same axis with another epoch, half a life before `now`, so that positions keep their meaning. Earlier instants than that
    /// would find what came by then.
    pub(crate) fn go_on(&self, now: Instant) -> Self {
        let ticks = now.ticks_since(self.epoch);
        let epoch = self.latest_step(self.epoch.after_ticks(ticks - ticks.min(self.life / 2)));
        Self {
            origin: self.at_any(epoch),
            epoch,
            ..*self
        }
    }

    /// The largest debt of `quota`, in units: two bursts or half an hour's refill, whichever is more; 2^30 tokens at a rate of zero.
    pub(super) fn max_debt(&self, quota: &Quota) -> i64 {
        if self.is_unlimited() {
            return 0;
        }
        if quota.is_zero() {
            return 1 << (30 + self.scale);
        }
        let refill = u128::from(quota.count()) * HOUR_NANOS / 2 / quota.period().as_nanos();
        let tokens = refill.max(2 * u128::from(quota.burst_size()));
        tokens.saturating_mul(1 << self.scale).min(MAX_DEBT.into()) as i64
    }

    /// The same axis of another quota from `now` on: at `now` it stands `jump` beyond this one.
    pub(super) fn change(&self, quota: &Quota, clock: &Clock, now: Instant, scale: u32, jump: u64) -> Self {
        // From one quota by interval to another, the intervals go on from the end of the latest.
        let epoch = if quota.is_by_interval() {
            self.latest_step(now)
        } else {
            now
        };
        let mut after = Self::compile(quota, clock, epoch, 0, scale);
        let at = self.at_any(now).wrapping_add(jump);
        after.origin = at.wrapping_sub(after.at(now).unwrap_or(0));
        after
    }
}

/// The largest power of two by which `units` stay within `limit`.
fn fits(units: u128, limit: u64) -> u32 {
    (u128::from(limit) / units.max(1)).checked_ilog2().unwrap_or(0)
}
