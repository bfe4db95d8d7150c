//! The entries of a queue as plain data: a slab in chunks, so that no entry moves when it grows, and an emptied one gives its
//! memory back.

use std::task::Waker;

const CHUNK: usize = 1_024;
/// The entries that are kept when all have been given up: a short queue does not allocate again and again.
const KEPT: usize = 32;
pub(super) const NONE: u32 = u32::MAX;

/// The key of an entry: its index, and its number. Numbers are given in order of arrival and never again, so that an entry that
/// is used again has another key.
///
/// A pair of scalars, so that it travels in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    number: u64,
    index: u32,
}

impl Key {
    // Beyond all classes, which have the low byte.

    /// No entry: the permits were taken on arrival.
    pub(crate) const TAKEN: Key = Key::nowhere(0x100);
    /// No entry: the queue is closed.
    pub(crate) const CLOSED: Key = Key::nowhere(0x200);
    /// No entry: the queue is full.
    pub(crate) const FULL: Key = Key::nowhere(0x300);
    /// No entry any more: the waiter was evicted.
    pub(crate) const EVICTED: Key = Key::nowhere(0x400);

    /// No entry yet, for a request of `class`.
    #[inline]
    pub(crate) const fn asking(class: u8) -> Self {
        Self::nowhere(class as u64)
    }

    /// The class of a request without an entry.
    pub(crate) fn class(self) -> u8 {
        self.number as u8
    }

    const fn nowhere(number: u64) -> Self {
        Self { number, index: NONE }
    }

    #[inline]
    pub(crate) fn parts(self) -> (u64, u32) {
        (self.number, self.index)
    }

    #[inline]
    pub(crate) fn from_parts(number: u64, index: u32) -> Self {
        Self { number, index }
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.index
    }

    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.number
    }

    /// True for an entry of a queue.
    #[inline]
    pub(crate) fn is_entry(self) -> bool {
        self.index != NONE
    }

    /// One word, with the lower half of the number.
    pub(crate) fn to_word(self) -> u64 {
        self.number << 32 | u64::from(self.index)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not in use.
    Free,
    /// Waits. Given up when it is granted.
    Waiting,
    /// Waits. Kept when it is granted, until its owner looks.
    WaitingKept,
    /// Waits. Kept as well, and always handed its permits: its owner does not come to take them.
    WaitingPassive,
    Granted,
    /// The queue was closed while this waited.
    Closed,
    /// Evicted for a newer waiter.
    Evicted,
}

impl State {
    pub(crate) fn waits(self) -> bool {
        matches!(self, State::Waiting | State::WaitingKept | State::WaitingPassive)
    }
}

/// The number, class and state of an entry in one word: 56, 5 and 3 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag(u64);

impl Tag {
    #[inline]
    fn new(number: u64, class: u8, state: State) -> Self {
        Self(number << 8 | u64::from(class) << 3 | state as u64)
    }
}

/// One entry. It has a waker only while it waits.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) waker: Option<Waker>,
    pub(super) need: u64,
    tag: Tag,
    /// The entry ahead, if it is not the first.
    pub(super) prev: u32,
    /// The entry behind, or the next free one.
    pub(super) next: u32,
}

impl Entry {
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.tag.0 >> 8
    }

    #[inline]
    pub(super) fn class(&self) -> usize {
        (self.tag.0 >> 3 & 31) as usize
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        match self.tag.0 & 7 {
            0 => State::Free,
            1 => State::Waiting,
            2 => State::WaitingKept,
            3 => State::WaitingPassive,
            4 => State::Granted,
            5 => State::Closed,
            _ => State::Evicted,
        }
    }

    #[inline]
    pub(super) fn set_state(&mut self, state: State) {
        self.tag = Tag(self.tag.0 & !7 | state as u64);
    }
}

/// All entries.
#[derive(Debug)]
pub(super) struct Slab {
    chunks: Vec<Vec<Entry>>,
    free: u32,
    taken: u32,
    /// The number of the next entry that is taken.
    next_number: u64,
}

