//! A worker's local queue: tasks that it has taken and not started, and that every worker may take. It holds only common tasks: of normal
//! priority and weight 1, without options.
//!
//! A task in a local queue still counts against the queue's capacity. A worker gives back the capacity of its started tasks together,
//! before it looks at the queue again; until then it owes that capacity. Owed capacity neither refuses a submission nor keeps one waiting:
//! a submission that finds the queue full presses, and collects the owed capacity.
//!
//! Other workers take from a local queue when the priority queue is empty, which may never happen. So a local queue has a due date, counted
//! in tasks taken: then its remaining tasks go back to the front of the priority queue. The worker that takes the first of them starts it,
//! and may move others to a local queue again. So a task goes back at most as many times as a local queue holds tasks.

use super::entry::Entry;
use super::kind::Threads;
use crate::pool::engine::lane::Lane;
use crate::pool::engine::priority_queue::PriorityQueue;

#[derive(Default)]
pub(in crate::pool) struct LocalQueue<'j> {
    entries: Lane<Threads<'j>>,
    owed: usize,
    /// The number of tasks that the owner has started and not reported.
    started: usize,
    /// The number of tasks taken at which the entries are due.
    due: u64,
}

impl<'j> LocalQueue<'j> {
    /// Takes the next task for the owner to start. True if the owner has claimed it, and owes its place. Otherwise the entry is dead.
    #[inline]
    pub(in crate::pool) fn start_next(&mut self) -> Option<(Entry<'j>, bool)> {
        let is_mine = self.entries.front()?.claim();
        self.owed += usize::from(is_mine);
        self.started += usize::from(is_mine);
        Some((self.take()?, is_mine))
    }

    /// Takes the next task for another worker, which has yet to claim it.
    #[inline]
    pub(in crate::pool) fn take(&mut self) -> Option<Entry<'j>> {
        self.entries.pop()
    }

    /// Takes `n` common tasks from the queue, or all if there are fewer, until `due`.
    pub(in crate::pool) fn load(&mut self, n: usize, due: u64, by_priority: &mut PriorityQueue<Threads<'j>>) {
        by_priority.move_to(&mut self.entries, n);
        self.due = due;
    }

    /// Returns the due date, unless the local queue is empty.
    pub(in crate::pool) fn due(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.due)
    }

    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(in crate::pool) fn started(&self) -> usize {
        self.started
    }

    /// Takes the number of started tasks to report. Called under the pool's lock.
    pub(in crate::pool) fn report_started(&mut self) -> usize {
        std::mem::take(&mut self.started)
    }

    /// Takes the number of tasks whose capacity is owed. The caller puts it back under the same lock.
    #[inline]
    #[must_use]
    pub(in crate::pool) fn owed(&mut self) -> usize {
        std::mem::take(&mut self.owed)
    }

    pub(in crate::pool) fn put_back(&mut self, by_priority: &mut PriorityQueue<Threads<'j>>) {
        let entries: Vec<_> = self.entries.drain().collect();
        entries
            .into_iter()
            .rev()
            .for_each(|entry| by_priority.push_front(entry));
    }
}
