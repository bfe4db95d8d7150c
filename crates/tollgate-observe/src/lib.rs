//! Tells what the limiters of [`tollgate`] do: as metrics of the facade [metrics](https://docs.rs/metrics), as events of
//! [tracing](https://docs.rs/tracing), and as records of requests, on which another version of a policy can be tried.
//!
//! ```
//! # #[cfg(any(feature = "metrics", feature = "tracing"))] {
//! use tollgate::{LimiterExt, Semaphore};
//! use tollgate_observe::Observed;
//!
//! let gate = Observed::new("api", Semaphore::new(1)).legs(&["semaphore"]);
//! let permit = gate.try_admit(1).unwrap(); // One more in `tollgate.acquire.total`, as granted.
//! assert!(gate.try_admit(1).is_err()); // One more, as rejected, and an event at the level `debug`.
//! # drop(permit);
//! # }
//! ```
//!
//! | you want to | use | feature |
//! |---|---|---|
//! | count admissions, refusals, waits and ends of work | `Observed` around a limiter or a policy | `metrics`, `tracing` |
//! | the same in a gate or a queue of your own, in front of many limiters | `Observer` | `metrics`, `tracing` |
//! | show the state of every leg as gauges | `Gauges` | `metrics` |
//! | hear when a circuit opens | `breaker_events` | `tracing` |
//! | record requests, to try another policy on them | [`record::AdmissionLog`] and the example `lab` | |
//!
//! With both features, `Observed` reports to both.
//!
//! # Metrics
//! | metric | type, unit | labels |
//! |---|---|---|
//! | `tollgate.acquire.total` | counter | `limiter`, `outcome`: `granted`, `rejected`, `timed_out`, `cancelled`, `closed` |
//! | `tollgate.refusals.total` | counter | `limiter`, `leg` |
//! | `tollgate.acquire.wait_time` | histogram, seconds | `limiter` |
//! | `tollgate.permit.held_time` | histogram, seconds | `limiter` |
//! | `tollgate.permits.limit`, `tollgate.permits.in_use`, `tollgate.waiters` | gauge | `limiter`, `leg`, `kind` |
//! | `tollgate.adaptive.limit` | gauge | the same |
//! | `tollgate.rate.limit`, `tollgate.rate.available` | gauge | the same |
//! | `tollgate.budget.limit`, `tollgate.budget.available` | gauge | the same |
//! | `tollgate.shed.likelihood` | gauge, 0 to 1 | the same |
//! | `tollgate.breaker.state` | gauge: 0 closed, 1 half-open, 2 open | the same |
//! | `tollgate.queue.depth` | gauge | the same |
//! | `tollgate.lease.units` | gauge: what this process holds of a shared limit | the same |
//! | `tollgate.lease.requests`, `tollgate.lease.recalls`, `tollgate.lease.lapses` | counter | the same |
//!
//! Counters and histograms come from `Observed`, gauges and the counters of leases from `Gauges::record`, which the program calls when it needs them.
//! `Observer` is for gates and queues of your own, in front of many limiters. A wait that is dropped counts as `cancelled`. An admission
//! that is cancelled counts as `granted`, and then as `cancelled`.
//!
//! No label is ever a key. The names of limiters are constants of the program by their type. The names of the first 31 legs are
//! labels, or only those that `Observed::legs` lists; all other legs share the label `other`. Events have the full name of the
//! leg.
//!
//! # Events
//! | event | level | fields |
//! |---|---|---|
//! | `refused` | debug | `limiter`, `leg`, `reason`, `retry_after` and `waited` in seconds |
//! | `admitted` | trace | `limiter`, `waited` |
//! | `finished` | trace | `limiter`, `outcome`, `held` |
//! | `cancelled` | trace | `limiter` |
//! | `circuit changed` | info; warn when it opens | `breaker`, `from`, `to`, `calls`, `failed`, `slow` |
//!
//! Without either: [`Limiter::describe`](tollgate::Limiter::describe) shows the state of each leg, and `Semaphore::stats` the counts of a
//! semaphore.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "tracing")]
mod breaker;
#[cfg(feature = "metrics")]
mod gauges;
#[cfg(feature = "metrics")]
mod labels;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod meter;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod observed;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod observer;
pub mod record;

#[cfg(feature = "tracing")]
#[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
pub use breaker::breaker_events;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub use gauges::{Gauges, describe};
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "metrics", feature = "tracing"))))]
pub use observed::Observed;
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "metrics", feature = "tracing"))))]
pub use observer::{ObservedWait, Observer};

#[cfg(feature = "metrics")]
mod names {
    pub(crate) const ACQUIRE_TOTAL: &str = "tollgate.acquire.total";
    pub(crate) const REFUSALS_TOTAL: &str = "tollgate.refusals.total";
    pub(crate) const WAIT_TIME: &str = "tollgate.acquire.wait_time";
    pub(crate) const HELD_TIME: &str = "tollgate.permit.held_time";
    pub(crate) const PERMITS_LIMIT: &str = "tollgate.permits.limit";
    pub(crate) const PERMITS_IN_USE: &str = "tollgate.permits.in_use";
    pub(crate) const WAITERS: &str = "tollgate.waiters";
    pub(crate) const ADAPTIVE_LIMIT: &str = "tollgate.adaptive.limit";
    pub(crate) const RATE_LIMIT: &str = "tollgate.rate.limit";
    pub(crate) const RATE_AVAILABLE: &str = "tollgate.rate.available";
    pub(crate) const BUDGET_LIMIT: &str = "tollgate.budget.limit";
    pub(crate) const BUDGET_AVAILABLE: &str = "tollgate.budget.available";
    pub(crate) const SHED_LIKELIHOOD: &str = "tollgate.shed.likelihood";
    pub(crate) const BREAKER_STATE: &str = "tollgate.breaker.state";
    pub(crate) const LEASE_UNITS: &str = "tollgate.lease.units";
    pub(crate) const LEASE_REQUESTS: &str = "tollgate.lease.requests";
    pub(crate) const LEASE_RECALLS: &str = "tollgate.lease.recalls";
    pub(crate) const LEASE_LAPSES: &str = "tollgate.lease.lapses";
    pub(crate) const QUEUE_DEPTH: &str = "tollgate.queue.depth";
}
#[cfg(feature = "metrics")]
use names::*;

/// The clock of the first leg that decides by one.
fn clock_of(limiter: &impl tollgate::Limiter) -> Option<tollgate::Clock> {
    let mut clock = None;
    limiter.describe(&mut |leg| clock = clock.take().or_else(|| leg.clock.cloned()));
    clock
}

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
