//! How the legs of a policy stand.

use super::leg::LiveLeg;
use tollgate::policy::ShadowStats;
use tollgate::status::State;

/// How a leg stands. A snapshot.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock};
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec};
/// let policy = PolicySpec::new([LegSpec::new("slots", LegKind::Semaphore { limit: 4 })]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(1).unwrap();
/// let leg = policy.limiter().leg("slots").expect("it is a leg");
/// assert_eq!((&*leg.kind, leg.available(), leg.capacity()), ("semaphore", Some(3), Some(4)));
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LegStatus {
    /// Its name.
    pub name: String,
    /// The name of its kind.
    pub kind: String,
    /// Its numbers.
    pub state: State,
    /// True while it is asked: always, unless it is conditional and the load is low.
    pub applies: bool,
    /// What it has counted in shadow mode, since its version came in force.
    pub shadow: Option<ShadowStats>,
}

impl LegStatus {
    pub(super) fn of(leg: &LiveLeg) -> Self {
        Self {
            name: leg.spec.name.clone(),
            kind: leg.spec.kind.name(),
            state: leg.built.unit.state(),
            applies: leg.link.as_ref().is_none_or(|link| link.trigger.is_exceeded()),
            shadow: leg.trial.as_ref().map(|trial| trial()),
        }
    }

    /// Units that it could give now, where it counts units.
    pub fn available(&self) -> Option<u64> {
        match self.state {
            State::Permits { limit, in_use, .. } => Some(limit.saturating_sub(in_use)),
            State::Rate { available, .. } | State::Budget { available, .. } => Some(available),
            _ => None,
        }
    }

    /// Units that it can give at most: its limit, or its burst.
    pub fn capacity(&self) -> Option<u64> {
        match self.state {
            State::Permits { limit, .. } | State::Rate { limit, .. } | State::Budget { limit, .. } => Some(limit),
            _ => None,
        }
    }

    /// Units per second, of a rate.
    pub fn per_second(&self) -> Option<f64> {
        per_second(self.state)
    }
}

/// The units per second of a rate.
pub(super) fn per_second(state: State) -> Option<f64> {
    match state {
        State::Rate { limit, window, .. } if !window.is_zero() => Some(limit as f64 / window.as_secs_f64()),
        _ => None,
    }
}
