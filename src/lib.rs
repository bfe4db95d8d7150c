//! Decides whether work may start now: semaphores, rate limits, worker pools and permits that machines share.
//! Each is a leg of one policy, which admits all-or-nothing, waits in a bounded FIFO queue, and changes while it runs.
//!
//! ```
//! use tollgate::{LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let policy = Policy::builder()
//!     .limit(TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock).named("rate"))
//!     .limit(Semaphore::new(4).named("in flight"))
//!     .max_wait(Duration::from_secs(1))
//!     .build()?;
//!
//! clock.run(async {
//!     let first = policy.admit(1).await.unwrap();
//!     let refused = policy.try_admit(1).unwrap_err();
//!     assert_eq!(refused.leg(), "rate");
//!     assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
//!
//!     let second = policy.admit(1).await.unwrap(); // Sleeps once, in virtual time here.
//!     assert_eq!(clock.elapsed(), Duration::from_millis(100));
//!     # drop((first, second));
//! });
//! # Ok::<(), tollgate::PolicyError>(())
//! ```
//!
//! New here: [choose a limiter](guide::choosing), follow a [tutorial](guide::tutorials), or copy a [recipe](guide::cookbook). The
//! [`guide`] also has migrations, operations, questions and a glossary.
//!
//! # Concurrency
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | limit how many operations run at once | [`Semaphore`] | |
//! | the same with priorities, a bounded queue, time-outs | a [`Policy`] over it, in another [`Order`] | |
//! | take a permit, or a message, whichever comes first | `ChannelSemaphore` in `crossbeam_channel::select!` | `channel` |
//! | share a limit by classes, by importance | [`policy::Partitions`] | |
//! | let a limit find itself from latency | `Adaptive` of the crate `tollgate-resilience` over a [`Semaphore`] | |
//! | run tasks on a bounded number of threads | [`WorkerPool`] | `pool` |
//! | run an async function over many items, `n` at once | `fan_out` | `fan-out` |
//!
//! # Rates
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | limit the start rate, with bursts | [`TokenBucket`] and a [`Quota`] | |
//! | never exceed a number in any span of time | [`SlidingWindow`], or [`SlidingLog`], exact to the instant | |
//! | space work evenly, one after the other | [`LeakyBucket`] | |
//! | count by windows of a fixed length, as many quotas are billed | [`FixedWindow`] | |
//! | a budget per hour, day, week or month of a time zone | `CalendarWindow` | `calendar` |
//! | start slowly, and warm up | [`Warmup`] | |
//! | let a rate find itself from refusals | `Adaptive` of the crate `tollgate-resilience` over a [`TokenBucket`] | |
//! | put an existing governor limiter into a policy | `Governed` | `governor` |
//!
//! # Policies
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | combine several limits in one admission, and wait in turn | [`Policy::builder`]; [`LimiterExt::and`] without a queue | |
//! | charge by an estimate and correct it | [`Cost`], [`Permit::settle`] | |
//! | run a fallback when refused | [`Policy::run`] | |
//! | take from the first of several sources that admits | [`FirstOf`] | |
//! | keep limits in a file, and change them while running | the crate `tollgate-config` | |
//! | throttle one thing while another is under load | [`LimiterExt::when`], [`policy::conditional`] | |
//! | try a limit before it is enforced | [`LimiterExt::shadow`] | |
//! | see what a change of limits would have done to recorded requests | `AdmissionLog` of the crate `tollgate-observe` and the example `lab` | |
//! | explain a decision, with the numbers of every leg | [`Policy::explain`] | |
//! | keep budgets of tokens and money by organisation, team and user | `Budgets` of the crate `tollgate-budget` | |
//!
//! # Keys
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | one limiter or policy per tenant, route or address | [`Keyed`] | |
//! | limit millions of keys by one quota | [`keyed::KeyedRate`] | |
//! | share one rate fairly among keys | [`keyed::FairBudget`] | |
//!
//! # Overload and failure
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | stop calling a service that fails | `CircuitBreaker` of the crate `tollgate-resilience` | |
//! | stop all callers of an API when it refuses one, and keep to its remaining quota | `Upstream` of the crate `tollgate-resilience` | |
//! | repeat what has failed, within a budget and a deadline | `Retry` of the crate `tollgate-resilience` | |
//! | not make overload worse | `Throttler`, `RetryBudget` of the crate `tollgate-resilience` | |
//! | give refused clients a retry time, and honour it | `WaitingRoom` of the crate `tollgate-http`, [`Policy::bypass_queue`] | |
//!
//! # Services and machines
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | limit a service of tower, axum, hyper or tonic | `LimitLayer` of the crate `tollgate-http` | |
//! | answer clients with `Retry-After` and `RateLimit` fields, find keys behind proxies | `tollgate-http` with its feature `axum` | |
//! | read what well-known APIs say about their limits, in a client of tower | `tollgate-http` with its feature `client` | |
//! | share permits, rates and windows among machines | `remote::Remote`, and a store of the crate `tollgate-stores` | `remote` |
//!
//! # Operation and tests
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | see the status of every leg | [`Limiter::describe`], [`status`] | |
//! | report to metrics and tracing | `Observed` of the crate `tollgate-observe` | |
//! | see how long callers wait | [`Policy::waits`] | |
//! | test with virtual time | [`ManualClock`] | |
//! | write a limiter of your own | [`Limiter`], and the test suite of the crate `tollgate-conformance` | |
//!
//! # Clocks and changes
//!
//! `on` gives a clock, to a builder and to a limiter that `new` makes. Without it, the clock is the real one.
//!
//! `set_limit` changes a number of permits, tasks or units, and `set_quota` a [`Quota`]: at once, while permits are held and
//! awaited. Both return a typed error where a value can be invalid, and change nothing then.
//!
//! # Features
//!
//! | feature | by default | what it adds |
//! |---|---|---|
//! | `tokio` | yes | waits at semaphores use the timers of a tokio runtime, where one is running; without, and for queues of policies, one thread keeps all timers |
//! | `pool` | no | worker pools whose slots are permits |
//! | `fan-out` | no | `fan_out` over tokio tasks, and with it futures 0.3 |
//! | `channel` | no | `ChannelSemaphore`, and with it crossbeam-channel 0.5 |
//! | `calendar` | no | `CalendarWindow`, and with it jiff 1 and 200 kB of time zones |
//! | `governor` | no | `Governed`, and with it governor 0.10 |
//! | `tracing` | no | tasks of pools in the span of their submitter, and with it tracing 0.1 |
//! | `remote` | no | `tokio`, and limits that several machines share through a store |
//!
//! The minimum supported Rust version is 1.95, the one it is built with. The limits hold within one process, except those in `remote`.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(test, feature = "remote"))]
mod rng;

