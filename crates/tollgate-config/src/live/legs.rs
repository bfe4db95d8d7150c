//! The list of legs that is in force, and those before it that permits are out of.

use super::built::{Built, LiveLeg, MOST_COUNTED};
use super::changes::Changes;
use super::load::InUse;
use crate::kind::{Around, Kinds, LivePartitions};
use crate::source::SourceError;
use crate::spec::{PolicySpec, STAYS, SpecError};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tollgate::sync::{Place, Watch, Watchers};
use tollgate::{
    BoxTicket, Clock, Cost, Demand, Description, Legs, Limiter, Outcome, Refusal, Role, Settlement, Ticket,
};

/// The legs of a policy that can be reloaded: the limiter of a [`ReloadablePolicy`](crate::ReloadablePolicy).
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock};
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec};
/// let policy = PolicySpec::new([LegSpec::new("slots", LegKind::semaphore(4))]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(3).unwrap();
/// let legs = policy.limiter();
/// assert_eq!((legs.version(), legs.in_use("slots"), legs.legs().len()), (1, Some(3), 1));
/// assert_eq!(legs.spec().legs[0].name, "slots");
/// # Ok::<(), tollgate_config::SpecError>(())
/// ```
pub struct ReloadableLegs {
    clock: Clock,
    kinds: Kinds,
    current: ArcSwap<Version>,
    /// The number of the current list.
    number: AtomicU64,
    /// Lists that are in force no more, while permits of them are out.
    retired: Mutex<BTreeMap<u64, Arc<Version>>>,
    /// The list in whose queues of waiters a place stands, by the number of the place.
    places: Mutex<BTreeMap<u64, Arc<Version>>>,
    watchers: Arc<Watchers>,
    state: Mutex<Latest>,
}

/// The latest version, as data.
struct Latest {
    spec: Arc<PolicySpec>,
    partitions: Arc<LivePartitions>,
    /// Why the latest version that was handed in is not in force.
    error: Option<SourceError>,
}

/// A list of legs.
struct Version {
    number: u64,
    legs: Arc<Legs>,
    live: Arc<[LiveLeg]>,
    /// The legs whose use is counted, each with its cost.
    counted: Vec<(Arc<InUse>, Option<Cost>)>,
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
    fn new(number: u64, built: &Built, watchers: &Arc<Watchers>) -> Arc<Self> {
        let relay = Arc::new(Relay(Arc::clone(watchers)));
        let watcher: Weak<dyn Watch> = Arc::downgrade(&relay) as Weak<dyn Watch>;
        built.legs.watch(&watcher);
        let cost = |leg: &LiveLeg| leg.spec.per.as_deref().map(Cost::interned);
        let counted = |leg: &LiveLeg| Some((Arc::clone(leg.in_use.as_ref()?), cost(leg)));
        Arc::new(Self {
            number,
            legs: Arc::clone(&built.legs),
            live: Arc::clone(&built.live),
            counted: built.live.iter().filter_map(counted).collect(),
            out: AtomicU64::new(0),
            _relay: relay,
        })
    }

    /// An admission of all legs is in use.
    #[inline]
    fn count(&self, demand: &Demand<'_>) -> [u64; MOST_COUNTED] {
        let mut used = [0; MOST_COUNTED];
        for (used, (in_use, cost)) in used.iter_mut().zip(&self.counted) {
            let part = match cost {
                Some(cost) => demand.per(*cost),
                None => Some(*demand),
            };
            *used = part.map_or(0, |part| part.units());
            in_use.take(*used);
        }
        used
    }
}

/// The ticket of [`ReloadableLegs`]: that of the legs, and the number of their list.
#[derive(Clone, Copy, Debug)]
pub struct ReloadTicket {
    number: u64,
    /// The units of the legs whose use is counted.
    used: [u64; MOST_COUNTED],
    ticket: BoxTicket,
}

impl Ticket for ReloadTicket {
    const WORDS: usize = 1 + MOST_COUNTED + BoxTicket::WORDS;
    fn write(&self, words: &mut [u64]) {
        words[0] = self.number;
        words[1..][..MOST_COUNTED].copy_from_slice(&self.used);
        self.ticket.write(&mut words[1 + MOST_COUNTED..]);
    }
    fn read(words: &[u64]) -> Self {
        let mut used = [0; MOST_COUNTED];
        used.copy_from_slice(&words[1..][..MOST_COUNTED]);
        Self {
            number: words[0],
            used,
            ticket: BoxTicket::read(&words[1 + MOST_COUNTED..]),
        }
    }
}

