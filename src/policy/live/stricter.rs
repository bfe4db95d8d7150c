//! The stricter of two rules, number by number: what neither the old nor the new rule forbids is all that it admits.

use crate::policy::spec::Rule;
use crate::rate::Quota;

/// `a` and `b` at once: each number is that of the stricter one. Both are of one kind, and alike in what cannot change.
pub(super) fn stricter(a: &Rule, b: &Rule) -> Rule {
    match (a, b) {
        (Rule::TokenBucket { quota: x }, Rule::TokenBucket { quota: y }) => Rule::token_bucket(quota(*x, *y)),
        (Rule::LeakyBucket { quota: x, slack: s }, Rule::LeakyBucket { quota: y, slack: t }) => Rule::LeakyBucket {
            quota: quota(*x, *y),
            slack: *s.min(t),
        },
        (
            Rule::Warmup {
                quota: x,
                period,
                cold_factor,
            },
            Rule::Warmup { quota: y, .. },
        ) => Rule::Warmup {
            quota: quota(*x, *y),
            period: *period,
            cold_factor: *cold_factor,
        },
        (Rule::FixedWindow { limit: x, window: v }, Rule::FixedWindow { limit: y, window: w }) => {
            Rule::fixed_window(*x.min(y), *v.max(w))
        }
        (
            Rule::SlidingWindow {
                limit: x,
                window: v,
                segments,
            },
            Rule::SlidingWindow {
                limit: y, window: w, ..
            },
        ) => Rule::SlidingWindow {
            limit: *x.min(y),
            window: *v.max(w),
            segments: *segments,
        },
        (
            Rule::SlidingLog {
                limit: x,
                window: v,
                entries,
            },
            Rule::SlidingLog {
                limit: y, window: w, ..
            },
        ) => Rule::SlidingLog {
            limit: *x.min(y),
            window: *v.max(w),
            entries: *entries,
        },
        (Rule::Semaphore { limit: x }, Rule::Semaphore { limit: y }) => Rule::semaphore(*x.min(y)),
        (_, b) => b.clone(),
    }
}

/// The slower rate with the smaller burst.
fn quota(a: Quota, b: Quota) -> Quota {
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

#[cfg(test)]
mod tests {
    use super::stricter;
    use crate::policy::spec::Rule;
    use std::time::Duration;

    fn bucket(quota: &str) -> Rule {
        Rule::token_bucket(quota.parse().unwrap())
    }

    #[test]
    fn each_number_is_that_of_the_stricter() {
        let rows = [
            ("100/s burst 5", "10/s burst 50", "10/s burst 5"),
            ("60/min burst 9", "2/s burst 10", "60/min burst 9"),
            ("unlimited", "3/s", "3/s"),
            ("3/s", "unlimited", "3/s"),
            ("zero", "3/s", "zero"),
            ("zero burst 5", "3/s burst 2", "zero burst 2"),
            ("10/s by interval", "20/s burst 4", "10/s burst 4 by interval"),
        ];
        for (a, b, both) in rows {
            assert_eq!(stricter(&bucket(a), &bucket(b)), bucket(both), "{a} and {b}");
        }
        let secs = Duration::from_secs;
        assert_eq!(
            stricter(&Rule::sliding_window(5, secs(1)), &Rule::sliding_window(9, secs(10))),
            Rule::sliding_window(5, secs(10))
        );
    }
}
