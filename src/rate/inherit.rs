//! What becomes of a rate's state when its settings change.

/// The part of a running limiter's state that survives a change of its limit or quota.
///
/// ```
/// # use tollgate::{Inherit, ManualClock, Quota, TokenBucket};
/// let bucket = TokenBucket::new(Quota::per_second(100)).on(&ManualClock::new());
/// assert!(bucket.try_acquire(70).is_ok());
/// for (rule, available) in [(Inherit::AsIs, 30), (Inherit::Proportional, 15), (Inherit::Reset, 200)] {
///     let quota = match rule {
///         Inherit::AsIs => Quota::per_second(100),
///         Inherit::Proportional => Quota::per_second(50),
///         _ => Quota::per_second(200),
///     };
///     bucket.set_quota(quota, rule);
///     assert_eq!(bucket.available(), available);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum Inherit {
    /// A bucket keeps its tokens, up to the new burst. A window keeps what it has counted: after a smaller limit it may be in debt,
    /// so that no window exceeds its limit.
    #[default]
    AsIs,
    /// The same share of the limit is used. What was taken before is not given back any more.
    Proportional,
    /// Nothing: it starts full. What was taken before is not given back any more.
    Reset,
}

/// `part x new / old`, rounded down.
pub(super) fn share(part: u64, old: u64, new: u64) -> u64 {
    let share = u128::from(part) * u128::from(new) / u128::from(old.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The same, rounded up.
fn share_up(part: u64, old: u64, new: u64) -> u64 {
    let share = (u128::from(part) * u128::from(new)).div_ceil(u128::from(old.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Gives each count its share, rounded up, and returns their sum.
pub(super) fn share_all<'a>(counts: impl Iterator<Item = &'a mut u64>, old: u64, new: u64) -> u64 {
    counts.fold(0, |total, count| {
        *count = share_up(*count, old, new).min(u64::MAX - total);
        total + *count
    })
}

#[cfg(test)]
mod tests {
    use super::{share, share_up};

    #[test]
    fn a_share_is_exact_up_to_its_rounding() {
        assert_eq!([share(4, 10, 20), share(3, 10, 5), share(0, 0, 7)], [8, 1, 0]);
        assert_eq!([share_up(4, 10, 20), share_up(3, 10, 5), share_up(0, 0, 7)], [8, 2, 0]);
        assert_eq!(share(1 << 39, 1 << 40, u64::MAX - 1), (1 << 63) - 1);
        assert_eq!(share_up(u64::MAX, 1, u64::MAX), u64::MAX);
    }
}
