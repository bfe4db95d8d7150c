//! The list of legs that is in force, and those before it that permits are out of.

use super::leg::{LiveLeg, build_legs, put_numbers_in_force};
use super::load::LegLoad;
use super::status::LegStatus;
use crate::kind::Around;
use crate::spec::{ConfigError, PolicySpec, STAYS};
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tollgate::status::State;
use tollgate::sync::{Place, Watch, Watchers};
use tollgate::{BoxTicket, Demand, Description, Legs, Limiter, Outcome, Refusal, Role, Settlement};

/// The legs of a policy that can be reloaded: the limiter of a [`ReloadablePolicy`](crate::ReloadablePolicy).
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock};
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec};
/// let policy = PolicySpec::new([LegSpec::new("slots", LegKind::Semaphore { limit: 4 })]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(3).unwrap();
/// let legs = policy.limiter();
/// assert_eq!((legs.version(), legs.in_use("slots"), legs.legs().len()), (1, Some(3), 1));
/// assert_eq!(legs.spec().legs[0].name, "slots");
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
pub struct ReloadableLegs {
    current: ArcSwap<Version>,
    /// The number of the current list.
    number: AtomicU64,
    /// Lists that are in force no more, while permits of them are out.
    retired: Mutex<BTreeMap<u64, Arc<Version>>>,
    /// The list in whose queues of waiters a place stands, by the number of the place.
    places: Mutex<BTreeMap<u64, Arc<Version>>>,
    watchers: Arc<Watchers>,
    /// Why the latest version that was handed in is not in force.
    pub(super) error: ArcSwapOption<ConfigError>,
}

/// A list of legs.
struct Version {
    number: u64,
    spec: Arc<PolicySpec>,
    around: Around,
    legs: Arc<Legs>,
    live: Arc<[LiveLeg]>,
    /// The loads that conditions depend on. Those of permits change as permits come back.
    loads: Vec<Arc<LegLoad>>,
    /// Permits that are out, and admissions that are under way.
    out: AtomicU64,
    // Registered with the legs as long as this list lives.
    _relay: Arc<Relay>,
}

/// Tells the watchers of all lists what the legs of one tell it.
struct Relay(Arc<Watchers>);

impl Watch for Relay {
    fn changed(self: Arc<Self>) {
        self.0.changed();
    }
}

impl Version {
    /// The version after the list `before`. Nothing is changed yet.
    fn new(
        spec: &Arc<PolicySpec>,
        before: Option<&Self>,
        around: &Around,
        watchers: &Arc<Watchers>,
    ) -> Result<Arc<Self>, ConfigError> {
        let (legs, live) = build_legs(spec, before.map_or(&[], |before| &before.live), around)?;
        let relay = Arc::new(Relay(Arc::clone(watchers)));
        let watcher: Weak<dyn Watch> = Arc::downgrade(&relay) as Weak<dyn Watch>;
        legs.watch(&watcher);
        let load = |leg: &LiveLeg| Some(Arc::clone(&leg.link.as_ref()?.load));
        Ok(Arc::new(Self {
            number: before.map_or(1, |before| before.number + 1),
            spec: Arc::clone(spec),
            around: around.clone(),
            loads: live.iter().filter_map(load).collect(),
            legs,
            live,
            out: AtomicU64::new(0),
            _relay: relay,
        }))
    }
}

/// The number of a list, and the ticket of its legs.
type Numbered = (u64, BoxTicket);

impl ReloadableLegs {
    /// The first version.
    pub(super) fn new(spec: &Arc<PolicySpec>, around: &Around) -> Result<Self, ConfigError> {
        let watchers = Arc::new(Watchers::new());
        Ok(Self {
            current: ArcSwap::new(Version::new(spec, None, around, &watchers)?),
            number: AtomicU64::new(1),
            retired: Mutex::default(),
            places: Mutex::default(),
            watchers,
            error: ArcSwapOption::empty(),
        })
    }

