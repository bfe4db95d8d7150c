//! The semaphore's state machine: one signed word, a limit beside it, and a queue behind a lock that only waiters touch.
//!
//! The word is `available`, minus [`QUEUED`] while the queue has a waiter or a watcher, or the semaphore is closed or counts:
//!
//! | word | meaning |
//! |---|---|
//! | `0 ..= MAX_PERMITS` | that many permits are free, nothing waits |
//! | `-MAX_PERMITS .. 0` | debt: that many more are held than the limit allows, nothing waits |
//! | below `-MAX_PERMITS` | `available - QUEUED`: take the lock |
//!
//! So admission is one signed comparison and one compare-exchange, and a release is one addition. While the flag is
//! set, only the holder of the lock takes permits, and hands them to the head of the queue.
//!
//! Invariant, under the lock: the flag is set if and only if the queue has a waiter or a watcher, or the semaphore is closed or
//! counts. The protocol's steps by name, and why it holds: `src/semaphore/README.md`.
//!
//! In this file, in this order: the word and its fast paths; the queue of waiters; orders other than plain FIFO; passive
//! waiters (policies and pool workers); changes of the limit. `watchers` has the watchers.

use crate::semaphore::queue::{Granted, Key, Queue, State};
use crate::sync::notify::Notify;
use crate::sync::shim::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use crate::sync::shim::{Mutex, MutexGuard, OnceLock};
#[cfg(feature = "pool")]
use crate::sync::wake::quietly;
use crate::sync::wake::{PanicCollector, drop_quietly, wake, wake_all};
use std::fmt;
use std::task::Waker;

/// Subtracted from the word while permits must not be taken without the lock.
const QUEUED: i64 = 1 << 62;
const MAX: i64 = (usize::MAX >> 3) as i64;

mod watchers;

/// The number of wakers that are woken at a time, outside the lock.
const BATCH: usize = 32;

/// True when the head of the queue wants no more than `free` permits.
#[inline]
fn head_fits(queue: &mut Queue, free: i64) -> bool {
    free > 0 && queue.head_need().is_some_and(|need| free >= need as i64)
}

/// Set in `served` when the semaphore is closed: from then on every waiter looks under the lock.
const CLOSED: u64 = 1 << 63;

/// Limits how many operations run at once. Weighted, strictly first come first served, resizable at any moment.
///
/// It has every method of `tokio::sync::Semaphore`, with the same meaning: change the import and nothing else. Beyond
/// that, its [`limit`](Semaphore::limit) can be set while permits are held and awaited, its waits may have time-outs, and it is
/// a [`Limiter`](crate::Limiter), so that it composes with rates.
///
/// # Fairness
/// Strict FIFO by arrival, whatever the weights: a large request is never overtaken, and a caller that comes while another
/// waits joins the queue. Permits are handed over, not put up for grabs. A waiter that leaves frees those behind it at once.
///
/// **Starvation**: a future that has been handed its permits keeps them until it is polled or dropped. Do not park such a
/// future.
///
/// # Cancel safety
/// Every future of it can be dropped at any time: it leaves the queue, and permits that had just been handed over go to the
/// next waiter.
///
/// # Memory ordering
/// Writes before a release happen before the acquisition that follows it, also through a hand-over.
///
/// ```
/// # use tollgate::Semaphore;
/// let semaphore = Semaphore::new(2);
/// let (a, b) = (semaphore.try_acquire().unwrap(), semaphore.try_acquire().unwrap());
/// // A shrink is effective at once, also below the number held: permits that come back pay the debt.
/// semaphore.set_limit(1);
/// assert_eq!((semaphore.in_use(), semaphore.debt()), (2, 1));
/// drop(a);
/// assert!(semaphore.try_acquire().is_err());
/// drop(b);
/// assert!(semaphore.try_acquire().is_ok());
/// ```
pub struct Semaphore {
    word: AtomicI64,
    /// Never negative. Available plus held.
    limit: AtomicI64,
    /// One more than the number of the waiter that was granted last. The top bit is set once the semaphore is closed.
    served: AtomicU64,
    /// The limit at construction, or by the last version of a policy. Written under the queue's lock.
    made_with: AtomicI64,
    queue: Mutex<Queue>,
    /// True unless the queue has a schedule or bounds, or may be overtaken.
    plain: bool,
    /// How often the head of the queue may be overtaken; zero in strict order.
    overtakes: u32,
    name: Option<Box<str>>,
    /// The largest limit that was ever set. Written under the queue's lock.
    largest: AtomicI64,
    /// Fires when the limit is raised. Made when a policy first waits for that.
    raised: OnceLock<Box<Notify>>,
}

