#![doc = include_str!("README.md")]

// In this file: the waiters as plain data, the transitions under the lock, and those of the timer. The acts outside the lock
// stand in `dispatcher.rs`.

use super::settings::QueueOrder;
use crate::core::ask::Ask;
use crate::semaphore::{Eviction, Order, Scheduler};
use crate::sync::wait_queue::QueueKey;
use crate::time::Instant;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Bound, Range};
use std::task::Waker;

/// A place in the queue: its class in the upper bits, and below that the number of its arrival, never used twice.
pub(super) type WaiterKey = u64;

/// The bits of the number of an arrival.
const ARRIVAL_BITS: u32 = 56;

pub(super) fn class_of(key: WaiterKey) -> usize {
    (key >> ARRIVAL_BITS) as usize
}

/// The keys of a class.
pub(super) fn keys_of(class: usize) -> Range<WaiterKey> {
    (class as u64) << ARRIVAL_BITS..(class as u64 + 1) << ARRIVAL_BITS
}

/// A waiter.
#[derive(Debug)]
pub(super) struct QueuedWaiter {
    ask: Ask,
    since: Instant,
    deadline: Option<Instant>,
    /// When its turn comes, as far as is known; `None` when that takes an event.
    due: Option<Instant>,
    /// Since when it lacks nothing but a turn.
    ready_since: Option<Instant>,
    /// The legs have been asked for it, and `due` is their answer.
    tried: bool,
    /// A leg has panicked when it was asked for it.
    panicked: bool,
    waker: Option<Waker>,
}

/// The end of a wait, until its owner looks.
#[derive(Debug)]
pub(super) enum WaitEnd<T> {
    /// Reserved, not committed: the owner commits. If it has gone, the ticket is cancelled.
    Admitted(T),
    /// The deadline passed, or is known to pass, before the turn comes.
    Expired(AskAhead),
    /// No wait can help.
    Refused(AskAhead),
    /// Evicted for a newer one.
    Evicted,
    /// A leg panicked each time it was asked.
    Panicked(Box<dyn Any + Send>),
}

/// The sum of the asks before a waiter that was judged at its place; `None` for the head, and where the deadline has passed.
pub(super) type AskAhead = Option<Box<Ask>>;

/// The result of a look by the owner of a waiter.
#[derive(Debug)]
pub(super) enum Lookup<T> {
    Ended(WaitEnd<T>),
    /// Still waiting, with a waker of the owner.
    Waiting,
    /// Still waiting, and a clone of the owner's waker is needed.
    NeedsWaker,
}

/// The earliest instant at which a waiter could have been admitted, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waited {
    /// It joined then, and the legs have not been asked for it since.
    Since(Instant),
    /// The legs have been asked: not before this instant, or not before some event.
    Due(Option<Instant>),
}

/// The first in the queue, for which the legs are to be asked.
pub(super) struct Head {
    pub(super) key: WaiterKey,
    pub(super) ask: Ask,
    pub(super) waited: Waited,
    pub(super) deadline: Option<Instant>,
    /// Its place in the queue of one leg.
    pub(super) claim: Option<QueueKey>,
    /// A leg has panicked for it before.
    pub(super) panicked: bool,
}

/// A waiter that is not the head: the legs are only looked at for it.
pub(super) struct WaiterView {
    pub(super) key: WaiterKey,
    pub(super) ask: Ask,
    /// The sum of all asks before it.
    pub(super) ahead: Ask,
    pub(super) deadline: Option<Instant>,
    /// A leg has panicked for it before.
    pub(super) panicked: bool,
}

impl WaiterView {
    pub(super) fn new(key: WaiterKey, entry: &QueuedWaiter, ahead: Ask) -> Self {
        Self {
            key,
            ask: entry.ask,
            ahead,
            deadline: entry.deadline,
            panicked: entry.panicked,
        }
    }
}

