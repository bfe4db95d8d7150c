//! One limit, shared by classes.

use crate::core::ask::{Demand, Role};
use crate::core::limiter::{Limiter, Outcome};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::{self, Description};
use crate::sync::shim::Mutex;
use crate::sync::wait_queue::{Place, Watch, Watchers};
use crate::sync::wake::wake;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;

const LEG: &str = "partition";

/// Limits how many run at once, for several classes of work together. All classes together never hold more than the limit,
/// whatever the rule:
///
/// | made by | a class is admitted while | prefer it when |
/// |---|---|---|
/// | [`guaranteed`](Self::guaranteed) | the unused parts of the others stay free | no class may starve |
/// | [`lent`](Self::lent) | anything is free | idle capacity is worse than waiting for one's own |
/// | [`levels`](Self::levels) | all together hold less than its part of the limit | important work goes first under overload |
///
/// ```
/// # use tollgate::policy::Partitions;
/// # use tollgate::LimiterExt;
/// let [batch, live] = [0, 1];
/// let shared = Partitions::guaranteed(10, &[0.3, 0.5])?;
/// let held: Vec<_> = (0..5).map(|_| shared.class(batch).try_admit_owned(1).unwrap()).collect();
/// assert!(shared.class(batch).try_admit(1).is_err(), "five are kept for the others");
/// assert!(shared.class(live).try_admit(5).is_ok());
/// # drop(held);
/// # Ok::<(), tollgate::policy::PartitionsError>(())
/// ```
///
/// With a limit of 10 and parts of 0.3 and 0.7: guaranteed, the first class gets 3 and the second 7. With parts of 0.3
/// and 0.5, the remaining 2 go to the first caller of either. Lent, either gets 10, if the other holds nothing. By
/// levels of 1 and 0.7, the second is refused from 7 in flight on, and the first from 10 on.
///
/// Each class is a [`Limiter`] of its own. To wait in turn, put the class into a [`Policy`](crate::Policy). A permit that is forgotten
/// counts as held for good.
///
/// An ask for more units than a class could hold while the others hold nothing is refused as [`Oversized`](Reason::Oversized) at once; a
/// waiter for more than that is refused when the limit or the part is lowered. A class that may hold nothing at all is paused: asks of it
/// wait until the limit or its part is raised.
///
/// # Fairness
/// Policies that wait take turns, for any classes and any number of waiters in each: a returned permit goes to the
/// policy that has waited longest. A class passes others only by permits that they could not take: within its own
/// guaranteed part, or by a higher level. A call that does not wait, [`try_admit`](crate::LimiterExt::try_admit), takes
/// nothing that a policy waits for.
///
/// **Starvation**: by levels, a class waits for as long as those above it fill the rest. Give classes that must not
/// starve the same level, or guaranteed parts.
///
/// # Memory ordering
/// The writes of a holder, before it returns its permit, are visible to later holders.
pub struct Partitions {
    classes: Box<[Arc<Class>]>,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<PartitionState>,
    watchers: Watchers,
}

struct PartitionState {
    shares: Shares,
    /// The waiters of each class: the heads of policies, by their age.
    waiting: Box<[BTreeMap<u64, Waiter>]>,
}

struct Waiter {
    units: u64,
    waker: Waker,
}

impl PartitionState {
    /// The oldest waiter of `class` that may be admitted while nothing is held.
    fn first(&self, class: usize) -> Option<(u64, &Waiter)> {
        let most = self.shares.most(class);
        let mut waiting = self.waiting[class].iter();
        waiting.find_map(|(&age, waiter)| (waiter.units <= most).then_some((age, waiter)))
    }

    /// True if `units` of `class` fit now, and take nothing from an older waiter. All are older than a demand without an age.
    fn admits(&self, class: usize, units: u64, age: Option<u64>) -> bool {
        let waits_for_it = |other: usize| {
            let is_older = |(first, _)| age.is_none_or(|age| first < age);
            self.first(other).is_some_and(is_older) && !self.shares.passes(class, units, other)
        };
        self.shares.fits(class, units) && !(0..self.waiting.len()).any(waits_for_it)
    }

    /// Would `units` of `class` be admitted behind `ahead` others?
    fn judge(&self, class: usize, units: u64, ahead: u64, age: Option<u64>) -> Result<(), Refusal> {
        let most = self.shares.most(class);
        // A class that may hold nothing is paused.
        if units > most && most > 0 {
            return Err(Refusal::new(Reason::Oversized, LEG, Wait::Never));
        }
        match self.admits(class, units.saturating_add(ahead), age) {
            true => Ok(()),
            false => Err(Refusal::new(Reason::Saturated, LEG, Wait::EVENT)),
        }
    }

