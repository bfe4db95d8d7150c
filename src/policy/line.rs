//! The line in front of a policy, as plain data: who waits, in order, and who has been admitted but not told yet.
//!
//! Everything here happens under the line's lock and runs no foreign code: wakers and tickets that leave the line are
//! returned to the caller, who wakes and drops them outside.

use super::bounds::Manner;
use crate::ask::Ask;
use crate::semaphore::Overflow;
use crate::sync::turn::Claim;
use crate::time::Instant;
use std::collections::BTreeMap;
use std::task::Waker;

/// A place in the line: ordered by arrival, never used twice.
pub(crate) type Key = u64;

/// Somebody who waits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) ask: Ask,
    pub(crate) since: Instant,
    pub(crate) deadline: Option<Instant>,
    /// When its turn comes, as far as is known; `None` when that takes an event.
    pub(crate) due: Option<Instant>,
    /// Since when it lacks nothing but a turn.
    pub(crate) ready_since: Option<Instant>,
    /// The pump has asked the legs for it, and `due` is what they said.
    pub(crate) tried: bool,
    /// What its owner's timer is set to.
    wakes_at: Option<Instant>,
    waker: Option<Waker>,
}

/// How somebody's wait ended, until its owner takes notice.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// Reserved, not committed: the owner commits, or cancels if it has gone.
    Admitted(T),
    /// The deadline passed, or is known to pass, before the turn comes.
    Expired,
    /// No wait can help any more.
    Hopeless,
    /// It had to go for a newcomer.
    Evicted,
}

/// What the owner of a place finds when it looks.
#[derive(Debug)]
pub(crate) enum Found<T> {
    Ended(Ended<T>),
    /// Still waiting; look again at this instant at the latest.
    Waiting(Option<Instant>),
}

/// The line. Invariant: `ended` and `waiting` share no key; a claim belongs to the pump alone.
#[derive(Debug)]
pub(crate) struct Line<T> {
    newest_first: bool,
    waiting: BTreeMap<Key, Entry>,
    ended: BTreeMap<Key, Ended<T>>,
    /// All that waits, summed.
    queued: Ask,
    next: Key,
    /// The place that the head with this key holds in the queue of one leg.
    pub(crate) claim: Option<(Key, Claim)>,
    /// Somebody is pumping.
    pub(crate) pumping: bool,
    /// Something happened while somebody was pumping: it must look once more.
    pub(crate) again: bool,
}

impl<T> Line<T> {
    pub(crate) fn new(newest_first: bool) -> Self {
        Self {
            newest_first,
            waiting: BTreeMap::new(),
            ended: BTreeMap::new(),
            queued: Ask::many(0),
            next: 0,
            claim: None,
            pumping: false,
            again: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What stands in front of whoever joins now, summed.
    pub(crate) fn ahead(&self) -> Ask {
        if self.newest_first { Ask::many(0) } else { self.queued }
    }

    /// Makes room for another who waits, if it may be made. Returns the wakers of those who had to go for it.
    pub(crate) fn make_room(&mut self, ask: &Ask, most: usize, manner: &Manner) -> Option<Vec<Waker>> {
        let mut wakers = Vec::new();
        let left = |queued: u64| manner.max_units.saturating_sub(queued);
        let evicts = manner.overflow == Overflow::EvictOldest && most > 0 && ask.count() <= manner.max_units;
        while self.len() >= most || ask.count() > left(self.queued.count()) {
            // Nobody goes for one that could not wait even alone.
            let (&oldest, _) = self.waiting.first_key_value().filter(|_| evicts)?;
            wakers.extend(self.end(oldest, Ended::Evicted).ok().flatten());
        }
        Some(wakers)
    }

    /// Joins as the newest.
    pub(crate) fn push(&mut self, ask: Ask, since: Instant, deadline: Option<Instant>, due: Option<Instant>) -> Key {
        let key = self.next;
        self.next += 1;
        self.queued.absorb(&ask);
        self.waiting.insert(
            key,
            Entry {
                ask,
                since,
                deadline,
                due,
                ready_since: None,
                tried: false,
                wakes_at: None,
                waker: None,
            },
        );
        key
    }

    /// The first in line.
    pub(crate) fn head(&self) -> Option<(Key, &Entry)> {
        let first = match self.newest_first {
            true => self.waiting.last_key_value(),
            false => self.waiting.first_key_value(),
        };
        first.map(|(&key, entry)| (key, entry))
    }

    /// Ends the wait of `key`, whose owner must be woken; hands the ending back when nobody waits there any more.
    pub(crate) fn end(&mut self, key: Key, ended: Ended<T>) -> Result<Option<Waker>, Ended<T>> {
        match self.waiting.remove(&key) {
            Some(entry) => {
                self.queued.release(&entry.ask);
                self.ended.insert(key, ended);
                Ok(entry.waker)
            }
            None => Err(ended),
        }
    }

    /// Learns when the turn of `key` comes. Returns its waker when its owner has set its timer too late.
    pub(crate) fn set_due(&mut self, key: Key, due: Option<Instant>, ready_since: Option<Instant>) -> Option<Waker> {
        let entry = self.waiting.get_mut(&key)?;
        entry.due = due;
        entry.ready_since = ready_since;
        entry.tried = true;
        let due = due?;
        match entry.wakes_at {
            Some(set) if set <= due => None,
            _ => entry.waker.take(),
        }
    }

    /// The waker of `key`, if it still waits: its timer has fired, and it must set a new one.
    pub(crate) fn take_waker(&mut self, key: Key) -> Option<Waker> {
        let entry = self.waiting.get_mut(&key)?;
        entry.wakes_at = None;
        entry.waker.take()
    }

    /// The owner of `key` looks at `now`, after the line was pumped. `waker` is taken if it must go on waiting, and stays
    /// with the caller otherwise; the one that was there before is handed back. Both are dropped outside the lock.
    pub(crate) fn look(&mut self, key: Key, now: Instant, waker: &mut Option<Waker>) -> (Found<T>, Option<Waker>) {
        if let Some(ended) = self.ended.remove(&key) {
            return (Found::Ended(ended), None);
        }
        let head_due = self.head().and_then(|(_, head)| head.due);
        let Some(entry) = self.waiting.get_mut(&key) else {
            unreachable!("a place leaves the line only when its owner looks or goes");
        };
        if entry.deadline.is_some_and(|deadline| deadline <= now) {
            let (_, old, _) = self.leave(key);
            return (Found::Ended(Ended::Expired), old);
        }
        // An estimate that has passed says nothing any more: from then on the head's turn comes first.
        let due = [entry.due, head_due].into_iter().flatten().find(|&due| due > now);
        entry.wakes_at = match (due, entry.deadline) {
            (Some(due), Some(deadline)) => Some(due.min(deadline)),
            (due, deadline) => due.or(deadline),
        };
        (
            Found::Waiting(entry.wakes_at),
            std::mem::replace(&mut entry.waker, waker.take()),
        )
    }

    /// The owner of `key` goes. Returns what it had been given, its waker, and whether it was first in line.
    pub(crate) fn leave(&mut self, key: Key) -> (Option<Ended<T>>, Option<Waker>, bool) {
        let was_head = self.head().is_some_and(|(head, _)| head == key);
        match self.waiting.remove(&key) {
            Some(entry) => {
                self.queued.release(&entry.ask);
                (None, entry.waker, was_head)
            }
            None => (self.ended.remove(&key), None, false),
        }
    }
}
