//! Waiting for permits, under the queue's lock: joining the line, being granted in turn, looking, leaving. The state is
//! [`Semaphore`]'s.

use super::atomic::{QUEUED, Semaphore, weakened};
use crate::sync::queue::{Granted, Key, Queue, State};
use crate::sync::shim::MutexGuard;
use crate::sync::shim::atomic::Ordering;
use crate::sync::wake::{PanicCollector, drop_quietly, wake, wake_all};
use std::task::Waker;

/// How many wakers are woken at a time, outside the lock.
const BATCH: usize = 32;

/// True when the first in line wants no more than is `free`.
#[inline]
fn head_fits(queue: &mut Queue, free: i64) -> bool {
    free > 0 && queue.head_need().is_some_and(|need| free >= need as i64)
}

/// Set in `served` when the semaphore is closed: from then on everybody looks under the lock.
const CLOSED: u64 = 1 << 63;

impl Semaphore {
    /// Grants from the front as long as permits suffice, and wakes whom it granted.
    #[inline(never)]
    pub(super) fn hand_over(&self) {
        let mut queue = self.queue.lock();
        if !self.plain || queue.keeps_flag() {
            return self.hand_over_special(queue);
        }
        let Some((first, free)) = self.grant_next(&mut queue) else {
            return;
        };
        // Mostly one permit comes back, and one waiter goes on.
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
            while granted < BATCH
                && let Some((waker, _)) = self.grant_next(&mut queue)
            {
                wakers[granted] = waker;
                granted += 1;
            }
            more = granted == BATCH;
            // Somebody may have begun to in between.
            watched = queue.is_watched();
            let spare = queue.spare();
            drop(queue);
            drop(spare);
            for waker in wakers[..granted].iter_mut().filter_map(Option::take) {
                panics.wake(waker);
            }
        }
        if watched {
            panics.run(|| self.tell_watchers());
        }
        panics.end();
    }

    /// True when the first in line could be granted what it wants. Under the lock.
    #[inline]
    pub(super) fn can_grant(&self, queue: &mut Queue) -> bool {
        head_fits(queue, self.free())
    }

    /// Grants the first in line what it wants, if that is free. Returns its waker, and what is free from then on: of what
    /// comes back later, its releaser hands over. Under the lock.
    #[inline(always)]
    pub(super) fn grant_next(&self, queue: &mut Queue) -> Option<(Option<Waker>, i64)> {
        let granted = queue.grant_head(self.free())?;
        let free = self.publish(&granted, queue.wants_no_flag());
        Some((granted.waker, free))
    }

    /// Takes what has been granted, and publishes the number of who was granted it. Returns what is free from then on.
    #[inline]
    fn publish(&self, granted: &Granted, last: bool) -> i64 {
        let flag = if last { QUEUED } else { 0 };
        let need = granted.need as i64;
        // Acquire: on behalf of the waiter, who sees it through (P). Pairs with (R) in `release`, of whichever releases
        // have added up.
        let acquire = weakened!("semaphore_relaxed_grant", Acquire);
        let free = self.word.fetch_add(flag - need, acquire) + QUEUED - need;
        // (P) Release: passes on what the addition has acquired. Pairs with the load in `is_served`.
        let release = weakened!("semaphore_relaxed_served", Release);
        self.served.store(granted.number + 1, release);
        free
    }

    /// What is free while the flag is set; nobody but the lock's holder takes of it.
    #[inline]
    pub(super) fn free(&self) -> i64 {
        self.word.load(Ordering::Relaxed) + QUEUED
    }

    /// True when the waiter with this number has been granted its permits, and the semaphore was not closed since. Those
    /// who wait are granted in the order of their numbers.
    #[inline]
    pub(super) fn is_served(&self, number: u64) -> bool {
        // Acquire: sees what was done under the permits. Pairs with (P) in `grant_next`.
        let served = self.served.load(weakened!("semaphore_relaxed_look", Acquire));
        let early = u64::from(seeded!("semaphore_serves_early"));
        number < served + early && served < CLOSED
    }

    /// Closes the semaphore for good: everybody who waits, or comes, is told so. Permits that are held stay valid.
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
            // Relaxed: sends those who look to the lock.
            self.served.fetch_or(CLOSED, Ordering::Relaxed);
            let mut wakers = queue.close();
            if queue.is_watched() {
                let sight = self.sight(&queue);
                wakers.extend(queue.told(sight));
            }
            wakers
        };
        if seeded!("semaphore_quiet_close") {
            return;
        }
        let _held = seeded!("semaphore_wakes_under_lock").then(|| self.queue.lock());
        let mut panics = PanicCollector::default();
        panics.run(|| wake_all(wakers));
        // What waits for a raise hears that none comes.
        self.tell_of_raise(&mut panics);
        panics.end();
    }

    /// Joins the line for `n` permits, or takes them when they have become free meanwhile.
    #[inline(never)]
    pub(super) fn join_line(&self, n: u32, class: u8, waker: Waker) -> Key {
        let n = i64::from(n);
        let mut queue = self.queue.lock();
        let joined = if queue.closed && !seeded!("semaphore_unseen_close") {
            Key::CLOSED
        } else if queue.is_empty() && self.take_or_flag(&mut queue, n) {
            Key::TAKEN
        } else if self.plain {
            return queue.push(n as u64, waker);
        } else {
            return self.join_special(queue, n, class, waker);
        };
        drop(queue);
        // What it has taken is not lost to a drop that panics.
        drop_quietly(waker);
        joined
    }

    /// [`join_line`](Self::join_line) with a place that is kept until its owner looks, whatever the bounds.
    pub(super) fn join_kept(&self, n: i64, waker: Waker) -> Key {
        let mut queue = self.queue.lock();
        let joined = if queue.closed {
            Key::CLOSED
        } else if n == 0 {
            // Who wants nothing waits for nothing.
            Key::TAKEN
        } else if queue.is_empty() && self.take_or_flag(&mut queue, n) {
            Key::TAKEN
        } else {
            let key = queue.push_claim(n as u64, waker);
            // Next by the rules, it is not handed what is free by anybody else before the next release.
            let Err(mut queue) = self.take_if_next(queue, key, n) else {
                return Key::TAKEN;
            };
            queue.note_joined(key);
            // With it another may be next, that fits.
            let moves_up = queue.has_rules() && self.can_grant(&mut queue);
            drop(queue);
            if moves_up {
                let mut panics = PanicCollector::default();
                panics.run(|| self.hand_over());
                if panics.has_panicked() {
                    // The policy does not get to know its place.
                    panics.run(|| self.leave_kept(self.queue.lock(), key));
                }
                panics.end();
            }
            return key;
        };
        drop(queue);
        // What it has taken is not lost to a drop that panics.
        drop_quietly(waker);
        joined
    }

    /// Takes `n` permits if they are free, or else sets the flag, in one step. Under the lock.
    ///
    /// A release before that step is seen by it; one after it sees the flag and comes to the lock, which is held until
    /// the newcomer stands in line. And the flag is never set while what is wanted is free: that would refuse others.
    #[inline]
    fn take_or_flag(&self, queue: &mut Queue, n: i64) -> bool {
        if queue.keeps_flag() {
            return self.take_flagged(queue, n);
        }
        // Acquire: as in `try_take`, for permits that are taken at once.
        let acquire = weakened!("semaphore_relaxed_join", Acquire);
        if seeded!("semaphore_early_flag") {
            let taken = self.word.fetch_sub(QUEUED, acquire) >= n;
            self.word
                .fetch_add(if taken { QUEUED - n } else { 0 }, Ordering::Relaxed);
            return taken;
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let taken = word >= n;
            let change = if taken { n } else { QUEUED };
            if seeded!("semaphore_late_flag") && !taken {
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

    /// The owner of a place, who wants `n` and is not served yet, looks: at the same place, or at [`Key::TAKEN`],
    /// [`Key::CLOSED`] or [`Key::EVICTED`] when its wait has ended. What was granted before the semaphore was closed, and
    /// not looked at since, is given back: whoever looks at a closed one is told so.
    #[inline]
    pub(super) fn look(&self, key: Key, n: i64, waker: &Waker) -> Key {
        let mut queue = self.queue.lock();
        if queue.state(key).waits() {
            if queue.wakes(key, waker) {
                return key;
            }
            drop(queue);
            // Cloned and dropped outside the lock: both may run foreign code.
            let other = waker.clone();
            queue = self.queue.lock();
            let old = queue.set_waker(key, other);
            let waits = queue.state(key).waits();
            let turn = if self.plain {
                None
            } else {
                self.take_turn(&mut queue, key)
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
                    panics.run(|| self.tell_watchers());
                }
                // A panic ends here: the future has to know what it has.
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
        if granted && !seeded!("semaphore_close_keeps_grant") {
            self.release(n);
        }
        Key::CLOSED
    }

    /// True when somebody with this number, who does not wait any more, was granted its permits, and not turned away.
    fn was_served(&self, number: u64) -> bool {
        // Relaxed: what its owner knows, it knows from under the lock.
        number < self.served.load(Ordering::Relaxed) & !CLOSED
    }

    /// The owner of a place, who wants `n`, goes. What it had been granted goes to the next; if it was first in line,
    /// those behind it move up.
    #[inline(never)]
    pub(super) fn leave_line(&self, key: Key, n: i64) {
        if !self.is_served(key.number()) {
            if self.leave_place(self.queue.lock(), key) {
                return;
            }
            let state = self.queue.lock().give_up(key).0;
            if state != State::Granted && (state != State::Free || !self.was_served(key.number())) {
                return;
            }
        }
        if !seeded!("semaphore_leaks_granted") {
            self.release(n);
        }
    }

    /// Leaves the line, and lets those behind move up. False when nobody waits at that place.
    #[inline(always)]
    pub(super) fn leave_place(&self, mut queue: MutexGuard<'_, Queue>, key: Key) -> bool {
        let Some(left) = queue.leave(key) else {
            return false;
        };
        if queue.wants_no_flag() {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
        let moves_up = left.was_head && !seeded!("semaphore_head_leaves_quietly") && self.can_grant(&mut queue);
        // With the line, what was kept for it is free for others.
        let watched = queue.is_watched();
        let spare = queue.spare();
        drop(queue);
        drop_quietly(left.waker);
        drop(spare);
        if moves_up {
            self.hand_over();
        } else if watched {
            self.tell_watchers();
        }
        true
    }
}
