//! Numbered places that are taken and given up, as plain data: a slab in chunks, so that nothing moves when it grows, and
//! an emptied one gives its memory back.

use std::task::Waker;

const CHUNK: usize = 128;
/// So many places are kept when all have been given up: a short queue does not allocate again and again.
const KEPT: usize = 32;
pub(super) const NONE: u32 = u32::MAX;

/// A place by its index, and a generation by which one that has been taken again is told apart. One word, so that it
/// travels in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// No place at all.
    pub(crate) const NONE: Key = Key(NONE as u64);

    #[inline]
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.index() == NONE
    }

    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody's.
    Free,
    Waiting,
    Granted,
    /// The queue was closed while this waited.
    Closed,
}

/// One place. A waker is there only while it is [`Waiting`](State::Waiting).
#[derive(Debug)]
pub(super) struct Place {
    pub(super) waker: Option<Waker>,
    pub(super) need: u64,
    pub(super) prev: u32,
    /// The next in line, or the next free place.
    pub(super) next: u32,
    pub(super) generation: u32,
    pub(super) state: State,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    chunks: Vec<Vec<Place>>,
    free: u32,
    taken: usize,
    /// The generation of the next place that is taken.
    serial: u32,
}

impl Places {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            taken: 0,
            serial: 0,
        }
    }

    #[inline]
    pub(super) fn at(&mut self, index: u32) -> &mut Place {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// The place of `key`; none if it was given up, or if there never was one: keys can be made up.
    #[inline]
    pub(super) fn of(&mut self, key: Key) -> Option<&mut Place> {
        self.chunks
            .get_mut(key.index() as usize / CHUNK)?
            .get_mut(key.index() as usize % CHUNK)
            .filter(|place| place.generation == key.generation())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.chunks.iter().flatten()
    }

    /// Takes a free place. The generation is given here.
    #[inline]
    pub(super) fn take(&mut self, waker: Option<Waker>, need: u64, prev: u32, state: State) -> Key {
        self.taken += 1;
        let generation = self.serial;
        self.serial = generation.wrapping_add(1);
        let index = self.free;
        if index == NONE {
            return self.add(Place {
                waker,
                need,
                prev,
                next: NONE,
                generation,
                state,
            });
        }
        let free = self.at(index);
        let next = free.next;
        // A free place has no waker: nothing is dropped here.
        std::mem::forget(std::mem::replace(&mut free.waker, waker));
        free.need = need;
        free.prev = prev;
        free.next = NONE;
        free.generation = generation;
        free.state = state;
        self.free = next;
        Key::new(index, generation)
    }

    #[cold]
    fn add(&mut self, place: Place) -> Key {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            // The first chunk grows from little: most queues are short.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        let chunk = self.chunks.len() - 1;
        let index = u32::try_from(chunk * CHUNK + self.chunks[chunk].len()).unwrap_or(NONE);
        assert!(index != NONE, "fewer than 2^32 - 1 can wait in one queue");
        let generation = place.generation;
        self.chunks[chunk].push(place);
        Key::new(index, generation)
    }

    /// Gives up the place at `index`.
    #[inline]
    pub(super) fn give_up(&mut self, index: u32) {
        let free = self.free;
        let place = self.at(index);
        place.state = State::Free;
        place.next = free;
        self.free = index;
        self.taken -= 1;
    }

    /// True when all have been given up, and there is memory to hand back.
    #[inline]
    pub(super) fn is_spare(&self) -> bool {
        self.taken == 0 && (self.chunks.len() > 1 || self.chunks.first().is_some_and(|chunk| chunk.len() > KEPT))
    }

    /// Forgets all places. What it returns is to be dropped outside the lock.
    #[cold]
    pub(super) fn hand_back(&mut self) -> Spare {
        self.free = NONE;
        Spare(std::mem::take(&mut self.chunks))
    }
}

/// Memory that an emptied queue gives back when this is dropped.
#[must_use = "to be dropped outside the lock"]
#[derive(Debug)]
pub(crate) struct Spare(#[allow(dead_code)] Vec<Vec<Place>>);
