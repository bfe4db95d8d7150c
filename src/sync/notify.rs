//! A `Notify` that a limiter rings when it has loosened: a cancel, a settle, a raised quota.
//!
//! # Memory ordering
//! The ringer changes the limiter's state and then reads `armed`; the listener writes `armed` and then reads the
//! state. Either the ringer sees the listener, or the listener sees the change: both sides put a sequentially
//! consistent fence between their two steps.

use super::shim::Mutex;
use super::shim::atomic::{AtomicBool, Ordering, fence};
use super::wake::PanicCollector;
use super::notify::Listener;
use std::collections::BTreeSet;

/// Tells waiting policies that a limiter has loosened. Free to ring when nothing listens, but for one fence.
#[derive(Debug, Default)]
pub struct Notify {
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
    list: Vec<Listener>,
    /// Where each of the list lives: a place is not used again as long as a watcher of it is kept.
    known: BTreeSet<usize>,
}

impl Listeners {
    fn add(&mut self, watcher: &Listener) {
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

impl Notify {
    /// A `Notify` without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener, which is called at the next ring, once.
    pub(crate) fn listen(&self, watcher: &Listener) {
        let mut lists = self.lists.lock();
        lists.next.add(watcher);
        lists.changes.add(watcher);
        // Relaxed: the fence orders it before the listener's next read of the limiter. Pairs with (F) in `ring`.
        self.armed.store(true, Ordering::Relaxed);
        drop(lists);
        if !seeded!("notify_fence") {
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
    pub fn notify_reconfigured(&self) {
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
        if !seeded!("notify_fence") {
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
        let mut panics = PanicCollector::default();
        for watcher in listeners.list {
            panics.run(|| watcher.call_for(anew));
        }
        panics.end();
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::super::notify::Notified;
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::{Arc, Mutex};

    struct Notes(usize, Arc<Mutex<Vec<usize>>>);

    impl Notified for Notes {
        fn notified(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
            if self.0 == 1 {
                resume_unwind(Box::new("the second"));
            }
        }
    }

    /// All are called once each, in the order in which they came, although one panics.
    #[test]
    fn listeners_are_called_once_and_in_order_whichever_panics() {
        let (notify, called) = (Notify::new(), Arc::default());
        let watches: Vec<_> = (0..5).map(|n| Arc::new(Notes(n, Arc::clone(&called)))).collect();
        for _ in 0..3 {
            watches.iter().for_each(|watch| notify.listen(&Listener::new(watch)));
        }
        let rung = catch_unwind(AssertUnwindSafe(|| notify.notify_all()));
        assert_eq!(rung.unwrap_err().downcast_ref(), Some(&"the second"));
        notify.notify_all();
        assert_eq!(*called.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    /// Those that have gone are not kept, however many come.
    #[test]
    fn listeners_that_have_gone_are_let_go() {
        let notify = Notify::new();
        for _ in 0..10_000 {
            notify.listen(&Listener::new(&Arc::new(Notes(0, Arc::default()))));
        }
        let lists = notify.lists.lock();
        for listeners in [&lists.next, &lists.changes] {
            assert_eq!(listeners.list.len(), listeners.known.len());
            assert!(listeners.list.len() < 100);
        }
    }

    /// A change of settings calls those that a plain ring has called since they listened, once.
    #[test]
    fn a_change_of_settings_calls_those_that_have_been_called() {
        let (notify, called) = (Notify::new(), Arc::default());
        let watch = Arc::new(Notes(7, Arc::clone(&called)));
        notify.listen(&Listener::new(&watch));
        notify.notify_all();
        assert_eq!(*called.lock().unwrap(), [7]);
        notify.notify_reconfigured();
        notify.notify_reconfigured();
        assert_eq!(*called.lock().unwrap(), [7, 7]);
    }
}
