//! Watchers: they wait until no permit is held, without a place in the queue.
//!
//! While there is one, the word is flagged, so that every release takes the lock.

use super::atomic::{Semaphore, kept};
use crate::sync::unwind::drop_quietly;
use crate::sync::wait_queue::new_age;
use crate::sync::wake::wake_all;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The watchers of a semaphore, by number. One that was told is not among them any more.
pub(super) type Watching = BTreeMap<u64, Waker>;

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
        UntilIdle {
            semaphore: self,
            number: None,
        }
    }

    /// Changes the watchers, and says whether no permit is held. The flag comes first: a release that does not see it is seen here.
    fn watch_idle<R>(&self, change: impl FnOnce(&mut Watching) -> R) -> (R, bool) {
        let mut waiters = self.queue.lock();
        let (result, watched) = {
            let mut watching = self.watching.lock();
            (change(&mut watching), !watching.is_empty())
        };
        self.keep_flag(&mut waiters, kept::WATCHED, watched);
        (result, self.is_idle())
    }

    /// Under the lock, where the limit does not change. The caller sees the writes of the holders that gave their permits back.
    fn is_idle(&self) -> bool {
        self.signed_available() >= self.limit() as i64
    }

    /// Tells all watchers, if no permit is held.
    #[cold]
    pub(super) fn wake_watchers(&self) {
        let mut waiters = self.queue.lock();
        if !self.is_idle() {
            return;
        }
        let told = std::mem::take(&mut *self.watching.lock());
        self.keep_flag(&mut waiters, kept::WATCHED, false);
        drop(waiters);
        wake_all(told.into_values());
    }
}

struct UntilIdle<'a> {
    semaphore: &'a Semaphore,
    number: Option<u64>,
}

impl Future for UntilIdle<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Cloned outside the locks: that may run foreign code.
        let mut waker = cx.waker().clone();
        let known = self.number;
        let number = *self.number.get_or_insert_with(new_age);
        let (watches, idle) = self.semaphore.watch_idle(|watching| match watching.get_mut(&number) {
            Some(own) => {
                std::mem::swap(own, &mut waker);
                true
            }
            None if known.is_none() => {
                watching.insert(number, std::mem::replace(&mut waker, Waker::noop().clone()));
                true
            }
            // It was told.
            None => false,
        });
        drop_quietly(waker);
        match watches && !idle {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Drop for UntilIdle<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let (known, _) = self.semaphore.watch_idle(|watching| watching.remove(&number));
            drop_quietly(known);
        }
    }
}
