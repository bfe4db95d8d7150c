//! What tasks and items are admitted by: a policy, and slots that others share.

use super::error::TaskError;
use super::gate::{Admitted, Gate, poll_admitting};
use super::hooks::drop_quietly;
use crate::core::ask::Ask;
use crate::core::limiter::Outcome;
use crate::semaphore::{OwnedSemaphorePermit, PassiveAcquire, Semaphore};
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::sync::wait_queue::QueueId;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) gate: Option<Arc<dyn Gate>>,
    /// Slots that the user gave, and that others may share.
    pub(crate) slots: Option<Arc<Semaphore>>,
}

/// What a task runs under.
pub(crate) struct Ticket {
    admitted: Admitted,
    slot: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// The task has ended.
    pub(crate) fn finish(self, outcome: impl Into<Outcome>) {
        if let Some(admitted) = self.admitted {
            admitted.finish(outcome.into());
        }
        drop_quietly(self.slot);
    }

    /// True while the slot need not go to a waiter, and there are no fewer slots now.
    #[cfg(feature = "fan-out")]
    pub(crate) fn may_keep(&self) -> bool {
        let slots = self.slot.as_ref().map(OwnedSemaphorePermit::semaphore);
        slots.is_none_or(|slots| slots.debt() == 0 && !slots.is_closed() && slots.waiting() == 0)
    }

    /// The task has ended. The slot stays for the next task, where it [may](Self::may_keep).
    #[cfg(feature = "fan-out")]
    pub(crate) fn finish_task(mut self, outcome: Outcome) -> Option<Self> {
        let kept = if self.may_keep() { self.slot.take() } else { None };
        self.finish(outcome);
        kept.map(|slot| Self {
            admitted: None,
            slot: Some(slot),
        })
    }

    /// No task has started.
    pub(crate) fn cancel(self) {
        if let Some(admitted) = self.admitted {
            admitted.cancel();
        }
        drop_quietly(self.slot);
    }
}

/// Why a task is not admitted.
pub(crate) enum Refused {
    Task(TaskError),
    /// The slots have been closed: no task will be.
    Closed,
}

/// An admission that is waited for.
pub(crate) struct Asking {
    pub(crate) ask: Ask,
    admitting: Pin<Box<dyn Future<Output = Result<Ticket, Refused>> + Send>>,
    bell: Arc<Bell>,
}

/// Wakes the asker, and tells this from its other wake-ups: those do not poll what it waits for, which would cost a place in a
/// queue where others have the slots.
struct Bell {
    rung: AtomicBool,
    waker: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // Release: what was done before is seen by the poll. Pairs with the swap there.
        self.rung.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

impl Asking {
    pub(crate) fn poll(&mut self) -> Poll<Result<Ticket, Refused>> {
        // Acquire: pairs with the store of the bell.
        if !self.bell.rung.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&self.bell));
        let mut cx = Context::from_waker(&waker);
        catch_unwind(AssertUnwindSafe(|| self.admitting.as_mut().poll(&mut cx)))
            .unwrap_or_else(|payload| Poll::Ready(Err(Refused::Task(TaskError::Panicked(payload)))))
    }
}

impl Admission {
    /// True when something else than slots of its own admits tasks.
    pub(crate) fn is_gated(&self) -> bool {
        self.gate.is_some() || self.slots.is_some()
    }

    /// True when a task that has `kept` this of the one before waits for nothing else.
    #[cfg(feature = "fan-out")]
    pub(crate) fn is_done(&self, kept: Option<&Ticket>) -> bool {
        self.gate.is_none() && (self.slots.is_none() || kept.is_some())
    }

    /// The queues whose permits a task holds while it runs.
    pub(crate) fn held(&self) -> Vec<QueueId> {
        let mut held = Vec::new();
        if let Some(gate) = &self.gate {
            gate.held(&mut held);
        }
        held.extend(self.slots.as_deref().map(QueueId::of));
        held
    }

    /// Begins to ask, for an asker that is woken for other reasons as well. `waker` is woken when it is to be polled.
    pub(crate) fn ask(&self, ask: Ask, waker: &Waker) -> Asking {
        let admission = self.clone();
        Asking {
            ask,
            admitting: Box::pin(async move { admission.admit(ask, None).await }),
            bell: Arc::new(Bell {
                rung: AtomicBool::new(true),
                waker: waker.clone(),
            }),
        }
    }

    /// Both, the slot and the admission by the policy. Neither is waited for with the other in hand. `kept` may have a slot.
    pub(crate) async fn admit(&self, ask: Ask, kept: Option<Ticket>) -> Result<Ticket, Refused> {
        let (mut kept, mut lost_slot) = (kept.and_then(|ticket| ticket.slot), false);
        loop {
            let mut slot = match &self.slots {
                Some(_) if kept.is_some() => kept.take(),
                Some(slots) => Some(PassiveAcquire::at(Arc::clone(slots)).await.ok_or(Refused::Closed)?),
                None => None,
            };
            let Some(gate) = &self.gate else {
                return Ok(Ticket { admitted: None, slot });
            };
            let mut admitting = gate.admit(ask);
            let polled = poll_fn(|cx| {
                if let (Some(slots), None) = (&self.slots, &slot) {
                    slot = Arc::clone(slots).try_acquire_owned().ok();
                    if slot.is_none() {
                        return Poll::Ready(None);
                    }
                }
                if let Poll::Ready(admitted) = poll_admitting(&mut admitting, cx) {
                    return Poll::Ready(Some(admitted));
                }
                if std::mem::take(&mut lost_slot) && !seeded!("tasks_hand_both_on") {
                    // One more look. The holder of the admission may be giving it back for this very slot; and those that share both
                    // could hand them on, each to one that lacks the other, for ever.
                    cx.waker().wake_by_ref();
                } else if !seeded!("tasks_wait_at_the_gate_with_their_slot") {
                    drop_quietly(slot.take());
                }
                Poll::Pending
            })
            .await;
            drop_quietly(admitting);
            match polled {
                Some(Ok(admitted)) => return Ok(Ticket { admitted, slot }),
                Some(Err(why)) => {
                    // A waiter that is woken by it may panic.
                    drop_quietly(slot);
                    return Err(Refused::Task(why));
                }
                None => lost_slot = true,
            }
        }
    }
}