/// A semaphore of which all `permits` are free. A macro: the models' atomics have no constant constructors.
macro_rules! fresh {
    ($permits:ident) => {
        Self {
            word: AtomicI64::new($permits as i64),
            limit: AtomicI64::new($permits as i64),
            served: AtomicU64::new(0),
            made_with: AtomicI64::new($permits as i64),
            queue: Mutex::new(Queue::new()),
            plain: true,
            overtakes: 0,
            name: None,
            largest: AtomicI64::new($permits as i64),
            raised: OnceLock::new(),
        }
    };
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
        fresh!(permits)
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
        fresh!(permits)
    }

    /// A semaphore with a scheduled or bounded queue, or one that may be overtaken, or with a name.
    pub(super) fn built(permits: usize, queue: Option<Queue>, overtakes: u32, name: Option<Box<str>>) -> Self {
        let mut semaphore = Self::new(permits);
        semaphore.plain = queue.is_none() && overtakes == 0;
        if let Some(queue) = queue {
            if queue.keeps_flag() {
                // One that counts is always flagged: every caller comes by the lock.
                semaphore.word = AtomicI64::new(permits as i64 - QUEUED);
            }
            semaphore.queue = Mutex::new(queue);
        }
        semaphore.overtakes = overtakes;
        semaphore.name = name;
        semaphore
    }

    pub(super) fn signed_available(&self) -> i64 {
        let word = self.word.load(Ordering::Relaxed);
        if word < -MAX { word + QUEUED } else { word }
    }

    /// Permits that a caller could take now: none while there are waiters, since free permits are kept for the head of the
    /// queue. A snapshot.
    pub fn available_permits(&self) -> usize {
        let word = self.word.load(Ordering::Relaxed);
        if word >= -MAX {
            return word.max(0) as usize;
        }
        let queue = self.queue.lock();
        self.unreserved(&queue).max(0) as usize
    }

    /// Free permits that are not kept for the head of the queue. Under the lock.
    fn unreserved(&self, queue: &Queue) -> i64 {
        if queue.is_empty() { self.signed_available() } else { 0 }
    }

    /// The number of permits, held or free. A snapshot.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed).max(0) as usize
    }

    /// The number of permits that are held. A snapshot.
    pub fn in_use(&self) -> usize {
        self.held_now(&self.queue.lock()) as usize
    }

    /// The number of permits that are held. Under the lock, where the limit does not change.
    fn held_now(&self, _: &Queue) -> i64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.signed_available()).max(0)
    }

    /// Permits that must come back before the next admission, after a shrink below the number held. A snapshot.
    pub fn debt(&self) -> usize {
        (-self.signed_available()).max(0) as usize
    }

    /// The name given to the [builder](Self::builder).
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The number of waiters. A snapshot.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting()
    }

    #[cfg(feature = "stats")]
    pub(super) fn locked_queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// True once it has been closed.
    pub fn is_closed(&self) -> bool {
        // A closed semaphore has the flag set, so that an open one without waiters is not locked.
        self.word.load(Ordering::Relaxed) < -MAX && self.queue.lock().closed
    }

    /// Takes `n` permits if they are free and nothing waits.
    #[inline]
    pub(super) fn try_take(&self, n: i64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word >= n {
            // Acquire: sees the writes of the previous holders. Pairs with (R) in `release`.
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

    /// False when fewer than `n` permits are free. Some of them may be kept for a waiter. True of a semaphore that counts, which
    /// counts its refusals as well.
    #[inline(always)]
    pub(crate) fn may_have(&self, n: u64) -> bool {
        match u64::try_from(self.word.load(Ordering::Relaxed)) {
            Ok(free) => free >= n,
            Err(_) => !self.plain || u64::try_from(self.signed_available()).is_ok_and(|free| free >= n),
        }
    }

    /// Gives `n` permits back.
    #[inline]
    pub(super) fn release(&self, n: i64) {
        // (R) Release: publishes the holder's writes. Pairs with the acquiring operations on the word. Acquire: with
        // `order_releases`.
        if self.word.fetch_add(n, Ordering::AcqRel) < -MAX {
            self.hand_over();
        }
    }

    /// Puts the releases in two parts: the caller sees what the holders wrote before the earlier ones, and the later ones see what the
    /// caller wrote before this call. It changes nothing else.
    pub(crate) fn order_releases(&self) {
        // AcqRel: pairs with (R) in `release`, both ways.
        self.word.fetch_add(0, Ordering::AcqRel);
    }

    /// True when the limit is as at construction, all permits are free, and nothing waits.
    pub(super) fn is_untouched(&self) -> bool {
        let queue = self.queue.lock();
        // Relaxed: a limit changes under the lock, and a flagged word is not equal to it.
        let limit = self.limit.load(Ordering::Relaxed);
        let word = self.word.load(Ordering::Relaxed);
        limit == self.made_with.load(Ordering::Relaxed) && word == limit && !queue.is_watched()
    }

    /// Counts the limit in force as the one that it was made with: a version of a policy decides it, and not the key.
    pub(crate) fn adopt_settings(&self) {
        let _queue = self.queue.lock();
        // Relaxed: read and written under the lock.
        let limit = self.limit.load(Ordering::Relaxed);
        self.made_with.store(limit, Ordering::Relaxed);
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

/// The queue of waiters, under its lock: joining, being granted in turn, looking, leaving.
impl Semaphore {
    /// Grants from the head as long as permits suffice, and wakes the waiters that it granted.
    #[inline(never)]
    fn hand_over(&self) {
        let mut queue = self.queue.lock();
        if !self.plain || queue.keeps_flag() {
            return self.hand_over_special(queue);
        }
        let Some((first, free)) = self.grant_next(&mut queue) else {
            return;
        };
        // Mostly one permit comes back, and one waiter is granted.
        let more = head_fits(&mut queue, free);
        let spare = queue.spare();
        drop(queue);
        drop(spare);
        if more {
            let mut panics = PanicCollector::default();
            if let Some(waker) = first {
                panics.wake(waker);
            }
            panics.run(|| self.hand_over_more());
            panics.end();
        } else if let Some(waker) = first {
            wake(waker);
        }
    }

    #[cold]
    fn hand_over_more(&self) {
        let mut wakers: [Option<Waker>; BATCH] = [const { None }; BATCH];
        let mut panics = PanicCollector::default();
        let (mut more, mut watched) = (true, false);
        while more {
            let mut granted = 0;
            let mut queue = self.queue.lock();
            while granted < BATCH {
                let Some((waker, _)) = self.grant_next(&mut queue) else {
                    break;
                };
                wakers[granted] = waker;
                granted += 1;
            }
            more = granted == BATCH;
            // A watcher may have come in between.
            watched = queue.is_watched();
            let spare = queue.spare();
            drop(queue);
            drop(spare);
            for waker in wakers[..granted].iter_mut().filter_map(Option::take) {
                panics.wake(waker);
            }
        }
        if watched {
            panics.run(|| self.notify_watchers());
        }
        panics.end();
    }

    /// True when the head of the queue could be granted. Under the lock.
    #[inline]
    fn can_grant(&self, queue: &mut Queue) -> bool {
        head_fits(queue, self.free())
    }

    /// Grants the head of the queue if enough permits are free. Returns its waker, and the permits that are free from then
    /// on: those that come back later are handed over by their releaser. Under the lock.
    #[inline(always)]
    fn grant_next(&self, queue: &mut Queue) -> Option<(Option<Waker>, i64)> {
        let granted = queue.grant_head(self.free())?;
        let free = self.publish(&granted, queue.wants_no_flag());
        Some((granted.waker, free))
    }

    /// Takes the granted permits, and publishes the waiter's number. Returns the permits that are free from then on.
    #[inline]
    fn publish(&self, granted: &Granted, last: bool) -> i64 {
        let flag = if last { QUEUED } else { 0 };
        let need = granted.need as i64;
        // Acquire: on behalf of the waiter, which sees it through (P). Pairs with (R) in all the `release`s that have
        // added up.
        let free = self.word.fetch_add(flag - need, Ordering::Acquire) + QUEUED - need;
        // (P) Release: passes on the writes that the addition has acquired. Pairs with the load in `is_served`.
        self.served.store(granted.number + 1, Ordering::Release);
        free
    }

    /// Free permits while the flag is set. Only the holder of the lock takes any.
    #[inline]
    fn free(&self) -> i64 {
        self.word.load(Ordering::Relaxed) + QUEUED
    }

    /// True when the waiter with this number has been granted its permits, and the semaphore was not closed since. Waiters
    /// are granted in the order of their numbers.
    #[inline]
    pub(super) fn is_served(&self, number: u64) -> bool {
        // Acquire: sees the writes of the previous holders. Pairs with (P) in `publish`.
        let served = self.served.load(Ordering::Acquire);
        number < served && served < CLOSED
    }

    /// Closes the semaphore for good: all waits and attempts fail from then on. Permits that are held stay valid.
    pub fn close(&self) {
        let wakers = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            if queue.wants_no_flag() {
                // Relaxed: the flag only sends others to the lock.
                self.word.fetch_sub(QUEUED, Ordering::Relaxed);
            }
            // Relaxed: sends the waiters that look to the lock.
            self.served.fetch_or(CLOSED, Ordering::Relaxed);
            let mut wakers = queue.close();
            if queue.is_watched() {
                let permit_state = self.permit_state(&queue);
                wakers.extend(queue.take_ready(permit_state));
            }
            wakers
        };
        let mut panics = PanicCollector::default();
        panics.run(|| wake_all(wakers));
        // Policies that wait for a raise find that none comes.
        self.notify_raise(&mut panics);
        panics.end();
    }

    /// Joins the queue for `n` permits, or takes them if they have become free meanwhile.
    #[inline(never)]
    pub(super) fn join_queue(&self, n: u32, class: u8, waker: Waker) -> Key {
        let n = i64::from(n);
        let mut queue = self.queue.lock();
        let joined = if queue.closed {
            Key::CLOSED
        } else if queue.is_empty() && self.take_or_flag(&mut queue, n) {
            Key::TAKEN
        } else if self.plain {
            return queue.push(n as u64, waker);
        } else {
            return self.join_special(queue, n, class, waker);
        };
        drop(queue);
        // Permits that it has taken are not lost to a drop that panics.
        drop_quietly(waker);
        joined
    }

    /// [`join_queue`](Self::join_queue) for a passive waiter: its entry is kept until its owner looks, and no bound of the
    /// queue applies.
    pub(super) fn join_passive(&self, n: i64, class: u8, waker: Waker) -> Key {
        let mut queue = self.queue.lock();
        let joined = if queue.closed {
            Key::CLOSED
        } else if n == 0 {
            // Nothing to wait for.
            Key::TAKEN
        } else if queue.is_empty() && self.take_or_flag(&mut queue, n) {
            Key::TAKEN
        } else {
            let key = queue.push_passive(n as u64, class, waker);
            // If it is next by the schedule, no other thread hands it free permits before the next release.
            let Err(mut queue) = self.take_if_next(queue, key, n) else {
                return Key::TAKEN;
            };
            queue.note_joined(key);
            // Its arrival may have made another class next, whose head fits.
            let moves_up = queue.is_scheduled() && self.can_grant(&mut queue);
            drop(queue);
            if moves_up {
                let mut panics = PanicCollector::default();
                panics.run(|| self.hand_over());
                if panics.has_panicked() {
                    // The caller does not learn its key.
                    panics.run(|| self.leave_passive(key));
                }
                panics.end();
            }
            return key;
        };
        drop(queue);
        // Permits that it has taken are not lost to a drop that panics.
        drop_quietly(waker);
        joined
    }

    /// Takes `n` permits if they are free, or else sets the flag, in one step. Under the lock.
    ///
    /// This step sees a release before it. A release after it sees the flag and comes to the lock, which is held until the
    /// newcomer is in the queue. The flag is never set while enough permits are free: that would refuse others.
    #[inline]
    fn take_or_flag(&self, queue: &mut Queue, n: i64) -> bool {
        if queue.keeps_flag() {
            return self.take_flagged(queue, n);
        }
        // Acquire: as in `try_take`, for permits that are taken at once.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let taken = word >= n;
            let change = if taken { n } else { QUEUED };
            match self
                .word
                .compare_exchange_weak(word, word - change, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return taken,
                Err(seen) => word = seen,
            }
        }
    }

    /// Takes the flag off when nothing needs it any more. Under the lock.
    #[inline]
    fn unflag(&self, queue: &Queue) {
        if queue.wants_no_flag() {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
    }

    /// Gives the wait at `key` another waker, which is cloned outside the lock: that may run foreign code. The old one is to be
    /// dropped outside it as well.
    fn change_waker<'a>(
        &'a self,
        queue: MutexGuard<'a, Queue>,
        key: Key,
        waker: &Waker,
    ) -> (MutexGuard<'a, Queue>, Option<Waker>) {
        drop(queue);
        let other = waker.clone();
        let mut queue = self.queue.lock();
        let old = queue.set_waker(key, other);
        (queue, old)
    }

    /// Looks how the wait for `n` permits at `key` stands: at the same key, or at [`Key::TAKEN`], [`Key::CLOSED`] or
    /// [`Key::EVICTED`] once it has ended. Permits that were granted before a close, and not looked at since, are given
    /// back: a look at a closed semaphore fails.
    #[inline]
    pub(super) fn look(&self, key: Key, n: i64, waker: &Waker) -> Key {
        let mut queue = self.queue.lock();
        if queue.state(key).waits() {
            if queue.wakes(key, waker) {
                return key;
            }
            let old;
            (queue, old) = self.change_waker(queue, key, waker);
            let waits = queue.state(key).waits();
            let turn = if self.plain {
                None
            } else {
                self.take_as_head(&mut queue, key)
            };
            let more = turn.is_some() && self.can_grant(&mut queue);
            let watched = queue.is_watched();
            drop(queue);
            if let Some(own) = turn {
                let mut panics = PanicCollector::default();
                panics.run(|| drop((own, old)));
                if more {
                    panics.run(|| self.hand_over());
                } else if watched {
                    panics.run(|| self.notify_watchers());
                }
                // A panic ends here: the future has to know that it has its permits.
                drop(panics);
                return Key::TAKEN;
            }
            drop_quietly(old);
            if waits {
                return key;
            }
            queue = self.queue.lock();
        }
        let (closed, (state, _), spare) = (queue.closed, queue.give_up(key), queue.spare());
        drop(queue);
        drop(spare);
        match state {
            State::Evicted => return Key::EVICTED,
            _ if !closed => return Key::TAKEN,
            _ => {}
        }
        let granted = state == State::Granted || state == State::Free && self.was_served(key.number());
        if granted {
            self.release(n);
        }
        Key::CLOSED
    }

    /// True when a waiter with this number, which does not wait any more, was granted its permits.
    fn was_served(&self, number: u64) -> bool {
        // Relaxed: its owner has held the lock since.
        number < self.served.load(Ordering::Relaxed) & !CLOSED
    }

    /// Ends the wait for `n` permits at `key`. Permits that it had been granted go to the next waiter. If it was the head,
    /// those behind it move up.
    #[inline(never)]
    pub(super) fn leave_queue(&self, key: Key, n: i64) {
        if !self.is_served(key.number()) {
            if self.leave_position(self.queue.lock(), key) {
                return;
            }
            let state = self.queue.lock().give_up(key).0;
            if state != State::Granted && (state != State::Free || !self.was_served(key.number())) {
                return;
            }
        }
        self.release(n);
    }

    /// Takes a waiter out of the queue, and lets those behind move up. False when none waits at `key`.
    #[inline(always)]
    fn leave_position(&self, mut queue: MutexGuard<'_, Queue>, key: Key) -> bool {
        let Some(left) = queue.leave(key) else {
            return false;
        };
        self.unflag(&queue);
        let moves_up = left.was_head && self.can_grant(&mut queue);
        // Permits that were kept for it are free for others.
        let watched = queue.is_watched();
        let spare = queue.spare();
        drop(queue);
        drop_quietly(left.waker);
        drop(spare);
        if moves_up {
            self.hand_over();
        } else if watched {
            self.notify_watchers();
        }
        true
    }
}

/// Queues that are not plainly first come, first served: with classes, bounded, or open to be overtaken.
impl Semaphore {
    /// Joins the queue by its schedule and bounds. The flag is set.
    #[cold]
    fn join_special(&self, mut queue: MutexGuard<'_, Queue>, n: i64, class: u8, waker: Waker) -> Key {
        if self.overtakes(&mut queue, n) {
            drop(queue);
            // Permits that it has taken are not lost to a drop that panics.
            drop_quietly(waker);
            return Key::TAKEN;
        }
        if !queue.is_scheduled() {
            return queue.push(n as u64, waker);
        }
        let key = queue.push_scheduled(n as u64, class, waker);
        // The bounds of waiting do not apply to a newcomer that need not wait.
        let Err(mut queue) = self.take_if_next(queue, key, n) else {
            return Key::TAKEN;
        };
        match queue.keep_bounds(key) {
            Ok(evicted) => {
                // The head may have been evicted, and the next may fit.
                let moves_up = !evicted.is_empty() && self.can_grant(&mut queue);
                drop(queue);
                let mut panics = PanicCollector::default();
                evicted.into_iter().flatten().for_each(|waker| panics.wake(waker));
                if moves_up {
                    panics.run(|| self.hand_over());
                }
                if panics.has_panicked() {
                    // The future does not learn its key.
                    panics.run(|| self.leave_queue(key, n));
                }
                panics.end();
                key
            }
            Err(waker) => {
                if queue.wants_no_flag() {
                    // Relaxed: the flag only sends others to the lock.
                    self.word.fetch_add(QUEUED, Ordering::Relaxed);
                }
                drop(queue);
                drop(waker);
                Key::FULL
            }
        }
    }

    /// Takes the `n` permits of the newcomer at `key`, if it is next by the schedule and they are free. If not, it stays in
    /// the queue, and the lock is handed back.
    fn take_if_next<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        key: Key,
        n: i64,
    ) -> Result<(), MutexGuard<'a, Queue>> {
        if !queue.is_scheduled() || !queue.is_head(key) || self.free() < n {
            return Err(queue);
        }
        let own = queue.take_next(key);
        self.take_flagged(&mut queue, n);
        self.unflag(&queue);
        // Its class has had a grant, so another class may be next, whose head fits.
        let moves_up = self.can_grant(&mut queue);
        drop(queue);
        let mut panics = PanicCollector::default();
        panics.run(|| drop(own));
        if moves_up {
            panics.run(|| self.hand_over());
        }
        if panics.has_panicked() {
            // The newcomer does not learn that it has them.
            panics.run(|| self.release(n));
        }
        panics.end();
        Ok(())
    }

    /// Takes `n` permits ahead of the waiters, if overtaking is allowed. Under the lock.
    fn overtakes(&self, queue: &mut Queue, n: i64) -> bool {
        if queue.overtaken >= self.overtakes || queue.is_empty() || self.free() < n {
            return false;
        }
        queue.overtaken += 1;
        // Acquire: as in `try_take`.
        self.word.fetch_sub(n, Ordering::Acquire);
        queue.counters.taken();
        self.count_held(queue);
        true
    }

    /// Takes `n` permits if they are free, while the flag is set. Under the lock.
    fn take_flagged(&self, queue: &mut Queue, n: i64) -> bool {
        let free = self.free() >= n;
        if free {
            // Acquire: as in `try_take`.
            self.word.fetch_sub(n, Ordering::Acquire);
            queue.counters.taken();
            self.count_held(queue);
        }
        free
    }

    /// Counts a time-out, if this semaphore counts.
    #[cold]
    pub(super) fn count_time_out(&self) {
        if !self.plain {
            self.queue.lock().counters.timed_out();
        }
    }

    /// Records the number of permits held now, if this semaphore counts. Under the lock.
    fn count_held(&self, queue: &mut Queue) {
        if queue.counters.is_on() {
            let held = self.held_now(queue);
            queue.counters.held(held);
        }
    }

    /// [`try_take`](Self::try_take) where the flag has sent us to the lock: there may be watchers and no waiters, or overtaking
    /// may be allowed.
    pub(super) fn try_take_slow(&self, n: i64) -> bool {
        if self.word.load(Ordering::Relaxed) >= -MAX {
            return false;
        }
        let mut queue = self.queue.lock();
        if queue.wants_no_flag() {
            return self.try_take(n);
        }
        if queue.closed {
            return false;
        }
        let taken = queue.is_empty() && self.take_flagged(&mut queue, n) || self.overtakes(&mut queue, n);
        if !taken {
            queue.counters.refused();
        }
        taken
    }

    /// Grants the waiter that is next by the schedule. Under the lock.
    fn grant_special(&self, queue: &mut Queue) -> Option<Option<Waker>> {
        if !queue.is_scheduled() {
            let (waker, _) = self.grant_next(queue)?;
            queue.overtaken = 0;
            return Some(waker);
        }
        let granted = queue.grant_scheduled(self.free())?;
        queue.overtaken = 0;
        let flag = if queue.wants_no_flag() { QUEUED } else { 0 };
        // Acquire: on behalf of the waiter, which sees it through the lock. Pairs with (R) in `release`.
        self.word.fetch_add(flag - granted.need as i64, Ordering::Acquire);
        self.count_held(queue);
        Some(granted.waker)
    }

    /// [`hand_over`](Self::hand_over), where the queue is special or has watchers. As long as overtaking is allowed, the head
    /// is not handed its permits but woken to take them. A passive waiter at the head is handed them: it does not come to take
    /// them.
    #[cold]
    fn hand_over_special<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) {
        let mut watched;
        let mut panics = PanicCollector::default();
        loop {
            watched = queue.is_watched();
            let overtaking = queue.overtaken < self.overtakes && !queue.head_is_passive();
            let waker = if overtaking {
                self.can_grant(&mut queue).then(|| queue.take_head_waker())
            } else {
                self.grant_special(&mut queue)
            };
            let more = !overtaking && self.can_grant(&mut queue);
            let spare = queue.spare();
            drop(queue);
            drop(spare);
            if let Some(waker) = waker.flatten() {
                panics.wake(waker);
            }
            if !more {
                break;
            }
            queue = self.queue.lock();
        }
        if watched {
            panics.run(|| self.notify_watchers());
        }
        panics.end();
    }

    /// Takes the permits of the head that was woken to take them, if they are still free. Under the lock. Returns its own
    /// waker, to be dropped outside.
    fn take_as_head(&self, queue: &mut Queue, key: Key) -> Option<Option<Waker>> {
        if self.overtakes == 0 || !queue.is_head(key) {
            return None;
        }
        let own = self.grant_special(queue)?;
        if queue.is_scheduled() {
            queue.give_up(key);
        }
        Some(own)
    }
}

