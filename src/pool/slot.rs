//! The slot of a worker or a runner: a permit that it keeps from task to task, while nobody else is to have it.
//!
//! Where others take permits of the same semaphore, a slot goes to whoever waits for it after one task, and not before:
//! two busy pools that share one permit would else hand it to and fro without using it, at worst for ever.

use super::hooks::drop_quietly;
use crate::semaphore::{Semaphore, SemaphorePermit};

pub(super) struct Slot<'a> {
    slots: &'a Semaphore,
    /// Others hold permits of these slots as well.
    shared: bool,
    permit: Option<SemaphorePermit<'a>>,
    /// A task has started with this permit.
    used: bool,
    /// It was lost while the policy was waited for.
    was_lost: bool,
}

impl<'a> Slot<'a> {
    pub(super) fn none_of(slots: &'a Semaphore, shared: bool) -> Self {
        Self {
            slots,
            shared,
            permit: None,
            used: false,
            was_lost: false,
        }
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.permit.is_some()
    }

    pub(super) fn hold(&mut self, permit: SemaphorePermit<'a>) {
        self.permit = Some(permit);
        self.used = false;
    }

    /// Holds a permit, if one is free and nobody waits for it. True when it does.
    pub(super) fn try_hold(&mut self) -> bool {
        if let Ok(permit) = self.slots.try_acquire() {
            self.hold(permit);
        }
        self.is_held()
    }

    /// The same for one that may hold it already.
    pub(super) fn try_hold_again(&mut self) -> bool {
        self.is_held() || self.try_hold()
    }

    /// Whoever waits for it is woken, and may panic at that: this thread goes on.
    pub(super) fn give_up(&mut self) {
        if let Some(permit) = self.permit.take() {
            drop_quietly(permit);
        }
    }

    /// It could not be held again: the task goes back, and comes again with a slot.
    pub(super) fn lose(&mut self) {
        self.give_up();
        self.was_lost = true;
    }

    /// True once after that: then it is kept for one more look at the policy. Whoever has the admission may be giving it back
    /// for this very slot; and those who share both could hand them on, each to one who lacks the other, for ever.
    pub(super) fn stays(&mut self) -> bool {
        std::mem::take(&mut self.was_lost)
    }

    /// A task starts with it.
    #[inline]
    pub(super) fn note_start(&mut self) {
        self.used = true;
    }

    /// True while it need not go to somebody else, or to nobody: also those of a semaphore that was closed go.
    #[inline]
    pub(super) fn may_keep(&self) -> bool {
        let used = self.used || seeded!("pool_hands_to_and_fro");
        self.slots.debt() == 0 && !self.slots.is_closed() && !(self.shared && used && self.slots.waiting() > 0)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
