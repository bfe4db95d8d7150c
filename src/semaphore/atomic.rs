//! The semaphore's state machine: one signed word, a limit beside it, and a queue behind a lock that only waiters touch.
//!
//! The word is `available`, minus [`QUEUED`] (the *flag*) while there is a waiter or a watcher, or the semaphore is closed:
//!
//! | word | meaning |
//! |---|---|
//! | `0 ..= MAX_PERMITS` | that many permits are free, nothing waits |
//! | `-MAX_PERMITS .. 0` | debt: that many more are held than the limit allows, nothing waits |
//! | below `-MAX_PERMITS` | `available - QUEUED`: take the lock |
//!
//! So an admission is one signed comparison and one compare-exchange, and a release is one addition. While the flag is set, only the
//! holder of the lock takes permits, and grants them to the first of the queue. The steps by name, and why they hold:
//! `src/semaphore/README.md`.

use super::watchers::Watching;
use crate::core::ask::{Demand, Role};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::sync::shim::atomic::{AtomicI64, AtomicU8, Ordering};
use crate::sync::shim::{Mutex, const_fn};
use crate::sync::unwind::drop_quietly;
use crate::sync::wait_queue::{Key, Left, Place, WaitQueue, Waiters};
use crate::sync::wake::wake;
use std::fmt;
use std::task::{Poll, Waker};

/// Subtracted from the word while permits must not be taken without the lock.
const QUEUED: i64 = 1 << 62;
const MAX: i64 = (usize::MAX >> 3) as i64;

pub(super) const LEG: &str = "semaphore";

/// Why the flag stays although nothing waits: bits of `Semaphore::kept`.
pub(super) mod kept {
    pub(in super::super) const CLOSED: u8 = 1;
    pub(in super::super) const WATCHED: u8 = 2;
}

/// The free permits in a word, flagged or not.
fn available(word: i64) -> i64 {
    if word < -MAX { word + QUEUED } else { word }
}

/// Limits how many operations run at once. Weighted, strictly first come first served, resizable at any moment.
///
/// ```
/// # use tollgate::Semaphore;
/// let uploads = Semaphore::new(2);
/// let (a, b) = (uploads.try_acquire()?, uploads.try_acquire()?);
/// assert!(uploads.try_acquire().is_err());
/// // A lower limit holds at once, also below the number held: permits that come back pay the debt.
/// uploads.set_limit(1);
/// assert_eq!((uploads.in_use(), uploads.debt()), (2, 1));
/// drop(a);
/// assert!(uploads.try_acquire().is_err());
/// drop(b);
/// assert!(uploads.try_acquire().is_ok());
/// # Ok::<(), tollgate::TryAcquireError>(())
/// ```
///
/// It has every method of `tokio::sync::Semaphore`, with the same meaning: change the import and nothing else. Beyond that, its
/// [`limit`](Semaphore::limit) changes while permits are held and awaited, waits may have a time-out, and it is a
/// [`Limiter`](crate::Limiter): combine it with rates in a [`Policy`](crate::Policy), which also has other orders and a bounded queue.
///
/// # Fairness
/// Strict FIFO by arrival, whatever the weights: a large request is never overtaken, and a caller that comes while another one waits
/// joins the queue. A permit that comes back is handed to the first waiter. A waiter that leaves frees those behind it at once.
///
/// **Starvation**: a future that was handed its permits keeps them until it is polled or dropped. Poll it, or drop it.
///
/// # Cancel safety
/// Every future of the semaphore can be dropped at any time: it leaves the queue, and permits that it was just handed go to the next
/// waiter.
///
/// # Memory ordering
/// Writes before a release happen before the acquisition that follows it, also through a hand-over.
pub struct Semaphore {
    word: AtomicI64,
    // Never negative. Available plus held. Written under the lock of the queue.
    limit: AtomicI64,
    made_with: i64,
    // Written under the lock of the queue, and read without it as a hint.
    kept: AtomicU8,
    pub(super) queue: WaitQueue,
    // Locked under the lock of the queue only.
    pub(super) watching: Mutex<Watching>,
}

