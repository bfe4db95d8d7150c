//! The legs that are in force, and how another version comes in force: tighten, publish, loosen.

use super::changes::{Applied, Changes};
use super::leg_set::{LegSet, VersionLeg, has_commit, index_of};
use super::leg_state::LegState;
use super::registry::{DraftLeg, Registry, Scrap};
use crate::core::ask::Demand;
use crate::core::conditional::Meter;
use crate::core::decision::LegDecision;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::core::ticket::BoxTicket;
use crate::policy::settings::{QueueOrder, Settings};
use crate::policy::spec::{LegRule, LegSpec, PolicySpec, SpecError};
use crate::policy::{Policy, PolicyBuilder};
use crate::rate::Inherit;
use crate::semaphore::Semaphore;
use crate::sync::arena::Arena;
use crate::sync::notify::{self, Notified, Notify};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering, fence};
use crate::sync::unwind::{Rest, ask, both};
use crate::sync::wait_queue::WaitQueue;
use crate::sync::wake::PanicCollector;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The legs of a policy that can be reloaded. See the [module](crate::policy::reload).
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// # use tollgate::{LimiterExt, ManualClock};
/// let policy = PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(4))]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(3).unwrap();
/// let legs = policy.limiter();
/// assert_eq!((legs.version(), legs.in_use("slots"), legs.status().len()), (1, Some(3), 1));
/// assert_eq!(legs.spec().legs[0].name, "slots");
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
pub struct ReloadableLegs {
    pub(super) clock: Clock,
    /// The number of versions so far, and the number of the set in force: `count << 32 | set`.
    current: AtomicU64,
    /// Every list of legs that has ever been in force.
    sets: Arena<LegSet>,
    /// The legs that versions are made of. Its lock is the turn to change legs, and no foreign code runs under it.
    registry: Mutex<Registry>,
    applied: Mutex<AppliedSpec>,
    /// Notified when legs have been changed and the registry is free again, and when a load may have fallen.
    notify: Notify,
    /// Called with each version that comes in force.
    listener: OnceLock<Listener>,
}

type Listener = Box<dyn Fn(&PolicySpec) + Send + Sync>;

/// The latest version.
#[derive(Default)]
struct AppliedSpec {
    spec: Arc<PolicySpec>,
    version: u64,
    /// It was handed in for this policy alone, and not for a set or a tier that it belongs to.
    own: bool,
}

impl ReloadableLegs {
    /// The latest version.
    pub fn spec(&self) -> PolicySpec {
        PolicySpec::clone(&self.shared_spec())
    }

    pub(in crate::policy) fn shared_spec(&self) -> Arc<PolicySpec> {
        Arc::clone(&self.applied.lock().spec)
    }

    /// Its number: the policy starts with 1.
    pub fn version(&self) -> u64 {
        self.applied.lock().version
    }
}

impl fmt::Debug for ReloadableLegs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applied = self.applied.lock();
        let legs: Vec<_> = applied.spec.legs.iter().map(|leg| &leg.name).collect();
        f.debug_struct("ReloadableLegs")
            .field("version", &applied.version)
            .field("legs", &legs)
            .finish_non_exhaustive()
    }
}

impl PolicySpec {
    /// Builds the policy, fresh, on `clock`.
    ///
    /// # Errors
    /// [`SpecError`]: the first mistake, with the leg and the key.
    pub fn build(&self, clock: &Clock) -> Result<Policy<ReloadableLegs>, SpecError> {
        Self::build_shared(&Arc::new(self.clone()), clock)
    }

    pub(in crate::policy) fn build_shared(
        spec: &Arc<Self>,
        clock: &Clock,
    ) -> Result<Policy<ReloadableLegs>, SpecError> {
        let legs = ReloadableLegs::new(spec, clock)?;
        let policy = Policy::with(legs, clock.clone(), spec.settings(clock));
        let core = Arc::downgrade(policy.core());
        policy.limiter().listen(move |spec| {
            if let Some(core) = core.upgrade() {
                core.settings.set(&spec.settings(&core.clock));
            }
        });
        Ok(policy)
    }

