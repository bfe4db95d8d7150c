//! The kinds of legs. A kind is a struct of its numbers, a row of [`LegKind`], and how its limiter is built and changed.

mod custom;
mod permits;
mod rates;
#[cfg(feature = "resilience")]
mod resilience;
mod windows;

pub use custom::{CustomKind, Kinds};
pub use permits::{PartitionSpec, SemaphoreSpec};
pub use rates::{LeakyBucketSpec, TokenBucketSpec, WarmupSpec};
#[cfg(feature = "resilience")]
pub use resilience::{AdaptiveRateSpec, AdaptiveSpec, BreakerSpec, LawSpec, laws};
#[cfg(feature = "calendar")]
pub use windows::CalendarWindowSpec;
pub use windows::{FixedWindowSpec, SlidingLogSpec, SlidingWindowSpec};

use crate::live::{AnyUnit, Unit};
use crate::spec::tagged::{Variant, kinds};
use crate::spec::{PartitionsSpec, SpecError};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tollgate::policy::Partitions;
use tollgate::{Clock, Inherit, Limiter};

/// The partitions of a running set, by name.
pub(crate) type LivePartitions = BTreeMap<String, (PartitionsSpec, Arc<Partitions>)>;

/// What a limiter is built with, beside its numbers.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) clock: &'a Clock,
    pub(crate) kinds: &'a Kinds,
    pub(crate) partitions: &'a LivePartitions,
}

/// The numbers of a kind.
pub(crate) trait Kind: Variant<LegKind> + Clone + PartialEq + Send + Sync + 'static {
    type Limiter: Limiter + 'static;

    /// Builds the limiter.
    fn build(&self, around: &Around<'_>) -> Result<Self::Limiter, SpecError>;

    /// True when a limiter of the numbers `before` can be changed to these while it runs.
    fn fits(&self, before: &Self) -> bool {
        let _ = before;
        false
    }

    /// Changes a running limiter to these numbers, which fit and have been checked.
    fn put_in_force(&self, limiter: &Self::Limiter, inherit: Inherit) {
        let _ = (limiter, inherit);
    }

    /// True when all is there, of a limiter whose numbers have been changed.
    fn is_untouched(limiter: &Self::Limiter) -> bool {
        let _ = limiter;
        false
    }
}

/// Writes [`Kind::is_untouched`] of a rate.
macro_rules! is_full {
    () => {
        fn is_untouched(rate: &Self::Limiter) -> bool {
            rate.time_until_full() == Some(std::time::Duration::ZERO)
        }
    };
}
use is_full;

macro_rules! legs {
    ($($(#[cfg($when:meta)])? $variant:ident = $kind:literal,)+) => {
        impl LegKind {
            /// The name of the kind, as in a file.
            pub fn name(&self) -> &str {
                match self {
                    $($(#[cfg($when)])? Self::$variant(_) => $kind,)+
                    Self::Custom(custom) => custom.name(),
                }
            }

            /// The limiter of a leg.
            pub(crate) fn unit(&self, around: &Around<'_>) -> Result<Arc<dyn AnyUnit>, SpecError> {
                match self {
                    $($(#[cfg($when)])? Self::$variant(numbers) => Unit::of(numbers, around),)+
                    Self::Custom(numbers) => Unit::of(numbers, around),
                }
            }
        }
    };
}

kinds! {
    /// A kind of leg and its numbers: a built-in one, or one of the program's own that [`Kinds`] knows.
    ///
    /// In a file it is the key `kind`, beside the keys of its numbers.
    ///
    /// ```
    /// # use tollgate_config::{LegKind, SlidingLogSpec};
    /// # use std::time::Duration;
    /// let kind = LegKind::from(SlidingLogSpec { limit: 10, window: Duration::from_secs(60) });
    /// assert_eq!(kind.name(), "sliding-log");
    /// assert_eq!(kind, LegKind::sliding_log(10, Duration::from_secs(60)));
    /// ```
    #[non_exhaustive]
    pub enum LegKind {
        TokenBucket(TokenBucketSpec) = "token-bucket",
        LeakyBucket(LeakyBucketSpec) = "leaky-bucket",
        Warmup(WarmupSpec) = "warmup",
        FixedWindow(FixedWindowSpec) = "fixed-window",
        #[cfg(feature = "calendar")]
        CalendarWindow(CalendarWindowSpec) = "calendar-window",
        SlidingWindow(SlidingWindowSpec) = "sliding-window",
        SlidingLog(SlidingLogSpec) = "sliding-log",
        Semaphore(SemaphoreSpec) = "semaphore",
        Partition(PartitionSpec) = "partition",
        #[cfg(feature = "resilience")]
        Breaker(BreakerSpec) = "breaker",
        #[cfg(feature = "resilience")]
        Adaptive(AdaptiveSpec) = "adaptive",
        #[cfg(feature = "resilience")]
        AdaptiveRate(AdaptiveRateSpec) = "adaptive-rate",
    }
    else Custom(CustomKind)
    common "name, kind, per, inherit, shadow, at_once, when"
    then legs
}

impl Variant<LegKind> for CustomKind {
    fn of(kind: &LegKind) -> Option<&Self> {
        match kind {
            LegKind::Custom(custom) => Some(custom),
            _ => None,
        }
    }
}

/// The feature that a kind of this crate needs, if it is off.
fn feature_of(kind: &str) -> Option<&'static str> {
    match kind {
        "calendar-window" if cfg!(not(feature = "calendar")) => Some("calendar"),
        "breaker" | "adaptive" | "adaptive-rate" if cfg!(not(feature = "resilience")) => Some("resilience"),
        _ => None,
    }
}

/// A fault of `key`.
fn fault<E: fmt::Display>(key: &'static str) -> impl Fn(E) -> SpecError {
    move |error| SpecError::new(key, error.to_string())
}
