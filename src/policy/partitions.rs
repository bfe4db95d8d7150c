//! One limit, shared by classes.

use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome};
use crate::core::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::core::status::{self, Status};
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::sync::wait_queue::{Permits, QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::time::ClockReading;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

const LEG: &str = "partition";

/// A limit on how many run at once, shared by classes of work. All classes together never hold more than the limit,
/// whatever the rule:
///
/// | made by | a class is admitted while | prefer it when |
/// |---|---|---|
/// | [`guaranteed`](Self::guaranteed) | the unused parts of the others stay free | no class may starve |
/// | [`lent`](Self::lent) | anything is free | idle capacity is worse than waiting for one's own |
/// | [`levels`](Self::levels) | all together hold less than its part of the limit | important work goes first under overload |
///
/// With a limit of 10 and parts of 0.3 and 0.7: guaranteed, the first class gets 3 and the second 7. With parts of 0.3
/// and 0.5, the remaining 2 go to the first caller of either. Lent, either gets 10, if the other holds nothing. By
/// levels of 1 and 0.7, the second is refused from 7 in flight on, and the first from 10 on.
///
/// Each class is a [`Limiter`] of its own. A permit that is forgotten counts as held for good. To wait in turn, put the
/// class into a [`Policy`](crate::Policy).
///
/// An ask for more units than a class could ever hold is refused as [`Oversized`](Reason::Oversized). After the limit or the
/// part was lowered, a waiter for more than that waits until it is raised again, and holds up none that fit.
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
pub struct Partitions {
    classes: Box<[Arc<Class>]>,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<PartitionState>,
    /// Notified when the limit has changed.
    notify: Notify,
}

struct PartitionState {
    shares: Shares,
    /// The most that each class could hold under any settings so far.
    largest: Box<[u64]>,
    /// The waiting policies, each by its head, in order of arrival.
    waiting: VecDeque<Waiter>,
    /// The key of the next.
    next: u64,
}

struct Waiter {
    /// Ascending along the queue.
    key: u64,
    class: usize,
    units: u64,
    /// Shared, so that it can be cloned without running foreign code under the lock.
    waker: Arc<Waker>,
}

impl PartitionState {
    fn new(shares: Shares) -> Self {
        Self {
            largest: shares.most_of_each().collect(),
            shares,
            waiting: VecDeque::new(),
            next: 0,
        }
    }

    fn reconfigure(&mut self, change: impl FnOnce(&mut Shares)) {
        change(&mut self.shares);
        let most = self.shares.most_of_each();
        self.largest
            .iter_mut()
            .zip(most)
            .for_each(|(largest, most)| *largest = most.max(*largest));
    }

    /// True for more units than any settings so far allowed `class`, unless they allowed none.
    fn is_oversized(&self, class: usize, units: u64) -> bool {
        let largest = self.largest[class];
        largest > 0 && units > largest
    }

    fn position(&self, key: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&key, |waiter| waiter.key).ok()
    }

    /// True if `units` of `class` fit now, and take nothing from the first `before` waiters.
    fn admits(&self, class: usize, units: u64, before: usize) -> bool {
        let held_up = |waiter: &Waiter| {
            !self.shares.passes(class, units, waiter.class) && self.shares.could_fit(waiter.class, waiter.units)
        };
        self.shares.fits(class, units) && !self.waiting.iter().take(before).any(held_up)
    }

    /// The waker of the first waiter that is admitted now.
    fn next(&self) -> Option<Arc<Waker>> {
        let mut waiting = self.waiting.iter().enumerate();
        let next = waiting.find(|(index, waiter)| self.admits(waiter.class, waiter.units, *index));
        next.map(|(_, waiter)| Arc::clone(&waiter.waker))
    }
}

impl Shared {
    fn read<R>(&self, read: impl FnOnce(&Shares) -> R) -> R {
        read(&self.state.lock().shares)
    }

    /// Changes the state, and wakes the first waiter that is admitted then.
    fn change<R>(&self, change: impl FnOnce(&mut PartitionState) -> R) -> R {
        let (result, next) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            (result, state.next())
        };
        if let Some(next) = next {
            next.wake_by_ref();
        }
        result
    }
}

