//! What a task of the pool is admitted by: its policy, and slots that others share.

use crate::ask::Ask;
use crate::pool::cell::Ran;
use crate::pool::error::TaskError;
use crate::pool::gate::{Admitted, Gate, finish, poll_admitting};
use crate::pool::hooks::drop_quietly;
use crate::semaphore::{InTurn, OwnedSemaphorePermit, Semaphore};
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::sync::turn::TurnstileId;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

#[derive(Clone)]
pub(in crate::pool) struct Admission {
    pub(in crate::pool) gate: Option<Arc<dyn Gate>>,
    /// Slots that were given to the pool.
    pub(in crate::pool) slots: Option<Arc<Semaphore>>,
}

/// What a task runs under.
pub(in crate::pool) struct Ticket {
    admitted: Admitted,
    slot: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// The task has ended.
    pub(in crate::pool) fn finish(self, ran: Ran) {
        finish(self.admitted, ran);
        drop_quietly(self.slot);
    }

    /// No task has started.
    pub(in crate::pool) fn cancel(self) {
        if let Some(admitted) = self.admitted {
            admitted.cancel();
        }
        drop_quietly(self.slot);
    }
}

/// Why a task is not admitted.
pub(in crate::pool) enum Refused {
    Task(TaskError),
    /// The slots have been closed: no task will be.
    Closed,
}

/// An admission that is waited for.
pub(in crate::pool) struct Asking {
    pub(in crate::pool) ask: Ask,
    admitting: Pin<Box<dyn Future<Output = Result<Ticket, Refused>> + Send>>,
    bell: Arc<Bell>,
}

/// Wakes the worker that asks, and tells this from its other calls: those do not have what it waits for polled, which would cost a
/// place in a queue where others have the slots.
struct Bell {
    rung: AtomicBool,
    worker: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // Release: what was done before is seen by the poll. Pairs with the swap there.
        self.rung.store(true, Ordering::Release);
        self.worker.wake_by_ref();
    }
}

impl Asking {
    pub(in crate::pool) fn poll(&mut self) -> Poll<Result<Ticket, Refused>> {
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
    /// True when something else than the pool's own slots admits tasks.
    pub(in crate::pool) fn is_gated(&self) -> bool {
        self.gate.is_some() || self.slots.is_some()
    }

    /// The queues whose permits a task holds while it runs.
    pub(in crate::pool) fn held(&self) -> Vec<TurnstileId> {
        let mut held = Vec::new();
        if let Some(gate) = &self.gate {
            gate.held(&mut held);
        }
        held.extend(self.slots.as_deref().map(TurnstileId::of));
        held
    }

    /// Asks for the worker that is woken so, always by this waker.
    pub(in crate::pool) fn ask(&self, ask: Ask, worker: &Waker) -> Asking {
        Asking {
            ask,
            admitting: Box::pin(self.clone().admit(ask)),
            bell: Arc::new(Bell {
                rung: AtomicBool::new(true),
                worker: worker.clone(),
            }),
        }
    }

    /// Both, the slot and the admission by the policy. Neither is waited for with the other in hand.
    async fn admit(self, ask: Ask) -> Result<Ticket, Refused> {
        let mut lost_slot = false;
        loop {
            let mut slot = match &self.slots {
                Some(slots) => Some(InTurn::at(Arc::clone(slots)).await.ok_or(Refused::Closed)?),
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
                Some(Err(why)) => return Err(Refused::Task(why)),
                None => lost_slot = true,
            }
        }
    }
}
