//! The verbs of all rates as a trait.

use crate::core::limiter::Limiter;
use crate::core::refusal::Refusal;
use crate::rate::TokenBucket;
use std::sync::Arc;
use std::time::Duration;

/// The verbs that every rate has, for code that takes any of them. Each is the type's own method of that name.
///
/// ```
/// # use tollgate::{LeakyBucket, ManualClock, Quota, SlidingLog, TokenBucket};
/// # use tollgate::rate::RateLimiter;
/// # use std::time::Duration;
/// /// Admits `n` now, in debt if need be, and returns when the debt is paid.
/// fn urgent(rate: &impl RateLimiter, n: u64) -> Option<Duration> {
///     rate.force_acquire(n);
///     rate.time_until(1)
/// }
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(1)).on(&clock);
/// let log = SlidingLog::new(1, Duration::from_secs(60)).unwrap().on(&clock);
/// assert_eq!(urgent(&bucket, 3), Some(Duration::from_secs(3)));
/// assert_eq!(urgent(&log, 1), Some(Duration::from_secs(60)));
/// ```
///
/// References to rates and an `Arc` of one are rates too. No other crate can implement it, so verbs may be added.
///
/// ```
/// # use tollgate::rate::RateLimiter;
/// # use tollgate::{Quota, TokenBucket};
/// # use std::sync::Arc;
/// fn drained<R: RateLimiter>(rate: R) -> u64 {
///     rate.acquire_up_to(u64::MAX)
/// }
/// let shared = Arc::new(TokenBucket::new(Quota::per_hour(3)));
/// assert_eq!(drained(Arc::clone(&shared)), 3);
/// assert_eq!(drained(&shared), 0);
/// ```
pub trait RateLimiter: Limiter + sealed::Sealed {
    /// Takes `n` now, or refuses.
    ///
    /// # Errors
    /// `RateExceeded`, with a true `retry_after`; `Oversized` if only a change of the settings could admit `n`.
    fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>>;

    /// Takes up to `n` of the units that are there, and returns how many it took.
    fn acquire_up_to(&self, n: u64) -> u64;

    /// Takes `n` now, whether they are there or not. The rest is a debt, which is paid before anything else is
    /// admitted.
    fn force_acquire(&self, n: u64);

    /// How many could be taken now. A snapshot.
    fn available(&self) -> u64;

    /// How long until `n` could be taken, if nothing else is taken meanwhile. `None` if only a change of the settings
    /// could admit them.
    fn time_until(&self, n: u64) -> Option<Duration>;

    /// How long until it is full, or as good as new, if nothing is taken meanwhile. `None` if that is never.
    fn time_until_full(&self) -> Option<Duration>;

    /// Starts anew. Nothing that was taken before is given back any more.
    fn reset(&self);
}

pub(super) mod sealed {
    /// The rates of this crate, and references to them.
    pub trait Sealed {}
    impl<R: Sealed + ?Sized> Sealed for &R {}
    impl<R: Sealed + ?Sized> Sealed for std::sync::Arc<R> {}
}

macro_rules! forward {
    ($($ty:ty),*) => {$(
        impl<R: RateLimiter + ?Sized> RateLimiter for $ty {
            #[inline]
            fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
                (**self).try_acquire(n)
            }
            fn acquire_up_to(&self, n: u64) -> u64 {
                (**self).acquire_up_to(n)
            }
            fn force_acquire(&self, n: u64) {
                (**self).force_acquire(n);
            }
            fn available(&self) -> u64 {
                (**self).available()
            }
            fn time_until(&self, n: u64) -> Option<Duration> {
                (**self).time_until(n)
            }
            fn time_until_full(&self) -> Option<Duration> {
                (**self).time_until_full()
            }
            fn reset(&self) {
                (**self).reset();
            }
        }
    )*};
}
forward!(&R, Arc<R>);

/// Forwards to the methods of the type itself.
macro_rules! rate_limiter {
    ($ty:ident) => {
        impl $crate::rate::rate_limiter::sealed::Sealed for $ty {}
        impl $crate::rate::RateLimiter for $ty {
            #[inline]
            fn try_acquire(&self, n: u64) -> Result<(), $crate::core::refusal::Refusal<'_>> {
                $ty::try_acquire(self, n)
            }
            fn acquire_up_to(&self, n: u64) -> u64 {
                $ty::acquire_up_to(self, n)
            }
            fn force_acquire(&self, n: u64) {
                $ty::force_acquire(self, n);
            }
            fn available(&self) -> u64 {
                $ty::available(self)
            }
            fn time_until(&self, n: u64) -> Option<std::time::Duration> {
                $ty::time_until(self, n)
            }
            fn time_until_full(&self) -> Option<std::time::Duration> {
                $ty::time_until_full(self)
            }
            fn reset(&self) {
                $ty::reset(self);
            }
        }
    };
}
pub(super) use rate_limiter;

rate_limiter!(TokenBucket);
