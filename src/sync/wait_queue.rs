//! The queue of waiters at one limiter: callers of a semaphore, and policies whose head waits for this leg. The rule of the ages is that of
//! [`crate::sync`].

use crate::core::ask::{Demand, Role};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::sync::callers::Callers;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::shim::{Mutex, MutexGuard, const_fn};
use crate::sync::unwind::quietly;
use crate::sync::wake::wake;
use crate::time::{Clock, Instant};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

/// Is told when a limit, a quota or a condition has changed, so that waiters are judged anew.
pub trait Watch: Send + Sync {
    /// Something has changed. Called without a lock, on the thread that made the change.
    fn changed(self: Arc<Self>);
}

/// Those who are told of the changes of one limiter, for as long as they live.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<Weak<dyn Watch>>>);

impl Watchers {
    const_fn! {
        /// No watchers yet.
        pub fn new() -> Self {
            Self(Mutex::new(Vec::new()))
        }
    }

    /// Tells `watcher` of each change from now on.
    pub fn watch(&self, watcher: &Weak<dyn Watch>) {
        let mut watchers = self.0.lock();
        // Those that are gone make room.
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| watcher.strong_count() > 0);
        }
        watchers.push(Weak::clone(watcher));
    }

    /// A limit, a quota or a condition has changed.
    pub fn changed(&self) {
        self.living()
            .into_iter()
            .for_each(|watcher| quietly(|| watcher.changed()));
    }

    fn living(&self) -> Vec<Arc<dyn Watch>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watchers")
    }
}

/// The waiters at one limiter, the oldest first. A limiter of your own has one as a field, and passes four methods on to it.
///
/// While a policy's head waits here, only the oldest head may take: newcomers are refused, so that none overtakes it.
///
/// ```
/// use std::sync::Weak;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tollgate::sync::{Place, WaitQueue, Watch};
/// use tollgate::{Demand, Description, Limiter, LimiterExt, Outcome, Policy, Reason, Refusal, Wait};
///
/// /// Admits everything, except during maintenance.
/// struct Maintenance {
///     on: AtomicBool,
///     queue: WaitQueue,
/// }
///
/// impl Maintenance {
///     fn judge(&self) -> Result<(), Refusal> {
///         match self.on.load(Ordering::SeqCst) {
///             true => Err(Refusal::new(Reason::Unavailable, "maintenance", Wait::EVENT)),
///             false => Ok(()),
///         }
///     }
///     fn end(&self) {
///         self.on.store(false, Ordering::SeqCst);
///         self.queue.notify();
///     }
/// }
///
/// impl Limiter for Maintenance {
///     type Ticket = ();
///
///     fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
///         self.queue.check(demand, |_, _| self.judge())?;
///         self.judge()
///     }
///     fn cancel(&self, (): ()) {}
///     fn finish(&self, (): (), _: Outcome) {}
///     fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
///         self.queue.look(demand, |_, _| self.judge())
///     }
///     fn leave(&self, place: &Place) {
///         self.queue.leave(place);
///     }
///     fn watch(&self, watcher: &Weak<dyn Watch>) {
///         self.queue.watch(watcher);
///     }
///     fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
///         visit(Description::new("maintenance"));
///     }
/// }
///
/// let gate = Maintenance { on: AtomicBool::new(true), queue: WaitQueue::new("maintenance") };
/// let policy = Policy::new(gate);
/// tollgate::Clock::real().run(async {
///     let waits = policy.admit(1);
///     let ends = async { policy.limiter().end() };
///     assert!(futures::join!(waits, ends).0.is_ok());
/// });
/// ```
pub struct WaitQueue {
    leg: &'static str,
    // The number of those that wait. Written under the lock; read without it as a hint.
    waiting: AtomicUsize,
    waiters: Mutex<Waiters>,
}

/// The head of a policy.
struct Head {
    units: u64,
    waker: Waker,
}

/// The waiters of a [`WaitQueue`], under its lock. The lists are made when the first joins or watches: most queues stay empty.
#[derive(Default)]
pub(crate) struct Waiters(Option<Box<Lists>>);

