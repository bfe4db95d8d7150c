//! The bucket as plain data: many that share one quota, each of which is just a position on the same axis, behind
//! somebody's lock. No tag, no exchange, no change of quota.

use super::params::{ORIGIN, Params, whole_ticks};
use crate::rate::quota::Quota;
use crate::refusal::Due;
use crate::time::{Clock, Instant};

/// The axis that the positions lie on.
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

    /// How far the axis has come at `now`; none when it has to be started anew. An earlier instant than its start counts as
    /// that.
    #[inline(always)]
    pub(crate) fn gained(&self, now: Instant) -> Option<u64> {
        self.params.living_ticks(now).map(|ticks| self.params.gained(ticks))
    }

    /// Starts the axis anew, and returns by how much every position goes down, ending where it is [full](Self::full_at) at `now`, and
    /// how far it has come by then.
    pub(crate) fn start_anew(&mut self, now: Instant) -> (u64, u64) {
        let before = self.params.gained_beyond_life(now);
        self.params.epoch = self.params.epoch_anew(self.whole, now);
        let gained = self.params.axis_at(now) - ORIGIN;
        (before.saturating_sub(gained), gained)
    }

    /// Where `n` tokens leave the bucket at `position`, or how far the axis must have come for them.
    #[inline(always)]
    pub(crate) fn take(&self, position: u64, n: u64, gained: u64) -> Result<u64, u64> {
        let after = position.max(self.params.floor + gained) + self.params.units(n);
        if after <= ORIGIN + gained {
            Ok(after)
        } else {
            Err(after - ORIGIN)
        }
    }

    /// True when nothing is missing.
    #[inline]
    pub(crate) fn is_full(&self, position: u64, gained: u64) -> bool {
        position <= self.full_at(gained)
    }

    /// The position of a bucket that is full when the axis has come so far, and was not known to be before.
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

    /// When the axis has come so far.
    pub(crate) fn due<'a>(&self, clock: &'a Clock, now: Instant, distance: u64) -> Due<'a> {
        let params = &self.params;
        match params.reaches(ORIGIN + distance) {
            Some(at) if params.step > 0 => Due::at(clock, now, at),
            _ => Due::on_axis(clock, now, params.epoch, distance, params.mul, params.shift),
        }
    }
}
