//! Where versions of a policy come from: a trait, and what puts each version in force.
//!
//! | type | what it is |
//! |---|---|
//! | [`PolicySource`] | a stream of versions: implement it for your own store |
//! | [`Versions`], [`VersionSender`] | versions that this program hands in |
//! | `FileSource` | a file that is looked at, or watched; features `policy-file`, `policy-watch` |
//! | `remote::ConsulPolicy` | a key of Consul's; features `policy-file` and `consul` |
//! | [`Policy::follow`](crate::Policy::follow) | puts each version in force, and tells what has become of it |

#[cfg(feature = "policy-file")]
mod file;
mod follow;
#[cfg(all(feature = "policy-file", any(feature = "consul", feature = "etcd")))]
mod kept;
mod push;
#[cfg(feature = "policy-file")]
mod read;
#[cfg(feature = "policy-watch")]
mod watch;

#[cfg(feature = "policy-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "policy-file")))]
pub use file::{FileSource, Look};
pub use follow::PolicyEvent;
#[cfg(all(feature = "policy-file", any(feature = "consul", feature = "etcd")))]
pub(crate) use kept::Kept;
pub use push::{VersionSender, Versions};

use super::spec::PolicySpec;
use std::error::Error;

/// Why a source has no version to give: what a store, a file or a parser says.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// A stream of versions of a policy. A file, a key-value store, an endpoint: whatever can tell of a new version.
///
/// A source that cannot be reached gives an error, and goes on: the version that is in force stays in force.
///
/// ```
/// use tollgate::policy::source::{PolicySource, SourceError};
/// use tollgate::policy::spec::{LegSpec, PolicySpec, Rule};
/// use tollgate::{Clock, ManualClock};
///
/// /// Twice as many at each step.
/// struct Doubling(usize);
/// impl PolicySource for Doubling {
///     async fn next(&mut self) -> Option<Result<PolicySpec, SourceError>> {
///         self.0 *= 2;
///         let legs = [LegSpec::new("in flight", Rule::semaphore(self.0))];
///         (self.0 <= 8).then(|| Ok(PolicySpec::new(legs)))
///     }
/// }
///
/// let clock = ManualClock::new();
/// let policy = PolicySpec::new([LegSpec::new("in flight", Rule::semaphore(1))]).build(&clock)?;
/// clock.run(policy.follow(Doubling(1), |event| println!("{event}")));
/// assert_eq!(policy.limiter().version(), 4);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity, Some(8));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
pub trait PolicySource: Send {
    /// Waits for the next version; `None` when there will be no more.
    ///
    /// # Cancel safety
    /// A future that is dropped must not have lost a version: the next call gives it.
    fn next(&mut self) -> impl Future<Output = Option<Result<PolicySpec, SourceError>>> + Send;
}
