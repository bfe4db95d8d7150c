//! Waits of tasks for other tasks: finds the task that a thread runs, and refuses waits that cannot end.
//!
//! A waiting task keeps the permits of its pool's policy, and the tasks that wait for it keep theirs. If a task that
//! holds `a` waits for one that needs `b`, there is an edge from `a` to `b` for the duration of the wait. A deadlock is
//! a cycle of such edges, and a wait that would close a cycle is refused. The end of a task counts as a permit as well,
//! held by the task and by the tasks below it. A task that waits for a task of its own needs no such edge: the walk up
//! from the awaited task finds its permits.
//!
//! A task has a waiter as long as there is a handle, because the handle's owner may wait at any time. The waiter is the
//! submitter, or the task that has waited since. So the refusal of a wait for permits does not depend on timing.
//!
//! A task on a thread is in the graph only while it holds permits; otherwise its submitter represents it. So the graph
//! misses cycles of threads that wait for each other's ends.

use super::entry::Entry;
use super::scheduler::{Engine, Kind};
use crate::core::limiter::Limiter;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
// Not the models' atomics, which switch threads: these are used under a lock unknown to the models.
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A pool whose tasks lend their slots.
pub(in crate::pool) trait Lends: Send + Sync {
    /// Lends the slot of a task that awaits one more handle. Returns false, and lends nothing, if that would leave no thread for the awaited
    /// tasks.
    fn lend(self: Arc<Self>, slot: &Slot) -> bool;
    /// Takes the slot back, if its task awaits no other handle.
    fn take_back(self: Arc<Self>, slot: &Slot);
}

/// The slot on which a thread runs its tasks. A task lends the slot while it awaits a handle.
pub(in crate::pool) struct Slot {
    /// `None`: the pool's tasks borrow, and lend the slot only while they wait for each other.
    pool: Option<Weak<dyn Lends>>,
    /// The number of handles that the task awaits, with the flags `ENDED` and `LENT`. Written under the lock of the
    /// pool. The worker reads it without the lock: its own writes are the last that add, and a thread that subtracts
    /// meanwhile has the lock before the worker.
    lent: AtomicUsize,
}

/// The task has ended, with awaited handles left.
const ENDED: usize = 1 << (usize::BITS - 1);
/// The slot has been lent since the worker last looked.
const LENT: usize = 1 << (usize::BITS - 2);

impl Slot {
    pub(in crate::pool) fn of(pool: Option<Weak<dyn Lends>>) -> Arc<Self> {
        let lent = AtomicUsize::new(0);
        Arc::new(Self { pool, lent })
    }

    /// Returns the pool that counts the slot as lent while the task awaits a handle of `home`.
    fn lender<H: Lends>(&self, home: &Arc<H>, is_own: bool) -> Option<Lender<H>> {
        match &self.pool {
            Some(pool) => pool.upgrade().map(Lender::Any),
            None => is_own.then(|| Lender::Own(Arc::clone(home))),
        }
    }

    // Relaxed, here and below: see `lent`.

    /// Adds a handle. Called under the lock of the pool. Returns true for the first handle.
    pub(super) fn adds(&self) -> bool {
        let before = self.lent.load(Ordering::Relaxed);
        self.lent.store((before + 1) | LENT, Ordering::Relaxed);
        before & !LENT == 0
    }

    /// Removes a handle. Called under the lock of the pool. Returns true for the last handle of a task that has not
    /// ended.
    pub(super) fn removes(&self) -> bool {
        let left = self.lent.load(Ordering::Relaxed) - 1;
        self.lent.store(left, Ordering::Relaxed);
        left & !LENT == 0
    }

    /// Marks the task as ended. Called under the lock of the pool. Returns true if handles are left.
    pub(in crate::pool) fn ends(&self) -> bool {
        let before = self.lent.load(Ordering::Relaxed) & !LENT;
        self.lent.store(before | ENDED, Ordering::Relaxed);
        before > 0
    }

    /// Returns true if the task has lent the slot.
    #[inline]
    pub(in crate::pool) fn was_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed) != 0
    }
}

/// The pool that counts a slot as lent.
enum Lender<H> {
    Any(Arc<dyn Lends>),
    /// The pool of the handle.
    Own(Arc<H>),
}