    /// The wakers of the waiters that are admitted now, the oldest first: at most one of each class.
    fn ready(&self) -> Vec<(u64, Waker)> {
        let of_class = |class: usize| {
            let (age, waiter) = self.first(class)?;
            let admits = self.admits(class, waiter.units, Some(age));
            admits.then(|| (age, waiter.waker.clone()))
        };
        let mut ready: Vec<_> = (0..self.waiting.len()).filter_map(of_class).collect();
        ready.sort_unstable_by_key(|&(age, _)| age);
        ready
    }
}

impl Shared {
    fn read<R>(&self, read: impl FnOnce(&Shares) -> R) -> R {
        read(&self.state.lock().shares)
    }

    /// Changes the state, and wakes the waiters that are admitted then.
    fn change<R>(&self, change: impl FnOnce(&mut PartitionState) -> R) -> R {
        let (result, ready) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            (result, state.ready())
        };
        ready.into_iter().for_each(|(_, waker)| wake(waker));
        result
    }
}

/// Admits the work of one class of a [`Partitions`].
///
/// ```
/// # use tollgate::LimiterExt;
/// # use tollgate::policy::Partitions;
/// let shared = Partitions::guaranteed(10, &[0.3, 0.5]).unwrap();
/// let batch = shared.class(0);
/// let permit = batch.try_admit(2).unwrap();
/// assert_eq!((batch.part(), batch.in_use(), shared.in_use()), (3, 2, 2));
/// # drop(permit);
/// ```
///
/// In a [`Keyed`](crate::Keyed), put it in as a [`Shared`](crate::keyed::Shared): `Shared::from(partitions.class(0).clone())`.
pub struct Class {
    shared: Arc<Shared>,
    class: usize,
}

impl Partitions {
    /// Each class has a part of the limit (0 to 1) for itself, rounded down to a whole number. The rest is free for
    /// all.
    ///
    /// # Errors
    /// [`PartitionsError`] when there are no classes or more than 256, a part is not 0 to 1, or all are more than 1.
    pub fn guaranteed(limit: usize, parts: &[f64]) -> Result<Self, PartitionsError> {
        Self::build(limit, parts, ShareRule::Kept)
    }

    /// Makes `classes` classes, each of which may take all that is free.
    ///
    /// # Errors
    /// [`PartitionsError`] when there are no classes or more than 256.
    ///
    /// ```
    /// # use tollgate::LimiterExt;
    /// # use tollgate::policy::Partitions;
    /// let shared = Partitions::lent(10, 2)?;
    /// let _all = shared.class(0).try_admit(10).unwrap();
    /// assert!(shared.class(1).try_admit(1).is_err(), "nothing is kept for it");
    /// shared.set_limit(11);
    /// assert!(shared.class(1).try_admit(1).is_ok());
    /// # Ok::<(), tollgate::policy::PartitionsError>(())
    /// ```
    pub fn lent(limit: usize, classes: usize) -> Result<Self, PartitionsError> {
        Self::levels(limit, &vec![1.0; classes.min(257)])
    }

    /// Each class is admitted while all together hold less than its part (0 to 1) of the limit: 1 for the most
    /// important.
    ///
    /// # Errors
    /// [`PartitionsError`] when there are no classes or more than 256, or a part is not 0 to 1.
    pub fn levels(limit: usize, parts: &[f64]) -> Result<Self, PartitionsError> {
        Self::build(limit, parts, ShareRule::Level)
    }

    fn build(limit: usize, parts: &[f64], rule: ShareRule) -> Result<Self, PartitionsError> {
        let state = PartitionState {
            shares: Shares::new(limit as u64, rule.millionths(parts)?, rule),
            waiting: parts.iter().map(|_| BTreeMap::new()).collect(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            watchers: Watchers::new(),
        });
        let class = |class| {
            let shared = Arc::clone(&shared);
            Arc::new(Class { shared, class })
        };
        Ok(Self {
            classes: (0..parts.len()).map(class).collect(),
            shared,
        })
    }

    /// The class of this number, counting from 0. As a leg of a policy: `.limit(partitions.class(0).clone())`.
    ///
    /// # Panics
    /// If there is no such class.
    #[track_caller]
    pub fn class(&self, class: usize) -> &Arc<Class> {
        &self.classes[class]
    }

    /// How many may run at once, of all classes.
    pub fn limit(&self) -> usize {
        self.shared.read(|shares| shares.limit) as usize
    }

    /// Changes the limit at once, and with it every part. Held permits stay held: nothing is admitted before it fits.
    pub fn set_limit(&self, limit: usize) {
        self.reconfigure(|shares| shares.limit = limit as u64);
    }