#[derive(Default)]
struct Lists {
    callers: Callers,
    // By age.
    heads: BTreeMap<u64, Head>,
    // Heads on whose behalf units were taken, until they look. An older one may take them back: they may wait for another leg.
    granted: BTreeMap<u64, Head>,
    // The units of all that wait.
    units: u128,
    watchers: Watchers,
}

/// A waiter, in the queue where it has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The key of a caller.
    Caller(usize),
    /// The age of the head of a policy.
    Head(u64),
}

/// How a waiter left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Granted(u64),
    /// It was the first, and others wait.
    First,
    Other,
}

static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(2);

/// A number that no older waiter has, of any queue, and no other head. It is even.
pub(crate) fn new_age() -> u64 {
    // Relaxed: only that no number comes twice.
    NEXT.fetch_add(2, std::sync::atomic::Ordering::Relaxed)
}

/// The age of a caller, between that of the youngest head and the next. Callers of one queue may share it: they stand in a list.
fn age_of_caller() -> u64 {
    // Relaxed: the lock of a queue orders the ages of those that have joined it.
    NEXT.load(std::sync::atomic::Ordering::Relaxed) - 1
}

impl WaitQueue {
    const_fn! {
        /// An empty queue at the limiter that refusals call `leg`.
        pub fn new(leg: &'static str) -> Self {
            Self {
                leg,
                waiting: AtomicUsize::new(0),
                waiters: Mutex::new(Waiters(None)),
            }
        }
    }

    /// True when no waiter is known. A hint: it may be old by the time it is read.
    #[inline] // row: token bucket admit
    pub fn is_empty(&self) -> bool {
        // Relaxed: nothing is published by it. A waiter that is overlooked finds the units taken, and looks again.
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// The number of waiters, without those that were granted what they wait for.
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Refuses `demand` while an older head waits here: the first step of a `try_reserve`.
    ///
    /// `judge(units, ahead)` says whether `units` would be admitted behind `ahead` others. It is called only to say how long the wait is.
    ///
    /// # Errors
    /// The refusal of `judge`, or one for the older waiters.
    pub fn check(
        &self,
        demand: &Demand<'_>,
        judge: impl FnOnce(u64, u64) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if self.is_empty() {
            return Ok(());
        }
        self.check_age(demand, judge)
    }

    #[cold]
    fn check_age(
        &self,
        demand: &Demand<'_>,
        judge: impl FnOnce(u64, u64) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let waiters = self.waiters.lock();
        // A request for nothing overtakes no other.
        if demand.units() == 0 || !waiters.is_behind(demand.place().and_then(Place::age)) {
            return Ok(());
        }
        let ahead = waiters.units();
        drop(waiters);
        judge(demand.units(), ahead)?;
        Err(self.others_before())
    }

    /// The refusal of a demand that only has others before it.
    #[cold]
    pub(crate) fn others_before(&self) -> Refusal {
        Refusal::new(Reason::Saturated, self.leg, Wait::EVENT)
    }

    /// Would `demand` be admitted, behind the waiters here? The `look` of a limiter that hands nothing over: it asks
    /// `judge(units, ahead)` whether `units` would be admitted now behind `ahead` others. A head that is [joining](Role::Joining) joins here if it is refused.
    ///
    /// `judge` may be called twice, and runs under the lock of the queue: it must not call this queue.
    ///
    /// # Errors
    /// The refusal of `judge`, or one for the older waiters.
    pub fn look(&self, demand: &Demand<'_>, judge: impl Fn(u64, u64) -> Result<(), Refusal>) -> Result<(), Refusal> {
        if let Some(place) = demand.place() {
            return self.look_as_head(demand, place, judge);
        }
        let others = match demand.place_of_policy().and_then(Place::age) {
            _ if self.is_empty() || demand.units() == 0 => 0,
            age => {
                let waiters = self.waiters.lock();
                // The head of the demand's own policy counts among those ahead of it.
                match age.is_some_and(|age| waiters.is_waiting(age)) {
                    true => 0,
                    false => waiters.units(),
                }
            }
        };
        judge(demand.units(), demand.ahead().saturating_add(others))
    }

    fn look_as_head(
        &self,
        demand: &Demand<'_>,
        place: &Place,
        judge: impl Fn(u64, u64) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (units, age) = (demand.units(), place.age());
        let mut waiters = self.waiters.lock();
        let mut stands = age.is_some_and(|age| waiters.waits(age, units));
        let behind = units > 0 && waiters.is_behind(age);
        let mut judged = judge(units, 0);
        if behind && !judged.is_err_and(|refusal| refusal.wait() == Wait::Never) {
            // Not before the instant at which it would be ready alone.
            let alone = judged.map_or_else(|refusal| refusal.wait().and(Wait::EVENT), |()| Wait::EVENT);
            judged = Err(self.others_before().with_wait(alone));
        }
        let may_join = demand.role() == Role::Joining && judged.is_err_and(|refusal| refusal.wait() != Wait::Never);
        if !stands && may_join {
            stands = true;
            let age = self.join_place(&mut waiters, units, place);
            if !waiters.is_behind(Some(age)) {
                // Either `notify` sees that the queue is not empty, or this look sees what it announced. Pairs with the fence there.
                fence(Ordering::SeqCst);
                judged = judge(units, 0);
            }
        }
        drop(waiters);
        if let (true, Err(refusal)) = (stands, judged) {
            place.waits_here(refusal.wait());
        }
        judged
    }

    /// Gives the place of `place` up, if it has one here: the `leave` of a limiter that hands nothing over.
    pub fn leave(&self, place: &Place) {
        let Some(age) = place.leaves(self) else { return };
        let left = self.remove(&mut self.waiters.lock(), Key::Head(age));
        if let Some((Left::First, _)) = left {
            self.wake_first();
        }
    }

    /// A release, a refund, an instant: the oldest waiter may be admitted now.
    pub fn notify(&self) {
        // Either this sees that the queue is not empty, or a head that joins sees what is announced. Pairs with the fence in `look`.
        fence(Ordering::SeqCst);
        self.wake_first();
    }

    /// A limit or a quota has changed: all waiters are judged anew, and the oldest may be admitted.
    pub fn changed(&self) {
        self.tell_watchers();
        self.notify();
    }

    /// Tells `watcher` of each [change](Self::changed).
    pub fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.waiters.lock().make().watchers.watch(watcher);
    }