/// Passive waiters: policies and pool workers. Their entry is kept until its owner looks at it, also after a grant.
impl Semaphore {
    /// Joins the queue for a policy, with an entry even if the permits are free. Returns the word by which it is found again.
    pub(super) fn join_for_policy(&self, n: i64, class: u8, waker: &Waker) -> u64 {
        let (need, state) = match self.join_passive(n, class, waker.clone()) {
            Key::TAKEN => (n as u64, State::Granted),
            // No grant comes any more: the next attempt finds it closed.
            Key::CLOSED => (0, State::Closed),
            key => {
                // If the limit was lowered since the policy looked, it must not wait here. A later shrink wakes it.
                if self.is_beyond_limit(n as u64) {
                    waker.wake_by_ref();
                }
                return key.to_word();
            }
        };
        let key = self.queue.lock().push_ended(need, state);
        waker.wake_by_ref();
        key.to_word()
    }

    /// Looks how a policy's wait for `n` permits stands. An entry whose wait has ended is given up by that. So is one for
    /// another number of permits, which another leg of this semaphore has made.
    pub(super) fn look_for_policy(&self, word: u64, n: u64) -> State {
        let mut queue = self.queue.lock();
        let Some(key) = queue.key_of(word) else {
            return State::Free;
        };
        if queue.state(key).waits() {
            return State::Waiting;
        }
        let (closed, (state, need), spare) = (queue.closed, queue.give_up(key), queue.spare());
        drop(queue);
        drop(spare);
        if state == State::Granted && (closed || need != n) {
            self.release(need as i64);
            return if closed { State::Closed } else { State::Free };
        }
        state
    }

