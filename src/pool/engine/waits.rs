//! Tasks that wait for tasks: which task this thread runs, and which waits cannot end.
//!
//! A task that waits keeps the permits of its pool's policy, and the tasks that wait for it keep theirs. Where one that holds `a`
//! waits for one that needs `b`, there is an edge from `a` to `b` for as long as the wait lasts. A deadlock is a cycle of such
//! edges; the wait that would close one is refused. The end of a task counts as a permit as well: the task holds it, and so do the
//! tasks below it. A task that waits for a task of its own needs no edge for that: what it holds is found from below.
//!
//! A task counts as one for which its submitter waits, or the task that has waited for it since, as long as there is a handle: it may
//! wait at any time. So whether a wait for permits is refused does not depend on timing.

use super::queue::Key;
use crate::pool::error::TaskError;
use crate::sync::shim::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::turn::TurnstileId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// A pool, as waits see it.
pub(in crate::pool) trait Home: Send + Sync {
    /// The permits that a task of it holds while it runs, as its policy has it now.
    fn held(&self) -> Held;
    /// A task awaits the queued task from now on.
    fn await_it(self: Arc<Self>, key: Key);
    fn await_no_more(self: Arc<Self>, key: Key);
}

/// A task, as waits see it.
pub(in crate::pool) trait Task: Send + Sync {
    fn record(&self) -> &Record;
    /// Ends it, whether it has started or not: for this reason, if it has never been polled. False when it had ended, or cannot be
    /// ended.
    fn abort(&self, queued: TaskError) -> bool;
}

/// What permits are held: the queues that wait for them.
pub(in crate::pool) type Held = Arc<[TurnstileId]>;

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
        // Release: pairs with the load in `chain`.
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
        *self
            .number
            .get_or_init(|| NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

crate::sync::shim::thread_local! {
    /// The tasks that this thread runs, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static CURRENT: RefCell<Vec<(Arc<dyn Task>, PoolId)>> = RefCell::new(Vec::new());
}

/// Which pool: where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) struct PoolId(usize);

impl PoolId {
    /// Of a task that is run outside its pool.
    pub(in crate::pool) const NONE: Self = Self(0);

    pub(in crate::pool) fn of<H: Home>(home: &H) -> Self {
        Self(std::ptr::from_ref(home).addr())
    }
}

/// The task that this thread runs.
pub(in crate::pool) fn current() -> Option<Arc<dyn Task>> {
    let last = |stack: &RefCell<Vec<(Arc<dyn Task>, PoolId)>>| stack.borrow().last().map(|(task, _)| Arc::clone(task));
    CURRENT.try_with(last).ok().flatten()
}

/// True in a task of this pool.
pub(in crate::pool) fn is_inside<H: Home>(home: &H) -> bool {
    let home = PoolId::of(home);
    CURRENT
        .try_with(|stack| stack.borrow().iter().any(|(_, pool)| *pool == home))
        .unwrap_or(false)
}

/// While it lives, this thread runs the task.
pub(in crate::pool) struct Inside(());

impl Inside {
    pub(in crate::pool) fn enter(task: Arc<dyn Task>, pool: PoolId) -> Self {
        let _ = CURRENT.try_with(|stack| stack.borrow_mut().push((task, pool)));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let task = CURRENT.try_with(|stack| stack.borrow_mut().pop());
        drop(task);
    }
}

/// What a wait needs, or a task holds that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    /// The end of the task of this number. Before the others, for `LEAST`.
    EndOf(u64),
    Permits(TurnstileId),
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

/// A task that waits for another, through a handle.
pub(in crate::pool) struct Wait {
    waiter: Arc<dyn Task>,
    edges: Vec<Edge>,
    /// The queued task that is listed as awaited.
    listed: Option<(Arc<dyn Home>, Key)>,
}

impl Wait {
    /// The task `waiter` is about to wait for `task`, one of `home`, whose handle it polls. None when the wait may never end.
    pub(in crate::pool) fn begin(waiter: Arc<dyn Task>, task: &dyn Task, home: &dyn Home) -> Option<Self> {
        let record = task.record();
        // Relaxed, and it stays so: the handle alone changes both, which the waiter has. What another holds that waits was not found
        // from below before it waited, so its waits are judged each time.
        let is_own = !record.moved.load(Ordering::Relaxed)
            && record
                .waiter
                .lock()
                .as_ref()
                .is_some_and(|known| is_same(known, &waiter));
        // Asks the policy: not under the lock.
        let held = home.held();
        let mut needed: Vec<_> = held.iter().copied().map(Node::Permits).collect();
        // Acquire: pairs with the store in `end`.
        if !is_own && !record.ended.load(Ordering::Acquire) {
            needed.push(Node::EndOf(record.number()));
        }
        let edges = if needed.is_empty() {
            Vec::new()
        } else {
            edges(&waiter, task, &needed)?
        };
        let listed = None;
        Some(Self { waiter, edges, listed })
    }

    pub(in crate::pool) fn is_by(&self, waiter: &Arc<dyn Task>) -> bool {
        is_same(&self.waiter, waiter)
    }

    /// The task was not ready: the waiter lends its slot, and the task may have it.
    pub(in crate::pool) fn list(&mut self, home: &Arc<impl Home + 'static>, key: Key) {
        if self.listed.is_none() {
            self.listed = Some((Arc::clone(home) as _, key));
            // Relaxed: see `awaits`.
            self.waiter.record().awaits.fetch_add(1, Ordering::Relaxed);
            Arc::clone(home).await_it(key);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some((home, key)) = self.listed.take() {
            // Relaxed: see `awaits`.
            self.waiter.record().awaits.fetch_sub(1, Ordering::Relaxed);
            home.await_no_more(key);
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
            held.insert(Node::EndOf(record.number()));
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
fn edges(waiter: &Arc<dyn Task>, task: &dyn Task, needed: &[Node]) -> Option<Vec<Edge>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Dropped after the lock: the last of a task drops what is a user's.
    let (mut seen, mut old) = (Vec::new(), None);
    let noted = {
        let mut waits = WAITS.lock();
        let held = held_above(waiter, &mut seen);
        let closes_cycle = reaches(&waits, needed, &held, &mut seen) && !seeded!("engine_closes_cycles");
        (!closes_cycle).then(|| {
            let known = &task.record().waiter;
            if !known.lock().as_ref().is_some_and(|known| is_same(known, waiter)) {
                old = known.lock().replace(Arc::clone(waiter));
                // Relaxed: see `begin`.
                task.record().moved.store(true, Ordering::Relaxed);
            }
            // Relaxed: a number that no other has is all that is asked for.
            let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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
