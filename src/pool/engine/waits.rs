//! Tasks that wait for tasks: which task this thread runs, and which waits cannot end.
//!
//! A task that waits keeps the permits of its pool's policy, and the tasks that wait for it keep theirs. Where one that holds `a`
//! waits for one that needs `b`, there is an edge from `a` to `b` for as long as the wait lasts. A deadlock is a cycle of such
//! edges; the wait that would close one is refused. The end of a task counts as a permit as well: the task holds it, and so do the
//! tasks below it. A task that waits for a task of its own needs no edge for that: what it holds is found from below.
//!
//! A task counts as one for which its submitter waits, as long as there is a handle: the submitter may wait at any time. So whether a
//! wait is refused does not depend on timing.

use super::queue::Key;
use crate::pool::error::TaskError;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::turn::TurnstileId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// A pool, as waits see it.
pub(in crate::pool) trait Home: Send + Sync {
    /// The queues whose permits its tasks hold.
    fn held(&self) -> &[TurnstileId];
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

pub(in crate::pool) struct Record {
    home: Arc<dyn Home>,
    /// The task that waits for it, or may.
    waiter: Mutex<Option<Arc<dyn Task>>>,
    /// How many handles it has polled that were not ready, and have not been dropped since.
    awaits: AtomicUsize,
    /// It holds nothing any more.
    ended: AtomicBool,
    /// Its number, once it stands in the graph of waits.
    number: OnceLock<u64>,
}

impl Record {
    /// Of a task that is submitted to `home` by this thread.
    pub(in crate::pool) fn new(home: Arc<dyn Home>) -> Self {
        Self {
            home,
            waiter: Mutex::new(current()),
            awaits: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            number: OnceLock::new(),
        }
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
        self.cut();
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
    static CURRENT: RefCell<Vec<Arc<dyn Task>>> = RefCell::new(Vec::new());
}

/// The task that this thread runs.
pub(in crate::pool) fn current() -> Option<Arc<dyn Task>> {
    CURRENT.try_with(|stack| stack.borrow().last().cloned()).ok().flatten()
}

/// True in a task of this pool.
pub(in crate::pool) fn is_inside<H: Home>(home: &H) -> bool {
    let is_here = |task: &Arc<dyn Task>| std::ptr::addr_eq(Arc::as_ptr(&task.record().home), home);
    CURRENT
        .try_with(|stack| stack.borrow().iter().any(is_here))
        .unwrap_or(false)
}

/// While it lives, this thread runs the task.
pub(in crate::pool) struct Inside(());

impl Inside {
    pub(in crate::pool) fn enter(task: Arc<dyn Task>) -> Self {
        let _ = CURRENT.try_with(|stack| stack.borrow_mut().push(task));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let task = CURRENT.try_with(|stack| stack.borrow_mut().pop());
        drop(task);
    }
}

/// What a wait needs, or those hold who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    /// The end of the task of this number. Before the others, for `LEAST`.
    EndOf(u64),
    Permits(TurnstileId),
}

impl Node {
    const LEAST: Self = Self::EndOf(0);
}

/// The edges that there are, each by how many waits.
static EDGES: parking_lot::Mutex<BTreeMap<(Node, Node), usize>> = parking_lot::Mutex::new(BTreeMap::new());

/// A task that waits for another, through a handle.
pub(in crate::pool) struct Wait {
    waiter: Arc<dyn Task>,
    edges: Vec<(Node, Node)>,
    /// The queued task that is listed as awaited.
    listed: Option<(Arc<dyn Home>, Key)>,
}

impl Wait {
    /// The task that this thread runs is about to wait for `task`. None when the wait would never end.
    pub(in crate::pool) fn begin(waiter: Arc<dyn Task>, task: &dyn Task) -> Option<Self> {
        let record = task.record();
        let is_own = match &*record.waiter.lock() {
            Some(known) => is_same(known, &waiter),
            None => false,
        };
        let mut needed: Vec<_> = record.home.held().iter().copied().map(Node::Permits).collect();
        if !is_own {
            needed.push(Node::EndOf(record.number()));
        }
        let edges = edges(&waiter, &needed)?;
        if !is_own {
            let old = record.waiter.lock().replace(Arc::clone(&waiter));
            drop(old);
        }
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
        if self.edges.is_empty() {
            return;
        }
        let mut known = EDGES.lock();
        for edge in &self.edges {
            if let Some(waits) = known.get_mut(edge) {
                *waits -= 1;
                if *waits == 0 {
                    known.remove(edge);
                }
            }
        }
    }
}

fn is_same(one: &Arc<dyn Task>, other: &Arc<dyn Task>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// The task, the one that waits for it, and so on. A task that has ended holds nothing.
fn chain(task: &Arc<dyn Task>) -> impl Iterator<Item = Arc<dyn Task>> {
    let next = |task: &Arc<dyn Task>| task.record().waiter.lock().clone();
    // Acquire: pairs with the store in `end`.
    let runs = |task: &Arc<dyn Task>| !task.record().ended.load(Ordering::Acquire);
    std::iter::successors(Some(Arc::clone(task)), next).take_while(runs)
}

/// The edges of a wait, which are noted. None when one would close a cycle: none is noted then.
fn edges(waiter: &Arc<dyn Task>, needed: &[Node]) -> Option<Vec<(Node, Node)>> {
    if needed.is_empty() {
        return Some(Vec::new());
    }
    let mut held = BTreeSet::new();
    for task in chain(waiter) {
        let record = task.record();
        held.extend(record.home.held().iter().copied().map(Node::Permits));
        held.insert(Node::EndOf(record.number()));
    }
    let mut known = EDGES.lock();
    // All that the needed ones wait for.
    let (mut reached, mut next) = (BTreeSet::new(), needed.to_vec());
    while let Some(at) = next.pop() {
        if held.contains(&at) && !seeded!("engine_closes_cycles") {
            return None;
        }
        if reached.insert(at) {
            let from_here = known
                .range((at, Node::LEAST)..)
                .take_while(|((from, _), _)| *from == at);
            next.extend(from_here.map(|(&(_, to), _)| to));
        }
    }
    let new: Vec<_> = held
        .iter()
        .flat_map(|&from| needed.iter().map(move |&to| (from, to)))
        .collect();
    for edge in &new {
        *known.entry(*edge).or_default() += 1;
    }
    Some(new)
}