    /// The settings of the queue, in ticks of `clock`.
    fn settings(&self, clock: &Clock) -> Settings {
        Settings {
            max_wait: self.max_wait.map(|max_wait| clock.ticks_of(max_wait)),
            max_queue: self.max_queue.unwrap_or(usize::MAX),
            reject_early_from: None,
            order: QueueOrder {
                order: self.order.clone(),
                max_units: self.max_queue_units.unwrap_or(u64::MAX),
                eviction: self.eviction,
            },
            misfit: false,
            lateness: clock.ticks_of(self.lateness.unwrap_or(PolicyBuilder::LATENESS)),
        }
    }
}

impl Policy<ReloadableLegs> {
    /// Puts another version in force. Versions come in turn, each as a whole. For the state of each leg, and for the waiters,
    /// see the [module](crate::policy::reload).
    ///
    /// # Errors
    /// [`SpecError`], with the leg and the key: nothing has been changed then, and the old version stays in force. The order of the
    /// queue, its eviction and its bound in units cannot change.
    ///
    /// ```
    /// # use tollgate::policy::spec::{LegSpec, PolicySpec, LegRule};
    /// # use tollgate::{Ask, LimiterExt, ManualClock};
    /// let clock = ManualClock::new();
    /// let mut spec = PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(2))]);
    /// let policy = spec.build(&clock)?;
    /// let held = policy.try_admit(Ask::many(2)).unwrap();
    ///
    /// spec.legs[0].rule = LegRule::semaphore(3);
    /// policy.apply(spec.clone())?;
    /// assert!(policy.try_admit(Ask::many(2)).is_err(), "two are still held");
    /// assert!(policy.try_admit(Ask::one()).is_ok());
    ///
    /// spec.legs.clear();
    /// assert!(policy.apply(spec).is_err());
    /// drop(held);
    /// assert!(policy.try_admit(Ask::many(3)).is_ok(), "the version before is still in force");
    /// # Ok::<(), tollgate::policy::spec::SpecError>(())
    /// ```
    pub fn apply(&self, spec: PolicySpec) -> Result<Applied, SpecError> {
        if notify::is_deferred() {
            spec.check_next(&self.limiter().shared_spec())?;
            spec.build(self.clock()).map(drop)?;
            notify::call(Arc::new(Later(self.clone(), spec)));
            return Ok(Applied::Next);
        }
        self.limiter().apply(Arc::new(spec), true)
    }
}

/// A version that is put in force after the change that runs on this thread.
struct Later(Policy<ReloadableLegs>, PolicySpec);

impl Notified for Later {
    fn notified(self: Arc<Self>) {
        // It was checked and built when it was handed in. A rule of a user that is refused now leaves the version before.
        let _ = self.0.apply(self.1.clone());
    }
}

impl ReloadableLegs {
    /// The legs of `spec` on `clock`.
    fn new(spec: &Arc<PolicySpec>, clock: &Clock) -> Result<Self, SpecError> {
        spec.check()?;
        let legs = Self {
            clock: clock.clone(),
            current: AtomicU64::new(0),
            sets: Arena::new(),
            registry: Mutex::new(Registry::default()),
            applied: Mutex::new(AppliedSpec::default()),
            notify: Notify::new(),
            listener: OnceLock::new(),
        };
        let mut scrap = Scrap::new();
        legs.plan(&mut legs.registry.lock(), spec, &mut scrap)?;
        *legs.applied.lock() = AppliedSpec {
            spec: Arc::clone(spec),
            version: 1,
            own: false,
        };
        Ok(legs)
    }

