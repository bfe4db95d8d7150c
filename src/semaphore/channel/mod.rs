//! A semaphore whose permits are messages of a crossbeam channel: its tokens, one lock for everything but taking, and the verbs.
//! The numbers are those of `ledger.rs`.
//!
//! A free token is a message in the channel. Taking one is receiving it: that needs no lock, and any owner of the receiver can
//! do it, also in a `select!` that knows nothing of semaphores. So the protocol cannot count the tokens that are taken. It
//! counts those that exist; the free ones are the channel's length.
//!
//! - **T** (take): receive. `n` at once: under the lock, one after the other, and if one is missing all go back.
//! - **G** (give back): under the lock, the ledger decides: the token is sent again, or it pays for a shrink.
//! - **S** (set the limit): under the lock, tokens are made, or free ones are received and destroyed until enough are
//!   gone or none is free.
//! - **X** (close): under the lock, the sender is taken out and all free tokens are destroyed. Then it is dropped, which
//!   wakes every receiver.
//!
//! Invariant, whenever the lock is free: in debt, no token is free. S leaves it so, since no thread sends while the lock is
//! held, and G sends nothing while there is a debt. Hence no caller is admitted beyond the limit in force, however a return and
//! a shrink overlap.
//!
//! The lock is held while crossbeam unparks a thread. No waker and no foreign code runs under it: a token that is
//! destroyed there is dissolved, not dropped, and the queue of policies is notified afterwards.

mod ledger;
mod link;

use super::atomic::Closed;
use super::error::{AcquireError, AcquireTimeoutError, TryAcquireError};
use super::limiter::SemaphoreTicket;
use crate::blocking;
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::{Description, State};
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use crate::sync::wait_queue::{Place, WaitQueue, Watch};
use ledger::{Fate, Ledger};
use link::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A permit that borrows its [`ChannelSemaphore`]. Dropping it gives the permits back.
pub type ChannelPermit<'a> = Permit<&'a ChannelSemaphore>;

/// A permit that owns a handle of its [`ChannelSemaphore`].
pub type OwnedChannelPermit = Permit<Arc<ChannelSemaphore>>;