    /// Ends a policy's wait. Permits that it had been granted go to the next waiter.
    pub(super) fn leave_for_policy(&self, word: u64) {
        let mut queue = self.queue.lock();
        if let Some(key) = queue.key_of(word) {
            self.end_passive(queue, key);
        }
    }

    /// Ends a passive wait. Permits that it had been granted go to the next waiter.
    pub(super) fn leave_passive(&self, key: Key) {
        self.end_passive(self.queue.lock(), key);
    }

    fn end_passive(&self, mut queue: MutexGuard<'_, Queue>, key: Key) {
        let (state, need) = queue.give_up(key);
        if state == State::Free {
            self.leave_position(queue, key);
            return;
        }
        let spare = queue.spare();
        drop(queue);
        drop(spare);
        if state == State::Granted {
            self.release(need as i64);
        }
    }

    /// The state of a policy's wait.
    pub(super) fn state_for_policy(&self, word: u64) -> State {
        let mut queue = self.queue.lock();
        queue.key_of(word).map_or(State::Free, |key| queue.state(key))
    }

    /// Looks how a passive wait stands: at the same key, at [`Key::TAKEN`], or at [`Key::CLOSED`].
    #[cfg(feature = "pool")]
    pub(super) fn look_passive(&self, key: Key, waker: &Waker) -> Key {
        let mut queue = self.queue.lock();
        if queue.state(key).waits() {
            if queue.wakes(key, waker) {
                return key;
            }
            let old;
            (queue, old) = self.change_waker(queue, key, waker);
            let waits = queue.state(key).waits();
            drop(queue);
            drop(old);
            if waits {
                return key;
            }
            queue = self.queue.lock();
        }
        let (closed, (state, need), spare) = (queue.closed, queue.give_up(key), queue.spare());
        drop(queue);
        drop(spare);
        match state {
            State::Granted if !closed => return Key::TAKEN,
            State::Granted => quietly(|| self.release(need as i64)),
            _ => {}
        }
        Key::CLOSED
    }
}

