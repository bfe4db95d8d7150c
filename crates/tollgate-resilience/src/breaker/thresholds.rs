//! Results, their sums, and the thresholds that trip a breaker. Whole numbers only: a rate is compared by multiplying,
//! so that three of five are exactly 60 %.

/// Rates are in millionths.
const MILLION: u64 = 1_000_000;

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct CallResult {
    pub(super) failed: bool,
    pub(super) slow: bool,
}

/// The sums of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct CallCounts {
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) slow: u64,
}

impl CallCounts {
    pub(super) fn add(&mut self, result: CallResult, n: u64) {
        self.calls = self.calls.saturating_add(n);
        self.failed = self.failed.saturating_add(if result.failed { n } else { 0 });
        self.slow = self.slow.saturating_add(if result.slow { n } else { 0 });
    }
}

/// The thresholds. A window that reaches one trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    /// The number of calls below which rates conclude nothing.
    pub(super) minimum: u64,
    /// In millionths; `None` if failures are not judged by rate.
    pub(super) failure_rate: Option<u64>,
    pub(super) slow_rate: Option<u64>,
}

impl Thresholds {
    /// True if `counts` reach a threshold.
    #[inline]
    pub(super) fn are_reached_by(&self, counts: CallCounts) -> bool {
        counts.calls >= self.minimum
            && (reaches(self.failure_rate, counts.failed, counts.calls)
                || reaches(self.slow_rate, counts.slow, counts.calls))
    }

    /// The least numbers of a window that can trip.
    pub(super) fn alarm(&self) -> Alarm {
        let least = |rate: Option<u64>| match rate {
            Some(rate) => (u128::from(rate) * u128::from(self.minimum)).div_ceil(u128::from(MILLION)) as u64,
            None => u64::MAX,
        };
        Alarm {
            calls: self.minimum,
            failed: least(self.failure_rate),
            slow: least(self.slow_rate),
        }
    }

    /// The same thresholds for `probes` probes, which conclude from exactly that many. Probes have to conclude
    /// something from failures: if failures are not judged by rate, half of them is too many.
    pub(super) fn for_probes(&self, probes: u64) -> Self {
        Self {
            minimum: probes,
            failure_rate: self.failure_rate.or(Some(MILLION / 2)),
            slow_rate: self.slow_rate,
        }
    }
}

/// The least numbers of a window that can trip: calls, and failed or slow ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alarm {
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) slow: u64,
}

/// True when `part` of `whole` reaches `rate`. A rate is never zero, so neither is a part that reaches it.
#[inline]
fn reaches(rate: Option<u64>, part: u64, whole: u64) -> bool {
    rate.is_some_and(|rate| part > 0 && u128::from(part) * u128::from(MILLION) >= u128::from(rate) * u128::from(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_the_least_that_could_trip() {
        let thresholds = Thresholds {
            minimum: 10,
            failure_rate: Some(MILLION / 2),
            slow_rate: Some(MILLION / 3),
        };
        let least = Alarm {
            calls: 10,
            failed: 5,
            slow: 4,
        };
        assert_eq!(thresholds.alarm(), least);
        let blind = Thresholds {
            failure_rate: None,
            slow_rate: None,
            ..thresholds
        };
        let never = Alarm {
            failed: u64::MAX,
            slow: u64::MAX,
            ..least
        };
        assert_eq!(blind.alarm(), never);
    }

    #[test]
    fn probes_are_judged_by_one_half_where_failures_are_not() {
        let counts = |failed| CallCounts {
            calls: 4,
            failed,
            ..CallCounts::default()
        };
        let blind = Thresholds {
            minimum: 100,
            failure_rate: None,
            slow_rate: None,
        };
        assert!(!blind.are_reached_by(counts(4)));
        let trial = blind.for_probes(4);
        assert_eq!(
            [1, 2, 4].map(|failed| trial.are_reached_by(counts(failed))),
            [false, true, true]
        );
        let strict = Thresholds {
            failure_rate: Some(1),
            ..blind
        };
        assert!(strict.for_probes(4).are_reached_by(counts(1)));
    }
}
