//! Events for changes of a breaker's state.

use tollgate_resilience::{BreakerEvent, BreakerState};

/// A listener for [`BreakerBuilder::on_event`](tollgate_resilience::BreakerBuilder::on_event), which reports each change of state under `name`.
///
/// ```
/// # use tollgate_resilience::CircuitBreaker;
/// let breaker = CircuitBreaker::builder()
///     .on_event(tollgate_observe::breaker_events("payments"))
///     .build()?;
/// # drop(breaker);
/// # Ok::<(), tollgate_resilience::BreakerError>(())
/// ```
pub fn breaker_events(name: &'static str) -> impl Fn(BreakerEvent) + Send + Sync + 'static {
    move |event| {
        let BreakerEvent {
            from,
            to,
            calls,
            failed,
            slow,
            ..
        } = event;
        if to == BreakerState::Open {
            tracing::warn!(breaker = name, ?from, ?to, calls, failed, slow, "circuit changed");
        } else {
            tracing::info!(breaker = name, ?from, ?to, calls, failed, slow, "circuit changed");
        }
    }
}
