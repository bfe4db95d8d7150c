//! Making the list of legs of a version: of what there is already, and of what is new.

use super::link::{LegLoad, Link, PeakTable};
use super::node::{Identity, Node};
use super::set::{LegSet, SetLeg};
use crate::policy::linked::Meter;
use crate::policy::spec::{LegSpec, LoadMetric, Peak, PolicySpec, Rule, SpecError};
use crate::time::Clock;
use std::collections::BTreeMap;
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
    pub(super) fn draft(
        &mut self,
        spec: &PolicySpec,
        now: Option<&LegSet>,
        clock: &Clock,
    ) -> Result<Vec<DraftLeg>, SpecError> {
        let nodes = spec.legs.iter().enumerate();
        let nodes: Vec<_> = nodes
            .map(|(position, leg)| {
                let known = self.node(leg, clock);
                known.map_err(|fault| SpecError::built(position, &leg.name, fault))
            })
            .collect::<Result<_, _>>()?;
        let legs = nodes.into_iter().zip(&spec.legs).map(|(node, leg)| self.leg(node, leg));
        let mut legs: Vec<_> = legs.collect();
        for position in 0..legs.len() {
            let LegSpec { when, peak, rule, .. } = &spec.legs[position];
            let before = now.and_then(|now| now.leg(&legs[position].node));
            if let Some(when) = when {
                let load = self.load(&mut legs, spec, &when.leg, when.metric, when.over, clock);
                let key = format!("{} {} {when:?}", legs[position].node.number, load.node.number);
                let link = self.links.entry(key);
                let link = Arc::clone(link.or_insert_with_key(|key| Arc::new(Link::new(key, when, load, clock))));
                link.take_over(before.and_then(|before| before.link.as_ref()));
                legs[position].link = Some(link);
            }
            if let Some(peak) = peak {
                let load = self.load(&mut legs, spec, &peak.leg, peak.metric, peak.over, clock);
                let key = format!("{} {} {rule:?} {peak:?}", legs[position].node.number, load.node.number);
                let table = self.tables.entry(key);
                let table =
                    Arc::clone(table.or_insert_with_key(|key| Arc::new(PeakTable::new(key, peak, rule, load, clock))));
                table.take_over(before.and_then(|before| before.peak.as_ref()));
                legs[position].table = Some(table);
            }
        }
        Ok(legs)
    }

    fn node(&mut self, leg: &LegSpec, clock: &Clock) -> Result<Arc<Node>, String> {
        let identity = Identity::of(leg);
        if let Some(known) = self.nodes.get(&identity) {
            return Ok(Arc::clone(&known.node));
        }
        let node = Arc::new(Node::new(self.nodes.len(), leg, clock)?);
        let said = (leg.rule.clone(), leg.peak.clone());
        self.nodes.insert(
            identity,
            KnownNode {
                node: Arc::clone(&node),
                said,
            },
        );
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
        let leg = |(leg, spec): (&DraftLeg, &LegSpec)| {
            let link = leg.link.as_ref().map(|link| &link.key);
            let table = leg.table.as_ref().map(|table| &table.key);
            let overs: Vec<_> = leg.meters.iter().map(|meter| meter.over()).collect();
            format!("{} {} {link:?} {table:?} {overs:?};", leg.node.number, spec.shadow)
        };
        let key: String = legs.iter().zip(&spec.legs).map(leg).collect();
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
            shadow: spec.shadow,
            link: self.link.clone(),
            peak: self.table.clone(),
            meters: self.meters.clone(),
        }
    }
}
