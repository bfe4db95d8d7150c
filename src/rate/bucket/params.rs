//! A quota compiled for a clock, and the slots in which a bucket publishes it.
//!
//! A bucket's axis gains `mul / 2^(64 - shift)` units per tick since `epoch`; one token is `2^scale` units. `mul` is
//! rounded up, so that an instant at which the exact rate gains a whole token does so here, and never a unit more is
//! gained than `ticks x rate + 1`.

use crate::algo::axis;
use crate::rate::quota::Quota;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::time::{Clock, Instant};

/// Where every axis starts: above the largest burst, so that no position is negative.
pub(super) const ORIGIN: u64 = 1 << 46;
/// The largest burst in units.
const MAX_BURST_UNITS: u64 = 1 << 45;
/// How far an axis may go before it is started anew.
const MAX_GAIN: u64 = 1 << 47;
/// An axis lasts at least so long.
const MIN_LIFE_NANOS: u128 = 3_600_000_000_000;

/// A quota compiled for a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) epoch: Instant,
    pub(super) mul: u64,
    pub(super) shift: u32,
    pub(super) scale: u32,
    /// The burst, in units.
    pub(super) burst: u64,
    /// The axis at its epoch, less the burst.
    pub(super) floor: u64,
    /// How many ticks this axis lasts.
    pub(super) life: u64,
}

impl Params {
    pub(super) fn compile(quota: &Quota, clock: &Clock, epoch: Instant) -> Self {
        let (count, nanos) = quota.reduced();
        let scale = Self::scale(quota, count, nanos);
        // Units per 2^40 ticks, times 2^24: an exact fraction over `nanos`, a 64-bit fixed-point number per tick.
        let units = u128::from(count) << scale;
        let per_tick = |extra: u32| {
            let numerator = units * u128::from(clock.nanos_scale());
            // The shift that makes it 64 fractional bits per tick, less `extra` that the ticks are shifted by.
            match 24_u32.checked_sub(extra) {
                Some(up) => (numerator << up).div_ceil(u128::from(nanos)),
                None => numerator.div_ceil(u128::from(nanos) << (extra - 24)),
            }
        };
        let mut shift = 0;
        while u64::try_from(per_tick(shift)).is_err() {
            shift += 1;
        }
        let mul = per_tick(shift) as u64;
        let life = axis::ticks_until(MAX_GAIN, mul, shift).min(u64::MAX >> shift);
        let burst = quota.burst_size() << scale;
        Self {
            epoch,
            mul,
            shift,
            scale,
            burst,
            floor: ORIGIN - burst,
            life: life - 1,
        }
    }

    /// As fine as the burst, one exact period, and an hour's life leave room for.
    fn scale(quota: &Quota, count: u64, nanos: u64) -> u32 {
        let fits = |units: u128, limit: u64| (u128::from(limit) / units.max(1)).checked_ilog2().unwrap_or(0);
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

    /// Ticks since the epoch, as long as the axis lasts. Zero for an earlier instant; none beyond.
    #[inline(always)]
    pub(super) fn living_ticks(&self, now: Instant) -> Option<u64> {
        let ticks = now.ticks().wrapping_sub(self.epoch.ticks());
        if ticks <= self.life {
            return Some(ticks);
        }
        (now < self.epoch).then_some(0)
    }

    /// What the axis gains in so many ticks, which must lie within its life.
    #[inline(always)]
    pub(super) fn gained(&self, ticks: u64) -> u64 {
        axis::gained(ticks, self.mul, self.shift)
    }

    /// The axis at `now`, which must lie within its life.
    #[inline]
    pub(super) fn axis_at(&self, now: Instant) -> u64 {
        self.axis_after(self.ticks(now).min(self.life))
    }

    /// The axis so many ticks after its epoch, which must lie within its life.
    #[inline]
    pub(super) fn axis_after(&self, ticks: u64) -> u64 {
        ORIGIN + axis::gained(ticks, self.mul, self.shift)
    }

    /// What the axis would have gained at `now`, whether it lasts so long or not; saturating.
    pub(super) fn gained_beyond_life(&self, now: Instant) -> u64 {
        let gained = (u128::from(self.ticks(now)) * u128::from(self.mul)) >> (64 - self.shift);
        u64::try_from(gained).unwrap_or(u64::MAX)
    }

    /// `tokens` in units, saturating well above everything that a position can hold.
    #[inline(always)]
    pub(super) fn units(&self, tokens: u64) -> u64 {
        tokens.min((1 << 48) >> self.scale) << self.scale
    }
}

/// Parameters that are read without a lock while one writer replaces them.
#[derive(Debug, Default)]
pub(super) struct Slot {
    epoch: AtomicU64,
    mul: AtomicU64,
    shift_and_scale: AtomicU64,
    burst: AtomicU64,
    life: AtomicU64,
}

impl Slot {
    /// Acquire throughout: a reader that sees a field of a *later* set of parameters also sees that the word's tag has
    /// moved on, so its compare-exchange fails. Pairs with the stores in `store`. In the ordinary case the fields are
    /// published by the word itself.
    #[inline(always)]
    pub(super) fn load(&self) -> Params {
        let order = Ordering::Acquire;
        let shift_and_scale = self.shift_and_scale.load(order);
        let burst = self.burst.load(order);
        Params {
            epoch: Instant::from_ticks(self.epoch.load(order)),
            mul: self.mul.load(order),
            shift: (shift_and_scale & 63) as u32,
            scale: (shift_and_scale >> 32 & 63) as u32,
            burst,
            floor: ORIGIN - burst,
            life: self.life.load(order),
        }
    }

    /// Under the writer's lock. Release: pairs with `load`.
    pub(super) fn store(&self, params: &Params) {
        let order = Ordering::Release;
        self.epoch.store(params.epoch.ticks(), order);
        self.mul.store(params.mul, order);
        self.shift_and_scale
            .store(u64::from(params.shift) | u64::from(params.scale) << 32, order);
        self.burst.store(params.burst, order);
        self.life.store(params.life, order);
    }
}
