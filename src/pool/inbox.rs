//! Where submitted tasks are put, under a lock of its own: a submission touches one line of memory, and workers empty it
//! into the lanes, all of it at once, whenever they have the pool's lock.
//!
//! The locks are taken in this order: the pool's, a shelf's, this one.

use super::entry::{Entry, Left};
use super::lanes::{Lanes, Ranked};
use super::spent::Spent;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::collections::VecDeque;

pub(super) struct Inbox<'j> {
    tray: Mutex<Tray<'j>>,
    /// A copy of the tray's length, for what looks without the lock.
    len: AtomicUsize,
}

pub(super) struct Tray<'j> {
    tasks: VecDeque<Entry<'j>>,
    /// Whether one of them is not common.
    special: bool,
    /// No more are taken.
    closed: bool,
    /// No worker looks for work, and there is one to call: a submission calls. See `core.rs` for when that is written.
    pub(super) calls: bool,
    /// Elsewhere: the rest is one line of memory.
    spent: Box<Spent<'j>>,
    /// There is some.
    any_spent: bool,
}

/// What a submission does, after the lock.
#[must_use]
pub(super) struct Put<'j> {
    /// It calls a worker.
    pub(super) calls: bool,
    /// It frees this.
    pub(super) spent: Option<[Option<Left<'j>>; 2]>,
}

impl<'j> Inbox<'j> {
    pub(super) fn new() -> Self {
        let tray = Tray {
            tasks: VecDeque::new(),
            special: false,
            closed: false,
            calls: true,
            spent: Box::default(),
            any_spent: false,
        };
        Self {
            tray: Mutex::new(tray),
            len: AtomicUsize::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tray<'j>> {
        self.tray.lock()
    }

    fn note_len(&self, tray: &Tray<'j>) {
        // Relaxed: a hint. What acts on it takes the lock.
        self.len.store(tray.tasks.len(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn seems_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Puts one in, or hands it back when no more are taken. `into` only converts.
    #[inline]
    pub(super) fn put<J>(&self, job: J, into: impl FnOnce(J) -> Entry<'j>) -> Result<Put<'j>, J> {
        let mut tray = self.lock();
        if tray.closed {
            return Err(job);
        }
        tray.put(into(job));
        self.note_len(&tray);
        Ok(Put {
            calls: tray.calls,
            spent: tray.any_spent.then(|| tray.two_spent()),
        })
    }

    /// Puts the first `n` of `jobs` in, in order, and adds what is to be freed to `spent`. None, and nothing is taken, when
    /// no more are.
    pub(super) fn put_all<J>(
        &self,
        jobs: &mut Vec<J>,
        n: usize,
        into: impl Fn(J) -> Entry<'j>,
        spent: &mut Vec<Left<'j>>,
    ) -> Option<Put<'j>> {
        let mut tray = self.lock();
        if tray.closed {
            return None;
        }
        for job in jobs.drain(..n) {
            tray.put(into(job));
        }
        self.note_len(&tray);
        if tray.any_spent {
            spent.extend(tray.spent.many(n));
            tray.any_spent = !tray.spent.is_empty();
        }
        Some(Put {
            calls: tray.calls,
            spent: None,
        })
    }

    /// Moves everything into `lanes`, and says how many.
    pub(super) fn empty(&self, tray: &mut Tray<'j>, lanes: &mut Lanes<Entry<'j>>) -> usize {
        let uniform = !std::mem::take(&mut tray.special);
        let moved = lanes.take_over(&mut tray.tasks, uniform);
        self.note_len(tray);
        moved
    }
}

impl<'j> Tray<'j> {
    #[inline]
    fn put(&mut self, entry: Entry<'j>) {
        self.special |= !entry.is_common();
        self.tasks.push_back(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes over what is left of tasks that have run, for those who submit.
    #[inline]
    pub(super) fn take_over(&mut self, spent: &mut Box<Spent<'j>>) {
        if !self.any_spent && !spent.is_empty() {
            std::mem::swap(&mut self.spent, spent);
            self.any_spent = true;
        }
    }

    fn two_spent(&mut self) -> [Option<Left<'j>>; 2] {
        let two = self.spent.two();
        self.any_spent = !self.spent.is_empty();
        two
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_submission_touches_is_one_line() {
        assert!(size_of::<Inbox<'_>>() <= 64, "{}", size_of::<Inbox<'_>>());
    }
}