/// The limit, which changes under the queue's lock, and the word beside it by the same difference in one addition.
impl Semaphore {
    /// Sets the number of permits, at once, whatever is held or awaited.
    ///
    /// A raise admits as many waiters from the head as fit. A shrink below the number held becomes [`debt`](Self::debt), which
    /// must be paid before the next admission. Zero pauses. Numbers above [`MAX_PERMITS`](Self::MAX_PERMITS) count as that.
    pub fn set_limit(&self, limit: usize) {
        let new = limit.min(Self::MAX_PERMITS) as i64;
        let dropped = {
            let mut queue = self.queue.lock();
            let old = self.limit.swap(new, Ordering::Relaxed);
            self.note_largest(new);
            // Release: a raise is a release of new permits. Pairs with the acquiring operations on the word.
            self.word.fetch_add(new - old, Ordering::Release);
            self.evict_policies(&mut queue)
        };
        self.hand_over_changed(dropped);
    }

    /// After the limit was lowered, under the lock: takes the policies that want more out of the queue, where they would hold up
    /// waiters that fit. Returns their wakers. They join again once the limit is large enough. A pause takes none out.
    fn evict_policies(&self, queue: &mut Queue) -> Vec<Option<Waker>> {
        if queue.is_empty() {
            return Vec::new();
        }
        let limit = match self.limit.load(Ordering::Relaxed) {
            0 => i64::MAX,
            limit => limit,
        };
        let dropped = queue.evict_passive_above(limit as u64);
        if !dropped.is_empty() {
            self.unflag(queue);
        }
        dropped
    }

