//! The lines that are not plainly first come, first served: with classes, bounded, or open to be overtaken.

use super::atomic::{MAX, QUEUED, Semaphore, weakened};
use crate::sync::queue::{Key, Queue};
use crate::sync::shim::MutexGuard;
use crate::sync::shim::atomic::Ordering;
use crate::sync::wake::{PanicCollector, drop_quietly};
use std::task::Waker;

impl Semaphore {
    /// Joins the line by its rules. The flag is set.
    #[cold]
    pub(super) fn join_special(&self, mut queue: MutexGuard<'_, Queue>, n: i64, class: u8, waker: Waker) -> Key {
        if self.overtakes(&mut queue, n) {
            drop(queue);
            // What it has taken is not lost to a drop that panics.
            drop_quietly(waker);
            return Key::TAKEN;
        }
        if !queue.has_rules() {
            return queue.push(n as u64, waker);
        }
        let key = queue.push_by_rules(n as u64, class, waker);
        // A newcomer that need not wait is not held to the bounds of waiting.
        let Err(mut queue) = self.take_if_next(queue, key, n) else {
            return Key::TAKEN;
        };
        match queue.keep_bounds(key) {
            Ok(evicted) => {
                // Whoever was in front may have gone, and somebody may fit now.
                let moves_up = !evicted.is_empty() && self.can_grant(&mut queue);
                drop(queue);
                let mut panics = PanicCollector::default();
                if !seeded!("semaphore_evicts_quietly") {
                    evicted.into_iter().flatten().for_each(|waker| panics.wake(waker));
                }
                if moves_up {
                    panics.run(|| self.hand_over());
                }
                if panics.has_panicked() {
                    // The future does not get to know its place.
                    panics.run(|| self.leave_line(key, n));
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

    /// The newcomer at `key`, which wants `n`, takes its permits if it is next by the rules and they are free. If not, it
    /// stays where it is, and the lock is handed back.
    pub(super) fn take_if_next<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        key: Key,
        n: i64,
    ) -> Result<(), MutexGuard<'a, Queue>> {
        if !queue.has_rules() || !queue.is_head(key) || self.free() < n {
            return Err(queue);
        }
        let own = queue.take_next(key);
        self.take_flagged(&mut queue, n);
        if queue.wants_no_flag() {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
        // Its class has had a grant, and so another may be next, that fits.
        let moves_up = !seeded!("semaphore_passes_quietly") && self.can_grant(&mut queue);
        drop(queue);
        let mut panics = PanicCollector::default();
        panics.run(|| drop(own));
        if moves_up {
            panics.run(|| self.hand_over());
        }
        if panics.has_panicked() {
            // The newcomer does not get to know what it has.
            panics.run(|| self.release(n));
        }
        panics.end();
        Ok(())
    }

    /// Takes `n` permits in front of those who wait, if that is allowed. Under the lock.
    fn overtakes(&self, queue: &mut Queue, n: i64) -> bool {
        if queue.overtaken >= self.overtakes || queue.is_empty() || self.free() < n {
            return false;
        }
        queue.overtaken += u32::from(!seeded!("semaphore_overtakes_for_ever"));
        // Acquire: as in `try_take`.
        self.word.fetch_sub(n, Ordering::Acquire);
        queue.counters.taken();
        self.count_held(queue);
        true
    }

    /// Takes `n` permits if they are free, while the flag is set. Under the lock.
    pub(super) fn take_flagged(&self, queue: &mut Queue, n: i64) -> bool {
        let free = self.free() >= n;
        if free {
            // Acquire: as in `try_take`.
            self.word.fetch_sub(n, weakened!("semaphore_relaxed_flagged", Acquire));
            queue.counters.taken();
            self.count_held(queue);
        }
        free
    }

    /// Notes that somebody's time is over, where that is counted.
    #[cold]
    pub(super) fn count_timeout(&self) {
        if !self.plain {
            self.queue.lock().counters.timed_out();
        }
    }

    /// Notes how much is held now, where that is counted. Under the lock.
    fn count_held(&self, queue: &mut Queue) {
        if queue.counters.is_on() {
            let held = self.held_now(queue);
            queue.counters.held(held);
        }
    }

    /// [`try_take`](Self::try_take) where the flag has sent us to the lock: nobody may be in line, but somebody watch; or
    /// overtaking may be allowed.
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

    /// Grants whoever is next by the rules. Under the lock.
    fn grant_special(&self, queue: &mut Queue) -> Option<Option<Waker>> {
        if !queue.has_rules() {
            let (waker, _) = self.grant_next(queue)?;
            queue.overtaken = 0;
            return Some(waker);
        }
        let granted = queue.grant_by_rules(self.free())?;
        queue.overtaken = 0;
        let flag = if queue.wants_no_flag() { QUEUED } else { 0 };
        // Acquire: on behalf of the waiter, who sees it through the lock. Pairs with (R) in `release`.
        let acquire = weakened!("semaphore_relaxed_rules", Acquire);
        self.word.fetch_add(flag - granted.need as i64, acquire);
        self.count_held(queue);
        Some(granted.waker)
    }

    /// [`hand_over`](Self::hand_over), where the line is special or somebody watches. As long as overtaking is allowed, the
    /// first in line is not handed its permits but woken to take them; unless a policy waits there, which does not come to
    /// take them.
    #[cold]
    pub(super) fn hand_over_special<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) {
        let mut watched;
        let mut panics = PanicCollector::default();
        loop {
            watched = queue.is_watched();
            let overtaking = queue.overtaken < self.overtakes && !queue.head_is_claim();
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
            panics.run(|| self.tell_watchers());
        }
        panics.end();
    }

    /// The first in line, who was woken, takes what is there for it, if it still is. Under the lock. Returns its own waker,
    /// to be dropped outside.
    pub(super) fn take_turn(&self, queue: &mut Queue, key: Key) -> Option<Option<Waker>> {
        if self.overtakes == 0 || !queue.is_head(key) || seeded!("semaphore_woken_head_forgets") {
            return None;
        }
        let own = self.grant_special(queue)?;
        if queue.has_rules() {
            queue.give_up(key);
        }
        Some(own)
    }
}
