//! Who waits for whom, where semaphores are held: a wait that would close a cycle is refused.
//!
//! A task holds the permits of its pool's policy while it waits, and its own waiter holds others. Where a task that holds `a` waits
//! for a task that needs `b`, there is an edge from `a` to `b`, as long as the wait lasts. A deadlock of permits is a cycle of such
//! edges; the last of them is never made. Two more things count as permits: that a pool is idle, which each of its tasks holds, and
//! the end of a task, which the task holds and the tasks below it. A task that waits for a child of its own needs no edge for that:
//! what it holds is found by the child.

use crate::engine::{Running, Target};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The edges that there are, each by how many waits.
static EDGES: Mutex<BTreeMap<(usize, usize), usize>> = Mutex::new(BTreeMap::new());

/// Between a task and the one that submitted it, or that has waited for it since. Cut when the handle is gone.
pub(crate) struct Link(Mutex<Option<Arc<Running>>>);

impl Link {
    pub(crate) fn to(submitter: Option<Arc<Running>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(submitter)))
    }

    pub(crate) fn cut(&self) {
        let old = self.0.lock().take();
        drop(old);
    }

    fn leads_to(&self, waiter: &Arc<Running>) -> bool {
        self.0.lock().as_ref().is_some_and(|known| Arc::ptr_eq(known, waiter))
    }

    /// Another task than the submitter waits.
    fn set(&self, waiter: &Arc<Running>) {
        let old = self.0.lock().replace(Arc::clone(waiter));
        drop(old);
    }
}

/// The task, the one that waits for it, and so on. A task that has ended holds nothing.
fn chain(task: &Arc<Running>) -> impl Iterator<Item = Arc<Running>> {
    let next = |task: &Arc<Running>| task.link.as_ref()?.0.lock().clone();
    // Acquire: pairs with the store at the end of the task.
    let runs = |task: &Arc<Running>| !task.ended.load(Ordering::Acquire);
    std::iter::successors(Some(Arc::clone(task)), next).take_while(runs)
}

/// A wait. While it lives, no other closes a cycle with it.
pub(crate) struct Wait(Vec<(usize, usize)>);

impl Drop for Wait {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut edges = EDGES.lock();
        for edge in &self.0 {
            if let Some(waits) = edges.get_mut(edge) {
                *waits -= 1;
                if *waits == 0 {
                    edges.remove(edge);
                }
            }
        }
    }
}

impl Wait {
    /// The task waits for that of the link, which is one of the pool. `None` when that would deadlock.
    pub(crate) fn for_task(waiter: &Arc<Running>, link: Option<&Arc<Link>>, pool: &dyn Target) -> Option<Self> {
        let Some(link) = link.filter(|link| !link.leads_to(waiter)) else {
            return Self::begin(waiter, pool.held());
        };
        let end = Arc::as_ptr(link).addr();
        let needed: Vec<_> = pool.held().iter().copied().chain([end]).collect();
        let wait = Self::begin(waiter, &needed)?;
        link.set(waiter);
        Some(wait)
    }

    /// The task waits until no task of the pool is left. `None` when that would deadlock.
    pub(crate) fn for_idle(waiter: &Arc<Running>, pool: &dyn Target) -> Option<Self> {
        let idle = std::ptr::from_ref(pool).addr();
        let needed: Vec<_> = pool.held().iter().copied().chain([idle]).collect();
        Self::begin(waiter, &needed)
    }

    /// The task waits for all of these. `None` when that would deadlock.
    pub(crate) fn begin(waiter: &Arc<Running>, needed: &[usize]) -> Option<Self> {
        if needed.is_empty() {
            return Some(Self(Vec::new()));
        }
        let mut held = BTreeSet::new();
        for task in chain(waiter) {
            held.extend(task.engine.held());
            // Its pool is not idle while it runs.
            held.insert(Arc::as_ptr(&task.engine).addr());
            held.extend(task.link.as_ref().map(|link| Arc::as_ptr(link).addr()));
        }
        let mut edges = EDGES.lock();
        // All that the needed ones wait for.
        let (mut reached, mut next) = (BTreeSet::new(), needed.to_vec());
        while let Some(at) = next.pop() {
            if held.contains(&at) {
                return None;
            }
            if reached.insert(at) {
                next.extend(edges.range((at, 0)..=(at, usize::MAX)).map(|(&(_, to), _)| to));
            }
        }
        let new: Vec<_> = held
            .iter()
            .flat_map(|&from| needed.iter().map(move |&to| (from, to)))
            .collect();
        for edge in &new {
            *edges.entry(*edge).or_default() += 1;
        }
        Some(Self(new))
    }
}