/// The next act of the dispatcher.
pub(super) enum Next {
    /// Give this claim back: its owner is not the head any more, and there is no other.
    GiveBack(QueueKey),
    /// The claim of a waiter that is not the head any more. The head takes it over where it is the turn of the queue, and not a
    /// place of its own.
    Inherit(WaiterKey, QueueKey),
    /// A leg has notified: look whether this parked waiter still waits for larger limits.
    Look(WaiterView),
    /// Ask the legs for this waiter.
    Ask(Head),
    /// The queue is empty.
    Nothing,
}

/// The wake-ups by the timer since the instant of the head, while the queue has not been driven.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateWakes {
    /// Waiters that have been woken.
    woken: usize,
    /// The instant at which more are woken.
    again: Instant,
}

/// The moves of heads between the orders of legs since the latest admission.
///
/// A head moves when another leg than the one that it waits at refuses it. Its leaving wakes the next head there, of another queue,
/// which may move for that, and so on: without a bound the queues may move each other for ever.
#[derive(Debug, Default)]
struct Moves {
    count: u32,
    /// The head joins no order before this instant.
    paused_until: Option<Instant>,
}

impl Moves {
    /// The number of moves after which each further one waits.
    const FREE: u32 = 16;

    /// Counts a move, after which the head joins no order before `end_of_pause` if there were too many.
    fn count(&mut self, end_of_pause: Instant) {
        self.count = Self::FREE.min(self.count + 1);
        if self.count == Self::FREE {
            self.paused_until = Some(end_of_pause);
        }
    }

    /// True while the head joins no order.
    fn pauses(&mut self, now: Instant) -> bool {
        self.paused_until.take_if(|until| *until <= now);
        self.paused_until.is_some()
    }
}

/// The progress of judging the waiters behind the head anew after a change of settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revalidation {
    /// The last of them so far, by class and in its order.
    last: Option<WaiterKey>,
    /// The sum of all asks of its class up to that one.
    ahead: Ask,
}

/// The queue. Each method is a pure transition under the lock: it runs no users' code. Wakers, tickets and claims that leave
/// the queue are returned to the caller, which wakes, drops and gives back outside the lock.
///
/// # Invariant
/// - `waiting`, `parked` and `ended` share no key.
/// - `queued` is the sum of the asks in `waiting` by class; `queued_units` the units in `waiting` and `parked`.
/// - `scheduler` knows how many of each class are in `waiting`.
/// - `with_waker` counts the waiters that have a waker, and `deadlines` holds their deadlines: the timer fires only where there
///   is something to wake.
/// - The claim belongs to the dispatcher alone.
#[derive(Debug)]
pub(super) struct Queue<T> {
    newest_first: bool,
    scheduler: Scheduler,
    /// The waiters that are served in order.
    waiting: BTreeMap<WaiterKey, QueuedWaiter>,
    /// The waiters that wait for larger limits: passed over, and not ahead of others, until a leg notifies.
    parked: BTreeMap<WaiterKey, QueuedWaiter>,
    ended: BTreeMap<WaiterKey, WaitEnd<T>>,
    with_waker: usize,
    deadlines: BTreeSet<(Instant, WaiterKey)>,
    /// The sum of all asks in order, by class.
    queued: Box<[Ask]>,
    /// The units of all waiters.
    queued_units: u128,
    /// The instants at which parked waiters are looked at again without a notification, as far as they are known.
    parked_until: BTreeSet<(Instant, WaiterKey)>,
    /// A leg has notified since the last look at the parked waiters began.
    notified: bool,
    /// That look is under way, and goes on from this key.
    looking_from: Option<WaiterKey>,
    /// The settings have changed since the last judging of all waiters began.
    changed: bool,
    revalidation: Option<Revalidation>,
    /// The number of changes of settings.
    changes: u64,
    next: WaiterKey,
    /// The place of the head with this key in the queue of one leg.
    claim: Option<(WaiterKey, QueueKey)>,
    moves: Moves,
    /// Some thread dispatches.
    dispatching: bool,
    /// An event came since the dispatcher last looked: it must look once more.
    again: bool,
    /// There was a waiter since the queue was last found empty.
    busy: bool,
    /// The instant that the timer is set to.
    armed: Option<Instant>,
    late_wakes: Option<LateWakes>,
    timing: Timing,
}