/// Limits how many operations run at once, with permits that threads wait for in `crossbeam_channel::select!`, beside other
/// channels. Resizable at any moment. A future waits for it through a [`Policy`](crate::Policy).
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
/// [`set_limit`](Self::set_limit) is effective at once, both ways, also below the number held: free permits are withdrawn,
/// and permits held beyond the limit are [`debt`](Self::debt), paid by those that come back.
///
/// # Weights
/// [`try_acquire_many`](Self::try_acquire_many) takes `n` permits or none, and so does a policy that has this for a
/// leg. There is no blocking wait for several. A channel hands out one message at a time, so a waiter for `n` would
/// hold some while waiting for the rest. **Deadlock**: two such waiters could wait for each other for ever. While an
/// attempt for several that is about to fail runs, another attempt may be refused the permits that it gives back.
///
/// # Fairness
/// None. crossbeam wakes blocked receivers in the order in which they came, but it hands nothing over: a newcomer may take the
/// message before the receiver that was woken. `select!` picks at random among the branches that are ready (`select_biased!`
/// takes the first of them). Among the policies that wait, the oldest head goes first. They compete with the receivers.
///
/// **Starvation**: a policy that waits for several permits gets none for as long as receivers keep taking single ones. Where
/// order matters, use [`Semaphore`](crate::Semaphore).
///
/// # Memory
/// Every free permit is a message of 16 bytes or so. The channel allocates and frees a block once in 31 returns.
///
/// # Memory ordering
/// Writes before a permit is given back happen before the acquisition that follows it.
pub struct ChannelSemaphore {
    channel: Arc<TokenChannel>,
    made_with: usize,
    /// True once a caller may have a receiver of its own.
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
            channel: TokenChannel::new(),
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
        // Relaxed: the caller that asks whether it is as new has it alone, and so has seen the writes of earlier owners. A load first: the
        // cache line stays shared.
        if !self.shown.load(Ordering::Relaxed) {
            self.shown.store(true, Ordering::Relaxed);
        }
        &self.channel.receiver
    }

    /// Sets the number of permits, at once, whatever is held or awaited.
    ///
    /// A raise forgives debt first and then makes new permits. A shrink withdraws free permits; permits held beyond the limit
    /// become [`debt`](Self::debt), which must be paid before the next admission. Zero pauses. It never waits for a permit; it
    /// takes time in proportion to the number made or withdrawn. On a closed semaphore it only changes [`limit`](Self::limit).
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
        self.channel.set_limit(limit);
        Ok(())
    }

    /// The number of permits, held or free, apart from debt. A snapshot.
    pub fn limit(&self) -> usize {
        self.channel.lock().ledger.limit()
    }

    /// The number of permits that are held. A snapshot.
    pub fn in_use(&self) -> usize {
        let state = self.channel.lock();
        // Under the lock no token becomes free, so at least the free ones exist.
        state.ledger.existing() - self.channel.receiver.len()
    }

    /// Permits that must come back before the next admission, after a shrink below the number held. A snapshot.
    pub fn debt(&self) -> usize {
        self.channel.lock().ledger.debt()
    }

    /// The number of free permits. A snapshot.
    pub fn available_permits(&self) -> usize {
        self.channel.receiver.len()
    }

    /// Closes the semaphore for good: all waits and attempts fail from then on, blocked threads and selects as well.
    /// Permits that are held stay valid. Dropping the semaphore closes it too.
    pub fn close(&self) {
        self.channel.close();
    }

    /// True when it is open, all its permits are free, as many as at construction, and its receiver was never shown: a receiver
    /// may be cloned without a trace.
    fn is_untouched(&self) -> bool {
        if self.shown.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.channel.lock();
        let all_there = state.ledger.existing() == self.made_with && self.channel.receiver.len() == self.made_with;
        all_there && state.ledger.limit() == self.made_with && !state.ledger.is_closed()
    }

    /// True once it has been closed.
    pub fn is_closed(&self) -> bool {
        self.channel.lock().ledger.is_closed()
    }
}

impl Drop for ChannelSemaphore {
    /// Free tokens own a handle of their channel: left in it, they would keep it alive for ever.
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
///
/// ```
/// # use tollgate::ChannelSemaphore;
/// let error = ChannelSemaphore::new(usize::MAX).unwrap_err();
/// assert_eq!(error.given(), usize::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimitError {
    given: usize,
}

