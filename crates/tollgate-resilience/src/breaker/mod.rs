//! The circuit breaker: work that is likely to fail is refused at once, until probes say that it would succeed.
//!
//! | type | what it is |
//! |---|---|
//! | [`CircuitBreaker`] | the breaker: a limiter that learns from outcomes |
//! | [`BreakerBuilder`] | its settings: windows, thresholds, probes, open time, classifier, events |
//! | [`History`] | thresholds that follow the usual rates |
//! | [`OpenTime`] | how long it stays open: fixed, growing, computed, with jitter |
//! | [`BreakerEvent`] | a change of its state |
//! | [`BreakerMetrics`] | the counts of its window, or of its probes |

mod builder;
mod circuit_breaker;
mod count_window;
mod error;
mod event;
mod history;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod laws;
mod machine;
mod open_time;
mod streak;
mod thresholds;
mod time_window;
mod window;

pub use builder::BreakerBuilder;
pub use circuit_breaker::{BreakerTicket, CircuitBreaker};
pub use error::BreakerError;
pub use event::{BreakerEvent, BreakerMetrics};
pub use history::History;
pub use open_time::{OpenTime, Trip};
#[doc(inline)]
pub use tollgate::status::BreakerState;
