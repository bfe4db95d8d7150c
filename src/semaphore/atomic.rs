//! The semaphore itself: one signed word, a limit beside it, and a queue behind a lock that only waiters touch.
//!
//! The word is `available`, minus [`QUEUED`] while somebody waits or the semaphore is closed:
//!
//! | word | meaning |
//! |---|---|
//! | `0 ..= MAX_PERMITS` | so many permits are free, nobody waits |
//! | `-MAX_PERMITS .. 0` | debt: so many more are held than the limit allows, nobody waits |
//! | below `-MAX_PERMITS` | `available - QUEUED`: take the lock |
//!
//! So admission is one signed comparison and one compare-exchange, and a release is one addition. While the flag is
//! set only the holder of the lock can take permits, and hands them to the first of the queue. But for a pool, which may
//! [overdraw](Semaphore::overdraw) it at any time: that is one subtraction, flag or not, and what a hand-over or a shrink adds
//! beside it is added to a debt.
//!
//! Invariant, under the lock: the flag is set if and only if somebody waits or watches, or it is closed or counts. The
//! protocol's steps by name, and why it holds: `src/sync/README.md`.

use crate::sync::notify::Notify;
use crate::sync::queue::Queue;
use crate::sync::shim::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::sync::shim::{Mutex, OnceLock};
#[cfg(feature = "pool")]
use crate::sync::wake::quietly;
use std::fmt;

/// What is subtracted from the word while permits must not be taken without the lock.
pub(super) const QUEUED: i64 = 1 << 62;
pub(super) const MAX: i64 = (usize::MAX >> 3) as i64;

/// The ordering that is needed, or none where the models are to show that it is.
macro_rules! weakened {
    ($bug:literal, $ordering:ident) => {
        if seeded!($bug) {
            Ordering::Relaxed
        } else {
            Ordering::$ordering
        }
    };
}
pub(super) use weakened;

/// Limits how many may run at once. Weighted, strictly first come first served, resizable at any moment.
///
/// It has every method of `tokio::sync::Semaphore`, with the same meaning: change the import and nothing else. Beyond
/// that it has a [`limit`](Semaphore::limit) that can be set while permits are held and awaited, waits with time-outs,
/// and it is a [`Limiter`](crate::Limiter), so that it composes with rates.
///
/// # Fairness
/// Strict FIFO by arrival, whatever the weights: a large request is never overtaken, and whoever comes while somebody
/// waits gets in line. Permits are handed over, not put up for grabs. A waiter that leaves frees those behind it at
/// once. A future that has been handed its permits keeps them until it is polled or dropped: do not park such a future.
///
/// # Cancel safety
/// Every future of it can be dropped at any time: the place in line is given up, and permits that had just been handed
/// over go to the next.
///
/// # Memory ordering
/// What is done before a permit is released is seen by whoever acquires it afterwards, also through a hand-over.
///
/// ```
/// # use tollgate::Semaphore;
/// let semaphore = Semaphore::new(2);
/// let (a, b) = (semaphore.try_acquire().unwrap(), semaphore.try_acquire().unwrap());
/// // A shrink is effective at once, also below what is held: the debt is paid by what comes back.
/// semaphore.set_limit(1);
/// assert_eq!((semaphore.in_use(), semaphore.debt()), (2, 1));
/// drop(a);
/// assert!(semaphore.try_acquire().is_err());
/// drop(b);
/// assert!(semaphore.try_acquire().is_ok());
/// ```
pub struct Semaphore {
    pub(super) word: AtomicI64,
    /// Never negative. Available plus held.
    pub(super) limit: AtomicI64,
    /// One more than the number of the waiter that was granted last; with its top bit set once it is closed.
    pub(super) served: AtomicU64,
    /// The limit that it was made with.
    pub(super) made_with: i64,
    pub(super) queue: Mutex<Queue>,
    /// True unless its queue has rules, or may be overtaken.
    pub(super) plain: bool,
    /// How often the first in line may be overtaken; zero in strict order.
    pub(super) overtakes: u32,
    pub(super) name: Option<Box<str>>,
    /// The largest limit that was ever set. Written under the queue's lock.
    pub(super) largest: AtomicI64,
    /// Rung when the limit is raised. Made when a policy first waits for that.
    pub(super) raised: OnceLock<Box<Notify>>,
}