    /// Changes the parts at once: one for each class, as they were given at first. Held permits stay held: nothing is admitted
    /// before it fits. Lent classes have parts of 1.
    ///
    /// # Errors
    /// [`PartitionsError`], and nothing is changed: there are more or fewer parts than classes, a part is not 0 to 1, or guaranteed parts are
    /// more than 1 in all.
    ///
    /// ```
    /// # use tollgate::policy::Partitions;
    /// # use tollgate::LimiterExt;
    /// let shared = Partitions::levels(10, &[1.0, 0.7])?;
    /// shared.set_parts(&[1.0, 0.2])?;
    /// assert!(shared.class(1).try_admit(3).is_err());
    /// assert!(shared.set_parts(&[1.0]).is_err());
    /// # Ok::<(), tollgate::policy::PartitionsError>(())
    /// ```
    pub fn set_parts(&self, parts: &[f64]) -> Result<(), PartitionsError> {
        let (given, classes) = (parts.len(), self.classes.len());
        if given != classes {
            return Err(PartitionsError::OtherClasses { given, classes });
        }
        let parts = self.shared.read(|shares| shares.rule).millionths(parts)?;
        self.reconfigure(|shares| shares.parts = parts);
        Ok(())
    }

    fn reconfigure(&self, change: impl FnOnce(&mut Shares)) {
        self.shared.change(|state| change(&mut state.shares));
        self.shared.watchers.changed();
    }

    /// How many run, of all classes. A snapshot.
    pub fn in_use(&self) -> usize {
        self.shared.read(|shares| shares.total) as usize
    }
}

impl Class {
    /// How many of this class run. A snapshot.
    pub fn in_use(&self) -> usize {
        self.shared.read(|shares| shares.held(self.class)) as usize
    }

    /// Its part of the limit, in whole units.
    pub fn part(&self) -> usize {
        self.shared.read(|shares| shares.part(self.class)) as usize
    }

    fn give_back(&self, units: u64) {
        self.shared.change(|state| state.shares.give_back(self.class, units));
    }
}

/// Nothing is handed over: the head of a policy is woken when it is admitted, and takes by itself.
impl Limiter for Class {
    /// The units held.
    type Ticket = u64;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        let units = demand.units();
        let mut state = self.shared.state.lock();
        state.judge(self.class, units, 0, demand.place().and_then(Place::age))?;
        state.shares.take(self.class, units);
        Ok(units)
    }

    fn cancel(&self, units: u64) {
        self.give_back(units);
    }

    /// Forgotten units count as held from now on.
    fn finish(&self, units: u64, outcome: Outcome) {
        if outcome != Outcome::Forgotten {
            self.give_back(units);
        }
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let units = demand.units();
        let age = demand.place_of_policy().and_then(Place::age);
        let mut state = self.shared.state.lock();
        let judged = state.judge(self.class, units, demand.ahead(), age);
        let (Some(place), Err(refusal)) = (demand.place(), judged) else {
            return judged;
        };
        if refusal.wait() == Wait::Never {
            return judged;
        }
        let waiting = &mut state.waiting[self.class];
        // The place belongs to the policy, whose head may be another now.
        let own = age.and_then(|age| waiting.get_mut(&age)).map(|own| own.units = units);
        let joins = own.is_none() && demand.role() == Role::Joining;
        if joins {
            let waker = place.waker().clone();
            waiting.insert(place.join(self), Waiter { units, waker });
        }
        drop(state);
        place.waits_for_hand_over(own.is_some() || joins);
        judged
    }

    fn leave(&self, place: &Place) {
        if let Some(age) = place.leaves(self) {
            // Its waker is dropped without the lock.
            let _left = self.shared.change(|state| state.waiting[self.class].remove(&age));
        }
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.shared.watchers.watch(watcher);
    }

    /// Its part of the limit, and its permits, which may be more while others use less than their parts.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let state = {
            let state = self.shared.state.lock();
            status::State::Permits {
                limit: state.shares.part(self.class),
                in_use: state.shares.held(self.class),
                waiting: state.waiting[self.class].len() as u64,
            }
        };
        visit(Description::new(LEG).state(state).holds_permits_of(&*self.shared));
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Class")
            .field("class", &self.class)
            .field("in_use", &self.in_use())
            .field("part", &self.part())
            .finish()
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions")
            .field("limit", &self.limit())
            .field("classes", &self.classes)
            .finish()
    }
}

/// Parts or classes of [`Partitions`] that are out of bounds.
///
/// ```
/// # use tollgate::policy::{Partitions, PartitionsError};
/// let error = Partitions::guaranteed(10, &[0.7, 0.7]).unwrap_err();
/// assert!(matches!(error, PartitionsError::Parts { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PartitionsError {
    /// There must be 1 to 256 classes.
    Classes {
        /// The given number.
        given: usize,
    },
    /// Classes stay: there must be a part for each.
    OtherClasses {
        /// The given number of parts.
        given: usize,
        /// The number of classes.
        classes: usize,
    },
    /// A part must be 0 to 1.
    Part {
        /// The class.
        class: usize,
        /// The given part.
        given: f64,
    },
    /// Guaranteed parts may not exceed 1 in all.
    Parts {
        /// Their sum.
        sum: f64,
    },
}

