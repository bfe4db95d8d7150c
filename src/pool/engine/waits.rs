//! Tasks that wait for tasks: which task this thread runs, and which waits cannot end.
//!
//! A task that waits keeps the permits of its pool's policy, and the tasks that wait for it keep theirs. Where one that holds `a`
//! waits for one that needs `b`, there is an edge from `a` to `b` for as long as the wait lasts. A deadlock is a cycle of such
//! edges; the wait that would close one is refused. The end of a task counts as a permit as well: the task holds it, and so do the
//! tasks below it. A task that waits for a task of its own needs no edge for that: what it holds is found from below.
//!
//! A task counts as one for which its submitter waits, or the task that has waited for it since, as long as there is a handle: it may
//! wait at any time. So whether a wait for permits is refused does not depend on timing.
//!
//! A task on a thread stands in the graph only while it holds permits: it counts as one that waits for its submitter's. So the graph
//! sees no cycle of threads that wait for each other's ends.

use crate::pool::error::TaskError;
use crate::sync::wait_queue::QueueId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
// Not those of the models, which change threads there: they are used under a lock that is none of theirs.
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A pool, as waits see it.
pub(in crate::pool) trait Home: Lends {
    /// A queued task, and that it is awaited.
    type Target;
    type Awaited;
    /// The permits that a task of it holds while it runs, as its policy has it now.
    fn held(&self) -> Held;
    /// A task awaits the queued task from now on.
    fn await_it(self: &Arc<Self>, target: Self::Target) -> Self::Awaited;
    fn await_no_more(self: &Arc<Self>, awaited: Self::Awaited);
}

/// A pool whose tasks lend their slots.
pub(in crate::pool) trait Lends: Send + Sync {
    /// The task on the slot, one of this pool, awaits one more handle. False, and it does not, when no thread would be left for the
    /// tasks that are awaited.
    fn lend(self: Arc<Self>, slot: &Slot) -> bool;
    /// One less.
    fn take_back(self: Arc<Self>, slot: &Slot);
    /// The task has ended.
    fn end(self: Arc<Self>, slot: &Slot);
}

/// What a thread runs its tasks on. The task lends it while it awaits a handle.
pub(in crate::pool) struct Slot {
    /// None: tasks of the pool borrow, and lend it while they wait for each other alone.
    pool: Option<Weak<dyn Lends>>,
    /// How many handles the task awaits, `ENDED`, and `LENT`. Written under the lock of the pool. The worker itself reads it without: it
    /// was the last to add to it, and what takes from it meanwhile has the lock before the worker.
    lent: AtomicUsize,
}

/// The task has ended, although there are such handles.
const ENDED: usize = 1 << (usize::BITS - 1);
/// It has been lent since the worker looked last.
const LENT: usize = 1 << (usize::BITS - 2);

impl Slot {
    pub(in crate::pool) fn of(pool: Option<Weak<dyn Lends>>) -> Arc<Self> {
        let lent = AtomicUsize::new(0);
        Arc::new(Self { pool, lent })
    }

    /// The pool that counts it as lent, where the task awaits a handle of `home`.
    fn lender<H: Home>(&self, home: &Arc<H>, is_own: bool) -> Lender<H> {
        match &self.pool {
            Some(pool) => pool.upgrade().map_or(Lender::None, Lender::Any),
            None if is_own => Lender::Own(Arc::clone(home)),
            None => Lender::None,
        }
    }

    // Relaxed, here and below: see `lent`.

    /// Under the lock of the pool. True when it is the first handle.
    pub(super) fn adds(&self) -> bool {
        let before = self.lent.load(Ordering::Relaxed);
        self.lent.store((before + 1) | LENT, Ordering::Relaxed);
        before & !LENT == 0
    }

    /// Under the lock of the pool. True when it was the last, of a task that has not ended.
    pub(super) fn removes(&self) -> bool {
        let left = self.lent.load(Ordering::Relaxed) - 1;
        self.lent.store(left, Ordering::Relaxed);
        left & !LENT == 0
    }

    /// Under the lock of the pool. True when handles are left.
    pub(super) fn ends(&self) -> bool {
        let before = self.lent.load(Ordering::Relaxed) & !LENT;
        self.lent.store(before | ENDED, Ordering::Relaxed);
        before > 0
    }

    /// True when the task has lent it.
    #[inline]
    pub(in crate::pool) fn was_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed) != 0
    }
}

