//! Events for changes of a breaker's state.

use tollgate::{BreakerEvent, BreakerState};

/// A listener for [`BreakerBuilder::on_event`](tollgate::BreakerBuilder::on_event), which reports each change of state under `name`.
///
/// ```
/// # use tollgate::CircuitBreaker;
/// let breaker = CircuitBreaker::builder()
///     .on_event(tollgate_observe::breaker_events("payments"))
///     .build()?;
/// # drop(breaker);
/// # Ok::<(), tollgate::BreakerError>(())
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
