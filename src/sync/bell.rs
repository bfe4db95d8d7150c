//! A bell that a limiter rings when it has loosened: a cancel, a settle, a raised quota.
//!
//! # Memory ordering
//! The ringer changes the limiter's state and then reads `armed`; the listener writes `armed` and then reads the
//! state. Either the ringer sees the listener, or the listener sees the change: both sides put a sequentially
//! consistent fence between their two steps.

use super::shim::Mutex;
use super::shim::atomic::{AtomicBool, Ordering, fence};
use super::wake::Each;
use super::watch::Watcher;
use std::collections::BTreeSet;

/// Tells waiting policies that a limiter has loosened. Free to ring when nothing listens, but for one fence.
#[derive(Debug, Default)]
pub struct Bell {
    armed: AtomicBool,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Those that the next ring calls.
    next: Listeners,
    /// Those that the next ring after a change of settings calls. A plain ring leaves them: a policy that it has called may not
    /// listen again before the settings change.
    changes: Listeners,
}

/// Those who listen, each once, in the order in which they came.
#[derive(Debug, Default)]
struct Listeners {
    list: Vec<Watcher>,
    /// Where each of the list lives: a place is not used again as long as a watcher of it is kept.
    known: BTreeSet<usize>,
}

impl Listeners {
    fn add(&mut self, watcher: &Watcher) {
        if !self.known.insert(watcher.address()) {
            return;
        }
        if self.list.len() == self.list.capacity() {
            let known = &mut self.known;
            self.list
                .retain(|watcher| watcher.is_alive() || !known.remove(&watcher.address()));
        }
        self.list.push(watcher.clone());
    }
}

impl Bell {
    /// A bell without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener, which is called at the next ring, once.
    pub(crate) fn listen(&self, watcher: &Watcher) {
        let mut lists = self.lists.lock();
        lists.next.add(watcher);
        lists.changes.add(watcher);
        // Relaxed: the fence orders it before the listener's next read of the limiter. Pairs with (F) in `ring`.
        self.armed.store(true, Ordering::Relaxed);
        drop(lists);
        if !seeded!("bell_fence") {
            fence(Ordering::SeqCst);
        }
    }

    /// Calls all listeners, whichever of them panic; the first panic goes on then. To be rung after the change, outside
    /// every lock.
    #[inline]
    pub fn ring(&self) {
        self.fence();
        if self.armed.load(Ordering::Relaxed) {
            self.ring_slow();
        }
    }

    /// The same after a change of settings: a policy judges all of its waiters anew, not its head alone. What no instant can admit
    /// any more is refused.
    pub fn ring_anew(&self) {
        self.fence();
        let lists = {
            let mut lists = self.lists.lock();
            self.armed.store(false, Ordering::Relaxed);
            std::mem::take(&mut *lists)
        };
        // All that listen are among them.
        Self::call(lists.changes, true);
    }

    #[inline]
    fn fence(&self) {
        // (F) The change that is announced comes before this fence, the look for listeners after it.
        if !seeded!("bell_fence") {
            fence(Ordering::SeqCst);
        }
    }

    #[cold]
    fn ring_slow(&self) {
        let listeners = {
            let mut lists = self.lists.lock();
            self.armed.store(false, Ordering::Relaxed);
            std::mem::take(&mut lists.next)
        };
        Self::call(listeners, false);
    }

    fn call(listeners: Listeners, anew: bool) {
        let mut each = Each::default();
        for watcher in listeners.list {
            each.run(|| watcher.call_for(anew));
        }
        each.end();
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::super::watch::Watch;
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::{Arc, Mutex};

    struct Notes(usize, Arc<Mutex<Vec<usize>>>);

    impl Watch for Notes {
        fn look_again(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
            if self.0 == 1 {
                resume_unwind(Box::new("the second"));
            }
        }
    }

    /// All are called once each, in the order in which they came, although one panics.
    #[test]
    fn listeners_are_called_once_and_in_order_whichever_panics() {
        let (bell, called) = (Bell::new(), Arc::default());
        let watches: Vec<_> = (0..5).map(|n| Arc::new(Notes(n, Arc::clone(&called)))).collect();
        for _ in 0..3 {
            watches.iter().for_each(|watch| bell.listen(&Watcher::new(watch)));
        }
        let rung = catch_unwind(AssertUnwindSafe(|| bell.ring()));
        assert_eq!(rung.unwrap_err().downcast_ref(), Some(&"the second"));
        bell.ring();
        assert_eq!(*called.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    /// Those that have gone are not kept, however many come.
    #[test]
    fn listeners_that_have_gone_are_let_go() {
        let bell = Bell::new();
        for _ in 0..10_000 {
            bell.listen(&Watcher::new(&Arc::new(Notes(0, Arc::default()))));
        }
        let lists = bell.lists.lock();
        for listeners in [&lists.next, &lists.changes] {
            assert_eq!(listeners.list.len(), listeners.known.len());
            assert!(listeners.list.len() < 100);
        }
    }

    /// A change of settings calls those that a plain ring has called since they listened, once.
    #[test]
    fn a_change_of_settings_calls_those_that_have_been_called() {
        let (bell, called) = (Bell::new(), Arc::default());
        let watch = Arc::new(Notes(7, Arc::clone(&called)));
        bell.listen(&Watcher::new(&watch));
        bell.ring();
        assert_eq!(*called.lock().unwrap(), [7]);
        bell.ring_anew();
        bell.ring_anew();
        assert_eq!(*called.lock().unwrap(), [7, 7]);
    }
}
