//! What a policy's builder sets: the bounds of its line, and in which order it is served.

use crate::semaphore::Overflow;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a policy's builder sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// In ticks of the clock.
    pub(crate) max_wait: Option<u64>,
    pub(crate) max_queue: usize,
    /// From how many who wait on some are turned away early.
    pub(crate) early: Option<usize>,
    /// How late a waiter may be and still count as of its due instant, in ticks.
    pub(crate) lateness: u64,
    pub(crate) manner: Manner,
    /// The limiter cannot be waited for.
    pub(crate) misfit: bool,
}

/// How a line treats those who come while others wait. It stays as it was built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Last come, first served.
    pub(crate) newest_first: bool,
    /// How many units may wait.
    pub(crate) max_units: u64,
    pub(crate) overflow: Overflow,
}

impl Manner {
    /// First come, first served, and nobody has to go.
    pub(crate) const FIFO: Self = Self {
        newest_first: false,
        max_units: u64::MAX,
        overflow: Overflow::RefuseNewest,
    };
}

/// The settings that are in force: a policy that is read from a file changes them while it runs.
pub(crate) struct Bounds {
    /// The most stands for none.
    max_wait: AtomicU64,
    max_queue: AtomicUsize,
    lateness: AtomicU64,
    /// As it was built.
    pub(super) early: Option<usize>,
    pub(super) manner: Manner,
    pub(super) misfit: bool,
}

// Relaxed throughout: each number stands for itself, and whoever comes while it changes may see either.
impl Bounds {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            max_wait: AtomicU64::new(settings.max_wait.unwrap_or(u64::MAX)),
            max_queue: AtomicUsize::new(settings.max_queue),
            lateness: AtomicU64::new(settings.lateness),
            early: settings.early,
            manner: settings.manner,
            misfit: settings.misfit,
        }
    }

    pub(crate) fn set(&self, settings: Settings) {
        let max_wait = settings.max_wait.unwrap_or(u64::MAX);
        self.max_wait.store(max_wait, Ordering::Relaxed);
        self.max_queue.store(settings.max_queue, Ordering::Relaxed);
        self.lateness.store(settings.lateness, Ordering::Relaxed);
    }

    pub(crate) fn max_wait(&self) -> Option<u64> {
        Some(self.max_wait.load(Ordering::Relaxed)).filter(|&ticks| ticks < u64::MAX)
    }

    pub(super) fn max_queue(&self) -> usize {
        self.max_queue.load(Ordering::Relaxed)
    }

    pub(super) fn lateness(&self) -> u64 {
        self.lateness.load(Ordering::Relaxed)
    }
}
