//! A queue that grants in turn: how a policy waits at a semaphore as one of its waiters.

use std::fmt;
use std::task::Waker;

/// The identity of a queue in a composite: the address of its limiter. Valid as long as that is not moved.
///
/// ```
/// # use tollgate::Semaphore;
/// # use tollgate::sync::QueueId;
/// let (one, other) = (Semaphore::new(1), Semaphore::new(1));
/// assert_eq!(QueueId::of(&one), QueueId::of(&one));
/// assert_ne!(QueueId::of(&one), QueueId::of(&other));
/// ```
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

/// The key of a position in the queue of one leg.
///
/// ```
/// # use tollgate::Semaphore;
/// # use tollgate::sync::{QueueId, QueueKey};
/// let id = QueueId::of(&Semaphore::new(1));
/// let key = QueueKey::new(id, 7);
/// assert_eq!((key.wait_queue(), key.key()), (id, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey {
    wait_queue: QueueId,
    key: u64,
}

impl QueueKey {
    /// The position `key` in the queue `wait_queue`.
    pub fn new(wait_queue: QueueId, key: u64) -> Self {
        Self { wait_queue, key }
    }

    /// The queue.
    pub fn wait_queue(&self) -> QueueId {
        self.wait_queue
    }

    /// The position.
    pub fn key(&self) -> u64 {
        self.key
    }
}

/// What a waiter joins a [`WaitQueue`] for.
///
/// ```
/// # use tollgate::sync::QueueDemand;
/// let demand = QueueDemand::of(3);
/// assert_eq!((demand.units, demand.class, demand.costs.len()), (3, 0, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDemand<'a> {
    /// The units that the limiter of the queue counts.
    pub units: u64,
    /// The class of the request, for a queue that has classes.
    pub class: u8,
    /// The calls of the request.
    pub calls: u64,
    /// Its costs, by their names.
    pub costs: &'a [(&'static str, u64)],
}

impl QueueDemand<'_> {
    /// A demand for `units` calls, of class 0.
    pub const fn of(units: u64) -> Self {
        Self {
            units,
            class: 0,
            calls: units,
            costs: &[],
        }
    }
}

/// A queue that grants in turn. A position holds the units that it was granted until a demand that carries its key redeems
/// them, or until it is left.
///
/// ```
/// # use tollgate::{Limiter, Semaphore};
/// # use tollgate::sync::{QueueDemand, QueueId};
/// # use std::task::Waker;
/// let semaphore = Semaphore::new(1);
/// let held = semaphore.try_acquire().unwrap();
/// let queue = semaphore.wait_queue(QueueId::of(&semaphore)).expect("a semaphore has a queue");
/// let key = queue.join(QueueDemand::of(1), Waker::noop());
/// drop(held);
/// assert_eq!(semaphore.available_permits(), 0, "granted to the position");
/// queue.leave(key);
/// assert_eq!(semaphore.available_permits(), 1);
/// ```
pub trait WaitQueue: Send + Sync {
    /// Joins the queue for the units of `demand`; `waker` is woken when they are granted (also when they are granted at once).
    fn join(&self, demand: QueueDemand<'_>, waker: &Waker) -> QueueKey;

    /// Leaves the queue. Units that were granted meanwhile go to the next waiter.
    fn leave(&self, key: QueueKey);

    /// True when a position only orders the queues, and is never handed anything: a policy may keep it while it waits for an
    /// instant.
    #[doc(hidden)]
    fn holds_nothing(&self) -> bool {
        false
    }

    /// The permits that an admission holds until its work ends.
    #[doc(hidden)]
    fn permits(&self) -> Permits {
        if self.holds_nothing() {
            Permits::None
        } else {
            Permits::Own
        }
    }
}

/// The permits that an admission by a limiter with a queue holds until its work ends.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permits {
    /// None: time gives back the units that it took.
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