    /// The latest version.
    pub fn spec(&self) -> Arc<PolicySpec> {
        Arc::clone(&self.current.load().spec)
    }

    /// Its number: a policy starts with 1.
    pub fn version(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Why the latest version that was handed in is not in force; `None` when it is.
    pub fn last_error(&self) -> Option<ConfigError> {
        self.error.load().as_deref().cloned()
    }

    /// How the legs stand, in order.
    pub fn legs(&self) -> Vec<LegStatus> {
        self.live().iter().map(LegStatus::of).collect()
    }

    /// How the leg called `name` stands, if there is one.
    pub fn leg(&self, name: &str) -> Option<LegStatus> {
        let live = self.live();
        live.iter().find(|leg| leg.spec.name == name).map(LegStatus::of)
    }

    /// Units of the leg called `name` that are in use, where units are held until the work ends.
    pub fn in_use(&self, name: &str) -> Option<u64> {
        match self.leg(name)?.state {
            State::Permits { in_use, .. } => Some(in_use),
            _ => None,
        }
    }

    pub(super) fn live(&self) -> Arc<[LiveLeg]> {
        Arc::clone(&self.current.load().live)
    }

    /// What the limiters of the latest version are built with.
    pub(super) fn around(&self) -> Around {
        self.current.load().around.clone()
    }

    /// True when `spec` is in force, with the same partitions.
    pub(crate) fn is_in_force(&self, spec: &PolicySpec, around: &Around) -> bool {
        let current = self.current.load();
        Arc::ptr_eq(&current.around.partitions, &around.partitions) && *current.spec == *spec
    }

    /// The version `spec` after the list `before`.
    fn next(&self, before: &Version, spec: &Arc<PolicySpec>, around: &Around) -> Result<Arc<Version>, ConfigError> {
        spec.check_fixed(&before.spec, STAYS)?;
        Version::new(spec, Some(before), around, &self.watchers)
    }

    /// Refuses what [`apply`](Self::apply) would refuse.
    pub(crate) fn check(&self, spec: &Arc<PolicySpec>, around: &Around) -> Result<(), ConfigError> {
        self.next(&self.current.load_full(), spec, around).map(drop)
    }

    /// Puts `spec` in force. No lock is held while limiters are built, asked or changed: where two versions come at once, the later
    /// one is built anew after the earlier.
    pub(super) fn apply(&self, spec: &Arc<PolicySpec>, around: &Around) -> Result<u64, ConfigError> {
        let next = loop {
            let before = self.current.load_full();
            let next = self.next(&before, spec, around)?;
            // Its permits are found there as soon as it is not the current list.
            self.retired.lock().insert(before.number, Arc::clone(&before));
            let found = self.current.compare_and_swap(&before, Arc::clone(&next));
            if Arc::ptr_eq(&found, &before) {
                break next;
            }
        };
        // (N) Sequentially consistent: either an admission sees this number, or `forget_unused` sees the admission.
        self.number.fetch_max(next.number, Ordering::SeqCst);
        self.forget_unused();
        self.error.store(None);
        put_numbers_in_force(&next.live, || self.live());
        // All waiters are judged anew, by the new list.
        self.watchers.changed();
        Ok(next.number)
    }

    /// Forgets the lists that are in force no more, and that no permits are out of.
    fn forget_unused(&self) {
        let mut retired = self.retired.lock();
        let number = self.number.load(Ordering::SeqCst);
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut *retired)
            .into_iter()
            // Pairs with (A) and with (N).
            .partition(|(known, version)| *known >= number || version.out.load(Ordering::SeqCst) > 0);
        *retired = kept;
        // What may run users' code when it is dropped outlives the lock.
        drop(retired);
        drop(gone);
    }