    fn wake_first(&self) {
        if self.is_empty() {
            return;
        }
        let waiters = self.waiters.lock();
        let first = waiters.lists().and_then(|lists| lists.heads.first_key_value());
        let waker = first.map(|(_, head)| head.waker.clone());
        drop(waiters);
        waker.into_iter().for_each(wake);
    }
}

/// What limiters need that hand their units over.
impl WaitQueue {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }

    /// A limit has changed. The limiter wakes the waiters here that can go on.
    pub(crate) fn tell_watchers(&self) {
        let living = self.waiters.lock().lists().map(|lists| lists.watchers.living());
        let living = living.into_iter().flatten();
        living.for_each(|watcher| quietly(|| watcher.changed()));
    }

    fn count(&self, lists: &Lists) {
        // Relaxed: a hint. Under the lock.
        self.waiting
            .store(lists.callers.waiting() + lists.heads.len(), Ordering::Relaxed);
    }

    fn put(&self, lists: &mut Lists, age: u64, head: Head) {
        lists.units += u128::from(head.units);
        lists.heads.insert(age, head);
        self.count(lists);
    }

    /// A caller joins behind all others: its key. `waker` is a clone that was made outside the lock.
    pub(crate) fn join(&self, waiters: &mut Waiters, units: u64, waker: Waker) -> usize {
        let lists = waiters.make();
        lists.units += u128::from(units);
        let key = lists.callers.push(age_of_caller(), units, waker);
        self.count(lists);
        key
    }

    /// The head of `place` joins behind all that are older: its age.
    pub(crate) fn join_place(&self, waiters: &mut Waiters, units: u64, place: &Place) -> u64 {
        let (waker, age) = (place.waker().clone(), place.join(self));
        self.put(waiters.make(), age, Head { units, waker });
        age
    }

    /// Grants the first that waits what it waits for: it stays, as granted, until it looks.
    pub(crate) fn grant(&self, waiters: &mut Waiters) -> Option<Waker> {
        let is_head = matches!(waiters.first_waiting()?, (Key::Head(_), ..));
        let lists = waiters.make();
        let (units, waker) = match is_head {
            true => {
                let (age, head) = lists.heads.pop_first()?;
                let granted = (head.units, head.waker.clone());
                lists.granted.insert(age, head);
                granted
            }
            false => lists.callers.grant()?,
        };
        lists.units -= u128::from(units);
        self.count(lists);
        Some(waker)
    }

    /// Takes back what policies younger than `age` were granted and have not redeemed, the youngest first, until it is `need` units;
    /// all of it or nothing unless `or_less`. They wait again. Returns the units.
    pub(crate) fn take_back(&self, waiters: &mut Waiters, age: u64, need: u64, or_less: bool) -> u64 {
        let lists = waiters.make();
        let (mut units, mut ages) = (0_u64, Vec::new());
        for (&younger, head) in lists.granted.range(age..).rev() {
            if units >= need {
                break;
            }
            units += head.units;
            ages.push(younger);
        }
        if units < need && !or_less {
            return 0;
        }
        for age in ages {
            if let Some(head) = lists.granted.remove(&age) {
                self.put(lists, age, head);
            }
        }
        units
    }

    /// Takes out all that wait, once and for all: nobody joins after that. Those that were granted stay. The wakers are woken outside the
    /// lock.
    pub(crate) fn end_waiting(&self, waiters: &mut Waiters) -> Vec<Waker> {
        let lists = waiters.make();
        let heads = std::mem::take(&mut lists.heads).into_values();
        let wakers = lists.callers.end().chain(heads.map(|head| head.waker)).collect();
        lists.units = 0;
        self.count(lists);
        wakers
    }

    /// Takes a waiter out. Its waker is dropped outside the lock.
    pub(crate) fn remove(&self, waiters: &mut Waiters, key: Key) -> Option<(Left, Waker)> {
        let was_first = waiters.first_waiting().is_some_and(|(first, ..)| first == key);
        let lists = waiters.lists_mut()?;
        let (waited, units, waker) = match key {
            Key::Caller(key) => {
                let caller = lists.callers.remove(key)?;
                (caller.waits(), caller.units, caller.waker)
            }
            Key::Head(age) => {
                let waits = lists.heads.remove(&age);
                let waited = waits.is_some();
                let head = waits.or_else(|| lists.granted.remove(&age))?;
                (waited, head.units, head.waker)
            }
        };
        if !waited {
            return Some((Left::Granted(units), waker));
        }
        lists.units -= u128::from(units);
        self.count(lists);
        let left = match was_first && waiters.first_waiting().is_some() {
            true => Left::First,
            false => Left::Other,
        };
        Some((left, waker))
    }
}