/// The number of permits, and what callers see of it.
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
        Self::with_permits(permits)
    }

    /// [`new`](Self::new) for a `static`.
    ///
    /// # Panics
    /// If `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    ///
    /// ```
    /// # use tollgate::Semaphore;
    /// static UPLOADS: Semaphore = Semaphore::const_new(4);
    /// assert_eq!(UPLOADS.limit(), 4);
    /// ```
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    pub const fn const_new(permits: usize) -> Self {
        assert!(
            permits <= Self::MAX_PERMITS,
            "a semaphore may not have more than MAX_PERMITS permits"
        );
        Self::with_permits(permits)
    }

    const_fn! {
        fn with_permits(permits: usize) -> Self {
            Self {
                word: AtomicI64::new(permits as i64),
                limit: AtomicI64::new(permits as i64),
                made_with: permits as i64,
                kept: AtomicU8::new(0),
                queue: WaitQueue::new(LEG),
                watching: Mutex::new(Watching::new()),
            }
        }
    }

    /// Free permits, negative in debt.
    pub(super) fn signed_available(&self) -> i64 {
        // Acquire: a watcher sees the writes of the holders before. Pairs with the addition in each `release` that has added up.
        available(self.word.load(Ordering::Acquire))
    }

    #[cfg(test)]
    pub(super) fn is_flagged(&self) -> bool {
        self.word.load(Ordering::Relaxed) < -MAX
    }

    /// Permits that a caller could take now: none while there are waiters, since free permits are kept for the first of them. A
    /// snapshot.
    pub fn available_permits(&self) -> usize {
        let word = self.word.load(Ordering::Relaxed);
        if word >= -MAX {
            return word.max(0) as usize;
        }
        self.unreserved(&self.queue.lock()).max(0) as usize
    }

    /// Free permits that are not kept for a waiter.
    fn unreserved(&self, waiters: &Waiters) -> i64 {
        match waiters.first_waiting() {
            Some(_) => 0,
            None => self.signed_available(),
        }
    }

    /// The number of permits, held or free. A snapshot.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed) as usize
    }

    /// The number of permits that are held. A snapshot.
    ///
    /// A waiter that was handed its permits holds them, whether it has been polled or not.
    pub fn in_use(&self) -> usize {
        // Under the lock the limit does not change.
        let _waiters = self.queue.lock();
        (self.limit.load(Ordering::Relaxed) - self.signed_available()).max(0) as usize
    }

    /// Permits that must come back before the next admission, after the limit was set below the number held. A snapshot.
    pub fn debt(&self) -> usize {
        (-self.signed_available()).max(0) as usize
    }

    /// The number of waiters. A snapshot.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// True once [`close`](Self::close) has been called.
    pub fn is_closed(&self) -> bool {
        self.is_kept(kept::CLOSED)
    }

    /// Under the lock it is exact.
    pub(super) fn is_kept(&self, why: u8) -> bool {
        self.kept.load(Ordering::Relaxed) & why != 0
    }

    /// True when the limit is as at construction, all permits are free, and nothing waits or watches.
    pub(super) fn is_as_new(&self) -> bool {
        let _waiters = self.queue.lock();
        // A flagged word is not equal to the limit.
        let limit = self.limit.load(Ordering::Relaxed);
        limit == self.made_with && self.word.load(Ordering::Relaxed) == limit
    }
}

