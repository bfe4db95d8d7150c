//! Clocks that are behind, by a known amount, and cheap to read for it.
//!
//! A thread of its own copies the counter into one word, over and over; to read the clock is to load that word. There is
//! one such thread for each resolution in use, and it ends when the last clock of that resolution has gone. In virtual
//! time there is nothing to save, so the coarse clock of a manual one rounds down: the same error, deterministically.

use super::clock::Instant;
use super::manual::Manual;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The word that the thread writes.
pub(super) struct Cached {
    now: AtomicU64,
    /// In ticks: the oldest that the word has ever been when it was written anew.
    worst: AtomicU64,
    resolution: Duration,
}

impl Cached {
    #[inline]
    pub(super) fn now(&self) -> u64 {
        // Acquire: a thread that sees an instant sees the writes before it. Pairs with `update`.
        self.now.load(Ordering::Acquire)
    }

    pub(super) fn worst(&self) -> u64 {
        // Relaxed: a statistic.
        self.worst.load(Ordering::Relaxed)
    }

    /// By the thread alone.
    fn update(&self, now: u64) {
        let age = now.saturating_sub(self.now.load(Ordering::Relaxed));
        // The statistic first: a thread that sees the new instant sees how old the one before it had become.
        self.worst.fetch_max(age, Ordering::Relaxed);
        // Release: pairs with `now`. Never backwards.
        self.now.fetch_max(now, Ordering::Release);
    }

    /// The clock of this resolution, which all share.
    pub(super) fn shared(counter: &quanta::Clock, resolution: Duration) -> std::io::Result<Arc<Self>> {
        static IN_USE: Mutex<Vec<Weak<Cached>>> = Mutex::new(Vec::new());
        let mut in_use = IN_USE.lock();
        in_use.retain(|known| known.strong_count() > 0);
        let mut known = in_use.iter().filter_map(Weak::upgrade);
        if let Some(cached) = known.find(|cached| cached.resolution == resolution) {
            return Ok(cached);
        }
        let cached = Arc::new(Self {
            now: AtomicU64::new(counter.raw()),
            worst: AtomicU64::new(0),
            resolution,
        });
        let (counter, writes) = (counter.clone(), Arc::downgrade(&cached));
        std::thread::Builder::new()
            .name("tollgate-clock".into())
            .spawn(move || {
                while let Some(cached) = writes.upgrade() {
                    cached.update(counter.raw());
                    drop(cached);
                    std::thread::sleep(resolution);
                }
            })?;
        in_use.push(Arc::downgrade(&cached));
        Ok(cached)
    }
}

/// A manual clock's time, rounded down.
pub(super) struct Rounded {
    pub(super) manual: Arc<Manual>,
    pub(super) ticks: u64,
}

impl Rounded {
    pub(super) fn now(&self) -> u64 {
        let now = self.manual.now();
        now - now % self.ticks
    }

    /// When the rounded clock shows `at` or later.
    pub(super) fn shows(&self, at: Instant) -> Instant {
        at.after_ticks(at.ticks().next_multiple_of(self.ticks).saturating_sub(at.ticks()))
    }
}

/// Why there is no such coarse clock.
///
/// ```
/// # use tollgate::{Clock, ClockError};
/// # use std::time::Duration;
/// let error = Clock::real().coarse(Duration::ZERO).unwrap_err();
/// assert!(matches!(error, ClockError::Resolution { given: Duration::ZERO }));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ClockError {
    /// The resolution must be 1 µs to 1 s.
    Resolution {
        /// The resolution that was given.
        given: Duration,
    },
    /// A clock that is coarse already cannot be made coarser.
    AlreadyCoarse,
    /// The thread that copies the time could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolution { given } => write!(f, "a resolution of {given:?} was given, and 1 µs to 1 s is allowed"),
            Self::AlreadyCoarse => f.write_str("the clock is coarse already"),
            Self::Thread(error) => write!(f, "no thread for a coarse clock: {error}"),
        }
    }
}

impl std::error::Error for ClockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            _ => None,
        }
    }
}