/// One class of a [`Partitions`].
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
        Self::build(limit, &vec![0.0; classes.min(257)], ShareRule::Lent)
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
        let millionths = rule.millionths(parts)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(PartitionState::new(Shares::new(limit as u64, millionths, rule))),
            notify: Notify::new(),
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
        self.shared.read(Shares::limit) as usize
    }

    /// Changes the limit at once, and with it every part. Held permits stay held: nothing is admitted before it fits.
    pub fn set_limit(&self, limit: usize) {
        self.reconfigure(|shares| shares.limit = limit as u64);
    }

    /// Changes the parts at once: one for each class, as they were given at first. Held permits stay held: nothing is admitted
    /// before it fits.
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
        self.set(self.limit(), parts)
    }

    /// Changes the limit and the parts in one step.
    pub(crate) fn set(&self, limit: usize, parts: &[f64]) -> Result<(), PartitionsError> {
        let (given, classes) = (parts.len(), self.classes.len());
        if given != classes {
            return Err(PartitionsError::OtherClasses { given, classes });
        }
        let parts = self.shared.read(|shares| shares.rule).millionths(parts)?;
        self.reconfigure(|shares| (shares.limit, shares.parts) = (limit as u64, parts));
        Ok(())
    }

    fn reconfigure(&self, change: impl FnOnce(&mut Shares)) {
        self.shared.change(|state| state.reconfigure(change));
        self.shared.notify.notify_reconfigured();
    }

    /// How many run, of all classes. A snapshot.
    pub fn in_use(&self) -> usize {
        self.shared.read(Shares::total) as usize
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

    /// How many more of this class fit now. A snapshot.
    pub(crate) fn room(&self) -> u64 {
        self.shared.read(|shares| shares.room(self.class).unwrap_or(0))
    }

    /// How many of this class fit while the others hold nothing.
    pub(crate) fn most(&self) -> u64 {
        self.shared.read(|shares| shares.most(self.class))
    }

    fn give_back(&self, units: u64) {
        self.shared.change(|state| state.shares.give_back(self.class, units));
    }

    /// The number of waiters before `demand`.
    fn before(&self, state: &mut PartitionState, demand: Demand<'_>) -> usize {
        let Some(claim) = demand.queue_key(QueueId::of(self)) else {
            return state.waiting.len();
        };
        let Some(index) = state.position(claim.key()) else {
            return state.waiting.len();
        };
        // The place belongs to the queue, whose head may be another now.
        state.waiting[index].units = demand.units();
        index
    }
}

/// A waiter is handed nothing. Its waker is woken when its units are free and no waiter before it waits for them; also
/// at the moment when it joins.
impl WaitQueue for Class {
    fn join(&self, QueueDemand { units, .. }: QueueDemand<'_>, waker: &Waker) -> QueueKey {
        let waker = Arc::new(waker.clone());
        let (key, waker) = {
            let mut state = self.shared.state.lock();
            let (key, class, before) = (state.next, self.class, state.waiting.len());
            state.next += 1;
            let admitted = state.admits(class, units, before).then(|| Arc::clone(&waker));
            state.waiting.push_back(Waiter {
                key,
                class,
                units,
                waker,
            });
            (key, admitted)
        };
        if let Some(waker) = waker {
            waker.wake_by_ref();
        }
        QueueKey::new(QueueId::of(self), key)
    }

    fn leave(&self, claim: QueueKey) {
        let _left = self.shared.change(|state| {
            let index = state.position(claim.key())?;
            state.waiting.remove(index)
        });
    }

    fn holds_nothing(&self) -> bool {
        true
    }

    /// All classes share one limit.
    fn permits(&self) -> Permits {
        Permits::Of(QueueId::of(&*self.shared))
    }
}

