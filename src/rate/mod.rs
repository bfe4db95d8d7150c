//! Rates: limit how many admissions start per time.
//!
//! | type | what it is | prefer it when |
//! |---|---|---|
//! | [`TokenBucket`] | a rate with a burst, exact, one atomic word | nearly always |
//! | [`SlidingWindow`] | at most `n` in *any* window of a length | an upstream counts so, or bursts must not add up |
//! | [`SlidingLog`] | the same, exact to the instant | memory for every admission in a window is affordable |
//! | [`FixedWindow`] | at most `n` per window, counted anew at each boundary | a quota is billed by windows of a fixed length |
//! | `CalendarWindow`, of the feature `calendar` | at most `n` per hour, day, week or month of a time zone | a daily budget, a monthly plan |
//! | [`LeakyBucket`] | one after the other, evenly spaced | the resource behind it cannot take bursts |
//! | [`Warmup`] | evenly spaced, and slower after idle time | the resource behind it must warm up first |
//!
//! A rate by itself admits or refuses; to wait for one, put it into a [`Policy`](crate::Policy). Several bandwidths are
//! several limiters joined by [`and`](crate::LimiterExt::and), all-or-nothing.
//!
//! # Fairness
//! Policies that wait for one rate, and a policy and its [bypass queue](crate::Policy::bypass_queue), are served by the ages of
//! their heads: see [`WaitQueue`](crate::sync::WaitQueue). Each is served once, then the others that wait. A head that wants more
//! than is there holds up those behind it until it has it, so that small requests do not starve a large one. A request that does
//! not wait is refused meanwhile, with the instant at which those before it will have been served.
//!
//! ```
//! # use tollgate::{ManualClock, Policy, Quota, TokenBucket};
//! # use std::pin::pin;
//! # use std::sync::Arc;
//! # use std::task::{Context, Waker};
//! # use std::time::Duration;
//! let clock = ManualClock::new();
//! let bucket = Arc::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
//! let [one, other] = [0, 1].map(|_| Policy::new(Arc::clone(&bucket)));
//! bucket.try_acquire(1).unwrap();
//! let mut cx = Context::from_waker(Waker::noop());
//! let (mut first, mut second) = (pin!(one.admit(1)), pin!(other.admit(1)));
//! assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
//! // Behind both.
//! assert_eq!(bucket.try_acquire(1).unwrap_err().retry_after(), Some(Duration::from_secs(3)));
//! clock.advance(Duration::from_secs(1));
//! assert!(second.as_mut().poll(&mut cx).is_pending());
//! assert!(first.as_mut().poll(&mut cx).is_ready());
//! ```
//!
//! All of them are names of [`Rate`], which has the verbs that they share.
//!
//! | verb | what it does |
//! |---|---|
//! | `try_acquire`, `acquire_up_to` | takes `n`, or as many of them as are there |
//! | `force_acquire`, `debt` | takes more than is there; the number of units owed |
//! | `available`, `time_until`, `time_until_full` | how many are there, and when there will be `n`, or all |
//! | `reset` | starts anew |
//! | [`Permit::cancel`](crate::Permit::cancel), [`settle`](crate::Permit::settle) | gives the units of an admission back; corrects a charge |
//! | `set_quota`, `set_limit` | changes it while it runs, by one of three rules ([`Inherit`]) |
//!
//! A setter that accepts every argument returns nothing, as `set_quota` of a [`TokenBucket`] or `set_limit` of a window.
//! If an argument can contradict another setting, the setter returns the constructor's error and changes nothing: `set_quota` of a
//! [`LeakyBucket`] or a [`Warmup`].
//!
//! A composite has no `available` and no `time_until`: its legs count different things.
//! [`Policy::explain`](crate::Policy::explain) shows the numbers of each leg. A [refusal](crate::Refusal::retry_after) names the instant
//! at which all of them admit.

mod bucket;
#[cfg(feature = "calendar")]
mod calendar_window;
mod inherit;
mod leaky_bucket;
mod limiter;
mod meter;
mod parse;
mod quota;
#[cfg(feature = "serde")]
mod quota_serde;
mod rate_error;
mod ring;
mod sliding_log;
mod token_bucket;
mod warmup;
mod window;

pub(crate) use bucket::Axis;
pub use bucket::{Bucket, BucketTicket};
#[cfg(feature = "calendar")]
pub use calendar_window::{CalendarPeriod, CalendarWindow, Civil, TimeZoneError};
pub use inherit::Inherit;
pub use leaky_bucket::LeakyBucket;
pub use limiter::Rate;
#[cfg(feature = "remote")]
pub(crate) use meter::{Limited, Machine};
pub use meter::{Locked, Meter};
pub use quota::{Quota, QuotaError};
pub use rate_error::RateError;
pub use ring::Ring;
pub use sliding_log::{Log, SlidingLog};
pub use token_bucket::TokenBucket;
pub use warmup::{Ramp, Warmup};
pub use window::{Even, FixedWindow, SlidingWindow};
