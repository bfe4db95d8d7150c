//! Waiting until a semaphore has come to rest: until all permits are back, or a shrink has taken effect; and watching for
//! what pools wait for without a place in line.
//!
//! While somebody watches, the word is flagged, so that every release comes by the lock.

use super::atomic::{MAX, QUEUED, Semaphore, weakened};
use crate::sync::queue::Queue;
use crate::sync::shim::atomic::Ordering;
use crate::sync::wake::{drop_quietly, wake_all};
use crate::sync::watchers::{Rest, Sight};
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
        Resting::new(self, Rest::Idle)
    }

    /// Ends as soon as no more permits are held than the limit allows: a shrink has taken effect, and the
    /// [`debt`](Self::debt) is paid.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub fn until_paid(&self) -> impl Future<Output = ()> {
        Resting::new(self, Rest::Paid)
    }

    /// What is available, with what was done under the permits that are back. Under the lock, where the limit stands still.
    fn seen_available(&self) -> i64 {
        // Acquire: pairs with (R) in `release`, of whichever releases have added up.
        let word = self.word.load(weakened!("semaphore_relaxed_rest", Acquire));
        if word < -MAX { word + QUEUED } else { word }
    }

    /// Under the lock.
    pub(super) fn sight(&self, queue: &Queue) -> Sight {
        Sight {
            available: self.seen_available(),
            limit: self.limit.load(Ordering::Relaxed),
            no_line: queue.is_empty(),
            closed: queue.closed,
        }
    }

    fn has_come(&self, rest: Rest, queue: &Queue) -> bool {
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
#[cfg(feature = "pool")]
impl Semaphore {
    /// Watches for `rest`, unless it does already: the waker is woken once it has come. False, and nobody watches, when it
    /// has come now. `waker` only makes one.
    pub(crate) fn watch(&self, number: &mut Option<u64>, rest: Rest, waker: impl FnOnce() -> Waker) -> bool {
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

    /// True while somebody watches.
    #[cfg(test)]
    pub(crate) fn is_watched(&self) -> bool {
        self.queue.lock().is_watched()
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
    rest: Rest,
    /// Its number among the watchers; told since, when it is not there any more.
    number: Option<u64>,
}

impl<'a> Resting<'a> {
    fn new(semaphore: &'a Semaphore, rest: Rest) -> Self {
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
    use std::pin::pin;
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
        fn at(semaphore: &Semaphore, rest: Rest) -> Self {
            let (count, mut number) = (Arc::<Count>::default(), None);
            let waker = Waker::from(Arc::clone(&count));
            assert!(semaphore.watch(&mut number, rest, || waker), "it has come");
            Self(count, number)
        }

        fn times(&self) -> usize {
            self.0.0.load(Ordering::Relaxed)
        }
    }

    fn polled<F: Future>(future: Pin<&mut F>, waker: &Waker) -> bool {
        future.poll(&mut Context::from_waker(waker)).is_ready()
    }

    #[test]
    fn who_watches_for_a_permit_is_told_when_one_is_there_for_whoever_comes() {
        let semaphore = Semaphore::new(1);
        assert!(!semaphore.watch(&mut None, Rest::Free, || Waker::noop().clone()));
        let held = semaphore.try_acquire().unwrap();
        let watching = Watching::at(&semaphore, Rest::Free);
        // Handed on, it is not there for whoever comes; nor is one that is kept for the first in line.
        let (mut next, mut two) = (pin!(semaphore.acquire()), Box::pin(semaphore.acquire_many(2)));
        assert!(!polled(next.as_mut(), Waker::noop()) && !polled(two.as_mut(), Waker::noop()));
        drop(held);
        assert!(polled(next.as_mut(), Waker::noop()));
        semaphore.add_permits(1);
        assert_eq!(watching.times(), 0);
        drop(two);
        assert_eq!(watching.times(), 1);
        assert!(semaphore.try_acquire().is_ok(), "and the flag is gone");
        assert_eq!(watching.times(), 1);
    }

    #[test]
    fn a_watcher_is_told_of_a_permit_that_was_kept_for_the_only_waiter_when_that_leaves() {
        let semaphore = Semaphore::new(2);
        let _held = semaphore.try_acquire().unwrap();
        let mut both = Box::pin(semaphore.acquire_many(2));
        assert!(!polled(both.as_mut(), Waker::noop()));
        let watching = Watching::at(&semaphore, Rest::Free);
        drop(both);
        assert_eq!(watching.times(), 1);
    }

    #[test]
    fn who_watches_is_told_of_a_limit_and_of_the_end() {
        let semaphore = Semaphore::new(0);
        let free = Watching::at(&semaphore, Rest::Free);
        let [above, more] = [0, 2].map(|limit| Watching::at(&semaphore, Rest::Above(limit)));
        semaphore.set_limit(2);
        assert_eq!((free.times(), above.times(), more.times()), (1, 1, 0));
        let _all = semaphore.try_acquire_many(2).unwrap();
        let mut gone = Watching::at(&semaphore, Rest::Free);
        semaphore.watch_no_more(&mut gone.1);
        let free = Watching::at(&semaphore, Rest::Free);
        semaphore.close();
        assert_eq!((free.times(), more.times(), gone.times()), (1, 0, 0));
        assert!(!semaphore.watch(&mut None, Rest::Free, || Waker::noop().clone()));
    }

    /// Somebody who begins to watch when the first of several is woken, while the others are still in line.
    struct Begins(Arc<Semaphore>, crate::sync::shim::Mutex<Option<Watching>>);

    impl Wake for Begins {
        fn wake(self: Arc<Self>) {
            *self.1.lock() = Some(Watching::at(&self.0, Rest::Free));
        }
    }

    #[test]
    fn who_begins_to_watch_in_the_midst_of_a_hand_over_is_told_of_what_is_left() {
        for overtakes in [0, 1] {
            let semaphore = Semaphore::builder(0).overtakes(overtakes).build().unwrap();
            let semaphore = Arc::new(semaphore);
            let begins = Arc::new(Begins(Arc::clone(&semaphore), crate::sync::shim::Mutex::default()));
            let (mut one, mut two) = (pin!(semaphore.acquire()), pin!(semaphore.acquire()));
            assert!(!polled(one.as_mut(), &Waker::from(Arc::clone(&begins))));
            assert!(!polled(two.as_mut(), Waker::noop()));
            semaphore.set_limit(3);
            assert!(polled(one.as_mut(), Waker::noop()) && polled(two.as_mut(), Waker::noop()));
            assert_eq!(begins.1.lock().as_ref().map(Watching::times), Some(1));
        }
    }
}