impl Semaphore {
    /// The greatest number of permits: `usize::MAX >> 3`.
    pub const MAX_PERMITS: usize = MAX as usize;

    /// A semaphore with `permits` permits, all free.
    ///
    /// # Panics
    /// If `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub fn new(permits: usize) -> Self {
        let less = usize::from(seeded!("semaphore_max_is_too_many"));
        assert!(
            permits <= Self::MAX_PERMITS - less,
            "a semaphore may not have more than MAX_PERMITS permits ({})",
            Self::MAX_PERMITS
        );
        Self {
            word: AtomicI64::new(permits as i64),
            limit: AtomicI64::new(permits as i64),
            served: AtomicU64::new(0),
            made_with: permits as i64,
            queue: Mutex::new(Queue::new()),
            plain: true,
            overtakes: 0,
            name: None,
            largest: AtomicI64::new(permits as i64),
            raised: OnceLock::new(),
        }
    }

    /// [`new`](Self::new) for a `static`.
    ///
    /// # Panics
    /// If `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    pub const fn const_new(permits: usize) -> Self {
        assert!(
            permits <= Self::MAX_PERMITS,
            "a semaphore may not have more than MAX_PERMITS permits"
        );
        Self {
            word: AtomicI64::new(permits as i64),
            limit: AtomicI64::new(permits as i64),
            served: AtomicU64::new(0),
            made_with: permits as i64,
            queue: Mutex::new(Queue::new()),
            plain: true,
            overtakes: 0,
            name: None,
            largest: AtomicI64::new(permits as i64),
            raised: OnceLock::new(),
        }
    }

    pub(super) fn signed_available(&self) -> i64 {
        let word = self.word.load(Ordering::Relaxed);
        if word < -MAX { word + QUEUED } else { word }
    }

    /// How many permits are there for whoever comes now: none while somebody waits, since what is free is kept for the
    /// first in line. A snapshot.
    pub fn available_permits(&self) -> usize {
        let word = self.word.load(Ordering::Relaxed);
        if word >= -MAX {
            return word.max(0) as usize;
        }
        let queue = self.queue.lock();
        self.unreserved(&queue).max(0) as usize
    }

    /// What is free and not kept for the first in line. Under the lock.
    fn unreserved(&self, queue: &Queue) -> i64 {
        if queue.is_empty() { self.signed_available() } else { 0 }
    }

    /// How many permits there are, held or free. A snapshot.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed).max(0) as usize
    }

    /// How many permits are held. A snapshot.
    pub fn in_use(&self) -> usize {
        self.held_now(&self.queue.lock()) as usize
    }

    /// How many permits are held. Under the lock, where the limit stands still.
    pub(super) fn held_now(&self, _: &Queue) -> i64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.signed_available()).max(0)
    }

    /// How many permits must come back before anybody is admitted, after a shrink below what was held. A snapshot.
    pub fn debt(&self) -> usize {
        (-self.signed_available()).max(0) as usize
    }

    /// The name that it was [built](Self::builder) with.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// How many wait in line. A snapshot.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting()
    }

    /// True once it has been closed.
    pub fn is_closed(&self) -> bool {
        // The flag is set whenever it is closed, so that an open semaphore without waiters is not locked.
        self.word.load(Ordering::Relaxed) < -MAX && self.queue.lock().closed
    }

    /// Takes `n` permits if they are free and nobody waits.
    #[inline]
    pub(super) fn try_take(&self, n: i64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word >= n {
            // Acquire: sees what was done under the permits that are taken. Pairs with (R) in `release`.
            let acquire = weakened!("semaphore_relaxed_acquire", Acquire);
            if seeded!("semaphore_torn_take") {
                self.word.store(word - n, Ordering::Relaxed);
                return true;
            }
            match self
                .word
                .compare_exchange_weak(word, word - n, acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    /// Gives `n` permits back.
    #[inline]
    pub(super) fn release(&self, n: i64) {
        // (R) Release: publishes what was done under the permits. Pairs with the acquiring operations on the word.
        let release = weakened!("semaphore_relaxed_release", Release);
        if self.word.fetch_add(n, release) < -MAX {
            self.hand_over();
        }
    }

    /// Gives permits back that were taken out of their tickets, and survives a waker that panics: for a thread that is not
    /// the waker's, and must go on.
    #[cfg(feature = "pool")]
    #[inline]
    pub(crate) fn release_quietly(&self, n: usize) {
        // Release: as (R) in `release`.
        if self.word.fetch_add(n as i64, Ordering::Release) < -MAX {
            quietly(|| self.hand_over());
        }
    }

    /// Takes `n` permits whether they are free or not: what is missing is [`debt`](Self::debt).
    ///
    /// # Panics
    /// If the debt would exceed [`MAX_PERMITS`](Self::MAX_PERMITS), below which the word says something else. Nothing is taken then.
    #[cfg(feature = "pool")]
    #[cold]
    pub(crate) fn overdraw(&self, n: usize) {
        let take = |word: i64| {
            let flag = if word < -MAX { QUEUED } else { 0 };
            let free = (word + flag).saturating_sub_unsigned(n as u64);
            (free >= -MAX).then(|| free - flag)
        };
        if seeded!("semaphore_torn_overdraw") {
            let word = self.word.load(Ordering::Relaxed);
            return self.word.store(word - n as i64, Ordering::Relaxed);
        }
        // Relaxed, both: nothing that was done under a permit is handed over.
        let taken = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        assert!(
            taken.is_ok(),
            "a debt of {n} more would exceed MAX_PERMITS ({})",
            Self::MAX_PERMITS
        );
    }

    /// True when all permits that it was made with are free, and nobody waits.
    pub(super) fn is_untouched(&self) -> bool {
        let queue = self.queue.lock();
        // Relaxed: a limit changes under the lock, and a word that is read as flagged is not equal to it.
        let limit = self.limit.load(Ordering::Relaxed);
        let word = self.word.load(Ordering::Relaxed);
        limit == self.made_with && word == limit && !queue.is_watched()
    }

    /// True when `n` permits could be taken now.
    pub(super) fn has_free(&self, n: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let free = if word >= -MAX {
            word
        } else {
            let queue = self.queue.lock();
            if queue.closed { 0 } else { self.unreserved(&queue) }
        };
        u64::try_from(free).is_ok_and(|free| free >= n)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("limit", &self.limit())
            .field("available", &self.signed_available())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "pool", not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    /// With waiters or without, a debt is as large as the limit may be, and no larger.
    #[test]
    fn a_debt_has_a_bound() {
        const MAX: usize = Semaphore::MAX_PERMITS;
        for waits in [false, true] {
            let semaphore = Semaphore::new(1);
            semaphore.overdraw(1);
            let claim = waits.then(|| semaphore.join_as_claim(1, Waker::noop()));
            semaphore.overdraw(MAX - 1);
            assert_eq!((semaphore.debt(), semaphore.waiting()), (MAX - 1, usize::from(waits)));
            semaphore.overdraw(1);
            for more in [1, MAX, usize::MAX] {
                let refused = catch_unwind(AssertUnwindSafe(|| semaphore.overdraw(more)));
                assert!(refused.is_err(), "{more}");
            }
            assert_eq!((semaphore.debt(), semaphore.waiting()), (MAX, usize::from(waits)));
            semaphore.release(MAX as i64);
            semaphore.release(1);
            assert_eq!((semaphore.debt(), semaphore.in_use()), (0, usize::from(waits)));
            if let Some(claim) = claim {
                semaphore.leave_claim(claim);
            }
            assert_eq!(semaphore.available_permits(), 1);
        }
    }
}
