//! Builds policies that can be reloaded, and reloads them.

use super::legs::ReloadableLegs;
use crate::kind::{Around, Kinds};
use crate::source::Source;
use crate::spec::{ConfigError, PolicySpec};
use std::sync::Arc;
use tollgate::{Clock, Policy, PolicyBuilder};

/// A policy whose legs and bounds can be changed while it runs: see [`Reload`]. It is a policy as any other.
pub type ReloadablePolicy = Policy<ReloadableLegs>;

impl PolicySpec {
    /// Builds the policy, fresh, on `clock`.
    ///
    /// # Errors
    /// [`ConfigError`]: a mistake, with its path.
    pub fn build(&self, clock: &Clock) -> Result<ReloadablePolicy, ConfigError> {
        self.build_with(clock, &Kinds::new())
    }

    /// The same with legs of these kinds as well, also in later versions.
    ///
    /// # Errors
    /// As those of [`build`](Self::build).
    pub fn build_with(&self, clock: &Clock, kinds: &Kinds) -> Result<ReloadablePolicy, ConfigError> {
        build_policy(&Arc::new(self.clone()), &Around::new(clock, kinds))
    }
}

pub(crate) fn build_policy(spec: &Arc<PolicySpec>, around: &Around) -> Result<ReloadablePolicy, ConfigError> {
    let legs = ReloadableLegs::new(spec, around)?;
    let mut builder = Policy::builder()
        .limit(legs)
        .order(spec.order.clone())
        .eviction(spec.eviction)
        .lateness(spec.lateness.unwrap_or(PolicyBuilder::LATENESS))
        .work_time(spec.work_time.unwrap_or_default())
        .max_queue(spec.max_queue.unwrap_or(usize::MAX))
        .on(&around.clock);
    if let Some(max_wait) = spec.max_wait {
        builder = builder.max_wait(max_wait);
    }
    builder
        .build()
        .map_err(|error| ConfigError::new("leg", error.to_string()))
}

/// Puts other versions of a [`ReloadablePolicy`] in force while it runs.
///
/// A version is checked whole, and refused whole. Its list of legs is put in place by one swap, and the queue stays where it is: all
/// waiters keep their order and their deadlines, and are judged anew. A permit ends at the limiters that made it.
///
/// | the leg | its state |
/// |---|---|
/// | is unchanged | is kept, to the last token |
/// | has other numbers | is kept by its `inherit` rule; permits that are held stay held |
/// | has another kind, cost, or number that cannot be changed in place | starts fresh: it is another leg |
/// | is gone | serves the permits that it has admitted, until they end |
///
/// Numbers that cannot be changed in place: the `window` and `segments` of a window, the `period` and `cold_factor` of a warm-up, `period` and `time_zone` of
/// a calendar window, `of` and `class` of a partition, all numbers of breakers, of adaptive limits and of kinds of your own. A condition
/// that a version keeps goes on; one whose marks move goes on from the known load. For microseconds, a new number may stand beside the
/// list of the version before.
pub trait Reload<S = PolicySpec>: Sync {
    /// Puts another version in force, and returns its number: a policy and a set start with 1.
    ///
    /// # Errors
    /// [`ConfigError`], with the path of the key: nothing has been changed then. It also stands in
    /// [`last_error`](ReloadableLegs::last_error). The order of the queue, its eviction, its lateness and the time of the work cannot change.
    ///
    /// ```
    /// # use tollgate::{Ask, LimiterExt, ManualClock};
    /// # use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload};
    /// let mut spec = PolicySpec::new([LegSpec::new("in flight", LegKind::Semaphore { limit: 2 })]);
    /// let policy = spec.build(&ManualClock::new())?;
    /// let held = policy.try_admit(Ask::many(2)).unwrap();
    ///
    /// spec.legs[0].kind = LegKind::Semaphore { limit: 3 };
    /// policy.apply(spec.clone())?;
    /// assert!(policy.try_admit(Ask::many(2)).is_err(), "two are still held");
    /// assert!(policy.try_admit(Ask::one()).is_ok());
    ///
    /// spec.legs.clear();
    /// assert!(policy.apply(spec).is_err());
    /// drop(held);
    /// assert!(policy.try_admit(Ask::many(3)).is_ok(), "the version before is still in force");
    /// assert!(policy.limiter().last_error().is_some());
    /// # Ok::<(), tollgate_config::ConfigError>(())
    /// ```
    fn apply(&self, spec: S) -> Result<u64, ConfigError>;

    /// Records why the latest version is not in force: `last_error` returns `error`.
    fn refuse(&self, error: ConfigError);

    /// Puts each version that `source` gives in force, until the source ends, and reports the number of each to `event`, or why there
    /// is none. To be spawned, or run on a thread of its own.
    ///
    /// # Cancel safety
    /// Dropping the future stops between two versions: each is in force whole, or not at all.
    fn follow(
        &self,
        source: impl Source<S>,
        event: impl FnMut(Result<u64, ConfigError>) + Send,
    ) -> impl Future<Output = ()> + Send {
        let (mut source, mut event) = (source, event);
        async move {
            while let Some(version) = source.next().await {
                let version = version.inspect_err(|error| self.refuse(error.clone()));
                event(version.and_then(|spec| self.apply(spec)));
            }
        }
    }
}

impl Reload for ReloadablePolicy {
    fn apply(&self, spec: PolicySpec) -> Result<u64, ConfigError> {
        let applied = apply_spec(self, &Arc::new(spec), &self.limiter().around());
        applied.inspect_err(|error| self.refuse(error.clone()))
    }

    fn refuse(&self, error: ConfigError) {
        self.limiter().error.store(Some(Arc::new(error)));
    }
}

/// Puts a version in force, and the bounds of the queue.
pub(crate) fn apply_spec(
    policy: &ReloadablePolicy,
    spec: &Arc<PolicySpec>,
    around: &Around,
) -> Result<u64, ConfigError> {
    let number = policy.limiter().apply(spec, around)?;
    loop {
        let latest = policy.limiter().spec();
        policy.set_max_wait(latest.max_wait);
        policy.set_max_queue(latest.max_queue.unwrap_or(usize::MAX));
        // Another version may have come meanwhile.
        if Arc::ptr_eq(&latest, &policy.limiter().spec()) {
            return Ok(number);
        }
    }
}