mod blocking;
mod core;
#[cfg(feature = "fan-out")]
#[cfg_attr(docsrs, doc(cfg(feature = "fan-out")))]
pub mod fan_out;
#[cfg(feature = "governor")]
mod governed;
pub mod guide;
pub mod keyed;
pub mod policy;
#[cfg(feature = "pool")]
#[cfg_attr(docsrs, doc(cfg(feature = "pool")))]
pub mod pool;
pub mod rate;
#[cfg(feature = "remote")]
#[cfg_attr(docsrs, doc(cfg(feature = "remote")))]
pub mod remote;
pub mod semaphore;
pub mod sync;
pub mod time;

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
use tollgate_conformance::inputs as laws;

pub use crate::core::ask::{Ask, Cost, Demand, MAX_COSTS, Role};
pub use crate::core::limiter::{Limiter, LimiterExt, Outcome, Settlement};
pub use crate::core::permit::{Permit, UnknownCost};
pub use crate::core::refusal::{LegName, Reason, Refusal, Wait};
pub use crate::core::status::Description;
pub use crate::core::ticket::{BoxTicket, Ticket};
#[doc(inline)]
pub use crate::core::{limiter, status};
#[cfg(feature = "governor")]
#[cfg_attr(docsrs, doc(cfg(feature = "governor")))]
pub use governed::Governed;
#[doc(inline)]
pub use keyed::{Keyed, KeysFull};
#[doc(inline)]
pub use policy::{
    BoxLimiter, Eviction, FirstOf, Leg, Legs, Order, OrderError, Policy, PolicyBuilder, PolicyError, RunError,
};
#[cfg(feature = "pool")]
#[cfg_attr(docsrs, doc(cfg(feature = "pool")))]
#[doc(inline)]
pub use pool::{JoinHandle, WorkerPool};
#[doc(inline)]
pub use rate::{BucketTicket, Inherit, Quota, QuotaError, SlidingWindow, TokenBucket};
#[cfg(feature = "calendar")]
#[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
#[doc(inline)]
pub use rate::{CalendarPeriod, CalendarWindow, TimeZoneError};
#[doc(inline)]
pub use rate::{FixedWindow, LeakyBucket, RateError, SlidingLog, Warmup};
#[doc(inline)]
pub use semaphore::{
    AcquireError, AcquireTimeoutError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, SemaphoreTicket,
    TryAcquireError,
};
#[cfg(feature = "channel")]
#[cfg_attr(docsrs, doc(cfg(feature = "channel")))]
#[doc(inline)]
pub use semaphore::{ChannelSemaphore, ChannelToken};
#[doc(inline)]
pub use time::{Clock, ClockReading, Instant, ManualClock};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
