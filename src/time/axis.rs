//! A straight line through time, in integers: the units gained after a number of ticks, and the inverse.
//!
//! `gained(ticks) = floor(ticks * 2^shift * mul / 2^64)`: one shift and the high half of one multiply.

/// Units gained after `ticks`. The caller keeps `ticks << shift` within 64 bits.
pub(crate) fn gained(ticks: u64, mul: u64, shift: u32) -> u64 {
    ((u128::from(ticks << shift) * u128::from(mul)) >> 64) as u64
}

/// The least number of ticks after which at least `units` have been gained; `u64::MAX` if that is never.
pub(crate) fn ticks_until(units: u64, mul: u64, shift: u32) -> u64 {
    if units == 0 {
        return 0;
    }
    if mul == 0 {
        return u64::MAX;
    }
    let shifted = (u128::from(units) << 64).div_ceil(u128::from(mul));
    let ticks = shifted.div_ceil(1 << shift);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At any slope the gain is exact up to its rounding, and the instant that is told for a gain is the first that suffices.
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    #[test]
    fn a_line_gains_by_its_slope_and_its_inverse_is_the_first_tick() {
        crate::laws::holds([1, 1], |inputs| {
            let mul = inputs
                .number(u64::MAX, 3)
                .wrapping_mul(inputs.one_of(&[1, 1 << 40, 1 << 62, u64::MAX / 3]));
            let shift = inputs.number(30, 7) as u32;
            let most = u64::MAX >> shift;
            let ticks = inputs.number(most, 4);
            let product = |ticks: u64| u128::from(ticks) * (u128::from(mul) << shift);
            let gain = gained(ticks, mul, shift);
            assert!(u128::from(gain) << 64 <= product(ticks) && product(ticks) - (u128::from(gain) << 64) < 1 << 64);
            let units = inputs.number(u64::MAX, 4);
            match ticks_until(units, mul, shift) {
                first if first > most || first == u64::MAX => {
                    assert!(gained(most.min(u64::MAX - 1), mul, shift) < units);
                }
                first => assert!(
                    gained(first, mul, shift) >= units && (first == 0 || gained(first - 1, mul, shift) < units),
                    "{units} after {first}"
                ),
            }
        });
    }

    /// `ci/solvers` proves the formulas, and writes rows of numbers of them.
    #[test]
    #[ignore = "ci/solvers gives it the rows"]
    fn the_formulas_of_the_solver_are_those_of_the_code() {
        let rows = std::fs::read_to_string(std::env::var("TOLLGATE_AXIS_ROWS").unwrap()).unwrap();
        let mut read = 0;
        for row in rows.lines() {
            let numbers: Vec<u64> = row.split(' ').map(|number| number.parse().unwrap()).collect();
            let [mul, shift, ticks, gain, units, until] = numbers[..] else {
                panic!("{row}")
            };
            assert_eq!(gained(ticks, mul, shift as u32), gain, "{row}");
            assert_eq!(ticks_until(units, mul, shift as u32), until, "{row}");
            read += 1;
        }
        assert!(read >= 1_000);
    }
}