impl ReloadableLegs {
    /// The first version.
    pub(super) fn new(
        spec: Arc<PolicySpec>,
        clock: &Clock,
        kinds: &Kinds,
        partitions: &Arc<LivePartitions>,
    ) -> Result<Self, SpecError> {
        let built = Built::of(
            &spec,
            &[],
            &Around {
                clock,
                kinds,
                partitions,
            },
        )?;
        let watchers = Arc::new(Watchers::new());
        built
            .live
            .iter()
            .filter_map(|leg| leg.in_use.as_ref())
            .for_each(|in_use| in_use.becomes_whole());
        Ok(Self {
            clock: clock.clone(),
            kinds: kinds.clone(),
            current: ArcSwap::new(Version::new(1, &built, &watchers)),
            number: AtomicU64::new(1),
            retired: Mutex::default(),
            places: Mutex::default(),
            watchers,
            state: Mutex::new(Latest {
                spec,
                partitions: Arc::clone(partitions),
                error: None,
            }),
        })
    }

    /// The latest version.
    pub fn spec(&self) -> Arc<PolicySpec> {
        Arc::clone(&self.state.lock().spec)
    }

    /// Its number: a policy starts with 1.
    pub fn version(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Why the latest version that was handed in is not in force; `None` when it is.
    pub fn last_error(&self) -> Option<SourceError> {
        self.state.lock().error.clone()
    }

    pub(super) fn set_error(&self, error: Option<SourceError>) {
        let old = std::mem::replace(&mut self.state.lock().error, error);
        drop(old);
    }

    pub(super) fn live(&self) -> Arc<[LiveLeg]> {
        Arc::clone(&self.current.load().live)
    }

    /// True when `spec` is in force: from now on with these partitions.
    pub(super) fn is_in_force(&self, spec: &Arc<PolicySpec>, partitions: &Arc<LivePartitions>) -> bool {
        let known = self.spec();
        let is_in_force = Arc::ptr_eq(&known, spec) || *known == **spec;
        let mut state = self.state.lock();
        let is_in_force = is_in_force && Arc::ptr_eq(&known, &state.spec);
        if is_in_force {
            state.partitions = Arc::clone(partitions);
        }
        is_in_force
    }

    /// Builds `spec` after the version in force, and gives the number of that. Nothing is changed.
    fn build(&self, spec: &PolicySpec, partitions: &LivePartitions) -> Result<(u64, Built), SpecError> {
        spec.check_fixed(&self.spec(), STAYS)?;
        let current = self.current.load_full();
        let around = Around {
            clock: &self.clock,
            kinds: &self.kinds,
            partitions,
        };
        Ok((current.number, Built::of(spec, &current.live, &around)?))
    }

    /// Refuses what [`apply`](Self::apply) would refuse.
    pub(super) fn check(&self, spec: &PolicySpec, partitions: &LivePartitions) -> Result<(), SpecError> {
        self.build(spec, partitions).map(drop)
    }

    /// Puts `spec` in force. No lock is held while limiters are built, asked or changed: where two versions come at once, the later
    /// one is built anew after the earlier.
    pub(super) fn apply(
        &self,
        spec: &Arc<PolicySpec>,
        partitions: Option<&Arc<LivePartitions>>,
    ) -> Result<Changes, SpecError> {
        let partitions = partitions.map_or_else(|| Arc::clone(&self.state.lock().partitions), Arc::clone);
        loop {
            let (after, built) = self.build(spec, &partitions)?;
            if let Some(changes) = self.install(after, &built, spec, &partitions) {
                let latest = || self.live();
                built.put_numbers_in_force(latest);
                // All waiters are judged anew, by the new list.
                self.watchers.changed();
                return Ok(changes);
            }
        }
    }

    /// Puts a version in force that was built after the version `after`, if that is still in force.
    fn install(
        &self,
        after: u64,
        built: &Built,
        spec: &Arc<PolicySpec>,
        partitions: &Arc<LivePartitions>,
    ) -> Option<Changes> {
        let next = Version::new(after + 1, built, &self.watchers);
        let before = self.current.load_full();
        // What may run users' code when it is dropped outlives the lock.
        let (old, error) = {
            let mut state = self.state.lock();
            if self.number.load(Ordering::Relaxed) != after || before.number != after {
                return None;
            }
            self.retired.lock().insert(after, Arc::clone(&before));
            self.current.store(Arc::clone(&next));
            // (N) Sequentially consistent: either an admission sees this number, or `forget_if_unused` sees the admission.
            self.number.store(next.number, Ordering::SeqCst);
            state.partitions = Arc::clone(partitions);
            (std::mem::replace(&mut state.spec, Arc::clone(spec)), state.error.take())
        };
        drop(error);
        self.forget_if_unused(&before);
        self.count_anew();
        Some(Changes::between(next.number, &*old, &**spec))
    }

    /// Forgets a list that is in force no more, if no permit of it is out.
    fn forget_if_unused(&self, version: &Version) {
        // Pairs with (A) in `enter` and with (N).
        if version.out.load(Ordering::SeqCst) == 0 && self.number.load(Ordering::SeqCst) != version.number {
            let gone = self.retired.lock().remove(&version.number);
            drop(gone);
        }
    }

    /// An admission or a permit of `version` ends.
    fn exit(&self, version: &Version) {
        // Release: what the holder did is seen by the one that drops the list. Acquire: sees (N).
        let last = version.out.fetch_sub(1, Ordering::SeqCst) == 1;
        // Relaxed: a list that is in force is never forgotten here.
        if self.number.load(Ordering::Relaxed) != version.number {
            self.after_retired(version, last);
        }
    }

    /// A permit of a list that is in force no more has come back.
    #[cold]
    fn after_retired(&self, version: &Version, last: bool) {
        if last {
            self.forget_if_unused(version);
        }
        self.count_anew();
    }

    /// Permits of lists before, which the list in force may not have counted, have come back.
    fn count_anew(&self) {
        let none_left = self.retired.lock().is_empty();
        for (in_use, _) in &self.current.load_full().counted {
            if none_left {
                in_use.becomes_whole();
            }
            in_use.changed();
        }
    }

    /// The list of a ticket.
    fn of(&self, number: u64) -> Option<Arc<Version>> {
        let current = self.current.load();
        match current.number == number {
            true => Some(Arc::clone(&current)),
            false => self.retired.lock().get(&number).cloned(),
        }
    }

    /// Ends a ticket by `end`, also where that panics.
    fn end(&self, ticket: ReloadTicket, end: impl FnOnce(&Legs, BoxTicket)) {
        let current = self.current.load();
        if current.number == ticket.number {
            let _exit = Exit(self, &current, ticket.used);
            return end(&current.legs, ticket.ticket);
        }
        drop(current);
        if let Some(version) = self.of(ticket.number) {
            let _exit = Exit(self, &version, ticket.used);
            end(&version.legs, ticket.ticket);
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

/// Counts a permit as ended when this is dropped.
struct Exit<'a>(&'a ReloadableLegs, &'a Version, [u64; MOST_COUNTED]);

impl Drop for Exit<'_> {
    fn drop(&mut self) {
        let Self(legs, version, used) = self;
        for (units, (in_use, _)) in used.iter().zip(&version.counted).filter(|(units, _)| **units > 0) {
            in_use.give_back(*units);
        }
        legs.exit(version);
    }
}

impl Limiter for ReloadableLegs {
    type Ticket = ReloadTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<ReloadTicket, Refusal> {
        loop {
            let version = self.current.load();
            // (A) Sequentially consistent: see (N).
            version.out.fetch_add(1, Ordering::SeqCst);
            let exit = Exit(self, &version, [0; MOST_COUNTED]);
            let number = version.number;
            // Otherwise the list may be forgotten already.
            if self.number.load(Ordering::SeqCst) == number {
                let ticket = version.legs.try_reserve(demand)?;
                std::mem::forget(exit);
                let used = version.count(demand);
                return Ok(ReloadTicket { number, used, ticket });
            }
        }
    }

    fn cancel(&self, ticket: ReloadTicket) {
        self.end(ticket, |legs, ticket| legs.cancel(ticket));
    }

    fn finish(&self, ticket: ReloadTicket, outcome: Outcome) {
        self.end(ticket, |legs, ticket| legs.finish(ticket, outcome));
    }

    fn settle(&self, ticket: &mut ReloadTicket, settlement: &Settlement) -> u32 {
        let version = self.of(ticket.number);
        version.map_or(0, |version| version.legs.settle(&mut ticket.ticket, settlement))
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
        (*self.current.load().legs).describe(visit);
    }
}

impl fmt::Debug for ReloadableLegs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = self.spec();
        let legs: Vec<_> = spec.legs.iter().map(|leg| &leg.name).collect();
        f.debug_struct("ReloadableLegs")
            .field("version", &self.version())
            .field("legs", &legs)
            .finish_non_exhaustive()
    }
}