/// The settings of the timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Its patience, in ticks, with a waiter that it has woken to drive the queue.
    pub(super) grace: u64,
    /// It never fires in vain: virtual time stops at each timer. Else one that would is left as it is, and sets itself anew.
    pub(super) exact: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(order: &Order, timing: Timing) -> Self {
        Self {
            newest_first: *order == Order::Lifo,
            scheduler: Scheduler::new(order.clone()),
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            ended: BTreeMap::new(),
            with_waker: 0,
            deadlines: BTreeSet::new(),
            queued: vec![Ask::many(0); order.classes()].into(),
            queued_units: 0,
            parked_until: BTreeSet::new(),
            notified: false,
            looking_from: None,
            changed: false,
            revalidation: None,
            changes: 0,
            next: 0,
            claim: None,
            moves: Moves::default(),
            dispatching: false,
            again: false,
            busy: false,
            armed: None,
            late_wakes: None,
            timing,
        }
    }

    /// Waiters in order.
    pub(super) fn in_order(&self) -> usize {
        self.waiting.len()
    }

    /// Waiters for larger limits.
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.parked.is_empty()
    }

    pub(super) fn entry(&mut self, key: WaiterKey) -> Option<&mut QueuedWaiter> {
        self.waiting.get_mut(&key).or_else(|| self.parked.get_mut(&key))
    }

    /// The class in which `ask` waits.
    pub(super) fn class_for(&self, ask: &Ask) -> usize {
        usize::from(ask.class_number()).min(self.queued.len() - 1)
    }

    /// The sum of the asks that are served before a waiter that joins now, whatever the classes of others; and whether it is
    /// the head.
    pub(super) fn ahead(&mut self, ask: &Ask) -> (Ask, bool) {
        let class = self.class_for(ask);
        match self.newest_first {
            true => (Ask::many(0), true),
            false => (self.queued[class], self.scheduler.would_lead(class)),
        }
    }

    pub(super) fn head(&self) -> Option<(WaiterKey, &QueuedWaiter)> {
        let mut class = self.waiting.range(keys_of(self.scheduler.pick()?));
        let first = match self.newest_first {
            true => class.next_back(),
            false => class.next(),
        };
        first.map(|(&key, entry)| (key, entry))
    }

    /// Takes a waiter out. Returns its waker, if it was there and has one.
    pub(super) fn remove(&mut self, key: WaiterKey) -> Option<Option<Waker>> {
        let waker = self.take_waker(key);
        let entry = match self.waiting.remove(&key) {
            Some(entry) => {
                self.uncount(key, &entry.ask);
                entry
            }
            None => self.take_parked(key)?,
        };
        self.queued_units -= u128::from(entry.ask.count());
        Some(waker)
    }

    pub(super) fn take_parked(&mut self, key: WaiterKey) -> Option<QueuedWaiter> {
        let entry = self.parked.remove(&key)?;
        if let Some(until) = entry.due {
            self.parked_until.remove(&(until, key));
        }
        Some(entry)
    }

    /// The sum of the asks that have been judged, if `key` is among them.
    pub(super) fn revalidated_ahead(&mut self, key: WaiterKey) -> Option<&mut Ask> {
        let newest_first = self.newest_first;
        let within = |revalidation: &&mut Revalidation| match (revalidation.last, newest_first) {
            (Some(last), true) => key >= last,
            (Some(last), false) => class_of(key) == class_of(last) && key <= last,
            (None, _) => false,
        };
        self.revalidation
            .as_mut()
            .filter(within)
            .map(|revalidation| &mut revalidation.ahead)
    }

    /// `key` waits in order from now on.
    pub(super) fn count(&mut self, key: WaiterKey, ask: &Ask) {
        self.queued[class_of(key)].absorb(ask);
        self.scheduler.join(class_of(key));
        if let Some(ahead) = self.revalidated_ahead(key) {
            ahead.absorb(ask);
        }
    }

    /// `key` does not wait in order any more.
    pub(super) fn uncount(&mut self, key: WaiterKey, ask: &Ask) {
        self.queued[class_of(key)].release(ask);
        self.scheduler.leave(class_of(key));
        if let Some(ahead) = self.revalidated_ahead(key) {
            ahead.release(ask);
        }
    }

    /// Takes the waker of a waiter, if it has one.
    pub(super) fn take_waker(&mut self, key: WaiterKey) -> Option<Waker> {
        let entry = self.entry(key)?;
        let (waker, deadline) = (entry.waker.take()?, entry.deadline);
        self.with_waker -= 1;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, key));
        }
        Some(waker)
    }
}