    /// Has `listener` called with each later version that comes in force.
    pub(in crate::policy) fn listen(&self, listener: impl Fn(&PolicySpec) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Refuses what [`apply`](Self::apply) would refuse, and changes nothing. The legs of `spec` are known from then on, so that their
    /// limiters are made once. `scrap` is dropped once the caller has released its locks.
    pub(in crate::policy) fn prepare(&self, spec: &PolicySpec, scrap: &mut Scrap) -> Result<(), SpecError> {
        spec.check_next(&self.shared_spec())?;
        let prepared = self.registry.lock().states(spec, &self.clock, scrap).map(drop);
        if self.in_force().1.peaks {
            // A waiter may have found the registry locked, and have been judged by numbers that the load has left.
            self.notify.notify_all();
        }
        prepared
    }

    /// True when `spec` is in force: from now on as that of a set or a tier, and not as one for this policy alone.
    pub(in crate::policy) fn belongs_to(&self, spec: &PolicySpec) -> bool {
        let known = self.shared_spec();
        let is_in_force = *known == *spec;
        let mut applied = self.applied.lock();
        if is_in_force && Arc::ptr_eq(&applied.spec, &known) {
            applied.own = false;
        }
        is_in_force
    }

    /// Puts `spec` in force, after the change of legs that is under way, if one is. Waiters are notified once the registry is
    /// free. Not to be called while this thread changes these legs: see [`notify::is_deferred`].
    pub(in crate::policy) fn apply(&self, spec: Arc<PolicySpec>, own: bool) -> Result<Applied, SpecError> {
        spec.check_next(&self.shared_spec())?;
        let (mut panics, mut scrap) = (PanicCollector::default(), Scrap::new());
        let changes = notify::defer(|| {
            // All waiters are judged anew, also one that found the registry locked, and could not follow a peak.
            let notify = Rest::new(|| self.notify.notify_reconfigured());
            let changes = self.put_in_force(&mut self.registry.lock(), spec, own, &mut panics, &mut scrap);
            notify.make();
            changes
        });
        panics.end();
        changes.map(Applied::Now)
    }

    /// Puts a version in force as a whole, whichever of the wakers that `each` change wakes panic.
    fn put_in_force(
        &self,
        known: &mut Registry,
        spec: Arc<PolicySpec>,
        own: bool,
        panics: &mut PanicCollector,
        scrap: &mut Scrap,
    ) -> Result<Changes, SpecError> {
        // By the texts of rules, which may be a user's and panic: before anything has changed.
        let changes = Changes::between(self.version() + 1, &self.shared_spec(), &spec);
        let (number, legs) = self.plan(known, &spec, scrap)?;
        let now = self.clock.now();
        let mut retunes = Vec::new();
        for (leg, spec) in legs.into_iter().zip(&spec.legs) {
            retunes.push(Retune::of(leg, spec, now));
        }
        // First the numbers that tighten. The state of a leg that was not in force is not seen by any admission.
        retunes.iter().for_each(|retune| panics.run(|| retune.tighten()));
        let count = (self.current.load(Ordering::Relaxed) >> 32) + 1;
        // (S) Release: publishes the set and the numbers so far. Pairs with the acquiring load in `in_force`.
        self.current.store(count << 32 | u64::from(number), Ordering::Release);
        retunes
            .iter()
            .filter_map(|retune| retune.state.semaphore())
            .for_each(Semaphore::order_releases);
        // Orders (S) before each number that is loosened next. Pairs with the fence in `is_in_force`.
        fence(Ordering::Release);
        retunes.iter().for_each(|retune| panics.run(|| retune.loosen()));
        // The use of a semaphore depends on its limit, and so may the numbers of others.
        self.follow_all(self.in_force().1, self.clock.now(), panics);
        if let Some(listener) = self.listener.get() {
            listener(&spec);
        }
        let mut applied = self.applied.lock();
        (applied.version, applied.own) = (changes.version, own);
        scrap.push(Box::new(std::mem::replace(&mut applied.spec, spec)));
        Ok(changes)
    }

    /// Makes the list of a version, of known legs and new ones. Nothing is in force yet.
    fn plan(
        &self,
        known: &mut Registry,
        spec: &PolicySpec,
        scrap: &mut Scrap,
    ) -> Result<(u32, Vec<DraftLeg>), SpecError> {
        let now = self.sets.get(self.current.load(Ordering::Relaxed) as u32);
        let legs = known.draft(spec, now, &self.clock, scrap)?;
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

/// A leg and its next numbers. No number changes in both steps, so that the two together are the stated
/// transition; and the first gives nothing.
struct Retune {
    state: Arc<LegState>,
    from: LegRule,
    to: LegRule,
    inherit: Inherit,
}

impl Retune {
    fn of(leg: DraftLeg, spec: &LegSpec, now: Instant) -> Self {
        let to = match &leg.table {
            Some(table) => table.advance(now).clone(),
            None => spec.rule.clone(),
        };
        Self {
            from: leg.state.in_force(),
            to,
            // A change by the load alone is no matter of the version.
            inherit: if leg.changed {
                spec.inherit
            } else {
                spec.rule.0.facts().crossing
            },
            state: leg.state,
        }
    }

    /// The transition of both steps. A reset keeps the state until the end.
    fn keep(&self) -> Inherit {
        match self.inherit {
            Inherit::Reset => Inherit::AsIs,
            inherit => inherit,
        }
    }

    fn tighten(&self) {
        self.state.retune(&self.from.0.tighter(&self.to), self.keep());
    }

    fn loosen(&self) {
        self.state.retune(&self.to, self.keep());
        // A leg that counted nothing has become full by the change itself, in the first step.
        if self.inherit == Inherit::Reset && self.from != self.to && !self.from.0.is_unlimited() {
            self.state.reset();
        }
    }
}

impl ReloadableLegs {
    /// The word and the set in force.
    #[inline]
    pub(super) fn in_force(&self) -> (u64, &LegSet) {
        // Acquire: sees the set, and the numbers that have tightened. Pairs with (S) in `put_in_force`.
        let word = self.current.load(Ordering::Acquire);
        match self.sets.get(word as u32) {
            Some(set) => (word, set),
            None => unreachable!("a set is put in its place before its number is published"),
        }
    }

    /// True when `word` is still in force. To be called after the legs were asked.
    #[inline]
    fn is_in_force(&self, word: u64) -> bool {
        // A thread that has seen a number loosened after (S) sees (S) as well. Pairs with the fence in `put_in_force`.
        fence(Ordering::Acquire);
        // Relaxed: by the fence.
        self.current.load(Ordering::Relaxed) == word
    }

    /// The set by which a ticket was made.
    #[inline]
    fn set_of(&self, ticket: &BoxTicket) -> &LegSet {
        match self.sets.get(index_of(ticket)) {
            Some(set) => set,
            None => unreachable!("a ticket is made by a set that is in its place"),
        }
    }

    /// Takes from all legs in force, or from none. A version that comes in between makes it ask again.
    #[inline]
    fn reserve_all<'a>(&'a self, demand: &Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'a>> {
        loop {
            let (word, set) = self.in_force();
            if set.peaks {
                self.follow_peaks(set, demand.now(&self.clock));
            }
            let result = set.reserve(demand, ticket);
            if self.is_in_force(word) {
                return result.map_err(|refusal| refusal.among(self, *demand));
            }
            if result.is_ok() {
                let taken = std::mem::replace(ticket, BoxTicket::EMPTY);
                both(|| set.cancel(&taken, demand.reading()), || self.ended(set));
            }
        }
    }

    /// Notifies that a load may have fallen. That counts for the legs in force even if the set of the ticket has no conditions.
    #[inline]
    fn ended(&self, set: &LegSet) {
        // SeqCst: what was given back comes before the look at the list in force, as that list comes before the notification in
        // `apply`. So if no condition is seen here, that notification comes after, and the waiters that it calls see what was
        // given back. Pairs with the fence in `Notify::notify_all`. What semaphores were given back needs no fence: see
        // `Semaphore::order_releases`.
        if !set.linked && set.holds_others {
            fence(Ordering::SeqCst);
        }
        // Acquire: as in `in_force`.
        let is_linked = || {
            let index = self.current.load(Ordering::Acquire) as u32;
            index != set.index && self.in_force().1.linked
        };
        if set.linked || is_linked() {
            ask(|| self.notify.notify_all());
        }
    }
}

impl Limiter for ReloadableLegs {
    type Ticket = BoxTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<BoxTicket, Refusal<'_>> {
        let mut ticket = BoxTicket::EMPTY;
        self.reserve_all(&demand, &mut ticket)?;
        Ok(ticket)
    }

    #[inline]
    fn reserve_in(&self, demand: Demand<'_>, place: &mut Option<BoxTicket>) -> Result<(), Refusal<'_>> {
        let mut place = BoxTicket::begin(place);
        self.reserve_all(&demand, place.ticket())?;
        place.keep();
        Ok(())
    }

    fn cancel(&self, ticket: BoxTicket, now: &ClockReading) {
        let set = self.set_of(&ticket);
        both(|| set.cancel(&ticket, now), || self.ended(set));
    }

    #[inline]
    fn commit(&self, ticket: &mut BoxTicket, now: &ClockReading) {
        if has_commit(ticket) {
            self.set_of(ticket).commit(ticket, now);
        }
    }

    fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        self.set_of(ticket).settle(ticket, actual)
    }

    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: &ClockReading) {
        self.finish_in(&ticket, outcome, now);
    }

