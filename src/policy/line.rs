//! The queue of a policy, as plain data: the waiters in order, those that have been admitted but not told yet, and what
//! the timer is to do.
//!
//! Everything here happens under the queue's lock, is a pure transition, and runs no users' code: wakers, tickets and
//! claims that leave the queue are returned to the caller, which wakes, drops and gives back outside.

use super::bounds::Manner;
use crate::core::ask::Ask;
use crate::semaphore::Overflow;
use crate::sync::wait_queue::QueueKey;
use crate::time::Instant;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Bound;
use std::task::Waker;

/// A place in the queue: ordered by arrival, never used twice.
pub(crate) type Key = u64;

/// A waiter.
#[derive(Debug)]
struct Entry {
    ask: Ask,
    since: Instant,
    deadline: Option<Instant>,
    /// When its turn comes, as far as is known; `None` when that takes an event.
    due: Option<Instant>,
    /// Since when it lacks nothing but a turn.
    ready_since: Option<Instant>,
    /// The legs have been asked for it, and `due` is what they said.
    tried: bool,
    /// A leg has panicked when it was asked for it.
    panicked: bool,
    waker: Option<Waker>,
}

/// How a wait ended, until its owner takes notice.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// Reserved, not committed: the owner commits, or cancels if it has gone.
    Admitted(T),
    /// The deadline passed, or is known to pass, before the turn comes.
    Expired(Behind),
    /// No wait can help any more.
    Hopeless(Behind),
    /// Evicted for a newer one.
    Evicted,
    /// A leg panicked each time it was asked.
    Panicked(Box<dyn Any + Send>),
}

/// What stood before a waiter that was judged at its place, summed; `None` for the head, and where the deadline has passed.
pub(crate) type Behind = Option<Box<Ask>>;

/// What the owner of a place finds when it looks.
#[derive(Debug)]
pub(crate) enum Found<T> {
    Ended(Ended<T>),
    /// Still waiting, and a waker that wakes the owner is there.
    Waiting,
    /// Still waiting, and a clone of the owner's waker is wanted.
    Unheard,
}

/// What is known of when a waiter could have been admitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waited {
    /// It came then, and the legs have not been asked for it since.
    Since(Instant),
    /// The legs have been asked: not before this instant, or not before some event.
    Due(Option<Instant>),
}

/// The first in the queue, for which the legs are to be asked.
pub(super) struct Head {
    pub(super) key: Key,
    pub(super) ask: Ask,
    pub(super) waited: Waited,
    pub(super) deadline: Option<Instant>,
    /// The place that it holds in the queue of one leg.
    pub(super) claim: Option<QueueKey>,
    /// A leg has panicked for it before.
    pub(super) panicked: bool,
}

/// A waiter that is not the head, for which the legs are only looked at.
pub(super) struct Waits {
    pub(super) key: Key,
    pub(super) ask: Ask,
    /// All that waits in front of it, summed.
    pub(super) ahead: Ask,
    pub(super) deadline: Option<Instant>,
    /// A leg has panicked for it before.
    pub(super) panicked: bool,
}

impl Waits {
    fn new(key: Key, entry: &Entry, ahead: Ask) -> Self {
        Self {
            key,
            ask: entry.ask,
            ahead,
            deadline: entry.deadline,
            panicked: entry.panicked,
        }
    }
}

/// What the dispatcher has to do next.
pub(super) enum Next {
    /// Give this claim back: its owner is not the head any more, and there is no other.
    GiveBack(QueueKey),
    /// The claim of one that is not the head any more: the head may have it, where it is the turn of the queue and not a
    /// place of its own.
    Inherit(Key, QueueKey),
    /// A `Notify` has fired: look whether this one, which waits for larger limits, still does.
    Look(Waits),
    /// Ask the legs for this waiter.
    Ask(Head),
    /// The queue is empty.
    Nothing,
}

/// The timer has woken waiters since the head's instant came, and the queue has not been driven since.
#[derive(Clone, Copy, Debug)]
struct Nudged {
    /// How many have been woken.
    woken: usize,
    /// When more are woken.
    again: Instant,
}

/// How far the waiters behind the head have been judged after a change of settings.
#[derive(Clone, Copy, Debug)]
struct Judging {
    /// The last of them so far.
    last: Key,
    /// All that waits in order up to that one, summed.
    ahead: Ask,
}

