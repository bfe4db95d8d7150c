//! Waiting for permits: one state machine, driven as a future or by parking a thread. And the passive wait of pool workers.

use super::atomic::Semaphore;
use super::error::{AcquireError, AcquireTimeoutError};
use super::limiter::SemaphoreTicket;
use super::{OwnedSemaphorePermit, SemaphorePermit};
use crate::blocking;
#[cfg(feature = "pool")]
use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use crate::semaphore::queue::Key;
use crate::sync::park::{block_on, block_on_timeout};
#[cfg(feature = "pool")]
use crate::sync::wake::quietly;
use crate::time::{Clock, Instant, Sleep};
#[cfg(feature = "pool")]
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A wait for `n` permits, with its key in the queue once it has one, by its parts: three words with the semaphore.
struct Wait {
    n: u32,
    index: u32,
    /// Its class until it has a key.
    number: u64,
}

impl Wait {
    #[inline]
    fn new(n: u32, class: u8) -> Self {
        let (number, index) = Key::asking(class).parts();
        Self { n, index, number }
    }

    #[inline]
    fn key(&self) -> Key {
        Key::from_parts(self.number, self.index)
    }

    #[inline]
    fn poll(&mut self, semaphore: &Semaphore, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        if self.key().is_entry() {
            if semaphore.is_served(self.number) {
                (self.number, self.index) = Key::TAKEN.parts();
                return Poll::Ready(Ok(()));
            }
        } else if semaphore.try_take(i64::from(self.n)) {
            return Poll::Ready(Ok(()));
        }
        // By value, so that a wait that ends at once lives in registers.
        let key = poll_slow(semaphore, self.n, self.key(), waker);
        (self.number, self.index) = key.parts();
        if key == Key::TAKEN {
            Poll::Ready(Ok(()))
        } else if key.is_entry() {
            Poll::Pending
        } else {
            Poll::Ready(Err(AcquireError::of(key)))
        }
    }

    #[inline]
    fn leave(&mut self, semaphore: &Semaphore) {
        if self.key().is_entry() {
            semaphore.leave_queue(self.key(), i64::from(self.n));
        }
    }
}

/// Joins the queue, or looks how the wait stands. Returns the key of the wait from then on, or how it has ended.
#[inline(never)]
fn poll_slow(semaphore: &Semaphore, n: u32, key: Key, waker: &Waker) -> Key {
    if key.is_entry() {
        semaphore.look(key, i64::from(n), waker)
    } else if n == 0 && !semaphore.is_closed() {
        Key::TAKEN
    } else {
        semaphore.join_queue(n, key.class(), waker.clone())
    }
}

/// A wait at a borrowed semaphore. Dropping it leaves the queue.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Acquire<'a> {
    semaphore: &'a Semaphore,
    wait: Wait,
}

impl<'a> Acquire<'a> {
    #[inline]
    pub(super) fn new(semaphore: &'a Semaphore, n: u32) -> Self {
        Self::of_class(semaphore, n, 0)
    }

    #[inline]
    pub(super) fn of_class(semaphore: &'a Semaphore, n: u32, class: u8) -> Self {
        let wait = Wait::new(n, class);
        Self { semaphore, wait }
    }

    #[inline]
    fn poll_acquired(&mut self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        self.wait.poll(self.semaphore, waker)
    }

    #[inline]
    fn permit(&self) -> SemaphorePermit<'a> {
        Permit::new(self.semaphore, SemaphoreTicket::new(self.wait.n as usize))
    }

    /// Parks this thread until the permits are there.
    #[track_caller]
    pub(super) fn block(mut self) -> Result<SemaphorePermit<'a>, AcquireError> {
        blocking::check();
        if self.semaphore.try_take(i64::from(self.wait.n)) {
            return Ok(self.permit());
        }
        block_on(|waker| self.poll_acquired(waker))?;
        Ok(self.permit())
    }

    /// Parks this thread until the permits are there, or `patience` is over.
    #[track_caller]
    pub(super) fn block_for(mut self, patience: Duration) -> Result<SemaphorePermit<'a>, AcquireTimeoutError> {
        blocking::check();
        if self.semaphore.try_take(i64::from(self.wait.n)) {
            return Ok(self.permit());
        }
        let Some(acquired) = block_on_timeout(Some(patience), |waker| self.poll_acquired(waker)) else {
            self.semaphore.count_time_out();
            return Err(AcquireTimeoutError::TimedOut);
        };
        acquired?;
        Ok(self.permit())
    }
}

