//! Policies as plain data, as a file or a program states them.

mod error;
mod leg;
mod order;
mod partitions;
mod set;
mod text;

pub use error::ConfigError;
pub(crate) use error::named;
pub use leg::{LegSpec, When};
pub use partitions::{PartitionsSpec, ShareSpec};
pub use set::{KeyTier, KeyedSpec, PolicySetSpec};
pub(crate) use text::NumberOrText;

use leg::is_default;
use order::OrderSpec;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tollgate::{Eviction, Order};

/// A policy as plain data: a value of serde, which stands alone in a file or anywhere in a configuration of your own.
///
/// ```
/// # use tollgate::{Ask, LimiterExt, ManualClock};
/// # use tollgate_config::{Format, LegKind, LegSpec, PolicySpec, parse};
/// let spec = PolicySpec::new([
///     LegSpec::new("requests", LegKind::TokenBucket { quota: "100/s burst 2".parse()? }),
///     LegSpec::new("in flight", LegKind::Semaphore { limit: 1 }),
/// ]);
/// let policy = spec.build(&ManualClock::new())?;
/// let _held = policy.try_admit(Ask::one()).unwrap();
/// assert_eq!(policy.try_admit(Ask::one()).unwrap_err().leg(), "in flight");
///
/// // The same in a file.
/// let text = r#"
/// [[leg]]
/// name = "requests"
/// kind = "token-bucket"
/// quota = "100/s burst 2"
///
/// [[leg]]
/// name = "in flight"
/// kind = "semaphore"
/// limit = 1
/// "#;
/// assert_eq!(parse::<PolicySpec>(text, Format::Toml)?, spec);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// The longest wait; unbounded without it. See [`max_wait`](tollgate::PolicyBuilder::max_wait).
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub max_wait: Option<Duration>,
    /// Waiters at most; unbounded without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queue: Option<usize>,
    /// The lateness of a waiter that still counts as in time; without it [`LATENESS`](tollgate::PolicyBuilder::LATENESS). It stays
    /// as the policy was built.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub lateness: Option<Duration>,
    /// The time that the work takes: see [`work_time`](tollgate::PolicyBuilder::work_time). It stays as the policy was built.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub work_time: Option<Duration>,
    /// The order in which waiters are served. It stays as the policy was built.
    #[serde(default, with = "OrderSpec", skip_serializing_if = "is_default")]
    pub order: Order,
    /// What happens to a newcomer when the queue is full. It stays as the policy was built.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub eviction: Eviction,
    /// In the order in which they are asked.
    #[serde(rename = "leg", default)]
    pub legs: Vec<LegSpec>,
}

impl PolicySpec {
    /// A policy of these legs, with no bound on waiting.
    pub fn new(legs: impl IntoIterator<Item = LegSpec>) -> Self {
        Self {
            legs: legs.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The leg of this name.
    pub fn leg(&self, name: &str) -> Option<&LegSpec> {
        self.legs.iter().find(|leg| leg.name == name)
    }

    /// Refuses other settings of the queue that cannot change, with this `fault`.
    pub(crate) fn check_fixed(&self, before: &Self, fault: &str) -> Result<(), ConfigError> {
        for (key, differs) in [
            ("order", self.order != before.order),
            ("eviction", self.eviction != before.eviction),
            ("lateness", self.lateness != before.lateness),
            ("work_time", self.work_time != before.work_time),
        ] {
            if differs {
                return Err(ConfigError::new(key, fault));
            }
        }
        Ok(())
    }
}

/// The fault of a setting that no version can change.
pub(crate) const STAYS: &str = "it was changed, and it stays as the policy was built";