    /// True for more units than any limit that was ever set, where one above zero was. `acquire` waits all the same.
    pub(super) fn is_oversized(&self, units: u64) -> bool {
        // Relaxed: see `note_largest`.
        match self.largest.load(Ordering::Relaxed) {
            0 => units > Self::MAX_PERMITS as u64,
            largest => units > largest as u64,
        }
    }

    /// Fires when the limit is raised.
    pub(super) fn raised(&self) -> &Notify {
        self.raised.get_or_init(Box::default)
    }

    /// True for more units than the limit that is in force, unless that is a pause.
    pub(super) fn is_beyond_limit(&self, units: u64) -> bool {
        let limit = self.limit() as u64;
        limit > 0 && units > limit
    }

    /// Announces that the limit may become as large as `most`: a request for no more than that waits for it.
    pub(crate) fn may_reach(&self, most: usize) {
        let _queue = self.queue.lock();
        self.note_largest(most.min(Self::MAX_PERMITS) as i64);
    }

    /// Raises the largest limit that was ever set. Under the lock.
    fn note_largest(&self, limit: i64) {
        // Relaxed: announced by the `Notify`, whose fences order it.
        self.largest.fetch_max(limit, Ordering::Relaxed);
    }

    /// After a change, outside the lock: wakes the waiters that are granted, then the policies that were taken out of the queue,
    /// then those that wait for a raise.
    fn hand_over_changed(&self, dropped: Vec<Option<Waker>>) {
        let mut panics = PanicCollector::default();
        panics.run(|| self.hand_over());
        dropped.into_iter().flatten().for_each(|waker| panics.wake(waker));
        self.notify_raise(&mut panics);
        panics.end();
    }

