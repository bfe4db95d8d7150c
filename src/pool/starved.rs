//! A pool that has work and could have one more worker, but for a slot: it is called when one is free.
//!
//! It stands in no line for it: a slot that nobody would use at once is not kept from others. It watches, and whoever gives
//! a slot back, or raises the limit, calls. The watch ends with that.

use super::core::Core;
use super::state::State;
use crate::sync::watchers::Rest;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

impl<'j> Core<'j> {
    /// True when a worker that is started now would find a slot. Otherwise the pool grows when there is one.
    pub(super) fn has_free_slot(&self, state: &mut State<'j>) -> bool {
        let slots = &self.settings.slots;
        if slots.available_permits() > 0 {
            return true;
        }
        // A pool whose tasks borrow has no such waker: there, submissions and workers try again.
        match self.root().slots_waker.get() {
            Some(waker) => !slots.watch(&mut state.slot_watch, Rest::Free, || waker.clone()),
            None => false,
        }
    }

    /// The pool at the root of the family.
    fn root(&self) -> &Self {
        self.settings.above.as_ref().map_or(self, |above| above.root())
    }

    /// A slot of this pool, or of one below it, may be free.
    fn grow_family(self: &Arc<Self>) {
        self.grow();
        let children = self.lock().children();
        for child in children {
            child.grow_family();
        }
    }
}

/// What slots wake: it knows the root of the family, as only that one's tasks are known not to borrow.
pub(super) struct SlotIsFree(Weak<Core<'static>>);

impl SlotIsFree {
    pub(super) fn waker(root: &Arc<Core<'static>>) -> Waker {
        Waker::from(Arc::new(Self(Arc::downgrade(root))))
    }
}

impl Wake for SlotIsFree {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(root) = self.0.upgrade()
            && !seeded!("pool_misses_a_slot")
        {
            root.grow_family();
        }
    }
}