impl<H: Lends> Lender<H> {
    fn lend(&self, slot: &Slot) -> bool {
        match self {
            Self::Any(pool) => Arc::clone(pool).lend(slot),
            Self::Own(pool) => Arc::clone(pool).lend(slot),
        }
    }

    fn take_back(self, slot: &Slot) {
        match self {
            Self::Any(pool) => pool.take_back(slot),
            Self::Own(pool) => pool.take_back(slot),
        }
    }
}

/// A task, as waits see it.
pub(in crate::pool) trait Task: Send + Sync {
    fn record(&self) -> &Record;
}

/// The permits that a task holds.
pub(in crate::pool) type Held = Arc<[PermitsId]>;

/// The identity of permits: the address of their owner, which several legs may share. Valid as long as the owner is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PermitsId(usize);

impl PermitsId {
    /// Adds the permits that an admission by `limiter` holds until its work ends.
    pub(in crate::pool) fn each_of(limiter: &impl Limiter, held: &mut Vec<Self>) {
        limiter.describe(&mut |leg| held.extend(leg.permits_of.map(Self)));
    }

    #[cfg(test)]
    fn of(limiter: &impl Limiter) -> Self {
        let mut held = Vec::new();
        Self::each_of(limiter, &mut held);
        held[0]
    }
}

#[derive(Default)]
pub(in crate::pool) struct Record {
    /// The permits that the task holds.
    held: OnceLock<Held>,
    /// The task that waits for this one, or may. Under the lock of `WAITS`, it is set to a task other than the
    /// submitter, and followed.
    waiter: parking_lot::Mutex<Option<Arc<dyn Task>>>,
    /// True if a task other than the submitter has waited for this one.
    moved: AtomicBool,
    /// The number of handles that the task has polled, that were not ready, and that are not dropped since.
    awaits: AtomicUsize,
    /// True once the task holds nothing.
    ended: AtomicBool,
    /// The task's number in the graph of waits.
    number: OnceLock<u64>,
}

/// The record by itself: of a task on a thread that holds permits, or whose submitter does.
impl Task for Record {
    fn record(&self) -> &Record {
        self
    }
}

impl Record {
    /// Makes the record of a task. `waiter` waits for the task, or may.
    pub(in crate::pool) fn of(waiter: Option<Arc<dyn Task>>) -> Self {
        Self {
            waiter: parking_lot::Mutex::new(waiter),
            ..Self::default()
        }
    }

    /// Sets the permits that the admitted task holds until it ends.
    pub(in crate::pool) fn holds(&self, held: Held) {
        let _ = self.held.set(held);
    }

    /// Returns true while the task awaits a handle that was not ready.
    #[cfg(feature = "tokio")]
    pub(in crate::pool) fn awaits(&self) -> bool {
        // Relaxed: the task's own polls write it. If a handle is dropped elsewhere, a stale value lends the slot until
        // the task is woken.
        self.awaits.load(Ordering::Relaxed) > 0
    }

    /// Marks the permits as given back.
    pub(in crate::pool) fn end(&self) {
        // Release: pairs with the loads in `judged` and `held_above`.
        self.ended.store(true, Ordering::Release);
    }

    /// Cuts the link to the waiter: no task will wait for this one.
    pub(in crate::pool) fn cut(&self) {
        let waiter = self.waiter.lock().take();
        drop(waiter);
    }

