//! The slots of a pool, or of a group, as plain numbers.
//!
//! A task that has started and not ended either runs or is parked: it waits for another task through a handle of ours. A parked
//! task lends its slot. Only tasks that are awaited may start on lent slots.
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

/// How a task takes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A slot that is free.
    Free,
    /// A slot that is free or lent: a task awaits this one.
    Lent,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    limit: usize,
    started: usize,
    parked: usize,
    borrowed: usize,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            started: 0,
            parked: 0,
            borrowed: 0,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Tasks that run, the parked ones not among them.
    pub(crate) fn running(&self) -> usize {
        self.started - self.parked
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// True when a task may start now.
    pub(crate) fn admits(&self, claim: Claim) -> bool {
        self.running() < self.limit && (claim == Claim::Lent || self.started - self.borrowed < self.limit)
    }

    /// True when a task may start on the slot of one that parks to wait for it: nothing is overdrawn.
    pub(crate) fn admits_on_waiter(&self) -> bool {
        self.limit > 0 && self.running() <= self.limit
    }

    /// A task starts, which [`admits`](Self::admits) allows.
    pub(crate) fn start(&mut self) {
        debug_assert!(self.admits(Claim::Lent));
        if self.started - self.borrowed >= self.limit {
            self.borrowed += 1;
        }
        self.started += 1;
    }

    /// A task starts on the slot of the task that has just parked to wait for it.
    pub(crate) fn start_on_waiter(&mut self) {
        debug_assert!(self.parked > 0);
        self.borrowed += 1;
        self.started += 1;
    }

    /// A task ends. The slot of a holder that ends goes to a borrower, if there is one.
    pub(crate) fn end(&mut self) {
        self.started -= 1;
        self.borrowed = self.borrowed.saturating_sub(1);
    }

    pub(crate) fn park(&mut self) {
        self.parked += 1;
    }

    pub(crate) fn resume(&mut self) {
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
        assert!(!slots.admits(Claim::Lent));
        slots.park();
        assert!(slots.admits(Claim::Lent) && !slots.admits(Claim::Free));
        slots.start();
        assert!(!slots.admits(Claim::Lent), "the lent slot is taken");
        slots.resume();
        assert_eq!(slots.running(), 2, "resuming does not wait");
        slots.end();
        assert!(!slots.admits(Claim::Lent), "the borrower has the slot now");
        slots.end();
        assert!(slots.admits(Claim::Free) && slots.started == 0);
    }

    proptest! {
        /// Given any operations, at most `limit` tasks run right after one starts, and at most `limit` tasks hold slots of their own.
        #[test]
        fn no_start_exceeds_the_limit(limit in 1usize..5, steps in prop::collection::vec(0u8..6, 0..200)) {
            let mut slots = Slots::new(limit);
            for step in steps {
                match step {
                    0 if slots.admits(Claim::Free) => slots.start(),
                    1 if slots.parked() > 0 && slots.admits(Claim::Lent) => slots.start(),
                    2 if slots.running() > 0 => slots.park(),
                    3 if slots.parked() > 0 => { slots.resume(); continue }
                    4 if slots.running() > 0 => { slots.end(); continue }
                    5 if slots.running() > 0 && slots.admits_on_waiter() => {
                        slots.park();
                        slots.start_on_waiter();
                    }
                    _ => continue,
                }
                prop_assert!(slots.running() <= limit || step == 2);
                prop_assert!(slots.started - slots.borrowed <= limit);
                prop_assert!(slots.borrowed <= slots.started);
            }
        }
    }
}