    /// The list of a ticket.
    fn of(&self, number: u64) -> Option<Guard<Arc<Version>>> {
        let current = self.current.load();
        match current.number == number {
            true => Some(current),
            false => self.retired.lock().get(&number).cloned().map(Guard::from_inner),
        }
    }

    /// Ends a ticket by `end`, also where that panics.
    fn end(&self, (number, ticket): Numbered, end: impl FnOnce(&Legs, BoxTicket)) {
        if let Some(version) = self.of(number) {
            let _exit = Exit(self, &version);
            end(&version.legs, ticket);
        }
    }

    /// The head of a queue looks: if its places are in the queues of a list before, it gives them up. It keeps its age.
    fn move_place(&self, place: &Place, joins: bool) -> Arc<Version> {
        let current = self.current.load_full();
        let before = {
            let mut places = self.places.lock();
            match places.get_mut(&place.id()) {
                Some(known) if known.number == current.number => None,
                Some(known) => Some(std::mem::replace(known, Arc::clone(&current))),
                None if joins => places.insert(place.id(), Arc::clone(&current)),
                None => None,
            }
        };
        if let Some(before) = before {
            before.legs.leave(place);
        }
        current
    }
}

/// An admission or a permit of a list, which ends when this is dropped.
struct Exit<'a>(&'a ReloadableLegs, &'a Version);

impl Drop for Exit<'_> {
    fn drop(&mut self) {
        let Self(all, version) = self;
        let is_last = version.out.fetch_sub(1, Ordering::SeqCst) == 1;
        // Pairs with (N): waiters depend on the loads of the list in force.
        if all.number.load(Ordering::SeqCst) == version.number {
            return version.loads.iter().for_each(|load| load.changed());
        }
        if is_last {
            all.forget_unused();
        }
        all.current.load_full().loads.iter().for_each(|load| load.changed());
    }
}

impl Limiter for ReloadableLegs {
    type Ticket = Numbered;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Numbered, Refusal> {
        loop {
            let version = self.current.load();
            // (A) Sequentially consistent: see (N).
            version.out.fetch_add(1, Ordering::SeqCst);
            let exit = Exit(self, &version);
            let number = version.number;
            // Otherwise the list may be forgotten already.
            if self.number.load(Ordering::SeqCst) == number {
                let ticket = version.legs.try_reserve(demand)?;
                std::mem::forget(exit);
                return Ok((number, ticket));
            }
        }
    }

    fn cancel(&self, ticket: Numbered) {
        self.end(ticket, |legs, ticket| legs.cancel(ticket));
    }

    fn finish(&self, ticket: Numbered, outcome: Outcome) {
        self.end(ticket, |legs, ticket| legs.finish(ticket, outcome));
    }

    fn settle(&self, (number, ticket): &mut Numbered, settlement: &Settlement) -> u32 {
        let version = self.of(*number);
        version.map_or(0, |version| version.legs.settle(ticket, settlement))
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let Some(place) = demand.place() else {
            return self.current.load().legs.look(demand);
        };
        let joins = demand.role() == Role::Joining;
        let version = self.move_place(place, joins);
        let looked = version.legs.look(demand);
        if joins && !place.has_joined() {
            let gone = self.places.lock().remove(&place.id());
            drop(gone);
        }
        looked
    }

    fn leave(&self, place: &Place) {
        let version = match place.keeps_one() {
            true => self.places.lock().get(&place.id()).cloned(),
            false => self.places.lock().remove(&place.id()),
        };
        let current = self.current.load_full();
        if let Some(version) = version.filter(|version| version.number != current.number) {
            version.legs.leave(place);
        }
        current.legs.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.watchers.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        // The limiters have a handle in each list, so that they are not alone as one that is as new.
        let current = self.current.load();
        let is_as_new = current.live.iter().all(LiveLeg::is_as_new);
        (*current.legs).describe(&mut |leg| visit(leg.as_new(is_as_new)));
    }
}

impl fmt::Debug for ReloadableLegs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.legs()).finish()
    }
}
