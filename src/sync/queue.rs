//! A FIFO queue of waiters as plain data: places linked by index, so that joining, leaving and granting take constant
//! time and a waiter costs 40 bytes.
//!
//! Since it is granted in order of arrival, *one* number says of every waiter whether it has been granted: that of the
//! last one who was. So a place is given up by the grant itself, and its owner looks without the lock. A place can also
//! be kept until its owner has looked.
//!
//! It runs no foreign code: wakers are handed in and out, and the caller clones, wakes and drops them outside its lock.

pub(crate) use super::places::{Key, Spare, State};
use super::places::{NONE, Places};
use std::task::Waker;

/// The queue. Invariant: the list from `head` to `tail` holds exactly the places that wait, in order of arrival.
#[derive(Debug)]
pub(crate) struct Queue {
    places: Places,
    head: u32,
    tail: u32,
    waiting: usize,
    pub(crate) closed: bool,
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

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            places: Places::new(),
            head: NONE,
            tail: NONE,
            waiting: 0,
            closed: false,
        }
    }

    /// True when nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// How many wait.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Joins at the end. The place is given up when it is granted, unless it is `kept`.
    #[inline]
    pub(crate) fn push(&mut self, need: u64, waker: Waker, kept: bool) -> Key {
        let state = if kept { State::WaitingKept } else { State::Waiting };
        let tail = self.tail;
        let key = self.places.take(Some(waker), need, tail, state);
        match tail {
            NONE => self.head = key.index(),
            tail => self.places.at(tail).next = key.index(),
        }
        self.tail = key.index();
        self.waiting += 1;
        key
    }

    /// Takes a place whose wait has ended on arrival: it never stood in line, and is kept.
    pub(crate) fn push_ended(&mut self, need: u64, state: State) -> Key {
        self.places.take(None, need, NONE, state)
    }

    /// What the first in line wants.
    #[inline]
    pub(crate) fn head_need(&mut self) -> Option<u64> {
        match self.head {
            NONE => None,
            head => Some(self.places.at(head).need),
        }
    }

    /// Grants the first in line what it wants, if that is no more than `free`.
    #[inline]
    pub(crate) fn grant_head(&mut self, free: i64) -> Option<Granted> {
        let index = self.head;
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
        self.head = next;
        if next == NONE {
            self.tail = NONE;
        }
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

    /// Leaves a waker at a place in line, and hands back the one that was there, or the new one if nobody waits there.
    pub(crate) fn set_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.places.of(key).filter(|place| place.state().waits()) {
            Some(place) => place.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Leaves the line. Nothing happens when nobody waits at that place.
    #[inline]
    pub(crate) fn leave(&mut self, key: Key) -> Option<Left> {
        let index = key.index();
        let place = self.places.of(key).filter(|place| place.state().waits())?;
        let (waker, prev, next) = (place.waker.take(), place.prev, place.next);
        self.places.give_up(index);
        let was_head = self.head == index;
        if was_head {
            self.head = next;
        } else {
            self.places.at(prev).next = next;
        }
        if self.tail != index {
            self.places.at(next).prev = prev;
        } else {
            self.tail = if was_head { NONE } else { prev };
        }
        self.waiting -= 1;
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
        (state, need)
    }

    /// Memory that is not needed any more, to be dropped outside the lock.
    #[inline]
    pub(crate) fn spare(&mut self) -> Option<Spare> {
        self.places.is_spare().then(|| self.places.hand_back())
    }

    /// Closes the queue: everybody in line is told so. Returns their wakers.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let mut wakers = Vec::with_capacity(self.waiting());
        let mut index = self.head;
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
        self.head = NONE;
        self.tail = NONE;
        self.waiting = 0;
        wakers
    }
}
