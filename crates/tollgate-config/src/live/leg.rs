//! The legs of a version: limiters that last from version to version, and new ones.

use super::load::Link;
use crate::kind::{Around, LegKind};
use crate::spec::{ConfigError, LegSpec, PolicySpec};
use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tollgate::policy::conditional::Meter;
use tollgate::policy::{Leg, ShadowStats};
use tollgate::rate::{self, Rate};
use tollgate::status::{Description, State};
use tollgate::sync::Watch;
use tollgate::{Clock, Cost, Inherit, Legs, Limiter, LimiterExt, OrderError, Policy, PolicyError, Semaphore};

/// A limiter of any kind.
pub(crate) trait AnyUnit: Send + Sync {
    /// Adds a leg over this limiter to `legs`. The meters measure the leg. Returns the counts of a leg in shadow mode.
    fn add_to(self: Arc<Self>, leg: &LiveLeg, meters: &[Arc<Meter>], legs: &mut Legs) -> Option<Trial>;

    fn as_any(&self) -> &dyn Any;

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>));

    fn watch(&self, watcher: &Weak<dyn Watch>);
}

impl<L: Limiter + 'static> AnyUnit for L {
    fn add_to(self: Arc<Self>, leg: &LiveLeg, meters: &[Arc<Meter>], legs: &mut Legs) -> Option<Trial> {
        let Some((first, others)) = meters.split_first() else {
            return add_leg(self, leg, legs);
        };
        let mut metered = first.watch(self).boxed();
        for meter in others {
            metered = meter.watch(metered).boxed();
        }
        add_leg(metered, leg, legs)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        Limiter::describe(self, visit);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        Limiter::watch(self, watcher);
    }
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

/// A limiter whose numbers can be changed in place.
pub(crate) trait Changeable: Limiter + 'static {
    /// True when nothing of what was spent counts any more.
    fn is_full(&self) -> bool;
}

impl<M: rate::Meter + 'static> Changeable for Rate<M> {
    fn is_full(&self) -> bool {
        self.time_until_full() == Some(Duration::ZERO)
    }
}

impl Changeable for Semaphore {
    fn is_full(&self) -> bool {
        self.in_use() == 0
    }
}

/// Changes a limiter that fits to the numbers of a kind.
type Change = Arc<dyn Fn(&dyn AnyUnit, Inherit) + Send + Sync>;

/// What a kind builds.
#[derive(Clone)]
pub(crate) struct Built {
    pub(super) unit: Arc<dyn AnyUnit>,
    /// None for limiters that cannot be changed in place.
    change: Option<Change>,
    is_full: fn(&dyn AnyUnit) -> bool,
}

impl Built {
    /// A limiter, and how another is changed to its numbers.
    pub(crate) fn new<L: Changeable, R>(limiter: L, set: impl Fn(&L, Inherit) -> R + Send + Sync + 'static) -> Self {
        let change = move |unit: &dyn AnyUnit, inherit| {
            unit.as_any().downcast_ref().map(|limiter| set(limiter, inherit));
        };
        Self {
            change: Some(Arc::new(change)),
            is_full: |unit| unit.as_any().downcast_ref().is_some_and(L::is_full),
            ..Self::fixed(limiter)
        }
    }

    /// A limiter that cannot be changed in place.
    pub(crate) fn fixed<L: Limiter + 'static>(limiter: L) -> Self {
        Self {
            unit: Arc::new(limiter),
            change: None,
            is_full: |_| false,
        }
    }
}

fn add_leg<L: Limiter + 'static>(limiter: L, live: &LiveLeg, legs: &mut Legs) -> Option<Trial> {
    let (spec, mut leg) = (&live.spec, Leg::new(limiter).named(&live.spec.name));
    if let Some(cost) = &spec.per {
        leg = leg.per(Cost::interned(cost));
    }
    if spec.at_once {
        leg = leg.at_once();
    }
    if let Some(link) = &live.link {
        leg = leg.when(link.trigger.clone());
    }
    if !spec.shadow {
        legs.push(leg);
        return None;
    }
    let leg = Arc::new(leg.shadow());
    legs.push(Arc::clone(&leg));
    Some(Arc::new(move || leg.shadow_stats().unwrap_or_default()))
}

