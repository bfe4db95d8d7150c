//! Watchers: they wait for a state of the permits, without a place in the queue.
//!
//! While there is one, the word is flagged, so that every release takes the lock.

use super::atomic::{Semaphore, kept};
use crate::sync::wait_queue::Waiters;
use crate::sync::wake::{drop_quietly, wake_all};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

#[derive(Clone, Copy)]
enum Until {
    /// No permit is held.
    Idle,
    /// No more is held than the limit allows.
    Paid,
}

/// The watchers of a semaphore, by number. One whose condition has held is not among them any more.
pub(super) struct Watching {
    list: Vec<(u64, Until, Waker)>,
    next: u64,
}

impl Watching {
    pub(super) const fn new() -> Self {
        Self {
            list: Vec::new(),
            next: 0,
        }
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.list.iter().position(|known| known.0 == number)
    }
}

impl Semaphore {
    /// Waits until no permit is held. Callers may go on to acquire meanwhile: to drain, [`close`](Self::close) the semaphore or set
    /// its limit to zero first.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Semaphore};
    /// let slots = Semaphore::new(2);
    /// let last = slots.try_acquire()?;
    /// slots.close();
    /// ManualClock::new().run(async {
    ///     futures::join!(slots.until_idle(), async { drop(last) });
    /// });
    /// assert_eq!(slots.in_use(), 0);
    /// # Ok::<(), tollgate::TryAcquireError>(())
    /// ```
    pub fn until_idle(&self) -> impl Future<Output = ()> {
        Watch::new(self, Until::Idle)
    }

    /// Waits until no more permits are held than the limit allows: a lower limit has taken effect, and the [`debt`](Self::debt) is
    /// paid.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Semaphore};
    /// let slots = Semaphore::new(4);
    /// let held = slots.try_acquire_many(4)?;
    /// slots.set_limit(1);
    /// assert_eq!(slots.debt(), 3);
    /// ManualClock::new().run(async {
    ///     futures::join!(slots.until_paid(), async { drop(held) });
    /// });
    /// assert_eq!(slots.debt(), 0);
    /// # Ok::<(), tollgate::TryAcquireError>(())
    /// ```
    pub fn until_paid(&self) -> impl Future<Output = ()> {
        Watch::new(self, Until::Paid)
    }

    /// Under the lock, where the limit does not change. The caller sees the writes of the holders that gave their permits back.
    fn holds(&self, until: Until) -> bool {
        let available = self.available_acquired();
        match until {
            Until::Idle => available >= self.limit() as i64,
            Until::Paid => available >= 0,
        }
    }

    /// Wakes the watchers whose condition holds.
    #[cold]
    pub(super) fn wake_watchers(&self) {
        let mut waiters = self.queue.lock();
        let ready: Vec<_> = {
            let mut watching = self.watching.lock();
            let (ready, left) = std::mem::take(&mut watching.list)
                .into_iter()
                .partition(|&(_, until, _)| self.holds(until));
            watching.list = left;
            ready
        };
        self.review_watchers(&mut waiters);
        drop(waiters);
        wake_all(ready.into_iter().map(|(_, _, waker)| waker));
    }

    fn review_watchers(&self, waiters: &mut Waiters) {
        let watched = !self.watching.lock().list.is_empty();
        self.keep_flag(waiters, kept::WATCHED, watched);
    }

    /// Watches, unless the condition holds already: the number of the watcher.
    fn begin_watch(&self, until: Until, waker: Waker) -> Option<u64> {
        let mut waiters = self.queue.lock();
        let number = {
            let mut watching = self.watching.lock();
            watching.next += 1;
            let number = watching.next;
            watching.list.push((number, until, waker));
            number
        };
        self.review_watchers(&mut waiters);
        // The flag first: a release that does not see it is seen here.
        let holds = self.holds(until);
        drop(waiters);
        if holds {
            self.end_watch(number);
        }
        (!holds).then_some(number)
    }

    /// Leaves another waker with the watcher: false when its condition has held.
    fn watches(&self, number: u64, mut waker: Waker) -> bool {
        let known = {
            let _waiters = self.queue.lock();
            let mut watching = self.watching.lock();
            let known = watching.position(number);
            if let Some(known) = known {
                std::mem::swap(&mut watching.list[known].2, &mut waker);
            }
            known
        };
        drop_quietly(waker);
        known.is_some()
    }

    fn end_watch(&self, number: u64) {
        let mut waiters = self.queue.lock();
        let known = {
            let mut watching = self.watching.lock();
            let known = watching.position(number);
            known.map(|known| watching.list.swap_remove(known))
        };
        self.review_watchers(&mut waiters);
        drop(waiters);
        drop_quietly(known);
    }
}

/// A watch as a future.
struct Watch<'a> {
    semaphore: &'a Semaphore,
    until: Until,
    number: Option<u64>,
}

impl<'a> Watch<'a> {
    fn new(semaphore: &'a Semaphore, until: Until) -> Self {
        let number = None;
        Self {
            semaphore,
            until,
            number,
        }
    }
}

impl Future for Watch<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Cloned outside the locks: that may run foreign code.
        let waker = cx.waker().clone();
        self.number = match self.number {
            None => self.semaphore.begin_watch(self.until, waker),
            Some(number) => Some(number).filter(|&number| self.semaphore.watches(number, waker)),
        };
        match self.number {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.semaphore.end_watch(number);
        }
    }
}
