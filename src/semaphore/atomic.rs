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
//! Invariant, under the lock: the flag is set if and only if the queue is not empty or closed.

use crate::sync::queue::{Key, Queue, State};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicI64, Ordering};
use std::fmt;
use std::task::Waker;

/// What is subtracted from the word while permits must not be taken without the lock.
const QUEUED: i64 = 1 << 62;
const MAX: i64 = (usize::MAX >> 3) as i64;

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
    word: AtomicI64,
    limit: AtomicI64,
    queue: Mutex<Queue>,
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
        assert!(permits <= Self::MAX_PERMITS);
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

    /// How many permits are free; none while somebody waits, since what is free is then promised to the first in line.
    /// A snapshot.
    pub fn available_permits(&self) -> usize {
        let word = self.word.load(Ordering::Relaxed);
        if word >= -MAX {
            return word.max(0) as usize;
        }
        let queue = self.queue.lock();
        match queue.waiting() {
            0 => self.signed_available().max(0) as usize,
            _ => 0,
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

    /// Sets how many permits there are, at once, whatever is held and whoever waits.
    ///
    /// A raise admits as many from the front as fit. A shrink below what is held becomes [`debt`](Self::debt): nobody
    /// is admitted before it is paid. Zero pauses. Numbers above [`MAX_PERMITS`](Self::MAX_PERMITS) count as that.
    pub fn set_limit(&self, limit: usize) {
        let new = limit.min(Self::MAX_PERMITS) as i64;
        {
            let _queue = self.queue.lock();
            let old = self.limit.swap(new, Ordering::Relaxed);
            // Release: a raise is a release of new permits. Pairs with the acquiring operations on the word.
            self.word.fetch_add(new - old, Ordering::Release);
        }
        #[cfg(not(tollgate_bug = "semaphore_resize_wakes_nobody"))]
        self.hand_over();
    }

    /// Adds `n` permits to the limit.
    ///
    /// # Panics
    /// If more than [`MAX_PERMITS`](Self::MAX_PERMITS) would be free.
    pub fn add_permits(&self, n: usize) {
        if n == 0 {
            return;
        }
        {
            let _queue = self.queue.lock();
            let free = self.signed_available();
            let sum = i64::try_from(n).ok().and_then(|n| free.checked_add(n));
            assert!(
                sum.is_some_and(|sum| sum <= MAX),
                "number of added permits ({n}) would overflow MAX_PERMITS ({})",
                Self::MAX_PERMITS
            );
            let limit = self.limit.load(Ordering::Relaxed);
            self.limit
                .store(limit.saturating_add(n as i64).min(MAX), Ordering::Relaxed);
            // Release: as in `release`.
            self.word.fetch_add(n as i64, Ordering::Release);
        }
        self.hand_over();
    }

    /// Takes up to `n` free permits away for good and returns how many. Permits that are held, or promised to the first
    /// in line, are not touched: to shrink below those, [`set_limit`](Self::set_limit).
    pub fn forget_permits(&self, n: usize) -> usize {
        let queue = self.queue.lock();
        if queue.waiting() > 0 {
            return 0;
        }
        let wanted = i64::try_from(n).unwrap_or(MAX);
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let free = if word < -MAX { word + QUEUED } else { word };
            let taken = free.clamp(0, wanted);
            // Relaxed: nobody's work is ordered after permits that are gone.
            match self
                .word
                .compare_exchange_weak(word, word - taken, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    self.limit.fetch_sub(taken, Ordering::Relaxed);
                    return taken as usize;
                }
                Err(seen) => word = seen,
            }
        }
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
        #[cfg(not(tollgate_bug = "semaphore_close_wakes_nobody"))]
        for waker in wakers {
            waker.wake();
        }
        #[cfg(tollgate_bug = "semaphore_close_wakes_nobody")]
        drop(wakers);
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
            #[cfg(not(tollgate_bug = "semaphore_relaxed_acquire"))]
            let acquire = Ordering::Acquire;
            #[cfg(tollgate_bug = "semaphore_relaxed_acquire")]
            let acquire = Ordering::Relaxed;
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
        #[cfg(not(tollgate_bug = "semaphore_relaxed_release"))]
        let release = Ordering::Release;
        #[cfg(tollgate_bug = "semaphore_relaxed_release")]
        let release = Ordering::Relaxed;
        if self.word.fetch_add(n, release) < -MAX {
            self.hand_over();
        }
    }

    /// `n` permits are gone for good.
    pub(super) fn lose(&self, n: i64) {
        let _queue = self.queue.lock();
        self.limit.fetch_sub(n, Ordering::Relaxed);
    }

    /// Grants from the front as long as permits suffice, and wakes whom it granted: one at a time, outside the lock.
    #[cold]
    pub(super) fn hand_over(&self) {
        loop {
            let (waker, more) = {
                let mut queue = self.queue.lock();
                match self.grant_next(&mut queue) {
                    Some(waker) => (waker, self.can_grant(&mut queue)),
                    None => return,
                }
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            if !more {
                return;
            }
        }
    }

    /// True when the first in line could be granted what it wants. Under the lock.
    #[inline]
    fn can_grant(&self, queue: &mut Queue) -> bool {
        // Nobody but the lock's holder takes permits while the flag is set: what is free here stays free.
        queue
            .head_need()
            .is_some_and(|need| self.word.load(Ordering::Relaxed) + QUEUED >= need as i64)
    }

    /// Grants the first in line what it wants, if that is free. Under the lock.
    #[inline]
    fn grant_next(&self, queue: &mut Queue) -> Option<Option<Waker>> {
        if !self.can_grant(queue) {
            return None;
        }
        let need = queue.head_need()? as i64;
        let waker = queue.grant_head();
        let flag = if queue.waiting() == 0 { QUEUED } else { 0 };
        // Acquire: on behalf of the waiter, who sees it through the lock. Pairs with (R) in `release`, of whichever
        // releases have added up.
        #[cfg(not(tollgate_bug = "semaphore_relaxed_grant"))]
        let acquire = Ordering::Acquire;
        #[cfg(tollgate_bug = "semaphore_relaxed_grant")]
        let acquire = Ordering::Relaxed;
        self.word.fetch_add(flag - need, acquire);
        Some(waker)
    }

    /// Joins the line for `n` permits, or takes them when they have become free meanwhile.
    #[cold]
    pub(super) fn join_line(&self, n: i64, waker: Waker) -> Joined {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            drop(waker);
            return Joined::Closed;
        }
        if queue.waiting() == 0 {
            // The flag is set by the same operation that reads the word: a release before it is seen here, one after
            // it sees the flag and comes to the lock, which we hold until we stand in line.
            // Acquire: as in `try_take`, for permits that are taken at once.
            #[cfg(not(tollgate_bug = "semaphore_late_flag"))]
            let word = self.word.fetch_sub(QUEUED, Ordering::Acquire);
            #[cfg(tollgate_bug = "semaphore_late_flag")]
            let word = self.word.load(Ordering::Acquire);
            if word >= n {
                #[cfg(not(tollgate_bug = "semaphore_late_flag"))]
                self.word.fetch_add(QUEUED - n, Ordering::Relaxed);
                #[cfg(tollgate_bug = "semaphore_late_flag")]
                self.word.fetch_sub(n, Ordering::Relaxed);
                drop(queue);
                drop(waker);
                return Joined::Taken;
            }
            #[cfg(tollgate_bug = "semaphore_late_flag")]
            self.word.fetch_sub(QUEUED, Ordering::Relaxed);
        }
        Joined::Queued(queue.push(n as u64, Some(waker)))
    }

    /// Joins the line, and holds a place even when the permits are free: the form that a claim needs.
    pub(super) fn join_as_claim(&self, n: i64, waker: &Waker) -> Key {
        match self.join_line(n, waker.clone()) {
            Joined::Queued(key) => key,
            Joined::Taken => {
                let key = self.queue.lock().push_granted(n as u64);
                waker.wake_by_ref();
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

    /// The owner of a place looks. A place whose wait has ended is given up by that.
    pub(super) fn look(&self, key: Key, waker: Option<&Waker>) -> State {
        let mut queue = self.queue.lock();
        if queue.state(key) == State::Waiting {
            if let Some(waker) = waker.filter(|waker| !queue.wakes(key, waker)) {
                // Cloned and dropped outside the lock: both may run foreign code.
                drop(queue);
                return self.look_with(key, waker.clone());
            }
            return State::Waiting;
        }
        let (state, old, spare) = queue.remove(key);
        drop(queue);
        drop((old, spare));
        state
    }

    /// [`look`](Self::look), leaving another waker.
    #[cold]
    fn look_with(&self, key: Key, waker: Waker) -> State {
        let mut queue = self.queue.lock();
        if queue.state(key) == State::Waiting {
            let old = queue.set_waker(key, waker);
            drop(queue);
            drop(old);
            return State::Waiting;
        }
        drop(queue);
        drop(waker);
        self.look(key, None)
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
        let moves_up = state == State::Waiting && was_head && self.can_grant(&mut queue);
        drop(queue);
        drop((waker, spare));
        #[cfg(tollgate_bug = "semaphore_leaks_granted")]
        let state = State::Closed;
        #[cfg(tollgate_bug = "semaphore_head_leaves_quietly")]
        let moves_up = false && moves_up;
        if state == State::Granted {
            self.release(need);
        } else if moves_up {
            self.hand_over();
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
