//! Waiting for a permit as a policy does: at a place that is kept, whatever the bounds of the line. So wait those who have
//! a bound of their own and nobody to refuse: the workers of pools.

use super::atomic::Semaphore;
use super::limiter::SemaphoreTicket;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::sync::queue::{Key, State};
use crate::sync::wake::quietly;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A wait for one permit, that ends with none when the semaphore is closed, and then only. Dropping it gives up the place,
/// and what came to it; a waker of others that panics then is survived.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct InTurn<S: Deref<Target = Semaphore>> {
    semaphore: S,
    place: Option<Key>,
}

impl<S: Deref<Target = Semaphore>> InTurn<S> {
    pub(crate) fn at(semaphore: S) -> Self {
        let place = None;
        Self { semaphore, place }
    }
}

impl Semaphore {
    /// The owner of a kept place looks: at the same place, at [`Key::TAKEN`], or at [`Key::CLOSED`].
    fn look_at_kept(&self, key: Key, waker: &Waker) -> Key {
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
            drop(queue);
            drop(old);
            if waits {
                return key;
            }
            queue = self.queue.lock();
        }
        let (closed, (state, need), spare) = (queue.closed, queue.give_up(key), queue.spare());
        drop(queue);
        drop(spare);
        match state {
            State::Granted if !closed => return Key::TAKEN,
            State::Granted => self.release_quietly(need as usize),
            _ => {}
        }
        Key::CLOSED
    }
}

impl<S> Future for InTurn<S>
where
    S: Deref<Target = Semaphore> + Limiter<Ticket = SemaphoreTicket> + Clone + Unpin,
{
    type Output = Option<Permit<S>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let semaphore = self.semaphore.clone();
        let place = match self.place {
            Some(place) => semaphore.look_at_kept(place, cx.waker()),
            None if semaphore.try_take(1) => Key::TAKEN,
            None => semaphore.join_kept(1, cx.waker().clone()),
        };
        self.place = place.is_place().then_some(place);
        match place {
            Key::TAKEN => Poll::Ready(Some(Permit::new(semaphore, SemaphoreTicket::new(1)))),
            Key::CLOSED => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}

impl<S: Deref<Target = Semaphore>> Drop for InTurn<S> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            quietly(|| self.semaphore.leave_kept(self.semaphore.queue.lock(), place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::scheduling::{Order, Overflow};
    use std::pin::pin;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn of_all_kinds() -> [Semaphore; 5] {
        let bounded = |most, overflow| Semaphore::builder(1).max_waiting(most).overflow(overflow);
        [
            Semaphore::builder(1),
            bounded(0, Overflow::RefuseNewest),
            bounded(1, Overflow::EvictOldest),
            Semaphore::builder(1).overtakes(2),
            Semaphore::builder(1).order(Order::Lifo),
        ]
        .map(|builder| builder.build().unwrap())
    }

    #[test]
    fn nobody_who_waits_in_turn_is_turned_away_or_leaves_anything() {
        for semaphore in of_all_kinds() {
            for _ in 0..3 {
                let held = semaphore.try_acquire().unwrap();
                let mut one = Box::pin(InTurn::at(&semaphore));
                let mut two = Box::pin(InTurn::at(&semaphore));
                assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
                // Whoever comes by the rules does not push them out.
                let mut other = Box::pin(semaphore.acquire());
                assert!(!matches!(poll(other.as_mut()), Poll::Ready(Ok(_))));
                drop(other);
                assert_eq!(semaphore.waiting(), 2);
                drop(held);
                // What had come to the one that goes comes to the other.
                let first = if poll(two.as_mut()).is_pending() {
                    &mut one
                } else {
                    &mut two
                };
                drop(std::mem::replace(first, Box::pin(InTurn::at(&semaphore))));
                assert_eq!(
                    (semaphore.waiting(), semaphore.queue.lock().spare().is_some()),
                    (0, false)
                );
                assert!(semaphore.in_use() <= 1);
                drop((one, two));
                assert_eq!((semaphore.available_permits(), semaphore.in_use()), (1, 0));
            }
        }
    }

    #[test]
    fn one_that_is_next_by_the_rules_is_handed_what_is_free() {
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
            let one = poll(pin!(InTurn::at(&semaphore)));
            assert!(matches!(one, Poll::Ready(Some(_))));
            assert_eq!((semaphore.in_use(), semaphore.waiting()), (4, 1));
        }
    }

    #[test]
    fn a_close_ends_the_wait_whatever_had_come_to_it() {
        for semaphore in of_all_kinds() {
            let held = semaphore.try_acquire().unwrap();
            let (mut one, mut two) = (pin!(InTurn::at(&semaphore)), pin!(InTurn::at(&semaphore)));
            assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
            drop(held);
            semaphore.close();
            assert!(matches!(poll(one.as_mut()), Poll::Ready(None)));
            assert!(matches!(poll(two.as_mut()), Poll::Ready(None)));
            assert_eq!(semaphore.in_use(), 0);
        }
    }
}
