//! A task of the family that runs one of a pool in passing.

use super::core::Core;
use super::polled::standing;
use crate::pool::hooks::{drop_quietly, wake};
use crate::pool::kin::Standing;
use crate::semaphore::OwnedSemaphorePermit;
use std::sync::Arc;
use std::task::Waker;

/// What it holds meanwhile.
pub(super) struct Guest {
    pub(super) core: Arc<Core>,
    /// A slot of the pool, unless the task works for it.
    slot: Option<OwnedSemaphorePermit>,
}

impl Guest {
    /// None for strangers; and for relatives while no slot is free: then `waker` is woken when one may be.
    pub(super) fn enter(core: &Arc<Core>, waker: &Waker) -> Option<Self> {
        let slot = match standing(core.kin) {
            Standing::Stranger => return None,
            Standing::Worker => None,
            Standing::Relative => {
                let slots = || Arc::clone(&core.settings.slots).try_acquire_owned();
                let slot = slots().or_else(|_| {
                    let mut waker = Some(waker.clone());
                    core.state.lock().relatives.wait(&mut waker);
                    // Whoever has given one up before that has called nobody.
                    slots()
                });
                Some(slot.ok()?)
            }
        };
        let core = Arc::clone(core);
        Some(Self { core, slot })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            drop_quietly(slot);
            if !seeded!("tasks_guest_leaves_quietly") {
                self.core.call_relatives();
            }
        }
    }
}

impl Core {
    /// A slot has been given up.
    pub(super) fn call_relatives(&self) {
        let called = self.state.lock().relatives.call();
        for waker in called {
            wake(Some(waker));
        }
    }
}