impl ChannelLimitError {
    /// The limit that was given. At most [`ChannelSemaphore::MAX_PERMITS`] is allowed.
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

/// Where tokens come from and go back to.
struct TokenChannel {
    receiver: Receiver<ChannelToken>,
    /// The policies that wait.
    queue: WaitQueue,
    state: Mutex<ChannelState>,
}

struct ChannelState {
    ledger: Ledger,
    /// The only sender; none once the semaphore is closed.
    sender: Option<Sender<ChannelToken>>,
}

impl TokenChannel {
    fn new() -> Arc<Self> {
        let (sender, receiver) = unbounded();
        Arc::new(Self {
            receiver,
            queue: WaitQueue::new(LEG),
            state: Mutex::new(ChannelState {
                ledger: Ledger::new(),
                sender: Some(sender),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock()
    }

    /// Whether it is closed, its limit, and the number of free tokens: not while an attempt for several has some in hand to see
    /// whether they are enough.
    fn look(&self) -> (bool, usize, usize) {
        let state = self.lock();
        (state.ledger.is_closed(), state.ledger.limit(), self.receiver.len())
    }

    /// Would `units` permits be free, behind `ahead` others?
    fn judge(&self, units: u64, ahead: u64) -> Result<(), Refusal> {
        let (closed, limit, free) = self.look();
        // A limit of zero is a pause.
        let oversized = units > ChannelSemaphore::MAX_PERMITS as u64 || limit > 0 && units > limit as u64;
        let fits = units == 0 || units.saturating_add(ahead) <= free as u64;
        match (closed, oversized) {
            (true, _) => Err(Refusal::new(Reason::Closed, LEG, Wait::Never)),
            (false, true) => Err(Refusal::new(Reason::Oversized, LEG, Wait::Never)),
            (false, false) if fits => Ok(()),
            (false, false) => Err(Refusal::new(Reason::Saturated, LEG, Wait::EVENT)),
        }
    }

    /// Makes `n` tokens free. Under the lock.
    fn put(self: &Arc<Self>, state: &ChannelState, n: usize) {
        let Some(sender) = &state.sender else { return };
        for _ in 0..n {
            let sent = sender.send(ChannelToken::of(self));
            debug_assert!(sent.is_ok(), "this holds a receiver");
        }
    }

    /// Takes `n` tokens, or none, and dissolves them.
    fn take(self: &Arc<Self>, n: usize) -> Result<(), TryAcquireError> {
        match n {
            1 => self.receiver.try_recv().map(ChannelToken::dissolve).map_err(refused),
            n => self.take_many(n),
        }
    }

    fn take_many(self: &Arc<Self>, n: usize) -> Result<(), TryAcquireError> {
        let state = self.lock();
        if state.ledger.is_closed() {
            return Err(TryAcquireError::Closed);
        }
        // Most refusals end here, without any effect on others.
        if self.receiver.len() < n {
            return Err(TryAcquireError::NoPermits);
        }
        for taken in 0..n {
            if let Ok(token) = self.receiver.try_recv() {
                token.dissolve();
                continue;
            }
            // Another caller took a single token meanwhile, which needs no lock.
            self.put(&state, taken);
            drop(state);
            // Callers that asked while the tokens were away were refused.
            self.queue.notify();
            return Err(TryAcquireError::NoPermits);
        }
        Ok(())
    }

    /// Gives back the permits of `n` tokens.
    fn give_back(self: &Arc<Self>, n: usize) {
        {
            let mut state = self.lock();
            for _ in 0..n {
                let fate = state.ledger.judge();
                if fate == Fate::Kept {
                    self.put(&state, 1);
                }
            }
        }
        self.queue.notify();
    }

    /// The permits of `n` tokens never come back.
    fn lose(&self, n: usize) {
        self.lock().ledger.lose(n);
        // As after any change of the limit: a policy that wants more makes way.
        self.queue.changed();
    }

    fn set_limit(self: &Arc<Self>, limit: usize) {
        {
            let mut state = self.lock();
            let made = state.ledger.set_limit(limit);
            self.put(&state, made);
            self.withdraw(&mut state);
        }
        self.queue.changed();
    }

    fn close(&self) {
        let sender = {
            let mut state = self.lock();
            state.ledger.close();
            let sender = state.sender.take();
            self.withdraw(&mut state);
            sender
        };
        // Wakes all receivers: the channel is empty, and now it has no sender.
        drop(sender);
        self.queue.changed();
    }

    /// Destroys free tokens as long as the ledger wants it. Under the lock.
    fn withdraw(&self, state: &mut ChannelState) {
        while state.ledger.debt() > 0 || state.ledger.is_closed() {
            let Ok(token) = self.receiver.try_recv() else { return };
            token.dissolve();
            let fate = state.ledger.judge();
            debug_assert_eq!(fate, Fate::Swallowed);
        }
    }
}

fn refused(error: TryRecvError) -> TryAcquireError {
    match error {
        TryRecvError::Empty => TryAcquireError::NoPermits,
        TryRecvError::Disconnected => TryAcquireError::Closed,
    }
}

/// A permit of a [`ChannelSemaphore`] as it comes out of the channel: the message of its
/// [`receiver`](ChannelSemaphore::receiver).
///
/// Dropping it gives the permit back, wherever that happens: at the end of the work, in a branch that does not use it, or while
/// unwinding. It borrows nothing, and it may outlive the semaphore.
///
/// ```
/// # use tollgate::ChannelSemaphore;
/// let semaphore = ChannelSemaphore::new(1).unwrap();
/// crossbeam_channel::select! {
///     recv(semaphore.receiver()) -> token => {
///         let token = token.unwrap();
///         assert_eq!(semaphore.available_permits(), 0);
///         drop(token);
///     }
/// }
/// assert_eq!(semaphore.available_permits(), 1);
/// ```
#[must_use = "dropping a token gives the permit back"]
pub struct ChannelToken {
    /// Empty once it has been used up.
    channel: Option<Arc<TokenChannel>>,
}

impl ChannelToken {
    fn of(channel: &Arc<TokenChannel>) -> Self {
        Self {
            channel: Some(Arc::clone(channel)),
        }
    }

    /// Ends the token without giving its permit back: a `Permit` counts it from now on.
    fn dissolve(mut self) {
        self.channel = None;
    }

    /// Never gives the permit back: the limit is one less from now on.
    pub fn forget(mut self) {
        if let Some(channel) = self.channel.take() {
            channel.lose(1);
        }
    }
}

impl Drop for ChannelToken {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            channel.give_back(1);
        }
    }
}

impl fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelToken").finish_non_exhaustive()
    }
}

impl ChannelSemaphore {
    fn held(&self, n: usize) -> ChannelPermit<'_> {
        Permit::new(self, SemaphoreTicket::new(n))
    }

