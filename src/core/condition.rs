//! When a leg applies.

use crate::core::ask::{Ask, Demand};
use crate::core::decision::MeasuredLoad;
use crate::core::refusal::Wait;
use crate::sync::wait_queue::Watch;
use crate::time::Clock;
use std::sync::Weak;

/// Says whether a leg applies to a request: a function of the request, or a
/// [`Trigger`](crate::policy::conditional::Trigger) on the load of something else.
///
/// Given to [`LimiterExt::when`](crate::LimiterExt::when). A condition runs at each admission, and outside all locks.
pub trait Condition: Send + Sync {
    /// Does the leg apply to this demand now?
    fn applies(&self, demand: &Demand<'_>) -> bool;

    /// True when the condition may stop to hold for the same request.
    fn may_end(&self) -> bool {
        false
    }

    /// The instant at which it stops to hold if nothing else happens, as a wait from now; `None` where that is not known.
    fn ends(&self, demand: &Demand<'_>) -> Option<Wait> {
        let _ = demand;
        None
    }

    /// The clock by which it decides, if it decides by one.
    fn clock(&self) -> Option<&Clock> {
        None
    }

    /// Tells `watcher` when the condition has begun or stopped to hold.
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        let _ = watcher;
    }

    /// The load by which it decides, for an explanation.
    fn measured(&self, demand: &Demand<'_>) -> Option<MeasuredLoad> {
        let _ = demand;
        None
    }
}

impl<F: Fn(&Ask) -> bool + Send + Sync> Condition for F {
    fn applies(&self, demand: &Demand<'_>) -> bool {
        self(demand.ask())
    }
}