    fn number(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the number must only be unique.
        *self.number.get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

crate::sync::shim::thread_local! {
    /// The tasks that this thread runs, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static CURRENT: RefCell<Vec<Frame>> = RefCell::new(Vec::new());
}

/// A task or worker on the stack of a thread.
struct Frame {
    pool: PoolId,
    /// The task, as waits see it. For a task on a thread: the permit holder, which is the task or its waiter.
    task: Option<Arc<dyn Task>>,
    /// The slot of a thread, which its task lends.
    slot: Option<Arc<Slot>>,
    /// The number of tasks that run nested in another on this frame. `None`: the thread is not a pool's.
    inlined: Option<usize>,
}

/// The identity of a pool: its address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) struct PoolId(usize);

impl PoolId {
    /// The identity for a task that runs outside its pool and outside any task.
    const NONE: Self = Self(0);

    pub(in crate::pool) fn of<H: Lends>(home: &H) -> Self {
        Self(std::ptr::from_ref(home).addr())
    }
}

fn with_last<T>(look: impl FnOnce(&mut Frame) -> T) -> Option<T> {
    CURRENT
        .try_with(|stack| stack.borrow_mut().last_mut().map(look))
        .ok()
        .flatten()
}

/// Returns the task that this thread runs.
#[inline]
pub(in crate::pool) fn current() -> Option<Arc<dyn Task>> {
    with_last(|frame| frame.task.clone()).flatten()
}

/// Returns true in a task of this pool.
pub(in crate::pool) fn is_inside<H: Lends>(home: &H) -> bool {
    let home = PoolId::of(home);
    CURRENT
        .try_with(|stack| stack.borrow().iter().any(|frame| frame.pool == home))
        .unwrap_or(false)
}

/// Marks this thread as running a task, or the tasks of a pool, until dropped.
pub(in crate::pool) struct Inside(End);

/// The end of the stack of frames at which one is.
#[derive(Clone, Copy)]
enum End {
    Innermost,
    Outermost,
}

impl Inside {
    #[cfg(feature = "tokio")]
    pub(in crate::pool) fn enter(task: Arc<dyn Task>, pool: PoolId) -> Self {
        Self::at(End::Innermost, pool, Some(task), None)
    }

    /// Enters a task that runs outside its pool, in place of the task that this thread runs, if any. `task` is its place among the waits.
    pub(in crate::pool) fn enter_aside(task: Option<Arc<dyn Task>>) -> Self {
        let known = with_last(|frame| (frame.pool, frame.slot.clone()));
        let (pool, slot) = known.unwrap_or((PoolId::NONE, None));
        Self::at(End::Innermost, pool, task, slot)
    }

    /// Enters the dropping of tasks that will not start: their drops wait without a slot. Returns `None` on threads
    /// outside pools.
    pub(in crate::pool) fn aside() -> Option<Self> {
        let (pool, inlined) = with_last(|frame| (frame.pool, frame.inlined))?;
        inlined?;
        let inside = Self::at(End::Innermost, pool, None, None);
        with_last(|frame| frame.inlined = inlined);
        Some(inside)
    }

    /// Enters a worker of the pool, on its slot.
    pub(in crate::pool) fn work(pool: PoolId, slot: Arc<Slot>) -> Self {
        Self::at(End::Innermost, pool, None, Some(slot))
    }

    /// Enters the drop of a refused task of the pool. The task counts as unfinished meanwhile, so a wait for the pool's
    /// idleness or end would wait for itself. Other waits stay those of the thread's own task.
    pub(in crate::pool) fn drops<H: Lends>(home: &H) -> Self {
        Self::at(End::Outermost, PoolId::of(home), None, None)
    }

    fn at(end: End, pool: PoolId, task: Option<Arc<dyn Task>>, slot: Option<Arc<Slot>>) -> Self {
        let frame = Frame {
            pool,
            task,
            inlined: slot.as_ref().map(|_| 0),
            slot,
        };
        let _ = CURRENT.try_with(|stack| {
            let mut stack = stack.borrow_mut();
            match end {
                End::Innermost => stack.push(frame),
                End::Outermost => stack.insert(0, frame),
            }
        });
        Self(end)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let frame = CURRENT.try_with(|stack| {
            let mut stack = stack.borrow_mut();
            match self.0 {
                End::Innermost => stack.pop(),
                End::Outermost => Some(stack.remove(0)),
            }
        });
        drop(frame);
    }
}

/// Gives the worker this slot.
pub(in crate::pool) fn work_on(slot: Arc<Slot>) {
    let old = with_last(|frame| frame.slot.replace(slot));
    drop(old);
}

/// Replaces the worker's task by a holder of its permits, until dropped.
pub(in crate::pool) struct Under(Option<Arc<dyn Task>>);

impl Under {
    pub(in crate::pool) fn enter(holder: Arc<dyn Task>) -> Self {
        Self(with_last(|frame| frame.task.replace(holder)).flatten())
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        let outer = self.0.take();
        let old = with_last(|frame| std::mem::replace(&mut frame.task, outer));
        drop(old);
    }
}

/// Counts a task that a worker runs nested in a task that waits for it, until dropped.
pub(in crate::pool) struct Inlined(());

/// The most tasks that a worker runs nested, beside the one that it has started.
const INLINED: usize = 16;

impl Inlined {
    /// Returns `None` if this thread runs no task of `home`, or too many nested ones.
    pub(in crate::pool) fn enter<H: Lends>(home: &H) -> Option<Self> {
        let home = PoolId::of(home);
        with_last(|frame| {
            let inlined = frame.inlined.as_mut().filter(|inlined| **inlined < INLINED)?;
            let enters = frame.pool == home;
            *inlined += usize::from(enters);
            enters.then(|| Self(()))
        })?
    }
}

impl Drop for Inlined {
    fn drop(&mut self) {
        with_last(|frame| frame.inlined = frame.inlined.map(|inlined| inlined - 1));
    }
}

/// A permit that a wait needs, or that a waiting task holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    /// The end of the task with this number. Sorts before the others, for `LEAST`.
    EndOf(u64),
    Permits(PermitsId),
}

impl Node {
    const LEAST: Self = Self::EndOf(0);
}

/// The start of the edge, its end, and the number of the wait.
type Edge = (Node, Node, u64);

/// All edges, each with the waiting task.
type Edges = BTreeMap<Edge, Arc<dyn Task>>;

/// Not a lock of the models: under it, only the waiters of tasks are locked.
static WAITS: parking_lot::Mutex<Edges> = parking_lot::Mutex::new(BTreeMap::new());

/// The waiting side of a wait: this thread's task and slot.
pub(in crate::pool) struct Waiter {
    task: Option<Arc<dyn Task>>,
    /// The slot of a task on a thread, and whether the task belongs to the pool of the task that it awaits.
    slot: Option<(Arc<Slot>, bool)>,
}

impl Waiter {
    /// Returns true if neither the thread's task nor a task that waits for it holds permits.
    pub(in crate::pool) fn holds_nothing(&self) -> bool {
        self.task.is_none()
    }

