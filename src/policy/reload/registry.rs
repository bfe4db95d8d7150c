//! The legs, conditions and tables of all versions so far, and the list of a new version.

use super::condition::{Condition, LegLoad, PeakTable};
use super::leg_set::{LegSet, VersionLeg};
use super::leg_state::{Identity, LegState};
use crate::core::conditional::Meter;
use crate::policy::spec::{LegRule, LegSpec, LoadMetric, Peak, PolicySpec, SpecError, When};
use crate::sync::wait_queue::QueueId;
use crate::time::Clock;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// The parts of all versions so far. A version that comes back finds the parts that it had.
#[derive(Default)]
pub(super) struct Registry {
    /// By their numbers. A list, as those below: most policies have a handful, and a service may have one policy for each of its users.
    nodes: Vec<KnownLeg>,
    conditions: BTreeMap<String, Arc<Condition>>,
    tables: BTreeMap<String, Arc<PeakTable>>,
    /// By the number of the leg that is measured.
    meters: BTreeMap<(usize, Duration), Arc<Meter>>,
    /// The parts of the lists, by their numbers.
    lists: Vec<String>,
}

struct KnownLeg {
    identity: Identity,
    state: Arc<LegState>,
    /// The numbers that the latest version with this leg gave it.
    applied: (LegRule, Option<Peak>),
    /// A version with this leg was drafted. Without one, only versions that were refused know it.
    drafted: bool,
}

/// What was replaced under a lock, and may run foreign code when it is dropped: after that.
pub(in crate::policy) type Scrap = Vec<Box<dyn Any>>;

/// Refuses a queue that stands in two legs: a policy that waits for it could not tell its two places there apart.
fn check_queues(legs: &[Arc<LegState>]) -> Result<(), SpecError> {
    let mut known: Vec<(QueueId, &str)> = Vec::new();
    for (position, leg) in legs.iter().enumerate() {
        let mut doubled = None;
        leg.body.erased().queues(&mut |queue| {
            let id = QueueId::of_queue(queue);
            let first = known.iter().find(|known| known.0 == id && !queue.holds_nothing());
            doubled = doubled.or(first.map(|known| known.1));
            known.push((id, &leg.name));
        });
        if let Some(first) = doubled {
            let fault = format!("its limiter stands in leg `{first}` as well, and no policy can wait for it twice");
            return Err(SpecError::new("kind", fault).of_leg(position, &leg.name));
        }
    }
    Ok(())
}

/// A leg of a version.
pub(super) struct DraftLeg {
    pub(super) state: Arc<LegState>,
    /// The version before, or the latest that had this leg, gave it other numbers.
    pub(super) changed: bool,
    pub(super) condition: Option<Arc<Condition>>,
    pub(super) table: Option<Arc<PeakTable>>,
    meters: Vec<Arc<Meter>>,
}

impl Registry {
    /// The legs of `spec`, known or new. `now` is the list in force, whose knowledge of loads is taken over.
    // Plain loops, here and below, and a function for each step: chains of adapters take several kilobytes of a stack where
    // nothing is optimised, and the models' stacks are small.
    pub(super) fn draft(
        &mut self,
        spec: &PolicySpec,
        now: Option<&LegSet>,
        clock: &Clock,
        scrap: &mut Scrap,
    ) -> Result<Vec<DraftLeg>, SpecError> {
        let nodes = self.states(spec, clock, scrap)?;
        let mut legs = Vec::new();
        for (state, leg) in nodes.into_iter().zip(&spec.legs) {
            legs.push(self.leg(state, leg));
        }
        for (position, leg) in spec.legs.iter().enumerate() {
            let before = now.and_then(|now| now.leg(&legs[position].state));
            if let Some(when) = &leg.when {
                self.condition(&mut legs, position, spec, when, before, clock);
            }
            if let Some(peak) = &leg.peak {
                self.table(&mut legs, position, spec, peak, before, clock);
            }
        }
        Ok(legs)
    }

    /// The legs of `spec`, known or new, of which nothing is in force yet.
    pub(super) fn states(
        &mut self,
        spec: &PolicySpec,
        clock: &Clock,
        scrap: &mut Scrap,
    ) -> Result<Vec<Arc<LegState>>, SpecError> {
        if self.nodes.is_empty() {
            self.nodes.reserve_exact(spec.legs.len());
        }
        let mut nodes = Vec::new();
        for (position, leg) in spec.legs.iter().enumerate() {
            match self.state(leg, clock, scrap) {
                Ok(state) => nodes.push(state),
                Err(error) => return Err(error.of_leg(position, &leg.name)),
            }
        }
        check_queues(&nodes)?;
        Ok(nodes)
    }

