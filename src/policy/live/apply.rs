//! Putting a version in force.

use super::changes::{Applied, Changes};
use super::link::{LegLoad, Link, PeakTable};
use super::node::{Identity, Node};
use super::set::{LegSet, SetLeg};
use super::stricter::stricter;
use super::{LiveLegs, State};
use crate::policy::linked::Meter;
use crate::policy::spec::{LegSpec, LoadMetric, PolicySpec, Rule, SpecError};
use crate::rate::Inherit;
use crate::sync::arena::Arena;
use crate::sync::bell::Bell;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering, fence};
use crate::time::{Clock, Instant};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

impl LiveLegs {
    /// The legs of `spec` on `clock`.
    pub(in super::super) fn new(spec: &PolicySpec, clock: &Clock) -> Result<Self, SpecError> {
        spec.check()?;
        let legs = Self {
            clock: clock.clone(),
            current: AtomicU64::new(0),
            sets: Arena::new(),
            state: Mutex::new(State {
                spec: PolicySpec::default(),
                version: 0,
                changing: false,
                next: None,
                nodes: BTreeMap::new(),
                sets: 0,
            }),
            bell: Bell::new(),
            listener: OnceLock::new(),
        };
        legs.plan(spec)?;
        Ok(legs)
    }

    /// Has `listener` told of each later version that is in force.
    pub(in super::super) fn listen(&self, listener: impl Fn(&PolicySpec) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Puts `spec` in force. See [`Policy::apply`](crate::Policy::apply).
    pub(in super::super) fn apply(&self, spec: PolicySpec) -> Result<Applied, SpecError> {
        spec.check()?;
        let Some(turn) = self.take_turn(Some(&spec)) else {
            return Ok(Applied::Next);
        };
        let changes = self.put_in_force(&spec);
        turn.pass_on();
        changes.map(Applied::Now)
    }

    fn put_in_force(&self, spec: &PolicySpec) -> Result<Changes, SpecError> {
        let plan = self.plan(spec)?;
        // First what becomes stricter. The state of a leg that was not in force is nobody's business.
        let now = self.clock.now();
        #[cfg(not(tollgate_bug = "live_loosens_first"))]
        for tune in &plan.tunes {
            tune.node
                .retune(&stricter(&tune.node.in_force(), tune.to(now)), tune.inherit);
        }
        #[cfg(tollgate_bug = "live_loosens_first")]
        for tune in &plan.tunes {
            tune.node.retune(tune.to(now), tune.inherit);
        }
        let count = (self.current.load(Ordering::Relaxed) >> 32) + 1;
        // (S) Release: publishes the set and the numbers so far. Pairs with the acquiring load in `in_force`.
        self.current.store(count << 32 | u64::from(plan.set), Ordering::Release);
        // Orders (S) before every number that is loosened next. Pairs with the fence in `is_in_force`.
        fence(Ordering::Release);
        for tune in &plan.tunes {
            tune.node.retune(tune.to(now), tune.inherit);
        }
        if let Some(listener) = self.listener.get() {
            listener(spec);
        }
        // Whoever waits is judged anew.
        self.bell.ring();
        Ok(plan.changes)
    }

    /// Makes the set of a version, with the legs that there are and those that are new. Nothing is in force yet.
    fn plan(&self, spec: &PolicySpec) -> Result<Plan, SpecError> {
        let mut state = self.state.lock();
        let mut nodes = Vec::new();
        for (position, leg) in spec.legs.iter().enumerate() {
            let identity = Identity::of(leg);
            let node = match state.nodes.get(&identity) {
                Some(node) => Arc::clone(node),
                None => {
                    let node = Node::new(leg, &self.clock)
                        .map(Arc::new)
                        .map_err(|fault| SpecError::built(position, &leg.name, fault))?;
                    state.nodes.insert(identity, Arc::clone(&node));
                    node
                }
            };
            nodes.push(node);
        }
        let set = Draft::new(spec, &nodes, &self.sets, &self.clock).finish(state.sets);
        let tunes = set.legs().iter().zip(&spec.legs).map(Tune::of).collect();
        let index = match self.sets.iter().position(|known| known.is_like(&set)) {
            Some(index) => index as u32,
            None => {
                let index = state.sets;
                if self.sets.put(index, set).is_err() {
                    unreachable!("only one at a time puts sets in their places");
                }
                state.sets += 1;
                index
            }
        };
        state.version += 1;
        let changes = Changes::between(state.version, &state.spec, spec);
        state.spec = spec.clone();
        Ok(Plan {
            set: index,
            tunes,
            changes,
        })
    }

    /// Puts the numbers of peak tables in force that the load has moved to, unless legs are being changed already: who
    /// does that looks when it has done.
    #[inline]
    pub(super) fn follow_peaks(&self, set: &LegSet, now: Instant) {
        let stale = |leg: &&SetLeg| leg.peak.as_ref().is_some_and(|peak| peak.is_stale(now));
        if set.legs().iter().any(|leg| stale(&leg)) {
            self.follow_peaks_slow(set, now);
        }
    }

    #[cold]
    fn follow_peaks_slow(&self, set: &LegSet, now: Instant) {
        let Some(turn) = self.take_turn(None) else { return };
        // Another version has come: its numbers are right already.
        if std::ptr::eq(self.in_force().1, set) {
            for leg in set.legs() {
                if let Some(peak) = leg.peak.as_ref().filter(|peak| peak.is_stale(now)) {
                    leg.node.retune(peak.advance(now), leg.inherit);
                }
            }
        }
        turn.pass_on();
        // The use of a leg falls when its limit is raised.
        self.bell.ring();
    }

    /// The turn to change legs, if nobody has it. If somebody has, it will apply `next`.
    fn take_turn(&self, next: Option<&PolicySpec>) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        if state.changing {
            if let Some(next) = next {
                state.next = Some(next.clone());
            }
            return None;
        }
        state.changing = true;
        Some(Turn(self))
    }
}

