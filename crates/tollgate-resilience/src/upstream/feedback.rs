//! What a response of an upstream says about its limits, in plain numbers: no text, no header, no clock.

use std::time::Duration;
use tollgate::Cost;

/// The limits of an upstream, as one of its responses states them. Copyable, nothing on the heap.
///
/// The dialects of the crate `tollgate-http` make it from header fields. Any other protocol can fill it in by hand.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate_resilience::upstream::{Feedback, RemainingQuota};
/// let minute = RemainingQuota::of_calls(40).limit(100).reset(Duration::from_secs(12));
/// let feedback = Feedback::default().quota(minute);
/// assert!(!feedback.throttled && feedback.quotas().count() == 1);
///
/// let refused = Feedback::throttled(Some(Duration::from_secs(3)));
/// assert_eq!(refused.retry_after, Some(Duration::from_secs(3)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Feedback {
    /// The upstream refused the request because of its limits, as by a 429.
    pub throttled: bool,
    /// How long the upstream asks its callers to stay away.
    pub retry_after: Option<Duration>,
    /// The true cost of the request, where the upstream names it.
    pub actual: Option<(Cost, u64)>,
    quotas: [Option<RemainingQuota>; MAX_QUOTAS],
}

/// The number of quotas that one [`Feedback`] carries.
pub const MAX_QUOTAS: usize = 6;

impl Feedback {
    /// The feedback of a refused request, and the wait that the upstream asked for, if it named one.
    pub fn throttled(retry_after: Option<Duration>) -> Self {
        Self {
            throttled: true,
            retry_after,
            ..Self::default()
        }
    }

    /// Adds the state of a quota. One with the cost and the number of an earlier one replaces it. Only [`MAX_QUOTAS`] fit, and one more
    /// is dropped.
    #[must_use]
    pub fn quota(mut self, quota: RemainingQuota) -> Self {
        for slot in &mut self.quotas {
            match slot {
                Some(other) if !other.is_same(&quota) => {}
                _ => {
                    *slot = Some(quota);
                    break;
                }
            }
        }
        self
    }

    /// The quotas that were stated, in the order in which they were added.
    pub fn quotas(&self) -> impl Iterator<Item = RemainingQuota> + '_ {
        self.quotas.iter().flatten().copied()
    }

    /// The same, where neither the wait nor a reset is longer than `cap`.
    #[must_use]
    pub fn capped(mut self, cap: Duration) -> Self {
        self.retry_after = self.retry_after.map(|wait| wait.min(cap));
        for quota in self.quotas.iter_mut().flatten() {
            quota.reset = quota.reset.map(|reset| reset.min(cap));
            quota.window = quota.window.map(|window| window.min(cap));
        }
        self
    }

    /// True if it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How the spent units of a quota come back.
///
/// ```
/// # use tollgate_resilience::upstream::{Refill, RemainingQuota};
/// let quota = RemainingQuota::of_calls(40).limit(100).refill(Refill::PerSecond(10.0));
/// assert_eq!((quota.remaining, quota.refill), (40, Refill::PerSecond(10.0)));
/// assert_eq!(RemainingQuota::of_calls(1).refill, Refill::AtReset);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Refill {
    /// All of them at the reset: a window.
    #[default]
    AtReset,
    /// Steadily, and the last of them at the reset: a bucket.
    Continuous,
    /// Steadily, at this number of units per second: a bucket whose rate is stated. Not finite or not positive counts as
    /// [`Continuous`](Self::Continuous).
    PerSecond(f64),
}

/// The remaining units of one quota of an upstream.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::Cost;
/// # use tollgate_resilience::upstream::{Refill, RemainingQuota};
/// const TOKENS: Cost = Cost::new("tokens");
/// let tokens = RemainingQuota::of(TOKENS, 149_984)
///     .limit(150_000)
///     .reset(Duration::from_millis(6))
///     .refill(Refill::Continuous);
/// assert_eq!((tokens.cost, tokens.remaining), (Some(TOKENS), 149_984));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RemainingQuota {
    /// The cost that it counts; calls if none.
    pub cost: Option<Cost>,
    /// Tells quotas of one cost apart, such as one per minute and one per hour; 0 unless set.
    pub number: u64,
    /// The units left.
    pub remaining: u64,
    /// The units of a full quota, if known.
    pub limit: Option<u64>,
    /// The time until the quota is full again, if known.
    pub reset: Option<Duration>,
    /// The length of its window, if known.
    pub window: Option<Duration>,
    /// How spent units come back.
    pub refill: Refill,
}

impl RemainingQuota {
    /// A quota of calls.
    pub fn of_calls(remaining: u64) -> Self {
        Self {
            cost: None,
            number: 0,
            remaining,
            limit: None,
            reset: None,
            window: None,
            refill: Refill::AtReset,
        }
    }

    /// A quota of `cost`.
    pub fn of(cost: Cost, remaining: u64) -> Self {
        Self {
            cost: Some(cost),
            ..Self::of_calls(remaining)
        }
    }

    /// Sets the number that tells it apart from others of its cost.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.number = number;
        self
    }

    /// Sets the units of a full quota.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets the time until the quota is full again.
    #[must_use]
    pub fn reset(mut self, reset: Duration) -> Self {
        self.reset = Some(reset);
        self
    }

    /// Sets the length of the window.
    ///
    /// ```
    /// # use tollgate_resilience::upstream::{Feedback, RemainingQuota};
    /// # use std::time::Duration;
    /// let quota = RemainingQuota::of_calls(40).limit(100).window(Duration::from_secs(60)).reset(Duration::from_secs(12)).number(1);
    /// let feedback = Feedback::default().quota(quota);
    /// assert_eq!(feedback.quotas().next().map(|quota| (quota.remaining, quota.limit, quota.number)), Some((40, Some(100), 1)));
    /// ```
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets how spent units come back.
    #[must_use]
    pub fn refill(mut self, refill: Refill) -> Self {
        self.refill = refill;
        self
    }

    /// True if both state the same quota.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.cost, self.number) == (other.cost, other.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_replaces_the_one_of_its_cost_and_number_and_one_too_many_is_dropped() {
        let mut feedback = Feedback::default();
        assert!(feedback.is_empty());
        for number in 0..9 {
            feedback = feedback.quota(RemainingQuota::of_calls(number).number(number));
        }
        feedback = feedback.quota(RemainingQuota::of_calls(77).number(2));
        let seen: Vec<_> = feedback.quotas().map(|quota| quota.remaining).collect();
        assert_eq!(seen, [0, 1, 77, 3, 4, 5]);
    }

    #[test]
    fn a_cap_bounds_waits_and_resets() {
        let day = Duration::from_secs(86_400);
        let quota = RemainingQuota::of_calls(1).reset(day).window(day);
        let hour = Duration::from_secs(3_600);
        let capped = Feedback::throttled(Some(day)).quota(quota).capped(hour);
        assert_eq!(capped.retry_after, Some(hour));
        assert!(
            capped
                .quotas()
                .all(|quota| (quota.reset, quota.window) == (Some(hour), Some(hour)))
        );
    }
}
