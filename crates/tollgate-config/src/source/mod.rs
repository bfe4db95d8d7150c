//! Where versions come from.

mod last_good;
#[cfg(feature = "watch")]
mod watch;

pub use last_good::{FileSource, LastGood};
#[cfg(feature = "watch")]
#[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
pub use watch::WatchedFile;

use crate::spec::{ConfigError, PolicySpec};

/// A stream of versions of a policy, or of those of a service: a [`PolicySetSpec`](crate::PolicySetSpec).
///
/// | source | purpose |
/// |---|---|
/// | `WatchedFile` | a file that is watched; feature `watch` |
/// | [`tokio::sync::watch::Receiver`] | versions that this program hands in; its value when it is handed over counts as seen |
/// | `ConsulPolicy`, `EtcdPolicy` of the crate `tollgate-stores` | a key of Consul's or etcd's |
///
/// A source that cannot be reached gives an error, [`ConfigError::whole`], and goes on. The version in force stays in force. The error of a version has the
/// name of its file or key; the one of a store has none.
///
/// ```
/// use tollgate::{Clock, ManualClock};
/// use tollgate_config::{ConfigError, LegKind, LegSpec, PolicySpec, Reload, Source};
///
/// /// Twice as many at each step.
/// struct Doubling(usize);
/// impl Source for Doubling {
///     async fn next(&mut self) -> Option<Result<PolicySpec, ConfigError>> {
///         self.0 *= 2;
///         let legs = [LegSpec::new("in flight", LegKind::Semaphore { limit: self.0 })];
///         (self.0 <= 8).then(|| Ok(PolicySpec::new(legs)))
///     }
/// }
///
/// let clock = ManualClock::new();
/// let policy = PolicySpec::new([LegSpec::new("in flight", LegKind::Semaphore { limit: 1 })]).build(&clock)?;
/// clock.run(policy.follow(Doubling(1), |event| println!("version {}", event.unwrap())));
/// assert_eq!(policy.limiter().version(), 4);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity(), Some(8));
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
pub trait Source<S = PolicySpec>: Send {
    /// Waits for the next version; `None` when there will be no more.
    ///
    /// # Cancel safety
    /// A future that is dropped must not have lost a version: the next call gives it.
    fn next(&mut self) -> impl Future<Output = Option<Result<S, ConfigError>>> + Send;
}

impl<S: Clone + Send + Sync> Source<S> for tokio::sync::watch::Receiver<S> {
    async fn next(&mut self) -> Option<Result<S, ConfigError>> {
        self.changed().await.ok()?;
        Some(Ok(self.borrow_and_update().clone()))
    }
}
