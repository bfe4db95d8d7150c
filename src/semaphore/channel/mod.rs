//! A semaphore whose permits are messages of a crossbeam channel: its tokens, one lock for everything but taking, and the numbers.
//!
//! A free token is a message in the channel. Taking one is receiving it: that needs no lock, and any owner of the receiver can
//! do it, also in a `select!` that knows nothing of semaphores. So the protocol cannot count the tokens that are taken. It
//! counts those that exist; the free ones are the channel's length.
//!
//! - **T** (take): receive. `n` at once: under the lock, one after the other, and if one is missing all go back.
//! - **G** (give back): under the lock, the token is sent again, or it pays for a shrink.
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

#[cfg(tollgate_loom)]
mod link;

use super::limiter::SemaphoreTicket;
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::{Description, State};
use crate::sync::shim::{Mutex, MutexGuard};
use crate::sync::wait_queue::{Place, WaitQueue, Watch};
#[cfg(not(tollgate_loom))]
use crossbeam_channel::{Receiver, Sender, unbounded};
#[cfg(tollgate_loom)]
use link::{Receiver, Sender, unbounded};
use std::fmt;
use std::sync::{Arc, Weak};

const LEG: &str = "channel_semaphore";

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
/// let semaphore = ChannelSemaphore::new(1);
/// let (_shut_down, shutdown) = unbounded::<()>();
/// let permit = select! {
///     recv(semaphore.receiver()) -> token => token.ok(), // an error when the semaphore is closed
///     recv(shutdown) -> _ => None,
/// };
/// assert_eq!((semaphore.in_use(), semaphore.available_permits()), (1, 0));
/// drop(permit);
/// assert_eq!(semaphore.available_permits(), 1);
/// ```
///
/// Outside a `select!`, the [`receiver`](Self::receiver) has `try_recv`, `recv` and `recv_timeout`.
///
/// # Resizing
/// [`set_limit`](Self::set_limit) is effective at once, both ways, also below the number held: free permits are withdrawn,
/// and permits held beyond the limit are [`debt`](Self::debt), paid by those that come back.
///
/// # Weights
/// [`try_admit`](crate::LimiterExt::try_admit) takes `n` permits or none, and so does a policy that has this for a
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
pub struct ChannelSemaphore(Arc<TokenChannel>);

impl ChannelSemaphore {
    /// The greatest limit: 2<sup>20</sup>. Each free permit takes memory, and making or withdrawing one takes time.
    pub const MAX_PERMITS: usize = 1 << 20;