/// The pool that counts a slot as lent.
enum Lender<H> {
    Any(Arc<dyn Lends>),
    /// That of the handle.
    Own(Arc<H>),
    None,
}

/// A task, as waits see it.
pub(in crate::pool) trait Task: Send + Sync {
    fn record(&self) -> &Record;
    /// Ends it, whether it has started or not: for this reason, if it has never been polled. False when it had ended, or cannot be
    /// ended.
    fn abort(&self, queued: TaskError) -> bool;
}

/// What permits are held: the queues that wait for them.
pub(in crate::pool) type Held = Arc<[QueueId]>;

#[derive(Default)]
pub(in crate::pool) struct Record {
    /// The permits that it holds.
    held: OnceLock<Held>,
    /// The task that waits for it, or may. Where it is changed for another than its submitter, or followed: under the lock of `WAITS`.
    waiter: parking_lot::Mutex<Option<Arc<dyn Task>>>,
    /// Another than its submitter has waited for it.
    moved: AtomicBool,
    /// How many handles it has polled that were not ready, and have not been dropped since.
    awaits: AtomicUsize,
    /// It holds nothing any more.
    ended: AtomicBool,
    /// Its number, once it stands in the graph of waits.
    number: OnceLock<u64>,
}

/// What a task on a thread is that holds permits.
pub(in crate::pool) struct Holder(Record);

impl Holder {
    /// `waiter` waits for the task, or may.
    pub(in crate::pool) fn of(held: Held, waiter: Option<Arc<dyn Task>>) -> Arc<Self> {
        let waiter = parking_lot::Mutex::new(waiter);
        let record = Record {
            waiter,
            ..Record::default()
        };
        record.holds(held);
        Arc::new(Self(record))
    }

    /// It has given back what it held, and keeps no other.
    pub(in crate::pool) fn end(&self) {
        self.0.end();
        self.0.cut();
    }
}

impl Task for Holder {
    fn record(&self) -> &Record {
        &self.0
    }

    fn abort(&self, _: TaskError) -> bool {
        false
    }
}

impl Record {
    /// Of a task that this thread submits.
    pub(in crate::pool) fn new() -> Self {
        Self {
            waiter: parking_lot::Mutex::new(current()),
            ..Self::default()
        }
    }

    /// It has been admitted, and holds these permits until it ends.
    pub(in crate::pool) fn holds(&self, held: Held) {
        let _ = self.held.set(held);
    }

    /// It awaits a handle that was not ready.
    pub(in crate::pool) fn awaits(&self) -> bool {
        // Relaxed: its own polls write it, but for a handle that is dropped elsewhere. Then it lends its slot until it is woken.
        self.awaits.load(Ordering::Relaxed) > 0
    }

    /// It has given back what it held.
    pub(in crate::pool) fn end(&self) {
        // Release: pairs with the loads in `judged` and `held_above`.
        self.ended.store(true, Ordering::Release);
    }

    /// No task will wait for it.
    pub(in crate::pool) fn cut(&self) {
        let waiter = self.waiter.lock().take();
        drop(waiter);
    }

