//! A queue of waiters as plain data: places linked by index, so that joining, leaving and granting take constant
//! time and a waiter costs 40 bytes.
//!
//! When it is granted in order of arrival, *one* number says of every waiter whether it has been granted: that of the
//! last one who was. So a place is given up by the grant itself, and its owner looks without the lock. A place can also
//! be kept until its owner has looked.
//!
//! It runs no foreign code: wakers are handed in and out, and the caller clones, wakes and drops them outside its lock.

use super::counters::Counters;
use super::scheduling::{Order, Overflow, Scheduler};
pub(crate) use super::slab::{Key, Spare, State};
use super::slab::{NONE, Slab};
use super::watchers::{Condition, PermitState, Watchers};
use std::collections::VecDeque;
use std::task::Waker;

/// A list of places.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE };

    /// Puts `index` at the end; the place has the old tail ahead already.
    #[inline]
    fn push_back(&mut self, places: &mut Slab, index: u32) {
        match self.tail {
            NONE => self.head = index,
            tail => places.at(tail).next = index,
        }
        self.tail = index;
    }

    fn push_front(&mut self, places: &mut Slab, index: u32) {
        places.at(index).next = self.head;
        match self.head {
            NONE => self.tail = index,
            head => places.at(head).prev = index,
        }
        self.head = index;
    }

    /// Takes out `index`, which stands between `prev` and `next`. The first has no valid `prev`.
    #[inline(always)]
    fn unlink(&mut self, places: &mut Slab, index: u32, prev: u32, next: u32) {
        let first = self.head == index;
        if first {
            self.head = next;
        } else {
            places.at(prev).next = next;
        }
        if self.tail != index {
            places.at(next).prev = prev;
        } else {
            self.tail = if first { NONE } else { prev };
        }
    }
}

/// Who was granted what.
pub(crate) struct Granted {
    pub(crate) number: u64,
    pub(crate) need: u64,
    pub(crate) waker: Option<Waker>,
}

/// What somebody left behind who waited.
pub(crate) struct Left {
    pub(crate) was_head: bool,
    pub(crate) waker: Option<Waker>,
}

/// The rules of a queue that is not plainly first come, first served without bounds. Its places are all kept.
#[derive(Debug)]
struct Rules {
    scheduler: Scheduler,
    /// By class. With one class alone, the queue's own list is used.
    lists: Vec<List>,
    last_first: bool,
    /// The places of the claims that wait where the last to come is served first: in order of arrival. See
    /// [`head`](Queue::head).
    claims: VecDeque<u32>,
    max_waiting: usize,
    max_wanted: u64,
    overflow: Overflow,
    /// What all who wait want together.
    wanted: u128,
}

