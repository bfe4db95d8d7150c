//! The kinds of legs. A kind is one file: its numbers, how they are checked, written and changed, and its limiter.

mod leg_rule;
mod shared;

/// Each kind with its file, in the order in which an error message names them.
macro_rules! kinds {
    ($($(#[$when:meta])? $file:ident :: $rule:ident),* $(,)?) => {
        $($(#[$when])? mod $file;)*
        $($(#[$when])? pub use $file::$rule;)*

        #[cfg(feature = "policy-file")]
        impl super::file::Kinds {
            /// The kinds of this crate.
            pub fn standard() -> Self {
                let kinds = Self::none();
                $($(#[$when])? let kinds = kinds.with::<$rule>();)*
                kinds
            }
        }
    };
}
kinds![
    token_bucket::TokenBucketRule,
    leaky_bucket::LeakyBucketRule,
    warmup::WarmupRule,
    fixed_window::FixedWindowRule,
    #[cfg(feature = "calendar")]
    calendar_window::CalendarWindowRule,
    sliding_window::SlidingWindowRule,
    sliding_log::SlidingLogRule,
    semaphore::SemaphoreRule,
    partition::PartitionRule,
];

/// The feature that a kind of this crate needs, if it is off.
#[cfg(feature = "policy-file")]
pub(super) fn feature_of(kind: &str) -> Option<&'static str> {
    (cfg!(not(feature = "calendar")) && kind == "calendar-window").then_some("calendar")
}

pub(super) use leg_rule::LegLimiter;
pub use leg_rule::LegRule;
pub(super) use partition::LivePartitions;

#[cfg(feature = "policy-file")]
use super::file::{FromTable, PolicyFileError, Table};
use super::spec::{PeakStep, SpecError};
use crate::core::limiter::Limiter;
use crate::rate::Inherit;
use crate::time::Clock;
use std::fmt;
use std::time::Duration;

/// A kind of leg: its numbers, and the limiter that they make.
///
/// A rule is plain data. The defaults are those of a kind without numbers that change in place: a version with other numbers
/// makes a fresh leg.
///
/// Its functions run while a version is put in force. They must not use the policy whose leg it is.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec, Rule, SpecError};
/// # use tollgate::{Clock, LimiterExt, ManualClock, Semaphore};
/// /// Slots, of which one is kept free.
/// #[derive(Clone, Debug, PartialEq)]
/// struct AllButOne(usize);
/// impl Rule for AllButOne {
///     type Limiter = Semaphore;
///     const KIND: &'static str = "all-but-one";
///     fn check(&self) -> Result<(), SpecError> {
///         if self.0 < 2 { Err(SpecError::new("limit", "at least 2 are allowed")) } else { Ok(()) }
///     }
///     fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
///         Ok(Semaphore::new(self.0 - 1))
///     }
///     fn text(&self) -> String {
///         self.0.to_string()
///     }
/// }
/// let spec = |limit| PolicySpec::new([LegSpec::new("slots", LegRule::from(AllButOne(limit)))]);
/// assert_eq!(spec(1).check().unwrap_err().key(), "limit");
/// let policy = spec(3).build(&ManualClock::new())?;
/// assert!(policy.try_admit(3).is_err() && policy.try_admit(2).is_ok());
/// # Ok::<(), SpecError>(())
/// ```
pub trait Rule: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The limiter of such a leg.
    type Limiter: Limiter + 'static;

    /// The name of the kind, as in a file.
    const KIND: &'static str;

    /// True when units are held until the work ends, as those of a semaphore. The [use](super::spec::LoadMetric::Use) of such a
    /// leg is the held part of its [capacity](Rule::capacity); that of others is the part of the rate that they admitted.
    const HOLDS: bool = false;

    /// The number that a row of a [`Peak`](super::spec::Peak) table changes, by [`at`](Rule::at).
    const PEAK: Option<PeakKey> = None;

    /// The transition when a load, and no version, changes the numbers. It must give nothing, however often it happens.
    const CROSSING: Inherit = Inherit::AsIs;

    /// Builds the limiter, by `clock` if it decides by one.
    ///
    /// # Errors
    /// The key and the fault. Numbers that have been [checked](Rule::check) should have none.
    fn build(&self, clock: &Clock) -> Result<Self::Limiter, SpecError>;

    /// Finds the first number that is out of bounds.
    ///
    /// # Errors
    /// The key and the fault.
    fn check(&self) -> Result<(), SpecError> {
        Ok(())
    }

    /// The numbers as a text, for reports of changes. Rules that differ have texts that differ.
    fn text(&self) -> String {
        format!("{self:?}")
    }

    /// The numbers that cannot be changed in place, as a text. A leg of a version in which it differs is another leg.
    fn fixed(&self) -> String {
        self.text()
    }

    /// Changes the limiter of a leg with these numbers to those of `to`, which has the same [`fixed`](Rule::fixed) numbers.
    fn change(&self, limiter: &Self::Limiter, to: &Self, inherit: Inherit) {
        let _ = (limiter, to, inherit);
    }

    /// Each number as the tighter one of the two, which have the same [`fixed`](Rule::fixed) numbers.
    #[must_use]
    fn tighter(&self, other: &Self) -> Self {
        other.clone()
    }

    /// Gives back all that was taken, except what is held.
    fn reset(limiter: &Self::Limiter) {
        let _ = limiter;
    }

    /// These numbers with that of a row of a [`Peak`](super::spec::Peak) table.
    #[must_use]
    fn at(&self, step: &PeakStep) -> Self {
        let _ = step;
        self.clone()
    }

    /// Announces the most units that a row of a peak table allows: an ask for no more is worth waiting.
    fn may_reach(limiter: &Self::Limiter, most: u64) {
        let _ = (limiter, most);
    }

    /// The units that it could give now, where it counts units.
    fn available(limiter: &Self::Limiter) -> Option<u64> {
        let _ = limiter;
        None
    }

    /// The units that it can give at most by its numbers, where that is known: its limit, or its burst.
    fn most(&self) -> Option<u64> {
        None
    }

    /// The same of a limiter with these numbers, which may set its limit itself.
    fn capacity(&self, limiter: &Self::Limiter) -> Option<u64> {
        let _ = limiter;
        self.most()
    }

    /// The units per second, of a rate.
    fn per_second(&self) -> Option<f64> {
        None
    }

    /// The same of a limiter with these numbers, which may set its rate itself.
    fn rate(&self, limiter: &Self::Limiter) -> Option<f64> {
        let _ = limiter;
        self.per_second()
    }

    /// True when it admits everything, and counts nothing.
    fn is_unlimited(&self) -> bool {
        false
    }
}

/// The number that a row of a [`Peak`](super::spec::Peak) table changes.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, PeakKey};
/// # use std::time::Duration;
/// assert_eq!(LegRule::semaphore(3).peak(), Some(PeakKey::Limit));
/// assert_eq!(LegRule::token_bucket(tollgate::Quota::per_second(3)).peak(), Some(PeakKey::Quota));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeakKey {
    /// [`PeakStep::quota`].
    Quota,
    /// [`PeakStep::limit`].
    Limit,
}
