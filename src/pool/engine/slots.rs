//! Counts the slots of a pool, as plain numbers.
//!
//! A started task that has not ended either runs or is parked: it waits for another task through its handle. A parked
//! task lends its slot. Only awaited tasks may start on lent slots.
//!
//! | number | meaning |
//! |---|---|
//! | `limit` | slots |
//! | `started` | tasks that have started and not ended |
//! | `parked` | started tasks that wait for another task |
//! | `borrowed` | started tasks that began on a lent slot and have not inherited a slot of their own since |
//!
//! - An awaited task starts while `started - parked < limit`: fewer tasks run than there are slots.
//! - Any other task also needs `started - borrowed < limit`: a slot that is not merely lent. So at most `limit` tasks
//!   that no task awaits have started and not ended, regardless of the number of parked ones.
//! - A parked task resumes at once. More than `limit` tasks may run then, and no task starts until fewer than `limit`
//!   run.

/// The slots of a pool. See the [module](self).
#[derive(Clone, Debug)]
pub(in crate::pool) struct Slots {
    pub(super) limit: usize,
    started: usize,
    pub(super) parked: usize,
    borrowed: usize,
    /// The number of tasks that started on a lent slot and have not ended, with or without an inherited slot.
    borrowers: usize,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            started: 0,
            parked: 0,
            borrowed: 0,
            borrowers: 0,
        }
    }

    /// Returns the number of awaited tasks that may start now.
    pub(super) fn lent(&self) -> usize {
        self.limit.saturating_sub(self.started - self.parked)
    }

    /// Returns the number of tasks that no task awaits and that may start now.
    pub(super) fn free(&self) -> usize {
        self.limit.saturating_sub(self.started - self.borrowed).min(self.lent())
    }

    /// Starts a task, for which there is a slot. Returns true if the task borrows that slot.
    pub(super) fn start(&mut self) -> bool {
        debug_assert!(self.lent() > 0);
        let borrows = self.started - self.borrowed >= self.limit;
        self.borrowed += usize::from(borrows);
        self.borrowers += usize::from(borrows);
        self.started += 1;
        borrows
    }

    /// Ends a running task, which borrowed its slot or not. The slot goes to a borrower that has no parked task left to
    /// borrow from.
    pub(super) fn end(&mut self, borrowed: bool) {
        self.started -= 1;
        self.borrowers -= usize::from(borrowed);
        if self.borrowed > self.parked.min(self.borrowers) {
            self.borrowed -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_parked_task_lends_its_slot_to_awaited_tasks_only() {
        let mut slots = Slots::new(1);
        assert!(!slots.start());
        assert_eq!((slots.lent(), slots.free()), (0, 0));
        slots.parked += 1;
        assert_eq!((slots.lent(), slots.free()), (1, 0));
        assert!(slots.start());
        assert_eq!(slots.lent(), 0, "the lent slot is taken");
        slots.parked -= 1;
        assert_eq!(slots.started - slots.parked, 2, "resuming does not wait");
        slots.end(false);
        assert_eq!(slots.lent(), 0, "the borrower inherits the slot");
        slots.end(true);
        assert_eq!((slots.lent(), slots.free(), slots.started), (1, 1, 0));
    }

    #[test]
    fn a_lowered_limit_starts_nothing_until_fewer_run() {
        let mut slots = Slots::new(3);
        (0..3).for_each(|_| _ = slots.start());
        slots.limit = 1;
        slots.end(false);
        slots.end(false);
        assert_eq!(slots.free(), 0);
        slots.end(false);
        assert_eq!(slots.free(), 1);
    }

    #[test]
    fn a_borrower_takes_only_the_slot_of_its_waiter() {
        let mut slots = Slots::new(2);
        slots.start();
        slots.start();
        slots.parked += 1;
        assert!(slots.start());
        slots.end(false);
        assert_eq!(slots.free(), 1, "the waiter still lends its slot");
        assert!(!slots.start());
        slots.parked -= 1;
        assert_eq!((slots.free(), slots.lent()), (0, 0));
        slots.end(true);
        slots.end(false);
        assert_eq!(slots.free(), 1);
    }

    #[test]
    fn a_borrower_that_inherited_its_slot_leaves_other_borrowers_alone() {
        let mut slots = Slots::new(2);
        slots.start();
        slots.start();
        slots.parked += 1;
        assert!(slots.start());
        slots.parked -= 1;
        slots.end(false);
        slots.parked += 1;
        assert!(slots.start(), "it borrows the same slot");
        slots.end(true);
        assert_eq!(slots.free(), 1);
    }

    proptest! {
        /// Given any operations, when a task starts, then at most `limit` tasks run, and at most `limit` tasks hold
        /// slots of their own.
        #[test]
        fn no_start_exceeds_the_limit(limit in 1usize..5, steps in prop::collection::vec((0u8..5, 0usize..8), 0..200)) {
            let mut slots = Slots::new(limit);
            let (mut running, mut parked) = (Vec::new(), Vec::new());
            for (step, which) in steps {
                match step {
                    0 if slots.free() > 0 => running.push(slots.start()),
                    1 if slots.lent() > 0 => running.push(slots.start()),
                    2 if !running.is_empty() => {
                        parked.push(running.swap_remove(which % running.len()));
                        slots.parked += 1;
                    }
                    3 if !parked.is_empty() => {
                        running.push(parked.swap_remove(which % parked.len()));
                        slots.parked -= 1;
                    }
                    4 if !running.is_empty() => slots.end(running.swap_remove(which % running.len())),
                    _ => continue,
                }
                prop_assert_eq!((slots.started, slots.parked), (running.len() + parked.len(), parked.len()));
                prop_assert!(slots.started - slots.borrowed <= limit);
                prop_assert!(step > 1 || running.len() <= limit);
                // No slot is lost: if fewer tasks run than there are slots, and no slot is lent, a slot is free.
                prop_assert!(running.len() >= limit || slots.free() > 0 || !parked.is_empty());
            }
        }
    }
}
