//! A FIFO queue of waiters as plain data: places linked by index, so that joining, leaving and granting take constant
//! time and a waiter costs 40 bytes.
//!
//! It runs no foreign code: wakers are handed in and out, and the caller clones, wakes and drops them outside its lock.

use super::places::{NONE, Places};
pub(crate) use super::places::{Key, Spare, State};
use std::task::Waker;

/// The queue. Invariant: the list from `head` to `tail` holds exactly the `Waiting` places, in order of arrival.
#[derive(Debug)]
pub(crate) struct Queue {
    places: Places,
    head: u32,
    tail: u32,
    waiting: u32,
    pub(crate) closed: bool,
}

/// What somebody left behind who gave up a place.
pub(crate) struct Left {
    pub(crate) state: State,
    /// What it wanted, or had been granted.
    pub(crate) need: u64,
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
        self.waiting as usize
    }

    /// How many have been granted what they wanted and have not noticed yet.
    pub(crate) fn granted(&self) -> usize {
        self.places.iter().filter(|place| place.state == State::Granted).count()
    }

    /// Joins at the end.
    #[inline]
    pub(crate) fn push(&mut self, need: u64, waker: Waker) -> Key {
        let tail = self.tail;
        let key = self.places.take(Some(waker), need, tail, State::Waiting);
        let index = key.index();
        match tail {
            NONE => self.head = index,
            tail => self.places.at(tail).next = index,
        }
        self.tail = index;
        self.waiting += 1;
        key
    }

    /// Takes a place whose wait has ended on arrival: it never stood in line.
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

    /// Grants the first in line what it wants, and returns its waker.
    #[inline]
    pub(crate) fn grant_head(&mut self) -> Option<Waker> {
        let head = self.places.at(self.head);
        head.state = State::Granted;
        let waker = head.waker.take();
        let next = head.next;
        self.head = next;
        match next {
            NONE => self.tail = NONE,
            next => self.places.at(next).prev = NONE,
        }
        self.waiting -= 1;
        waker
    }

    #[inline]
    fn unlink(&mut self, prev: u32, next: u32) {
        match prev {
            NONE => self.head = next,
            prev => self.places.at(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.places.at(next).prev = prev,
        }
        self.waiting -= 1;
    }

    /// Where the owner of `key` stands.
    pub(crate) fn state(&mut self, key: Key) -> State {
        self.places.of(key).map_or(State::Free, |place| place.state)
    }

    /// The owner of `key` looks: where it stands, and what it wants or was granted. A place whose wait has ended is
    /// given up by that.
    #[inline]
    pub(crate) fn look(&mut self, key: Key) -> (State, u64) {
        let Some(place) = self.places.of(key) else {
            return (State::Free, 0);
        };
        let (state, need) = (place.state, place.need);
        if matches!(state, State::Granted | State::Closed) {
            self.places.give_up(key.index());
        }
        (state, need)
    }

    /// True when the waker that was left wakes the same task as `waker`.
    #[inline]
    pub(crate) fn wakes(&mut self, key: Key, waker: &Waker) -> bool {
        let place = self.places.of(key);
        place.is_some_and(|place| place.waker.as_ref().is_some_and(|known| known.will_wake(waker)))
    }

    /// Leaves a waker at a place in line, and hands back the one that was there, or the new one if nobody waits there.
    pub(crate) fn set_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.places.of(key).filter(|place| place.state == State::Waiting) {
            Some(place) => place.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Gives a place up, whatever its state.
    #[inline]
    pub(crate) fn leave(&mut self, key: Key) -> Left {
        let was_head = self.head == key.index();
        let Some(place) = self.places.of(key) else {
            return Left {
                state: State::Free,
                need: 0,
                was_head: false,
                waker: None,
            };
        };
        let (state, need, prev, next) = (place.state, place.need, place.prev, place.next);
        let waker = place.waker.take();
        if state == State::Waiting {
            self.unlink(prev, next);
        }
        if state != State::Free {
            self.places.give_up(key.index());
        }
        Left {
            state,
            need,
            was_head,
            waker,
        }
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
            place.state = State::Closed;
            wakers.extend(place.waker.take());
            index = place.next;
        }
        self.head = NONE;
        self.tail = NONE;
        self.waiting = 0;
        wakers
    }
}