impl Slab {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            taken: 0,
            next_number: 0,
        }
    }

    #[inline]
    pub(super) fn at(&mut self, index: u32) -> &mut Entry {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// The entry of `key`; none if it was given up, or if there never was one: keys can be made up.
    #[inline]
    pub(super) fn of(&mut self, key: Key) -> Option<&mut Entry> {
        self.find(key.index).filter(|entry| entry.number() == key.number)
    }

    #[inline]
    fn find(&mut self, index: u32) -> Option<&mut Entry> {
        self.chunks
            .get_mut(index as usize / CHUNK)?
            .get_mut(index as usize % CHUNK)
    }

    /// The key of the entry that was taken last with `word` as its [`to_word`](Key::to_word).
    pub(super) fn key_of(&mut self, word: u64) -> Option<Key> {
        let index = word as u32;
        let entry = self.find(index)?;
        let number = entry.number();
        (number as u32 == (word >> 32) as u32).then_some(Key { number, index })
    }

    /// Takes a free entry, and gives it the next number.
    #[inline(always)]
    pub(super) fn take(&mut self, waker: Option<Waker>, need: u64, prev: u32, class: u8, state: State) -> Key {
        self.taken += 1;
        let number = self.next_number;
        self.next_number = number + 1;
        let tag = Tag::new(number, class, state);
        let index = self.free;
        if index == NONE {
            let index = self.append(waker, need, prev, tag);
            return Key { number, index };
        }
        let entry = self.at(index);
        let free = entry.next;
        // A free entry has no waker: nothing is dropped here.
        std::mem::forget(std::mem::replace(&mut entry.waker, waker));
        entry.need = need;
        entry.tag = tag;
        entry.prev = prev;
        entry.next = NONE;
        self.free = free;
        Key { number, index }
    }

    /// Adds an entry. Its parts come by value: an entry that came by reference would be read back right after it was written,
    /// in other pieces.
    #[inline(never)]
    fn append(&mut self, waker: Option<Waker>, need: u64, prev: u32, tag: Tag) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.add_chunk();
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        let index = last * CHUNK + chunk.len();
        let next = NONE;
        chunk.push(Entry {
            waker,
            need,
            tag,
            prev,
            next,
        });
        index as u32
    }

    #[cold]
    fn add_chunk(&mut self) {
        assert!(
            self.chunks.len() < NONE as usize / CHUNK,
            "fewer than 2^32 - 1,024 can wait in one queue"
        );
        // The first chunk grows from little: most queues are short.
        let room = if self.chunks.is_empty() { 0 } else { CHUNK };
        self.chunks.push(Vec::with_capacity(room));
    }

    /// Gives up the entry at `index`.
    #[inline]
    pub(super) fn give_up(&mut self, index: u32) {
        let free = self.free;
        let entry = self.at(index);
        entry.set_state(State::Free);
        entry.next = free;
        self.free = index;
        self.taken -= 1;
    }

    /// True when all have been given up, and there is memory to hand back.
    #[inline]
    pub(super) fn is_spare(&self) -> bool {
        self.taken == 0 && self.chunks.first().is_some_and(|chunk| chunk.len() > KEPT)
    }

    /// Forgets all entries. Drop the result outside the lock.
    #[cold]
    pub(super) fn hand_back(&mut self) -> Spare {
        self.free = NONE;
        Spare(std::mem::take(&mut self.chunks))
    }
}

/// Memory that an emptied queue gives back when this is dropped.
#[must_use = "to be dropped outside the lock"]
#[derive(Debug)]
pub(crate) struct Spare(#[allow(dead_code)] Vec<Vec<Entry>>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_slab_is_spare_if_it_had_more_entries_than_it_keeps() {
        let spare = [1, KEPT, KEPT + 1, CHUNK, CHUNK + 1].map(|entries| {
            let mut slab = Slab::new();
            let mut take = || slab.take(None, 1, NONE, 0, State::Waiting);
            let keys: Vec<_> = (0..entries).map(|_| take()).collect();
            assert!(!slab.is_spare(), "{entries} wait");
            keys.iter().for_each(|key| slab.give_up(key.index()));
            slab.is_spare()
        });
        assert_eq!(spare, [false, false, true, true, true]);
    }
}
