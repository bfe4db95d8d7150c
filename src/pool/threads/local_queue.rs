//! A worker's local queue: tasks that it has taken and not started, and that every worker may take. It holds only common tasks: of normal
//! priority and weight 1, without options.
//!
//! A task in a local queue still counts against the queue's capacity. A worker reports its started tasks together, before it looks at the
//! queue again. A submission that finds the queue full collects these reports, and while one waits, each start is reported at once.
//!
//! Other workers take from a local queue when the priority queue is empty, which may never happen. So a local queue has a due date, counted
//! in tasks taken: then its remaining tasks go back to the front of their lane in the priority queue. The worker that takes the first of them starts it,
//! and may move others to a local queue again. So a task goes back at most as many times as a local queue holds tasks.

use super::entry::Entry;
use super::kind::Threads;
use crate::pool::engine::lane::Lane;
use crate::pool::engine::queue::Entries;

#[derive(Default)]
pub(in crate::pool) struct LocalQueue<'j> {
    entries: Lane<Threads<'j>>,
    /// The number of tasks that the owner has started, and not reported under the pool's lock.
    pub(super) started: usize,
    /// The number of tasks taken at which the entries are due.
    due: u64,
}

impl<'j> LocalQueue<'j> {
    /// Takes the next task for the owner to start. True if the owner has claimed it. Otherwise the entry is dead.
    #[inline]
    pub(in crate::pool) fn start_next(&mut self) -> Option<(Entry<'j>, bool)> {
        let is_mine = self.entries.front()?.claim();
        self.started += usize::from(is_mine);
        Some((self.take()?, is_mine))
    }

    /// Takes the next task for another worker, which has yet to claim it.
    #[inline]
    pub(in crate::pool) fn take(&mut self) -> Option<Entry<'j>> {
        self.entries.pop()
    }

    /// Takes `n` common tasks from the queue, or all if there are fewer, until `due`.
    pub(in crate::pool) fn load(&mut self, n: usize, due: u64, queue: &mut Entries<Threads<'j>>) {
        queue.move_to(&mut self.entries, n);
        self.due = due;
    }

    /// Returns the due date, unless the local queue is empty.
    pub(in crate::pool) fn due(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.due)
    }

    pub(in crate::pool) fn put_back(&mut self, queue: &mut Entries<Threads<'j>>) {
        let entries: Vec<_> = self.entries.drain().collect();
        entries.into_iter().rev().for_each(|entry| queue.push_front(entry));
    }
}
