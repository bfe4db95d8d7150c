//! Making the list of legs of a version: of what there is already, and of what is new.

use super::link::{LegLoad, Link, PeakTable};
use super::node::{Body, Identity, Node};
use super::set::{LegSet, SetLeg};
use crate::policy::linked::Meter;
use crate::policy::spec::{LegSpec, LoadMetric, Peak, PolicySpec, Rule, SpecError, When};
use crate::time::Clock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// All that versions have been made of so far. A version that comes back finds what it had.
#[derive(Default)]
pub(super) struct Known {
    nodes: BTreeMap<Identity, KnownNode>,
    links: BTreeMap<String, Arc<Link>>,
    tables: BTreeMap<String, Arc<PeakTable>>,
    /// By the number of the leg that is measured.
    meters: BTreeMap<(usize, Duration), Arc<Meter>>,
    /// The numbers of the lists, by what they consist of.
    lists: BTreeMap<String, u32>,
}

struct KnownNode {
    node: Arc<Node>,
    /// The numbers that the latest version with this leg gave it.
    said: (Rule, Option<Peak>),
}

/// A leg of a version.
pub(super) struct DraftLeg {
    pub(super) node: Arc<Node>,
    /// The version before, or the latest that had this leg, gave it other numbers.
    pub(super) changed: bool,
    pub(super) link: Option<Arc<Link>>,
    pub(super) table: Option<Arc<PeakTable>>,
    meters: Vec<Arc<Meter>>,
}

impl Known {
    /// The legs of `spec`, with those that there are and those that are new. `now` is the list in force, whose knowledge of
    /// loads is taken over.
    // Plain loops, here and below, and a function for each step: chains of adapters take several kilobytes of a stack where
    // nothing is optimised, and the models' stacks are small.
    pub(super) fn draft(
        &mut self,
        spec: &PolicySpec,
        now: Option<&LegSet>,
        clock: &Clock,
    ) -> Result<Vec<DraftLeg>, SpecError> {
        let mut nodes = Vec::new();
        for (position, leg) in spec.legs.iter().enumerate() {
            match self.node(leg, clock) {
                Ok(node) => nodes.push(node),
                Err(fault) => return Err(SpecError::built(position, &leg.name, fault)),
            }
        }
        let mut legs = Vec::new();
        for (node, leg) in nodes.into_iter().zip(&spec.legs) {
            legs.push(self.leg(node, leg));
        }
        for (position, leg) in spec.legs.iter().enumerate() {
            let before = now.and_then(|now| now.leg(&legs[position].node));
            if let Some(when) = &leg.when {
                self.link(&mut legs, position, spec, when, before, clock);
            }
            if let Some(peak) = &leg.peak {
                self.table(&mut legs, position, spec, peak, before, clock);
            }
        }
        Ok(legs)
    }

    fn link(
        &mut self,
        legs: &mut [DraftLeg],
        position: usize,
        spec: &PolicySpec,
        when: &When,
        before: Option<&SetLeg>,
        clock: &Clock,
    ) {
        let load = self.load(legs, spec, &when.leg, when.metric, when.over, clock);
        let key = format!("{} {} {when:?}", legs[position].node.number, load.node.number);
        let link = self.links.entry(key);
        let link = Arc::clone(link.or_insert_with_key(|key| Arc::new(Link::new(key, when, load, clock))));
        link.take_over(before.and_then(|before| before.link.as_ref()));
        legs[position].link = Some(link);
    }

    fn table(
        &mut self,
        legs: &mut [DraftLeg],
        position: usize,
        spec: &PolicySpec,
        peak: &Peak,
        before: Option<&SetLeg>,
        clock: &Clock,
    ) {
        let rule = &spec.legs[position].rule;
        let load = self.load(legs, spec, &peak.leg, peak.metric, peak.over, clock);
        let key = format!("{} {} {rule:?} {peak:?}", legs[position].node.number, load.node.number);
        let table = self.tables.entry(key);
        let table = table.or_insert_with_key(|key| Arc::new(PeakTable::new(key, peak, rule, load, clock)));
        let table = Arc::clone(table);
        table.take_over(before.and_then(|before| before.peak.as_ref()));
        // What only the load forbids is waited for.
        if let Body::Semaphore(semaphore) = &legs[position].node.body {
            semaphore.may_reach(usize::try_from(table.most()).unwrap_or(usize::MAX));
        }
        legs[position].table = Some(table);
    }

    fn node(&mut self, leg: &LegSpec, clock: &Clock) -> Result<Arc<Node>, String> {
        let identity = Identity::of(leg);
        if let Some(known) = self.nodes.get(&identity) {
            return Ok(Arc::clone(&known.node));
        }
        let node = Arc::new(Node::new(self.nodes.len(), leg, clock)?);
        let known = KnownNode {
            node: Arc::clone(&node),
            said: (leg.rule.clone(), leg.peak.clone()),
        };
        self.nodes.insert(identity, known);
        Ok(node)
    }

    fn leg(&mut self, node: Arc<Node>, leg: &LegSpec) -> DraftLeg {
        let said = (leg.rule.clone(), leg.peak.clone());
        let known = self.nodes.get_mut(&Identity::of(leg));
        let changed = known.is_some_and(|known| std::mem::replace(&mut known.said, said.clone()) != said);
        DraftLeg {
            node,
            changed,
            link: None,
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
        let meter = LegLoad::is_measured(&leg.node, metric).then(|| {
            let meter = self.meters.entry((leg.node.number, over));
            let meter = Arc::clone(meter.or_insert_with(|| Meter::new(clock, over)));
            if !leg.meters.iter().any(|known| Arc::ptr_eq(known, &meter)) {
                leg.meters.push(Arc::clone(&meter));
            }
            meter
        });
        LegLoad {
            node: Arc::clone(&leg.node),
            metric,
            over,
            meter,
        }
    }

    /// The number of the list of these legs, and whether it is a new one, which is to be put there.
    pub(super) fn number(&mut self, legs: &[DraftLeg], spec: &PolicySpec) -> (u32, bool) {
        let mut key = String::new();
        for (leg, spec) in legs.iter().zip(&spec.legs) {
            let _ = write!(key, "{} {}", leg.node.number, spec.shadow);
            for part in [
                leg.link.as_ref().map(|link| &link.key),
                leg.table.as_ref().map(|table| &table.key),
            ] {
                let _ = write!(key, " {part:?}");
            }
            for meter in &leg.meters {
                let _ = write!(key, " {:?}", meter.over());
            }
            key.push(';');
        }
        let new = self.lists.len() as u32;
        let number = *self.lists.entry(key).or_insert(new);
        (number, number == new)
    }
}

impl DraftLeg {
    /// As a leg of the list that goes in force. Its place in the tickets is found there.
    pub(super) fn place(&self, spec: &LegSpec) -> SetLeg {
        SetLeg {
            node: Arc::clone(&self.node),
            words: 0..spec.rule.kind().words(),
            bit: 0,
            shadow: spec.shadow,
            link: self.link.clone(),
            peak: self.table.clone(),
            meters: self.meters.clone(),
        }
    }
}
