//! A policy as plain data, as a file or a program states it.
//!
//! | type | purpose |
//! |---|---|
//! | [`PolicySpec`] | a whole policy: its legs, and the bounds of its queue |
//! | [`LegSpec`] | one leg: its name, its rule, and when and how that applies |
//! | [`LegRule`] | a kind of limiter and its numbers: a [`Rule`] of any type |
//! | [`Rule`] | a kind of leg: implement it for a limiter of your own |
//! | [`When`] | a leg that applies only while another is under load |
//! | [`Peak`] | numbers that depend on the load of another leg |
//! | [`TokenBucketRule`] and its like | the kinds of this crate, and their numbers |
//! | [`PolicySetSpec`] | the policies of a service: named ones, and [a policy for each key](KeyedSpec) by its [tier](KeyTier) |
//! | [`PartitionsSpec`] | a limit that policies of a service [share](Sharing) by classes |
//! | [`SpecError`] | a mistake: the leg, the key, and the fault |
//!
//! [`PolicySpec::check`] finds every mistake that [`PolicySpec::build`] would.

mod check;
mod error;
mod leg;
mod partitions;
mod set;

#[doc(inline)]
pub use super::kind::*;
pub use crate::core::decision::LoadMetric;
pub use error::SpecError;
pub use leg::{LegSpec, Peak, PeakStep, When};
pub use partitions::{PartitionsSpec, Sharing};
pub use set::{KeyTier, KeyedSpec, PolicySetSpec};

use super::kind::LivePartitions;
use crate::semaphore::{Eviction, Order};
use std::collections::BTreeMap;
use std::time::Duration;

/// The fault of a setting that no version can change.
const STAYS: &str = "it was changed, and it stays as the policy was built";

/// A policy as plain data.
///
/// ```
/// # use tollgate::policy::spec::{LegSpec, PolicySpec, LegRule};
/// # use tollgate::{Ask, LimiterExt, ManualClock};
/// let clock = ManualClock::new();
/// let spec = PolicySpec::new([
///     LegSpec::new("requests", LegRule::token_bucket("100/s burst 2".parse()?)),
///     LegSpec::new("in flight", LegRule::semaphore(1)),
/// ]);
/// let policy = spec.build(&clock)?;
/// let _held = policy.try_admit(Ask::one()).unwrap();
/// assert_eq!(policy.try_admit(Ask::one()).unwrap_err().leg(), "in flight");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PolicySpec {
    /// The longest wait; unbounded without it. See
    /// [`max_wait`](super::PolicyBuilder::max_wait).
    pub max_wait: Option<Duration>,
    /// Waiters at most; unbounded without it.
    pub max_queue: Option<usize>,
    /// The lateness of a waiter that still counts as in time; without it
    /// [`LATENESS`](super::PolicyBuilder::LATENESS).
    pub lateness: Option<Duration>,
    /// The order in which waiters are served. It stays as the policy was built.
    pub order: Order,
    /// What happens to a newcomer when the queue is full. It stays as the policy was built.
    pub eviction: Eviction,
    /// Units of all waiters at most; unbounded without it. It stays as the policy was built.
    pub max_queue_units: Option<u64>,
    /// In the order in which they are asked.
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

    /// The leg of this name, to be changed.
    pub fn leg_mut(&mut self, name: &str) -> Option<&mut LegSpec> {
        self.legs.iter_mut().find(|leg| leg.name == name)
    }

    /// Finds the first mistake.
    ///
    /// # Errors
    /// [`SpecError`], with the leg and the key.
    ///
    /// ```
    /// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
    /// let mut spec = PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(4))]);
    /// assert!(spec.check().is_ok());
    /// spec.leg_mut("slots").expect("it is a leg").name.clear();
    /// assert_eq!(spec.check().unwrap_err().key(), "name");
    /// ```
    pub fn check(&self) -> Result<(), SpecError> {
        check::check(self, None)
    }

    /// The same in a set with these partitions.
    fn check_in(&self, partitions: &BTreeMap<String, PartitionsSpec>) -> Result<(), SpecError> {
        check::check(self, Some(partitions))
    }

    /// Finds the classes of these partitions.
    pub(super) fn bind(&mut self, live: &LivePartitions) {
        for leg in &mut self.legs {
            if let Some(rule) = leg.rule.get::<PartitionRule>() {
                leg.rule = rule.bind(live).into();
            }
        }
    }

    /// The same for the next version of `before`.
    pub(super) fn check_next(&self, before: &Self) -> Result<(), SpecError> {
        self.check()?;
        self.check_fixed(before, STAYS)
    }

    /// Refuses other settings of the queue that cannot change, with this `fault`.
    fn check_fixed(&self, before: &Self, fault: &str) -> Result<(), SpecError> {
        for (key, differs) in [
            ("order", self.order != before.order),
            ("eviction", self.eviction != before.eviction),
            ("max_queue_units", self.max_queue_units != before.max_queue_units),
        ] {
            if differs {
                return Err(SpecError::new(key, fault));
            }
        }
        Ok(())
    }
}
