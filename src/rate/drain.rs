//! An outflow at a rational rate, exact: the part below a whole grain is carried over.
//!
//! Where a tick is a nanosecond, the rate is the quota's own fraction. On other clocks it cannot be exact. There it is
//! a fraction whose denominator is a power of two, so that letting time pass divides nothing.

/// One unit is `2^GRAIN` grains.
pub(super) const GRAIN: u32 = 40;

/// `units` in grains.
pub(super) fn grains(units: u64) -> u128 {
    u128::from(units) << GRAIN
}

/// The finest denominator that is a power of two: 2^85.
const MAX_SHIFT: u32 = 85;

/// `num / den` units flow out per tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    num: u64,
    den: u128,
    /// Set if the denominator is two to the power of [`GRAIN`] plus this: that many low bits of `ticks x num` are parts
    /// of a grain.
    fraction: Option<u32>,
    /// The outflow beyond the last whole grain: in those parts, else in grains times `den`.
    carry: u128,
    /// Nanoseconds per `2^40` ticks.
    scale: u64,
}

impl Drain {
    /// Nothing flows out.
    pub(super) const STOPPED: Self = Self {
        num: 0,
        den: 1 << GRAIN,
        fraction: Some(0),
        carry: 0,
        scale: 1 << 40,
    };

    /// `count` per `nanos`, where `2^40` ticks last `scale` nanoseconds.
    ///
    /// Exact when a tick is a nanosecond. Otherwise within 2^-28, and never faster.
    pub(super) fn new(count: u64, nanos: u64, scale: u64) -> Self {
        if scale != 1 << 40 {
            let drain = Self::by_power_of_two(u128::from(count) * u128::from(scale), u128::from(nanos) << 40);
            return Self { scale, ..drain };
        }
        Self {
            num: count,
            den: nanos.into(),
            fraction: None,
            carry: 0,
            scale,
        }
    }

