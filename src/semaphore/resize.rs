//! How many permits there are: the limit, which changes under the queue's lock, and the word beside it by the same
//! difference in one addition. The state is [`Semaphore`]'s.

use super::atomic::{MAX, QUEUED, Semaphore, weakened};
use crate::sync::queue::Queue;
use crate::sync::shim::atomic::{Ordering, fence};
use crate::sync::wake::PanicCollector;
use std::task::Waker;

impl Semaphore {
    /// Sets how many permits there are, at once, whatever is held and whoever waits.
    ///
    /// A raise admits as many from the front as fit. A shrink below what is held becomes [`debt`](Self::debt): nobody
    /// is admitted before it is paid. Zero pauses. Numbers above [`MAX_PERMITS`](Self::MAX_PERMITS) count as that.
    pub fn set_limit(&self, limit: usize) {
        let new = limit.min(Self::MAX_PERMITS) as i64;
        let dropped = {
            let mut queue = self.queue.lock();
            let old = self.limit.swap(new, Ordering::Relaxed);
            self.note_largest(new);
            if seeded!("semaphore_torn_limit") {
                let word = self.word.load(Ordering::Relaxed);
                self.word.store(word + new - old, Ordering::Release);
            } else {
                // Release: a raise is a release of new permits. Pairs with the acquiring operations on the word.
                self.word
                    .fetch_add(new - old, weakened!("semaphore_relaxed_limit", Release));
            }
            self.drop_claims(&mut queue)
        };
        if !seeded!("semaphore_quiet_limit") {
            self.hand_over_changed(dropped);
        }
    }

    /// After the limit was lowered, under the lock: a policy that wants more has no place in line any more, where it would hold up
    /// those that fit. It is to be woken, and joins again once the limit is large enough. A pause keeps the places.
    fn drop_claims(&self, queue: &mut Queue) -> Vec<Option<Waker>> {
        if queue.is_empty() {
            return Vec::new();
        }
        let limit = match self.limit.load(Ordering::Relaxed) {
            0 => i64::MAX,
            limit => limit,
        };
        let dropped = queue.evict_claims_above(limit as u64);
        if !dropped.is_empty() && queue.wants_no_flag() {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
        dropped
    }

    /// True for more than the limit that is in force, unless that is a pause.
    pub(super) fn is_beyond_limit(&self, units: u64) -> bool {
        let limit = self.limit() as u64;
        limit > 0 && units > limit
    }

    /// Says that the limit may become as large as `most`: what asks for no more waits for that.
    pub(crate) fn may_reach(&self, most: usize) {
        let _queue = self.queue.lock();
        self.note_largest(most.min(Self::MAX_PERMITS) as i64);
    }

    /// Under the lock.
    fn note_largest(&self, limit: i64) {
        // Relaxed: announced by the `Notify`, whose fences order it.
        self.largest.fetch_max(limit, Ordering::Relaxed);
    }

    /// After a change, outside the lock: the waiters first, then the policies whose places were dropped, then those that wait for a
    /// raise.
    fn hand_over_changed(&self, dropped: Vec<Option<Waker>>) {
        let mut panics = PanicCollector::default();
        panics.run(|| self.hand_over());
        dropped.into_iter().flatten().for_each(|waker| panics.wake(waker));
        self.tell_of_raise(&mut panics);
        panics.end();
    }

    /// Tells the policies that wait for a larger limit to look again.
    pub(super) fn tell_of_raise(&self, panics: &mut PanicCollector) {
        // SeqCst: the raise comes before this fence, the look for a `Notify` after it. A policy makes the `Notify` before the fence
        // in `Notify::listen`, and reads the limits after it.
        fence(Ordering::SeqCst);
        if let Some(raised) = self.raised.get()
            && !seeded!("semaphore_raises_in_silence")
        {
            panics.run(|| raised.notify_reconfigured());
        }
    }

    /// Adds `n` permits to the limit.
    ///
    /// # Panics
    /// If the limit would exceed [`MAX_PERMITS`](Self::MAX_PERMITS). Nothing is added then.
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
        self.word
            .fetch_add(n as i64, weakened!("semaphore_relaxed_add", Release));
        true
    }

    /// Takes up to `n` free permits away for good and returns how many: none while somebody waits. Permits that are held
    /// are not touched: to shrink below what is held, [`set_limit`](Self::set_limit).
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

    /// `n` permits that are held are gone for good: they come off the limit. What the limit no longer has, after a
    /// shrink, has been paid by that.
    pub(super) fn lose(&self, n: i64) {
        let mut queue = self.queue.lock();
        let old = self.limit.load(Ordering::Relaxed);
        let new = (old - n).max(0);
        self.limit.store(new, Ordering::Relaxed);
        // Relaxed: at a limit of zero nobody can take what this adds.
        self.word.fetch_add(n - (old - new), Ordering::Relaxed);
        let dropped = self.drop_claims(&mut queue);
        let watched = queue.is_watched();
        drop(queue);
        if !dropped.is_empty() {
            self.hand_over_changed(dropped);
        } else if watched {
            self.tell_watchers();
        }
    }
}
