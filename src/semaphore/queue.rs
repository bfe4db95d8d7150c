//! A queue of waiters as plain data: a slab whose entries are linked by index, so that joining, leaving and granting take
//! constant time and a waiter costs 40 bytes. Beside it, the watchers of the same semaphore.
//!
//! In order of arrival, *one* number says of every waiter whether it has been granted: that of the last that was. So the grant
//! itself gives the entry up, and its owner looks without the lock. An entry can also be kept until its owner has looked.
//!
//! It runs no foreign code: wakers are handed in and out, and the caller clones, wakes and drops them outside its lock.

use super::counters::Counters;
use super::scheduling::{Eviction, Order, Scheduler};
pub(crate) use super::slab::{Key, Spare, State};
use super::slab::{NONE, Slab};
use std::collections::VecDeque;
use std::task::Waker;

/// A list of entries.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE };

    /// Puts `index` at the end. Its entry has the old tail as `prev` already.
    #[inline]
    fn push_back(&mut self, slab: &mut Slab, index: u32) {
        match self.tail {
            NONE => self.head = index,
            tail => slab.at(tail).next = index,
        }
        self.tail = index;
    }

    fn push_front(&mut self, slab: &mut Slab, index: u32) {
        slab.at(index).next = self.head;
        match self.head {
            NONE => self.tail = index,
            head => slab.at(head).prev = index,
        }
        self.head = index;
    }

    /// Takes out `index`, which is between `prev` and `next`. The first has no valid `prev`.
    #[inline(always)]
    fn unlink(&mut self, slab: &mut Slab, index: u32, prev: u32, next: u32) {
        let first = self.head == index;
        if first {
            self.head = next;
        } else {
            slab.at(prev).next = next;
        }
        if self.tail != index {
            slab.at(next).prev = prev;
        } else {
            self.tail = if first { NONE } else { prev };
        }
    }
}

/// A waiter that was granted.
pub(crate) struct Granted {
    pub(crate) number: u64,
    pub(crate) need: u64,
    pub(crate) waker: Option<Waker>,
}

/// A waiter that left.
pub(crate) struct Left {
    pub(crate) was_head: bool,
    pub(crate) waker: Option<Waker>,
}

/// The order and the bounds of a queue that is not plainly first come, first served and unbounded. It keeps all entries until
/// their owners look.
#[derive(Debug)]
struct Scheduling {
    scheduler: Scheduler,
    /// By class. The queue's own list is not used.
    lists: Vec<List>,
    last_first: bool,
    /// The passive waiters of a queue that serves the newest first, in order of arrival. See [`head`](Queue::head).
    passive: VecDeque<u32>,
    max_queue: usize,
    max_queue_permits: u64,
    eviction: Eviction,
    /// The permits that all waiters want together.
    wanted: u128,
}