/// Joining and leaving.
impl<T> Queue<T> {
    /// Evicts as many waiters as a newcomer takes, if that is allowed. Returns their wakers; `None` when the queue stays full.
    pub(super) fn evict_for(&mut self, ask: &Ask, most: usize, order: &QueueOrder) -> Option<Vec<Waker>> {
        let mut wakers = Vec::new();
        let fits = |units: u128| units + u128::from(ask.count()) <= u128::from(order.max_units);
        let evicts = order.eviction == Eviction::Oldest && most > 0 && ask.count() <= order.max_units;
        while self.waiting.len() + self.parked.len() >= most || !fits(self.queued_units) {
            // None is evicted for one that could not wait even alone.
            let oldest = self.oldest_of_last_class(ask).filter(|_| evicts)?;
            wakers.extend(self.end(oldest, WaitEnd::Evicted).ok().flatten());
        }
        Some(wakers)
    }

    /// The waiter to evict for a newcomer.
    pub(super) fn oldest_of_last_class(&self, newcomer: &Ask) -> Option<WaiterKey> {
        let maps = [&self.waiting, &self.parked];
        let last = maps.into_iter().filter_map(|map| map.keys().next_back());
        let class = class_of(*last.max()?);
        if self.scheduler.ranks() && class < self.class_for(newcomer) {
            return None;
        }
        let first = maps.into_iter().filter_map(|map| map.range(keys_of(class)).next());
        first.map(|(&key, _)| key).min()
    }

    /// Joins as the newest, `due` by the answer of the legs when the settings had changed `changes` times. A newcomer that
    /// takes a `raise` of the limits is parked at once, and looked at next, so that it is notified of the raise.
    pub(super) fn push(
        &mut self,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        (due, raise, changes): (Option<Instant>, bool, u64),
    ) -> WaiterKey {
        self.changed |= changes != self.changes;
        let key = keys_of(self.class_for(&ask)).start | self.next;
        self.next += 1;
        self.queued_units += u128::from(ask.count());
        let entry = QueuedWaiter {
            ask,
            since,
            deadline,
            due,
            ready_since: None,
            tried: false,
            panicked: false,
            waker: None,
        };
        if raise {
            self.notified = true;
            self.parked.insert(key, entry);
        } else {
            self.busy = true;
            self.count(key, &ask);
            self.waiting.insert(key, entry);
        }
        key
    }

    /// The owner of `key` looks at `now`, after the queue was driven. If the wait goes on, a `waker` that is given is kept, and
    /// swapped for the one before. The caller drops the one that it gets back outside the lock.
    pub(super) fn look(&mut self, key: WaiterKey, now: Instant, owner: &Waker, waker: &mut Option<Waker>) -> Lookup<T> {
        if let Some(ended) = self.ended.remove(&key) {
            return Lookup::Ended(ended);
        }
        let entry = self.waiting.get_mut(&key).or_else(|| self.parked.get_mut(&key));
        let Some(entry) = entry else {
            unreachable!("a waiter leaves the queue only when its owner looks or goes");
        };
        if entry.deadline.is_some_and(|deadline| deadline <= now) {
            *waker = self.remove(key).flatten();
            return Lookup::Ended(WaitEnd::Expired(None));
        }
        if waker.is_some() {
            mem::swap(&mut entry.waker, waker);
            if waker.is_none() {
                self.with_waker += 1;
                self.deadlines.extend(entry.deadline.map(|deadline| (deadline, key)));
            }
        } else if !entry.waker.as_ref().is_some_and(|known| known.will_wake(owner)) {
            return Lookup::NeedsWaker;
        }
        Lookup::Waiting
    }