/// The queue. Invariant: its lists hold exactly the places that wait, in order of arrival; there is one list, unless
/// there are classes.
#[derive(Debug)]
pub(crate) struct Queue {
    places: Slab,
    line: List,
    waiting: usize,
    pub(crate) closed: bool,
    /// True when everybody is sent to the lock although nobody waits: it is closed, or somebody watches, or it counts.
    keeps_flag: bool,
    /// How often the first in line has been overtaken, where that is allowed.
    pub(crate) overtaken: u32,
    /// Those who do not wait for permits, but for rest.
    watchers: Watchers,
    /// What is counted, if it has rules and was asked to.
    pub(crate) counters: Counters,
    rules: Option<Box<Rules>>,
}

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            places: Slab::new(),
            line: List::EMPTY,
            waiting: 0,
            closed: false,
            keeps_flag: false,
            overtaken: 0,
            watchers: Watchers::new(),
            counters: Counters::NONE,
            rules: None,
        }
    }

    /// A queue with rules: so many may wait, who want so much together.
    pub(crate) fn with_rules(
        order: Order,
        max_waiting: usize,
        max_wanted: u64,
        overflow: Overflow,
        counters: Counters,
    ) -> Self {
        let rules = Rules {
            lists: vec![List::EMPTY; order.classes()],
            last_first: order == Order::Lifo,
            claims: VecDeque::new(),
            scheduler: Scheduler::new(order),
            max_waiting,
            max_wanted,
            overflow,
            wanted: 0,
        };
        Self {
            rules: Some(Box::new(rules)),
            keeps_flag: counters.is_on(),
            counters,
            ..Self::new()
        }
    }

    /// True when it has rules: then all places are kept, and numbers say nothing about grants.
    #[inline]
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// True when nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// True when nobody has to be sent to the lock: nobody waits or watches or counts, and it is open.
    #[inline]
    pub(crate) fn wants_no_flag(&self) -> bool {
        self.is_empty() && !self.keeps_flag
    }

    /// True when everybody is sent to the lock although nobody waits.
    #[inline]
    pub(crate) fn keeps_flag(&self) -> bool {
        self.keeps_flag
    }

    /// True when somebody waits for rest.
    pub(crate) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Adds somebody who waits for rest, or leaves another waker for the one with this number.
    pub(crate) fn watch(&mut self, number: Option<u64>, rest: Condition, waker: Waker) -> (u64, Option<Waker>) {
        self.keeps_flag = true;
        self.watchers.watch(number, rest, waker)
    }

    /// True when the one with this number has not been told yet.
    pub(crate) fn is_watching(&self, number: u64) -> bool {
        self.watchers.has(number)
    }

    /// The one with this number does not wait for rest any more.
    pub(crate) fn stop_watching(&mut self, number: u64) -> Option<Waker> {
        let waker = self.watchers.leave(number);
        self.review_flag();
        waker
    }

    /// Takes out those whose rest has come.
    pub(crate) fn told(&mut self, sight: PermitState) -> Vec<Waker> {
        let told = self.watchers.told(sight);
        self.review_flag();
        told
    }

    fn review_flag(&mut self) {
        self.keeps_flag = self.closed || self.is_watched() || self.counters.is_on();
    }

    /// How many wait.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Joins at the end of a queue without rules, at a place that is given up when it is granted.
    #[inline(always)]
    pub(crate) fn push(&mut self, need: u64, waker: Waker) -> Key {
        self.push_in(State::Waiting, need, waker)
    }

    #[inline(always)]
    fn push_in(&mut self, state: State, need: u64, waker: Waker) -> Key {
        let key = self.places.take(Some(waker), need, self.line.tail, 0, state);
        self.line.push_back(&mut self.places, key.index());
        self.waiting += 1;
        key
    }

    /// Joins at a place that is kept, and handed what it wants, in class 0, whatever the bounds.
    pub(crate) fn push_claim(&mut self, need: u64, waker: Waker) -> Key {
        let key = self.put_in_class(State::WaitingClaim, need, 0, waker);
        if let Some(rules) = &mut self.rules
            && rules.last_first
        {
            rules.claims.push_back(key.index());
        }
        key
    }

    /// Counts the newcomer at `key`, which stays.
    pub(crate) fn note_joined(&mut self, key: Key) {
        self.counters.joined(key.index(), self.waiting);
    }

    /// Joins a queue with rules, whatever its bounds. A class that there is not counts as the last.
    #[cold]
    pub(crate) fn push_by_rules(&mut self, need: u64, class: u8, waker: Waker) -> Key {
        self.put_in_class(State::WaitingKept, need, class, waker)
    }

    /// `key` is next, and takes what it wants by itself: it leaves, and its class has been granted that. Returns its waker.
    pub(crate) fn take_next(&mut self, key: Key) -> Option<Waker> {
        let index = key.index();
        let place = self.places.at(index);
        let (waker, prev, next) = (place.waker.take(), place.prev, place.next);
        let (need, class) = (place.need, place.class());
        self.places.give_up(index);
        if let Some(rules) = &mut self.rules {
            rules.scheduler.grant(class, need);
            rules.wanted -= u128::from(need);
            rules.claims.retain(|&claim| claim != index);
            rules.lists[class].unlink(&mut self.places, index, prev, next);
        }
        self.waiting -= 1;
        waker
    }

    /// Holds the newcomer at `key` to the bounds: sends others away for it, and returns the waker of each that was not woken
    /// already; or, where it has to go itself, its own. Nobody is sent away in vain.
    pub(crate) fn keep_bounds(&mut self, key: Key) -> Result<Vec<Option<Waker>>, Option<Waker>> {
        let Some(leaving) = self.whom_to_evict(key) else {
            self.counters.turned_away();
            return Err(self.take_out(key.index()));
        };
        let mut evicted = Vec::new();
        for index in leaving {
            self.counters.evicted();
            evicted.push(self.unlink(index));
            self.places.at(index).set_state(State::Evicted);
        }
        self.note_joined(key);
        Ok(evicted)
    }

    /// Who has to go for the newcomer at `key`, so that the bounds hold: those who have waited longest, of the last class
    /// first. Never a policy's claim. None when that does not suffice, when others do not go for newcomers at all, or when
    /// the newcomer could not wait even alone; nor does anybody go for a newcomer of a later class in an order by priority.
    fn whom_to_evict(&mut self, key: Key) -> Option<Vec<u32>> {
        let rules = self.rules.as_ref()?;
        let mut leaving = Vec::new();
        let (mut waiting, mut wanted) = (self.waiting, rules.wanted);
        let suffices =
            |waiting: usize, wanted: u128| waiting <= rules.max_waiting && wanted <= u128::from(rules.max_wanted);
        if suffices(waiting, wanted) {
            return Some(leaving);
        }
        let (need, class) = (self.places.of(key)?.need, self.places.of(key)?.class());
        if rules.overflow != Overflow::EvictOldest || need > rules.max_wanted {
            return None;
        }
        let first = if rules.scheduler.ranks() { class } else { 0 };
        for class in (first..rules.lists.len()).rev() {
            let List { head, tail } = rules.lists[class];
            let (mut index, last) = if rules.last_first { (tail, head) } else { (head, tail) };
            while index != NONE {
                let place = self.places.at(index);
                if place.state() == State::WaitingKept && index != key.index() {
                    leaving.push(index);
                    waiting -= 1;
                    wanted -= u128::from(place.need);
                    if suffices(waiting, wanted) {
                        return Some(leaving);
                    }
                }
                let next = if rules.last_first { place.prev } else { place.next };
                index = if index == last { NONE } else { next };
            }
        }
        None
    }

    /// Takes the place at `index` out of its line. Returns its waker.
    fn unlink(&mut self, index: u32) -> Option<Waker> {
        if self.head() == index {
            // The next has not been overtaken.
            self.overtaken = 0;
        }
        let place = self.places.at(index);
        let (waker, prev, next) = (place.waker.take(), place.prev, place.next);
        let (need, class) = (place.need, place.class());
        if let Some(rules) = &mut self.rules {
            rules.scheduler.leave(class);
            rules.wanted -= u128::from(need);
            rules.claims.retain(|&claim| claim != index);
            rules.lists[class].unlink(&mut self.places, index, prev, next);
        } else {
            self.line.unlink(&mut self.places, index, prev, next);
        }
        self.waiting -= 1;
        waker
    }

    /// Sends away the claims that want more than `limit`. Returns the waker of each that was not woken already.
    #[cold]
    pub(crate) fn evict_claims_above(&mut self, limit: u64) -> Vec<Option<Waker>> {
        let mut evicted = Vec::new();
        for class in 0..self.rules.as_ref().map_or(1, |rules| rules.lists.len()) {
            let list = self.rules.as_ref().map_or(&self.line, |rules| &rules.lists[class]);
            let mut index = list.head;
            while index != NONE {
                let place = self.places.at(index);
                let (next, is_claim) = (place.next, place.state() == State::WaitingClaim);
                if is_claim && place.need > limit {
                    self.counters.left();
                    evicted.push(self.unlink(index));
                    self.places.at(index).set_state(State::Evicted);
                }
                index = next;
            }
        }
        evicted
    }

    /// The same, and gives it up.
    fn take_out(&mut self, index: u32) -> Option<Waker> {
        let waker = self.unlink(index);
        self.places.give_up(index);
        waker
    }

    fn put_in_class(&mut self, state: State, need: u64, class: u8, waker: Waker) -> Key {
        let Some(rules) = &mut self.rules else {
            return self.push_in(state, need, waker);
        };
        let class = usize::from(class).min(rules.lists.len() - 1);
        let list = &mut rules.lists[class];
        let key = self.places.take(Some(waker), need, list.tail, class as u8, state);
        if rules.last_first {
            list.push_front(&mut self.places, key.index());
        } else {
            list.push_back(&mut self.places, key.index());
        }
        rules.scheduler.join(class);
        rules.wanted += u128::from(need);
        self.waiting += 1;
        key
    }

    /// Takes a place whose wait has ended on arrival: it never stood in line, and is kept.
    pub(crate) fn push_ended(&mut self, need: u64, state: State) -> Key {
        if state == State::Granted {
            self.counters.kept();
        }
        self.places.take(None, need, NONE, 0, state)
    }

    /// The place that is next. A claim is the place of a queue, not of one that has just come: where the last to come is
    /// served first, and that is a claim, the claim that has waited longest is next. So queues take turns there too.
    #[inline]
    fn head(&mut self) -> u32 {
        match &self.rules {
            None => self.line.head,
            Some(rules) => match (rules.head(), rules.claims.front()) {
                (newest, Some(&oldest)) if self.places.at(newest).state() == State::WaitingClaim => oldest,
                (head, _) => head,
            },
        }
    }

    /// What the next in line wants.
    #[inline]
    pub(crate) fn head_need(&mut self) -> Option<u64> {
        match self.head() {
            NONE => None,
            head => Some(self.places.at(head).need),
        }
    }

    /// Grants the first in line what it wants, if that is no more than `free`, where there are no rules.
    #[inline(always)]
    pub(crate) fn grant_head(&mut self, free: i64) -> Option<Granted> {
        let index = self.line.head;
        if index == NONE {
            return None;
        }
        let place = self.places.at(index);
        let need = place.need;
        if free < need as i64 {
            return None;
        }
        let (number, waker, next) = (place.number(), place.waker.take(), place.next);
        if place.state() == State::Waiting {
            self.places.give_up(index);
        } else {
            place.set_state(State::Granted);
        }
        self.line.head = next;
        if next == NONE {
            self.line.tail = NONE;
        }
        self.waiting -= 1;
        Some(Granted { number, need, waker })
    }

    /// The same by the rules, if there are any.
    #[cold]
    pub(crate) fn grant_by_rules(&mut self, free: i64) -> Option<Granted> {
        let index = self.head();
        let Some(rules) = &mut self.rules else {
            return self.grant_head(free);
        };
        if index == NONE {
            return None;
        }
        let place = self.places.at(index);
        let (number, need, prev, next) = (place.number(), place.need, place.prev, place.next);
        if free < need as i64 {
            return None;
        }
        place.set_state(State::Granted);
        let (waker, class) = (place.waker.take(), place.class());
        rules.scheduler.grant(class, need);
        rules.wanted -= u128::from(need);
        rules.claims.retain(|&claim| claim != index);
        self.counters.granted(index);
        rules.lists[class].unlink(&mut self.places, index, prev, next);
        self.waiting -= 1;
        Some(Granted { number, need, waker })
    }

    /// The key of a kept place by its word, if it is still held.
    pub(crate) fn key_of(&mut self, word: u64) -> Option<Key> {
        self.places.key_of(word)
    }

    /// Where the owner of `key` stands.
    #[inline]
    pub(crate) fn state(&mut self, key: Key) -> State {
        self.places.of(key).map_or(State::Free, |place| place.state())
    }

    /// True when the waker that was left wakes the same task as `waker`.
    #[inline]
    pub(crate) fn wakes(&mut self, key: Key, waker: &Waker) -> bool {
        let place = self.places.of(key);
        place.is_some_and(|place| place.waker.as_ref().is_some_and(|known| known.will_wake(waker)))
    }

    /// True when `key` is next in line.
    #[inline]
    pub(crate) fn is_head(&mut self, key: Key) -> bool {
        self.head() == key.index() && self.state(key).waits()
    }

    /// True when whoever is next in line is to be handed what it wants, even where others may overtake.
    pub(crate) fn head_is_claim(&mut self) -> bool {
        match self.head() {
            NONE => false,
            _ if seeded!("semaphore_claims_take_turns") => false,
            head => self.places.at(head).state() == State::WaitingClaim,
        }
    }

    /// Takes the waker of the next in line away: it is there until it has been woken.
    pub(crate) fn take_head_waker(&mut self) -> Option<Waker> {
        match self.head() {
            NONE => None,
            head => self.places.at(head).waker.take(),
        }
    }

    /// Leaves a waker at a place in line, and hands back the one that was there, or the new one if nobody waits there.
    pub(crate) fn set_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.places.of(key).filter(|place| place.state().waits()) {
            Some(place) => place.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Leaves the line. Nothing happens when nobody waits at that place.
    #[inline(always)]
    pub(crate) fn leave(&mut self, key: Key) -> Option<Left> {
        if self.rules.is_some() {
            return self.leave_ruled(key);
        }
        let index = key.index();
        let place = self.places.of(key).filter(|place| place.state().waits())?;
        let (waker, prev, next) = (place.waker.take(), place.prev, place.next);
        self.places.give_up(index);
        let was_head = self.line.head == index;
        if was_head {
            // The next has not been overtaken.
            self.overtaken = 0;
        }
        self.line.unlink(&mut self.places, index, prev, next);
        self.waiting -= 1;
        Some(Left { was_head, waker })
    }

    #[cold]
    fn leave_ruled(&mut self, key: Key) -> Option<Left> {
        self.places.of(key).filter(|place| place.state().waits())?;
        let head = self.head();
        let waker = self.take_out(key.index());
        self.counters.left();
        // Also where another than the one that leaves was next, because of it.
        let was_head = self.head() != head;
        Some(Left { was_head, waker })
    }

    /// Gives up a kept place whose wait has ended. Returns its state, and what it had been granted.
    pub(crate) fn give_up(&mut self, key: Key) -> (State, u64) {
        let Some(place) = self.places.of(key).filter(|place| !place.state().waits()) else {
            return (State::Free, 0);
        };
        let (state, need) = (place.state(), place.need);
        if state != State::Free {
            self.places.give_up(key.index());
        }
        if state == State::Granted {
            self.counters.looked();
        }
        (state, need)
    }

    /// How long whoever has waited longest waits by now.
    #[cfg(feature = "stats")]
    pub(crate) fn longest_wait(&self) -> std::time::Duration {
        let ends = self.rules.iter().flat_map(|rules| {
            let oldest = |list: &List| if rules.last_first { list.tail } else { list.head };
            rules.lists.iter().map(oldest).filter(|&index| index != NONE)
        });
        ends.map(|index| self.counters.waited(index)).max().unwrap_or_default()
    }

    /// Memory that is not needed any more, to be dropped outside the lock.
    #[inline]
    pub(crate) fn spare(&mut self) -> Option<Spare> {
        self.places.is_spare().then(|| {
            self.counters.emptied();
            self.places.hand_back()
        })
    }

    /// Closes the queue: everybody in line is told so. Returns their wakers.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        self.keeps_flag = true;
        self.counters.closed(self.waiting);
        let mut wakers = Vec::with_capacity(self.waiting());
        let lists = match &mut self.rules {
            None => std::slice::from_mut(&mut self.line),
            Some(rules) => {
                rules.scheduler.clear();
                rules.claims.clear();
                rules.wanted = 0;
                &mut rules.lists[..]
            }
        };
        for list in lists {
            let mut index = list.head;
            while index != NONE {
                let place = self.places.at(index);
                let next = place.next;
                wakers.extend(place.waker.take());
                if place.state() == State::Waiting {
                    self.places.give_up(index);
                } else {
                    place.set_state(State::Closed);
                }
                index = next;
            }
            *list = List::EMPTY;
        }
        self.waiting = 0;
        wakers
    }
}

impl Rules {
    #[cold]
    fn head(&self) -> u32 {
        self.scheduler.pick().map_or(NONE, |class| self.lists[class].head)
    }
}
