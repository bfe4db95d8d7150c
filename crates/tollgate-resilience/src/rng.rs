//! Seeded random numbers: splitmix64 (G. Steele, D. Lea and C. Flood, OOPSLA 2014). Not for secrets.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mixed(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A uniform fraction, from 0 to below 1.
fn fraction(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1u64 << 53) as f64
}

/// The `n`-th draw of `seed`, as a fraction: for callers that count elsewhere.
pub(crate) fn nth_fraction(seed: u64, n: u64) -> f64 {
    fraction(mixed(seed.wrapping_add(n.wrapping_add(1).wrapping_mul(GAMMA))))
}

/// A generator with a state.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The draws of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next draw.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mixed(self.0)
    }

    /// The next draw as a fraction, from 0 to below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        fraction(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut draws = Rng::new(1_234_567);
        assert_eq!(
            [draws.draw(), draws.draw()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        let mut draws = Rng::new(7);
        for n in 0..100 {
            let fraction = draws.fraction();
            assert!((0.0..1.0).contains(&fraction) && fraction == nth_fraction(7, n));
        }
    }
}
