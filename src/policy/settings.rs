//! The settings of a policy: the bounds of its queue, and its order.

use crate::semaphore::{Eviction, Order};
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The settings of a policy, as its builder makes them.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// In ticks of the clock.
    pub(crate) max_wait: Option<u64>,
    pub(crate) max_queue: usize,
    /// The number of waiters from which on some newcomers are refused early.
    pub(crate) reject_early_from: Option<usize>,
    /// The lateness of a waiter that still counts as of its due instant, in ticks.
    pub(crate) lateness: u64,
    pub(crate) order: QueueOrder,
    /// The limiter cannot be waited for.
    pub(crate) misfit: bool,
}

/// The order of a queue, and its bound in units. It stays as it was built.
#[derive(Clone, Debug)]
pub(crate) struct QueueOrder {
    pub(crate) order: Order,
    /// Units of all waiters at most.
    pub(crate) max_units: u64,
    pub(crate) eviction: Eviction,
}

impl QueueOrder {
    /// First come, first served, without eviction.
    pub(crate) const FIFO: Self = Self {
        order: Order::Fifo,
        max_units: u64::MAX,
        eviction: Eviction::Never,
    };
}

/// The settings that are in force: a policy that is read from a file changes them while it runs.
pub(crate) struct Bounds {
    /// `u64::MAX` stands for none.
    max_wait: AtomicU64,
    max_queue: AtomicUsize,
    lateness: AtomicU64,
    /// As it was built.
    pub(super) reject_early_from: Option<usize>,
    pub(super) order: QueueOrder,
    pub(super) misfit: bool,
}

// Relaxed throughout: each number stands for itself, and a newcomer beside a change may see either.
impl Bounds {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            max_wait: AtomicU64::new(settings.max_wait.unwrap_or(u64::MAX)),
            max_queue: AtomicUsize::new(settings.max_queue),
            lateness: AtomicU64::new(settings.lateness),
            reject_early_from: settings.reject_early_from,
            order: settings.order,
            misfit: settings.misfit,
        }
    }

    pub(crate) fn set(&self, settings: &Settings) {
        let max_wait = settings.max_wait.unwrap_or(u64::MAX);
        self.max_wait.store(max_wait, Ordering::Relaxed);
        self.max_queue.store(settings.max_queue, Ordering::Relaxed);
        self.lateness.store(settings.lateness, Ordering::Relaxed);
    }

    pub(crate) fn max_wait(&self) -> Option<u64> {
        Some(self.max_wait.load(Ordering::Relaxed)).filter(|&ticks| ticks < u64::MAX)
    }

    /// Last come, first served.
    #[inline]
    pub(super) fn newest_first(&self) -> bool {
        self.order.order == Order::Lifo
    }

    pub(super) fn max_queue(&self) -> usize {
        self.max_queue.load(Ordering::Relaxed)
    }

    pub(super) fn lateness(&self) -> u64 {
        self.lateness.load(Ordering::Relaxed)
    }
}