    #[inline]
    fn finish_in(&self, ticket: &BoxTicket, outcome: Outcome, now: &ClockReading) {
        let set = self.set_of(ticket);
        let rest = Rest::new(|| self.ended(set));
        set.finish(ticket, outcome, now);
        rest.make();
    }

    fn forget(&self, ticket: BoxTicket) {
        let set = self.set_of(&ticket);
        // SeqCst: as in `ended`. The permits of a semaphore do not come back.
        both(
            || set.forget(&ticket),
            || {
                fence(Ordering::SeqCst);
                self.ended(set);
            },
        );
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        let (_, set) = self.in_force();
        if set.peaks {
            self.follow_peaks(set, demand.now(&self.clock));
        }
        set.ready_at(demand)
    }

    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        self.explain(demand, visit);
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    /// The legs in force that apply and are obeyed, under their names.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let (_, set) = self.in_force();
        let now = self.clock.now();
        self.follow_peaks(set, now);
        let idle = |leg: &VersionLeg| {
            leg.condition
                .as_ref()
                .is_some_and(|condition| !condition.gate.is_exceeded(now))
        };
        for leg in set.legs().iter().filter(|leg| !leg.shadow && !idle(leg)) {
            let state = &leg.state;
            state.body.erased().visit_status(&mut |status| {
                let status = status.named(&state.name);
                visit(state.per.map_or(status, |cost| status.per(cost)));
            });
        }
    }

    /// True when no leg that was ever in force can be told from a new one, and no load is remembered. The numbers of its tier do not
    /// count, those of a version for this policy alone do.
    fn is_pristine(&self, now: &ClockReading) -> bool {
        let (_, set) = self.in_force();
        let at = now.now(&self.clock);
        // Without a load the numbers are those of the first row, where a fresh leg starts.
        self.follow_peaks(set, at);
        let in_first_row = |leg: &VersionLeg| {
            leg.peak
                .as_ref()
                .is_none_or(|table| table.row() == 0 && !table.is_stale(at))
        };
        if self.applied.lock().own || !set.legs().iter().all(in_first_row) {
            return false;
        }
        let mut legs = self.sets.iter().flat_map(LegSet::legs);
        legs.all(|leg| {
            let idle = |meter: &Arc<Meter>| meter.is_idle(at);
            leg.state.body.erased().is_pristine(now) && leg.meters.iter().all(idle)
        })
    }

    /// Also those of legs that are gone: a place in such a queue is still to be left.
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        let mut shown: Vec<&Arc<LegState>> = Vec::new();
        for leg in self.sets.iter().flat_map(LegSet::legs) {
            if !shown.iter().any(|state| Arc::ptr_eq(state, &leg.state)) {
                shown.push(&leg.state);
                leg.state.body.erased().queues(visit);
            }
        }
    }
}

