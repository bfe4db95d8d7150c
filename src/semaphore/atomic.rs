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
//! set nobody can take permits but the holder of the lock, who hands them to the first in line.
//!
//! Invariant, under the lock: the flag is set if and only if the queue is not empty or closed. The protocol's steps by
//! name, and why it holds: `src/sync/README.md`.

use crate::sync::queue::{Key, Queue, State};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicI64, Ordering};
use std::fmt;
use std::task::Waker;

/// What is subtracted from the word while permits must not be taken without the lock.
pub(super) const QUEUED: i64 = 1 << 62;
pub(super) const MAX: i64 = (usize::MAX >> 3) as i64;

/// The ordering that is needed, or none where the models are to show that it is.
macro_rules! weakened {
    ($bug:literal, $ordering:ident) => {
        if cfg!(tollgate_bug = $bug) {
            Ordering::Relaxed
        } else {
            Ordering::$ordering
        }
    };
}
pub(super) use weakened;

/// How many wakers are woken at a time, outside the lock.
const BATCH: usize = 32;

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
    pub(super) queue: Mutex<Queue>,
}

impl Semaphore {
    /// The greatest number of permits: `usize::MAX >> 3`.
    pub const MAX_PERMITS: usize = MAX as usize;

    /// A semaphore with `permits` permits, all free.
    ///
    /// # Panics
    /// If `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub fn new(permits: usize) -> Self {
        assert!(
            permits <= Self::MAX_PERMITS,
            "a semaphore may not have more than MAX_PERMITS permits ({})",
            Self::MAX_PERMITS
        );
        Self {
            word: AtomicI64::new(permits as i64),
            limit: AtomicI64::new(permits as i64),
            queue: Mutex::new(Queue::new()),
        }
    }

    /// [`new`](Self::new) for a `static`.
    ///
    /// # Panics
    /// If `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[cfg(not(tollgate_loom))]
    pub const fn const_new(permits: usize) -> Self {
        assert!(
            permits <= Self::MAX_PERMITS,
            "a semaphore may not have more than MAX_PERMITS permits"
        );
        Self {
            word: AtomicI64::new(permits as i64),
            limit: AtomicI64::new(permits as i64),
            queue: Mutex::new(Queue::new()),
        }
    }

    fn signed_available(&self) -> i64 {
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
        if queue.waiting() == 0 {
            self.signed_available()
        } else {
            0
        }
    }

    /// How many permits there are, held or free. A snapshot.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed).max(0) as usize
    }

    /// How many permits are held. A snapshot.
    pub fn in_use(&self) -> usize {
        let _consistent = self.queue.lock();
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.signed_available()).max(0) as usize
    }

    /// How many permits must come back before anybody is admitted, after a shrink below what was held. A snapshot.
    pub fn debt(&self) -> usize {
        (-self.signed_available()).max(0) as usize
    }

    /// How many wait in line. A snapshot.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting()
    }

    /// How many waiters have been handed their permits and have not been polled since. A snapshot.
    pub fn granted_unpolled(&self) -> usize {
        self.queue.lock().granted()
    }

    /// Closes the semaphore for good: everybody who waits, or comes, is told so. Permits that are held stay valid.
    pub fn close(&self) {
        let wakers = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            if queue.waiting() == 0 {
                // Relaxed: the flag only sends others to the lock.
                self.word.fetch_sub(QUEUED, Ordering::Relaxed);
            }
            queue.close()
        };
        if cfg!(tollgate_bug = "semaphore_quiet_close") {
            return;
        }
        for waker in wakers {
            waker.wake();
        }
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
            if cfg!(tollgate_bug = "semaphore_torn_take") {
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

    /// Grants from the front as long as permits suffice, and wakes whom it granted.
    #[cold]
    pub(super) fn hand_over(&self) {
        let mut wakers: [Option<Waker>; BATCH] = [const { None }; BATCH];
        loop {
            let mut woken = 0;
            let more = {
                let mut queue = self.queue.lock();
                loop {
                    if woken == BATCH {
                        break true;
                    }
                    match self.grant_next(&mut queue) {
                        Some(waker) => {
                            wakers[woken] = waker;
                            woken += 1;
                        }
                        None => break false,
                    }
                }
            };
            for waker in &mut wakers[..woken] {
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
            }
            if !more {
                return;
            }
        }
    }

    /// Grants the first in line what it wants, if that is free. Under the lock.
    #[inline]
    fn grant_next(&self, queue: &mut Queue) -> Option<Option<Waker>> {
        let need = queue.head_need()? as i64;
        // Nobody but the lock's holder takes permits while the flag is set: what is free here stays free.
        if self.word.load(Ordering::Relaxed) + QUEUED < need {
            return None;
        }
        let waker = queue.grant_head();
        let flag = if queue.waiting() == 0 { QUEUED } else { 0 };
        // Acquire: on behalf of the waiter, who sees it through the lock. Pairs with (R) in `release`, of whichever
        // releases have added up.
        let acquire = weakened!("semaphore_relaxed_grant", Acquire);
        self.word.fetch_add(flag - need, acquire);
        Some(waker)
    }

    /// Joins the line for `n` permits, or takes them when they have become free meanwhile.
    #[cold]
    pub(super) fn join_line(&self, n: i64, waker: Waker) -> Joined {
        let mut queue = self.queue.lock();
        if queue.closed && !cfg!(tollgate_bug = "semaphore_unseen_close") {
            drop(queue);
            drop(waker);
            return Joined::Closed;
        }
        if queue.waiting() == 0 && self.take_or_flag(n) {
            drop(queue);
            drop(waker);
            return Joined::Taken;
        }
        Joined::Queued(queue.push(n as u64, Some(waker)))
    }

    /// Takes `n` permits if they are free, or else sets the flag, in one step. Under the lock.
    ///
    /// A release before that step is seen by it; one after it sees the flag and comes to the lock, which is held until
    /// the newcomer stands in line. And the flag is never set while what is wanted is free: that would refuse others.
    fn take_or_flag(&self, n: i64) -> bool {
        // Acquire: as in `try_take`, for permits that are taken at once.
        let acquire = weakened!("semaphore_relaxed_join", Acquire);
        if cfg!(tollgate_bug = "semaphore_early_flag") {
            let taken = self.word.fetch_sub(QUEUED, acquire) >= n;
            self.word
                .fetch_add(if taken { QUEUED - n } else { 0 }, Ordering::Relaxed);
            return taken;
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let taken = word >= n;
            let change = if taken { n } else { QUEUED };
            if cfg!(tollgate_bug = "semaphore_late_flag") && !taken {
                self.word.fetch_sub(change, Ordering::Relaxed);
                return false;
            }
            match self
                .word
                .compare_exchange_weak(word, word - change, acquire, Ordering::Relaxed)
            {
                Ok(_) => return taken,
                Err(seen) => word = seen,
            }
        }
    }

    /// Joins the line, and holds a place even when the permits are free: the form that a claim needs.
    pub(super) fn join_as_claim(&self, n: i64, waker: &Waker) -> Key {
        match self.join_line(n, waker.clone()) {
            Joined::Queued(key) => key,
            Joined::Taken => {
                let key = self.queue.lock().push_granted(n as u64);
                if !cfg!(tollgate_bug = "semaphore_quiet_claim") {
                    waker.wake_by_ref();
                }
                key
            }
            Joined::Closed => {
                // Nothing is granted any more: the next attempt finds it closed.
                let key = {
                    let mut queue = self.queue.lock();
                    let key = queue.push_granted(0);
                    queue.mark_closed(key);
                    key
                };
                waker.wake_by_ref();
                key
            }
        }
    }

    /// The owner of a place looks. A place whose wait has ended is given up by that. What was granted before the
    /// semaphore was closed, and not looked at since, is given back: whoever looks at a closed one is told so.
    pub(super) fn look(&self, key: Key, waker: Option<&Waker>) -> State {
        let waker = waker.cloned();
        let mut queue = self.queue.lock();
        let state = queue.state(key);
        let need = queue.need(key) as i64;
        let too_late = state == State::Granted && queue.closed;
        if state == State::Waiting {
            let old = waker.and_then(|waker| queue.set_waker(key, waker));
            drop(queue);
            drop(old);
        } else {
            let (_, old, spare) = queue.remove(key);
            drop(queue);
            drop((old, spare, waker));
        }
        if too_late {
            if !cfg!(tollgate_bug = "semaphore_close_keeps_grant") {
                self.release(need);
            }
            return State::Closed;
        }
        state
    }

    /// The owner of a place goes. What it had been granted goes to the next; if it was first in line, those behind it
    /// move up.
    #[cold]
    pub(super) fn leave_line(&self, key: Key) {
        let mut queue = self.queue.lock();
        let was_head = queue.is_head(key);
        let need = queue.need(key) as i64;
        let (state, waker, spare) = queue.remove(key);
        if state == State::Waiting && queue.waiting() == 0 {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
        drop(queue);
        drop((waker, spare));
        match state {
            #[cfg(not(tollgate_bug = "semaphore_leaks_granted"))]
            State::Granted => self.release(need),
            #[cfg(not(tollgate_bug = "semaphore_head_leaves_quietly"))]
            State::Waiting if was_head => self.hand_over(),
            _ => {
                let _ = (need, was_head);
            }
        }
    }

    /// True when the place has been granted what it wants.
    pub(super) fn is_granted(&self, key: Key) -> bool {
        self.queue.lock().state(key) == State::Granted
    }

    /// True when `n` permits could be taken now.
    pub(super) fn has_free(&self, n: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        u64::try_from(word).is_ok_and(|free| free >= n)
    }
}

/// How joining the line ended.
pub(super) enum Joined {
    Queued(Key),
    Taken,
    Closed,
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("limit", &self.limit())
            .field("available", &self.signed_available())
            .finish_non_exhaustive()
    }
}
