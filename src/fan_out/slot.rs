//! What an item runs under: a slot, which its runner keeps from item to item while nobody else is to have it, and the
//! admission of the policy, which is its own.
//!
//! Whoever waits for either may be anybody's: a waker that panics when they are given back ends no runner.

use super::shared::Settings;
use crate::ask::Ask;
use crate::limiter::Outcome;
use crate::pool::{Admission, Gate, TaskError, drop_quietly, poll_admitting};
use crate::semaphore::{InTurn, OwnedSemaphorePermit, Semaphore};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

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

    /// True while it need not go to somebody else, or to nobody: also those of a semaphore that was closed go.
    pub(super) fn may_keep(&self) -> bool {
        self.slots.debt() == 0 && !self.slots.is_closed() && !(self.shared && self.slots.waiting() > 0)
    }

    pub(super) fn give_up(&mut self) {
        drop_quietly(self.permit.take());
    }

    /// Holds a slot, and `admitted` what the policy gives; or says why the policy refuses.
    ///
    /// A slot that others could use is given up while the policy lets this one wait: those who share slots do not wait for a
    /// policy that is not theirs. Nor is a slot waited for with an admission in hand: if none is free when the policy is
    /// looked at again, the place there is given up, with what may have come to it, and the policy is asked anew once there
    /// is a slot.
    ///
    /// # Errors
    /// The slots are closed.
    pub(super) async fn get(&mut self, admitted: &mut Admitted) -> Result<Option<TaskError>, TaskError> {
        let mut stays = false;
        loop {
            self.hold().await?;
            let Some(gate) = self.gate.clone() else { return Ok(None) };
            let mut admitting = gate.admit(Ask::one());
            let admission = poll_fn(|cx| {
                // First: what has been admitted, and does not start, would have cost a token.
                if !self.try_hold() {
                    return Poll::Ready(None);
                }
                if let Poll::Ready(admission) = poll_admitting(&mut admitting, cx) {
                    return Poll::Ready(Some(admission));
                }
                if std::mem::take(&mut stays) {
                    cx.waker().wake_by_ref();
                } else if self.shared && !seeded!("fan_out_waits_with_a_slot") {
                    self.give_up();
                }
                Poll::Pending
            });
            let admission = admission.await;
            // It leaves the policy's line, and others move up.
            drop_quietly(admitting);
            match admission {
                Some(Ok(admission)) => {
                    admitted.0 = admission;
                    return Ok(None);
                }
                Some(Err(refused)) => return Ok(Some(refused)),
                // Whoever has the admission may be giving it back, for this very slot: it is kept for one more turn. Else
                // those who share both could hand them on, each to one who lacks the other, for ever.
                None => stays = true,
            }
        }
    }

    async fn hold(&mut self) -> Result<(), TaskError> {
        if self.permit.is_none() {
            let permit = InTurn::at(Arc::clone(&self.slots)).await;
            // Only a semaphore that was closed has none to come.
            self.permit = Some(permit.ok_or(TaskError::Abandoned)?);
        }
        Ok(())
    }

    /// Holds a slot, if it does already, or one is free and nobody waits for it. True when it does.
    fn try_hold(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = Arc::clone(&self.slots).try_acquire_owned().ok();
        }
        self.permit.is_some()
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
