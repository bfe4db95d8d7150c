//! What one result says, what a window of them adds up to, and whether that is too bad. Whole numbers only: a rate is
//! compared by multiplying, so that three of five are exactly 60 %.

/// Rates are in millionths.
const MILLION: u64 = 1_000_000;

/// What one result says about the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    pub(crate) failed: bool,
    pub(crate) slow: bool,
}

/// Results, added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) slow: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, mark: Mark, n: u64) {
        self.calls = self.calls.saturating_add(n);
        self.failed = self.failed.saturating_add(if mark.failed { n } else { 0 });
        self.slow = self.slow.saturating_add(if mark.slow { n } else { 0 });
    }
}

/// The thresholds. Each is reached, not exceeded, when it trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judge {
    /// Below so many calls nothing is concluded from rates.
    pub(crate) minimum: u64,
    /// In millionths; `None` when failures are not judged by rate.
    pub(crate) failure_rate: Option<u64>,
    pub(crate) slow_rate: Option<u64>,
}

impl Judge {
    /// True when `counts` are too bad.
    #[inline]
    pub(crate) fn condemns(&self, counts: Counts) -> bool {
        counts.calls >= self.minimum
            && (reaches(self.failure_rate, counts.failed, counts.calls)
                || reaches(self.slow_rate, counts.slow, counts.calls))
    }

    /// Below these numbers no window is condemned, so nobody needs to look.
    pub(crate) fn alarm(&self) -> Alarm {
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

    /// The same thresholds for a trial of `probes`, which concludes from so many. A trial has to conclude something
    /// from failures: where they are not judged by rate, half of them is too many.
    pub(crate) fn of_trial(&self, probes: u64) -> Self {
        Self {
            minimum: probes,
            failure_rate: self.failure_rate.or(Some(MILLION / 2)),
            slow_rate: self.slow_rate,
        }
    }
}

/// What a window needs to have before it can be condemned: so many calls, and so many failed or so many slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alarm {
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) slow: u64,
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
    fn an_alarm_is_the_least_that_could_condemn() {
        let judge = Judge {
            minimum: 10,
            failure_rate: Some(MILLION / 2),
            slow_rate: Some(MILLION / 3),
        };
        let least = Alarm {
            calls: 10,
            failed: 5,
            slow: 4,
        };
        assert_eq!(judge.alarm(), least);
        let blind = Judge {
            failure_rate: None,
            slow_rate: None,
            ..judge
        };
        let never = Alarm {
            failed: u64::MAX,
            slow: u64::MAX,
            ..least
        };
        assert_eq!(blind.alarm(), never);
    }

    #[test]
    fn a_trial_is_judged_by_half_where_failures_are_not() {
        let counts = |failed| Counts {
            calls: 4,
            failed,
            ..Counts::default()
        };
        let blind = Judge {
            minimum: 100,
            failure_rate: None,
            slow_rate: None,
        };
        assert!(!blind.condemns(counts(4)));
        let trial = blind.of_trial(4);
        assert_eq!(
            [1, 2, 4].map(|failed| trial.condemns(counts(failed))),
            [false, true, true]
        );
        let strict = Judge {
            failure_rate: Some(1),
            ..blind
        };
        assert!(strict.of_trial(4).condemns(counts(1)));
    }
}
