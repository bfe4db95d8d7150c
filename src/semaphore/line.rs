//! Waiting for permits, under the queue's lock: joining the line, being granted in turn, looking, leaving. The state is
//! [`Semaphore`]'s.

use super::atomic::{QUEUED, Semaphore, weakened};
use crate::sync::queue::{Key, Queue, State};
use crate::sync::shim::atomic::Ordering;
use std::task::Waker;

/// How many wakers are woken at a time, outside the lock.
const BATCH: usize = 32;

/// How joining the line ended.
pub(super) enum Joined {
    Queued(Key),
    Taken,
    Closed,
}

/// What a hand-over has found: the waker of the one that it granted.
struct Granted(Option<Waker>);

impl Granted {
    fn wake(self) {
        if let Some(waker) = self.0 {
            waker.wake();
        }
    }
}

impl Semaphore {
    /// Grants from the front as long as permits suffice, and wakes whom it granted.
    #[inline(never)]
    pub(super) fn hand_over(&self) {
        let mut queue = self.queue.lock();
        let Some(first) = self.grant_next(&mut queue) else {
            return;
        };
        // Mostly one permit comes back, and one waiter goes on.
        let more = self.can_grant(&mut queue);
        drop(queue);
        first.wake();
        if more {
            self.hand_over_more();
        }
    }

    #[cold]
    fn hand_over_more(&self) {
        let mut wakers: [Option<Waker>; BATCH] = [const { None }; BATCH];
        let mut more = true;
        while more {
            let mut granted = 0;
            let mut queue = self.queue.lock();
            while granted < BATCH
                && let Some(next) = self.grant_next(&mut queue)
            {
                wakers[granted] = next.0;
                granted += 1;
            }
            more = granted == BATCH;
            drop(queue);
            for waker in wakers[..granted].iter_mut().filter_map(Option::take) {
                waker.wake();
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
    fn grant_next(&self, queue: &mut Queue) -> Option<Granted> {
        if !self.can_grant(queue) {
            return None;
        }
        let need = queue.head_need()? as i64;
        let waker = queue.grant_head();
        let flag = if queue.is_empty() { QUEUED } else { 0 };
        // Acquire: on behalf of the waiter, who sees it through the lock. Pairs with (R) in `release`, of whichever
        // releases have added up.
        let acquire = weakened!("semaphore_relaxed_grant", Acquire);
        self.word.fetch_add(flag - need, acquire);
        Some(Granted(waker))
    }

    /// Joins the line for `n` permits, or takes them when they have become free meanwhile.
    #[inline(never)]
    pub(super) fn join_line(&self, n: i64, waker: Waker) -> Joined {
        let mut queue = self.queue.lock();
        let joined = if queue.closed && !cfg!(tollgate_bug = "semaphore_unseen_close") {
            Joined::Closed
        } else if queue.is_empty() && self.take_or_flag(n) {
            Joined::Taken
        } else {
            return Joined::Queued(queue.push(n as u64, waker));
        };
        drop(queue);
        drop(waker);
        joined
    }

    /// Takes `n` permits if they are free, or else sets the flag, in one step. Under the lock.
    ///
    /// A release before that step is seen by it; one after it sees the flag and comes to the lock, which is held until
    /// the newcomer stands in line. And the flag is never set while what is wanted is free: that would refuse others.
    #[inline]
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
        let (need, state) = match self.join_line(n, waker.clone()) {
            Joined::Queued(key) => return key,
            Joined::Taken => (n as u64, State::Granted),
            // Nothing is granted any more: the next attempt finds it closed.
            Joined::Closed => (0, State::Closed),
        };
        let key = self.queue.lock().push_ended(need, state);
        if !cfg!(tollgate_bug = "semaphore_quiet_claim") {
            waker.wake_by_ref();
        }
        key
    }

    /// The owner of a place looks. A place whose wait has ended is given up by that. What was granted before the
    /// semaphore was closed, and not looked at since, is given back: whoever looks at a closed one is told so.
    #[inline(never)]
    pub(super) fn look(&self, key: Key, waker: Option<&Waker>) -> State {
        let mut queue = self.queue.lock();
        let (state, need) = queue.look(key);
        if state == State::Waiting {
            let other = waker.filter(|waker| !queue.wakes(key, waker));
            drop(queue);
            return match other {
                Some(other) => self.look_with(key, other.clone()),
                None => state,
            };
        }
        let closed = queue.closed;
        let spare = queue.spare();
        drop(queue);
        drop(spare);
        if closed && state == State::Granted {
            if !cfg!(tollgate_bug = "semaphore_close_keeps_grant") {
                self.release(need as i64);
            }
            return State::Closed;
        }
        state
    }

    /// [`look`](Self::look), leaving another waker, which was cloned outside the lock.
    #[cold]
    fn look_with(&self, key: Key, waker: Waker) -> State {
        // Dropped outside the lock as well.
        let _old = self.queue.lock().set_waker(key, waker);
        self.look(key, None)
    }

    /// The owner of a place goes. What it had been granted goes to the next; if it was first in line, those behind it
    /// move up.
    #[inline(never)]
    pub(super) fn leave_line(&self, key: Key) {
        let mut queue = self.queue.lock();
        let left = queue.leave(key);
        let waited = left.state == State::Waiting;
        if waited && queue.is_empty() {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
        let moves_up = waited
            && left.was_head
            && !cfg!(tollgate_bug = "semaphore_head_leaves_quietly")
            && self.can_grant(&mut queue);
        let spare = queue.spare();
        drop(queue);
        drop((left.waker, spare));
        if left.state == State::Granted && !cfg!(tollgate_bug = "semaphore_leaks_granted") {
            self.release(left.need as i64);
        } else if moves_up {
            self.hand_over();
        }
    }

    /// True when the place has been granted what it wants.
    pub(super) fn is_granted(&self, key: Key) -> bool {
        self.queue.lock().state(key) == State::Granted
    }
}
