//! The leased part of a rate: one token bucket, of a capacity that moves between processes.
//!
//! A rate of `R` with a burst of `B` is [`UNITS`] units, which are leased like permits. A process that holds `u` of them fills a
//! bucket of `u x B / UNITS` at `u x R / UNITS`.
//!
//! # Conservation
//! The store never grants more than [`UNITS`] units, and a holder stops before its lease ends at the store. So at each instant
//! the capacities of all buckets are `B` at most in sum, and their rates `R`. A level is below its capacity, and units come
//! empty: what they hold stays with the giver as far as it fits the rest, and is lost otherwise. So the sum of all levels is at
//! most `B`, and grows by at most `R`: in any span `t` at most `B + R x t` is taken, whatever the number of processes.
//!
//! A refund adds to a level. What was taken is missing in the sum until `R` has refilled it. So at most
//! `taken - R x elapsed` comes back, and no more than the capacity held now.
//!
//! All of it is whole numbers, without rounding: a token is [`Fill::price`] x [`UNITS`] parts, and a unit gains [`Fill::gain`]
//! parts a microsecond.

use crate::remote::model::Fill;

/// The units of a leased rate, whatever its quota.
pub(in crate::remote) const UNITS: u64 = 1 << 20;

/// The bucket of one process.
// Invariants: `level` is at most the capacity of `units`; it is zero while `debt` is not. `lent` is zero while `debt` is not.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct Share {
    fill: Fill,
    units: u64,
    level: u128,
    /// Parts spent beyond the level. They stay with the process, also when its lease ends.
    debt: u128,
    at: u64,
    /// Parts that were spent since `at`, and an instant by which they were.
    lent: (u128, u64),
}

impl Share {
    /// Without units.
    pub(super) fn new(fill: Fill, now: u64) -> Self {
        Self {
            fill,
            units: 0,
            level: 0,
            debt: 0,
            at: now,
            lent: (0, 0),
        }
    }

    fn parts(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.fill.price) * u128::from(UNITS)
    }

    /// The units held, the level, the debt, since when, and what was spent of a loan.
    #[cfg(tollgate_proofs)]
    pub(super) fn numbers(&self) -> (u64, u128, u128, u64, (u128, u64)) {
        (self.units, self.level, self.debt, self.at, self.lent)
    }

    fn capacity(&self) -> u128 {
        u128::from(self.units) * u128::from(self.fill.brim)
    }

    /// The fewest units whose capacity is `tokens`, which are at most the burst.
    pub(super) fn units_for(&self, tokens: u64) -> u64 {
        let units = self.parts(tokens).div_ceil(self.fill.brim.max(1).into());
        u64::try_from(units).map_or(UNITS, |units| units.clamp(1, UNITS))
    }

    /// The fewest units that gain `tokens` in this many microseconds.
    pub(super) fn units_to_gain(&self, tokens: u64, micros: u64) -> u64 {
        let gain = u128::from(self.fill.gain) * u128::from(micros.max(1));
        u64::try_from(self.parts(tokens).div_ceil(gain)).map_or(UNITS, |units| units.min(UNITS))
    }

    /// What the units gain between two instants.
    fn gained(&self, from: u64, to: u64) -> u128 {
        let passed = u128::from(to.saturating_sub(from));
        (passed * u128::from(self.fill.gain)).saturating_mul(self.units.into())
    }

    /// The level at `now`, and the debt.
    fn levels(&self, now: u64) -> (u128, u128) {
        // What was spent without the lock counts as spent at the end of that time: had it been spent sooner, at most as much
        // refill would have overflowed.
        let (spent, until) = self.lent;
        let then = self.at.max(until.min(now));
        let level = self.level.saturating_add(self.gained(self.at, then));
        let level = level.min(self.capacity()).saturating_sub(spent);
        let gained = self.gained(then, now);
        let level = level.saturating_add(gained.saturating_sub(self.debt));
        (level.min(self.capacity()), self.debt.saturating_sub(gained))
    }

    fn advance(&mut self, now: u64) {
        (self.level, self.debt) = self.levels(now);
        self.at = self.at.max(now);
        self.lent = (0, 0);
    }

    /// For how many microseconds tokens may be lent: a 64th of the time in which the bucket fills, so that a full one loses no
    /// more.
    pub(super) fn loan_length(&self) -> u64 {
        self.fill.brim / self.fill.gain.max(1) / 64
    }

    /// Tokens that were there were spent since the last change, by `until`: beside others, if none was taken in between.
    pub(super) fn spend_lent(&mut self, tokens: u64, until: u64) {
        if tokens > 0 {
            let (spent, by) = self.lent;
            self.lent = (spent + self.parts(tokens), by.max(until));
        }
    }

    /// The whole tokens at `now`.
    pub(super) fn tokens(&self, now: u64) -> u64 {
        u64::try_from(self.levels(now).0 / self.parts(1)).unwrap_or(u64::MAX)
    }

    pub(super) fn in_debt(&self, now: u64) -> bool {
        self.levels(now).1 > 0
    }

    /// In how many microseconds `n` tokens are there; `None` when the units never hold as many.
    pub(super) fn wait(&self, n: u64, now: u64) -> Option<u64> {
        let (level, debt) = self.levels(now);
        if self.units == 0 || self.parts(n) > self.capacity() {
            return None;
        }
        let lacks = self.parts(n).saturating_sub(level).saturating_add(debt);
        let gain = u128::from(self.fill.gain) * u128::from(self.units);
        u64::try_from(lacks.div_ceil(gain)).ok()
    }

    /// Takes `n` tokens, which are there.
    pub(super) fn take(&mut self, n: u64, now: u64) {
        self.owe(n, now);
    }

    /// Takes `n` tokens, into debt as far as they are not there.
    pub(super) fn owe(&mut self, n: u64, now: u64) {
        self.advance(now);
        let parts = self.parts(n);
        self.debt += parts.saturating_sub(self.level);
        self.level = self.level.saturating_sub(parts);
    }

    /// Takes back `n` of `taken` tokens, which were taken at `at` with these units or others.
    pub(super) fn refund(&mut self, n: u64, taken: u64, at: u64, now: u64) {
        self.advance(now);
        let passed = u128::from(now.saturating_sub(at));
        let refilled = (passed * u128::from(self.fill.gain)).saturating_mul(UNITS.into());
        let missing = self.parts(taken).saturating_sub(refilled);
        let back = self.parts(n).min(missing);
        let level = self.level.saturating_add(back.saturating_sub(self.debt));
        self.debt = self.debt.saturating_sub(back);
        self.level = level.min(self.capacity());
    }

    /// Units come, empty.
    pub(super) fn receive(&mut self, units: u64, now: u64) {
        self.advance(now);
        self.units += units;
    }

    /// Units go, with what the rest does not hold.
    pub(super) fn give(&mut self, units: u64, now: u64) {
        self.advance(now);
        self.units -= units;
        self.level = self.level.min(self.capacity());
    }

    /// All units are lost, with their level. The debt stays.
    pub(super) fn lapse(&mut self, now: u64) {
        self.advance(now);
        (self.units, self.level) = (0, 0);
    }
}