/// The queue. Invariant: its lists hold exactly the entries that wait, in order of arrival. There is one list, unless there are
/// classes.
#[derive(Debug)]
pub(crate) struct Queue {
    slab: Slab,
    list: List,
    waiting: usize,
    pub(crate) closed: bool,
    /// True when callers are sent to the lock even without waiters: it is closed, has watchers, or counts.
    keeps_flag: bool,
    /// How often the head has been overtaken, where that is allowed.
    pub(crate) overtaken: u32,
    /// Those that do not wait for permits, but for a state of them.
    watchers: Watchers,
    /// Counters, if it was built to count.
    pub(crate) counters: Counters,
    scheduling: Option<Box<Scheduling>>,
}

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            slab: Slab::new(),
            list: List::EMPTY,
            waiting: 0,
            closed: false,
            keeps_flag: false,
            overtaken: 0,
            watchers: Watchers::new(),
            counters: Counters::NONE,
            scheduling: None,
        }
    }

    /// A queue with an order and bounds: at most `max_queue` waiters, which want at most `max_queue_permits` permits together.
    pub(crate) fn scheduled(
        order: Order,
        max_queue: usize,
        max_queue_permits: u64,
        eviction: Eviction,
        counters: Counters,
    ) -> Self {
        let scheduling = Scheduling {
            lists: vec![List::EMPTY; order.classes()],
            last_first: order == Order::Lifo,
            passive: VecDeque::new(),
            scheduler: Scheduler::new(order),
            max_queue,
            max_queue_permits,
            eviction,
            wanted: 0,
        };
        Self {
            scheduling: Some(Box::new(scheduling)),
            keeps_flag: counters.is_on(),
            counters,
            ..Self::new()
        }
    }

    /// True when it has an order or bounds: then all entries are kept, and numbers say nothing about grants.
    #[inline]
    pub(crate) fn is_scheduled(&self) -> bool {
        self.scheduling.is_some()
    }

    /// True without waiters.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// True when callers need not be sent to the lock: it has no waiters and no watchers, does not count, and is open.
    #[inline]
    pub(crate) fn wants_no_flag(&self) -> bool {
        self.is_empty() && !self.keeps_flag
    }

    /// True when callers are sent to the lock even without waiters.
    #[inline]
    pub(crate) fn keeps_flag(&self) -> bool {
        self.keeps_flag
    }

    /// True when it has watchers.
    pub(crate) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Adds a watcher, or leaves another waker for the one with this number. Returns its number, and the waker that was there.
    pub(crate) fn watch(&mut self, number: Option<u64>, condition: Condition, waker: Waker) -> (u64, Option<Waker>) {
        self.keeps_flag = true;
        self.watchers.watch(number, condition, waker)
    }

    /// True until the watcher with this number has been taken out.
    pub(crate) fn is_watching(&self, number: u64) -> bool {
        self.watchers.has(number)
    }

    /// Removes the watcher with this number.
    pub(crate) fn stop_watching(&mut self, number: u64) -> Option<Waker> {
        let waker = self.watchers.leave(number);
        self.review_flag();
        waker
    }

    /// Takes out the watchers whose condition holds.
    pub(crate) fn take_ready(&mut self, state: PermitState) -> Vec<Waker> {
        let ready = self.watchers.take_ready(state);
        self.review_flag();
        ready
    }

    fn review_flag(&mut self) {
        self.keeps_flag = self.closed || self.is_watched() || self.counters.is_on();
    }

    /// The number of waiters.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Joins at the end of a queue without order and bounds, with an entry that is given up when it is granted.
    #[inline(always)]
    pub(crate) fn push(&mut self, need: u64, waker: Waker) -> Key {
        self.push_in(State::Waiting, need, waker)
    }

    #[inline(always)]
    fn push_in(&mut self, state: State, need: u64, waker: Waker) -> Key {
        let key = self.slab.take(Some(waker), need, self.list.tail, 0, state);
        self.list.push_back(&mut self.slab, key.index());
        self.waiting += 1;
        key
    }

    /// Joins as a passive waiter, whatever the bounds: its entry is kept, and it is handed its permits.
    pub(crate) fn push_passive(&mut self, need: u64, class: u8, waker: Waker) -> Key {
        let key = self.put_in_class(State::WaitingPassive, need, class, waker);
        if let Some(scheduling) = &mut self.scheduling {
            if scheduling.last_first {
                scheduling.passive.push_back(key.index());
            }
        }
        key
    }

    /// Counts the newcomer at `key`, which stays.
    pub(crate) fn note_joined(&mut self, key: Key) {
        self.counters.joined(key.index(), self.waiting);
    }

    /// Joins a queue with an order or bounds, whatever the bounds. A class beyond the last counts as the last.
    #[cold]
    pub(crate) fn push_scheduled(&mut self, need: u64, class: u8, waker: Waker) -> Key {
        self.put_in_class(State::WaitingKept, need, class, waker)
    }

    /// Takes out `key`, which is next and takes its permits by itself; its class has been granted them. Returns its waker.
    pub(crate) fn take_next(&mut self, key: Key) -> Option<Waker> {
        let waker = self.unlink_and(key.index(), Scheduler::grant);
        self.slab.give_up(key.index());
        waker
    }

    /// Applies the bounds to the newcomer at `key`: evicts others for it, and returns the waker of each that was not woken
    /// already. If the newcomer is refused, returns its own. None is evicted in vain.
    pub(crate) fn keep_bounds(&mut self, key: Key) -> Result<Vec<Option<Waker>>, Option<Waker>> {
        let Some(leaving) = self.find_evicted(key) else {
            self.counters.queue_full();
            return Err(self.take_out(key.index()));
        };
        let mut evicted = Vec::new();
        for index in leaving {
            self.counters.evicted();
            evicted.push(self.unlink(index));
            self.slab.at(index).set_state(State::Evicted);
        }
        self.note_joined(key);
        Ok(evicted)
    }

    /// The waiters to evict for the newcomer at `key`, so that the bounds hold: the oldest, of the last class first. Never a
    /// passive one. None when that does not suffice, when newcomers evict none, or when the newcomer could not wait even alone.
    /// In an order by priority, a newcomer evicts none of an earlier class.
    fn find_evicted(&mut self, key: Key) -> Option<Vec<u32>> {
        let scheduling = self.scheduling.as_ref()?;
        let mut leaving = Vec::new();
        let (mut waiting, mut wanted) = (self.waiting, scheduling.wanted);
        let suffices = |waiting: usize, wanted: u128| {
            waiting <= scheduling.max_queue && wanted <= u128::from(scheduling.max_queue_permits)
        };
        if suffices(waiting, wanted) {
            return Some(leaving);
        }
        let (need, class) = (self.slab.of(key)?.need, self.slab.of(key)?.class());
        if scheduling.eviction != Eviction::Oldest || need > scheduling.max_queue_permits {
            return None;
        }
        let first = if scheduling.scheduler.ranks() { class } else { 0 };
        for class in (first..scheduling.lists.len()).rev() {
            let List { head, tail } = scheduling.lists[class];
            let (mut index, last) = if scheduling.last_first {
                (tail, head)
            } else {
                (head, tail)
            };
            while index != NONE {
                let entry = self.slab.at(index);
                if entry.state() == State::WaitingKept && index != key.index() {
                    leaving.push(index);
                    waiting -= 1;
                    wanted -= u128::from(entry.need);
                    if suffices(waiting, wanted) {
                        return Some(leaving);
                    }
                }
                let next = if scheduling.last_first { entry.prev } else { entry.next };
                index = if index == last { NONE } else { next };
            }
        }
        None
    }

    /// Takes the entry at `index` out of its list. Returns its waker.
    fn unlink(&mut self, index: u32) -> Option<Waker> {
        self.unlink_and(index, |scheduler, class, _| scheduler.leave(class))
    }

    /// Takes the entry at `index` out of its list, and tells the scheduler its class and its permits. Returns its waker.
    fn unlink_and(&mut self, index: u32, tell: impl FnOnce(&mut Scheduler, usize, u64)) -> Option<Waker> {
        if self.head() == index {
            // The next has not been overtaken.
            self.overtaken = 0;
        }
        let entry = self.slab.at(index);
        let (waker, prev, next) = (entry.waker.take(), entry.prev, entry.next);
        let (need, class) = (entry.need, entry.class());
        if let Some(scheduling) = &mut self.scheduling {
            tell(&mut scheduling.scheduler, class, need);
            scheduling.wanted -= u128::from(need);
            scheduling.passive.retain(|&passive| passive != index);
            scheduling.lists[class].unlink(&mut self.slab, index, prev, next);
        } else {
            self.list.unlink(&mut self.slab, index, prev, next);
        }
        self.waiting -= 1;
        waker
    }

    /// Evicts the passive waiters that want more than `limit`. Returns the waker of each that was not woken already.
    #[cold]
    pub(crate) fn evict_passive_above(&mut self, limit: u64) -> Vec<Option<Waker>> {
        let mut evicted = Vec::new();
        for class in 0..self.scheduling.as_ref().map_or(1, |scheduling| scheduling.lists.len()) {
            let list = self
                .scheduling
                .as_ref()
                .map_or(&self.list, |scheduling| &scheduling.lists[class]);
            let mut index = list.head;
            while index != NONE {
                let entry = self.slab.at(index);
                let (next, is_passive) = (entry.next, entry.state() == State::WaitingPassive);
                if is_passive && entry.need > limit {
                    self.counters.left();
                    evicted.push(self.unlink(index));
                    self.slab.at(index).set_state(State::Evicted);
                }
                index = next;
            }
        }
        evicted
    }

    /// Takes the entry at `index` out of its list and gives it up. Returns its waker.
    fn take_out(&mut self, index: u32) -> Option<Waker> {
        let waker = self.unlink(index);
        self.slab.give_up(index);
        waker
    }

    fn put_in_class(&mut self, state: State, need: u64, class: u8, waker: Waker) -> Key {
        let Some(scheduling) = &mut self.scheduling else {
            return self.push_in(state, need, waker);
        };
        let class = usize::from(class).min(scheduling.lists.len() - 1);
        let list = &mut scheduling.lists[class];
        let key = self.slab.take(Some(waker), need, list.tail, class as u8, state);
        if scheduling.last_first {
            list.push_front(&mut self.slab, key.index());
        } else {
            list.push_back(&mut self.slab, key.index());
        }
        scheduling.scheduler.join(class);
        scheduling.wanted += u128::from(need);
        self.waiting += 1;
        key
    }

    /// Makes an entry whose wait has ended on arrival: it was never in a list, and is kept.
    pub(crate) fn push_ended(&mut self, need: u64, state: State) -> Key {
        if state == State::Granted {
            self.counters.kept();
        }
        self.slab.take(None, need, NONE, 0, state)
    }

    /// The entry that is next. In a queue that serves the newest first, where the newest is passive, the oldest passive
    /// one is next. A passive waiter stands for a queue of its own, and so queues take turns there too.
    #[inline]
    fn head(&mut self) -> u32 {
        match &self.scheduling {
            None => self.list.head,
            Some(scheduling) => match (scheduling.head(), scheduling.passive.front()) {
                (newest, Some(&oldest)) if self.slab.at(newest).state() == State::WaitingPassive => oldest,
                (head, _) => head,
            },
        }
    }

    /// The permits that the head wants.
    #[inline]
    pub(crate) fn head_need(&mut self) -> Option<u64> {
        match self.head() {
            NONE => None,
            head => Some(self.slab.at(head).need),
        }
    }

    /// Grants the head of a queue without order and bounds, if it wants no more than `free`.
    #[inline(always)]
    pub(crate) fn grant_head(&mut self, free: i64) -> Option<Granted> {
        let index = self.list.head;
        if index == NONE {
            return None;
        }
        let entry = self.slab.at(index);
        let need = entry.need;
        if free < need as i64 {
            return None;
        }
        let (number, waker, next) = (entry.number(), entry.waker.take(), entry.next);
        if entry.state() == State::Waiting {
            self.slab.give_up(index);
        } else {
            entry.set_state(State::Granted);
        }
        self.list.head = next;
        if next == NONE {
            self.list.tail = NONE;
        }
        self.waiting -= 1;
        Some(Granted { number, need, waker })
    }

    /// Grants the waiter that is next, if it wants no more than `free`.
    #[cold]
    pub(crate) fn grant_scheduled(&mut self, free: i64) -> Option<Granted> {
        if self.scheduling.is_none() {
            return self.grant_head(free);
        }
        let index = self.head();
        if index == NONE {
            return None;
        }
        let entry = self.slab.at(index);
        let (number, need) = (entry.number(), entry.need);
        if free < need as i64 {
            return None;
        }
        entry.set_state(State::Granted);
        let waker = self.unlink_and(index, Scheduler::grant);
        self.counters.granted(index);
        Some(Granted { number, need, waker })
    }

    /// The key of a kept entry by its word, if it has not been given up.
    pub(crate) fn key_of(&mut self, word: u64) -> Option<Key> {
        self.slab.key_of(word)
    }

    /// The state of the entry.
    #[inline]
    pub(crate) fn state(&mut self, key: Key) -> State {
        self.slab.of(key).map_or(State::Free, |entry| entry.state())
    }

    /// True when the entry's waker wakes the same task as `waker`.
    #[inline]
    pub(crate) fn wakes(&mut self, key: Key, waker: &Waker) -> bool {
        let entry = self.slab.of(key);
        entry.is_some_and(|entry| entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)))
    }

    /// True when `key` is next.
    #[inline]
    pub(crate) fn is_head(&mut self, key: Key) -> bool {
        self.head() == key.index() && self.state(key).waits()
    }

    /// True when the head is to be handed its permits, even where others may overtake.
    pub(crate) fn head_is_passive(&mut self) -> bool {
        match self.head() {
            NONE => false,
            head => self.slab.at(head).state() == State::WaitingPassive,
        }
    }

    /// Takes the waker of the head: it is there until the head has been woken.
    pub(crate) fn take_head_waker(&mut self) -> Option<Waker> {
        match self.head() {
            NONE => None,
            head => self.slab.at(head).waker.take(),
        }
    }

    /// Leaves a waker, and hands back the one that was there, or the new one if the entry does not wait.
    pub(crate) fn set_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.slab.of(key).filter(|entry| entry.state().waits()) {
            Some(entry) => entry.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Leaves the queue. None if the entry does not wait.
    #[inline(always)]
    pub(crate) fn leave(&mut self, key: Key) -> Option<Left> {
        if self.scheduling.is_some() {
            return self.leave_scheduled(key);
        }
        let index = key.index();
        let entry = self.slab.of(key).filter(|entry| entry.state().waits())?;
        let (waker, prev, next) = (entry.waker.take(), entry.prev, entry.next);
        self.slab.give_up(index);
        let was_head = self.list.head == index;
        if was_head {
            // The next has not been overtaken.
            self.overtaken = 0;
        }
        self.list.unlink(&mut self.slab, index, prev, next);
        self.waiting -= 1;
        Some(Left { was_head, waker })
    }

    #[cold]
    fn leave_scheduled(&mut self, key: Key) -> Option<Left> {
        self.slab.of(key).filter(|entry| entry.state().waits())?;
        let head = self.head();
        let waker = self.take_out(key.index());
        self.counters.left();
        // Also if another was next because of the one that leaves.
        let was_head = self.head() != head;
        Some(Left { was_head, waker })
    }

    /// Gives up a kept entry whose wait has ended. Returns its state, and the permits that it wanted.
    pub(crate) fn give_up(&mut self, key: Key) -> (State, u64) {
        let Some(entry) = self.slab.of(key).filter(|entry| !entry.state().waits()) else {
            return (State::Free, 0);
        };
        let (state, need) = (entry.state(), entry.need);
        if state != State::Free {
            self.slab.give_up(key.index());
        }
        if state == State::Granted {
            self.counters.looked();
        }
        (state, need)
    }

    /// The time since the longest waiter joined.
    #[cfg(feature = "stats")]
    pub(crate) fn longest_wait(&self) -> std::time::Duration {
        let ends = self.scheduling.iter().flat_map(|scheduling| {
            let oldest = |list: &List| if scheduling.last_first { list.tail } else { list.head };
            scheduling.lists.iter().map(oldest).filter(|&index| index != NONE)
        });
        ends.map(|index| self.counters.waited(index)).max().unwrap_or_default()
    }

    /// Memory that is not needed any more, to be dropped outside the lock.
    #[inline]
    pub(crate) fn spare(&mut self) -> Option<Spare> {
        self.slab.is_spare().then(|| {
            self.counters.emptied();
            self.slab.hand_back()
        })
    }

    /// Closes the queue. Returns the wakers of all waiters.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        self.keeps_flag = true;
        self.counters.closed(self.waiting);
        let mut wakers = Vec::with_capacity(self.waiting());
        let lists = match &mut self.scheduling {
            None => std::slice::from_mut(&mut self.list),
            Some(scheduling) => {
                scheduling.scheduler.clear();
                scheduling.passive.clear();
                scheduling.wanted = 0;
                &mut scheduling.lists[..]
            }
        };
        for list in lists {
            let mut index = list.head;
            while index != NONE {
                let entry = self.slab.at(index);
                let next = entry.next;
                wakers.extend(entry.waker.take());
                if entry.state() == State::Waiting {
                    self.slab.give_up(index);
                } else {
                    entry.set_state(State::Closed);
                }
                index = next;
            }
            *list = List::EMPTY;
        }
        self.waiting = 0;
        wakers
    }
}

