//! What a linked limit looks at.

use crate::sync::notify::Notify;
use crate::time::Instant;

/// A load: a number that rises and falls. A [`Meter`](super::Meter) gives some; write your own for what only you can
/// measure.
///
/// A load that falls must say so, or whoever waits is not told: by its [`notify`](Self::notify) when something happened, by
/// [`falls_to`](Self::falls_to) when it falls as time passes.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tollgate::policy::linked::{Load, Mark};
/// use tollgate::sync::Notify;
/// use tollgate::{Ask, Instant, LimiterExt, Semaphore};
///
/// /// How far a replica is behind, in milliseconds.
/// #[derive(Default)]
/// struct Lag {
///     millis: AtomicU64,
///     notify: Notify,
/// }
/// impl Lag {
///     fn set(&self, millis: u64) {
///         self.millis.store(millis, Ordering::Relaxed);
///         self.notify.notify_all();
///     }
/// }
/// impl Load for Lag {
///     fn read(&self, _: Instant) -> f64 {
///         self.millis.load(Ordering::Relaxed) as f64
///     }
///     fn notify(&self) -> Option<&Notify> {
///         Some(&self.notify)
///     }
/// }
///
/// let lag = Arc::new(Lag::default());
/// let batch = Semaphore::new(0).linked(Mark::above(lag.clone(), 500.0).below(100.0));
/// assert!(batch.try_admit(Ask::one()).is_ok());
/// lag.set(501);
/// assert!(batch.try_admit(Ask::one()).is_err());
/// lag.set(101);
/// assert!(batch.try_admit(Ask::one()).is_err());
/// lag.set(100);
/// assert!(batch.try_admit(Ask::one()).is_ok());
/// ```
pub trait Load: Send + Sync {
    /// The number at `now`. It must not block.
    fn read(&self, now: Instant) -> f64;

    /// The first instant after `now` at which the number is at or below `mark` because time has passed, if nothing else
    /// happens. `None` when only an event can lower it.
    fn falls_to(&self, mark: f64, now: Instant) -> Option<Instant> {
        let _ = (mark, now);
        None
    }

    /// What is rung after each event that has lowered it.
    fn notify(&self) -> Option<&Notify> {
        None
    }
}