impl Waiters {
    fn lists(&self) -> Option<&Lists> {
        self.0.as_deref()
    }

    fn lists_mut(&mut self) -> Option<&mut Lists> {
        self.0.as_deref_mut()
    }

    fn make(&mut self) -> &mut Lists {
        self.0.get_or_insert_default()
    }

    /// The key, the age and the units of the oldest that waits.
    pub(crate) fn first_waiting(&self) -> Option<(Key, u64, u64)> {
        let lists = self.lists()?;
        let caller = lists.callers.first();
        let caller = caller.map(|(key, caller)| (Key::Caller(key), caller.age, caller.units));
        let head = lists.heads.first_key_value();
        let head = head.map(|(&age, head)| (Key::Head(age), age, head.units));
        match (&caller, &head) {
            (Some((_, older, _)), Some((_, age, _))) if older > age => head,
            (None, _) => head,
            _ => caller,
        }
    }

    /// Does an older one wait? All are older than one that has no age yet.
    pub(crate) fn is_behind(&self, age: Option<u64>) -> bool {
        self.first_waiting()
            .is_some_and(|(_, first, _)| age.is_none_or(|age| first < age))
    }

    fn is_waiting(&self, age: u64) -> bool {
        self.lists().is_some_and(|lists| lists.heads.contains_key(&age))
    }

    /// The units that the head of this age was granted.
    pub(crate) fn granted(&self, age: u64) -> Option<u64> {
        self.lists()?.granted.get(&age).map(|head| head.units)
    }

    /// Are there heads that were granted units, and have not looked since?
    pub(crate) fn has_granted(&self) -> bool {
        self.lists().is_some_and(|lists| !lists.granted.is_empty())
    }