    fn held_owned(self: Arc<Self>) -> OwnedChannelPermit {
        Permit::new(self, SemaphoreTicket::new(1))
    }

    /// Takes one permit if one is free.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::{Duration, Instant};
    /// # use tollgate::ChannelSemaphore;
    /// let slots = Arc::new(ChannelSemaphore::new(4)?);
    /// let (one, two) = (slots.try_acquire()?, slots.try_acquire_many(2)?);
    /// let owned = Arc::clone(&slots).try_acquire_owned()?;
    /// assert_eq!((slots.in_use(), slots.try_acquire().is_err()), (4, true));
    /// assert!(slots.blocking_acquire_timeout(Duration::from_millis(1)).is_err());
    /// assert!(Arc::clone(&slots).blocking_acquire_until_owned(Instant::now()).is_err());
    /// drop((one, two, owned));
    /// let again = (slots.blocking_acquire()?, Arc::clone(&slots).blocking_acquire_owned()?);
    /// let timed = Arc::clone(&slots).blocking_acquire_timeout_owned(Duration::from_secs(1))?;
    /// assert!(slots.blocking_acquire_until(Instant::now() + Duration::from_secs(1)).is_ok());
    /// slots.close();
    /// assert!(slots.is_closed() && slots.try_acquire().is_err());
    /// # drop((again, timed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_acquire(&self) -> Result<ChannelPermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes `n` permits if all are free, or none.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    pub fn try_acquire_many(&self, n: usize) -> Result<ChannelPermit<'_>, TryAcquireError> {
        self.channel.take(n)?;
        Ok(self.held(n))
    }

    /// [`try_acquire`](Self::try_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `NoPermits`, or `Closed`.
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedChannelPermit, TryAcquireError> {
        self.channel.take(1)?;
        Ok(self.held_owned())
    }

    /// Blocks this thread until it has a permit.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<ChannelPermit<'_>, AcquireError> {
        self.wait()?;
        Ok(self.held(1))
    }

    /// [`blocking_acquire`](Self::blocking_acquire) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// When the semaphore is closed.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_owned(self: Arc<Self>) -> Result<OwnedChannelPermit, AcquireError> {
        self.wait()?;
        Ok(self.held_owned())
    }

    /// Blocks this thread until it has a permit, for at most `patience`. A permit that is free is taken even if
    /// `patience` is zero.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_timeout(&self, patience: Duration) -> Result<ChannelPermit<'_>, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.channel.receiver.recv_timeout(patience))?;
        Ok(self.held(1))
    }

    /// [`blocking_acquire_timeout`](Self::blocking_acquire_timeout) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_timeout_owned(
        self: Arc<Self>,
        patience: Duration,
    ) -> Result<OwnedChannelPermit, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.channel.receiver.recv_timeout(patience))?;
        Ok(self.held_owned())
    }

    /// Blocks this thread until it has a permit, at most until `deadline`. A permit that is free is taken even if
    /// `deadline` is past.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_until(&self, deadline: Instant) -> Result<ChannelPermit<'_>, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.channel.receiver.recv_deadline(deadline))?;
        Ok(self.held(1))
    }

    /// [`blocking_acquire_until`](Self::blocking_acquire_until) with a permit that owns its semaphore.
    ///
    /// # Errors
    /// `TimedOut`, or `Closed`.
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn blocking_acquire_until_owned(
        self: Arc<Self>,
        deadline: Instant,
    ) -> Result<OwnedChannelPermit, AcquireTimeoutError> {
        blocking::check();
        Self::received(self.channel.receiver.recv_deadline(deadline))?;
        Ok(self.held_owned())
    }

    #[track_caller]
    fn wait(&self) -> Result<(), AcquireError> {
        blocking::check();
        let token = self.channel.receiver.recv().map_err(|_| AcquireError::from(Closed))?;
        token.dissolve();
        Ok(())
    }

    fn received(received: Result<ChannelToken, RecvTimeoutError>) -> Result<(), AcquireTimeoutError> {
        let token = received.map_err(|error| match error {
            RecvTimeoutError::Timeout => AcquireTimeoutError::TimedOut,
            RecvTimeoutError::Disconnected => AcquireTimeoutError::Closed,
        })?;
        token.dissolve();
        Ok(())
    }
}

