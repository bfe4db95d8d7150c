//! What an item runs under: a slot, which its runner keeps from item to item while nobody else is to have it, and the
//! admission of the policy, which is its own.
//!
//! Whoever waits for either may be anybody's: a waker that panics when they are given back ends no runner.

use super::shared::Settings;
use crate::ask::Ask;
use crate::limiter::Outcome;
use crate::pool::{Admission, Gate, TaskError, Waiter, drop_quietly, poll_admitting};
use crate::semaphore::{InTurn, OwnedSemaphorePermit, Semaphore};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(super) struct Slot {
    slots: Arc<Semaphore>,
    /// Others hold permits of these slots as well.
    shared: bool,
    gate: Option<Arc<dyn Gate>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Slot {
    pub(super) fn none_of<T>(settings: &Settings<T>) -> Self {
        Self {
            slots: Arc::clone(&settings.slots),
            shared: settings.shared_slots,
            gate: settings.gate.clone(),
            permit: None,
        }
    }

    /// True while it need not go to somebody else, or to nobody.
    pub(super) fn may_keep(&self) -> bool {
        self.slots.debt() == 0 && !(self.shared && self.slots.waiting() > 0)
    }

    pub(super) fn give_up(&mut self) {
        drop_quietly(self.permit.take());
    }

    /// Holds a slot, and `admitted` what the policy gives; or says why the policy refuses.
    ///
    /// A slot that others could use is given up while the policy lets this one wait, and got again once it has admitted:
    /// those who share slots do not wait for a policy that is not theirs.
    ///
    /// # Errors
    /// The slots are closed.
    pub(super) async fn get(&mut self, admitted: &mut Admitted) -> Result<Option<TaskError>, TaskError> {
        self.hold().await?;
        let Some(gate) = self.gate.clone() else { return Ok(None) };
        let mut admitting = gate.admit(Ask::one(), Waiter::RUNNER);
        let admission = poll_fn(|cx| {
            let polled = poll_admitting(&mut admitting, cx);
            if polled.is_pending() && self.shared && !seeded!("fan_out_waits_with_a_slot") {
                self.give_up();
            }
            polled
        });
        let admission = admission.await;
        // It leaves the policy's line, and others move up.
        drop_quietly(admitting);
        match admission {
            Ok(admission) => admitted.0 = admission,
            Err(refused) => return Ok(Some(refused)),
        }
        self.hold().await?;
        Ok(None)
    }

    async fn hold(&mut self) -> Result<(), TaskError> {
        if self.permit.is_none() {
            let permit = InTurn::at(Arc::clone(&self.slots)).await;
            // Only a semaphore that was closed has none to come.
            self.permit = Some(permit.ok_or(TaskError::Abandoned)?);
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// What the policy in front of the items has given for one of them, if there is one.
#[derive(Default)]
pub(super) struct Admitted(Option<Box<dyn Admission>>);

impl Admitted {
    /// The item has ended.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        if let Some(admission) = self.0.take() {
            drop_quietly(catch_unwind(AssertUnwindSafe(|| admission.finish(outcome))));
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        drop_quietly(self.0.take());
    }
}