/// The queue.
///
/// Invariants: `ended` and `waiting` share no key. `heard` counts the waiters that have a waker, and `deadlines` holds their
/// deadlines: so the timer fires only where there is something to wake. A claim belongs to the dispatcher alone.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    newest_first: bool,
    /// Those that are served in order.
    waiting: BTreeMap<Key, Entry>,
    /// Those that wait for larger limits: passed over, and not counted as ahead of others, until a leg's `Notify` fires.
    parked: BTreeMap<Key, Entry>,
    ended: BTreeMap<Key, Ended<T>>,
    heard: usize,
    deadlines: BTreeSet<(Instant, Key)>,
    /// All that waits in order, summed.
    queued: Ask,
    /// How many units wait in all.
    units: u128,
    /// When those that wait for larger limits are asked for again, notified or not, as far as that is known.
    parked_until: BTreeSet<(Instant, Key)>,
    /// A leg's `Notify` has fired since the last look at those that wait for larger limits began.
    rung: bool,
    /// That look is under way, and goes on here.
    looking: Option<Key>,
    /// The settings have changed since all were last begun to be judged.
    changed: bool,
    judging: Option<Judging>,
    /// How often they have.
    changes: u64,
    next: Key,
    /// The place that the head with this key holds in the queue of one leg.
    claim: Option<(Key, QueueKey)>,
    /// Some thread dispatches.
    dispatching: bool,
    /// Something has happened since the dispatcher last looked: it must look once more.
    again: bool,
    /// There was a waiter since the queue was last found empty.
    busy: bool,
    /// What the timer is set to.
    armed: Option<Instant>,
    nudged: Option<Nudged>,
    timing: Timing,
}

/// How the timer is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// How long it waits, in ticks, for a waiter that it has woken to drive the queue.
    pub(super) grace: u64,
    /// It never fires in vain: virtual time stops at each timer. Else one that would is left as it is, and sets itself anew.
    pub(super) exact: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(newest_first: bool, timing: Timing) -> Self {
        Self {
            newest_first,
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            ended: BTreeMap::new(),
            heard: 0,
            deadlines: BTreeSet::new(),
            queued: Ask::many(0),
            units: 0,
            parked_until: BTreeSet::new(),
            rung: false,
            looking: None,
            changed: false,
            judging: None,
            changes: 0,
            next: 0,
            claim: None,
            dispatching: false,
            again: false,
            busy: false,
            armed: None,
            nudged: None,
            timing,
        }
    }

    /// How many wait in order.
    pub(super) fn in_order(&self) -> usize {
        self.waiting.len()
    }

    /// How many wait for larger limits.
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.parked.is_empty()
    }

    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        self.waiting.get_mut(&key).or_else(|| self.parked.get_mut(&key))
    }

    /// What stands in front of a waiter that joins now, summed.
    pub(crate) fn ahead(&self) -> Ask {
        if self.newest_first { Ask::many(0) } else { self.queued }
    }

    fn head(&self) -> Option<(Key, &Entry)> {
        let first = match self.newest_first {
            true => self.waiting.last_key_value(),
            false => self.waiting.first_key_value(),
        };
        first.map(|(&key, entry)| (key, entry))
    }

    /// Takes a waiter out. Returns its waker, if it was there and has one.
    fn remove(&mut self, key: Key) -> Option<Option<Waker>> {
        let waker = self.take_waker(key);
        let entry = match self.waiting.remove(&key) {
            Some(entry) => {
                self.uncount(key, &entry.ask);
                entry
            }
            None => self.take_parked(key)?,
        };
        self.units -= u128::from(entry.ask.count());
        Some(waker)
    }

    fn take_parked(&mut self, key: Key) -> Option<Entry> {
        let entry = self.parked.remove(&key)?;
        if let Some(until) = entry.due {
            self.parked_until.remove(&(until, key));
        }
        Some(entry)
    }

    /// The sum of what has been judged, where `key` stands among that.
    fn judged(&mut self, key: Key) -> Option<&mut Ask> {
        let newest_first = self.newest_first;
        let within = |judging: &&mut Judging| match newest_first {
            true => key >= judging.last,
            false => key <= judging.last,
        };
        self.judging.as_mut().filter(within).map(|judging| &mut judging.ahead)
    }

    /// `key` waits in order from now on.
    fn count(&mut self, key: Key, ask: &Ask) {
        self.queued.absorb(ask);
        if let Some(ahead) = self.judged(key) {
            ahead.absorb(ask);
        }
    }

    /// `key` does not wait in order any more.
    fn uncount(&mut self, key: Key, ask: &Ask) {
        self.queued.release(ask);
        if let Some(ahead) = self.judged(key) {
            ahead.release(ask);
        }
    }

    /// Takes the waker of a waiter, if it has one.
    fn take_waker(&mut self, key: Key) -> Option<Waker> {
        let entry = self.entry(key)?;
        let (waker, deadline) = (entry.waker.take()?, entry.deadline);
        self.heard -= 1;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, key));
        }
        Some(waker)
    }
}

