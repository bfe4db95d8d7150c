//! A token bucket in whole numbers of 52 bits, so that a store which counts in doubles does the same.
//!
//! Tokens come `gain` to `price` microseconds, in lowest terms. The *level* is the sum of taken tokens that have not come back,
//! in parts of a token: each taken token adds `price`, each microsecond takes off `gain`. This is GCRA: its theoretical arrival
//! time is `now + level / gain`, and no division rounds it.

use crate::rate::Quota;

/// The parameters of a bucket in whole numbers. Tokens come [`gain`](Self::gain) to [`price`](Self::price) microseconds.
///
/// ```
/// # use tollgate::Quota;
/// # use tollgate::remote::model::Fill;
/// let fill = Fill::of(&Quota::per_second(10).burst(3)).expect("stores count it");
/// assert_eq!(fill.quota().map(|quota| quota.to_string()), Some("1/100ms burst 3".into()));
/// assert_eq!(Fill::of(&Quota::unlimited()), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// What a token adds to the level.
    pub price: u64,
    /// What a microsecond takes off it.
    pub gain: u64,
    /// The level up to which tokens are granted.
    pub brim: u64,
}

impl Fill {
    /// The bound of exact doubles, with a margin for one addition. Parameters are below an eighth of it, and a level is half of it
    /// at most.
    pub const EXACT: u64 = 1 << 52;

    /// The parameters of a quota. `None` when the numbers do not fit, or stores do not count this kind of quota.
    pub fn of(quota: &Quota) -> Option<Self> {
        if quota.is_zero() || quota.is_unlimited() || quota.is_by_interval() {
            return None;
        }
        let (count, nanos) = (u128::from(quota.count()) * 1_000, quota.period().as_nanos());
        let common = gcd(count, nanos);
        // Leaves a margin for future reservations, and for debt.
        let bounded = |number: u128| u64::try_from(number).ok().filter(|&number| number < Fill::EXACT / 8);
        let (gain, price) = (bounded(count / common)?, bounded(nanos / common)?);
        let brim = bounded(u128::from(price) * u128::from(quota.burst_size()))?;
        Some(Self { price, gain, brim })
    }

    /// The quota with these parameters.
    pub fn quota(&self) -> Option<Quota> {
        let quota = Quota::new(self.gain, std::time::Duration::from_micros(self.price)).ok()?;
        quota.with_burst(self.burst()).ok()
    }

    /// The burst, in tokens.
    pub(super) fn burst(&self) -> u64 {
        self.brim / self.price
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The state of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(super) level: u64,
    at: u64,
}

impl Bucket {
    pub(super) fn full(now: u64) -> Self {
        Self { level: 0, at: now }
    }

    pub(super) fn advance(&mut self, fill: &Fill, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        self.level = self.level.saturating_sub(passed.saturating_mul(fill.gain));
    }

    /// Converts the level to the price of another quota: taken tokens stay taken.
    pub(super) fn convert(&mut self, old: &Fill, new: &Fill) {
        let level = (u128::from(self.level) * u128::from(new.price)).div_ceil(old.price.into());
        self.level = level.min(u128::from(Fill::EXACT / 2)) as u64;
    }

    pub(super) fn free(&self, fill: &Fill) -> u64 {
        fill.brim.saturating_sub(self.level) / fill.price
    }

    /// Takes `n`, into debt if need be, as deep as whole numbers go.
    pub(super) fn take(&mut self, fill: &Fill, n: u64) {
        let level = self.level.saturating_add(n.saturating_mul(fill.price));
        self.level = level.min(Fill::EXACT / 2);
    }

    /// Takes `n` tokens of the future, and returns in how many microseconds they will have come. Returns `None`, and takes
    /// nothing, when that is too far away, or never.
    pub(super) fn reserve(&mut self, fill: &Fill, n: u64) -> Option<u64> {
        let level = self.level.checked_add(n.checked_mul(fill.price)?)?;
        if n > fill.burst() || level > Fill::EXACT / 2 {
            return None;
        }
        self.level = level;
        Some((level - fill.brim.min(level)).div_ceil(fill.gain))
    }

    /// Returns in how many microseconds `n` fit; `None` when they never do.
    pub(super) fn wait(&self, fill: &Fill, n: u64) -> Option<u64> {
        let most = fill.brim.checked_sub(n.checked_mul(fill.price)?)?;
        Some(self.level.saturating_sub(most).div_ceil(fill.gain))
    }

    pub(super) fn is_full(&self, fill: &Fill, now: u64) -> bool {
        self.level.div_ceil(fill.gain) <= now.saturating_sub(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(quota: &str) -> Fill {
        Fill::of(&quota.parse().expect("a quota")).expect("it fits")
    }

    /// During a rollout, processes of both versions alternate: they gain no token, and lose none.
    #[test]
    fn quotas_that_take_turns_change_nothing() {
        let (one, other) = (fill("1000/s burst 1000"), fill("1001/s burst 1000"));
        let mut bucket = Bucket::full(0);
        bucket.take(&one, 1_000);
        for now in 1..=1_000 {
            bucket.advance(&one, now * 500);
            bucket.convert(&one, &other);
            bucket.advance(&other, now * 500);
            bucket.convert(&other, &one);
        }
        assert_eq!(bucket.free(&one), 500, "of half a second: {bucket:?}");
    }
}
