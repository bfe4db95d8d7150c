//! A limiter that lasts from version to version.

use crate::kind::{Around, Kind, LegKind};
use crate::spec::tagged::Variant;
use crate::spec::{LegSpec, SpecError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tollgate::policy::conditional::{Meter, Trigger};
use tollgate::policy::{Leg, ShadowStats};
use tollgate::status::State;
use tollgate::sync::{Place, Watch};
use tollgate::{Clock, Cost, Demand, Description, Inherit, Legs, Limiter, LimiterExt, Outcome, Refusal, Settlement};

/// A handle of a limiter that is as new when the limiter is: lists of legs come and go, and it stays.
pub(super) struct Kept<L>(Arc<Inner<L>>);

struct Inner<L> {
    limiter: L,
    /// A version has changed its numbers, which are those that a fresh one would have.
    is_changed: AtomicBool,
    is_untouched: fn(&L) -> bool,
}

impl<L> Kept<L> {
    fn new(limiter: L, is_untouched: fn(&L) -> bool) -> Self {
        let is_changed = AtomicBool::new(false);
        Self(Arc::new(Inner {
            limiter,
            is_changed,
            is_untouched,
        }))
    }
}

impl<L> Clone for Kept<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: Limiter> Limiter for Kept<L> {
    type Ticket = L::Ticket;

    #[inline]
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<L::Ticket, Refusal> {
        self.0.limiter.try_reserve(demand)
    }
    fn cancel(&self, ticket: L::Ticket) {
        self.0.limiter.cancel(ticket);
    }
    #[inline]
    fn finish(&self, ticket: L::Ticket, outcome: Outcome) {
        self.0.limiter.finish(ticket, outcome);
    }
    fn settle(&self, ticket: &mut L::Ticket, settlement: &Settlement) -> u32 {
        self.0.limiter.settle(ticket, settlement)
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.0.limiter.look(demand)
    }
    fn leave(&self, place: &Place) {
        self.0.limiter.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.limiter.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let Inner {
            limiter,
            is_changed,
            is_untouched,
        } = &*self.0;
        // Relaxed: a hint for maps, which look again.
        let untouched = is_changed.load(Ordering::Relaxed) && is_untouched(limiter);
        limiter.describe(&mut |leg| visit(leg.as_new(leg.is_as_new || untouched)));
    }
}

/// A limiter of any kind.
pub(crate) trait AnyUnit: Send + Sync {
    /// Adds a leg of it to `legs`. Gives what the leg counts in shadow mode.
    fn add_to(&self, legs: &mut Legs, leg: Wrapped<'_>) -> Option<Arc<dyn Trial>>;

    /// True when it can be changed to the numbers `to` while it runs.
    fn fits(&self, from: &LegKind, to: &LegKind) -> bool;

    /// Changes it to numbers that fit.
    fn put_in_force(&self, to: &LegKind, inherit: Inherit);

    /// How it stands: a composite shows its first part.
    fn state(&self) -> State;

    /// True when it decides by another clock.
    fn has_other_clock(&self, clock: &Clock) -> bool;

    fn watch(&self, watcher: &Weak<dyn Watch>);
}

/// What a leg in shadow mode has counted.
pub(crate) trait Trial: Send + Sync {
    fn stats(&self) -> ShadowStats;
}

impl<L: Limiter> Trial for Kept<Leg<L>> {
    fn stats(&self) -> ShadowStats {
        self.0.limiter.shadow_stats().unwrap_or_default()
    }
}

/// How a limiter is a leg.
pub(crate) struct Wrapped<'a> {
    pub(super) spec: &'a LegSpec,
    /// Those who measure it.
    pub(super) meters: &'a [Arc<Meter>],
    pub(super) when: Option<Trigger>,
}

impl Wrapped<'_> {
    fn add<L: Limiter + 'static>(self, limiter: L, legs: &mut Legs) -> Option<Arc<dyn Trial>> {
        match self.meters {
            [] => self.add_measured(limiter, legs),
            [meter] => self.add_measured(meter.watch(limiter), legs),
            [meter, meters @ ..] => {
                let limiter = meter.watch(limiter).boxed();
                Wrapped { meters, ..self }.add_boxed(limiter, legs)
            }
        }
    }

    /// The same, of one type for any number of meters.
    fn add_boxed(self, limiter: Legs, legs: &mut Legs) -> Option<Arc<dyn Trial>> {
        self.add(limiter, legs)
    }

    fn add_measured<L: Limiter + 'static>(self, limiter: L, legs: &mut Legs) -> Option<Arc<dyn Trial>> {
        let spec = self.spec;
        let mut leg = Leg::new(limiter).named(&spec.name);
        if let Some(cost) = &spec.per {
            leg = leg.per(Cost::interned(cost));
        }
        if spec.at_once {
            leg = leg.at_once();
        }
        if let Some(when) = self.when {
            leg = leg.when(when);
        }
        if !spec.shadow {
            legs.push(leg);
            return None;
        }
        let leg = Kept::new(leg.shadow(), |_| false);
        legs.push(leg.clone());
        Some(Arc::new(leg))
    }
}

/// A limiter of one kind.
pub(crate) struct Unit<K: Kind>(Kept<K::Limiter>);

impl<K: Kind> Unit<K> {
    /// Builds one.
    pub(crate) fn of(numbers: &K, around: &Around<'_>) -> Result<Arc<dyn AnyUnit>, SpecError> {
        let limiter = numbers.build(around)?;
        Ok(Arc::new(Self(Kept::new(limiter, K::is_untouched))))
    }
}

impl<K: Kind> AnyUnit for Unit<K> {
    fn add_to(&self, legs: &mut Legs, leg: Wrapped<'_>) -> Option<Arc<dyn Trial>> {
        leg.add(self.0.clone(), legs)
    }

    fn fits(&self, from: &LegKind, to: &LegKind) -> bool {
        match (<K as Variant<LegKind>>::of(from), K::of(to)) {
            (Some(from), Some(to)) => to.fits(from),
            _ => false,
        }
    }

    fn put_in_force(&self, to: &LegKind, inherit: Inherit) {
        if let Some(to) = K::of(to) {
            to.put_in_force(&self.0.0.limiter, inherit);
            self.0.0.is_changed.store(true, Ordering::Relaxed);
        }
    }

    fn state(&self) -> State {
        let mut state = None;
        self.0.describe(&mut |leg| {
            state.get_or_insert(leg.state);
        });
        state.unwrap_or(State::Unknown)
    }

    fn has_other_clock(&self, clock: &Clock) -> bool {
        let mut other = false;
        self.0
            .describe(&mut |leg| other |= leg.clock.is_some_and(|known| !known.is_same(clock)));
        other
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.watch(watcher);
    }
}
