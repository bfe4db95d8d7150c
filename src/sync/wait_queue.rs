//! Waiting in the turn of a queue: how a policy stands in line at a semaphore like any other waiter.

use std::fmt;
use std::task::Waker;

/// Tells the queues of a composite apart: where the limiter lives. Valid as long as it is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(usize);

impl QueueId {
    /// The identity of the queue inside `limiter`.
    #[inline]
    pub fn of<T>(limiter: &T) -> Self {
        Self(std::ptr::from_ref(limiter) as usize)
    }

    /// The identity of a queue that is itself at hand: the same as [`of`](Self::of) the limiter that it is.
    #[inline]
    pub(crate) fn of_queue(queue: &dyn WaitQueue) -> Self {
        Self(std::ptr::from_ref(queue).cast::<()>() as usize)
    }
}

/// A place in the queue of one leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey {
    wait_queue: QueueId,
    key: u64,
}

impl QueueKey {
    /// The place `key` in the queue `wait_queue`.
    pub fn new(wait_queue: QueueId, key: u64) -> Self {
        Self { wait_queue, key }
    }

    /// Whose queue.
    pub fn wait_queue(&self) -> QueueId {
        self.wait_queue
    }

    /// Which place.
    pub fn key(&self) -> u64 {
        self.key
    }
}

/// A queue that grants in turn. A granted place holds what it was granted until it is redeemed by a demand that
/// carries the claim, or left.
pub trait WaitQueue: Send + Sync {
    /// Joins the queue for `units`; `waker` is woken when they are granted (also when they are granted at once).
    fn join(&self, units: u64, waker: &Waker) -> QueueKey;

    /// Leaves the queue. What was granted meanwhile goes to whoever is next.
    fn leave(&self, claim: QueueKey);

    /// True when a place only orders the queues, and is never handed anything: a policy may keep it while it waits for an
    /// instant.
    #[doc(hidden)]
    fn holds_nothing(&self) -> bool {
        false
    }

    /// What an admission holds until its work ends.
    #[doc(hidden)]
    fn permits(&self) -> Permits {
        if self.holds_nothing() {
            Permits::None
        } else {
            Permits::Own
        }
    }
}

/// What an admission by a limiter with a queue holds until its work ends.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permits {
    /// Nothing: time gives back what it took.
    None,
    /// Permits for which this queue waits.
    Own,
    /// Permits that other queues wait for as well.
    Of(QueueId),
}

impl fmt::Debug for dyn WaitQueue + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitQueue")
    }
}
