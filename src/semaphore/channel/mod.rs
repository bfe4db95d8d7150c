//! A semaphore whose permits are messages of a crossbeam channel. The protocol, and why it holds, is in `home.rs`; the
//! numbers are those of `ledger.rs`.

mod acquire;
mod home;
mod ledger;
mod limiter;
mod link;
mod token;

pub use token::ChannelToken;

use crate::permit::Permit;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use home::Home;
use link::Receiver;
use std::fmt;
use std::sync::Arc;

/// A permit that borrows its [`ChannelSemaphore`]. Dropping it gives the permits back.
pub type ChannelPermit<'a> = Permit<&'a ChannelSemaphore>;

/// A permit that owns a handle of its [`ChannelSemaphore`].
pub type OwnedChannelPermit = Permit<Arc<ChannelSemaphore>>;

/// Limits how many may run at once, with permits that can be waited for in `crossbeam_channel::select!`, beside other
/// channels. Resizable at any moment. For threads: a future waits for it through a [`Policy`](crate::Policy).
///
/// A free permit is a message in a crossbeam channel, and the message that you receive *is* the permit: a
/// [`ChannelToken`], which goes back when it is dropped. Where no `select!` is needed,
/// [`Semaphore`](crate::Semaphore) is the better one: it is fair and several times as fast.
///
/// ```
/// # use tollgate::ChannelSemaphore;
/// use crossbeam_channel::{select, unbounded};
///
/// let semaphore = ChannelSemaphore::new(1)?;
/// let (_shut_down, shutdown) = unbounded::<()>();
/// let permit = select! {
///     recv(semaphore.receiver()) -> token => token.ok(), // an error when the semaphore is closed
///     recv(shutdown) -> _ => None,
/// };
/// assert_eq!((semaphore.in_use(), semaphore.available_permits()), (1, 0));
/// drop(permit);
/// assert_eq!(semaphore.available_permits(), 1);
/// # Ok::<(), tollgate::ChannelLimitError>(())
/// ```
///
/// # Resizing
/// [`set_limit`](Self::set_limit) is effective at once, both ways, also below what is held: free permits are withdrawn,
/// and what is held beyond the limit is [`debt`](Self::debt), paid by whatever comes back.
///
/// # Weights
/// [`try_acquire_many`](Self::try_acquire_many) takes `n` permits or none, and so does a policy that has this for a
/// leg. There is no blocking wait for several: a channel hands out one message at a time, so whoever waits for `n` would
/// have to hold some while waiting for the rest, and two who do that can wait for each other for ever. While an attempt
/// for several that is about to fail runs, another attempt may be refused what it gives back.
///
/// # Fairness
/// None. crossbeam wakes blocked receivers in the order in which they came, but it hands nothing over: a newcomer may
/// take the message before whoever was woken, and `select!` picks at random among the branches that are ready
/// (`select_biased!` takes the first of them). Policies that wait take
/// turns with each other, and compete with the receivers: one that waits for several permits is starved for as long as
/// receivers keep taking single ones. Where order matters, use [`Semaphore`](crate::Semaphore).
///
/// # Memory
/// Every free permit is a message of 16 bytes or so. The channel allocates and frees a block once in 31 returns.
///
/// # Memory ordering
/// What is done before a permit is given back is seen by whoever acquires it afterwards.
pub struct ChannelSemaphore {
    home: Arc<Home>,
    made_with: usize,
    /// Somebody may have a receiver of their own.
    shown: AtomicBool,
}

impl ChannelSemaphore {
    /// The greatest limit: 2<sup>20</sup>. Each free permit takes memory, and making or withdrawing one takes time.
    pub const MAX_PERMITS: usize = 1 << 20;