    /// The greatest fraction not above `num / den` whose denominator is a power of two, as fine as fits.
    fn by_power_of_two(num: u128, den: u128) -> Self {
        let (mut quotient, mut rest, mut shift) = (num / den, num % den, 0);
        // Long division, a bit at a time. `den` is below 2^104.
        while (quotient < 1 << 62 && shift < MAX_SHIFT) || shift < GRAIN {
            rest <<= 1;
            quotient = quotient << 1 | u128::from(rest >= den);
            if rest >= den {
                rest -= den;
            }
            shift += 1;
        }
        Self {
            num: u64::try_from(quotient).unwrap_or(u64::MAX),
            den: 1 << shift,
            fraction: Some(shift - GRAIN),
            carry: 0,
            scale: 1 << 40,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.num == 0
    }

    /// True when `ticks` of a machine's counter are at most 16 ns: no more than passes while one unit is admitted.
    pub(super) fn is_brief(&self, ticks: u64) -> bool {
        self.fraction.is_some() && u128::from(ticks) * u128::from(self.scale) <= 16 << 40
    }

    /// True when `grains` flow out in less than a tick; of a rate that is rounded, in no more than one.
    pub(super) fn takes_no_tick(&self, grains: u128) -> bool {
        let per_tick = (u128::from(self.num) << GRAIN) / self.den;
        grains < per_tick + u128::from(self.fraction.is_some())
    }

    /// The grains that flow out in `ticks`.
    #[inline]
    pub(super) fn pass(&mut self, ticks: u64) -> u128 {
        let flow = u128::from(ticks) * u128::from(self.num);
        let Some(fraction) = self.fraction else {
            return self.pass_exactly(flow);
        };
        // Both are below 2^127. The fraction takes less than 64 bits.
        let flow = flow + self.carry;
        self.carry = u128::from(flow as u64 & ((1 << (fraction & 63)) - 1));
        flow >> (fraction & 63)
    }

    /// The same in units times `den`.
    fn pass_exactly(&mut self, flow: u128) -> u128 {
        let (units, part) = (flow / self.den, flow % self.den);
        // The part below a unit is less than 2^64, so that it fits in grains.
        let part = (part << GRAIN) + self.carry;
        self.carry = part % self.den;
        units.saturating_mul(1 << GRAIN).saturating_add(part / self.den)
    }

    /// Forgets the carry: there was nothing left to flow out.
    #[inline]
    pub(super) fn run_dry(&mut self) {
        if self.carry != 0 {
            self.carry = 0;
        }
    }

    /// The least number of ticks in which `grains` flow out; `None` if that is never.
    pub(super) fn ticks_until(&self, grains: u128) -> Option<u64> {
        if grains == 0 {
            return Some(0);
        }
        if self.num == 0 {
            return None;
        }
        // Grains times `den`, over `2^GRAIN`: whole units apart, since all of it may not fit. The carry is less than a
        // grain, so that it is subtracted from the last one.
        let (units, part) = ((grains - 1) >> GRAIN, (grains - 1) & ((1 << GRAIN) - 1));
        let carry = match self.fraction {
            Some(_) => self.carry << GRAIN,
            None => self.carry,
        };
        let part = part * self.den + (self.den - carry);
        let flow = units.saturating_mul(self.den).saturating_add(part.div_ceil(1 << GRAIN));
        Some(u64::try_from(flow.div_ceil(u128::from(self.num))).unwrap_or(u64::MAX))
    }

    /// How long one unit takes, in `2^-32` ticks, rounded up; `None` when stopped.
    pub(super) fn interval(&self) -> Option<u128> {
        let num = u128::from(self.num);
        (num > 0).then(|| ((self.den / num) << 32) + ((self.den % num) << 32).div_ceil(num))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Given any rate and ticks of any length, when time passes in steps, then the outflow is the exact amount,
        /// rounded down to a grain. That is so where a tick is a nanosecond; on other clocks it is that, less at most
        /// one part in 2^28. And it is reached at the predicted tick, not before.
        #[test]
        fn the_outflow_is_exact_or_slightly_less(
            count in 1u64..=1_000_000_000,
            nanos in 1u64..=1 << 54,
            scale in prop_oneof![Just(1u64 << 40), 1u64 << 37..1 << 43],
            steps in prop::collection::vec(0u64..1 << 40, 1..6),
            units in 1u64..1_000,
        ) {
            prop_assume!(count <= nanos);
            let mut drain = Drain::new(count, nanos, scale);
            let (mut ticks, mut out) = (0u128, 0u128);
            for step in &steps {
                ticks += u128::from(*step);
                out += drain.pass(*step);
            }
            // At most 2^43 ticks of 2^43 / 2^40 nanoseconds: in two parts, so that the product fits.
            let product = |by: u128| (ticks * u128::from(scale) * u128::from(count), by);
            let (flow, den) = product(u128::from(nanos) << 40);
            let exact = ((flow / den) << GRAIN) + ((flow % den) / (den >> GRAIN).max(1)).min((1 << GRAIN) - 1);
            prop_assert!(out <= exact + 1, "{out} of {exact}");
            prop_assert!(out + (exact >> 28) + 2 >= exact, "{out} of {exact}");
            if scale == 1 << 40 {
                prop_assert!(out.abs_diff(exact) <= 1, "{out} of {exact}");
            }

            let Some(at) = drain.ticks_until(grains(units)) else { unreachable!("it flows") };
            prop_assume!(at < 1 << 62);
            let (mut then, mut before) = (drain, drain);
            prop_assert!(then.pass(at) >= grains(units));
            prop_assert!(at == 0 || before.pass(at - 1) < grains(units));
        }
    }

    #[test]
    fn a_part_of_a_grain_shortens_the_wait_for_the_next() {
        // A grain in 2^17 ticks.
        let mut drain = Drain::new(1, 1 << 54, 1 << 37);
        assert_eq!(drain.ticks_until(1), Some(1 << 17));
        assert_eq!(drain.pass(1 << 16), 0);
        assert_eq!(drain.ticks_until(1), Some(1 << 16));
    }

    /// Three units in ten nanoseconds, at a nanosecond a tick and, rounded, at two.
    #[test]
    fn a_tick_is_taken_by_as_much_as_flows_out_in_it() {
        for (scale, most) in [(1 << 40, (3 << GRAIN) / 10 - 1), (1 << 41, (6 << GRAIN) / 10)] {
            let drain = Drain::new(3, 10, scale);
            assert_eq!([most, most + 1].map(|n| drain.takes_no_tick(n)), [true, false]);
        }
    }

    /// Rows of (count, nanoseconds, nanoseconds per 2^40 ticks, the interval in 2^-32 ticks).
    #[test]
    fn an_interval_is_rounded_up() {
        const ONE: u64 = 1 << 40;
        for (count, nanos, scale, interval) in [
            (1, 1, ONE, 1u128 << 32),
            (10, 1_000_000_000, ONE, 100_000_000 << 32),
            (3, 1, ONE, (1 << 32) / 3 + 1),
            (3, 7, ONE, (7u128 << 32) / 3 + 1),
            (1, 8, ONE / 4, 32 << 32),
            (3, 8, ONE / 2, (16u128 << 32) / 3 + 1),
        ] {
            let found = Drain::new(count, nanos, scale).interval().unwrap_or(0);
            let off = found - interval;
            assert!(off <= interval >> 28, "{count} {nanos} {scale}: {found} for {interval}");
            assert!(
                scale != ONE || off == 0,
                "{count} {nanos} {scale}: {found} for {interval}"
            );
        }
        assert_eq!(Drain::STOPPED.interval(), None);
    }

    /// Rows of (count, nanoseconds, nanoseconds per 2^40 ticks, numerator, denominator).
    #[test]
    fn a_denominator_is_a_power_of_two_as_fine_as_fits() {
        for (count, nanos, scale, num, den) in [
            (1, 2, 1 << 39, 1u128 << 62, 64),
            (1, 1, 1 << 43, 1 << 62, 59),
            (1, 1 << 54, 1 << 37, 1 << 28, 85),
            (2, 3, 1 << 41, (1 << 64) / 3, 62),
        ] {
            let drain = Drain::new(count, nanos, scale);
            assert_eq!(
                (u128::from(drain.num), drain.den),
                (num, 1u128 << den),
                "{count} {nanos} {scale}"
            );
            assert_eq!(drain.fraction, Some(den - GRAIN));
        }
    }

    /// The carry is forgotten with the rest.
    #[test]
    fn a_drain_that_ran_dry_starts_anew() {
        let mut drain = Drain::new(1, 3 << GRAIN, 1 << 40);
        assert_eq!((drain.pass(2), drain.ticks_until(1)), (0, Some(1)));
        drain.run_dry();
        assert_eq!(drain.ticks_until(1), Some(3));
    }

    #[test]
    fn nothing_flows_out_of_a_stopped_drain() {
        let mut drain = Drain::STOPPED;
        assert!(drain.is_stopped());
        assert_eq!(drain.pass(u64::MAX), 0);
        assert_eq!((drain.ticks_until(0), drain.ticks_until(1)), (Some(0), None));
    }
}
