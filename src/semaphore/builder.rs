//! Builds semaphores with another order, a bounded queue, a name, or statistics.

use super::atomic::Semaphore;
use crate::semaphore::counters::Counters;
use crate::semaphore::queue::Queue;
use crate::semaphore::scheduling::{Eviction, Order, OrderError};
use std::fmt;

/// Builds a [`Semaphore`]. Made by [`Semaphore::builder`].
///
/// ```
/// # use tollgate::{Order, Eviction, Semaphore};
/// let semaphore = Semaphore::builder(1)
///     .order(Order::Priority { classes: 2, patience: 8 })
///     .max_queue(100)
///     .eviction(Eviction::Oldest)
///     .name("database")
///     .build()
///     .unwrap();
/// assert_eq!(semaphore.name(), Some("database"));
/// assert!(Semaphore::builder(1).order(Order::RoundRobin { classes: 0 }).build().is_err());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct SemaphoreBuilder {
    permits: usize,
    order: Order,
    max_queue: Option<usize>,
    max_queue_permits: Option<u64>,
    eviction: Eviction,
    overtakes: u32,
    name: Option<Box<str>>,
    counters: Counters,
}

impl Semaphore {
    /// A semaphore with `permits` permits that can be given another order, a bounded queue, and a name.
    pub fn builder(permits: usize) -> SemaphoreBuilder {
        SemaphoreBuilder {
            permits,
            order: Order::Fifo,
            max_queue: None,
            max_queue_permits: None,
            eviction: Eviction::Never,
            overtakes: 0,
            name: None,
            counters: Counters::NONE,
        }
    }
}

impl SemaphoreBuilder {
    /// Sets the order in which waiters are granted: first come, first served, unless set otherwise.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the most waiters in the queue. What happens beyond is set by [`eviction`](Self::eviction). A policy that waits for
    /// this semaphore counts as one waiter and is never refused or evicted; nor is the worker of a pool.
    pub fn max_queue(mut self, waiters: usize) -> Self {
        self.max_queue = Some(waiters);
        self
    }

    /// Sets the most permits that all waiters may want together.
    pub fn max_queue_permits(mut self, permits: u64) -> Self {
        self.max_queue_permits = Some(permits);
        self
    }

    /// Sets which waiter is refused or evicted when the queue is full.
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// Puts throughput before order: any caller may take permits that come back, and the head of the queue is woken to take
    /// them instead of being handed them. So a running task goes on at once, and need not be woken first. The head is overtaken
    /// at most `times` times; then it is handed its permits as in strict order. Zero is strict order.
    ///
    /// It pays between threads, where a hand-over is a switch of threads. Four threads took turns at one permit, each
    /// for a moment. With 4 overtakes they got it 1.6 times as often as in strict order, with 256 four times as often. The longest
    /// wait grew from 3 turns of others to 15, and to 6,168. It does not pay between the tasks of one thread, where a hand-over
    /// is cheap: 64 of them at 4 permits were no faster. (Two processors; `cargo bench -p tollgate-compare --bench fairness`,
    /// whose table is in `benches/RESULTS.md`.)
    pub fn overtakes(mut self, times: u32) -> Self {
        self.overtakes = times;
        self
    }

    /// Sets a name, for logs and refusals.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Counts admissions and waits, for [`Semaphore::stats`], and measures waits on `clock`.
    ///
    /// Every admission and release then goes by the queue's lock, so that the counts are exact. That makes them about as fast as
    /// those of other semaphores. A semaphore that is built without counters does not pay for them.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let semaphore = Semaphore::builder(1).stats(&clock).build().unwrap();
    /// let held = semaphore.try_acquire().unwrap();
    /// assert!(semaphore.try_acquire().is_err());
    /// let mut waiter = std::pin::pin!(semaphore.acquire());
    /// let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// assert!(waiter.as_mut().poll(&mut cx).is_pending());
    /// clock.advance(Duration::from_millis(20));
    /// drop(held);
    ///
    /// let stats = semaphore.stats().unwrap();
    /// assert_eq!((stats.admitted_at_once, stats.refused, stats.queued), (1, 1, 1));
    /// assert_eq!(stats.granted_unpolled, 1);
    /// assert!(stats.wait_time.max() >= Duration::from_millis(20));
    /// ```
    #[cfg(feature = "stats")]
    #[cfg_attr(docsrs, doc(cfg(feature = "stats")))]
    pub fn stats(mut self, clock: &crate::time::Clock) -> Self {
        self.counters = Counters::on(clock);
        self
    }

    /// Builds the semaphore.
    ///
    /// # Errors
    /// When there are too many permits, when the order is [wrong](OrderError), or when overtaking is allowed in another order than
    /// FIFO.
    pub fn build(self) -> Result<Semaphore, SemaphoreError> {
        if self.permits > Semaphore::MAX_PERMITS {
            return Err(SemaphoreError::Permits { given: self.permits });
        }
        self.order.check().map_err(SemaphoreError::Order)?;
        if self.order != Order::Fifo && self.overtakes > 0 {
            return Err(SemaphoreError::Overtaking);
        }
        let counts = self.counters.is_on();
        let is_special =
            self.order != Order::Fifo || self.max_queue.is_some() || self.max_queue_permits.is_some() || counts;
        let queue = is_special.then(|| {
            let max_queue = self.max_queue.unwrap_or(usize::MAX);
            let max_queue_permits = self.max_queue_permits.unwrap_or(u64::MAX);
            Queue::scheduled(self.order, max_queue, max_queue_permits, self.eviction, self.counters)
        });
        Ok(Semaphore::built(self.permits, queue, self.overtakes, self.name))
    }
}

/// Why a semaphore could not be built.
///
/// ```
/// # use tollgate::{Semaphore, SemaphoreError};
/// let error = Semaphore::builder(usize::MAX).build().unwrap_err();
/// assert_eq!(error, SemaphoreError::Permits { given: usize::MAX });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SemaphoreError {
    /// At most [`Semaphore::MAX_PERMITS`].
    Permits {
        /// The number given.
        given: usize,
    },
    /// The order is wrong.
    Order(OrderError),
    /// Only the FIFO order can be overtaken.
    Overtaking,
}

impl fmt::Display for SemaphoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permits { given } => {
                let most = Semaphore::MAX_PERMITS;
                write!(f, "{given} permits were given, and at most {most} are allowed")
            }
            Self::Order(error) => error.fmt(f),
            Self::Overtaking => f.write_str("overtaking was allowed in another order than FIFO"),
        }
    }
}

impl std::error::Error for SemaphoreError {}