impl ReloadableLegs {
    /// Puts the numbers of peak tables in force that the load has moved to, unless the registry is locked: all that lock it notify
    /// at their end, and waiters look again.
    #[inline]
    pub(super) fn follow_peaks(&self, set: &LegSet, now: Instant) {
        if set.peaks && set.legs().iter().any(|leg| is_stale(leg, now)) {
            self.follow_peaks_slow(set, now);
        }
    }

    #[cold]
    fn follow_peaks_slow(&self, set: &LegSet, now: Instant) {
        let mut panics = PanicCollector::default();
        notify::defer(|| {
            let Some(turn) = self.registry.try_lock() else { return };
            // Another version has come: its numbers are right already.
            if std::ptr::eq(self.in_force().1, set) {
                self.follow_all(set, now, &mut panics);
            }
            drop(turn);
            // The use of a leg falls when its limit is raised; and an admission may have found the registry locked.
            self.notify.notify_all();
        });
        panics.end();
    }

    /// The same, under the lock of the registry.
    pub(super) fn follow_all(&self, set: &LegSet, now: Instant, panics: &mut PanicCollector) {
        for leg in set.legs().iter().filter(|leg| is_stale(leg, now)) {
            if let Some(table) = &leg.peak {
                let rule = table.advance(now);
                panics.run(|| leg.state.retune(rule, rule.0.facts().crossing));
            }
        }
    }
}

fn is_stale(leg: &VersionLeg, now: Instant) -> bool {
    leg.peak.as_ref().is_some_and(|table| table.is_stale(now))
}
