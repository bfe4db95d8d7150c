#![doc = include_str!("README.md")]

// In this file, from top to bottom: the waiters as plain data, the transitions under the lock, the timer's transitions, and
// then the acts outside the lock, which call legs, wakers and the queues of legs.

use super::settings::{Bounds, QueueOrder, Settings};
use crate::core::ask::{Ask, Demand, MAX_COSTS, Place};
use crate::core::limiter::{Limiter, admit_in};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::rng::nth_fraction;
use crate::semaphore::{Eviction, Order, Scheduler};
use crate::shed::early_rejection_probability;
use crate::sync::notify::{self, Listener, Notified, Notify};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::wait_queue::{QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::sync::wake::{PanicCollector, drop_quietly, quietly, wake_all, wake_all_quietly};
use crate::time::{Clock, ClockReading, Instant, Sleep};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Bound, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// A place in the queue: its class in the upper bits, and below that the number of its arrival, never used twice.
pub(super) type WaiterKey = u64;

/// The bits of the number of an arrival.
const ARRIVAL_BITS: u32 = 56;

fn class_of(key: WaiterKey) -> usize {
    (key >> ARRIVAL_BITS) as usize
}

/// The keys of a class.
fn keys_of(class: usize) -> Range<WaiterKey> {
    (class as u64) << ARRIVAL_BITS..(class as u64 + 1) << ARRIVAL_BITS
}

/// A waiter.
#[derive(Debug)]
struct QueuedWaiter {
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
enum Lookup<T> {
    Ended(WaitEnd<T>),
    /// Still waiting, with a waker of the owner.
    Waiting,
    /// Still waiting, and a clone of the owner's waker is needed.
    NeedsWaker,
}

/// The earliest instant at which a waiter could have been admitted, as far as it is known.
#[derive(Clone, Copy, Debug)]
enum Waited {
    /// It joined then, and the legs have not been asked for it since.
    Since(Instant),
    /// The legs have been asked: not before this instant, or not before some event.
    Due(Option<Instant>),
}

/// The first in the queue, for which the legs are to be asked.
struct Head {
    key: WaiterKey,
    ask: Ask,
    waited: Waited,
    deadline: Option<Instant>,
    /// Its place in the queue of one leg.
    claim: Option<QueueKey>,
    /// A leg has panicked for it before.
    panicked: bool,
}

/// A waiter that is not the head: the legs are only looked at for it.
struct WaiterView {
    key: WaiterKey,
    ask: Ask,
    /// The sum of all asks before it.
    ahead: Ask,
    deadline: Option<Instant>,
    /// A leg has panicked for it before.
    panicked: bool,
}

impl WaiterView {
    fn new(key: WaiterKey, entry: &QueuedWaiter, ahead: Ask) -> Self {
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
enum Next {
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
struct LateWakes {
    /// Waiters that have been woken.
    woken: usize,
    /// The instant at which more are woken.
    again: Instant,
}

/// The progress of judging the waiters behind the head anew after a change of settings.
#[derive(Clone, Copy, Debug)]
struct Revalidation {
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
struct Queue<T> {
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
struct Timing {
    /// Its patience, in ticks, with a waiter that it has woken to drive the queue.
    grace: u64,
    /// It never fires in vain: virtual time stops at each timer. Else one that would is left as it is, and sets itself anew.
    exact: bool,
}

impl<T> Queue<T> {
    fn new(order: &Order, timing: Timing) -> Self {
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
            dispatching: false,
            again: false,
            busy: false,
            armed: None,
            late_wakes: None,
            timing,
        }
    }

    /// Waiters in order.
    fn in_order(&self) -> usize {
        self.waiting.len()
    }

    /// Waiters for larger limits.
    fn parked(&self) -> usize {
        self.parked.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.parked.is_empty()
    }

    fn entry(&mut self, key: WaiterKey) -> Option<&mut QueuedWaiter> {
        self.waiting.get_mut(&key).or_else(|| self.parked.get_mut(&key))
    }

    /// The class in which `ask` waits.
    fn class_for(&self, ask: &Ask) -> usize {
        usize::from(ask.class_number()).min(self.queued.len() - 1)
    }

    /// The sum of the asks that are served before a waiter that joins now, whatever the classes of others; and whether it is
    /// the head.
    fn ahead(&mut self, ask: &Ask) -> (Ask, bool) {
        let class = self.class_for(ask);
        match self.newest_first {
            true => (Ask::many(0), true),
            false => (self.queued[class], self.scheduler.would_lead(class)),
        }
    }

    fn head(&self) -> Option<(WaiterKey, &QueuedWaiter)> {
        let mut class = self.waiting.range(keys_of(self.scheduler.pick()?));
        let first = match self.newest_first {
            true => class.next_back(),
            false => class.next(),
        };
        first.map(|(&key, entry)| (key, entry))
    }

    /// Takes a waiter out. Returns its waker, if it was there and has one.
    fn remove(&mut self, key: WaiterKey) -> Option<Option<Waker>> {
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

    fn take_parked(&mut self, key: WaiterKey) -> Option<QueuedWaiter> {
        let entry = self.parked.remove(&key)?;
        if let Some(until) = entry.due {
            self.parked_until.remove(&(until, key));
        }
        Some(entry)
    }

    /// The sum of the asks that have been judged, if `key` is among them.
    fn revalidated_ahead(&mut self, key: WaiterKey) -> Option<&mut Ask> {
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
    fn count(&mut self, key: WaiterKey, ask: &Ask) {
        self.queued[class_of(key)].absorb(ask);
        self.scheduler.join(class_of(key));
        if let Some(ahead) = self.revalidated_ahead(key) {
            ahead.absorb(ask);
        }
    }

    /// `key` does not wait in order any more.
    fn uncount(&mut self, key: WaiterKey, ask: &Ask) {
        self.queued[class_of(key)].release(ask);
        self.scheduler.leave(class_of(key));
        if let Some(ahead) = self.revalidated_ahead(key) {
            ahead.release(ask);
        }
    }

    /// Takes the waker of a waiter, if it has one.
    fn take_waker(&mut self, key: WaiterKey) -> Option<Waker> {
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
    fn evict_for(&mut self, ask: &Ask, most: usize, order: &QueueOrder) -> Option<Vec<Waker>> {
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
    fn oldest_of_last_class(&self, newcomer: &Ask) -> Option<WaiterKey> {
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
    fn push(
        &mut self,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        (due, raise, changes): (Option<Instant>, bool, u64),
    ) -> WaiterKey {
        self.changed |= changes != self.changes && !seeded!("newcomer_joins_by_old_settings");
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
    fn look(&mut self, key: WaiterKey, now: Instant, owner: &Waker, waker: &mut Option<Waker>) -> Lookup<T> {
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
    fn leave(&mut self, key: WaiterKey) -> (Option<WaitEnd<T>>, Option<Waker>, bool) {
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
    fn begin(&mut self) -> bool {
        if self.dispatching && !seeded!("dispatch_forgets_an_event") {
            self.again = true;
        }
        !mem::replace(&mut self.dispatching, true)
    }

    /// A leg has notified: parked waiters are looked at again. After a change of settings all waiters are judged anew.
    fn ring(&mut self, anew: bool) {
        self.notified = true;
        self.changed |= anew;
        self.changes += u64::from(anew);
    }

    /// The number of changes of settings. A newcomer reads it before it looks at the legs.
    fn changes(&self) -> u64 {
        self.changes
    }

    /// The next act, as of now.
    ///
    /// A notification during a look at the parked waiters begins another look only after the head: no number of notifications
    /// keeps the head waiting.
    fn next(&mut self) -> Next {
        self.again = false;
        self.late_wakes = None;
        if self.looking_from.is_none() && mem::take(&mut self.notified) {
            self.looking_from = Some(0);
        }
        if let Some(from) = self.looking_from.take()
            && let Some((&key, entry)) = self.parked.range(from..).next()
        {
            self.looking_from = Some(key + 1);
            return Next::Look(WaiterView::new(key, entry, Ask::many(0)));
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
    fn next_to_revalidate(&mut self, first: bool) -> Option<WaiterView> {
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
    fn stop(&mut self) -> Option<bool> {
        // A notification that is left may be that of a parked waiter for which a leg panicked.
        if self.again || (self.notified && !seeded!("dispatch_stops_before_a_notification")) {
            return None;
        }
        self.dispatching = false;
        self.late_wakes = None;
        Some(self.waiting.is_empty() && mem::take(&mut self.busy))
    }

    /// The place of the head, or of the head before it, in the queue of one leg; and which of them holds it.
    fn claim(&self) -> Option<(WaiterKey, QueueKey)> {
        self.claim
    }

    /// Sets the place of the head `key` in the queue of one leg.
    fn set_claim(&mut self, key: WaiterKey, claim: Option<QueueKey>) {
        self.claim = claim.map(|claim| (key, claim));
    }

    /// Sets the instant of the turn of `key`.
    fn set_due(&mut self, key: WaiterKey, due: Option<Instant>, ready_since: Option<Instant>) {
        if let Some(entry) = self.waiting.get_mut(&key) {
            (entry.due, entry.ready_since, entry.tried) = (due, ready_since, true);
        }
    }

    /// Parks `key`, or keeps it parked, until a leg notifies, or `until`.
    fn park(&mut self, key: WaiterKey, until: Option<Instant>) {
        if seeded!("parking_drops_a_notification") {
            self.notified = false;
        }
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
    fn unpark(&mut self, key: WaiterKey) {
        if let Some(entry) = self.take_parked(key) {
            self.busy = true;
            self.count(key, &entry.ask);
            self.waiting.insert(key, entry);
        }
    }

    /// Notes that a leg has panicked for `key`.
    fn note_panic(&mut self, key: WaiterKey) {
        if let Some(entry) = self.entry(key) {
            entry.panicked = true;
        }
        // A parked waiter is looked at once more.
        self.notified |= self.parked.contains_key(&key);
    }

    /// Ends the wait of `key`, and returns the waker of its owner; `Err` with the end when the owner has gone.
    fn end(&mut self, key: WaiterKey, ended: WaitEnd<T>) -> Result<Option<Waker>, WaitEnd<T>> {
        let units = self.entry(key).map_or(0, |entry| entry.ask.count());
        match self.remove(key) {
            Some(waker) => {
                if matches!(ended, WaitEnd::Admitted(_)) {
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
    fn head_at(&self) -> Option<Instant> {
        let (_, head) = self.head()?;
        [head.due, head.deadline].into_iter().flatten().min()
    }

    /// The first instant at which a waiter is to be woken. During a dispatch the head's instant is not yet known.
    fn wake_at(&self) -> Option<Instant> {
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
    fn is_mistimed(&self) -> bool {
        match (self.wake_at(), self.armed) {
            (Some(at), Some(armed)) if at >= armed => at > armed && self.timing.exact && !self.dispatching,
            (Some(_), _) => true,
            (None, None) => false,
            (None, Some(_)) => self.is_empty() || (self.timing.exact && !self.dispatching),
        }
    }

    /// The instant to which the caller sets the timer.
    fn arm(&mut self) -> Option<Instant> {
        self.armed = self.wake_at();
        self.armed
    }

    /// The timer has fired. Returns the wakers that it wakes: of the head whose instant has come, and of each waiter whose
    /// deadline has.
    ///
    /// A woken owner drives the queue. Where it does not in time, since its future is kept without being polled, those
    /// behind it are woken as well, twice as many each time: the first that is polled drives the queue past the others.
    fn fire(&mut self, now: Instant) -> Vec<Waker> {
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
        while let Some(&(at, key)) = self.parked_until.first()
            && at <= now
        {
            self.parked_until.pop_first();
            self.notified = true;
            wakers.extend(self.take_waker(key));
        }
        while let Some(&(at, key)) = self.deadlines.first()
            && at <= now
        {
            wakers.extend(self.take_waker(key));
        }
        wakers
    }
}

/// How long the timer waits for a waiter that it has woken to drive the queue, before it wakes others. Half the default
/// lateness that is made up for: a waiter that is not polled costs the rate nothing.
const GRACE: Duration = Duration::from_millis(5);

/// The limiter, the clock and the queue of a policy, shared by its handles and waiting futures.
pub(super) struct PolicyCore<L: Limiter> {
    pub(super) limiter: L,
    pub(super) clock: Clock,
    pub(super) settings: Bounds,
    /// Notified when the queue has emptied: for a policy that is a leg of another.
    pub(super) notify: Notify,
    queue: Mutex<Queue<L::Ticket>>,
    /// Made when it is first needed. Its lock is taken before the queue's.
    timer: Mutex<Option<Box<Timer>>>,
    /// The waiters in order, and those for larger limits. Written under the queue's lock; read without it as a hint.
    in_order: AtomicUsize,
    parked: AtomicUsize,
    /// The instant as of which the latest waiter was admitted, in ticks.
    last_as_of: AtomicU64,
    /// The same if it was late, by the timer that fired or by the task that was polled; zero if it was not.
    lateness_credit: AtomicU64,
    listener: Listener,
    /// The number of draws by chance.
    draws: AtomicU64,
}

/// The timer of the queue, and its waker. It belongs to no runtime: one that drives its timers late, or not at all, holds up no
/// waiter of another.
struct Timer {
    sleep: Sleep,
    waker: Waker,
}

/// The result of an attempt for a waiter.
enum Attempt<T> {
    Admitted(T),
    /// Look again at this instant.
    At(Instant),
    /// Look again after an event, or at this instant; and the instant since when only a turn is missing, if it is.
    OnEvent(Option<Instant>, Option<Instant>),
    /// Look again when a leg notifies, or at this instant. Others are served meanwhile.
    OnRaise(Option<Instant>),
    /// Waiting changes nothing, or a leg is not waited for.
    Refused,
    /// A leg has panicked.
    Panicked(Box<dyn Any + Send>),
}

/// A queue of a leg, to be joined.
struct LegQueue<'a> {
    wait_queue: &'a dyn WaitQueue,
    units: u64,
    /// The waiters before it there may leave unnoticed before it has joined.
    behind: bool,
}

impl<'a> LegQueue<'a> {
    fn new(wait_queue: &'a dyn WaitQueue, units: u64) -> Self {
        Self {
            wait_queue,
            units,
            behind: wait_queue.holds_nothing(),
        }
    }

    /// Joins it for this part of `ask`.
    fn join(&self, ask: &Ask, waker: &Waker) -> QueueKey {
        let mut costs = [("", 0); MAX_COSTS];
        let mut named = 0;
        for (cost, units) in ask.costs() {
            costs[named] = (cost.name(), units);
            named += 1;
        }
        let demand = QueueDemand {
            units: self.units,
            class: ask.class_number(),
            calls: ask.count(),
            costs: &costs[..named],
        };
        self.wait_queue.join(demand, waker)
    }

    /// The queue of an instant that is to come.
    fn until_due(ready: &ReadyAt<'a>) -> Option<Self> {
        ready.due_turn().map(|due| Self {
            behind: due.behind,
            ..Self::new(due.wait_queue, due.units)
        })
    }

    /// The queue of an event.
    fn of_event(ready: &ReadyAt<'a>) -> Option<Self> {
        ready.turn().map(|(wait_queue, units)| Self::new(wait_queue, units))
    }
}

impl<L: Limiter + 'static> PolicyCore<L> {
    pub(super) fn new(limiter: L, clock: Clock, settings: Settings) -> Arc<Self> {
        let timing = Timing {
            grace: clock.ticks_of(GRACE),
            exact: clock.is_manual(),
        };
        Arc::new_cyclic(|weak| Self {
            limiter,
            clock,
            settings: Bounds::new(settings.clone()),
            notify: Notify::new(),
            queue: Mutex::new(Queue::new(&settings.order.order, timing)),
            timer: Mutex::new(None),
            in_order: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            last_as_of: AtomicU64::new(0),
            lateness_credit: AtomicU64::new(0),
            listener: Listener::new(weak.clone()),
            draws: AtomicU64::new(0),
        })
    }
}

impl<L: Limiter> PolicyCore<L> {
    /// The waiters.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        // Relaxed: a hint. A caller that misses a waiter which is just joining is concurrent with it.
        self.in_order.load(Ordering::Relaxed) + self.parked.load(Ordering::Relaxed)
    }

    /// True when a newcomer has waiters before it.
    #[inline]
    pub(super) fn has_before(&self) -> bool {
        self.in_order.load(Ordering::Relaxed) > 0 && !self.settings.newest_first()
    }

    /// True without waiters, and without one that was just served late: a newcomer may be admitted on the spot.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting() == 0 && !self.was_late()
    }

    /// True when a waiter has just been served late.
    pub(super) fn was_late(&self) -> bool {
        self.lateness_credit.load(Ordering::Relaxed) != 0
    }

    /// The turn of this queue at a leg that hands nothing over. It belongs to the queue, not to its present head.
    fn own_turn(&self) -> Option<QueueKey> {
        let (_, claim) = self.queue.lock().claim()?;
        self.is_turn_only(claim).then_some(claim)
    }

    /// True when `claim` is a place in the queue of a leg that hands over.
    fn is_claimant(&self, claim: &Cell<Option<QueueKey>>) -> bool {
        claim.get().is_some_and(|claim| !self.is_turn_only(claim))
    }

    fn is_turn_only(&self, claim: QueueKey) -> bool {
        let wait_queue = self.limiter.wait_queue(claim.wait_queue());
        wait_queue.is_some_and(WaitQueue::holds_nothing)
    }

    /// Asks the legs for a newcomer while others wait, unless a waiter is before it.
    #[cold]
    pub(super) fn reserve_past_waiters(
        &self,
        demand: Demand<'_>,
        ticket: &mut Option<L::Ticket>,
    ) -> Result<(), Refusal<'_>> {
        if self.has_before() {
            return Err(Refusal::new(
                Reason::Saturated,
                super::QUEUE,
                demand.units(),
                Wait::Event,
            ));
        }
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant: false,
            watcher: &self.listener,
            claim: &Cell::new(self.own_turn()),
        };
        self.limiter.reserve_in(demand.at_place(&place), ticket)
    }

    /// The earliest instant as of which a waiter may be admitted at `now`: not before it joined, nor before the instant that
    /// the last look at the legs found, nor before the latest waiter that was served.
    fn floor(&self, waited: Waited, now: Instant) -> Instant {
        let earliest = Instant::from_ticks(now.ticks().saturating_sub(self.settings.lateness()));
        // Relaxed: a stale value changes how much lateness is made up for, within the same cap.
        let last = Instant::from_ticks(self.last_as_of.load(Ordering::Relaxed));
        let credit = Instant::from_ticks(self.lateness_credit.load(Ordering::Relaxed));
        let from = match waited {
            Waited::Since(since) if credit > earliest => since.min(credit),
            Waited::Since(since) => since,
            Waited::Due(Some(due)) if due <= now => due,
            // A leg has loosened before the due instant: now.
            Waited::Due(_) => now,
        };
        from.max(earliest).max(last).min(now)
    }

    /// Asks the legs for a waiter, as of the instant of its turn.
    fn attempt(
        &self,
        ask: &Ask,
        waited: Waited,
        claim: &Cell<Option<QueueKey>>,
    ) -> (Attempt<L::Ticket>, Option<LegQueue<'_>>) {
        let now = self.clock.now();
        let floor = self.floor(waited, now);
        let is_claimant = self.is_claimant(claim);
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant,
            watcher: &self.listener,
            claim,
        };
        // Rates first, by looking only: no turn of a queue is taken, and wasted, before they are ready.
        let reading = ClockReading::at(&self.clock, floor);
        let ready = self.limiter.ready_at(Demand::waiting(ask, &reading, &place));
        if ready.is_never() {
            return (Attempt::Refused, None);
        }
        if ready.refuses_at_once(now).is_some() {
            return (Attempt::Refused, None);
        }
        if ready.is_raise() {
            return (Attempt::OnRaise(ready.event_by()), None);
        }
        let as_of = ready.not_before().unwrap_or(floor).max(floor);
        if as_of > now {
            // A place in a queue that has not handed over yet holds nothing. It is kept, or another queue would always be first
            // there. A permit that it is handed before the instant goes on to the next.
            let waiting = LegQueue::of_event(&ready).filter(|_| is_claimant && ready.is_event());
            // No turn of a rate is taken while the head waits for an event that no queue hands over: at its instant it would
            // keep others waiting in vain.
            let in_vain = ready.is_event() && ready.turn().is_none();
            let turn = waiting.or_else(|| LegQueue::until_due(&ready).filter(|_| !in_vain));
            let was_due = matches!(waited, Waited::Due(Some(due)) if due <= now);
            if was_due && turn.as_ref().is_some_and(|turn| turn.behind) {
                // The waiters before it would have been served by then: only its turn is missing.
                return (Attempt::OnEvent(Some(as_of), Some(floor)), turn);
            }
            return (Attempt::At(as_of), turn);
        }
        if ready.is_event() {
            // From then on: the waiters before it are still to be charged as of earlier instants.
            let since = ready.is_due().then_some(floor);
            return (Attempt::OnEvent(ready.event_by(), since), LegQueue::of_event(&ready));
        }
        let reading = ClockReading::at(&self.clock, as_of);
        match self.limiter.try_reserve(Demand::waiting(ask, &reading, &place)) {
            Ok(ticket) => {
                self.last_as_of.store(as_of.ticks(), Ordering::Relaxed);
                self.note_lateness(now);
                (Attempt::Admitted(ticket), None)
            }
            // Another caller was faster: the legs are asked again for the instant.
            Err(refusal) => match refusal.wait() {
                Wait::Until(due) => {
                    let ready = self.ready_for_head(ask, now, claim);
                    if ready.is_due() {
                        return (
                            Attempt::OnEvent(ready.event_by(), Some(now)),
                            LegQueue::of_event(&ready),
                        );
                    }
                    let kept = || self.limiter.wait_queue(claim.get()?.wait_queue());
                    let kept = kept()
                        .filter(|kept| kept.holds_nothing())
                        .map(|kept| LegQueue::new(kept, 0));
                    (Attempt::At(due.instant()), LegQueue::until_due(&ready).or(kept))
                }
                Wait::Turn(wait_queue) => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    let turn = LegQueue::new(wait_queue, refusal.units());
                    (Attempt::OnEvent(by, None), Some(turn))
                }
                Wait::Event => {
                    let by = self.ready_for_head(ask, now, &Cell::new(None)).event_by();
                    (Attempt::OnEvent(by, None), None)
                }
                Wait::Never => (Attempt::Refused, None),
            },
        }
    }

    /// Looks at the legs for a head that was refused although all of them looked ready.
    #[cold]
    fn ready_for_head(&self, ask: &Ask, now: Instant, claim: &Cell<Option<QueueKey>>) -> ReadyAt<'_> {
        let place = Place {
            ahead: Ask::many(0),
            is_head: true,
            is_claimant: self.is_claimant(claim),
            watcher: &self.listener,
            claim,
        };
        let reading = ClockReading::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, &reading, &place))
    }

    /// Notes that a waiter is served at `now` which was due at the latest instant: the next may catch up.
    pub(super) fn note_lateness(&self, now: Instant) {
        // Relaxed: see `floor`.
        let last = self.last_as_of.load(Ordering::Relaxed);
        let late = if last < now.ticks() { last } else { 0 };
        self.lateness_credit.store(late, Ordering::Relaxed);
    }

    /// Admits a newcomer to an empty queue whose latest waiter was served late. Forgets that lateness once it is older than the
    /// cap.
    pub(super) fn admit_after_late(&self, ask: &Ask) -> Option<L::Ticket> {
        let now = self.clock.now();
        let turn = Cell::new(self.own_turn());
        let credit = Instant::from_ticks(self.lateness_credit.load(Ordering::Relaxed));
        if now.ticks_since(credit) >= self.settings.lateness() {
            // A newer lateness that this overwrites costs its waiter the catching up, never an admission.
            self.lateness_credit.store(0, Ordering::Relaxed);
        }
        match self.attempt(ask, Waited::Since(now), &turn) {
            (Attempt::Admitted(ticket), _) => Some(ticket),
            _ => None,
        }
    }

    /// When a waiter that joins now would be admitted, and the count of changes of settings before the look: a change between
    /// that and the join has the newcomer judged anew.
    pub(super) fn ready_behind_queue(&self, ask: &Ask, now: Instant) -> (ReadyAt<'_>, u64) {
        let (ahead, is_head, claim, changes) = {
            let mut queue = self.queue.lock();
            let (ahead, is_head) = queue.ahead(ask);
            (ahead, is_head, queue.claim().map(|(_, claim)| claim), queue.changes())
        };
        // A newcomer that will be the head takes its own place, but the turn of the queue is its turn.
        let claim = claim.filter(|&claim| !is_head || self.is_turn_only(claim));
        (self.ready_behind(ask, now, ahead, is_head, claim), changes)
    }

    /// When a waiter that is not the head is admitted, behind `ahead`.
    fn ready_behind_head(&self, ask: &Ask, now: Instant, ahead: Ask) -> ReadyAt<'_> {
        let claim = self.queue.lock().claim();
        self.ready_behind(ask, now, ahead, false, claim.map(|(_, claim)| claim))
    }

    /// When a waiter behind `ahead` is admitted. `claim` is its own place if it is the head, else that of the head.
    fn ready_behind(&self, ask: &Ask, now: Instant, ahead: Ask, is_head: bool, claim: Option<QueueKey>) -> ReadyAt<'_> {
        let place = Place {
            ahead,
            is_head,
            is_claimant: false,
            watcher: &self.listener,
            claim: &Cell::new(claim),
        };
        let reading = ClockReading::at(&self.clock, now);
        self.limiter.ready_at(Demand::waiting(ask, &reading, &place))
    }
}

impl<L: Limiter + 'static> PolicyCore<L> {
    /// A transition of the queue. Runs no users' code, but may wake the waiters whose instant has come.
    fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut Queue<L::Ticket>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        // Relaxed: see `waiting`.
        self.in_order.store(queue.in_order(), Ordering::Relaxed);
        self.parked.store(queue.parked(), Ordering::Relaxed);
        let mistimed = queue.is_mistimed();
        drop(queue);
        if mistimed {
            self.set_timer();
        }
        result
    }

    /// Joins the queue, unless it is full. Returns the key, and the wakers of the waiters that were evicted for it: to be woken
    /// by [`wake_evicted`](Self::wake_evicted) once the key has an owner. The newcomer drives the queue.
    pub(super) fn join(
        self: &Arc<Self>,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        known: (Option<Instant>, bool, u64),
    ) -> Option<(WaiterKey, Vec<Waker>)> {
        if self.rejects_early() {
            return None;
        }
        let most = self.settings.max_queue();
        self.change(|queue| {
            let evicted = queue.evict_for(&ask, most, &self.settings.order)?;
            Some((queue.push(ask, since, deadline, known), evicted))
        })
    }

    /// Wakes the evicted waiters, whichever of them panic. The first panic goes on to the newcomer.
    pub(super) fn wake_evicted(evicted: Vec<Waker>) {
        wake_all(evicted);
    }

    fn rejects_early(&self) -> bool {
        let Some(from) = self.settings.reject_early_from else {
            return false;
        };
        let rate = early_rejection_probability(self.waiting(), from, self.settings.max_queue());
        // Relaxed: only that no number comes twice.
        rate > 0.0 && nth_fraction(0, self.draws.fetch_add(1, Ordering::Relaxed)) < rate
    }

    /// The owner of `key` drives the queue and looks. `None` while it waits: then `waker` is woken when its wait ends, or when
    /// it has to drive the queue.
    pub(super) fn look(self: &Arc<Self>, key: WaiterKey, waker: &Waker) -> Option<WaitEnd<L::Ticket>> {
        self.drive();
        let now = self.clock.now();
        let mut clone = None;
        let mut found = self.change(|queue| queue.look(key, now, waker, &mut clone));
        if matches!(found, Lookup::NeedsWaker) {
            // Outside the lock: users' code. Nothing is in hand that its panic could lose.
            clone = Some(waker.clone());
            found = self.change(|queue| queue.look(key, now, waker, &mut clone));
        }
        drop_quietly(clone);
        let Lookup::Ended(ended) = found else { return None };
        if matches!(ended, WaitEnd::Expired(_)) {
            self.drive();
        }
        Some(ended)
    }

    /// The owner of `key` goes before it has seen the end of its wait. Each step is done whichever waker or leg panics; the
    /// first panic goes on.
    pub(super) fn leave(self: &Arc<Self>, key: WaiterKey) {
        let (ended, waker, was_head) = self.change(|queue| queue.leave(key));
        drop_quietly(waker);
        let ended =
            ended.filter(|ended| !seeded!("leaving_leaks_the_ticket") || !matches!(ended, WaitEnd::Admitted(_)));
        let mut panics = PanicCollector::default();
        match ended {
            Some(WaitEnd::Admitted(ticket)) => {
                panics.run(|| self.limiter.cancel(ticket, &ClockReading::new()));
                panics.run(|| self.dispatch());
            }
            Some(WaitEnd::Panicked(panic)) => drop_quietly(panic),
            _ if was_head && !seeded!("leaving_head_dispatches_nothing") => panics.run(|| self.dispatch()),
            _ => {}
        }
        panics.end();
    }

    /// Admits the waiters that can be admitted, from the front; after the dispatch that runs on this thread, if one does. The
    /// first panic of a waker goes on at the end.
    pub(super) fn dispatch(self: &Arc<Self>) {
        notify::call(Arc::clone(self) as Arc<dyn Notified>);
    }

    /// The same for a waiter that is polled: the panics of others are none of its own, and are dropped.
    fn drive(self: &Arc<Self>) {
        quietly(|| self.dispatch());
    }

    fn dispatch_now(self: &Arc<Self>) {
        if !self.change(Queue::begin) {
            return;
        }
        // Panics of users' code are kept until the end: neither the flag nor a claim stays behind.
        let mut panics = PanicCollector::default();
        let emptied = loop {
            match self.change(Queue::next) {
                Next::Inherit(key, claim) if self.is_turn_only(claim) => {
                    self.change(|queue| queue.set_claim(key, Some(claim)));
                    continue;
                }
                Next::Inherit(_, claim) | Next::GiveBack(claim) => {
                    panics.run(|| self.give_back(claim));
                    continue;
                }
                Next::Look(waits) => {
                    self.recheck_parked(&waits, &mut panics);
                    continue;
                }
                Next::Ask(head) if self.serve_head(&head, &mut panics) => continue,
                Next::Ask(_) | Next::Nothing => {}
            }
            let mut first = true;
            while let Some(waits) = self.change(|queue| queue.next_to_revalidate(mem::take(&mut first))) {
                self.revalidate(&waits, &mut panics);
            }
            if let Some(emptied) = self.change(Queue::stop) {
                break emptied;
            }
        };
        if emptied {
            panics.run(|| self.notify.notify_all());
        }
        panics.end();
    }

    /// Ends a wait that cannot end well under the settings in force, as a newcomer at the same place would be refused. A leg
    /// that panics is asked again when the turn comes.
    #[cold]
    fn revalidate(self: &Arc<Self>, waits: &WaiterView, panics: &mut PanicCollector) {
        let now = self.clock.now();
        let check = || {
            let ready = self.ready_behind_head(&waits.ask, now, waits.ahead);
            let refusal = self.refuses(&waits.ask, &ready, now, waits.deadline, None);
            let behind = || Some(Box::new(waits.ahead));
            let ended = refusal.map(|refusal| match refusal.reason() {
                Reason::TimedOut => WaitEnd::Expired(behind()),
                _ => WaitEnd::Refused(behind()),
            });
            (ended, ready.is_raise().then(|| ready.event_by()))
        };
        match catch_unwind(AssertUnwindSafe(check)) {
            Ok((Some(ended), _)) => _ = self.end(waits.key, ended, panics),
            Ok((None, Some(until))) => self.change(|queue| queue.park(waits.key, until)),
            Ok((None, None)) => {}
            Err(panic) => drop_quietly(panic),
        }
    }

    /// Looks whether a parked waiter still waits for larger limits. It holds no place in any leg's queue, and takes none from
    /// the head: it becomes the head only once it fits.
    #[cold]
    fn recheck_parked(self: &Arc<Self>, waits: &WaiterView, panics: &mut PanicCollector) {
        let now = self.clock.now();
        if waits.deadline.is_some_and(|deadline| now > deadline) {
            self.end(waits.key, WaitEnd::Expired(None), panics);
            return;
        }
        let look = || self.ready_for_head(&waits.ask, now, &Cell::new(None));
        match catch_unwind(AssertUnwindSafe(look)) {
            Ok(ready) if ready.is_never() || ready.refuses_at_once(now).is_some() => {
                self.end(waits.key, WaitEnd::Refused(Some(Box::new(waits.ahead))), panics);
            }
            Ok(ready) if ready.is_raise() => self.change(|queue| queue.park(waits.key, ready.event_by())),
            Ok(_) => self.change(|queue| queue.unpark(waits.key)),
            Err(panic) => _ = self.panicked(waits.key, waits.panicked, panic, panics),
        }
    }

    /// Tries to end the wait of the head. True when the next waiter may be served, or the same is to be tried again.
    fn serve_head(self: &Arc<Self>, head: &Head, panics: &mut PanicCollector) -> bool {
        let Head {
            key,
            ask,
            waited,
            deadline,
            claim: held,
            panicked,
        } = *head;
        if deadline.is_some_and(|deadline| self.clock.now() > deadline) {
            return self.end(key, WaitEnd::Expired(None), panics);
        }
        let claim = Cell::new(held);
        let (attempt, turn) = match catch_unwind(AssertUnwindSafe(|| self.attempt(&ask, waited, &claim))) {
            Ok(asked) => asked,
            Err(panic) => (Attempt::Panicked(panic), None),
        };
        // A claim that was not redeemed is kept only while its own leg is the one that refuses.
        let leg = turn.as_ref().map(|turn| QueueId::of_queue(turn.wait_queue));
        let kept = claim.get().filter(|kept| leg == Some(kept.wait_queue()));
        if held.is_some() && kept.is_none() {
            self.change(|queue| queue.set_claim(key, None));
            if let Some(claim) = claim.get() {
                panics.run(|| self.give_back(claim));
            }
        }
        match attempt {
            Attempt::Admitted(ticket) => self.end(key, WaitEnd::Admitted(ticket), panics),
            Attempt::Refused => self.end(key, WaitEnd::Refused(None), panics),
            Attempt::OnRaise(until) => {
                self.change(|queue| queue.park(key, until));
                true
            }
            Attempt::Panicked(panic) => self.panicked(key, panicked, panic, panics),
            Attempt::At(at) if deadline.is_some_and(|deadline| at > deadline) => {
                self.end(key, WaitEnd::Expired(None), panics)
            }
            Attempt::At(_) | Attempt::OnEvent(..) => {
                let (due, ready_since) = match attempt {
                    Attempt::OnEvent(by, ready_since) => (by, ready_since),
                    Attempt::At(at) => (Some(at), None),
                    _ => (None, None),
                };
                let mut behind = false;
                if let (Some(turn), None) = (turn, kept) {
                    // Granted at once or later, the waker makes this queue be dispatched.
                    let waker = Waker::from(Arc::clone(self));
                    match catch_unwind(AssertUnwindSafe(|| turn.join(&ask, &waker))) {
                        Ok(claim) => self.change(|queue| queue.set_claim(key, Some(claim))),
                        Err(panic) => return self.panicked(key, panicked, panic, panics),
                    }
                    behind = turn.behind && !seeded!("head_joins_a_leg_queue_blindly");
                }
                self.change(|queue| queue.set_due(key, due, ready_since));
                // The waiters before it in the leg's queue may have left before it joined.
                behind
            }
        }
    }

    /// Always true: the wait of `key` is over, here or because its owner has gone.
    fn end(self: &Arc<Self>, key: WaiterKey, ended: WaitEnd<L::Ticket>, panics: &mut PanicCollector) -> bool {
        match self.change(|queue| queue.end(key, ended)) {
            Ok(Some(waker)) => panics.wake(waker),
            Ok(None) => {}
            Err(WaitEnd::Admitted(ticket)) => panics.run(|| self.limiter.cancel(ticket, &ClockReading::new())),
            Err(WaitEnd::Panicked(panic)) => drop_quietly(panic),
            Err(_) => {}
        }
        true
    }

    /// A leg has panicked for a waiter. It is asked once more. If it has panicked `before`, the wait ends, and the panic goes
    /// on in the owner's poll. Always true.
    fn panicked(
        self: &Arc<Self>,
        key: WaiterKey,
        before: bool,
        panic: Box<dyn Any + Send>,
        panics: &mut PanicCollector,
    ) -> bool {
        if before {
            return self.end(key, WaitEnd::Panicked(panic), panics);
        }
        drop_quietly(panic);
        self.change(|queue| queue.note_panic(key));
        true
    }

    fn give_back(&self, claim: QueueKey) {
        if let Some(wait_queue) = self.limiter.wait_queue(claim.wait_queue()) {
            wait_queue.leave(claim);
        }
    }

    /// Sets the timer to the instant that the queue asks for now.
    #[cold]
    fn set_timer(self: &Arc<Self>) {
        loop {
            let mut timer = self.timer.lock();
            let Some(at) = self.queue.lock().arm() else {
                if let Some(timer) = &mut *timer {
                    timer.sleep.disarm();
                }
                return;
            };
            let Timer { sleep, waker } = &mut **timer.get_or_insert_with(|| {
                let wakes = Arc::new(TimerWaker(Arc::downgrade(self)));
                Box::new(Timer {
                    sleep: Sleep::of_no_runtime(&self.clock, at),
                    waker: Waker::from(wakes),
                })
            });
            sleep.reset(at);
            if Pin::new(sleep).poll(&mut Context::from_waker(waker)).is_pending()
                || seeded!("queue_timer_sleeps_through_its_instant")
            {
                return;
            }
            drop(timer);
            // The instant has come meanwhile.
            self.fire();
        }
    }

    /// Wakes the waiters whose instant has come.
    fn fire(&self) {
        let now = self.clock.now();
        let wakers = self.queue.lock().fire(now);
        wake_all_quietly(wakers);
    }

    /// The refusal of a wait until `deadline` that cannot end well, by the readiness of the legs: of a newcomer, and of a
    /// waiter after a change of settings. `asked` is the refusal of a leg, if it was asked.
    pub(super) fn refuses<'a>(
        &'a self,
        ask: &Ask,
        ready: &ReadyAt<'a>,
        now: Instant,
        deadline: Option<Instant>,
        asked: Option<Refusal<'a>>,
    ) -> Option<Refusal<'a>> {
        let late = || {
            let due = ready.not_before()?;
            (due > deadline?).then(|| self.failed(Reason::TimedOut, ask, ready.leg(), ready.reason(), Some(due), now))
        };
        let never = ready.never_admits(ask.count());
        never.or_else(|| self.at_once(ask, ready, now, asked)).or_else(late)
    }

    /// The refusal of a wait that failed by `leg`, which is not ready for `cause` before `due`. Without a leg the queue was in
    /// the way.
    fn failed<'a>(
        &'a self,
        reason: Reason,
        ask: &Ask,
        leg: &'a str,
        cause: Reason,
        due: Option<Instant>,
        now: Instant,
    ) -> Refusal<'a> {
        let wait = due.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
        match leg {
            "" => Refusal::new(reason, super::QUEUE, ask.count(), wait),
            leg => Refusal::new(cause, leg, ask.count(), wait).with_reason(reason),
        }
    }

    /// The refusal of a newcomer that finds the queue full.
    pub(super) fn full<'a>(&'a self, ask: &Ask, ready: &ReadyAt<'a>, now: Instant) -> Refusal<'a> {
        let due = ready.not_before().filter(|_| !ready.is_event());
        self.failed(Reason::QueueFull, ask, ready.leg(), ready.reason(), due, now)
    }

    /// The readiness of the legs for a waiter whose wait has ended, at the place at which it was judged.
    fn ready_where(&self, ask: &Ask, ahead: &AskAhead, now: Instant) -> ReadyAt<'_> {
        match ahead {
            Some(ahead) => self.ready_behind_head(ask, now, **ahead),
            None => {
                let reading = ClockReading::at(&self.clock, now);
                self.limiter.ready_at(Demand::new(ask, &reading))
            }
        }
    }

    /// Refuses a waiter that no wait can help, by the refusal of the leg that is the reason. The legs are asked once more, as
    /// for a caller that does not wait: a request that has become admissible meanwhile is admitted, unless others wait before
    /// it.
    pub(super) fn refuse(
        &self,
        ask: &Ask,
        ahead: &AskAhead,
        ticket: &mut Option<L::Ticket>,
    ) -> Result<(), Refusal<'_>> {
        let now = self.clock.now();
        let ready = self.ready_where(ask, ahead, now);
        if let Some(never) = ready.never_admits(ask.count()) {
            return Err(never);
        }
        if ahead.is_some() && self.has_before() {
            let others = Refusal::new(Reason::Saturated, super::QUEUE, ask.count(), Wait::Event);
            return Err(self.at_once(ask, &ready, now, None).unwrap_or(others));
        }
        match admit_in(&self.limiter, ask, ticket) {
            Err(refusal) => Err(self.at_once(ask, &ready, now, Some(refusal)).unwrap_or(refusal)),
            Ok(()) => Ok(()),
        }
    }

    /// The refusal by a leg that is not waited for and not ready, if there is one: `asked`, where it is that leg's.
    fn at_once<'a>(
        &'a self,
        ask: &Ask,
        ready: &ReadyAt<'a>,
        now: Instant,
        asked: Option<Refusal<'a>>,
    ) -> Option<Refusal<'a>> {
        let (reason, leg, at) = ready.refuses_at_once(now)?;
        let wait = at.map_or(Wait::Event, |at| Wait::Until(Due::at(&self.clock, now, at)));
        let made = || Refusal::new(reason, leg, ask.count(), wait);
        Some(asked.filter(|asked| asked.leg() == leg).unwrap_or_else(made))
    }

    /// The refusal of a waiter that was evicted.
    pub(super) fn why_evicted(&self, ask: &Ask) -> Refusal<'_> {
        let now = self.clock.now();
        self.full(ask, &self.ready_where(ask, &None, now), now)
    }

    /// The refusal of a waiter that was not admitted in time.
    pub(super) fn why_late(&self, ask: &Ask, ahead: &AskAhead) -> Refusal<'_> {
        let now = self.clock.now();
        let ready = self.ready_where(ask, ahead, now);
        // An unforeseen event binds more than a known instant; but a judgement went by the instant alone.
        let (leg, cause) = match ahead.is_some() || ready.event_leg().is_empty() {
            true => (ready.leg(), ready.reason()),
            false => (ready.event_leg(), ready.event_reason()),
        };
        self.failed(Reason::TimedOut, ask, leg, cause, ready.not_before(), now)
    }
}

/// The waker of the timer. It asks no limiter: it runs on a thread that all timers share, where a panic has no owner.
struct TimerWaker<L: Limiter>(Weak<PolicyCore<L>>);

impl<L: Limiter + 'static> Wake for TimerWaker<L> {
    fn wake(self: Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            core.fire();
            core.set_timer();
            // This may be the last handle: then the legs are dropped here.
            drop_quietly(core);
        }
    }
}

impl<L: Limiter + 'static> Notified for PolicyCore<L> {
    fn note(&self, anew: bool) {
        self.queue.lock().ring(anew);
    }
    fn notified(self: Arc<Self>) {
        self.dispatch_now();
    }
}

impl<L: Limiter + 'static> Wake for PolicyCore<L> {
    fn wake(self: Arc<Self>) {
        notify::call(self);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.dispatch();
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;

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
