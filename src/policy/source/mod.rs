//! Sources of versions of a policy, or of the policies of a service: a trait, and the loop that puts each version in force.
//!
//! | type | purpose |
//! |---|---|
//! | [`PolicySource`] | a stream of versions: implement it for your own store |
//! | [`Versions`], [`VersionSender`] | versions that this program hands in |
//! | `FileSource` | a file that is looked at, or watched; features `policy-file`, `policy-watch` |
//! | `LastGood` | what a source of your own needs to keep of a key or file; feature `policy-file` |
//! | `ConsulPolicy`, `EtcdPolicy` of the crate `tollgate-stores` | a key of Consul's or etcd's |
//! | [`Policy::follow`](crate::Policy::follow), [`PolicySet::follow`] | puts each version in force, and reports the result |

#[cfg(feature = "policy-file")]
mod file;
#[cfg(feature = "policy-file")]
mod last_good;
mod versions;

#[cfg(feature = "policy-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "policy-file")))]
pub use file::{FileSource, Look};
#[cfg(feature = "policy-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "policy-file")))]
pub use last_good::LastGood;
pub use versions::{VersionSender, Versions};

use super::reload::{Applied, Changes, ReloadableLegs};
use super::spec::{PolicySetSpec, PolicySpec, SpecError};
use crate::policy::{Policy, PolicySet, SetChanges};
use std::error::Error;
use std::fmt;

/// Why a source has no version to give: the error of a store, a file or a parser.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// A stream of versions of a policy, or of [those of a service](PolicySetSpec), from a file, a key-value store or an endpoint.
///
/// A source that cannot be reached gives an error, and goes on. The version in force stays in force.
///
/// ```
/// use tollgate::policy::source::{PolicySource, SourceError};
/// use tollgate::policy::spec::{LegSpec, PolicySpec, LegRule};
/// use tollgate::{Clock, ManualClock};
///
/// /// Twice as many at each step.
/// struct Doubling(usize);
/// impl PolicySource for Doubling {
///     async fn next(&mut self) -> Option<Result<PolicySpec, SourceError>> {
///         self.0 *= 2;
///         let legs = [LegSpec::new("in flight", LegRule::semaphore(self.0))];
///         (self.0 <= 8).then(|| Ok(PolicySpec::new(legs)))
///     }
/// }
///
/// let clock = ManualClock::new();
/// let policy = PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(1))]).build(&clock)?;
/// clock.run(policy.follow(Doubling(1), |event| println!("{event}")));
/// assert_eq!(policy.limiter().version(), 4);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity, Some(8));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
pub trait PolicySource<S = PolicySpec>: Send {
    /// Waits for the next version; `None` when there will be no more.
    ///
    /// # Cancel safety
    /// A future that is dropped must not have lost a version: the next call gives it.
    fn next(&mut self) -> impl Future<Output = Option<Result<S, SourceError>>> + Send;
}

/// The fate of a version.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::policy::source::{PolicyEvent, Versions};
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// let clock = ManualClock::new();
/// let policy = PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(1))]).build(&clock)?;
/// let (sender, versions) = Versions::new();
/// sender.push(PolicySpec::new([])); // A policy has legs.
/// drop(sender);
/// let mut refused = 0;
/// clock.run(policy.follow(versions, |event| refused += usize::from(matches!(event, PolicyEvent::Refused(_)))));
/// assert_eq!((refused, policy.limiter().version()), (1, 1));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum PolicyEvent<C = Changes> {
    /// It is in force. The changes may be empty.
    Applied(C),
    /// It is put in force next: see [`Applied::Next`].
    HandedOver,
    /// It is wrong, or none was available. The version before stays in force.
    Refused(SourceError),
}

impl<C: fmt::Display> fmt::Display for PolicyEvent<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(changes) => changes.fmt(f),
            Self::HandedOver => {
                f.write_str("a version was handed over to the change of limits that runs on this thread")
            }
            Self::Refused(error) => write!(f, "refused, the version before stays in force: {error}"),
        }
    }
}

impl Policy<ReloadableLegs> {
    /// Puts each version that `source` gives in force, until the source ends, and reports each to `event`.
    /// To be spawned, or run on a thread of its own.
    ///
    /// # Cancel safety
    /// Dropping the future stops between two versions: each is in force whole, or not at all.
    pub async fn follow(&self, source: impl PolicySource, event: impl FnMut(PolicyEvent)) {
        follow(source, |spec| self.apply(spec), event).await;
    }
}

impl PolicySet {
    /// Puts each version that `source` gives in force, until the source ends, and reports each to `event`.
    /// To be spawned, or run on a thread of its own.
    ///
    /// # Cancel safety
    /// Dropping the future stops between two versions.
    pub async fn follow(&self, source: impl PolicySource<PolicySetSpec>, event: impl FnMut(PolicyEvent<SetChanges>)) {
        follow(source, |spec| self.apply(spec), event).await;
    }
}

async fn follow<S, C>(
    mut source: impl PolicySource<S>,
    apply: impl Fn(S) -> Result<Applied<C>, SpecError>,
    mut event: impl FnMut(PolicyEvent<C>),
) {
    while let Some(version) = source.next().await {
        let applied = version.and_then(|spec| apply(spec).map_err(SourceError::from));
        event(match applied {
            Ok(Applied::Now(changes)) => PolicyEvent::Applied(changes),
            Ok(Applied::Next) => PolicyEvent::HandedOver,
            Err(error) => PolicyEvent::Refused(error),
        });
    }
}
