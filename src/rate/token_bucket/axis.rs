//! The bucket as plain data: many buckets share one quota, and each is just a position on the same axis. The caller
//! holds a lock. No tag, no exchange, no change of quota.

use super::params::{ORIGIN, Params, whole_ticks};
use crate::core::refusal::Due;
use crate::rate::quota::Quota;
use crate::time::{Clock, Instant};

/// The axis of the positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedAxis {
    params: Params,
    whole: u64,
}

impl SharedAxis {
    pub(crate) fn new(quota: &Quota, clock: &Clock, now: Instant) -> Self {
        Self {
            params: Params::compile(quota, clock, now),
            whole: whole_ticks(quota, clock),
        }
    }

    /// The axis's gain at `now`; `None` if it has to be restarted. An earlier instant than its start counts as the
    /// start.
    #[inline(always)]
    pub(crate) fn gained(&self, now: Instant) -> Option<u64> {
        self.params.living_ticks(now).map(|ticks| self.params.gained(ticks))
    }

    /// Restarts the axis. Returns by how much every position goes down, but not below [full](Self::full_at) at `now`,
    /// and the axis's gain by then.
    pub(crate) fn start_anew(&mut self, now: Instant) -> (u64, u64) {
        let before = self.params.gained_beyond_life(now);
        self.params.epoch = self.params.epoch_anew(self.whole, now);
        let gained = self.params.axis_at(now) - ORIGIN;
        (before.saturating_sub(gained), gained)
    }

    /// The position after a take of `n` tokens, or the gain that the axis needs for them.
    #[inline(always)]
    pub(crate) fn take(&self, position: u64, n: u64, gained: u64) -> Result<u64, u64> {
        let after = position.max(self.params.floor + gained) + self.params.units(n);
        if after <= ORIGIN + gained {
            Ok(after)
        } else {
            Err(after - ORIGIN)
        }
    }

    /// True if the bucket is full.
    #[inline]
    pub(crate) fn is_full(&self, position: u64, gained: u64) -> bool {
        position <= self.full_at(gained)
    }

    /// The position of a bucket that is full at this gain, and was not known to be full before.
    #[inline]
    pub(crate) fn full_at(&self, gained: u64) -> u64 {
        ORIGIN - self.params.whole_burst() + gained
    }

    /// Whole tokens that are there.
    pub(crate) fn available(&self, position: u64, gained: u64) -> u64 {
        let there = (ORIGIN + gained).saturating_sub(position.max(self.params.floor + gained));
        match self.params.is_unlimited() {
            true => u64::MAX,
            false => there >> self.params.scale,
        }
    }

    /// When the axis has gained `distance`.
    pub(crate) fn due<'a>(&self, clock: &'a Clock, now: Instant, distance: u64) -> Due<'a> {
        let params = &self.params;
        match params.reaches(ORIGIN + distance) {
            Some(at) if params.step > 0 => Due::at(clock, now, at),
            _ => Due::on_axis(clock, now, params.epoch, distance, params.mul, params.shift),
        }
    }
}
