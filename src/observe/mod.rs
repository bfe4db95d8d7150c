//! Records what limiters do: events of [tracing](https://docs.rs/tracing), and metrics of the facade
//! [metrics](https://docs.rs/metrics). Each is a feature; with both, [`Observed`] reports to both.
//!
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
//! Counters and histograms come from [`Observed`], gauges and the counters of leases from `Gauges::record`, which the program calls when it needs them.
//! [`Observer`] is for gates and queues of your own, in front of many limiters.
//!
//! No label is ever a key. The names of limiters are constants of the program by their type. The names of the first 31 legs are
//! labels, or only those that [`Observed::legs`] lists; all other legs share the label `other`. Events have the full name of the
//! leg.
//!
//! | event | level | fields |
//! |---|---|---|
//! | `refused` | debug | `limiter`, `leg`, `reason`, `retry_after` and `waited` in seconds |
//! | `admitted` | trace | `limiter`, `waited` |
//! | `finished` | trace | `limiter`, `outcome`, `held` |
//! | `cancelled` | trace | `limiter` |
//! | `circuit changed` | info; warn when it opens | `breaker`, `from`, `to`, `calls`, `failed`, `slow` |
//!
//! Without either: [`Limiter::visit_status`](crate::Limiter::visit_status) shows the state of each leg, and `Semaphore::stats` the counts of
//! a semaphore.

#[cfg(feature = "tracing")]
mod breaker;
#[cfg(feature = "metrics")]
mod gauges;
#[cfg(feature = "metrics")]
mod labels;
mod meter;
mod observed;
mod observer;

#[cfg(feature = "tracing")]
pub use breaker::breaker_events;
#[cfg(feature = "metrics")]
pub use gauges::{Gauges, describe};
pub use observed::Observed;
pub use observer::{ObservedWait, Observer};

#[cfg(feature = "metrics")]
mod names {
    pub(super) const ACQUIRE_TOTAL: &str = "tollgate.acquire.total";
    pub(super) const REFUSALS_TOTAL: &str = "tollgate.refusals.total";
    pub(super) const WAIT_TIME: &str = "tollgate.acquire.wait_time";
    pub(super) const HELD_TIME: &str = "tollgate.permit.held_time";
    pub(super) const PERMITS_LIMIT: &str = "tollgate.permits.limit";
    pub(super) const PERMITS_IN_USE: &str = "tollgate.permits.in_use";
    pub(super) const WAITERS: &str = "tollgate.waiters";
    pub(super) const ADAPTIVE_LIMIT: &str = "tollgate.adaptive.limit";
    pub(super) const RATE_LIMIT: &str = "tollgate.rate.limit";
    pub(super) const RATE_AVAILABLE: &str = "tollgate.rate.available";
    pub(super) const BUDGET_LIMIT: &str = "tollgate.budget.limit";
    pub(super) const BUDGET_AVAILABLE: &str = "tollgate.budget.available";
    pub(super) const SHED_LIKELIHOOD: &str = "tollgate.shed.likelihood";
    pub(super) const BREAKER_STATE: &str = "tollgate.breaker.state";
    pub(super) const LEASE_UNITS: &str = "tollgate.lease.units";
    pub(super) const LEASE_REQUESTS: &str = "tollgate.lease.requests";
    pub(super) const LEASE_RECALLS: &str = "tollgate.lease.recalls";
    pub(super) const LEASE_LAPSES: &str = "tollgate.lease.lapses";
    pub(super) const QUEUE_DEPTH: &str = "tollgate.queue.depth";
}
#[cfg(feature = "metrics")]
use names::*;