    fn number(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: a number that no other has is all that is asked for.
        *self.number.get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

crate::sync::shim::thread_local! {
    /// The tasks that this thread runs, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static CURRENT: RefCell<Vec<Frame>> = RefCell::new(Vec::new());
}

/// What a thread runs.
struct Frame {
    pool: PoolId,
    /// The task as waits see it. Of a task on a thread: what holds permits, it or the task that waits for it.
    task: Option<Arc<dyn Task>>,
    /// The slot of a thread, which its task lends.
    slot: Option<Arc<Slot>>,
    /// How many tasks are run there inside of another. None: it is no thread of a pool.
    inlined: Option<usize>,
}

/// Which pool: where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) struct PoolId(usize);

impl PoolId {
    /// Of a task that is run outside its pool, and outside a task.
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

/// The task that this thread runs.
#[inline]
pub(in crate::pool) fn current() -> Option<Arc<dyn Task>> {
    with_last(|frame| frame.task.clone()).flatten()
}

/// True in a task of this pool.
pub(in crate::pool) fn is_inside<H: Lends>(home: &H) -> bool {
    let home = PoolId::of(home);
    CURRENT
        .try_with(|stack| stack.borrow().iter().any(|frame| frame.pool == home))
        .unwrap_or(false)
}

/// While it lives, this thread runs the task, or the tasks of a pool.
pub(in crate::pool) struct Inside(());

impl Inside {
    pub(in crate::pool) fn enter(task: Arc<dyn Task>, pool: PoolId) -> Self {
        Self::push(pool, Some(task), None)
    }

    /// A task that is run outside its pool, in place of the one that this thread runs, if any.
    pub(in crate::pool) fn enter_aside(task: Arc<dyn Task>) -> Self {
        let known = with_last(|frame| (frame.pool, frame.slot.clone()));
        let (pool, slot) = known.unwrap_or((PoolId::NONE, None));
        Self::push(pool, Some(task), slot)
    }

    /// A worker drops tasks that will not start: what they wait for has no slot of theirs. None on other threads.
    pub(in crate::pool) fn aside() -> Option<Self> {
        let (pool, inlined) = with_last(|frame| (frame.pool, frame.inlined))?;
        inlined?;
        let inside = Self::push(pool, None, None);
        with_last(|frame| frame.inlined = inlined);
        Some(inside)
    }

    /// A worker of the pool, on its slot.
    pub(in crate::pool) fn work(pool: PoolId, slot: Arc<Slot>) -> Self {
        Self::push(pool, None, Some(slot))
    }

    fn push(pool: PoolId, task: Option<Arc<dyn Task>>, slot: Option<Arc<Slot>>) -> Self {
        let frame = Frame {
            pool,
            task,
            inlined: slot.as_ref().map(|_| 0),
            slot,
        };
        let _ = CURRENT.try_with(|stack| stack.borrow_mut().push(frame));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let frame = CURRENT.try_with(|stack| stack.borrow_mut().pop());
        drop(frame);
    }
}

/// The worker has this slot from now on.
pub(in crate::pool) fn work_on(slot: Arc<Slot>) {
    let old = with_last(|frame| frame.slot.replace(slot));
    drop(old);
}

/// While it lives, this holds permits for the task that the worker runs.
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

/// While it lives, a worker runs a task inside of one that waits for it.
pub(in crate::pool) struct Inlined(());

/// How many tasks a worker runs inside of each other, at most, beside the one that it has started.
const INLINED: usize = 16;

impl Inlined {
    /// None when this thread does not run a task of `home`, or too many.
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

/// What a wait needs, or a task holds that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    /// The end of the task of this number. Before the others, for `LEAST`.
    EndOf(u64),
    Permits(QueueId),
}

impl Node {
    const LEAST: Self = Self::EndOf(0);
}

/// What it starts from, where it leads, and the number of the wait.
type Edge = (Node, Node, u64);

/// The edges that there are, each with the task that waits.
type Edges = BTreeMap<Edge, Arc<dyn Task>>;

/// Not a lock of the models: nothing else is locked under it but the waiters of tasks.
static WAITS: parking_lot::Mutex<Edges> = parking_lot::Mutex::new(BTreeMap::new());

/// What this thread runs that waits.
pub(in crate::pool) struct Waiter {
    task: Option<Arc<dyn Task>>,
    /// Of a task on a thread, and whether it is one of the pool whose task it awaits.
    slot: Option<(Arc<Slot>, bool)>,
}

impl Waiter {
    /// A thread whose task holds no permits, nor does one that waits for it.
    pub(in crate::pool) fn holds_nothing(&self) -> bool {
        self.task.is_none()
    }

    /// None when this thread runs no task.
    pub(in crate::pool) fn current<H: Lends>(home: &H) -> Option<Self> {
        let home = PoolId::of(home);
        with_last(|frame| Self {
            task: frame.task.clone(),
            slot: frame.slot.as_ref().map(|slot| (Arc::clone(slot), frame.pool == home)),
        })
    }
}

/// A task that waits for another, through a handle.
pub(in crate::pool) struct Wait<H: Home> {
    waiter: Waiter,
    edges: Vec<Edge>,
    /// The queued task is listed as awaited, and the slot of the waiter lent.
    listed: Option<(Arc<H>, H::Awaited)>,
    lender: Lender<H>,
}

impl<H: Home> Wait<H> {
    /// The waiter is about to wait for a task of `home`, whose handle it polls: for `task`, if that is in the graph. None when the wait
    /// may never end.
    pub(in crate::pool) fn begin(waiter: Waiter, task: Option<&dyn Task>, home: &H) -> Option<Self> {
        let edges = match &waiter.task {
            Some(by) => judged(by, task, home)?,
            None => Vec::new(),
        };
        Some(Self {
            waiter,
            edges,
            listed: None,
            lender: Lender::None,
        })
    }

    pub(in crate::pool) fn is_by(&self, waiter: &Waiter) -> bool {
        let same_task = match (&self.waiter.task, &waiter.task) {
            (Some(one), Some(other)) => is_same(one, other),
            (None, None) => true,
            _ => false,
        };
        let same_slot = match (&self.waiter.slot, &waiter.slot) {
            (Some((one, _)), Some((other, _))) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        same_task && same_slot
    }

    /// The task was not ready: the waiter lends its slot, and the task may have it. False, and it does not, when it cannot wait.
    pub(in crate::pool) fn list(&mut self, home: &Arc<H>, target: impl FnOnce() -> H::Target) -> bool {
        if self.listed.is_some() {
            return true;
        }
        if let Some((slot, is_own)) = &self.waiter.slot {
            self.lender = slot.lender(home, *is_own);
            let lends = match &self.lender {
                Lender::Any(pool) => Arc::clone(pool).lend(slot),
                Lender::Own(pool) => Arc::clone(pool).lend(slot),
                Lender::None => true,
            };
            if !lends {
                self.lender = Lender::None;
                return false;
            }
        } else if let Some(record) = self.record() {
            // Relaxed: see `awaits`.
            record.awaits.fetch_add(1, Ordering::Relaxed);
        }
        self.listed = Some((Arc::clone(home), home.await_it(target())));
        true
    }

    fn record(&self) -> Option<&Record> {
        self.waiter.task.as_ref().map(|task| task.record())
    }
}

impl<H: Home> Drop for Wait<H> {
    fn drop(&mut self) {
        if let Some((home, awaited)) = self.listed.take() {
            if let Some((slot, _)) = &self.waiter.slot {
                match std::mem::replace(&mut self.lender, Lender::None) {
                    Lender::Any(pool) => pool.take_back(slot),
                    Lender::Own(pool) => pool.take_back(slot),
                    Lender::None => {}
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
                // Not the last of the task: this wait has one more.
                waits.remove(edge);
            }
        }
    }
}

/// The edges of a wait for a task of `home`. None when one would close a cycle.
fn judged<H: Home>(waiter: &Arc<dyn Task>, task: Option<&dyn Task>, home: &H) -> Option<Vec<Edge>> {
    // Asks the policy: not under the lock.
    let held = home.held();
    let mut needed: Vec<_> = held.iter().copied().map(Node::Permits).collect();
    if let Some(record) = task.map(Task::record) {
        // Relaxed, and it stays so: the handle alone changes both, which the waiter has. What another holds that waits was not found
        // from below before it waited, so its waits are judged each time.
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

/// What the task holds, the one that waits for it, and so on. A task that has ended holds nothing. All of them go to `seen`, to be dropped
/// after the lock.
fn held_above(task: &Arc<dyn Task>, seen: &mut Vec<Arc<dyn Task>>) -> BTreeSet<Node> {
    let (mut held, mut next) = (BTreeSet::new(), Some(Arc::clone(task)));
    while let Some(task) = next.take() {
        let record = task.record();
        // Acquire: pairs with the store in `end`.
        if !record.ended.load(Ordering::Acquire) {
            if !held.insert(Node::EndOf(record.number())) {
                // A handle of a task above has come to one below.
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

/// Notes the edges of a wait for `task`, for which the waiter waits from now on. None, and nothing is noted, when one would close a
/// cycle.
fn edges(waiter: &Arc<dyn Task>, task: Option<&dyn Task>, needed: &[Node]) -> Option<Vec<Edge>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Dropped after the lock: the last of a task drops what is a user's.
    let (mut seen, mut old) = (Vec::new(), None);
    let noted = {
        let mut waits = WAITS.lock();
        let held = held_above(waiter, &mut seen);
        let closes_cycle = reaches(&waits, needed, &held, &mut seen) && !seeded!("engine_closes_cycles");
        (!closes_cycle).then(|| {
            if let Some(record) = task.map(Task::record)
                && !record
                    .waiter
                    .lock()
                    .as_ref()
                    .is_some_and(|known| is_same(known, waiter))
            {
                old = record.waiter.lock().replace(Arc::clone(waiter));
                // Relaxed: see `judged`.
                record.moved.store(true, Ordering::Relaxed);
            }
            // Relaxed: a number that no other has is all that is asked for.
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

/// True when one of the `needed` waits, directly or by way of others, for one of the `held`. An edge leads on as long as the task that
/// waits has not ended, and what it starts from is held by that task, or by one that waits for it.
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
