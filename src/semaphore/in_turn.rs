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