impl<'a> Future for Acquire<'a> {
    type Output = Result<SemaphorePermit<'a>, AcquireError>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_acquired(cx.waker())
            .map(|result| result.map(|()| self.permit()))
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        self.wait.leave(self.semaphore);
    }
}

/// An [`Acquire`] that owns a handle of its semaphore, until it passes it on to the permit.
#[must_use = "futures do nothing unless polled"]
pub(super) struct AcquireOwned {
    semaphore: Option<Arc<Semaphore>>,
    wait: Wait,
}

impl AcquireOwned {
    #[inline]
    pub(super) fn new(semaphore: Arc<Semaphore>, n: u32) -> Self {
        Self::of_class(semaphore, n, 0)
    }

    #[inline]
    pub(super) fn of_class(semaphore: Arc<Semaphore>, n: u32, class: u8) -> Self {
        Self {
            semaphore: Some(semaphore),
            wait: Wait::new(n, class),
        }
    }
}

impl Future for AcquireOwned {
    type Output = Result<OwnedSemaphorePermit, AcquireError>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let ended = "a future that has ended is not polled again";
        let semaphore = this.semaphore.as_ref().expect(ended);
        this.wait.poll(semaphore, cx.waker()).map(|result| {
            result?;
            let semaphore = this.semaphore.take().expect(ended);
            Ok(Permit::new(semaphore, SemaphoreTicket::new(this.wait.n as usize)))
        })
    }
}

impl Drop for AcquireOwned {
    #[inline]
    fn drop(&mut self) {
        if let Some(semaphore) = &self.semaphore {
            self.wait.leave(semaphore);
        }
    }
}

/// An [`Acquire`] that ends at an instant of a clock.
pub(super) struct AcquireUntil<'a> {
    acquire: Acquire<'a>,
    clock: Clock,
    deadline: Instant,
    sleep: Option<Sleep>,
}

impl<'a> AcquireUntil<'a> {
    pub(super) fn new(acquire: Acquire<'a>, clock: &Clock, deadline: Instant) -> Self {
        Self {
            acquire,
            clock: clock.clone(),
            deadline,
            sleep: None,
        }
    }
}

impl<'a> Future for AcquireUntil<'a> {
    type Output = Result<SemaphorePermit<'a>, AcquireTimeoutError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Permits first: those that were handed over in time are taken even if the time is over by now.
        if let Poll::Ready(result) = this.acquire.poll_acquired(cx.waker()) {
            return Poll::Ready(match result {
                Ok(()) => Ok(this.acquire.permit()),
                Err(closed) => Err(closed.into()),
            });
        }
        let sleep = this
            .sleep
            .get_or_insert_with(|| Sleep::until(&this.clock, this.deadline));
        Pin::new(sleep).poll(cx).map(|()| {
            this.acquire.semaphore.count_time_out();
            Err(AcquireTimeoutError::TimedOut)
        })
    }
}

/// A passive wait for one permit: no bound of the queue applies. So wait the workers of pools, which have a bound of their own.
///
/// It ends without a permit only when the semaphore is closed. Dropping it leaves the queue, and passes on a permit that it had
/// been granted; a panic of another waiter's waker is survived.
#[cfg(feature = "pool")]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct PassiveAcquire<S: Deref<Target = Semaphore>> {
    semaphore: S,
    key: Option<Key>,
}

#[cfg(feature = "pool")]
impl<S: Deref<Target = Semaphore>> PassiveAcquire<S> {
    pub(crate) fn at(semaphore: S) -> Self {
        Self { semaphore, key: None }
    }
}

