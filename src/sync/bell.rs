//! A bell that a limiter rings when it has loosened: a cancel, a settle, a raised quota.
//!
//! # Memory ordering
//! The ringer changes the limiter's state and then reads `armed`; the listener writes `armed` and then reads the
//! state. Either the ringer sees the listener, or the listener sees the change: both sides put a sequentially
//! consistent fence between their two steps.

use super::shim::Mutex;
use super::shim::atomic::{AtomicBool, Ordering, fence};
use super::watch::Watcher;

/// Tells waiting policies that a limiter has loosened. Free to ring when nobody listens, but for one fence.
#[derive(Debug, Default)]
pub struct Bell {
    armed: AtomicBool,
    watchers: Mutex<Vec<Watcher>>,
}

impl Bell {
    /// A bell that nobody hears yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener, who will be called at the next ring, once.
    pub(crate) fn listen(&self, watcher: &Watcher) {
        let mut watchers = self.watchers.lock();
        if !watchers.iter().any(|known| known.is_same(watcher)) {
            if watchers.len() == watchers.capacity() {
                watchers.retain(Watcher::is_alive);
            }
            watchers.push(watcher.clone());
        }
        // Relaxed: the fence orders it before the listener's next read of the limiter. Pairs with (F) in `ring`.
        self.armed.store(true, Ordering::Relaxed);
        drop(watchers);
        if !seeded!("bell_fence") {
            fence(Ordering::SeqCst);
        }
    }

    /// Calls everybody who listens. To be rung after the change, outside every lock.
    #[inline]
    pub fn ring(&self) {
        // (F) The change that is announced comes before this fence, the look for listeners after it.
        if !seeded!("bell_fence") {
            fence(Ordering::SeqCst);
        }
        if self.armed.load(Ordering::Relaxed) {
            self.ring_slow();
        }
    }

    #[cold]
    fn ring_slow(&self) {
        let watchers = {
            let mut watchers = self.watchers.lock();
            self.armed.store(false, Ordering::Relaxed);
            std::mem::take(&mut *watchers)
        };
        for watcher in watchers {
            watcher.call();
        }
    }
}