/// Joining and leaving.
impl<T> Queue<T> {
    /// Makes room for another waiter, if it may be made. Returns the wakers of those that were evicted for it.
    pub(crate) fn make_room(&mut self, ask: &Ask, most: usize, manner: &Manner) -> Option<Vec<Waker>> {
        let mut wakers = Vec::new();
        let fits = |units: u128| units + u128::from(ask.count()) <= u128::from(manner.max_units);
        let evicts = manner.overflow == Overflow::EvictOldest && most > 0 && ask.count() <= manner.max_units;
        while self.waiting.len() + self.parked.len() >= most || !fits(self.units) {
            // None is evicted for one that could not wait even alone.
            let oldest = [&self.waiting, &self.parked]
                .into_iter()
                .filter_map(|map| map.keys().next());
            let &oldest = oldest.min().filter(|_| evicts)?;
            wakers.extend(self.end(oldest, Ended::Evicted).ok().flatten());
        }
        Some(wakers)
    }

    /// Joins as the newest, `due` by what the legs said when the settings had changed `changes` times. One that takes a `raise` of the
    /// limits is passed over from the beginning, and looked at next, so that it hears of the raise.
    pub(crate) fn push(
        &mut self,
        ask: Ask,
        since: Instant,
        deadline: Option<Instant>,
        (due, raise, changes): (Option<Instant>, bool, u64),
    ) -> Key {
        self.changed |= changes != self.changes && !seeded!("line_joins_by_old_settings");
        let key = self.next;
        self.next += 1;
        self.units += u128::from(ask.count());
        let entry = Entry {
            ask,
            since,
            deadline,
            due,
            ready_since: None,
            tried: false,
            panicked: false,
            waker: None,
        };
        if raise && !seeded!("line_queues_before_a_raise") {
            self.rung = true;
            self.parked.insert(key, entry);
        } else {
            self.busy = true;
            self.count(key, &ask);
            self.waiting.insert(key, entry);
        }
        key
    }

    /// The owner of `key` looks at `now`, after the queue was driven. Where `waker` is there it is kept if the wait goes
    /// on, and the one that was there before takes its place; the caller drops what is there in the end, outside the lock.
    pub(crate) fn look(&mut self, key: Key, now: Instant, owner: &Waker, waker: &mut Option<Waker>) -> Found<T> {
        if let Some(ended) = self.ended.remove(&key) {
            return Found::Ended(ended);
        }
        let entry = self.waiting.get_mut(&key).or_else(|| self.parked.get_mut(&key));
        let Some(entry) = entry else {
            unreachable!("a place leaves the queue only when its owner looks or goes");
        };
        if entry.deadline.is_some_and(|deadline| deadline <= now) {
            *waker = self.remove(key).flatten();
            return Found::Ended(Ended::Expired(None));
        }
        if waker.is_some() {
            mem::swap(&mut entry.waker, waker);
            if waker.is_none() {
                self.heard += 1;
                self.deadlines.extend(entry.deadline.map(|deadline| (deadline, key)));
            }
        } else if !entry.waker.as_ref().is_some_and(|known| known.will_wake(owner)) {
            return Found::Unheard;
        }
        Found::Waiting
    }

    /// The owner of `key` goes. Returns what it had been given, its waker, and whether it was the head.
    pub(crate) fn leave(&mut self, key: Key) -> (Option<Ended<T>>, Option<Waker>, bool) {
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
        if self.dispatching && !seeded!("line_forgets_again") {
            self.again = true;
        }
        !mem::replace(&mut self.dispatching, true)
    }