/// A leg of a version.
pub(crate) struct LiveLeg {
    pub(super) spec: LegSpec,
    /// The limiter, and how it is changed to these numbers.
    pub(super) built: Built,
    /// This version changes the limiter's numbers.
    is_changed: bool,
    /// This version or one before changed them.
    was_changed: bool,
    pub(super) link: Option<Link>,
    pub(super) trial: Option<Trial>,
}

impl LiveLeg {
    /// The limiter of `spec`: that of the leg `before`, if that is the same leg, else a fresh one.
    fn new(spec: &LegSpec, before: Option<&Self>, around: &Around) -> Result<Self, ConfigError> {
        let before = before.filter(|leg| leg.spec.per == spec.per);
        let same = before.filter(|leg| leg.spec.kind == spec.kind);
        let mut built = match same {
            // Partitions may be gone while a leg names them still.
            Some(same) => match &spec.kind {
                LegKind::Partition { .. } => spec.kind.build(around).map(|_| same.built.clone())?,
                _ => same.built.clone(),
            },
            // Numbers are checked by what they build, also where a limiter is kept.
            None => spec.kind.build(around)?,
        };
        let kept = before.filter(|leg| same.is_none() && built.change.is_some() && spec.kind.fits(&leg.spec.kind));
        if let Some(kept) = kept {
            built.unit = Arc::clone(&kept.built.unit);
        }
        if built.unit.has_other_clock(&around.clock) {
            let fault = "its limiter decides by another clock than the policy waits by";
            return Err(ConfigError::new("kind", fault));
        }
        Ok(Self {
            spec: spec.clone(),
            built,
            is_changed: kept.is_some(),
            was_changed: kept.is_some() || same.is_some_and(|leg| leg.was_changed),
            link: None,
            trial: None,
        })
    }

    /// True when a fresh limiter would be in the same state.
    pub(super) fn is_as_new(&self) -> bool {
        let mut is_as_new = true;
        // A limiter whose numbers were changed never describes itself as new: it is as new once all its units are there.
        let is_full = self.was_changed && (self.built.is_full)(&*self.built.unit);
        self.built
            .unit
            .describe(&mut |leg| is_as_new &= leg.is_as_new || is_full);
        is_as_new
    }

    fn change_to(&self, inherit: Inherit) {
        if let Some(change) = &self.built.change {
            change(&*self.built.unit, inherit);
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
        live[row].trial = Arc::clone(&leg.built.unit).add_to(leg, &meters, &mut legs);
    }
    let legs = Arc::new(legs);
    check_whole(spec, &legs, around)?;
    Ok((legs, live.into()))
}

/// Finds what no policy of these legs and settings could be.
fn check_whole(spec: &PolicySpec, legs: &Arc<Legs>, around: &Around) -> Result<(), ConfigError> {
    let policy = Policy::builder().limit(Arc::clone(legs)).order(spec.order.clone());
    let Err(error) = policy.on(&around.clock).build() else {
        return Ok(());
    };
    let fault = error.to_string();
    Err(match error {
        PolicyError::Order(OrderError::Classes { .. }) => {
            ConfigError::new("classes", fault).below(["order", "priority"])
        }
        PolicyError::Order(OrderError::Patience) => ConfigError::new("patience", fault).below(["order", "priority"]),
        PolicyError::Order(_) => ConfigError::new("shares", fault).within("order"),
        PolicyError::SameQueue { .. } => ConfigError::new(
            "leg",
            "one limiter stands in two legs, and no policy waits for it twice",
        ),
        _ => ConfigError::new("leg", fault),
    })
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
        let is_changed = |later: &&LiveLeg| changed().any(|leg| Arc::ptr_eq(&later.built.unit, &leg.built.unit));
        now.iter()
            .filter(is_changed)
            .for_each(|later| later.change_to(Inherit::AsIs));
        known = now;
    }
}