    /// The units of all that wait, saturating.
    pub(crate) fn units(&self) -> u64 {
        let units = self.lists().map_or(0, |lists| lists.units);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Does the head of this age wait here? Then for `units` from now on.
    pub(crate) fn waits(&mut self, age: u64, units: u64) -> bool {
        let Some(lists) = self.lists_mut() else { return false };
        let Some(own) = lists.heads.get_mut(&age) else {
            return false;
        };
        lists.units = lists.units - u128::from(own.units) + u128::from(units);
        own.units = units;
        true
    }

    /// The waker of this caller, if it waits.
    pub(crate) fn waker(&mut self, key: usize) -> Option<&mut Waker> {
        self.lists_mut()?.callers.waker(key)
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue")
            .field("leg", &self.leg)
            .field("waiting", &self.len())
            .finish_non_exhaustive()
    }
}

/// How often a head leaves places that are ready before one of its policy is admitted.
const MOST_MOVES: u32 = 4;

/// Places are kept at least so long for a hand-over.
const KEPT: Duration = Duration::from_millis(100);

/// The place of one policy in the queues of waiters of its legs: the same age in all of them. See the [module](crate::sync).
///
/// Only the thread that drives the policy's queue changes it.
pub struct Place {
    waker: Waker,
    id: u64,
    // Zero before it has joined a queue. Relaxed: written and read by the thread that drives, which a lock of the policy hands on;
    // judgements of other threads take it as a hint.
    age: AtomicU64,
    head: Mutex<HeadOfPlace>,
}

#[derive(Default)]
struct HeadOfPlace {
    // The address of the queue that it joined last, and whether it keeps its place there when it leaves the others.
    newest: usize,
    keeps_newest: bool,
    // How often it has left places.
    moves: u32,
    began: Instant,
    // When it joined the latest queue.
    joined: Instant,
    // What it waits for where it has joined, as of the latest look.
    here: Option<Wait>,
    // The longest wait, in nanoseconds, that a rate where it stands has told it as the first.
    rate: Option<u64>,
    // As of the latest look, a leg refuses that must hand over, and whose queue it has not joined.
    handed: bool,
    // The longest wait for places that it has left.
    longest: u64,
    // Until when it keeps places while it waits for a hand-over.
    until: Option<Instant>,
}

impl Place {
    /// A place that is in no queue yet. `waker` is woken when its head is to look again.
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            waker,
            id: new_age(),
            age: AtomicU64::new(0),
            head: Mutex::new(HeadOfPlace::default()),
        }
    }

    /// A number that no other place of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Wakes the thread that drives the policy.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// True when the head has joined a queue: a limiter that passes it on to one of several others must remember to which.
    pub fn has_joined(&self) -> bool {
        self.age().is_some()
    }

    /// True while the head leaves all queues but the one that it joined last.
    pub fn keeps_one(&self) -> bool {
        self.head.lock().keeps_newest
    }

    /// The age of the head in all queues; `None` before it has joined one.
    pub(crate) fn age(&self) -> Option<u64> {
        Some(self.age.load(Ordering::Relaxed)).filter(|&age| age != 0)
    }

    /// The age with which it joins `queue`, which is then the newest.
    pub(crate) fn join<Q>(&self, queue: &Q) -> u64 {
        self.head.lock().newest = address(queue);
        self.age().unwrap_or_else(|| {
            let age = new_age();
            self.age.store(age, Ordering::Relaxed);
            age
        })
    }

    /// The age with which it leaves `queue`; `None` where it has none, or is to keep its place there.
    pub(crate) fn leaves<Q>(&self, queue: &Q) -> Option<u64> {
        let head = self.head.lock();
        let keeps = head.keeps_newest && head.newest == address(queue);
        self.age().filter(|_| !keeps)
    }

    /// The head has joined here and is refused: it is to wait so long.
    pub(crate) fn waits_here(&self, wait: Wait) {
        let mut head = self.head.lock();
        head.here = Some(head.here.map_or(wait, |others| others.and(wait)));
        let told = if let Wait::Until { nanos, .. } = wait { nanos } else { 0 };
        head.rate = head.rate.max(Some(told));
    }

    /// A leg that hands over refuses the head, which `has_joined` its queue or has not.
    pub(crate) fn waits_for_hand_over(&self, has_joined: bool) {
        let mut head = self.head.lock();
        match has_joined {
            true => head.here = Some(head.here.map_or(Wait::EVENT, |others| others.and(Wait::EVENT))),
            false => head.handed = true,
        }
    }

    /// Runs `look` at legs of which one is enough: the head waits for the shortest of their waits, and for none if one is ready.
    pub(crate) fn for_either(&self, look: impl FnOnce(&mut dyn FnMut()) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let before = self.head.lock().here.take();
        let mut shortest: Option<Wait> = None;
        let mut next = || {
            let own = self.head.lock().here.take();
            shortest = [shortest, own].into_iter().flatten().reduce(Wait::or);
        };
        let result = look(&mut next);
        let own = shortest.filter(|_| result.is_err());
        let mut head = self.head.lock();
        head.here = [before, own].into_iter().flatten().reduce(Wait::and);
        result
    }

    /// Runs `look` at a leg that stops to apply at `ends`: there the head waits no longer than that.
    pub(crate) fn at_most_until(&self, ends: Wait, look: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
        self.for_either(|next| {
            let result = look();
            let waits = self.head.lock().here.is_some();
            next();
            if waits {
                self.head.lock().here = Some(ends);
                next();
            }
            result
        })
    }

    /// Before a look at all legs.
    pub(crate) fn begin_look(&self) {
        let mut head = self.head.lock();
        (head.here, head.handed) = (None, false);
    }

    /// What it waits for where it has joined; `None` when it is ready in all of its places.
    pub(crate) fn waits(&self) -> Option<Wait> {
        self.head.lock().here
    }

    /// The head is ready in all places, and is about to join a leg that refuses it for `wait`. True when it is to leave its places: the
    /// wait is longer than the longest wait for one of them, and it has not left places [`MOST_MOVES`] times.
    pub(crate) fn moves_on(&self, wait: Wait, now: Instant, clock: &Clock) -> bool {
        let mut head = self.head.lock();
        if self.age().is_none() {
            *head = HeadOfPlace {
                began: now,
                joined: now,
                handed: head.handed,
                ..HeadOfPlace::default()
            };
            return false;
        }
        let stood = u64::try_from(clock.between(head.joined, now).as_nanos()).unwrap_or(u64::MAX);
        let own = head.rate.unwrap_or(stood);
        let keeps = match wait {
            // A hand-over cannot be foretold: never beside a rate, otherwise where the wait was the longest.
            _ if head.handed => head.rate.is_none() && head.moves > 0 && stood >= head.longest / 2,
            Wait::Until { nanos, .. } | Wait::Event { nanos, .. } => nanos <= own,
            Wait::Never => true,
        };
        if keeps || head.moves == MOST_MOVES {
            // The holder that is to hand over may itself wait for what is kept here.
            let age = now.ticks_since(head.began).saturating_mul(2).max(clock.ticks_of(KEPT));
            head.until = head.handed.then(|| now.after_ticks(age));
            head.joined = now;
            return false;
        }
        (head.moves, head.longest, head.rate) = (head.moves + 1, head.longest.max(own), None);
        (head.joined, head.until) = (now, None);
        true
    }

    /// Until when it keeps places while it waits for a hand-over.
    pub(crate) fn keeps_until(&self) -> Option<Instant> {
        self.head.lock().until
    }

    /// It has kept places for long enough, and is to leave them.
    pub(crate) fn gives_up(&self, now: Instant) -> bool {
        let mut head = self.head.lock();
        let over = head.until.is_some_and(|until| until <= now);
        if over {
            (head.until, head.rate) = (None, None);
        }
        over
    }

    /// Has `leave` leave all queues but the one that it joined last.
    pub(crate) fn leave_others(&self, leave: impl FnOnce()) {
        self.head.lock().keeps_newest = true;
        crate::sync::unwind::both(leave, || self.head.lock().keeps_newest = false);
    }

    /// It has left all queues: the next head joins behind all that wait.
    pub(crate) fn end(&self) {
        self.head.lock().until = None;
        self.age.store(0, Ordering::Relaxed);
    }
}

fn address<Q>(queue: &Q) -> usize {
    std::ptr::from_ref(queue).addr()
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("age", &self.age())
            .field("waits", &self.waits())
            .finish_non_exhaustive()
    }
}
