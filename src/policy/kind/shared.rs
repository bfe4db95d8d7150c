//! What kinds share: those that have a quota, and those that have a window.

use crate::policy::spec::SpecError;
use crate::rate::Quota;
use std::fmt;

/// The items of the [`Rule`](super::Rule) of a rate, whose method `limiter` makes it without a clock.
macro_rules! meter_rule {
    () => {
        fn build(&self, clock: &Clock) -> Result<Self::Limiter, SpecError> {
            Ok(self.limiter()?.on(clock))
        }
        fn check(&self) -> Result<(), SpecError> {
            self.limiter().map(drop)
        }
        fn reset(limiter: &Self::Limiter) {
            limiter.reset();
        }
        fn available(limiter: &Self::Limiter) -> Option<u64> {
            Some(limiter.available())
        }
    };
}

/// Those of a rate with a `quota`.
macro_rules! quota_rule {
    () => {
        const PEAK: Option<PeakKey> = Some(PeakKey::Quota);
        $crate::policy::kind::shared::meter_rule!();
        fn at(&self, step: &PeakStep) -> Self {
            let mut rule = self.clone();
            rule.quota = step.quota.unwrap_or(self.quota);
            rule
        }
        fn per_second(&self) -> Option<f64> {
            Some(self.quota.count() as f64 / self.quota.period().as_secs_f64())
        }
        fn is_unlimited(&self) -> bool {
            self.quota.is_unlimited()
        }
    };
}

/// Those of a window with a `limit`.
macro_rules! limit_rule {
    () => {
        const PEAK: Option<PeakKey> = Some(PeakKey::Limit);
        /// It counts what it has admitted.
        const CROSSING: Inherit = Inherit::Additive;
        $crate::policy::kind::shared::meter_rule!();
        fn at(&self, step: &PeakStep) -> Self {
            let mut rule = self.clone();
            rule.limit = step.limit.unwrap_or(self.limit);
            rule
        }
        fn most(&self) -> Option<u64> {
            (!self.is_unlimited()).then_some(self.limit)
        }
        fn is_unlimited(&self) -> bool {
            self.limit == Self::Limiter::UNLIMITED
        }
    };
}

/// Those of a window with a `limit` and the length `window`.
macro_rules! window_rule {
    () => {
        $crate::policy::kind::shared::limit_rule!();
        fn change(&self, limiter: &Self::Limiter, to: &Self, inherit: Inherit) {
            // A length that has been checked is not refused; a refused one would leave the old in force.
            if self.window != to.window {
                let _ = limiter.set_length(to.window);
            }
            if self.limit != to.limit {
                limiter.set_limit(to.limit, inherit);
            }
            limiter.adopt_settings();
        }
        fn tighter(&self, other: &Self) -> Self {
            let mut rule = self.clone();
            rule.limit = self.limit.min(other.limit);
            rule.window = self.window.max(other.window);
            rule
        }
        fn per_second(&self) -> Option<f64> {
            Some(self.limit as f64 / self.window.as_secs_f64())
        }
    };
}
pub(super) use {limit_rule, meter_rule, quota_rule, window_rule};

/// A fault of `key`.
pub(super) fn fault<E: fmt::Display>(key: &'static str) -> impl Fn(E) -> SpecError {
    move |error| SpecError::new(key, error.to_string())
}

/// The slower rate with the smaller burst.
pub(super) fn tighter(a: Quota, b: Quota) -> Quota {
    if a.is_unlimited() {
        return b;
    }
    if b.is_unlimited() {
        return a;
    }
    let rate = |quota: Quota, other: Quota| u128::from(quota.count()) * other.period().as_nanos();
    let slower = if rate(a, b) <= rate(b, a) { a } else { b };
    let burst = a.burst_size().min(b.burst_size());
    // It refills within 584 years where the larger burst of the slower rate does. A burst of zero is that of `zero`.
    let quota = slower.with_burst(burst).unwrap_or(Quota::zero());
    if a.is_by_interval() || b.is_by_interval() {
        quota.by_interval()
    } else {
        quota
    }
}

#[cfg(feature = "policy-file")]
pub(super) use keys::{limit, quota, window};

#[cfg(feature = "policy-file")]
mod keys {
    use crate::policy::file::{PolicyFileError, Table};
    use crate::rate::{FixedWindow, Quota};
    use std::time::Duration;

    /// The rate.
    pub(in crate::policy::kind) fn quota(table: Table<'_>) -> Result<Quota, PolicyFileError> {
        let quota = table.quota("quota")?;
        quota.ok_or_else(|| table.missing("quota", "the rate, such as \"100/s burst 20\""))
    }

    /// The limit of a window, which may be unlimited.
    pub(in crate::policy::kind) fn limit(table: Table<'_>) -> Result<u64, PolicyFileError> {
        let most = FixedWindow::UNLIMITED;
        let limit = match table.text("limit", "") {
            Ok(Some("unlimited")) => Some(most),
            _ => table.whole("limit", 0, most)?,
        };
        limit.ok_or_else(|| table.missing("limit", "a whole number"))
    }

    /// The length of a window.
    pub(in crate::policy::kind) fn window(table: Table<'_>) -> Result<Duration, PolicyFileError> {
        let window = table.time("window")?;
        window.ok_or_else(|| table.missing("window", "its length, such as \"10s\""))
    }
}
