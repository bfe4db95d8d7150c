//! A policy whose rules are data, and change while it runs.

use super::bounds::{Manner, Settings};
use super::builder::PolicyBuilder;
use super::live::{Applied, LiveLegs};
use super::policy::Policy;
use super::spec::{PolicySpec, SpecError};
use crate::sync::notify::{self, Notified};
use crate::time::Clock;
use std::sync::Arc;

impl PolicySpec {
    /// Builds the policy, fresh, on `clock`.
    ///
    /// # Errors
    /// [`SpecError`]: the first mistake, with the leg and the key.
    pub fn build(&self, clock: &Clock) -> Result<Policy<LiveLegs>, SpecError> {
        let legs = LiveLegs::new(self, clock)?;
        let policy = Policy::with(legs, clock.clone(), self.settings(clock));
        let core = Arc::downgrade(policy.core());
        policy.limiter().listen(move |spec| {
            if let Some(core) = core.upgrade() {
                core.settings.set(spec.settings(&core.clock));
            }
        });
        Ok(policy)
    }

    /// What the line is to keep to, in ticks of `clock`.
    fn settings(&self, clock: &Clock) -> Settings {
        Settings {
            max_wait: self.max_wait.map(|max_wait| clock.ticks_of(max_wait)),
            max_queue: self.max_queue.unwrap_or(usize::MAX),
            early: None,
            manner: Manner::FIFO,
            misfit: false,
            lateness: clock.ticks_of(self.lateness.unwrap_or(PolicyBuilder::LATENESS)),
        }
    }
}

impl Policy<LiveLegs> {
    /// Puts another version in force, once nobody else is doing so: versions come in turn, each as a whole. What becomes of each leg's state, and of whoever waits, the
    /// [module](super::live) says.
    ///
    /// # Errors
    /// [`SpecError`], with the leg and the key: nothing has been changed then, and the old version stays in force.
    ///
    /// ```
    /// # use tollgate::policy::spec::{LegSpec, PolicySpec, Rule};
    /// # use tollgate::{Ask, LimiterExt, ManualClock};
    /// let clock = ManualClock::new();
    /// let mut spec = PolicySpec::new([LegSpec::new("in flight", Rule::semaphore(2))]);
    /// let policy = spec.build(&clock)?;
    /// let held = policy.try_admit(Ask::many(2)).unwrap();
    ///
    /// spec.legs[0].rule = Rule::semaphore(3);
    /// policy.apply(spec.clone())?;
    /// assert!(policy.try_admit(Ask::many(2)).is_err(), "two are still held");
    /// assert!(policy.try_admit(Ask::one()).is_ok());
    ///
    /// spec.legs.clear();
    /// assert!(policy.apply(spec).is_err());
    /// drop(held);
    /// assert!(policy.try_admit(Ask::many(3)).is_ok(), "the version before is still in force");
    /// # Ok::<(), tollgate::policy::spec::SpecError>(())
    /// ```
    pub fn apply(&self, spec: PolicySpec) -> Result<Applied, SpecError> {
        if notify::is_deferred() {
            spec.check()?;
            notify::call(Arc::new(Later(self.clone(), spec)));
            return Ok(Applied::Next);
        }
        self.limiter().apply(spec)
    }
}

/// A version that comes after the change that runs on this thread.
struct Later(Policy<LiveLegs>, PolicySpec);

impl Notified for Later {
    fn notified(self: Arc<Self>) {
        // It was checked when it was handed in.
        let _ = self.0.apply(self.1.clone());
    }
}
