//! A version of a policy that has been built, of limiters that are kept and new ones.

use super::load::Link;
use super::unit::{AnyUnit, Trial};
use crate::kind::Around;
use crate::spec::{LegSpec, PolicySpec, SpecError, check_legs};
use std::sync::Arc;
use tollgate::{Inherit, Legs, Policy, PolicyError};

/// A leg of a version.
pub(crate) struct LiveLeg {
    pub(super) spec: LegSpec,
    pub(super) unit: Arc<dyn AnyUnit>,
    /// Its numbers are to change in place.
    changes: bool,
    pub(super) link: Option<Link>,
    pub(super) trial: Option<Trial>,
}

impl LiveLeg {
    /// The limiter of `spec`: that of the leg `before`, if that is the same leg, else a fresh one.
    fn new(spec: &LegSpec, before: Option<&Self>, around: &Around) -> Result<Self, SpecError> {
        let before = before.filter(|leg| leg.spec.per == spec.per);
        let is_same = before.is_some_and(|leg| leg.spec.kind == spec.kind);
        // Numbers are checked by what they build, also where a limiter is kept.
        let fresh = (!is_same).then(|| spec.kind.build(around)).transpose()?;
        let kept = before.filter(|leg| is_same || leg.unit.can_change() && spec.kind.fits(&leg.spec.kind));
        let Some(unit) = kept.map(|leg| Arc::clone(&leg.unit)).or(fresh) else {
            unreachable!("a leg that is not fresh is kept");
        };
        if unit.has_other_clock(&around.clock) {
            let fault = "its limiter decides by another clock than the policy waits by";
            return Err(SpecError::new("kind", fault));
        }
        Ok(Self {
            spec: spec.clone(),
            unit,
            changes: kept.is_some() && !is_same,
            link: None,
            trial: None,
        })
    }
}

/// Builds the legs of a version after `before`. Nothing is changed yet.
pub(crate) fn build_legs(
    spec: &PolicySpec,
    before: &[LiveLeg],
    around: &Around,
) -> Result<(Arc<Legs>, Arc<[LiveLeg]>), SpecError> {
    check_legs(spec)?;
    let known = |leg: &LegSpec| before.iter().find(|known| known.spec.name == leg.name);
    let mut live = Vec::with_capacity(spec.legs.len());
    for (row, leg) in spec.legs.iter().enumerate() {
        let built = LiveLeg::new(leg, known(leg), around);
        live.push(built.map_err(|error| error.within_row("leg", row))?);
    }
    for (row, leg) in spec.legs.iter().enumerate() {
        if let Some(when) = &leg.when {
            let before = known(leg).and_then(|leg| leg.link.as_ref());
            let link = match live.iter().find(|of| of.spec.name == when.load_of) {
                Some(of) => Link::new(when, of, before, &around.clock),
                None => {
                    let names = spec.legs.iter().map(|leg| &*leg.name).filter(|name| *name != leg.name);
                    Err(SpecError::unknown(&when.load_of, "leg", names).within("load_of"))
                }
            };
            live[row].link = Some(link.map_err(|error| error.within("when").within_row("leg", row))?);
        }
    }
    let mut legs = Legs::new();
    for row in 0..live.len() {
        let leg = &live[row];
        let links = live.iter().filter_map(|leg| leg.link.as_ref());
        let meters: Vec<_> = links.filter_map(|link| link.meter_of(leg)).collect();
        let when = leg.link.as_ref().map(|link| link.trigger.clone());
        live[row].trial = leg.unit.add_to(&mut legs, &leg.spec, &meters, when);
    }
    let legs = Arc::new(legs);
    check_whole(spec, &legs, around)?;
    Ok((legs, live.into()))
}

/// Finds what no policy of these legs and settings could be.
fn check_whole(spec: &PolicySpec, legs: &Arc<Legs>, around: &Around) -> Result<(), SpecError> {
    let policy = Policy::builder().limit(Arc::clone(legs)).order(spec.order.clone());
    match policy.on(&around.clock).build() {
        Ok(_) => Ok(()),
        Err(PolicyError::Order(error)) => Err(SpecError::new("order", error.to_string())),
        Err(PolicyError::SameQueue { .. }) => {
            let fault = "one limiter stands in two legs, and no policy can wait for it twice";
            Err(SpecError::new("leg", fault))
        }
        Err(error) => Err(SpecError::new("leg", error.to_string())),
    }
}

/// Changes the numbers of the limiters that this version has kept. `latest` gives the version in force: another one may have come
/// meanwhile, and changed them before this one did.
pub(super) fn put_numbers_in_force(live: &Arc<[LiveLeg]>, latest: impl Fn() -> Arc<[LiveLeg]>) {
    let changed = || live.iter().filter(|leg| leg.changes);
    changed().for_each(|leg| leg.unit.put_in_force(&leg.spec.kind, leg.spec.inherit));
    let mut known = Arc::clone(live);
    loop {
        let now = latest();
        if Arc::ptr_eq(&now, &known) {
            return;
        }
        for leg in changed() {
            if let Some(later) = now.iter().find(|later| Arc::ptr_eq(&later.unit, &leg.unit)) {
                later.unit.put_in_force(&later.spec.kind, Inherit::AsIs);
            }
        }
        known = now;
    }
}