    /// A semaphore with `limit` permits, all free. Zero starts it paused.
    ///
    /// # Errors
    /// When `limit` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub fn new(limit: usize) -> Result<Self, ChannelLimitError> {
        let semaphore = Self {
            home: Home::new(),
            made_with: limit,
            shown: AtomicBool::new(false),
        };
        semaphore.set_limit(limit)?;
        Ok(semaphore)
    }

    /// The channel of free permits, to be used in `select!` or anywhere a receiver is wanted. It may be cloned, and sent
    /// to other threads.
    ///
    /// A received token is a permit. Receiving fails once the semaphore has been closed or dropped.
    pub fn receiver(&self) -> &Receiver<ChannelToken> {
        // Relaxed: who asks whether it is fresh is alone with it, and so has seen what others did before they went. A load
        // first: the line stays shared.
        if !self.shown.load(Ordering::Relaxed) {
            self.shown.store(true, Ordering::Relaxed);
        }
        &self.home.receiver
    }

    /// Sets how many permits there are, at once, whatever is held and whoever waits.
    ///
    /// A raise forgives debt first and then makes new permits. A shrink withdraws free permits; what is held beyond the
    /// limit becomes [`debt`](Self::debt), and nobody is admitted before it is paid. Zero pauses. It never waits for a
    /// permit; it takes time in proportion to how many are made or withdrawn. On a closed semaphore it only changes what
    /// [`limit`](Self::limit) says.
    ///
    /// # Errors
    /// When `limit` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS). Nothing is changed then.
    ///
    /// ```
    /// # use tollgate::ChannelSemaphore;
    /// let semaphore = ChannelSemaphore::new(3)?;
    /// let held: Vec<_> = semaphore.receiver().try_iter().take(2).collect();
    /// semaphore.set_limit(1)?;
    /// assert_eq!((semaphore.in_use(), semaphore.debt(), semaphore.available_permits()), (2, 1, 0));
    /// drop(held);
    /// assert_eq!((semaphore.in_use(), semaphore.debt(), semaphore.available_permits()), (0, 0, 1));
    /// # Ok::<(), tollgate::ChannelLimitError>(())
    /// ```
    pub fn set_limit(&self, limit: usize) -> Result<(), ChannelLimitError> {
        if limit > Self::MAX_PERMITS {
            return Err(ChannelLimitError { given: limit });
        }
        self.home.set_limit(limit);
        Ok(())
    }

    /// How many permits there are, held or free, apart from debt. A snapshot.
    pub fn limit(&self) -> usize {
        self.home.books().ledger.limit()
    }

    /// How many permits are held. A snapshot.
    pub fn in_use(&self) -> usize {
        let books = self.home.books();
        // Under the lock nothing becomes free, so what exists is at least what is free.
        books.ledger.existing() - self.home.receiver.len()
    }

    /// How many permits must come back before anybody is admitted, after a shrink below what was held. A snapshot.
    pub fn debt(&self) -> usize {
        self.home.books().ledger.debt()
    }

    /// How many permits are free. A snapshot.
    pub fn available_permits(&self) -> usize {
        self.home.receiver.len()
    }

    /// Closes the semaphore for good: whoever waits for it or comes is told so, blocked threads and selects as well.
    /// Permits that are held stay valid. Dropping the semaphore closes it too.
    pub fn close(&self) {
        self.home.close();
    }

    /// Open, all there, as many as at first, and nobody has ever seen the receiver, which may be cloned without a trace.
    fn is_untouched(&self) -> bool {
        if self.shown.load(Ordering::Relaxed) {
            return false;
        }
        let books = self.home.books();
        let all_there = books.ledger.existing() == self.made_with && self.home.receiver.len() == self.made_with;
        all_there && books.ledger.limit() == self.made_with && !books.ledger.is_closed()
    }

    /// True once it has been closed.
    pub fn is_closed(&self) -> bool {
        self.home.books().ledger.is_closed()
    }
}

impl Drop for ChannelSemaphore {
    /// Free tokens know where they come from: left in the channel, they would keep it alive for ever.
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ChannelSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelSemaphore")
            .field("limit", &self.limit())
            .field("in_use", &self.in_use())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// A limit that a [`ChannelSemaphore`] cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimitError {
    given: usize,
}

impl ChannelLimitError {
    /// What was given. At most [`ChannelSemaphore::MAX_PERMITS`] is allowed.
    pub fn given(&self) -> usize {
        self.given
    }
}

impl fmt::Display for ChannelLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a limit of {} permits was given, and 0 to {} are allowed",
            self.given,
            ChannelSemaphore::MAX_PERMITS
        )
    }
}

impl std::error::Error for ChannelLimitError {}