    /// Returns `None` if this thread runs no task.
    pub(in crate::pool) fn current<H: Lends>(home: &H) -> Option<Self> {
        let home = PoolId::of(home);
        with_last(|frame| Self {
            task: frame.task.clone(),
            slot: frame.slot.as_ref().map(|slot| (Arc::clone(slot), frame.pool == home)),
        })
    }
}

/// A wait of one task for another, through a handle.
pub(in crate::pool) struct Wait<K: Kind> {
    waiter: Waiter,
    edges: Vec<Edge>,
    /// The number of the queued task in the list of awaited ones. The waiter's slot is lent while this is set.
    listed: Option<(Arc<Engine<K>>, Option<u64>)>,
    lender: Option<Lender<Engine<K>>>,
}

impl<K: Kind> Wait<K> {
    /// Begins a wait for a task of `home`, whose handle the waiter polls. `task` is the record of the awaited task, if it
    /// has one. Returns `None` if the wait may never end.
    pub(in crate::pool) fn begin(waiter: Waiter, task: Option<&Record>, home: &Engine<K>) -> Option<Self> {
        let edges = match &waiter.task {
            Some(by) => judged(by, task, home)?,
            None => Vec::new(),
        };
        Some(Self {
            waiter,
            edges,
            listed: None,
            lender: None,
        })
    }

    pub(in crate::pool) fn is_by(&self, waiter: &Waiter) -> bool {
        let task = |waiter: &Waiter| waiter.task.as_ref().map(|task| Arc::as_ptr(task).cast::<()>());
        let slot = |waiter: &Waiter| waiter.slot.as_ref().map(|(slot, _)| Arc::as_ptr(slot));
        task(&self.waiter) == task(waiter) && slot(&self.waiter) == slot(waiter)
    }