    /// The owner of `key` goes. Returns the end of its wait, its waker, and whether it was the head.
    pub(super) fn leave(&mut self, key: WaiterKey) -> (Option<WaitEnd<T>>, Option<Waker>, bool) {
        let was_head = self.head().is_some_and(|(head, _)| head == key);
        match self.remove(key) {
            Some(waker) => (None, waker, was_head),
            None => (self.ended.remove(&key), None, false),
        }
    }
}

/// Dispatching: one thread at a time asks the legs for the head.
impl<T> Queue<T> {
    /// Begins to dispatch. False when another thread does so already, which will look once more.
    pub(super) fn begin(&mut self) -> bool {
        if self.dispatching {
            self.again = true;
        }
        !mem::replace(&mut self.dispatching, true)
    }

    /// A leg has notified: parked waiters are looked at again. After a change of settings all waiters are judged anew.
    pub(super) fn ring(&mut self, anew: bool) {
        self.notified = true;
        self.changed |= anew;
        self.changes += u64::from(anew);
    }

    /// The number of changes of settings. A newcomer reads it before it looks at the legs.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The next act, as of now.
    ///
    /// A notification during a look at the parked waiters begins another look only after the head: no number of notifications
    /// keeps the head waiting.
    pub(super) fn next(&mut self) -> Next {
        self.again = false;
        self.late_wakes = None;
        if self.looking_from.is_none() && mem::take(&mut self.notified) {
            self.looking_from = Some(0);
        }
        if let Some(from) = self.looking_from.take() {
            if let Some((&key, entry)) = self.parked.range(from..).next() {
                self.looking_from = Some(key + 1);
                return Next::Look(WaiterView::new(key, entry, Ask::many(0)));
            }
        }
        let head = self.head().map(|(key, _)| key);
        if let Some((_, claim)) = self.claim.take_if(|(owner, _)| head != Some(*owner)) {
            return head.map_or(Next::GiveBack(claim), |head| Next::Inherit(head, claim));
        }
        let Some((key, entry)) = self.head() else {
            return Next::Nothing;
        };
        Next::Ask(Head {
            key,
            ask: entry.ask,
            waited: match entry.tried {
                true => Waited::Due(entry.ready_since.or(entry.due)),
                false => Waited::Since(entry.since),
            },
            deadline: entry.deadline,
            claim: self.claim.map(|(_, claim)| claim),
            panicked: entry.panicked,
        })
    }

    /// The next waiter behind the head to be judged after a change of settings. `None` when all have been, or when the head
    /// comes first: there was an event, and this is not the `first` judged since the head was asked.
    ///
    /// A change in the midst has all judged once more, after the rest.
    pub(super) fn next_to_revalidate(&mut self, first: bool) -> Option<WaiterView> {
        if self.again && !first {
            return None;
        }
        loop {
            let Revalidation { last, mut ahead } = match self.revalidation {
                Some(revalidation) => revalidation,
                None if mem::take(&mut self.changed) => Revalidation {
                    last: None,
                    ahead: Ask::many(0),
                },
                None => return None,
            };
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            let next = match self.newest_first {
                true => self.waiting.range((Bound::Unbounded, after)).next_back(),
                false => self.waiting.range((after, Bound::Unbounded)).next(),
            };
            let Some((&key, entry)) = next else {
                self.revalidation = None;
                continue;
            };
            if last.is_some_and(|last| class_of(last) != class_of(key)) {
                ahead = Ask::many(0);
            }
            let next = WaiterView::new(key, entry, ahead);
            ahead.absorb(&next.ask);
            self.revalidation = Some(Revalidation { last: Some(key), ahead });
            // The head has just been asked, or is about to be.
            if self.head().is_none_or(|(head, _)| head != key) {
                return Some(next);
            }
        }
    }