    fn condition(
        &mut self,
        legs: &mut [DraftLeg],
        position: usize,
        spec: &PolicySpec,
        when: &When,
        before: Option<&VersionLeg>,
        clock: &Clock,
    ) {
        let load = self.load(legs, spec, &when.leg, when.metric, when.over, clock);
        let key = format!("{} {} {when:?}", legs[position].state.number, load.state.number);
        let condition = self.conditions.entry(key);
        let condition =
            Arc::clone(condition.or_insert_with_key(|key| Arc::new(Condition::new(key, when, load, clock))));
        condition.take_over(before.and_then(|before| before.condition.as_ref()));
        legs[position].condition = Some(condition);
    }

    fn table(
        &mut self,
        legs: &mut [DraftLeg],
        position: usize,
        spec: &PolicySpec,
        peak: &Peak,
        before: Option<&VersionLeg>,
        clock: &Clock,
    ) {
        let rule = &spec.legs[position].rule;
        let load = self.load(legs, spec, &peak.leg, peak.metric, peak.over, clock);
        let key = format!("{} {} {rule} {peak:?}", legs[position].state.number, load.state.number);
        let table = self.tables.entry(key);
        let table = table.or_insert_with_key(|key| Arc::new(PeakTable::new(key, peak, rule, load, clock)));
        let table = Arc::clone(table);
        table.take_over(before.and_then(|before| before.peak.as_ref()));
        // A limit that only the load forbids is waited for.
        legs[position].state.may_reach(table.most());
        legs[position].table = Some(table);
    }

    fn state(&mut self, leg: &LegSpec, clock: &Clock, scrap: &mut Scrap) -> Result<Arc<LegState>, SpecError> {
        let identity = Identity::of(leg);
        if let Some(known) = self.nodes.iter_mut().find(|known| known.identity == identity) {
            if !known.drafted && known.applied.0 != leg.rule {
                // The numbers of a version that was refused are no numbers to go on from.
                let fresh = Arc::new(LegState::new(known.state.number, leg, clock)?);
                scrap.push(Box::new(std::mem::replace(&mut known.state, fresh)));
                known.applied.0 = leg.rule.clone();
            }
            return Ok(Arc::clone(&known.state));
        }
        let state = Arc::new(LegState::new(self.nodes.len(), leg, clock)?);
        let known = KnownLeg {
            identity,
            state: Arc::clone(&state),
            applied: (leg.rule.clone(), leg.peak.clone()),
            drafted: false,
        };
        self.nodes.push(known);
        Ok(state)
    }

    fn leg(&mut self, state: Arc<LegState>, leg: &LegSpec) -> DraftLeg {
        let applied = (leg.rule.clone(), leg.peak.clone());
        let known = &mut self.nodes[state.number];
        known.drafted = true;
        let changed = std::mem::replace(&mut known.applied, applied.clone()) != applied;
        DraftLeg {
            state,
            changed,
            condition: None,
            table: None,
            meters: Vec::new(),
        }
    }

    /// The load of the leg called `name`, with the meter that it has already.
    fn load(
        &mut self,
        legs: &mut [DraftLeg],
        spec: &PolicySpec,
        name: &str,
        metric: LoadMetric,
        over: Duration,
        clock: &Clock,
    ) -> LegLoad {
        let Some(position) = spec.legs.iter().position(|leg| leg.name == name) else {
            unreachable!("a version is checked before it is drafted");
        };
        let leg = &mut legs[position];
        let meter = LegLoad::is_measured(&leg.state, metric).then(|| {
            let meter = self.meters.entry((leg.state.number, over));
            let meter = Arc::clone(meter.or_insert_with(|| Meter::new(clock, over)));
            if !leg.meters.iter().any(|known| Arc::ptr_eq(known, &meter)) {
                leg.meters.push(Arc::clone(&meter));
            }
            meter
        });
        LegLoad {
            state: Arc::clone(&leg.state),
            metric,
            over,
            meter,
        }
    }

    /// The number of the list of these legs, and whether it is new.
    pub(super) fn number(&mut self, legs: &[DraftLeg], spec: &PolicySpec) -> (u32, bool) {
        let mut key = String::new();
        for (leg, spec) in legs.iter().zip(&spec.legs) {
            let _ = write!(key, "{} {}", leg.state.number, spec.shadow);
            for part in [
                leg.condition.as_ref().map(|condition| &condition.key),
                leg.table.as_ref().map(|table| &table.key),
            ] {
                let _ = write!(key, " {part:?}");
            }
            for meter in &leg.meters {
                let _ = write!(key, " {:?}", meter.over());
            }
            key.push(';');
        }
        match self.lists.iter().position(|known| *known == key) {
            Some(number) => (number as u32, false),
            None => {
                self.lists.push(key);
                (self.lists.len() as u32 - 1, true)
            }
        }
    }
}

impl DraftLeg {
    /// As a leg of the list that goes in force. Its place in the tickets is found there.
    pub(super) fn place(&self, spec: &LegSpec) -> VersionLeg {
        VersionLeg {
            state: Arc::clone(&self.state),
            words: 0..spec.rule.0.facts().words,
            units: 0,
            bit: 0,
            shadow: spec.shadow,
            condition: self.condition.clone(),
            peak: self.table.clone(),
            meters: self.meters.clone(),
        }
    }
}
