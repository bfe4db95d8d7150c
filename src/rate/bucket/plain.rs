//! The bucket as plain data: many that share one quota, each of which is just a position on the same axis, behind
//! somebody's lock. No tag, no exchange, no change of quota.

use super::params::{ORIGIN, Params};
use crate::rate::quota::Quota;
use crate::refusal::Due;
use crate::time::{Clock, Instant};

/// The axis that the positions lie on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis(Params);

/// The position of a bucket that is full, at any instant.
pub(crate) const FULL: u64 = 0;

impl Axis {
    pub(crate) fn new(quota: &Quota, clock: &Clock, now: Instant) -> Self {
        Self(Params::compile(quota, clock, now))
    }

    /// How far the axis has come at `now`; none when it has to be started anew. An earlier instant than its start counts as
    /// that.
    #[inline(always)]
    pub(crate) fn gained(&self, now: Instant) -> Option<u64> {
        self.0.living_ticks(now).map(|ticks| self.0.gained(ticks))
    }

    /// Starts the axis anew at `now`, and returns by how much every position goes down, ending at [`FULL`]. What the axis
    /// had gained of a unit is lost.
    pub(crate) fn start_anew(&mut self, now: Instant) -> u64 {
        let down = self.0.gained_beyond_life(now);
        self.0.epoch = now;
        down
    }

    /// Where `n` tokens leave the bucket at `position`, or how far the axis must have come for them.
    #[inline(always)]
    pub(crate) fn take(&self, position: u64, n: u64, gained: u64) -> Result<u64, u64> {
        let after = position.max(self.0.floor + gained) + self.0.units(n);
        if after <= ORIGIN + gained {
            Ok(after)
        } else {
            Err(after - ORIGIN)
        }
    }

    /// True when nothing is missing.
    #[inline]
    pub(crate) fn is_full(&self, position: u64, gained: u64) -> bool {
        position <= self.0.floor + gained
    }

    /// Whole tokens that are there.
    pub(crate) fn available(&self, position: u64, gained: u64) -> u64 {
        let there = (ORIGIN + gained).saturating_sub(position.max(self.0.floor + gained));
        there >> self.0.scale
    }

    /// When the axis has come so far.
    pub(crate) fn due<'a>(&self, clock: &'a Clock, now: Instant, distance: u64) -> Due<'a> {
        Due::on_axis(clock, now, self.0.epoch, distance, self.0.mul, self.0.shift)
    }
}
