//! What a worker has taken from the queue and not started. It lies where everybody may take it. Only common tasks get
//! here: of normal priority and weight one, without wishes.
//!
//! A task on a shelf keeps its place in the queue. The worker gives the places of those that it starts back all at once,
//! before it looks at the queue again: until then it owes them. Nobody is turned away, or kept waiting, for a place that
//! is owed: whoever finds no room presses, and collects what is owed.

use super::entry::Entry;
use super::lanes::Lanes;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Shelf<'j> {
    pub(super) entries: VecDeque<Entry<'j>>,
    owed: usize,
}

impl<'j> Shelf<'j> {
    /// The next task for the worker itself, which owes its place from now on.
    #[inline]
    pub(super) fn start_next(&mut self) -> Option<Entry<'j>> {
        let entry = self.entries.pop_front()?;
        self.owed += 1;
        Some(entry)
    }

    /// How many places have to be given back, by the caller.
    #[inline]
    #[must_use]
    pub(super) fn owed(&mut self) -> usize {
        std::mem::take(&mut self.owed)
    }

    pub(super) fn put_back(&mut self, lanes: &mut Lanes<Entry<'j>>) {
        while let Some(entry) = self.entries.pop_back() {
            lanes.push_front(entry);
        }
    }
}
