//! A version of a policy that has been built, of limiters that are kept and new ones.

use super::load::Link;
use super::unit::{AnyUnit, Built, Change, Trial};
use crate::kind::Around;
use crate::spec::{ConfigError, LegSpec, PolicySpec};
use std::sync::Arc;
use tollgate::{Inherit, Legs, Policy, PolicyError};

/// A leg of a version.
pub(crate) struct LiveLeg {
    pub(super) spec: LegSpec,
    pub(super) unit: Arc<dyn AnyUnit>,
    /// How the limiter is changed to these numbers.
    change: Option<Change>,
    /// It is to be changed.
    is_changed: bool,
    pub(super) link: Option<Link>,
    pub(super) trial: Option<Trial>,
}

impl LiveLeg {
    /// The limiter of `spec`: that of the leg `before`, if that is the same leg, else a fresh one.
    fn new(spec: &LegSpec, before: Option<&Self>, around: &Around) -> Result<Self, ConfigError> {
        let before = before.filter(|leg| leg.spec.per == spec.per && spec.kind.fits(&leg.spec.kind));
        let same = before.filter(|leg| leg.spec.kind == spec.kind);
        let Built { unit, change } = match same {
            Some(same) => Built {
                unit: Arc::clone(&same.unit),
                change: same.change.clone(),
            },
            // Numbers are checked by what they build, also where a limiter is kept.
            None => spec.kind.build(around)?,
        };
        let kept = before.filter(|_| same.is_none() && change.is_some());
        let unit = kept.map_or(unit, |leg| Arc::clone(&leg.unit));
        if unit.has_other_clock(&around.clock) {
            let fault = "its limiter decides by another clock than the policy waits by";
            return Err(ConfigError::new("kind", fault));
        }
        Ok(Self {
            spec: spec.clone(),
            unit,
            change,
            is_changed: kept.is_some(),
            link: None,
            trial: None,
        })
    }

    fn change_to(&self, inherit: Inherit) {
        if let Some(change) = &self.change {
            change(&*self.unit, inherit);
        }
    }
}

/// Legs at most.
const MAX_LEGS: usize = 64;

/// Finds what is wrong with a leg behind others, without a look at its numbers.
fn check_leg(leg: &LegSpec, others: &[LegSpec]) -> Result<(), ConfigError> {
    let name = &leg.name;
    if name.is_empty() {
        return Err(ConfigError::new("name", "it is empty, and every leg needs one"));
    }
    if let Some(first) = others.iter().position(|other| other.name == *name) {
        let leg = first + 1;
        let fault = format!("`{name}` is the name of leg {leg} already, and names are unique");
        return Err(ConfigError::new("name", fault));
    }
    if leg.per.as_deref() == Some("") {
        let fault = "it is empty, and `call` or the name of a cost is allowed";
        return Err(ConfigError::new("per", fault));
    }
    Ok(())
}

/// Builds the legs of a version after `before`. Nothing is changed yet.
pub(crate) fn build_legs(
    spec: &PolicySpec,
    before: &[LiveLeg],
    around: &Around,
) -> Result<(Arc<Legs>, Arc<[LiveLeg]>), ConfigError> {
    if spec.legs.is_empty() {
        return Err(ConfigError::new("leg", "none was given, and at least one is needed"));
    }
    let count = spec.legs.len();
    if count > MAX_LEGS {
        let fault = format!("too many legs: {count} were given, and {MAX_LEGS} are allowed");
        return Err(ConfigError::whole(fault).within_row("leg", MAX_LEGS));
    }
    let known = |leg: &LegSpec| before.iter().find(|known| known.spec.name == leg.name);
    let mut live = Vec::with_capacity(count);
    for (row, leg) in spec.legs.iter().enumerate() {
        let checked = check_leg(leg, &spec.legs[..row]);
        let built = checked.and_then(|()| LiveLeg::new(leg, known(leg), around));
        live.push(built.map_err(|error| error.within_row("leg", row))?);
    }
    for (row, leg) in spec.legs.iter().enumerate() {
        if let Some(when) = &leg.when {
            let before = known(leg).and_then(|leg| leg.link.as_ref());
            let names = spec.legs.iter().map(|leg| &*leg.name).filter(|name| *name != leg.name);
            let link = match live.iter().find(|of| of.spec.name == when.load_of) {
                Some(of) if when.load_of != leg.name => Link::new(when, of, before, &around.clock),
                Some(_) => {
                    let fault = format!("`{}` is the leg itself, and another one is allowed", leg.name);
                    Err(ConfigError::new("load_of", fault))
                }
                None => Err(ConfigError::unknown(&when.load_of, "leg", names).within("load_of")),
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
fn check_whole(spec: &PolicySpec, legs: &Arc<Legs>, around: &Around) -> Result<(), ConfigError> {
    let policy = Policy::builder().limit(Arc::clone(legs)).order(spec.order.clone());
    match policy.on(&around.clock).build() {
        Ok(_) => Ok(()),
        Err(PolicyError::Order(error)) => Err(ConfigError::new("order", error.to_string())),
        Err(PolicyError::SameQueue { .. }) => {
            let fault = "one limiter stands in two legs, and no policy can wait for it twice";
            Err(ConfigError::new("leg", fault))
        }
        Err(error) => Err(ConfigError::new("leg", error.to_string())),
    }
}

/// Changes the numbers of the limiters that this version has kept. `latest` gives the version in force: another one may have come
/// meanwhile, and changed them before this one did.
pub(super) fn put_numbers_in_force(live: &Arc<[LiveLeg]>, latest: impl Fn() -> Arc<[LiveLeg]>) {
    let changed = || live.iter().filter(|leg| leg.is_changed);
    changed().for_each(|leg| leg.change_to(leg.spec.inherit));
    let mut known = Arc::clone(live);
    loop {
        let now = latest();
        if Arc::ptr_eq(&now, &known) {
            return;
        }
        let is_changed = |later: &&LiveLeg| changed().any(|leg| Arc::ptr_eq(&later.unit, &leg.unit));
        now.iter()
            .filter(is_changed)
            .for_each(|later| later.change_to(Inherit::AsIs));
        known = now;
    }
}
