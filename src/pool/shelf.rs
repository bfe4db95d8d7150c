//! What a worker has taken from the queue and not started. It lies where every worker may take it. Only common tasks get
//! here: of normal priority and weight one, without wishes.
//!
//! A task on a shelf keeps its place in the queue. The worker gives the places of those that it starts back all at once,
//! before it looks at the queue again: until then it owes them. No submission is turned away, or kept waiting, for a place
//! that is owed: one that finds no room presses, and collects what is owed.
//!
//! Others take from a shelf when the queue is empty. It may never be, so a shelf has a date, by the count of tasks that are
//! taken: those that still lie there then go back in front of the queue. The worker that takes one of them next starts it, and may
//! take others onto a shelf again, behind it: so that befalls a task no more often than there are tasks on a shelf.

use super::entry::Entry;
use super::lanes::{Lanes, purge};
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Shelf<'j> {
    entries: VecDeque<Entry<'j>>,
    owed: usize,
    /// When so many have been taken, what lies here is due.
    due: u64,
}

impl<'j> Shelf<'j> {
    /// The next task for the worker itself, which owes its place from now on.
    #[inline]
    pub(super) fn start_next(&mut self) -> Option<Entry<'j>> {
        let entry = self.take()?;
        self.owed += 1;
        Some(entry)
    }

    /// The next task for another worker, which gives its place back.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Entry<'j>> {
        self.entries.pop_front()
    }

    /// Takes `n` common tasks from the queue, if it has so many, until `due`.
    pub(super) fn load(&mut self, n: usize, due: u64, lanes: &mut Lanes<Entry<'j>>) {
        self.entries.extend(lanes.pop_many(n));
        self.due = due;
    }

    /// When what lies here is due, if there is anything.
    pub(super) fn due(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.due)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes all of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry<'j>> {
        self.entries.drain(..)
    }

    /// How many places have to be given back, by the caller.
    #[inline]
    #[must_use]
    pub(super) fn owed(&mut self) -> usize {
        std::mem::take(&mut self.owed)
    }

    /// Takes out what has been cancelled, or been run by the task that waited for it. Its places are given back by the caller.
    pub(super) fn purge(&mut self, dead: &mut Vec<Entry<'j>>) {
        purge(&mut self.entries, dead);
    }

    pub(super) fn put_back(&mut self, lanes: &mut Lanes<Entry<'j>>) {
        while let Some(entry) = self.entries.pop_back() {
            lanes.push_front(entry);
        }
    }
}