    /// Stops dispatching, unless something has happened since the last look. Returns whether the queue has emptied.
    pub(super) fn stop(&mut self) -> Option<bool> {
        // A notification that is left may be that of a parked waiter for which a leg panicked.
        if self.again || self.notified {
            return None;
        }
        self.dispatching = false;
        self.late_wakes = None;
        if self.waiting.is_empty() {
            self.moves = Moves::default();
        }
        Some(self.waiting.is_empty() && mem::take(&mut self.busy))
    }

    /// The place of the head, or of the head before it, in the queue of one leg; and which of them holds it.
    pub(super) fn claim(&self) -> Option<(WaiterKey, QueueKey)> {
        self.claim
    }

    /// Sets the place of the head `key` in the queue of one leg.
    pub(super) fn set_claim(&mut self, key: WaiterKey, claim: Option<QueueKey>) {
        self.claim = claim.map(|claim| (key, claim));
    }

    /// The head has given its place at a leg back because another leg refuses it. After too many such moves it joins no order before
    /// `end_of_pause`.
    pub(super) fn note_move(&mut self, end_of_pause: Instant) {
        self.moves.count(end_of_pause);
    }

    /// True when the head has moved too often to join an order at `now`.
    pub(super) fn pauses(&mut self, now: Instant) -> bool {
        self.moves.pauses(now)
    }

    /// Sets the instant of the turn of `key`.
    pub(super) fn set_due(&mut self, key: WaiterKey, due: Option<Instant>, ready_since: Option<Instant>) {
        if let Some(entry) = self.waiting.get_mut(&key) {
            (entry.due, entry.ready_since, entry.tried) = (due, ready_since, true);
        }
    }

    /// Parks `key`, or keeps it parked, until a leg notifies, or `until`.
    pub(super) fn park(&mut self, key: WaiterKey, until: Option<Instant>) {
        let entry = match self.waiting.remove(&key) {
            Some(entry) => {
                self.uncount(key, &entry.ask);
                Some(entry)
            }
            None => self.take_parked(key),
        };
        if let Some(mut entry) = entry {
            entry.due = until;
            entry.tried = true;
            self.parked_until.extend(until.map(|until| (until, key)));
            self.parked.insert(key, entry);
        }
    }

    /// Has `key` wait in order from now on: the limits are large enough.
    pub(super) fn unpark(&mut self, key: WaiterKey) {
        if let Some(entry) = self.take_parked(key) {
            self.busy = true;
            self.count(key, &entry.ask);
            self.waiting.insert(key, entry);
        }
    }

    /// Notes that a leg has panicked for `key`.
    pub(super) fn note_panic(&mut self, key: WaiterKey) {
        if let Some(entry) = self.entry(key) {
            entry.panicked = true;
        }
        // A parked waiter is looked at once more.
        self.notified |= self.parked.contains_key(&key);
    }

    /// Ends the wait of `key`, and returns the waker of its owner; `Err` with the end when the owner has gone.
    pub(super) fn end(&mut self, key: WaiterKey, ended: WaitEnd<T>) -> Result<Option<Waker>, WaitEnd<T>> {
        let units = self.entry(key).map_or(0, |entry| entry.ask.count());
        match self.remove(key) {
            Some(waker) => {
                if matches!(ended, WaitEnd::Admitted(_)) {
                    self.moves = Moves::default();
                    self.scheduler.charge(class_of(key), units);
                }
                self.ended.insert(key, ended);
                Ok(waker)
            }
            None => Err(ended),
        }
    }
}