impl Scheduling {
    #[cold]
    fn head(&self) -> u32 {
        self.scheduler.pick().map_or(NONE, |class| self.lists[class].head)
    }
}

/// The state of the permits that a watcher waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// No permit is held.
    Idle,
    /// No more is held than the limit allows.
    Paid,
    /// The limit is above this.
    #[cfg(feature = "fan-out")]
    Above(usize),
}

/// The permits of a semaphore, as seen under its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitState {
    pub(crate) available: i64,
    pub(crate) limit: i64,
}

impl Condition {
    pub(crate) fn holds(self, state: PermitState) -> bool {
        match self {
            Condition::Idle => state.available >= state.limit,
            Condition::Paid => state.available >= 0,
            #[cfg(feature = "fan-out")]
            Condition::Above(limit) => usize::try_from(state.limit).is_ok_and(|now| now > limit),
        }
    }
}

/// The watchers of a semaphore.
#[derive(Debug)]
struct Watchers {
    list: Vec<(u64, Condition, Waker)>,
    next: u64,
}

impl Watchers {
    const fn new() -> Self {
        Self {
            list: Vec::new(),
            next: 0,
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a watcher, or leaves another waker for the one with this number. Returns its number, and the waker that was
    /// there.
    fn watch(&mut self, number: Option<u64>, condition: Condition, waker: Waker) -> (u64, Option<Waker>) {
        if let Some(known) = self.list.iter_mut().find(|known| Some(known.0) == number) {
            return (known.0, Some(std::mem::replace(&mut known.2, waker)));
        }
        self.next += 1;
        self.list.push((self.next, condition, waker));
        (self.next, None)
    }

    fn has(&self, number: u64) -> bool {
        self.list.iter().any(|known| known.0 == number)
    }

    fn leave(&mut self, number: u64) -> Option<Waker> {
        let at = self.list.iter().position(|known| known.0 == number)?;
        Some(self.list.swap_remove(at).2)
    }

    /// Takes out those whose condition holds.
    fn take_ready(&mut self, state: PermitState) -> Vec<Waker> {
        // Stable: both parts keep their order.
        self.list.sort_by_key(|known| known.1.holds(state));
        let kept = self.list.partition_point(|known| !known.1.holds(state));
        self.list.drain(kept..).map(|known| known.2).collect()
    }
}