    /// A semaphore with `limit` permits, all free. Zero starts it paused.
    ///
    /// # Panics
    /// If `limit` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub fn new(limit: usize) -> Self {
        assert!(
            limit <= Self::MAX_PERMITS,
            "a channel semaphore may not have more than MAX_PERMITS permits ({})",
            Self::MAX_PERMITS
        );
        let semaphore = Self(TokenChannel::new());
        semaphore.set_limit(limit);
        semaphore
    }

    /// The channel of free permits, to be used in `select!` or anywhere a receiver is wanted. It may be cloned, and sent
    /// to other threads.
    ///
    /// A received token is a permit. Receiving fails once the semaphore has been closed or dropped.
    pub fn receiver(&self) -> &Receiver<ChannelToken> {
        &self.0.receiver
    }

    /// Sets the number of permits, at once, whatever is held or awaited.
    ///
    /// A raise forgives debt first and then makes new permits. A shrink withdraws free permits; permits held beyond the limit
    /// become [`debt`](Self::debt), which must be paid before the next admission. Zero pauses. It never waits for a permit; it
    /// takes time in proportion to the number made or withdrawn. On a closed semaphore it only changes [`limit`](Self::limit). Numbers
    /// above [`MAX_PERMITS`](Self::MAX_PERMITS) count as that.
    ///
    /// ```
    /// # use tollgate::ChannelSemaphore;
    /// let semaphore = ChannelSemaphore::new(3);
    /// let held: Vec<_> = semaphore.receiver().try_iter().take(2).collect();
    /// semaphore.set_limit(1);
    /// assert_eq!((semaphore.in_use(), semaphore.debt(), semaphore.available_permits()), (2, 1, 0));
    /// drop(held);
    /// assert_eq!((semaphore.in_use(), semaphore.debt(), semaphore.available_permits()), (0, 0, 1));
    /// ```
    pub fn set_limit(&self, limit: usize) {
        self.0.set_limit(limit.min(Self::MAX_PERMITS));
    }

    /// The number of permits, held or free, apart from debt. A snapshot.
    pub fn limit(&self) -> usize {
        self.0.lock().limit
    }

    /// The number of permits that are held. A snapshot.
    pub fn in_use(&self) -> usize {
        let state = self.0.lock();
        // Under the lock no token becomes free, so at least the free ones exist.
        state.existing - self.0.receiver.len()
    }

    /// Permits that must come back before the next admission, after a shrink below the number held. A snapshot.
    pub fn debt(&self) -> usize {
        self.0.lock().debt()
    }

    /// The number of free permits. A snapshot.
    pub fn available_permits(&self) -> usize {
        self.0.receiver.len()
    }

    /// Closes the semaphore for good: all waits and attempts fail from then on, blocked threads and selects as well.
    /// Permits that are held stay valid. Dropping the semaphore closes it too.
    pub fn close(&self) {
        self.0.close();
    }

    /// True once it has been closed.
    pub fn is_closed(&self) -> bool {
        self.0.lock().is_closed()
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

/// Where tokens come from and go back to.
struct TokenChannel {
    receiver: Receiver<ChannelToken>,
    /// The policies that wait.
    queue: WaitQueue,
    state: Mutex<ChannelState>,
}

/// While it is open, at least as many tokens exist as the limit says. Those beyond are debt: each is destroyed, not put back, as soon as
/// a caller has it in hand.
struct ChannelState {
    limit: usize,
    /// The tokens, held or free.
    existing: usize,
    /// The only sender; none once the semaphore is closed.
    sender: Option<Sender<ChannelToken>>,
}

impl ChannelState {
    fn debt(&self) -> usize {
        self.existing.saturating_sub(self.limit)
    }

    fn is_closed(&self) -> bool {
        self.sender.is_none()
    }
}

impl TokenChannel {
    fn new() -> Arc<Self> {
        let (sender, receiver) = unbounded();
        Arc::new(Self {
            receiver,
            queue: WaitQueue::new(LEG),
            state: Mutex::new(ChannelState {
                limit: 0,
                existing: 0,
                sender: Some(sender),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock()
    }

    /// Would `units` permits be free, behind `ahead` others? Not while an attempt for several has some in hand to see whether they are
    /// enough: that holds the lock.
    fn judge(&self, units: u64, ahead: u64) -> Result<(), Refusal> {
        let (closed, limit, free) = {
            let state = self.lock();
            (state.is_closed(), state.limit as u64, self.receiver.len() as u64)
        };
        // A limit of zero is a pause.
        let oversized = units > ChannelSemaphore::MAX_PERMITS as u64 || limit > 0 && units > limit;
        match units == 0 || units.saturating_add(ahead) <= free {
            _ if closed => Err(Refusal::new(Reason::Closed, LEG, Wait::Never)),
            _ if oversized => Err(Refusal::new(Reason::Oversized, LEG, Wait::Never)),
            true => Ok(()),
            false => Err(Refusal::new(Reason::Saturated, LEG, Wait::EVENT)),
        }
    }

    /// Makes `n` tokens free. Under the lock.
    fn put(self: &Arc<Self>, state: &ChannelState, n: usize) {
        let Some(sender) = &state.sender else { return };
        for _ in 0..n {
            let sent = sender.send(ChannelToken(Some(Arc::clone(self))));
            debug_assert!(sent.is_ok(), "this holds a receiver");
        }
    }

    /// Takes `n` tokens, or none, and dissolves them.
    fn take(self: &Arc<Self>, n: usize) -> bool {
        if n == 1 {
            return self.receiver.try_recv().map(ChannelToken::dissolve).is_ok();
        }
        let state = self.lock();
        // Most refusals end here, without any effect on others.
        if state.is_closed() || self.receiver.len() < n {
            return false;
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
            return false;
        }
        true
    }

    /// Gives back the permits of `n` tokens.
    fn give_back(self: &Arc<Self>, n: usize) {
        {
            let mut state = self.lock();
            for _ in 0..n {
                match state.is_closed() || state.debt() > 0 {
                    true => state.existing -= 1,
                    false => self.put(&state, 1),
                }
            }
        }
        self.queue.notify();
    }

    /// The permits of `n` tokens never come back: they come off the limit too. That pays a debt only where nothing is left of the limit.
    fn lose(&self, n: usize) {
        {
            let mut state = self.lock();
            state.existing -= n;
            state.limit = state.limit.saturating_sub(n);
        }
        // As after any change of the limit: a policy that wants more makes way.
        self.queue.changed();
    }

    fn set_limit(self: &Arc<Self>, limit: usize) {
        {
            let mut state = self.lock();
            state.limit = limit;
            if !state.is_closed() {
                // Tokens that exist already, as debt, are not made again.
                let made = limit.saturating_sub(state.existing);
                state.existing += made;
                self.put(&state, made);
            }
            self.withdraw(&mut state);
        }
        self.queue.changed();
    }

    fn close(&self) {
        let sender = {
            let mut state = self.lock();
            let sender = state.sender.take();
            self.withdraw(&mut state);
            sender
        };
        // Wakes all receivers: the channel is empty, and now it has no sender.
        drop(sender);
        self.queue.changed();
    }

    /// Destroys free tokens in debt, or once it is closed. Under the lock.
    fn withdraw(&self, state: &mut ChannelState) {
        while state.debt() > 0 || state.is_closed() {
            let Ok(token) = self.receiver.try_recv() else { return };
            token.dissolve();
            state.existing -= 1;
        }
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
/// let semaphore = ChannelSemaphore::new(1);
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
pub struct ChannelToken(Option<Arc<TokenChannel>>);

impl ChannelToken {
    /// Ends the token without giving its permit back: a `Permit` counts it from now on.
    fn dissolve(mut self) {
        self.0 = None;
    }

    /// Never gives the permit back: the limit is one less from now on.
    pub fn forget(mut self) {
        if let Some(channel) = self.0.take() {
            channel.lose(1);
        }
    }
}

impl Drop for ChannelToken {
    fn drop(&mut self) {
        if let Some(channel) = self.0.take() {
            channel.give_back(1);
        }
    }
}

impl fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelToken").finish_non_exhaustive()
    }
}

/// A policy waits in a queue of its own, not by receiving: it is driven by calls that must not block. An ask above the limit is refused
/// as [`Oversized`](crate::Reason::Oversized), unless the limit is zero, which is a pause.
impl Limiter for ChannelSemaphore {
    type Ticket = SemaphoreTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<SemaphoreTicket, Refusal> {
        let (channel, units) = (&self.0, demand.units());
        if units > 0 {
            channel
                .queue
                .check(demand, |units, ahead| channel.judge(units, ahead))?;
        }
        let n = usize::try_from(units).unwrap_or(usize::MAX);
        if channel.take(n) {
            return Ok(SemaphoreTicket::new(n));
        }
        // They may have come back meanwhile.
        channel.judge(units, 0)?;
        Err(Refusal::new(Reason::Saturated, LEG, Wait::EVENT))
    }

    fn cancel(&self, ticket: SemaphoreTicket) {
        self.0.give_back(ticket.permits());
    }

    fn finish(&self, ticket: SemaphoreTicket, outcome: Outcome) {
        match outcome {
            Outcome::Forgotten => self.0.lose(ticket.permits()),
            _ => self.0.give_back(ticket.permits()),
        }
    }

    fn settle(&self, ticket: &mut SemaphoreTicket, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        self.0.give_back(ticket.lower_to(actual));
        1
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let channel = &self.0;
        channel.queue.look(demand, |units, ahead| channel.judge(units, ahead))
    }

    fn leave(&self, place: &Place) {
        self.0.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.queue.watch(watcher);
    }

    /// The waiters that receive are not among those that it shows: the channel does not count them.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let state = State::Permits {
            limit: self.limit() as u64,
            in_use: self.in_use() as u64,
            waiting: self.0.queue.len() as u64,
        };
        let leg = Description::new(LEG).state(state);
        visit(leg.hands_over_to(&self.0.queue).holds_permits_of(&self.0.queue));
    }
}
