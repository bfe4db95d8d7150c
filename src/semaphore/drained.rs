//! Waiting until a semaphore has come to rest: until all permits are back, or a shrink has taken effect; and watching for
//! what pools wait for without a place in line.
//!
//! While somebody watches, the word is flagged, so that every release comes by the lock.

use super::atomic::{MAX, QUEUED, Semaphore, weakened};
use crate::sync::queue::Queue;
use crate::sync::shim::atomic::Ordering;
use crate::sync::wake::{drop_quietly, wake_all};
use crate::sync::watchers::{Condition, PermitState};
use std::pin::Pin;
#[cfg(feature = "pool")]
use std::task::Waker;
use std::task::{Context, Poll};

impl Semaphore {
    /// Ends as soon as no permit is held. Nobody is kept from acquiring meanwhile: to drain, [`close`](Self::close) or set
    /// the limit to zero first.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// ```
    /// # use tollgate::{Clock, Semaphore};
    /// # let semaphore = Semaphore::new(4);
    /// semaphore.close();
    /// Clock::real().run(semaphore.until_idle());
    /// ```
    pub fn until_idle(&self) -> impl Future<Output = ()> {
        Resting::new(self, Condition::Idle)
    }

    /// Ends as soon as no more permits are held than the limit allows: a shrink has taken effect, and the
    /// [`debt`](Self::debt) is paid.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn until_paid(&self) -> impl Future<Output = ()> {
        Resting::new(self, Condition::Paid)
    }

    /// What is available, with what was done under the permits that are back. Under the lock, where the limit stands still.
    fn seen_available(&self) -> i64 {
        // Acquire: pairs with (R) in `release`, of whichever releases have added up.
        let word = self.word.load(weakened!("semaphore_relaxed_rest", Acquire));
        if word < -MAX { word + QUEUED } else { word }
    }

    /// Under the lock.
    pub(super) fn sight(&self, _: &Queue) -> PermitState {
        PermitState {
            available: self.seen_available(),
            limit: self.limit.load(Ordering::Relaxed),
        }
    }

    fn has_come(&self, rest: Condition, queue: &Queue) -> bool {
        rest.has_come(self.sight(queue))
    }

    /// Tells those who watch for what has come.
    #[cold]
    pub(super) fn tell_watchers(&self) {
        let told = {
            let mut queue = self.queue.lock();
            if !queue.is_watched() {
                return;
            }
            let sight = self.sight(&queue);
            let told = queue.told(sight);
            self.unflag(&queue);
            told
        };
        wake_all(told);
    }

    /// Takes the flag off when the last watcher has gone, and nothing else wants it. Under the lock.
    fn unflag(&self, queue: &Queue) {
        if queue.wants_no_flag() {
            // Relaxed: the flag only sends others to the lock.
            self.word.fetch_add(QUEUED, Ordering::Relaxed);
        }
    }
}

/// Who watches without a future, by a number that is none before and after.
#[cfg(feature = "fan-out")]
impl Semaphore {
    /// Watches for `rest`, unless it does already: the waker is woken once it has come. False, and nobody watches, when it
    /// has come now. `waker` only makes one.
    pub(crate) fn watch(&self, number: &mut Option<u64>, rest: Condition, waker: impl FnOnce() -> Waker) -> bool {
        let mut queue = self.queue.lock();
        if number.is_some_and(|number| queue.is_watching(number)) {
            return true;
        }
        let flagged = !queue.wants_no_flag();
        let early = seeded!("semaphore_watches_late") && !self.has_come(rest, &queue);
        let (mine, _) = queue.watch(None, rest, waker());
        if !flagged {
            // Relaxed: only sends others to the lock.
            self.word.fetch_sub(QUEUED, Ordering::Relaxed);
        }
        *number = Some(mine);
        // The flag first: a release that does not see it is seen here.
        if early || !self.has_come(rest, &queue) {
            return true;
        }
        drop(queue);
        self.watch_no_more(number);
        false
    }

    /// The one with this number is not told any more.
    pub(crate) fn watch_no_more(&self, number: &mut Option<u64>) {
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

struct Resting<'a> {
    semaphore: &'a Semaphore,
    rest: Condition,
    /// Its number among the watchers; told since, when it is not there any more.
    number: Option<u64>,
}

impl<'a> Resting<'a> {
    fn new(semaphore: &'a Semaphore, rest: Condition) -> Self {
        Self {
            semaphore,
            rest,
            number: None,
        }
    }

    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        let mut queue = self.semaphore.queue.lock();
        let waker = queue.stop_watching(number);
        if waker.is_some() {
            self.semaphore.unflag(&queue);
        }
        drop(queue);
        drop_quietly(waker);
    }
}

impl Future for Resting<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let waker = cx.waker().clone();
        let mut queue = this.semaphore.queue.lock();
        if this.number.is_some_and(|number| !queue.is_watching(number)) {
            // It was told, whatever has happened since.
            this.number = None;
            drop(queue);
            drop_quietly(waker);
            return Poll::Ready(());
        }
        let flagged = !queue.wants_no_flag();
        let early = seeded!("semaphore_watches_late").then(|| this.semaphore.has_come(this.rest, &queue));
        let (number, old) = queue.watch(this.number, this.rest, waker);
        this.number = Some(number);
        if !flagged {
            // Relaxed: only sends others to the lock.
            this.semaphore.word.fetch_sub(QUEUED, Ordering::Relaxed);
        }
        // The flag first: a release that does not see it is seen here.
        let come = early.unwrap_or_else(|| this.semaphore.has_come(this.rest, &queue));
        drop(queue);
        drop_quietly(old);
        if come {
            this.leave();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, feature = "fan-out"))]
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

    /// Somebody who watches, once, and whether they have been told.
    struct Watching(Arc<Count>, Option<u64>);

    impl Watching {
        #[track_caller]
        fn at(semaphore: &Semaphore, rest: Condition) -> Self {
            let (count, mut number) = (Arc::<Count>::default(), None);
            let waker = Waker::from(Arc::clone(&count));
            assert!(semaphore.watch(&mut number, rest, || waker), "it has come");
            Self(count, number)
        }

        fn times(&self) -> usize {
            self.0.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_watcher_is_told_of_a_raised_limit_unless_it_has_left() {
        let semaphore = Semaphore::new(0);
        let [above, more] = [0, 2].map(|limit| Watching::at(&semaphore, Condition::Above(limit)));
        let mut gone = Watching::at(&semaphore, Condition::Above(0));
        semaphore.watch_no_more(&mut gone.1);
        semaphore.set_limit(2);
        assert_eq!((above.times(), more.times(), gone.times()), (1, 0, 0));
        assert!(!semaphore.watch(&mut None, Condition::Above(1), || Waker::noop().clone()));
    }
}