/// What it takes to put a version in force.
struct Plan {
    set: u32,
    tunes: Vec<Tune>,
    changes: Changes,
}

/// A leg and the numbers that it is to have.
struct Tune {
    node: Arc<Node>,
    to: Rule,
    peak: Option<Arc<PeakTable>>,
    inherit: Inherit,
}

impl Tune {
    fn of((leg, spec): (&SetLeg, &LegSpec)) -> Self {
        Self {
            node: Arc::clone(&leg.node),
            to: spec.rule.clone(),
            peak: leg.peak.clone(),
            inherit: spec.inherit,
        }
    }

    fn to(&self, now: Instant) -> &Rule {
        match &self.peak {
            Some(peak) => peak.advance(now),
            None => &self.to,
        }
    }
}

/// The turn to change legs: whoever has it applies what others have handed in meanwhile. Given up also on a panic.
struct Turn<'a>(&'a LiveLegs);

impl Turn<'_> {
    /// Applies what has been handed in, and gives the turn up.
    fn pass_on(self) {
        loop {
            let next = {
                let mut state = self.0.state.lock();
                let next = state.next.take();
                state.changing = next.is_some();
                next
            };
            let Some(next) = next else {
                return std::mem::forget(self);
            };
            // It was checked by whoever handed it in.
            let _ = self.0.put_in_force(&next);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().changing = false;
    }
}

/// The legs of a set while their links are made.
struct Draft<'a> {
    spec: &'a PolicySpec,
    nodes: &'a [Arc<Node>],
    sets: &'a Arena<LegSet>,
    clock: &'a Clock,
    meters: Vec<Vec<Arc<Meter>>>,
}

impl<'a> Draft<'a> {
    fn new(spec: &'a PolicySpec, nodes: &'a [Arc<Node>], sets: &'a Arena<LegSet>, clock: &'a Clock) -> Self {
        Self {
            spec,
            nodes,
            sets,
            clock,
            meters: vec![Vec::new(); nodes.len()],
        }
    }

    fn finish(mut self, index: u32) -> LegSet {
        let links: Vec<_> = (0..self.nodes.len())
            .map(|leg| (self.link(leg), self.peak(leg)))
            .collect();
        let legs = links.into_iter().enumerate().map(|(position, (link, peak))| {
            let leg = &self.spec.legs[position];
            SetLeg {
                node: Arc::clone(&self.nodes[position]),
                words: 0..leg.rule.kind().words(),
                inherit: leg.inherit,
                shadow: leg.shadow,
                link,
                peak,
                meters: std::mem::take(&mut self.meters[position]),
            }
        });
        LegSet::new(index, legs.collect(), self.clock)
    }

    /// The same leg in all versions before.
    fn known(&self, node: &Arc<Node>) -> impl Iterator<Item = &'a SetLeg> + use<'a> {
        let legs = self.sets.iter().flat_map(LegSet::legs);
        let node = Arc::clone(node);
        legs.filter(move |leg| Arc::ptr_eq(&leg.node, &node))
    }

    fn link(&mut self, leg: usize) -> Option<Arc<Link>> {
        let when = self.spec.legs[leg].when.as_ref()?;
        let load = self.load(&when.leg, when.metric, when.over)?;
        let mut known = self.known(&self.nodes[leg]).filter_map(|leg| leg.link.as_ref());
        let same = known.find(|link| link.when == *when && Arc::ptr_eq(&link.of, &load.node));
        Some(same.map_or_else(|| Arc::new(Link::new(when, load, self.clock)), Arc::clone))
    }

    fn peak(&mut self, leg: usize) -> Option<Arc<PeakTable>> {
        let LegSpec { peak, rule, .. } = &self.spec.legs[leg];
        let peak = peak.as_ref()?;
        let load = self.load(&peak.leg, peak.metric, peak.over)?;
        let mut known = self.known(&self.nodes[leg]).filter_map(|leg| leg.peak.as_ref());
        let same =
            known.find(|table| table.peak == *peak && table.base() == rule && Arc::ptr_eq(&table.of, &load.node));
        Some(same.map_or_else(|| Arc::new(PeakTable::new(peak, rule, load, self.clock)), Arc::clone))
    }

    /// The load of the leg called `name`, with the meter that it has already.
    fn load(&mut self, name: &str, metric: LoadMetric, over: Duration) -> Option<LegLoad> {
        let position = self.spec.legs.iter().position(|leg| leg.name == name)?;
        let node = Arc::clone(&self.nodes[position]);
        let meter = LegLoad::is_measured(&node, metric).then(|| {
            let old = self.known(&node).flat_map(|leg| &leg.meters);
            let mut known = self.meters[position].iter().chain(old);
            let known = known.find(|meter| meter.over() == over).cloned();
            let meter = known.unwrap_or_else(|| Meter::new(self.clock, over));
            if !self.meters[position].iter().any(|known| Arc::ptr_eq(known, &meter)) {
                self.meters[position].push(Arc::clone(&meter));
            }
            meter
        });
        Some(LegLoad { node, metric, meter })
    }
}
