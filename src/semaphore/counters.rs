//! The counters of a queue, as plain data under its lock. A queue that was not built to count has none.

use crate::stats::Durations;
use crate::time::{Clock, Instant};
use std::time::Duration;

/// The counts, if any.
#[derive(Clone, Debug)]
pub(crate) struct Counters(Option<Box<Counts>>);

/// The counts.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    clock: Clock,
    /// When each entry joined, by its index.
    joined: Vec<Instant>,
    pub(crate) at_once: u64,
    pub(crate) queued: u64,
    pub(crate) refused: u64,
    pub(crate) left: u64,
    pub(crate) timed_out: u64,
    pub(crate) queue_full: u64,
    pub(crate) evicted: u64,
    pub(crate) closed: u64,
    pub(crate) unpolled: usize,
    pub(crate) peak_in_use: u64,
    pub(crate) peak_waiting: usize,
    /// The waits of the waiters that were granted.
    pub(crate) waits: Durations,
}

impl Counts {
    /// The time since the entry at `index` joined.
    fn waited(&self, index: u32) -> Duration {
        let joined = self.joined[index as usize];
        self.clock.between(joined, self.clock.now())
    }
}

impl Counters {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn on(clock: &Clock) -> Self {
        Self(Some(Box::new(Counts {
            clock: clock.clone(),
            joined: Vec::new(),
            at_once: 0,
            queued: 0,
            refused: 0,
            left: 0,
            timed_out: 0,
            queue_full: 0,
            evicted: 0,
            closed: 0,
            unpolled: 0,
            peak_in_use: 0,
            peak_waiting: 0,
            waits: Durations::new(),
        })))
    }

    pub(crate) fn counts(&self) -> Option<&Counts> {
        self.0.as_deref()
    }

    /// True when it counts.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn note(&mut self, note: impl FnOnce(&mut Counts)) {
        if let Some(counts) = &mut self.0 {
            note(counts);
        }
    }

    /// A caller was admitted without waiting.
    pub(crate) fn taken(&mut self) {
        self.note(|counts| counts.at_once += 1);
    }

    /// `in_use` permits are held now.
    pub(crate) fn held(&mut self, in_use: i64) {
        self.note(|counts| counts.peak_in_use = counts.peak_in_use.max(in_use as u64));
    }

    /// A caller was refused that would not wait.
    pub(crate) fn refused(&mut self) {
        self.note(|counts| counts.refused += 1);
    }

    /// A waiter joined, with the entry at `index`; `waiting` wait now.
    pub(crate) fn joined(&mut self, index: u32, waiting: usize) {
        self.note(|counts| {
            let now = counts.clock.now();
            let index = index as usize;
            if counts.joined.len() <= index {
                counts.joined.resize(index + 1, now);
            }
            counts.joined[index] = now;
            counts.queued += 1;
            counts.peak_waiting = counts.peak_waiting.max(waiting);
        });
    }

    /// The waiter at `index` was granted.
    pub(crate) fn granted(&mut self, index: u32) {
        self.note(|counts| {
            counts.waits.record(counts.waited(index));
            counts.unpolled += 1;
        });
    }

    /// An entry is kept that was granted on arrival.
    pub(crate) fn kept(&mut self) {
        self.note(|counts| counts.unpolled += 1);
    }

    /// A granted waiter has looked, or left.
    pub(crate) fn looked(&mut self) {
        self.note(|counts| counts.unpolled = counts.unpolled.saturating_sub(1));
    }

    /// A waiter left.
    pub(crate) fn left(&mut self) {
        self.note(|counts| counts.left += 1);
    }

    /// A waiter timed out.
    pub(crate) fn timed_out(&mut self) {
        self.note(|counts| counts.timed_out += 1);
    }

    /// A caller found the bounded queue full.
    pub(crate) fn queue_full(&mut self) {
        self.note(|counts| counts.queue_full += 1);
    }

    /// A waiter was evicted.
    pub(crate) fn evicted(&mut self) {
        self.note(|counts| counts.evicted += 1);
    }

    /// `waiting` waited at the close.
    pub(crate) fn closed(&mut self, waiting: usize) {
        self.note(|counts| counts.closed += waiting as u64);
    }

    /// All entries were given up, and their memory was handed back.
    pub(crate) fn emptied(&mut self) {
        self.note(|counts| counts.joined = Vec::new());
    }

    /// The time since the waiter at `index` joined.
    pub(crate) fn waited(&self, index: u32) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |counts| counts.waited(index))
    }
}
