//! A limiter that lasts from version to version.

use crate::kind::LegKind;
use crate::spec::LegSpec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tollgate::policy::conditional::{Meter, Trigger};
use tollgate::policy::{Leg, ShadowStats};
use tollgate::status::{Description, State};
use tollgate::sync::Watch;
use tollgate::{Clock, Cost, Inherit, Legs, Limiter, LimiterExt};

/// A limiter of any kind.
pub(crate) trait AnyUnit: Send + Sync {
    /// Adds a leg of it to `legs`, which these measure. Gives what the leg counts in shadow mode.
    fn add_to(&self, legs: &mut Legs, spec: &LegSpec, meters: &[Arc<Meter>], when: Option<Trigger>) -> Option<Trial>;

    /// True when some of its numbers can be changed while it runs.
    fn can_change(&self) -> bool;

    /// Changes it to numbers that fit.
    fn put_in_force(&self, to: &LegKind, inherit: Inherit);

    /// True when a fresh one would be the same.
    fn is_as_new(&self) -> bool;

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>));

    fn watch(&self, watcher: &Weak<dyn Watch>);
}

/// What a leg in shadow mode has counted.
pub(crate) type Trial = Arc<dyn Fn() -> ShadowStats + Send + Sync>;

impl dyn AnyUnit {
    /// How it stands: a composite shows its first part.
    pub(super) fn state(&self) -> State {
        let mut state = None;
        self.describe(&mut |leg| {
            state.get_or_insert(leg.state);
        });
        state.unwrap_or(State::Unknown)
    }

    /// True when it decides by another clock.
    pub(super) fn has_other_clock(&self, clock: &Clock) -> bool {
        let mut other = false;
        self.describe(&mut |leg| other |= leg.clock.is_some_and(|known| !known.is_same(clock)));
        other
    }
}

struct Unit<L> {
    limiter: Arc<L>,
    change: Option<Change<L>>,
    /// A version has changed its numbers, which are those that a fresh one would have.
    is_changed: AtomicBool,
}

/// How a limiter is changed in place.
pub(crate) struct Change<L> {
    /// Changes it to the numbers of a kind, which fit.
    pub(crate) change: fn(&L, &LegKind, Inherit),
    /// True when all is there: one that was changed is as a fresh one then.
    pub(crate) is_full: fn(&L) -> bool,
}

/// A limiter, and how it is changed in place, if it can be.
pub(crate) fn unit<L: Limiter + 'static>(limiter: L, change: Option<Change<L>>) -> Arc<dyn AnyUnit> {
    Arc::new(Unit {
        limiter: Arc::new(limiter),
        change,
        is_changed: AtomicBool::new(false),
    })
}

impl<L: Limiter + 'static> AnyUnit for Unit<L> {
    fn add_to(&self, legs: &mut Legs, spec: &LegSpec, meters: &[Arc<Meter>], when: Option<Trigger>) -> Option<Trial> {
        let limiter = Arc::clone(&self.limiter);
        let Some((first, others)) = meters.split_first() else {
            return add_leg(limiter, spec, when, legs);
        };
        let metered = first.watch(limiter).boxed();
        let metered = others
            .iter()
            .fold(metered, |limiter, meter| meter.watch(limiter).boxed());
        add_leg(metered, spec, when, legs)
    }

    fn put_in_force(&self, to: &LegKind, inherit: Inherit) {
        if let Some(change) = &self.change {
            (change.change)(&self.limiter, to, inherit);
            // Relaxed: a hint for maps, which look again.
            self.is_changed.store(true, Ordering::Relaxed);
        }
    }

    fn can_change(&self) -> bool {
        self.change.is_some()
    }

    fn is_as_new(&self) -> bool {
        let change = self.change.as_ref().filter(|_| self.is_changed.load(Ordering::Relaxed));
        let is_full = change.is_some_and(|change| (change.is_full)(&self.limiter));
        let mut is_as_new = true;
        self.describe(&mut |leg| is_as_new &= leg.is_as_new || is_full);
        is_as_new
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        (*self.limiter).describe(visit);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.limiter.watch(watcher);
    }
}

fn add_leg<L: Limiter + 'static>(limiter: L, spec: &LegSpec, when: Option<Trigger>, legs: &mut Legs) -> Option<Trial> {
    let leg = Leg::new(limiter).named(&spec.name);
    let mut leg = match &spec.per {
        Some(cost) => leg.per(Cost::interned(cost)),
        None => leg,
    };
    if spec.at_once {
        leg = leg.at_once();
    }
    if let Some(when) = when {
        leg = leg.when(when);
    }
    if !spec.shadow {
        legs.push(leg);
        return None;
    }
    let leg = Arc::new(leg.shadow());
    legs.push(Arc::clone(&leg));
    Some(Arc::new(move || leg.shadow_stats().unwrap_or_default()))
}
