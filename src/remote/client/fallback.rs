//! The share of the limit that this process admits by itself while the store is unavailable.

use crate::remote::backend::Rule;
use crate::remote::model::Meter;
use std::time::Duration;

#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct Fallback {
    /// Of a rate or window: what was taken, each unit as often as there are shares.
    meter: Meter,
    /// Permits in use.
    in_use: u64,
}

impl Fallback {
    pub(super) fn new(rule: &Rule) -> Self {
        Self {
            meter: Meter::new(rule, 0),
            in_use: 0,
        }
    }

    pub(super) fn adopt(&mut self, rule: &Rule) {
        self.meter.adopt(rule);
    }

    /// Takes `n` permits of a share of `limit`, if they are there.
    pub(super) fn take_permits(&mut self, n: u64, of: u64, limit: u64) -> bool {
        let fits = self.in_use.saturating_add(n).saturating_mul(of.max(1)) <= limit;
        self.in_use += if fits { n } else { 0 };
        fits
    }

    pub(super) fn put_back(&mut self, n: u64) {
        self.in_use -= n;
    }

    /// Takes `n` tokens of a share of the rate or window, if they are there.
    pub(super) fn take_tokens(&mut self, n: u64, of: u64, micros: u64) -> bool {
        let parts = n.saturating_mul(of.max(1));
        self.meter.advance(micros);
        let fits = self.meter.fits(parts);
        if fits {
            self.meter.take(parts);
        }
        fits
    }

    /// How long until `n` tokens of a share are there; `None` when they never are.
    pub(super) fn wait(&self, n: u64, of: u64) -> Option<Duration> {
        let micros = self.meter.wait(n.saturating_mul(of.max(1)))?;
        Some(Duration::from_micros(micros.max(1)))
    }
}

#[cfg(all(test, not(tollgate_proofs)))]
mod tests {
    use super::*;
    use crate::rate::Quota;

    #[test]
    fn a_share_is_a_fixed_part_of_the_limit() {
        let mut share = Fallback::new(&Rule::Permits { limit: 9 });
        assert!(share.take_permits(2, 4, 9) && !share.take_permits(1, 4, 9));
        share.put_back(1);
        assert!(share.take_permits(1, 4, 9));
        let quota = Quota::per_second(4).burst(8);
        let mut share = Fallback::new(&Rule::Rate { quota });
        assert!(share.take_tokens(2, 4, 0) && !share.take_tokens(1, 4, 0));
        assert_eq!(share.wait(1, 4), Some(Duration::from_secs(1)));
        assert!(!share.take_tokens(1, 4, 999_999) && share.take_tokens(1, 4, 1_000_000));
        assert_eq!(share.wait(3, 4), None);
    }
}
