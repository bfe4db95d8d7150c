//! Watchers: they wait for a state of the permits, without a position in the queue.
//!
//! While there is one, the word is flagged, so every release takes the lock. The queue keeps the watchers under their numbers. A
//! change of the permits takes out those whose condition holds, and wakes them outside the lock.

use super::{MAX, QUEUED, Semaphore};
use crate::semaphore::queue::{Condition, PermitState, Queue};
use crate::sync::shim::atomic::Ordering;
use crate::sync::wake::{drop_quietly, wake_all};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

impl Semaphore {
    /// Waits until no permit is held. Callers may go on to acquire meanwhile: to drain, [`close`](Self::close) or set the limit
    /// to zero first.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// ```
    /// # use tollgate::{Clock, Semaphore};
    /// let semaphore = Semaphore::new(4);
    /// semaphore.close();
    /// Clock::real().run(semaphore.until_idle());
    /// ```
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
        UntilCondition::new(self, Condition::Idle)
    }

    /// Waits until no more permits are held than the limit allows: a shrink has taken effect, and the [`debt`](Self::debt) is
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
        UntilCondition::new(self, Condition::Paid)
    }

    /// The state of the permits, and the writes of the holders that gave theirs back. Under the lock, where the limit does not
    /// change.
    pub(super) fn permit_state(&self, _: &Queue) -> PermitState {
        // Acquire: pairs with (R) in all the `release`s that have added up.
        let word = self.word.load(Ordering::Acquire);
        PermitState {
            available: if word < -MAX { word + QUEUED } else { word },
            limit: self.limit.load(Ordering::Relaxed),
        }
    }

    fn holds(&self, condition: Condition, queue: &Queue) -> bool {
        condition.holds(self.permit_state(queue))
    }

    /// Wakes the watchers whose condition holds.
    #[cold]
    pub(super) fn notify_watchers(&self) {
        let ready = {
            let mut queue = self.queue.lock();
            if !queue.is_watched() {
                return;
            }
            let permit_state = self.permit_state(&queue);
            let ready = queue.take_ready(permit_state);
            self.unflag(&queue);
            ready
        };
        wake_all(ready);
    }

    /// Watches for `condition`, unless it does already: the waker is woken once the condition holds. False, without a watcher, if
    /// it holds now. `waker` only makes one.
    pub(crate) fn watch(&self, number: &mut Option<u64>, condition: Condition, waker: impl FnOnce() -> Waker) -> bool {
        let mut queue = self.queue.lock();
        if number.is_some_and(|number| queue.is_watching(number)) {
            return true;
        }
        let flagged = !queue.wants_no_flag();
        let (mine, _) = queue.watch(None, condition, waker());
        if !flagged {
            // Relaxed: only sends others to the lock.
            self.word.fetch_sub(QUEUED, Ordering::Relaxed);
        }
        *number = Some(mine);
        // The flag first: a release that does not see it is seen here.
        if !self.holds(condition, &queue) {
            return true;
        }
        drop(queue);
        self.unwatch(number);
        false
    }

    /// Ends the watch with this number.
    pub(crate) fn unwatch(&self, number: &mut Option<u64>) {
        let Some(number) = number.take() else { return };
        let mut queue = self.queue.lock();
        let waker = queue.stop_watching(number);
        if waker.is_some() {
            self.unflag(&queue);
        }
        drop(queue);
        drop_quietly(waker);
    }
}

/// A watch for a condition, as a future.
struct UntilCondition<'a> {
    semaphore: &'a Semaphore,
    condition: Condition,
    /// Its number among the watchers. It is not there any more once it has been woken for good.
    number: Option<u64>,
}

impl<'a> UntilCondition<'a> {
    fn new(semaphore: &'a Semaphore, condition: Condition) -> Self {
        Self {
            semaphore,
            condition,
            number: None,
        }
    }
}

impl Future for UntilCondition<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // Cloned and dropped outside the lock: both may run foreign code.
        let waker = cx.waker().clone();
        if this.number.is_none() {
            let waits = this.semaphore.watch(&mut this.number, this.condition, || waker);
            return if waits { Poll::Pending } else { Poll::Ready(()) };
        }
        let mut queue = this.semaphore.queue.lock();
        let watches = this.number.filter(|&number| queue.is_watching(number));
        let spare = match watches {
            Some(number) => queue.watch(Some(number), this.condition, waker).1,
            // The condition held, whatever has happened since.
            None => Some(waker),
        };
        drop(queue);
        drop_quietly(spare);
        this.number = watches;
        if watches.is_some() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

impl Drop for UntilCondition<'_> {
    fn drop(&mut self) {
        self.semaphore.unwatch(&mut self.number);
    }
}

#[cfg(all(test, feature = "fan-out", not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One watcher, and how often it was woken.
    struct Watching(Arc<Count>, Option<u64>);

    impl Watching {
        #[track_caller]
        fn at(semaphore: &Semaphore, condition: Condition) -> Self {
            let (count, mut number) = (Arc::<Count>::default(), None);
            let waker = Waker::from(Arc::clone(&count));
            assert!(semaphore.watch(&mut number, condition, || waker), "it holds already");
            Self(count, number)
        }

        fn times(&self) -> usize {
            self.0.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_raised_limit_wakes_a_watcher_unless_it_has_left() {
        let semaphore = Semaphore::new(0);
        let [above, more] = [0, 2].map(|limit| Watching::at(&semaphore, Condition::Above(limit)));
        let mut gone = Watching::at(&semaphore, Condition::Above(0));
        semaphore.unwatch(&mut gone.1);
        semaphore.set_limit(2);
        assert_eq!((above.times(), more.times(), gone.times()), (1, 0, 0));
        assert!(!semaphore.watch(&mut None, Condition::Above(1), || Waker::noop().clone()));
    }
}
