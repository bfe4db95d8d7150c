//! An outflow at a rational rate, exact: what does not make a whole grain is carried over.

/// One unit is `2^GRAIN` grains.
pub(crate) const GRAIN: u32 = 40;

/// `units` in grains.
pub(crate) fn grains(units: u64) -> u128 {
    u128::from(units) << GRAIN
}

/// `num / den` units flow out per tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    num: u64,
    den: u128,
    /// What has flowed out beyond the last whole grain: grains times `den`.
    carry: u128,
}

impl Drain {
    /// Nothing flows out.
    pub(crate) const STOPPED: Self = Self {
        num: 0,
        den: 1,
        carry: 0,
    };

    /// `count` per `nanos`, where `2^40` ticks last `scale` nanoseconds.
    ///
    /// Exact when a tick is a nanosecond. Otherwise within 2^-28, and never faster.
    pub(crate) fn new(count: u64, nanos: u64, scale: u64) -> Self {
        let (mut num, mut den) = (u128::from(count) * u128::from(scale), u128::from(nanos) << 40);
        let divisor = gcd(num, den);
        (num, den) = (num / divisor, den / divisor);
        while num >= 1 << 63 || den >= 1 << 86 {
            (num, den) = (num >> 1, den.div_ceil(2));
        }
        Self {
            num: num as u64,
            den,
            carry: 0,
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.num == 0
    }

    /// Grains that flow out in so many ticks.
    pub(crate) fn pass(&mut self, ticks: u64) -> u128 {
        let flow = u128::from(ticks) * u128::from(self.num);
        // The part below a unit is less than 2^86, so that it fits in grains.
        let fine = ((flow % self.den) << GRAIN) + self.carry;
        self.carry = fine % self.den;
        (flow / self.den)
            .saturating_mul(1 << GRAIN)
            .saturating_add(fine / self.den)
    }

    /// Forgets what was carried over: nothing was left to flow out.
    pub(crate) fn run_dry(&mut self) {
        self.carry = 0;
    }

    /// The least number of ticks in which so many grains flow out; nothing when that is never.
    pub(crate) fn ticks_until(&self, grains: u128) -> Option<u64> {
        if grains == 0 {
            return Some(0);
        }
        if self.num == 0 {
            return None;
        }
        // Grains times `den`, over `2^GRAIN`: whole units apart, since all of it may not fit. The carry is less than a
        // grain, so that it is subtracted from the last one.
        let (units, part) = ((grains - 1) >> GRAIN, (grains - 1) & ((1 << GRAIN) - 1));
        let part = part * self.den + (self.den - self.carry);
        let flow = units.saturating_mul(self.den).saturating_add(part.div_ceil(1 << GRAIN));
        Some(u64::try_from(flow.div_ceil(u128::from(self.num))).unwrap_or(u64::MAX))
    }

    /// How long one unit takes, in `2^-32` ticks, rounded up; nothing when nothing flows.
    pub(crate) fn interval(&self) -> Option<u128> {
        let num = u128::from(self.num);
        (num > 0).then(|| ((self.den / num) << 32) + ((self.den % num) << 32).div_ceil(num))
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
