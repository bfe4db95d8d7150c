//! A limiter that lasts from version to version.

use crate::spec::LegSpec;
use std::any::Any;
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

    fn as_any(&self) -> &dyn Any;

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
    /// A version has changed its numbers, which are those that a fresh one would have.
    is_changed: AtomicBool,
}

/// True when all is there.
fn is_full(state: State) -> bool {
    match state {
        State::Rate { limit, available, .. } => available >= limit,
        State::Unknown | State::Permits { in_use: 0, .. } => true,
        _ => false,
    }
}

/// Changes a limiter that fits to the numbers of a kind.
pub(crate) type Change = Arc<dyn Fn(&dyn AnyUnit, Inherit) + Send + Sync>;

/// What a kind builds.
pub(crate) struct Built {
    pub(super) unit: Arc<dyn AnyUnit>,
    /// None for limiters that cannot be changed in place.
    pub(super) change: Option<Change>,
}

impl Built {
    /// A limiter, and how another is changed to its numbers.
    pub(crate) fn new<L: Limiter + 'static, R>(
        limiter: L,
        set: impl Fn(&L, Inherit) -> R + Send + Sync + 'static,
    ) -> Self {
        let change = move |unit: &dyn AnyUnit, inherit| {
            if let Some(unit) = unit.as_any().downcast_ref::<Unit<L>>() {
                set(&unit.limiter, inherit);
                unit.is_changed.store(true, Ordering::Relaxed);
            }
        };
        let change = Some(Arc::new(change) as Change);
        Self {
            change,
            ..Self::fixed(limiter)
        }
    }

    /// A limiter that cannot be changed in place.
    pub(crate) fn fixed<L: Limiter + 'static>(limiter: L) -> Self {
        let (limiter, is_changed) = (Arc::new(limiter), AtomicBool::new(false));
        let unit = Arc::new(Unit { limiter, is_changed });
        Self { unit, change: None }
    }
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

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_as_new(&self) -> bool {
        // Relaxed: a hint for maps, which look again.
        let is_changed = self.is_changed.load(Ordering::Relaxed);
        let mut is_as_new = true;
        self.describe(&mut |leg| is_as_new &= leg.is_as_new || is_changed && is_full(leg.state));
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