    /// A leg's `Notify` has fired: those that wait for larger limits are looked at again. After a change of settings all are judged
    /// anew.
    pub(super) fn ring(&mut self, anew: bool) {
        self.rung = true;
        self.changed |= anew;
        self.changes += u64::from(anew);
    }

    /// How often the settings have changed: a newcomer learns it before it looks at them.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// What comes next, as of now.
    ///
    /// A ring during a look at those that wait for larger limits begins another one only after the head: it is not kept
    /// waiting, however often legs notify.
    pub(super) fn next(&mut self) -> Next {
        self.again = false;
        self.nudged = None;
        if self.looking.is_none() && mem::take(&mut self.rung) {
            self.looking = Some(0);
        }
        if let Some(from) = self.looking.take()
            && let Some((&key, entry)) = self.parked.range(from..).next()
        {
            self.looking = Some(key + 1);
            return Next::Look(Waits::new(key, entry, Ask::many(0)));
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

    /// The next behind the head that is to be judged after a change of settings; `None` when all have been, or the head comes
    /// first: something has happened, and one has been judged since the head was asked, which is not the `first`.
    ///
    /// A change while they are judged has all judged once more, but those that are left come first.
    pub(super) fn unjudged(&mut self, first: bool) -> Option<Waits> {
        if self.again && !first {
            return None;
        }
        loop {
            let Judging { last, mut ahead } = match self.judging {
                Some(judging) => judging,
                None if mem::take(&mut self.changed) => {
                    // The head has just been asked, or is about to be.
                    let (last, entry) = self.head()?;
                    Judging { last, ahead: entry.ask }
                }
                None => return None,
            };
            let next = match self.newest_first {
                true => self.waiting.range(..last).next_back(),
                false => self.waiting.range((Bound::Excluded(last), Bound::Unbounded)).next(),
            };
            let Some((&last, entry)) = next else {
                self.judging = None;
                continue;
            };
            let next = Waits::new(last, entry, ahead);
            ahead.absorb(&next.ask);
            self.judging = Some(Judging { last, ahead });
            return Some(next);
        }
    }

    /// Stops dispatching, unless something has happened since the last look. Returns whether the queue has emptied.
    pub(super) fn stop(&mut self) -> Option<bool> {
        // A ring that has not been answered may be that of one that panicked when it was looked at.
        if self.again || (self.rung && !seeded!("line_stops_before_a_ring")) {
            return None;
        }
        self.dispatching = false;
        self.nudged = None;
        Some(self.waiting.is_empty() && mem::take(&mut self.busy))
    }

    /// What the head, or the one that was last, holds in the queue of one leg; and which of them.
    pub(super) fn claim(&self) -> Option<(Key, QueueKey)> {
        self.claim
    }

    /// What the head `key` holds in the queue of one leg from now on.
    pub(super) fn set_claim(&mut self, key: Key, claim: Option<QueueKey>) {
        self.claim = claim.map(|claim| (key, claim));
    }

    /// Learns when the turn of `key` comes.
    pub(super) fn set_due(&mut self, key: Key, due: Option<Instant>, ready_since: Option<Instant>) {
        if let Some(entry) = self.waiting.get_mut(&key) {
            (entry.due, entry.ready_since, entry.tried) = (due, ready_since, true);
        }
    }

    /// Passes `key` over, or still does, which waits for larger limits: until a `Notify` fires, or `until`.
    pub(super) fn park(&mut self, key: Key, until: Option<Instant>) {
        if seeded!("line_parks_over_a_ring") {
            self.rung = false;
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

    /// The limits are large enough for `key`: it waits in order from now on.
    pub(super) fn unpark(&mut self, key: Key) {
        if let Some(entry) = self.take_parked(key) {
            self.busy = true;
            self.count(key, &entry.ask);
            self.waiting.insert(key, entry);
        }
    }

    /// A leg has panicked when it was asked for `key`.
    pub(super) fn note_panic(&mut self, key: Key) {
        if let Some(entry) = self.entry(key) {
            entry.panicked = true;
        }
        // One that is passed over is looked at once more.
        self.rung |= self.parked.contains_key(&key);
    }

    /// Ends the wait of `key`, whose owner must be woken; hands the ending back when that has gone.
    pub(super) fn end(&mut self, key: Key, ended: Ended<T>) -> Result<Option<Waker>, Ended<T>> {
        match self.remove(key) {
            Some(waker) => {
                self.ended.insert(key, ended);
                Ok(waker)
            }
            None => Err(ended),
        }
    }
}

/// The timer: one for the queue, set to the instant of its head, to the first at which a parked waiter is asked for again, and to
/// the first deadline. It only wakes.
impl<T> Queue<T> {
    /// When the head has to be looked at, as far as that is known.
    fn head_at(&self) -> Option<Instant> {
        let (_, head) = self.head()?;
        [head.due, head.deadline].into_iter().flatten().min()
    }

    /// When there is something to wake. While the queue is being dispatched, its head's instant is being found out.
    fn alarm_at(&self) -> Option<Instant> {
        let head = match self.nudged {
            _ if self.dispatching || self.heard == 0 => None,
            Some(nudged) => Some(nudged.again),
            None => self.head_at(),
        };
        let first = |instants: &BTreeSet<(Instant, Key)>| instants.first().map(|&(at, _)| at);
        let parked = first(&self.parked_until).filter(|_| !self.dispatching);
        head.into_iter().chain(parked).chain(first(&self.deadlines)).min()
    }

    /// True when the timer is to be set anew.
    pub(super) fn is_mistimed(&self) -> bool {
        match (self.alarm_at(), self.armed) {
            (Some(at), Some(armed)) if at >= armed => at > armed && self.timing.exact && !self.dispatching,
            (Some(_), _) => true,
            (None, None) => false,
            (None, Some(_)) => self.is_empty() || (self.timing.exact && !self.dispatching),
        }
    }

    /// What the timer is to be set to: the caller sets it.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        self.armed = self.alarm_at();
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
        let (due, told) = match self.nudged {
            None => (self.head_at(), 0),
            Some(nudged) => (Some(nudged.again), nudged.woken),
        };
        if due.is_some_and(|due| due <= now) {
            let heard = |(&key, entry): (&Key, &Entry)| entry.waker.is_some().then_some(key);
            let most = told.max(1);
            let keys: Vec<Key> = match self.newest_first {
                true => self.waiting.iter().rev().filter_map(heard).take(most).collect(),
                false => self.waiting.iter().filter_map(heard).take(most).collect(),
            };
            wakers.extend(keys.into_iter().filter_map(|key| self.take_waker(key)));
            self.nudged = Some(Nudged {
                woken: told + wakers.len(),
                again: now.after_ticks(self.timing.grace),
            });
        }
        while let Some(&(at, key)) = self.parked_until.first()
            && at <= now
        {
            self.parked_until.pop_first();
            self.rung = true;
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

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;

    /// Given waiters that join, leave, are passed over and come back while others are judged, then each is judged behind the sum of
    /// those before it, in either order; and all but the head are judged after a change of settings.
    #[test]
    fn each_waiter_is_judged_behind_the_sum_of_those_before_it() {
        for newest_first in [false, true] {
            let timing = Timing { grace: 1, exact: true };
            let mut queue: Queue<()> = Queue::new(newest_first, timing);
            let (mut waiting, mut parked) = (BTreeMap::<Key, u64>::new(), BTreeSet::<Key>::new());
            let (mut draw, mut judged) = (1_u64, 0);
            for _ in 0..20_000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (action, units) = (draw >> 60, draw >> 40 & 7);
                let nth = |keys: Vec<Key>| keys.get((draw >> 33) as usize % 9).copied();
                match action {
                    0..4 if waiting.len() + parked.len() < 9 => {
                        let known = (None, false, queue.changes());
                        let key = queue.push(Ask::many(units), Instant::ZERO, None, known);
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
                        let Some(waits) = queue.unjudged(true) else { continue };
                        let is_before = |key: Key| match newest_first {
                            true => key > waits.key,
                            false => key < waits.key,
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
            while queue.unjudged(true).is_some() {}
            queue.ring(true);
            let mut all = 0;
            while queue.unjudged(true).is_some() {
                all += 1;
            }
            let in_order = waiting.keys().filter(|key| !parked.contains(key)).count();
            assert_eq!(all, in_order.saturating_sub(1));
        }
    }
}