const LEG: &str = "channel_semaphore";

/// A policy waits in a queue of its own, not by receiving: it is driven by calls that must not block. An ask above the limit is refused
/// as [`Oversized`](crate::Reason::Oversized), unless the limit is zero, which is a pause.
impl Limiter for ChannelSemaphore {
    type Ticket = SemaphoreTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<SemaphoreTicket, Refusal> {
        let (channel, units) = (&self.channel, demand.units());
        if units > 0 {
            channel
                .queue
                .check(demand, |units, ahead| channel.judge(units, ahead))?;
        }
        let n = usize::try_from(units).unwrap_or(usize::MAX);
        channel.take(n).map(|()| SemaphoreTicket::new(n)).map_err(|_| {
            let saturated = Refusal::new(Reason::Saturated, LEG, Wait::EVENT);
            // They may have come back meanwhile.
            channel.judge(units, 0).err().unwrap_or(saturated)
        })
    }

    fn cancel(&self, ticket: SemaphoreTicket) {
        self.channel.give_back(ticket.permits());
    }

    fn finish(&self, ticket: SemaphoreTicket, outcome: Outcome) {
        match outcome {
            Outcome::Forgotten => self.channel.lose(ticket.permits()),
            _ => self.channel.give_back(ticket.permits()),
        }
    }

    fn settle(&self, ticket: &mut SemaphoreTicket, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        self.channel.give_back(ticket.lower_to(actual));
        1
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let channel = &self.channel;
        channel.queue.look(demand, |units, ahead| channel.judge(units, ahead))
    }

    fn leave(&self, place: &Place) {
        self.channel.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.channel.queue.watch(watcher);
    }

    /// The waiters that receive are not among those that it shows: the channel does not count them.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let state = State::Permits {
            limit: self.limit() as u64,
            in_use: self.in_use() as u64,
            waiting: self.channel.queue.len() as u64,
        };
        let as_new = self.channel.queue.is_empty() && self.is_untouched();
        let leg = Description::new(LEG).state(state);
        let leg = leg
            .hands_over_to(&self.channel.queue)
            .holds_permits_of(&self.channel.queue);
        visit(leg.as_new(as_new));
    }
}
