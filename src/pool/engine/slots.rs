//! The slots of a pool as plain numbers.
//!
//! A task that has started and not ended either runs or is parked: it waits for another task through its handle. A parked task
//! lends its slot. Only tasks that are awaited may start on lent slots.
//!
//! | number | what it counts |
//! |---|---|
//! | `limit` | slots |
//! | `started` | tasks that have started and not ended |
//! | `parked` | those of them that wait for another task |
//! | `borrowed` | those of them that started on a lent slot, and have not inherited a slot of their own since |
//!
//! - A task that is awaited starts while `started - parked < limit`: fewer tasks run than there are slots.
//! - Any other task needs in addition `started - borrowed < limit`: a slot that is not merely lent. So at most `limit` tasks that
//!   nothing awaits are started and not ended, however many of them are parked.
//! - A parked task resumes at once. More tasks than `limit` may run then, and none starts until they are fewer again.

/// See the [module](self).
#[derive(Clone, Debug)]
pub(in crate::pool) struct Slots {
    limit: usize,
    started: usize,
    parked: usize,
    borrowed: usize,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            started: 0,
            parked: 0,
            borrowed: 0,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn parked(&self) -> usize {
        self.parked
    }

    /// How many tasks that are awaited may start now.
    pub(super) fn lent(&self) -> usize {
        self.limit.saturating_sub(self.started - self.parked)
    }

    /// How many tasks that nothing awaits may start now.
    pub(super) fn free(&self) -> usize {
        self.limit.saturating_sub(self.started - self.borrowed).min(self.lent())
    }

    /// A task starts, for which there is a slot.
    pub(super) fn start(&mut self) {
        debug_assert!(self.lent() > 0);
        if self.started - self.borrowed >= self.limit {
            self.borrowed += 1;
        }
        self.started += 1;
    }

    /// A task that runs ends. Its slot goes to a borrower, if there is one.
    pub(super) fn end(&mut self) {
        self.started -= 1;
        self.borrowed = self.borrowed.saturating_sub(1);
    }

    pub(super) fn park(&mut self) {
        self.parked += 1;
    }

    pub(super) fn resume(&mut self) {
        self.parked -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_parked_task_lends_its_slot_to_awaited_tasks_only() {
        let mut slots = Slots::new(1);
        slots.start();
        assert_eq!((slots.lent(), slots.free()), (0, 0));
        slots.park();
        assert_eq!((slots.lent(), slots.free()), (1, 0));
        slots.start();
        assert_eq!(slots.lent(), 0, "the lent slot is taken");
        slots.resume();
        assert_eq!(slots.started - slots.parked, 2, "resuming does not wait");
        slots.end();
        assert_eq!(slots.lent(), 0, "the borrower has the slot now");
        slots.end();
        assert_eq!((slots.lent(), slots.free(), slots.started), (1, 1, 0));
    }

    #[test]
    fn a_lowered_limit_starts_nothing_until_fewer_run() {
        let mut slots = Slots::new(3);
        (0..3).for_each(|_| slots.start());
        slots.set_limit(1);
        slots.end();
        slots.end();
        assert_eq!(slots.free(), 0);
        slots.end();
        assert_eq!(slots.free(), 1);
    }

    proptest! {
        /// Given any operations, at most `limit` tasks run right after one starts, and at most `limit` tasks hold slots of their own.
        #[test]
        fn no_start_exceeds_the_limit(limit in 1usize..5, steps in prop::collection::vec(0u8..5, 0..200)) {
            let mut slots = Slots::new(limit);
            for step in steps {
                match step {
                    0 if slots.free() > 0 => slots.start(),
                    1 if slots.parked() > 0 && slots.lent() > 0 => slots.start(),
                    2 if slots.started > slots.parked => slots.park(),
                    3 if slots.parked() > 0 => { slots.resume(); continue }
                    4 if slots.started > slots.parked => { slots.end(); continue }
                    _ => continue,
                }
                prop_assert!(slots.started - slots.parked <= limit || step == 2);
                prop_assert!(slots.started - slots.borrowed <= limit);
                prop_assert!(slots.borrowed <= slots.started);
            }
        }
    }
}