    /// Notifies the policies that wait for a larger limit.
    fn notify_raise(&self, panics: &mut PanicCollector) {
        // SeqCst: the raise comes before this fence, the look for a `Notify` after it. A policy makes the `Notify` before the
        // fence in `Notify::listen`, and reads the limits after it.
        fence(Ordering::SeqCst);
        if let Some(raised) = self.raised.get() {
            panics.run(|| raised.notify_reconfigured());
        }
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
        if n == 0 {
            return;
        }
        // The panic comes after the lock: a panic hook is foreign code.
        assert!(
            self.try_add(n),
            "number of added permits ({n}) would overflow MAX_PERMITS ({})",
            Self::MAX_PERMITS
        );
        self.hand_over_changed(Vec::new());
    }

    fn try_add(&self, n: usize) -> bool {
        let _queue = self.queue.lock();
        let limit = self.limit.load(Ordering::Relaxed) as usize;
        let Some(sum) = limit.checked_add(n).filter(|&sum| sum <= Self::MAX_PERMITS) else {
            return false;
        };
        self.limit.store(sum as i64, Ordering::Relaxed);
        self.note_largest(sum as i64);
        // Release: as (R) in `release`.
        self.word.fetch_add(n as i64, Ordering::Release);
        true
    }

    /// Removes up to `n` free permits for good and returns their number: none while there are waiters. Permits that are held
    /// are not touched. To shrink below the number held, use [`set_limit`](Self::set_limit).
    pub fn forget_permits(&self, n: usize) -> usize {
        let queue = self.queue.lock();
        let wanted = i64::try_from(n).unwrap_or(MAX);
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let free = match word {
                flagged if flagged < -MAX && !queue.is_empty() => 0,
                closed if closed < -MAX => closed + QUEUED,
                free => free,
            };
            let taken = free.clamp(0, wanted);
            // Relaxed: no later holder is ordered after permits that are gone.
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

    /// Takes `n` permits that are held off the limit, for good. As far as they exceed the limit, after a shrink, they pay the
    /// debt.
    pub(super) fn lose(&self, n: i64) {
        let mut queue = self.queue.lock();
        let old = self.limit.load(Ordering::Relaxed);
        let new = (old - n).max(0);
        self.limit.store(new, Ordering::Relaxed);
        // Relaxed: at a limit of zero no caller can take the permits that this adds.
        self.word.fetch_add(n - (old - new), Ordering::Relaxed);
        let dropped = self.evict_policies(&mut queue);
        let watched = queue.is_watched();
        drop(queue);
        if !dropped.is_empty() {
            self.hand_over_changed(dropped);
        } else if watched {
            self.notify_watchers();
        }
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

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    #[cfg(feature = "pool")]
    impl Semaphore {
        pub(in crate::semaphore) fn has_spare_memory(&self) -> bool {
            self.queue.lock().spare().is_some()
        }
    }

    #[test]
    fn a_policy_position_for_one_number_of_permits_is_not_redeemed_for_another() {
        for wanted in [1, 3] {
            let semaphore = Semaphore::new(3);
            let held = semaphore.try_acquire_many(2).unwrap();
            let position = semaphore.join_for_policy(2, 0, Waker::noop());
            assert_eq!(semaphore.look_for_policy(position, wanted), State::Waiting);
            drop(held);
            assert_eq!(semaphore.in_use(), 2);
            assert_eq!(semaphore.look_for_policy(position, wanted), State::Free);
            assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, 3));
        }
    }
}
