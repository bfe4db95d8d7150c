//! Putting a version in force.

use super::changes::{Applied, Changes};
use super::draft::{DraftLeg, Known};
use super::link::PeakTable;
use super::node::Node;
use super::set::LegSet;
use super::stricter::stricter;
use super::{LiveLegs, Said};
use crate::policy::spec::{LegSpec, PolicySpec, Rule, SpecError};
use crate::rate::Inherit;
use crate::sync::arena::Arena;
use crate::sync::notify::{self, Notify};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering, fence};
use crate::sync::wake::PanicCollector;
use crate::time::{Clock, Instant};
use std::sync::{Arc, OnceLock};

impl LiveLegs {
    /// The legs of `spec` on `clock`.
    pub(in super::super) fn new(spec: &PolicySpec, clock: &Clock) -> Result<Self, SpecError> {
        spec.check()?;
        let legs = Self {
            clock: clock.clone(),
            current: AtomicU64::new(0),
            sets: Arena::new(),
            turn: Mutex::new(Known::default()),
            said: Mutex::new(Said::default()),
            notify: Notify::new(),
            listener: OnceLock::new(),
        };
        legs.plan(&mut legs.turn.lock(), spec)?;
        *legs.said.lock() = Said {
            spec: spec.clone(),
            version: 1,
        };
        Ok(legs)
    }

    /// Has `listener` told of each later version that is in force.
    pub(in super::super) fn listen(&self, listener: impl Fn(&PolicySpec) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Puts `spec` in force, after whoever is changing legs. Whoever waits is called when nobody has the turn any more.
    /// Not to be called while this thread changes legs: see [`notify::is_deferred`].
    pub(in super::super) fn apply(&self, spec: PolicySpec) -> Result<Applied, SpecError> {
        spec.check()?;
        let mut panics = PanicCollector::default();
        let changes = notify::defer(|| {
            let changes = self.put_in_force(&mut self.turn.lock(), spec, &mut panics);
            // Whoever waits is judged anew: also who found the turn taken, and could not follow a peak.
            if !seeded!("live_changes_quietly") {
                self.notify.notify_reconfigured();
            }
            changes
        });
        panics.end();
        changes.map(Applied::Now)
    }

    /// Whole, also when `each` change wakes somebody who panics.
    fn put_in_force(
        &self,
        known: &mut Known,
        spec: PolicySpec,
        panics: &mut PanicCollector,
    ) -> Result<Changes, SpecError> {
        let (number, legs) = self.plan(known, &spec)?;
        let now = self.clock.now();
        let mut tunes = Vec::new();
        for (leg, spec) in legs.into_iter().zip(&spec.legs) {
            tunes.push(Tune::of(leg, spec, now));
        }
        // First what becomes stricter. The state of a leg that was not in force is nobody's business.
        tunes.iter().for_each(|tune| panics.run(|| tune.tighten()));
        let count = (self.current.load(Ordering::Relaxed) >> 32) + 1;
        // (S) Release: publishes the set and the numbers so far. Pairs with the acquiring load in `in_force`.
        self.current.store(count << 32 | u64::from(number), Ordering::Release);
        // Orders (S) before every number that is loosened next. Pairs with the fence in `is_in_force`.
        fence(Ordering::Release);
        tunes.iter().for_each(|tune| panics.run(|| tune.loosen()));
        // The use of a semaphore depends on its limit, and so may the numbers of others.
        self.follow_all(self.in_force().1, self.clock.now(), panics);
        if let Some(listener) = self.listener.get() {
            listener(&spec);
        }
        let mut said = self.said.lock();
        said.version += 1;
        let changes = Changes::between(said.version, &said.spec, &spec);
        let before = std::mem::replace(&mut said.spec, spec);
        drop(said);
        drop(before);
        Ok(changes)
    }

    /// Makes the list of a version, with the legs that there are and those that are new. Nothing is in force yet.
    fn plan(&self, known: &mut Known, spec: &PolicySpec) -> Result<(u32, Vec<DraftLeg>), SpecError> {
        let now = self.sets.get(self.current.load(Ordering::Relaxed) as u32);
        let legs = known.draft(spec, now, &self.clock)?;
        let (number, new) = known.number(&legs, spec);
        if new {
            let mut places = Vec::new();
            for (leg, spec) in legs.iter().zip(&spec.legs) {
                places.push(leg.place(spec));
            }
            let set = LegSet::new(number, places, &self.clock);
            if self.sets.put(number, set).is_err() {
                unreachable!("only one at a time puts sets in their places");
            }
        }
        Ok((number, legs))
    }
}

/// A leg and the numbers that it is to have. No number changes in both steps, so that the two together are the stated
/// transition; and the first gives nothing.
struct Tune {
    node: Arc<Node>,
    from: Rule,
    to: Rule,
    inherit: Inherit,
}

impl Tune {
    fn of(leg: DraftLeg, spec: &LegSpec, now: Instant) -> Self {
        let to = match &leg.table {
            Some(table) => table.advance(now).clone(),
            None => spec.rule.clone(),
        };
        Self {
            from: leg.node.in_force(),
            to,
            // What only the load has changed is no matter of the version.
            inherit: if leg.changed {
                spec.inherit
            } else {
                PeakTable::crossing(&spec.rule)
            },
            node: leg.node,
        }
    }

    /// The rule of both steps. A reset keeps what there is until the end.
    fn keep(&self) -> Inherit {
        match self.inherit {
            Inherit::Reset => Inherit::AsIs,
            inherit => inherit,
        }
    }

    fn tighten(&self) {
        if seeded!("live_loosens_first") {
            return self.node.retune(&self.to, self.keep());
        }
        self.node.retune(&stricter(&self.from, &self.to), self.keep());
    }

    fn loosen(&self) {
        self.node.retune(&self.to, self.keep());
        // One that counted nothing has become full by the change itself, in the first step.
        if self.inherit == Inherit::Reset && self.from != self.to && !self.from.is_unlimited() {
            self.node.reset();
        }
    }
}