impl fmt::Display for PartitionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes { given } => write!(f, "{given} classes were given, and 1 to 256 are allowed"),
            Self::OtherClasses { given, classes } => {
                write!(f, "{given} parts were given, and there are {classes} classes")
            }
            Self::Part { class, given } => {
                write!(f, "class {class}: a part of {given} was given, and 0 to 1 is allowed")
            }
            Self::Parts { sum } => write!(f, "parts of {sum} in all were given, and up to 1 is allowed"),
        }
    }
}

impl std::error::Error for PartitionsError {}

/// The rule of a class, beside `total + n <= limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareRule {
    /// The unused parts of the others stay free for them: a class within its part is never refused.
    Kept,
    /// The free permits within its part of the limit, whichever classes hold the others: as load rises, classes with
    /// small parts are refused first.
    Level,
}

impl ShareRule {
    /// These parts, if they may be.
    pub(super) fn millionths(self, parts: &[f64]) -> Result<Box<[u64]>, PartitionsError> {
        if parts.is_empty() || parts.len() > 256 {
            return Err(PartitionsError::Classes { given: parts.len() });
        }
        let sum: f64 = parts.iter().sum();
        // Addition may lose as many millionths as there are classes.
        if self == Self::Kept && sum > 1.0 + 1e-9 {
            return Err(PartitionsError::Parts { sum });
        }
        for (class, &given) in parts.iter().enumerate() {
            if !(0.0..=1.0).contains(&given) {
                return Err(PartitionsError::Part { class, given });
            }
        }
        Ok(parts.iter().map(|part| (part * 1e6 + 1e-6) as u64).collect())
    }
}

#[derive(Clone)]
pub(super) struct Shares {
    limit: u64,
    /// In millionths of the limit.
    parts: Box<[u64]>,
    held: Box<[u64]>,
    total: u64,
    rule: ShareRule,
}

const MILLION: u128 = 1_000_000;

impl Shares {
    pub(super) fn new(limit: u64, parts: Box<[u64]>, rule: ShareRule) -> Self {
        Self {
            limit,
            held: vec![0; parts.len()].into(),
            parts,
            total: 0,
            rule,
        }
    }

    pub(super) fn held(&self, class: usize) -> u64 {
        self.held[class]
    }

    /// The part of `class`, in whole units, rounded down: so guaranteed parts are never more than the limit.
    pub(super) fn part(&self, class: usize) -> u64 {
        (u128::from(self.limit) * u128::from(self.parts[class]) / MILLION) as u64
    }

    /// What is kept of the parts of all classes but `class`, of which `used` says how much is used.
    fn kept(&self, class: usize, used: impl Fn(usize) -> u64) -> u64 {
        let others = (0..self.parts.len()).filter(|&other| other != class);
        others.map(|other| self.part(other).saturating_sub(used(other))).sum()
    }

    /// True if `n` more fit for `class`.
    pub(super) fn fits(&self, class: usize, n: u64) -> bool {
        self.room(class).is_some_and(|room| n <= room)
    }

    /// How many more fit for `class`; `None` while more are held than may be.
    pub(super) fn room(&self, class: usize) -> Option<u64> {
        match self.rule {
            ShareRule::Level => self.part(class).checked_sub(self.total),
            ShareRule::Kept => {
                let kept = self.kept(class, |other| self.held(other));
                self.limit.checked_sub(self.total.saturating_add(kept))
            }
        }
    }

    /// How many of `class` fit with nothing held.
    pub(super) fn most(&self, class: usize) -> u64 {
        match self.rule {
            ShareRule::Level => self.part(class),
            ShareRule::Kept => self.limit.saturating_sub(self.kept(class, |_| 0)),
        }
    }

    /// True if `n` for `class` may be taken before a waiter of class `waits`: it takes nothing that the waiter could
    /// have, or has a higher level.
    pub(super) fn passes(&self, class: usize, n: u64, waits: usize) -> bool {
        match self.rule {
            ShareRule::Level => self.parts[class] > self.parts[waits],
            ShareRule::Kept => class != waits && self.held[class].saturating_add(n) <= self.part(class),
        }
    }

    pub(super) fn take(&mut self, class: usize, n: u64) {
        self.held[class] += n;
        self.total += n;
    }

    pub(super) fn give_back(&mut self, class: usize, n: u64) {
        let n = n.min(self.held[class]);
        self.held[class] -= n;
        self.total -= n;
    }
}