#[cfg(feature = "pool")]
impl<S> Future for PassiveAcquire<S>
where
    S: Deref<Target = Semaphore> + Limiter<Ticket = SemaphoreTicket> + Clone + Unpin,
{
    type Output = Option<Permit<S>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let semaphore = self.semaphore.clone();
        let key = match self.key {
            Some(key) => semaphore.look_passive(key, cx.waker()),
            None if semaphore.try_take(1) => Key::TAKEN,
            None => semaphore.join_passive(1, 0, cx.waker().clone()),
        };
        self.key = key.is_entry().then_some(key);
        match key {
            Key::TAKEN => Poll::Ready(Some(Permit::new(semaphore, SemaphoreTicket::new(1)))),
            Key::CLOSED => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}

#[cfg(feature = "pool")]
impl<S: Deref<Target = Semaphore>> Drop for PassiveAcquire<S> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            quietly(|| self.semaphore.leave_passive(key));
        }
    }
}

#[cfg(all(test, feature = "pool", not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use crate::semaphore::scheduling::{Eviction, Order};
    use std::pin::pin;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn of_all_kinds() -> [Semaphore; 5] {
        let bounded = |most, eviction| Semaphore::builder(1).max_queue(most).eviction(eviction);
        [
            Semaphore::builder(1),
            bounded(0, Eviction::Never),
            bounded(1, Eviction::Oldest),
            Semaphore::builder(1).overtakes(2),
            Semaphore::builder(1).order(Order::Lifo),
        ]
        .map(|builder| builder.build().unwrap())
    }

    #[test]
    fn a_passive_waiter_is_never_refused_and_leaves_nothing_behind() {
        for semaphore in of_all_kinds() {
            for _ in 0..3 {
                let held = semaphore.try_acquire().unwrap();
                let mut one = Box::pin(PassiveAcquire::at(&semaphore));
                let mut two = Box::pin(PassiveAcquire::at(&semaphore));
                assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
                // A newcomer to which the bounds apply does not evict them.
                let mut other = Box::pin(semaphore.acquire());
                assert!(!matches!(poll(other.as_mut()), Poll::Ready(Ok(_))));
                drop(other);
                assert_eq!(semaphore.waiting(), 2);
                drop(held);
                // The permit of the waiter that leaves goes to the other.
                let first = if poll(two.as_mut()).is_pending() {
                    &mut one
                } else {
                    &mut two
                };
                drop(std::mem::replace(first, Box::pin(PassiveAcquire::at(&semaphore))));
                assert_eq!((semaphore.waiting(), semaphore.has_spare_memory()), (0, false));
                assert!(semaphore.in_use() <= 1);
                drop((one, two));
                assert_eq!((semaphore.available_permits(), semaphore.in_use()), (1, 0));
            }
        }
    }

    #[test]
    fn a_passive_waiter_that_is_next_by_the_schedule_is_handed_a_free_permit() {
        let orders = [
            Order::Lifo,
            Order::Priority {
                classes: 2,
                patience: 8,
            },
            Order::RoundRobin { classes: 2 },
            Order::Shares(vec![1, 1]),
        ];
        for order in orders {
            let semaphore = Semaphore::builder(5).order(order).build().unwrap();
            let _held = semaphore.try_acquire_many(3).unwrap();
            let mut large = pin!(semaphore.request(4).class(1).acquire());
            assert!(
                large
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            let one = poll(pin!(PassiveAcquire::at(&semaphore)));
            assert!(matches!(one, Poll::Ready(Some(_))));
            assert_eq!((semaphore.in_use(), semaphore.waiting()), (4, 1));
        }
    }

    #[test]
    fn a_close_ends_a_passive_wait_also_after_a_grant() {
        for semaphore in of_all_kinds() {
            let held = semaphore.try_acquire().unwrap();
            let (mut one, mut two) = (
                pin!(PassiveAcquire::at(&semaphore)),
                pin!(PassiveAcquire::at(&semaphore)),
            );
            assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
            drop(held);
            semaphore.close();
            assert!(matches!(poll(one.as_mut()), Poll::Ready(None)));
            assert!(matches!(poll(two.as_mut()), Poll::Ready(None)));
            assert_eq!(semaphore.in_use(), 0);
        }
    }
}