/// Taking and giving back without a wait.
impl Semaphore {
    /// Takes `n` permits if they are free and nothing waits.
    #[inline(always)] // row: semaphore try_acquire
    pub(super) fn try_take(&self, n: u64) -> bool {
        // More than there can be is never free.
        let n = n.min(MAX as u64 + 1) as i64;
        let mut word = self.word.load(Ordering::Relaxed);
        while word >= n {
            // Acquire: sees the writes of the holders before. Pairs with the addition in `release`.
            match self
                .word
                .compare_exchange_weak(word, word - n, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    /// [`try_take`](Self::try_take) where that found too few: permits of a flagged word are free nevertheless if nothing waits.
    #[cold]
    pub(super) fn try_take_flagged(&self, n: u64) -> bool {
        if n > 0 && self.word.load(Ordering::Relaxed) >= -MAX {
            return false;
        }
        let waiters = self.queue.lock();
        !self.is_closed() && (n == 0 || self.take(&waiters, n))
    }

    /// Changes the word by what `change` says of the free permits, in one step, and returns their number before. Under the lock.
    fn subtract(&self, change: impl Fn(i64) -> i64) -> i64 {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let free = available(word);
            let change = change(free);
            // Acquire: as in `try_take`.
            match self
                .word
                .compare_exchange_weak(word, word - change, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return free,
                Err(seen) => word = seen,
            }
        }
    }

    /// Takes `n` permits if they are free and nothing waits. Under the lock.
    fn take(&self, waiters: &Waiters, n: u64) -> bool {
        let n = n.min(MAX as u64 + 1) as i64;
        waiters.first_waiting().is_none() && self.subtract(|free| if free >= n { n } else { 0 }) >= n
    }

    /// Gives `n` permits back.
    #[inline(always)] // row: semaphore try_acquire
    pub(super) fn release(&self, n: u64) {
        // Release: publishes the writes of the holder. Acquire: on behalf of the waiter that is granted by it. Pairs with the
        // additions and exchanges that take.
        if self.word.fetch_add(n as i64, Ordering::AcqRel) < -MAX {
            self.hand_over();
        }
    }

    /// Could `n` permits be taken now?
    pub(super) fn has_free(&self, n: u64) -> bool {
        !self.is_closed() && self.available_permits() as u64 >= n
    }
}

/// The queue of waiters: joining, being granted in turn, looking, leaving.
impl Semaphore {
    /// Makes a change under the lock, and sets or removes the flag as is right after it.
    pub(super) fn reflag<R>(&self, waiters: &mut Waiters, change: impl FnOnce(&mut Waiters) -> R) -> R {
        let before = self.wants_flag(waiters);
        let result = change(waiters);
        match (before, self.wants_flag(waiters)) {
            // Relaxed: the flag only sends others to the lock.
            (false, true) => self.word.fetch_sub(QUEUED, Ordering::Relaxed),
            (true, false) => self.word.fetch_add(QUEUED, Ordering::Relaxed),
            _ => 0,
        };
        result
    }

    /// The invariant, under the lock: the word is flagged if and only if this holds.
    fn wants_flag(&self, waiters: &Waiters) -> bool {
        self.kept.load(Ordering::Relaxed) != 0 || waiters.first_waiting().is_some()
    }

    /// The flag is to stay for this reason, or need not. Under the lock.
    pub(super) fn keep_flag(&self, waiters: &mut Waiters, why: u8, stays: bool) {
        self.reflag(waiters, |_| {
            let kept = self.kept.load(Ordering::Relaxed);
            let kept = if stays { kept | why } else { kept & !why };
            self.kept.store(kept, Ordering::Relaxed);
        });
    }

    /// Takes `n` permits if they are free and nothing waits, or else sets the flag, in one step. Under the lock, which is held until the
    /// caller has joined. Without `takes` free permits stay.
    ///
    /// A release before this step is seen by it. A release after it finds the flag, and comes to the lock. The flag is never set while
    /// enough permits are free: that would refuse others.
    fn take_or_flag(&self, waiters: &Waiters, n: u64, takes: bool) -> bool {
        if waiters.first_waiting().is_some() {
            return false;
        }
        let n = n as i64;
        let flag = if self.wants_flag(waiters) { 0 } else { QUEUED };
        let free = self.subtract(|free| match free >= n {
            true if takes => n,
            true => 0,
            false => flag,
        });
        free >= n
    }

    /// Grants from the front as long as permits suffice, and wakes.
    #[cold]
    pub(super) fn hand_over(&self) {
        let mut more = true;
        while more {
            let Some((waker, may_grant)) = self.grant_first() else {
                break;
            };
            wake(waker);
            more = may_grant;
        }
        // A watcher that comes after the lock was held reads the word after this release.
        if self.is_kept(kept::WATCHED) {
            self.wake_watchers();
        }
    }

    /// Grants the first, if that is possible now. `true` beside its waker: so it may be for the next.
    fn grant_first(&self) -> Option<(Waker, bool)> {
        let mut waiters = self.queue.lock();
        let (_, age, units) = waiters.first_waiting()?;
        if let Some(lacks @ 1..) = (units as i64).checked_sub(self.signed_available()) {
            let back = self.queue.take_back(&mut waiters, age, lacks as u64, false);
            if back == 0 {
                return None;
            }
            // Relaxed: nothing was written under these permits.
            self.word.fetch_add(back as i64, Ordering::Relaxed);
        }
        let waker = self.queue.grant(&mut waiters)?;
        let flag = if self.wants_flag(&waiters) { 0 } else { QUEUED };
        // Acquire: on behalf of the waiter, which locks the queue. Pairs with the addition in each `release` that has added up.
        self.word.fetch_add(flag - units as i64, Ordering::Acquire);
        // A release from now on comes to the lock itself.
        let more = waiters.first_waiting().is_some() && (self.signed_available() > 0 || waiters.has_granted());
        Some((waker, more))
    }

    /// Takes `n` permits, or joins the queue for them: its key there. Fails when the semaphore is closed.
    pub(super) fn take_or_join(&self, n: u64, waker: &Waker) -> Result<Option<usize>, Closed> {
        let waker = waker.clone();
        let mut waiters = self.queue.lock();
        let taken = if self.is_closed() {
            Err(Closed)
        } else if n == 0 || self.take_or_flag(&waiters, n, true) {
            Ok(None)
        } else {
            return Ok(Some(self.queue.join(&mut waiters, n, waker)));
        };
        drop(waiters);
        // Permits that were taken are not lost to a drop that panics.
        drop_quietly(waker);
        taken
    }

    /// Looks how the wait of this caller stands, and leaves `waker` as long as it goes on. Permits that were granted before a close, and
    /// not looked at since, are given back.
    pub(super) fn look_at(&self, key: usize, waker: &Waker) -> Poll<Result<(), Closed>> {
        let mut waiters = self.queue.lock();
        if let Some(own) = waiters.waker(key) {
            if own.will_wake(waker) {
                return Poll::Pending;
            }
            drop(waiters);
            let mut other = waker.clone();
            waiters = self.queue.lock();
            let own = waiters.waker(key).map(|own| std::mem::swap(own, &mut other));
            drop(waiters);
            drop_quietly(other);
            if own.is_some() {
                return Poll::Pending;
            }
            waiters = self.queue.lock();
        }
        let left = self.queue.remove(&mut waiters, Key::Caller(key));
        let closed = self.is_closed();
        drop(waiters);
        match left {
            Some((Left::Granted(_), _)) if !closed => return Poll::Ready(Ok(())),
            Some((Left::Granted(n), _)) => self.release(n),
            _ => {}
        }
        Poll::Ready(Err(Closed))
    }

    /// Ends a wait. Permits that were granted go to the next. If it was the first, those behind it may be granted.
    pub(super) fn leave_at(&self, key: Key) {
        let mut waiters = self.queue.lock();
        let left = self.reflag(&mut waiters, |waiters| self.queue.remove(waiters, key));
        drop(waiters);
        let Some((left, waker)) = left else { return };
        drop_quietly(waker);
        match left {
            Left::Granted(n) => self.release(n),
            Left::First => self.hand_over(),
            Left::Other => {}
        }
    }

    /// Closes the semaphore for good: all waits and attempts fail from then on. Permits that are held stay valid.
    pub fn close(&self) {
        let mut waiters = self.queue.lock();
        if self.is_closed() {
            return;
        }
        self.keep_flag(&mut waiters, kept::CLOSED, true);
        let wakers = self.queue.end_waiting(&mut waiters);
        drop(waiters);
        wakers.into_iter().for_each(wake);
        self.queue.tell_watchers();
    }
}

/// The semaphore is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

/// Policies: their head waits by its place, and takes what it was granted with its next attempt.
impl Semaphore {
    #[cold]
    pub(super) fn refusal(&self, units: u64) -> Refusal {
        let limit = self.limit.load(Ordering::Relaxed) as u64;
        // A limit of zero is a pause.
        let oversized = units > MAX as u64 || limit > 0 && units > limit;
        let (reason, wait) = match self.is_closed() {
            true => (Reason::Closed, Wait::Never),
            false if oversized => (Reason::Oversized, Wait::Never),
            false => (Reason::Saturated, Wait::EVENT),
        };
        Refusal::new(reason, LEG, wait)
    }

    /// Takes `units` for a head: those that its place was granted, or free ones.
    #[cold]
    pub(super) fn try_take_as_head(&self, place: &Place, units: u64) -> bool {
        // Under one lock: between a look and this an older head may take the grant back.
        let mut waiters = self.queue.lock();
        if self.is_closed() {
            return false;
        }
        match place.age() {
            Some(age) if waiters.granted(age) == Some(units) => {
                let left = self.queue.remove(&mut waiters, Key::Head(age));
                drop(waiters);
                drop(left);
                true
            }
            _ => units == 0 || self.take(&waiters, units),
        }
    }

    /// Would the head be admitted now? A head that is to join joins the queue if not.
    pub(super) fn look_as_head(&self, demand: &Demand<'_>, place: &Place) -> Result<(), Refusal> {
        let (units, age) = (demand.units(), place.age());
        self.leave_grant_of_other(age, units);
        let mut waiters = self.queue.lock();
        let refusal = self.refusal(units);
        let is_open = refusal.reason() != Reason::Closed;
        if is_open && (units == 0 || age.is_some_and(|age| waiters.granted(age) == Some(units))) {
            return Ok(());
        }
        let may_wait = refusal.wait() != Wait::Never;
        let stands = may_wait && age.is_some_and(|age| waiters.waits(age, units));
        if !stands {
            let joins = may_wait && demand.role() == Role::Joining;
            let free = match joins {
                true => self.take_or_flag(&waiters, units, false),
                false => may_wait && self.unreserved(&waiters) >= units as i64,
            };
            if free {
                return Ok(());
            }
            if !joins {
                drop(waiters);
                place.waits_for_hand_over(false);
                return Err(refusal);
            }
            self.queue.join_place(&mut waiters, units, place);
        }
        drop(waiters);
        // It may be the oldest, or want less than the head whose place it has.
        self.hand_over();
        if place
            .age()
            .is_some_and(|age| self.queue.lock().granted(age) == Some(units))
        {
            return Ok(());
        }
        place.waits_for_hand_over(true);
        Err(refusal)
    }

    /// A grant of another number of permits was for a head before: it goes to the next.
    fn leave_grant_of_other(&self, age: Option<u64>, units: u64) {
        let Some(age) = age else { return };
        let granted = self.queue.lock().granted(age);
        if granted.is_some_and(|granted| granted != units) {
            self.leave_at(Key::Head(age));
        }
    }
}

/// The limit changes under the lock, and the word beside it by the same difference in one addition.
impl Semaphore {
    /// Sets the number of permits, at once, whatever is held or awaited.
    ///
    /// A raise admits as many waiters from the front as fit. A limit below the number held makes a [`debt`](Self::debt), which must be
    /// paid before the next admission. Zero pauses. Numbers above [`MAX_PERMITS`](Self::MAX_PERMITS) count as that.
    pub fn set_limit(&self, limit: usize) {
        let new = limit.min(Self::MAX_PERMITS) as i64;
        {
            let mut waiters = self.queue.lock();
            let old = self.limit.swap(new, Ordering::Relaxed);
            // Release: a raise is a release of new permits. Pairs with the additions and exchanges that take.
            self.word.fetch_add(new - old, Ordering::Release);
            self.take_back_debt(&mut waiters);
        }
        self.limit_changed();
    }

    /// What policies were granted and have not redeemed pays the debt: they wait again. Under the lock.
    fn take_back_debt(&self, waiters: &mut Waiters) {
        let Some(debt @ 1..) = self.signed_available().checked_neg() else {
            return;
        };
        let flagged = self.wants_flag(waiters);
        let back = self.queue.take_back(waiters, 0, debt as u64, true);
        let flag = if self.wants_flag(waiters) == flagged { 0 } else { QUEUED };
        // In one step: no caller takes them. Relaxed: nothing was written under these permits.
        self.word.fetch_add(back as i64 - flag, Ordering::Relaxed);
    }

    /// After a change, outside the lock: grants, and has policies judge their waiters anew.
    fn limit_changed(&self) {
        self.hand_over();
        self.queue.tell_watchers();
    }

    /// Adds `n` permits to the limit.
    ///
    /// # Panics
    /// If the limit would exceed [`MAX_PERMITS`](Self::MAX_PERMITS). Nothing is added then.
    ///
    /// ```
    /// # use tollgate::Semaphore;
    /// let slots = Semaphore::new(2);
    /// slots.add_permits(3);
    /// assert_eq!(slots.limit(), 5);
    /// assert_eq!(slots.forget_permits(4), 4); // Takes free permits alone.
    /// assert_eq!((slots.limit(), slots.available_permits()), (1, 1));
    /// ```
    #[track_caller]
    pub fn add_permits(&self, n: usize) {
        // The panic comes after the lock: a panic hook is foreign code.
        assert!(
            self.try_add(n),
            "number of added permits ({n}) would overflow MAX_PERMITS ({})",
            Self::MAX_PERMITS
        );
        if n > 0 {
            self.limit_changed();
        }
    }

    fn try_add(&self, n: usize) -> bool {
        let _waiters = self.queue.lock();
        let Some(sum) = self.limit().checked_add(n).filter(|&sum| sum <= Self::MAX_PERMITS) else {
            return false;
        };
        self.limit.store(sum as i64, Ordering::Relaxed);
        // Release: as in `set_limit`.
        self.word.fetch_add(n as i64, Ordering::Release);
        true
    }

    /// Removes up to `n` free permits for good and returns their number: none while there are waiters. Permits that are held stay. To
    /// shrink below the number held, use [`set_limit`](Self::set_limit).
    pub fn forget_permits(&self, n: usize) -> usize {
        let taken = self.take_free(i64::try_from(n).unwrap_or(MAX));
        if taken > 0 {
            self.queue.tell_watchers();
        }
        taken as usize
    }

    fn take_free(&self, most: i64) -> i64 {
        let waiters = self.queue.lock();
        if waiters.first_waiting().is_some() {
            return 0;
        }
        let taken = self.subtract(|free| free.clamp(0, most)).clamp(0, most);
        self.limit.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    /// Takes `n` permits that are held off the limit, for good. As far as they exceed the limit, they pay a debt.
    #[cold]
    pub(super) fn lose(&self, n: u64) {
        {
            let _waiters = self.queue.lock();
            let old = self.limit.load(Ordering::Relaxed);
            let new = (old - n as i64).max(0);
            self.limit.store(new, Ordering::Relaxed);
            // Relaxed: at a limit of zero no caller can take the permits that this adds.
            self.word.fetch_add(n as i64 - (old - new), Ordering::Relaxed);
        }
        self.limit_changed();
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("limit", &self.limit())
            .field("available", &self.signed_available())
            .field("waiting", &self.waiting())
            .field("closed", &self.is_closed())
            .finish()
    }
}
