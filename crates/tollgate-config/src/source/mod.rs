//! Where versions come from.

mod last_good;
#[cfg(feature = "watch")]
mod watch;

pub use last_good::{FileSource, LastGood};
#[cfg(feature = "watch")]
#[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
pub use watch::WatchedFile;

use crate::live::Changes;
use crate::spec::PolicySpec;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A stream of versions of a policy, or of those of a service: a [`PolicySetSpec`](crate::PolicySetSpec).
///
/// | source | purpose |
/// |---|---|
/// | `WatchedFile` | a file that is watched; feature `watch` |
/// | [`tokio::sync::watch::Receiver`] | versions that this program hands in; its value when it is handed over counts as seen |
/// | `ConsulPolicy`, `EtcdPolicy` of the crate `tollgate-stores` | a key of Consul's or etcd's |
///
/// A source that cannot be reached gives an error, and goes on. The version in force stays in force.
///
/// ```
/// use tollgate::{Clock, ManualClock};
/// use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload, Source, SourceError};
///
/// /// Twice as many at each step.
/// struct Doubling(usize);
/// impl Source for Doubling {
///     async fn next(&mut self) -> Option<Result<PolicySpec, SourceError>> {
///         self.0 *= 2;
///         let legs = [LegSpec::new("in flight", LegKind::Semaphore { limit: self.0 })];
///         (self.0 <= 8).then(|| Ok(PolicySpec::new(legs)))
///     }
/// }
///
/// let clock = ManualClock::new();
/// let policy = PolicySpec::new([LegSpec::new("in flight", LegKind::Semaphore { limit: 1 })]).build(&clock)?;
/// clock.run(policy.follow(Doubling(1), |event| println!("{event}")));
/// assert_eq!(policy.limiter().version(), 4);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity(), Some(8));
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
pub trait Source<S = PolicySpec>: Send {
    /// Waits for the next version; `None` when there will be no more.
    ///
    /// # Cancel safety
    /// A future that is dropped must not have lost a version: the next call gives it.
    fn next(&mut self) -> impl Future<Output = Option<Result<S, SourceError>>> + Send;
}

impl<S: Clone + Send + Sync> Source<S> for tokio::sync::watch::Receiver<S> {
    async fn next(&mut self) -> Option<Result<S, SourceError>> {
        self.changed().await.ok()?;
        Some(Ok(self.borrow_and_update().clone()))
    }
}

/// Why a source has no version to give, or why that is refused: the error of a store, a file, or a policy.
///
/// ```
/// # use tollgate_config::{ConfigFile, PolicySpec, SourceError};
/// fn check(spec: &PolicySpec) -> anyhow::Result<()> {
///     spec.check().map_err(SourceError::new)?;
///     Ok(())
/// }
/// assert_eq!(check(&PolicySpec::default()).unwrap_err().to_string(), "leg: none was given, and at least one is needed");
/// ```
#[derive(Clone, Debug)]
pub struct SourceError(Arc<dyn Error + Send + Sync>);

impl SourceError {
    /// The error `error`.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into().into())
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// What has become of a version.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload, ReloadEvent};
/// let spec = PolicySpec::new([LegSpec::new("slots", LegKind::Semaphore { limit: 1 })]);
/// let clock = ManualClock::new();
/// let policy = spec.build(&clock)?;
/// let (sender, versions) = tokio::sync::watch::channel(spec);
/// sender.send_replace(PolicySpec::new([])); // A policy has legs.
/// drop(sender);
/// let mut refused = 0;
/// clock.run(policy.follow(versions, |event| refused += usize::from(matches!(event, ReloadEvent::Refused(_)))));
/// assert_eq!((refused, policy.limiter().version()), (1, 1));
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ReloadEvent {
    /// It is in force. The changes may be empty.
    Applied(Changes),
    /// It is wrong, or none was available. The version before stays in force.
    Refused(SourceError),
}

impl fmt::Display for ReloadEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(changes) => changes.fmt(f),
            Self::Refused(error) => write!(f, "refused, the version before stays in force: {error}"),
        }
    }
}