/// The timer: one for the queue, set to the instant of its head, to the first at which a parked waiter is asked for again, and
/// to the first deadline. It only wakes.
impl<T> Queue<T> {
    /// The instant at which the head has to be looked at, as far as it is known.
    pub(super) fn head_at(&self) -> Option<Instant> {
        let (_, head) = self.head()?;
        [head.due, head.deadline, self.moves.paused_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// The first instant at which a waiter is to be woken. During a dispatch the head's instant is not yet known.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let head = match self.late_wakes {
            _ if self.dispatching || self.with_waker == 0 => None,
            Some(late_wakes) => Some(late_wakes.again),
            None => self.head_at(),
        };
        let first = |instants: &BTreeSet<(Instant, WaiterKey)>| instants.first().map(|&(at, _)| at);
        let parked = first(&self.parked_until).filter(|_| !self.dispatching);
        head.into_iter().chain(parked).chain(first(&self.deadlines)).min()
    }

    /// True when the timer is to be set anew.
    pub(super) fn is_mistimed(&self) -> bool {
        match (self.wake_at(), self.armed) {
            (Some(at), Some(armed)) if at >= armed => at > armed && self.timing.exact && !self.dispatching,
            (Some(_), _) => true,
            (None, None) => false,
            (None, Some(_)) => self.is_empty() || (self.timing.exact && !self.dispatching),
        }
    }