impl Limiter for Class {
    /// The units held.
    type Ticket = u64;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<u64, Refusal<'_>> {
        let units = demand.units();
        let mut state = self.shared.state.lock();
        let before = self.before(&mut state, demand);
        let taken = state.admits(self.class, units, before) && state.shares.take(self.class, units);
        match taken {
            true => Ok(units),
            false if state.is_oversized(self.class, units) => {
                Err(Refusal::new(Reason::Oversized, LEG, units, Wait::Never))
            }
            false => Err(Refusal::new(Reason::Saturated, LEG, units, Wait::Turn(self))),
        }
    }

    fn cancel(&self, units: u64, _: &ClockReading) {
        self.give_back(units);
    }

    fn finish(&self, units: u64, _: Outcome, _: &ClockReading) {
        self.give_back(units);
    }

    /// The units count as held from now on.
    fn forget(&self, _: u64) {}

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::FINISH
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.shared.notify);
        let units = demand.units();
        let mut state = self.shared.state.lock();
        if state.is_oversized(self.class, units) {
            return ReadyAt::never_for(Reason::Oversized, LEG, units);
        }
        let before = self.before(&mut state, demand);
        if state.admits(self.class, units.saturating_add(demand.ahead()), before) {
            ReadyAt::NOW
        } else if state.shares.could_fit(self.class, units) || state.shares.limit() == 0 {
            ReadyAt::in_turn(LEG, self, units)
        } else {
            ReadyAt::on_raise(LEG)
        }
    }

    /// Its permits belong to all classes, and not to an entry of a map. In a [`Keyed`](crate::Keyed) put it in as a
    /// [`Shared`](crate::keyed::Shared): `Shared::from(partitions.class(0).clone())`.
    fn is_pristine(&self, _: &ClockReading) -> bool {
        true
    }

    /// Its part of the limit, and its permits, which may be more while others use less than their parts.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let state = status::State::Permits {
            limit: self.part() as u64,
            in_use: self.in_use() as u64,
            waiting: 0,
        };
        visit(Status::new(LEG, LEG, state));
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(self);
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
    /// All that is free: an unused part is lent, and its owner waits for returned permits.
    Lent,
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

#[derive(Clone, Debug, PartialEq, Eq)]
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

    fn classes(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn held(&self, class: usize) -> u64 {
        self.held[class]
    }

    /// The part of `class`, in whole units, rounded down: so the parts are never more than the limit.
    pub(super) fn part(&self, class: usize) -> u64 {
        (u128::from(self.limit) * u128::from(self.parts[class]) / MILLION) as u64
    }

    /// True if `n` more fit for `class`.
    pub(super) fn fits(&self, class: usize, n: u64) -> bool {
        self.room(class).is_some_and(|room| n <= room)
    }

    /// How many more fit for `class`; `None` while more are held than may be.
    pub(super) fn room(&self, class: usize) -> Option<u64> {
        match self.rule {
            ShareRule::Lent => self.limit.checked_sub(self.total),
            ShareRule::Level => self.part(class).checked_sub(self.total),
            ShareRule::Kept => {
                let others = (0..self.classes()).filter(|&other| other != class);
                let unused = others.map(|other| self.part(other).saturating_sub(self.held[other]));
                self.limit.checked_sub(self.total.saturating_add(unused.sum()))
            }
        }
    }

    /// True if `n` of `class` would fit with nothing held.
    pub(super) fn could_fit(&self, class: usize, n: u64) -> bool {
        n <= self.most(class)
    }

    /// [`most`](Self::most) of each class, in their order.
    fn most_of_each(&self) -> impl Iterator<Item = u64> {
        (0..self.classes()).map(|class| self.most(class))
    }

    /// How many of `class` fit with nothing held.
    pub(super) fn most(&self, class: usize) -> u64 {
        match self.rule {
            ShareRule::Lent => self.limit,
            ShareRule::Level => self.part(class),
            ShareRule::Kept => {
                let others = (0..self.classes()).filter(|&other| other != class);
                let parts: u64 = others.map(|other| self.part(other)).sum();
                self.limit.saturating_sub(parts)
            }
        }
    }

    /// True if `n` for `class` may be taken before a waiter of class `waits`: it takes nothing that the waiter could
    /// have, or has a higher level.
    pub(super) fn passes(&self, class: usize, n: u64, waits: usize) -> bool {
        match self.rule {
            ShareRule::Lent => false,
            ShareRule::Level => self.parts[class] > self.parts[waits],
            ShareRule::Kept => class != waits && self.held[class].saturating_add(n) <= self.part(class),
        }
    }

    pub(super) fn take(&mut self, class: usize, n: u64) -> bool {
        let fits = self.fits(class, n);
        if fits {
            self.held[class] += n;
            self.total += n;
        }
        fits
    }

    pub(super) fn give_back(&mut self, class: usize, n: u64) {
        let n = n.min(self.held[class]);
        self.held[class] -= n;
        self.total -= n;
    }
}