    /// Lends the waiter's slot and lists the task as awaited, because the task was not ready. Returns false, and lends
    /// nothing, if the waiter cannot wait.
    pub(in crate::pool) fn list(&mut self, home: &Arc<Engine<K>>, entry: impl FnOnce() -> Option<Entry<K>>) -> bool {
        if self.listed.is_some() {
            return true;
        }
        if let Some((slot, is_own)) = &self.waiter.slot {
            self.lender = slot.lender(home, *is_own);
            if self.lender.as_ref().is_some_and(|lender| !lender.lend(slot)) {
                return false;
            }
        } else if let Some(record) = self.record() {
            // Relaxed: see `awaits`.
            record.awaits.fetch_add(1, Ordering::Relaxed);
        }
        self.listed = Some((Arc::clone(home), home.await_it(entry())));
        true
    }

    fn record(&self) -> Option<&Record> {
        self.waiter.task.as_ref().map(|task| task.record())
    }
}

impl<K: Kind> Drop for Wait<K> {
    fn drop(&mut self) {
        if let Some((home, awaited)) = self.listed.take() {
            if let Some((slot, _)) = &self.waiter.slot {
                if let Some(lender) = self.lender.take() {
                    lender.take_back(slot);
                }
            } else if let Some(record) = self.record() {
                // Relaxed: see `awaits`.
                record.awaits.fetch_sub(1, Ordering::Relaxed);
            }
            home.await_no_more(awaited);
        }
        if !self.edges.is_empty() {
            let mut waits = WAITS.lock();
            for edge in &self.edges {
                // Never the last reference to the task: this wait holds one more.
                waits.remove(edge);
            }
        }
    }
}

/// Returns the edges of a wait for a task of `home`, or `None` if one would close a cycle.
fn judged<K: Kind>(waiter: &Arc<dyn Task>, task: Option<&Record>, home: &Engine<K>) -> Option<Vec<Edge>> {
    // `held` asks the policy, so it is called outside the lock.
    let held = home.held();
    let mut needed: Vec<_> = held.iter().copied().map(Node::Permits).collect();
    if let Some(record) = task {
        // Relaxed, and `is_own` stays as it is: only the handle changes both, and the waiter has the handle. The walk
        // from below could not find another waiter's permits before that waiter waited, so each of its waits is judged.
        let is_own = !record.moved.load(Ordering::Relaxed)
            && record
                .waiter
                .lock()
                .as_ref()
                .is_some_and(|known| is_same(known, waiter));
        // Acquire: pairs with the store in `end`.
        if !is_own && !record.ended.load(Ordering::Acquire) {
            needed.push(Node::EndOf(record.number()));
        }
    }
    if needed.is_empty() {
        return Some(Vec::new());
    }
    edges(waiter, task, &needed)
}

fn is_same(one: &Arc<dyn Task>, other: &Arc<dyn Task>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Returns the permits held by the task, by its waiter, by the waiter's waiter, and so on. A task that has ended holds
/// none. Adds all these tasks to `seen`, which the caller drops after the lock.
fn held_above(task: &Arc<dyn Task>, seen: &mut Vec<Arc<dyn Task>>) -> BTreeSet<Node> {
    let (mut held, mut next) = (BTreeSet::new(), Some(Arc::clone(task)));
    while let Some(task) = next.take() {
        let record = task.record();
        // Acquire: pairs with the store in `end`.
        if !record.ended.load(Ordering::Acquire) {
            if !held.insert(Node::EndOf(record.number())) {
                // The handle of a task above has moved to a task below.
                break;
            }
            let permits = record.held.get().into_iter().flat_map(|held| held.iter());
            held.extend(permits.copied().map(Node::Permits));
            next = record.waiter.lock().clone();
        }
        seen.push(task);
    }
    held
}

/// Records the edges of a wait for `task`, and makes the waiter its waiter. Returns `None`, and records nothing, if an
/// edge would close a cycle.
fn edges(waiter: &Arc<dyn Task>, task: Option<&Record>, needed: &[Node]) -> Option<Vec<Edge>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Dropped after the lock: the last reference to a task drops user values.
    let (mut seen, mut old) = (Vec::new(), None);
    let noted = {
        let mut waits = WAITS.lock();
        let held = held_above(waiter, &mut seen);
        let closes_cycle = reaches(&waits, needed, &held, &mut seen);
        (!closes_cycle).then(|| {
            let is_known = |record: &Record| {
                let known = record.waiter.lock();
                known.as_ref().is_some_and(|known| is_same(known, waiter))
            };
            if let Some(record) = task.filter(|record| !is_known(record)) {
                old = record.waiter.lock().replace(Arc::clone(waiter));
                // Relaxed: see `judged`.
                record.moved.store(true, Ordering::Relaxed);
            }
            // Relaxed: the number must only be unique.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let edge = |from: Node| needed.iter().map(move |&to| (from, to, number));
            let new: Vec<_> = held.iter().flat_map(|&from| edge(from)).collect();
            waits.extend(new.iter().map(|&edge| (edge, Arc::clone(waiter))));
            new
        })
    };
    drop((seen, old));
    noted
}

/// Returns true if one of `needed` waits, directly or through others, for one of `held`. An edge counts while its
/// waiting task has not ended, and while that task or one that waits for it holds the edge's start.
fn reaches(waits: &Edges, needed: &[Node], held: &BTreeSet<Node>, seen: &mut Vec<Arc<dyn Task>>) -> bool {
    let (mut reached, mut next) = (BTreeSet::new(), needed.to_vec());
    while let Some(at) = next.pop() {
        if held.contains(&at) {
            return true;
        }
        if !reached.insert(at) {
            continue;
        }
        let from_here = waits
            .range((at, Node::LEAST, 0)..)
            .take_while(|((from, ..), _)| *from == at);
        for (&(_, to, _), waiter) in from_here {
            if held_above(waiter, seen).contains(&at) {
                next.push(to);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Semaphore;
    use crate::pool::error::TaskError;
    use crate::pool::threads::pool::PoolBuilder;
    use std::task::{Poll, Waker};

    /// A pool that counts the loans. Not of size zero: its address is its identity.
    #[derive(Default)]
    struct Home(AtomicUsize);

    impl Lends for Home {
        fn lend(self: Arc<Self>, _: &Slot) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) == 0
        }
        fn take_back(self: Arc<Self>, _: &Slot) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_slot_is_lent_from_the_first_awaited_handle_to_the_last() {
        let slot = Slot::of(None);
        assert!(!slot.was_lent() && !slot.ends());
        let slot = Slot::of(None);
        assert!(slot.adds() && !slot.adds() && slot.was_lent());
        assert!(!slot.removes() && slot.removes());
        assert!(slot.was_lent(), "the worker has not looked since");
        assert!(!slot.ends(), "no handle is left");
        let slot = Slot::of(None);
        assert!(slot.adds() && slot.ends());
        assert!(!slot.removes(), "the task has ended");
    }

    #[test]
    fn a_slot_without_a_pool_is_lent_to_tasks_of_its_own_pool_alone() {
        let home = Arc::new(Home::default());
        assert!(Slot::of(None).lender(&home, false).is_none());
        assert!(matches!(Slot::of(None).lender(&home, true), Some(Lender::Own(_))));
        let slot = Slot::of(Some(Arc::downgrade(&home) as _));
        assert!(matches!(slot.lender(&home, false), Some(Lender::Any(_))));
        for slot in [&slot, &Slot::of(None)] {
            let lender = || slot.lender(&home, true).unwrap();
            assert!(lender().lend(slot) && !lender().lend(slot));
            lender().take_back(slot);
            lender().take_back(slot);
        }
        drop(home);
        assert!(
            slot.lender(&Arc::new(Home::default()), true).is_none(),
            "the pool is gone"
        );
    }

    #[test]
    fn a_thread_knows_the_pools_in_whose_tasks_it_is() {
        let (home, other, slot) = (Home::default(), Home::default(), Slot::of(None));
        assert!(!is_inside(&home) && Waiter::current(&home).is_none() && Inside::aside().is_none());
        let outer = Inside::work(PoolId::of(&home), Arc::clone(&slot));
        let waiter = Waiter::current(&home).unwrap();
        assert!(is_inside(&home) && !is_inside(&other) && waiter.holds_nothing());
        assert!(
            waiter
                .slot
                .is_some_and(|(known, is_own)| Arc::ptr_eq(&known, &slot) && is_own)
        );
        assert!(Waiter::current(&other).unwrap().slot.is_some_and(|(_, is_own)| !is_own));
        let inner = Inside::work(PoolId::of(&other), Slot::of(None));
        assert!(is_inside(&home) && is_inside(&other));
        drop(inner);
        let aside = Inside::aside().unwrap();
        assert!(is_inside(&home) && Waiter::current(&home).unwrap().slot.is_none());
        drop(aside);
        work_on(Slot::of(None));
        let changed = Waiter::current(&home).unwrap().slot.unwrap().0;
        assert!(!Arc::ptr_eq(&changed, &slot));
        drop(outer);
        let drops = Inside::drops(&home);
        assert!(is_inside(&home));
        drop(drops);
        assert!(!is_inside(&home));
    }

    #[test]
    fn tasks_are_run_nested_to_a_bound_and_in_their_own_pool_alone() {
        let (home, other) = (Home::default(), Home::default());
        assert!(Inlined::enter(&home).is_none());
        let _inside = Inside::work(PoolId::of(&home), Slot::of(None));
        assert!(Inlined::enter(&other).is_none());
        let mut nested: Vec<_> = (0..INLINED).map(|_| Inlined::enter(&home).unwrap()).collect();
        assert!(Inlined::enter(&home).is_none());
        let aside = Inside::aside();
        assert!(
            aside.is_some() && Inlined::enter(&home).is_none(),
            "the bound holds for drops as well"
        );
        drop(aside);
        nested.truncate(INLINED - 2);
        assert!(Inlined::enter(&home).is_some());
        nested.extend([(); 2].map(|()| Inlined::enter(&home).unwrap()));
        assert!(Inlined::enter(&home).is_none());
    }

    fn holder(queue: Option<PermitsId>, waiter: Option<&Arc<Record>>) -> Arc<Record> {
        let record = Record::of(waiter.map(|waiter| Arc::clone(waiter) as _));
        record.holds(queue.into_iter().collect());
        Arc::new(record)
    }

    fn judge(waiter: &Arc<Record>, task: Option<&Record>, queue: PermitsId) -> Option<Vec<Edge>> {
        edges(&(Arc::clone(waiter) as _), task, &[Node::Permits(queue)])
    }

    fn forget(edges: &[Edge]) {
        let mut waits = WAITS.lock();
        edges.iter().for_each(|edge| drop(waits.remove(edge)));
    }

    #[test]
    fn a_holder_is_restored_when_the_task_below_it_has_ended() {
        let home = Home::default();
        let _inside = Inside::work(PoolId::of(&home), Slot::of(None));
        let [outer, inner] = [(); 2].map(|()| holder(None, None) as Arc<dyn Task>);
        let is_current = |task: &Arc<dyn Task>| current().is_some_and(|now| is_same(&now, task));
        let above = Under::enter(Arc::clone(&outer));
        assert!(is_current(&outer) && !Waiter::current(&home).unwrap().holds_nothing());
        let below = Under::enter(Arc::clone(&inner));
        assert!(is_current(&inner) && !is_current(&outer));
        drop(below);
        assert!(is_current(&outer));
        drop(above);
        assert!(current().is_none());
    }

    #[test]
    fn a_wait_that_closes_a_cycle_is_refused_until_one_of_the_waits_or_tasks_has_ended() {
        let queues = [(); 3].map(|()| Semaphore::new(1));
        let [a, b, c] = queues.each_ref().map(PermitsId::of);
        let [first, second, third] = [a, b, c].map(|queue| holder(Some(queue), None));
        assert!(judge(&first, None, a).is_none(), "it holds the permit itself");
        let one = judge(&first, None, b).unwrap();
        let two = judge(&second, None, c).unwrap();
        assert_eq!(one.len(), 2, "from its permit and from its end");
        assert!(judge(&third, None, a).is_none());
        assert!(judge(&third, None, b).is_none());
        forget(&two);
        let three = judge(&third, None, a).unwrap();
        assert!(judge(&second, None, c).is_none());
        first.end();
        let two = judge(&second, None, c).unwrap();
        [one, two, three].iter().for_each(|edges| forget(edges));
    }

    #[test]
    fn the_permits_of_all_tasks_above_count_and_a_wait_by_another_moves_a_task() {
        let queues = [(); 2].map(|()| Semaphore::new(1));
        let [a, b] = queues.each_ref().map(PermitsId::of);
        let top = holder(Some(a), None);
        let below = holder(None, Some(&top));
        let task = holder(Some(b), Some(&below));
        assert!(judge(&below, None, a).is_none() && judge(&task, None, a).is_none());
        let other = holder(None, None);
        let edges = judge(&other, Some(&task), b);
        assert!(edges.is_some() && task.moved.load(Ordering::Relaxed));
        assert!(is_same(task.waiter.lock().as_ref().unwrap(), &(other as _)));
        let again = judge(&task, None, a);
        assert!(again.is_some(), "the tasks above it are others now");
        [edges, again].into_iter().flatten().for_each(|edges| forget(&edges));
        below.cut();
        let edges = judge(&below, None, a).unwrap();
        forget(&edges);
    }

    /// A pool whose two workers have not started, and two of whose tasks run.
    fn pool_of(
        builder: PoolBuilder,
    ) -> (
        crate::WorkerPool,
        Arc<parking_lot::Mutex<Vec<crate::pool::WorkerThread<'static>>>>,
    ) {
        let workers = Arc::<parking_lot::Mutex<Vec<_>>>::default();
        let kept = Arc::clone(&workers);
        let builder = builder.workers(2).spawn_with(move |worker| {
            kept.lock().push(worker);
            Ok(())
        });
        let pool = builder.build().unwrap();
        pool.core()
            .transition(|state, _| (state.slots.start(), state.slots.start()));
        (pool, workers)
    }

    #[test]
    fn a_slot_is_lent_while_a_handle_is_polled_on_it_and_not_ready() {
        let (pool, workers) = pool_of(PoolBuilder::default());
        let core = pool.core();
        let slots = [(); 2].map(|()| Slot::of(core.kind.lends()));
        let mut handle = pool.submit(|| 7).unwrap();
        let lent = || {
            let state = core.look();
            (state.slots.parked, state.queue.awaited_len())
        };
        let mut polled = |slot: Option<&Arc<Slot>>| {
            let inside = slot.map(|slot| Inside::work(PoolId::of(&**core), Arc::clone(slot)));
            assert!(handle.poll_join(Waker::noop()).is_pending());
            drop(inside);
            lent()
        };
        assert_eq!([polled(Some(&slots[0])), polled(Some(&slots[0]))], [(1, 1); 2]);
        assert_eq!(polled(Some(&slots[1])), (1, 1));
        assert!(!slots[0].ends(), "the handle has moved to the other");
        assert_eq!(polled(None), (0, 0));
        assert_eq!(polled(Some(&slots[1])), (1, 1));
        drop(handle);
        assert_eq!(lent(), (0, 0));
        assert!(!slots[1].ends());
        drop(workers);
    }

    #[test]
    fn a_wait_is_in_the_graph_until_it_ends_and_is_refused_if_it_needs_what_its_task_holds() {
        let (inner, outer) = (Arc::new(Semaphore::new(2)), Semaphore::new(1));
        let (pool, workers) = pool_of(PoolBuilder::default().slots(Arc::clone(&inner)));
        let [needs, holds] = [&*inner, &outer].map(|slots| Node::Permits(PermitsId::of(slots)));
        let waits = || {
            let waits = WAITS.lock();
            waits
                .keys()
                .filter(|(from, to, _)| (*from, *to) == (holds, needs))
                .count()
        };
        let elsewhere = Home::default();
        let _inside = Inside::work(PoolId::of(&elsewhere), Slot::of(None));
        let mut handle = pool.submit(|| 7).unwrap();
        let under = Under::enter(holder(Some(PermitsId::of(&outer)), None) as _);
        assert!(handle.poll_join(Waker::noop()).is_pending() && waits() == 1);
        assert!(handle.poll_join(Waker::noop()).is_pending() && waits() == 1);
        drop(under);
        assert!(handle.poll_join(Waker::noop()).is_pending() && waits() == 0);
        let under = Under::enter(holder(Some(PermitsId::of(&*inner)), None) as _);
        let refused = handle.poll_join(Waker::noop());
        assert!(matches!(refused, Poll::Ready(Err(TaskError::WouldDeadlock))));
        drop((under, handle, workers));
        assert_eq!(waits(), 0);
    }
}
