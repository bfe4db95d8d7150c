//! What is left of tasks that have run: memory, which goes back to those that submit.
//!
//! An allocator is slow where one thread makes what another frees, and slower still where both do so at once. So workers
//! free little themselves: they hand over what is left of small tasks when they take the lock of the pool for new ones,
//! and each submission, which has the lock as well, frees what is left of two.

use super::entry::Entry;

/// How many a pool keeps, at most; workers free what is beyond.
const MOST: usize = 128;
/// How many a worker gathers until then, at most.
const GATHERED: usize = 16;
/// What takes more bytes is freed at once.
const SMALL: usize = 256;

/// Of one worker.
#[derive(Default)]
pub(super) struct Gathered<'j>(Vec<Entry<'j>>);

impl<'j> Gathered<'j> {
    /// `entry` has run. Not to be called under a lock.
    #[inline]
    pub(super) fn add(&mut self, entry: Entry<'j>) {
        if self.0.len() == GATHERED {
            self.0.clear();
        }
        if entry.size() <= SMALL {
            self.0.push(entry);
        }
    }
}

/// Of the whole pool.
#[derive(Default)]
pub(super) struct Spent<'j>(Vec<Entry<'j>>);

impl<'j> Spent<'j> {
    /// Takes over as much as there is room for.
    pub(super) fn take_over(&mut self, gathered: &mut Gathered<'j>) {
        let fit = gathered.0.len().min(MOST - self.0.len());
        self.0.extend(gathered.0.drain(..fit));
    }

    /// What one submission frees, after the lock.
    #[inline]
    #[must_use]
    pub(super) fn two(&mut self) -> [Option<Entry<'j>>; 2] {
        [self.0.pop(), self.0.pop()]
    }

    /// What the submission of `n` tasks frees, after the lock.
    #[must_use]
    pub(super) fn many(&mut self, n: usize) -> impl Iterator<Item = Entry<'j>> {
        let rest = self.0.len().saturating_sub(2 * n);
        self.0.drain(rest..)
    }
}