    /// The instant to which the caller sets the timer.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        self.armed = self.wake_at();
        self.armed
    }

    /// The timer has fired. Returns the wakers that it wakes: of the head whose instant has come, and of each waiter whose
    /// deadline has.
    ///
    /// A woken owner drives the queue. Where it does not in time, since its future is kept without being polled, those
    /// behind it are woken as well, twice as many each time: the first that is polled drives the queue past the others.
    pub(super) fn fire(&mut self, now: Instant) -> Vec<Waker> {
        self.armed = None;
        let mut wakers = Vec::new();
        let (due, told) = match self.late_wakes {
            None => (self.head_at(), 0),
            Some(late_wakes) => (Some(late_wakes.again), late_wakes.woken),
        };
        if due.is_some_and(|due| due <= now) {
            let with_waker = |(&key, entry): (&WaiterKey, &QueuedWaiter)| entry.waker.is_some().then_some(key);
            let most = told.max(1);
            let class = keys_of(self.scheduler.pick().unwrap_or(0));
            let keys: Vec<WaiterKey> = match self.newest_first {
                true => self.waiting.iter().rev().filter_map(with_waker).take(most).collect(),
                // The class of the head, and then the others.
                false => [class.start..u64::MAX, 0..class.start]
                    .into_iter()
                    .flat_map(|keys| self.waiting.range(keys))
                    .filter_map(with_waker)
                    .take(most)
                    .collect(),
            };
            wakers.extend(keys.into_iter().filter_map(|key| self.take_waker(key)));
            self.late_wakes = Some(LateWakes {
                woken: told + wakers.len(),
                again: now.after_ticks(self.timing.grace),
            });
        }
        while let Some(&(_, key)) = self.parked_until.first().filter(|(at, _)| *at <= now) {
            self.parked_until.pop_first();
            self.notified = true;
            wakers.extend(self.take_waker(key));
        }
        while let Some(&(_, key)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            wakers.extend(self.take_waker(key));
        }
        wakers
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;

    /// Given a head that moves between legs, then it pauses after the sixteenth move and after each further one, until an instant at which
    /// the timer wakes it. An admission and the end of the queue begin the count anew.
    #[test]
    fn a_head_that_has_moved_too_often_pauses() {
        let timing = Timing { grace: 1, exact: true };
        let (mut queue, at) = (Queue::<()>::new(&Order::Fifo, timing), Instant::from_ticks);
        let looks = |queue: &mut Queue<()>, key| {
            let mut waker = Some(Waker::noop().clone());
            let found = queue.look(key, at(0), Waker::noop(), &mut waker);
            assert!(matches!(found, Lookup::Waiting));
        };
        let drives = |queue: &mut Queue<()>| {
            assert!(queue.begin());
            queue.next();
            queue.stop()
        };
        let [first, second] = [(); 2].map(|()| queue.push(Ask::one(), at(0), Some(at(35)), (None, false, 0)));
        looks(&mut queue, second);
        for _ in 0..15 {
            queue.note_move(at(10));
            assert!(!queue.pauses(at(0)));
        }
        for end in [10, 20] {
            queue.note_move(at(end));
            assert!(queue.pauses(at(end - 1)));
            looks(&mut queue, first);
            assert_eq!((drives(&mut queue), queue.wake_at()), (Some(false), Some(at(end))));
            assert_eq!(queue.fire(at(end)).len(), 1);
            assert!(!queue.pauses(at(end)));
        }
        queue.note_move(at(30));
        assert!(queue.end(first, WaitEnd::Admitted(())).is_ok());
        assert!(!queue.pauses(at(29)));
        (0..16).for_each(|_| queue.note_move(at(40)));
        drives(&mut queue);
        assert_eq!(queue.wake_at(), Some(at(35)), "the deadline comes first");
        queue.leave(second);
        assert_eq!((drives(&mut queue), queue.pauses(at(39))), (Some(true), false));
    }

    /// Given waiters that join, leave, are passed over and come back while others are judged, then each is judged behind the
    /// sum of those before it, in either order; and all but the head are judged after a change of settings.
    #[test]
    fn each_waiter_is_judged_behind_the_sum_of_those_before_it() {
        let classes = Order::RoundRobin { classes: 3 };
        for order in [Order::Fifo, Order::Lifo, classes] {
            let newest_first = order == Order::Lifo;
            let timing = Timing { grace: 1, exact: true };
            let mut queue: Queue<()> = Queue::new(&order, timing);
            let (mut waiting, mut parked) = (BTreeMap::<WaiterKey, u64>::new(), BTreeSet::<WaiterKey>::new());
            let (mut draw, mut judged) = (1_u64, 0);
            for _ in 0..20_000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (action, units) = (draw >> 60, draw >> 40 & 7);
                let nth = |keys: Vec<WaiterKey>| keys.get((draw >> 33) as usize % 9).copied();
                match action {
                    0..4 if waiting.len() + parked.len() < 9 => {
                        let known = (None, false, queue.changes());
                        let ask = Ask::many(units).class((draw >> 20 & 3) as u8);
                        let key = queue.push(ask, Instant::ZERO, None, known);
                        waiting.insert(key, units);
                    }
                    4..6 => {
                        if let Some(key) = nth(waiting.keys().copied().collect()) {
                            queue.leave(key);
                            waiting.remove(&key);
                        }
                    }
                    6 => {
                        if let Some(key) = nth(waiting.keys().copied().collect()) {
                            queue.park(key, None);
                            parked.insert(key);
                        }
                    }
                    7 => {
                        if let Some(key) = nth(parked.iter().copied().collect()) {
                            queue.unpark(key);
                            parked.remove(&key);
                        }
                    }
                    8 => queue.ring(true),
                    _ => {
                        let Some(waits) = queue.next_to_revalidate(true) else {
                            continue;
                        };
                        let is_before = |key: WaiterKey| match newest_first {
                            true => key > waits.key,
                            false => key < waits.key && class_of(key) == class_of(waits.key),
                        };
                        let before = waiting
                            .iter()
                            .filter(|(key, _)| is_before(**key) && !parked.contains(key));
                        let ahead: u64 = before.map(|(_, units)| units).sum();
                        assert_eq!(waits.ahead.count(), ahead);
                        judged += 1;
                    }
                }
            }
            assert!(judged > 1_000);
            while queue.next_to_revalidate(true).is_some() {}
            queue.ring(true);
            let mut all = 0;
            while queue.next_to_revalidate(true).is_some() {
                all += 1;
            }
            let in_order = waiting.keys().filter(|key| !parked.contains(key)).count();
            assert_eq!(all, in_order.saturating_sub(1));
        }
    }
}
