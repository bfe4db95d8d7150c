//! A FIFO queue of waiters as plain data: a slab in chunks, linked by index, so that joining, leaving and granting take
//! constant time and a waiter costs 40 bytes.
//!
//! It runs no foreign code: wakers are handed in and out, and the caller clones, wakes and drops them outside its lock.
//! When the last place is given up, all chunks but one are handed back.

use std::task::Waker;

const CHUNK: usize = 128;
const NONE: u32 = u32::MAX;

/// A place in the queue: its index, and a generation by which a place that has been reused is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            index: word as u32,
            generation: (word >> 32) as u32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Waiting,
    Granted,
    /// The queue was closed while this waited.
    Closed,
}

#[derive(Debug)]
struct Slot {
    waker: Option<Waker>,
    need: u64,
    prev: u32,
    /// The next in line, or the next free slot.
    next: u32,
    generation: u32,
    state: State,
}

/// The queue. Invariant: the list from `head` to `tail` holds exactly the `Waiting` slots, in order of arrival.
#[derive(Debug)]
pub(crate) struct Queue {
    chunks: Vec<Vec<Slot>>,
    free: u32,
    /// Slots that are not free.
    live: usize,
    head: u32,
    tail: u32,
    waiting: usize,
    pub(crate) closed: bool,
}

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            live: 0,
            head: NONE,
            tail: NONE,
            waiting: 0,
            closed: false,
        }
    }

    #[inline]
    fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many have been granted what they wanted and have not noticed yet.
    pub(crate) fn granted(&self) -> usize {
        self.chunks
            .iter()
            .flatten()
            .filter(|slot| slot.state == State::Granted)
            .count()
    }

    /// Joins at the end.
    pub(crate) fn push(&mut self, need: u64, waker: Option<Waker>) -> Key {
        let index = self.take_free();
        let tail = self.tail;
        let slot = self.slot(index);
        slot.waker = waker;
        slot.need = need;
        slot.prev = tail;
        slot.next = NONE;
        slot.state = State::Waiting;
        let generation = slot.generation;
        match tail {
            NONE => self.head = index,
            tail => self.slot(tail).next = index,
        }
        self.tail = index;
        self.waiting += 1;
        Key { index, generation }
    }

    /// Takes a place that has been granted on arrival: it never stood in line.
    pub(crate) fn push_granted(&mut self, need: u64) -> Key {
        let index = self.take_free();
        let slot = self.slot(index);
        slot.need = need;
        slot.state = State::Granted;
        let generation = slot.generation;
        Key { index, generation }
    }

    /// Ends a wait that a closed queue will never grant.
    pub(crate) fn mark_closed(&mut self, key: Key) {
        self.slot(key.index).state = State::Closed;
    }

    fn take_free(&mut self) -> u32 {
        self.live += 1;
        if self.free != NONE {
            let index = self.free;
            self.free = self.slot(index).next;
            return index;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunk = self.chunks.len() - 1;
        let index = chunk * CHUNK + self.chunks[chunk].len();
        let index = u32::try_from(index).unwrap_or(NONE);
        assert!(index != NONE, "fewer than 2^32 - 1 waiters fit into one queue");
        self.chunks[chunk].push(Slot {
            waker: None,
            need: 0,
            prev: NONE,
            next: NONE,
            generation: 0,
            state: State::Free,
        });
        index
    }

    /// What the first in line wants.
    #[inline]
    pub(crate) fn head_need(&mut self) -> Option<u64> {
        match self.head {
            NONE => None,
            head => Some(self.slot(head).need),
        }
    }

    /// True when `key` is first in line.
    pub(crate) fn is_head(&self, key: Key) -> bool {
        self.head == key.index
    }

    /// Grants the first in line what it wants, and returns its waker.
    pub(crate) fn grant_head(&mut self) -> Option<Waker> {
        let head = self.head;
        self.unlink(head);
        let slot = self.slot(head);
        slot.state = State::Granted;
        slot.waker.take()
    }

    fn unlink(&mut self, index: u32) {
        let slot = self.slot(index);
        let (prev, next) = (slot.prev, slot.next);
        match prev {
            NONE => self.head = next,
            prev => self.slot(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.slot(next).prev = prev,
        }
        self.waiting -= 1;
    }

    /// The place of `key`; none if it was given up, or if there never was one: claims can be made up.
    fn place(&self, key: Key) -> Option<&Slot> {
        let slot = self.chunks.get(key.index as usize / CHUNK)?;
        slot.get(key.index as usize % CHUNK)
            .filter(|slot| slot.generation == key.generation)
    }

    /// What the owner of `key` wants, or was granted.
    pub(crate) fn need(&self, key: Key) -> u64 {
        self.place(key).map_or(0, |slot| slot.need)
    }

    pub(crate) fn state(&self, key: Key) -> State {
        self.place(key).map_or(State::Free, |slot| slot.state)
    }

    /// Leaves a waker at a place that is in use, and hands back the one that was there.
    pub(crate) fn set_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        self.slot(key.index).waker.replace(waker)
    }

    /// Gives a place up, whatever its state. Returns that state, its waker, and chunks to be dropped outside the lock.
    pub(crate) fn remove(&mut self, key: Key) -> (State, Option<Waker>, Spare) {
        let state = self.state(key);
        if state == State::Free {
            return (state, None, Spare(Vec::new()));
        }
        if state == State::Waiting {
            self.unlink(key.index);
        }
        let free = self.free;
        let slot = self.slot(key.index);
        let waker = slot.waker.take();
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = free;
        self.free = key.index;
        self.live -= 1;
        let spare = if self.live == 0 && self.chunks.len() > 1 {
            self.free = NONE;
            Spare(std::mem::take(&mut self.chunks))
        } else {
            Spare(Vec::new())
        };
        (state, waker, spare)
    }

    /// Closes the queue: everybody in line is told so. Returns their wakers.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let mut wakers = Vec::new();
        let mut index = self.head;
        while index != NONE {
            let slot = self.slot(index);
            slot.state = State::Closed;
            wakers.extend(slot.waker.take());
            index = slot.next;
        }
        self.head = NONE;
        self.tail = NONE;
        self.waiting = 0;
        wakers
    }
}

/// Memory that an emptied queue gives back when this is dropped.
#[must_use = "to be dropped outside the lock"]
#[derive(Debug)]
pub(crate) struct Spare(#[allow(dead_code)] Vec<Vec<Slot>>);
