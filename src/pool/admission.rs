//! Admits tasks and items: by a policy, whose type is erased, by slots that several users share, or by both.

use super::cell::Ran;
use super::engine::waits::PermitsId;
use super::error::TaskError;
use super::hooks::{drop_quietly, quietly};
use crate::core::ask::Ask;
use crate::core::limiter::{Limiter, Outcome};
use crate::core::permit::Permit;
use crate::core::refusal::Refusal;
use crate::policy::Policy;
use crate::semaphore::{OwnedSemaphorePermit, Semaphore};
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) gate: Option<Arc<dyn Gate>>,
    /// Slots given by the user, which others may share.
    pub(crate) slots: Option<Arc<Semaphore>>,
}

/// The admission under which a task runs.
#[derive(Default)]
pub(crate) struct Ticket {
    pub(crate) admitted: Admitted,
    slot: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// Ends the admission of a task that has ended.
    pub(crate) fn finish(self, outcome: impl Into<Outcome>) {
        if let Some(admitted) = self.admitted {
            admitted.finish(outcome.into());
        }
        drop_quietly(self.slot);
    }

    /// Gives the admission back: no task has started under it.
    pub(crate) fn cancel(self) {
        if let Some(admitted) = self.admitted {
            admitted.cancel();
        }
        drop_quietly(self.slot);
    }
}

/// The reason that a task is not admitted.
pub(crate) enum Refused {
    Task(TaskError),
    /// The slots have been closed, so no task will be admitted.
    Closed,
}

/// A pending admission.
pub(crate) struct Asking {
    pub(crate) ask: Ask,
    admitting: Pin<Box<dyn Future<Output = Result<Ticket, Refused>> + Send>>,
    waker: Arc<AskWaker>,
}

/// Wakes the asker, and separates the wake-ups of the admission from all others. Other wake-ups do not poll the
/// admission, because a poll would cost a queue place when others have the slots.
struct AskWaker {
    woken: AtomicBool,
    inner: Waker,
}

impl Wake for AskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // Release: publishes the writes before the wake-up to the poll. Pairs with the swap in `Asking::poll`.
        self.woken.store(true, Ordering::Release);
        self.inner.wake_by_ref();
    }
}

impl Asking {
    pub(crate) fn poll(&mut self) -> Poll<Result<Ticket, Refused>> {
        let woken = &self.waker.woken;
        // Acquire: pairs with the store in `wake_by_ref`. Relaxed: the poll that a wake-up causes sees it.
        if !woken.load(Ordering::Relaxed) || !woken.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&self.waker));
        let mut cx = Context::from_waker(&waker);
        catch_unwind(AssertUnwindSafe(|| self.admitting.as_mut().poll(&mut cx)))
            .unwrap_or_else(|payload| Poll::Ready(Err(Refused::Task(TaskError::panicked(payload)))))
    }
}

impl Admission {
    /// Returns true if a policy or shared slots admit tasks.
    pub(crate) fn is_gated(&self) -> bool {
        self.gate.is_some() || self.slots.is_some()
    }

    /// Returns the permits that a task holds while it runs.
    pub(super) fn held(&self) -> Vec<PermitsId> {
        let mut held = Vec::new();
        if let Some(gate) = &self.gate {
            gate.held(&mut held);
        }
        if let Some(slots) = self.slots.as_deref() {
            PermitsId::each_of(slots, &mut held);
        }
        held
    }

    /// Begins an admission, for an asker that is woken for other reasons as well. Wakes `waker` when the admission is
    /// to be polled.
    pub(crate) fn ask(&self, ask: Ask, waker: &Waker) -> Asking {
        let admission = self.clone();
        Asking {
            ask,
            admitting: Box::pin(async move { admission.admit(ask).await }),
            waker: Arc::new(AskWaker {
                woken: AtomicBool::new(true),
                inner: waker.clone(),
            }),
        }
    }

    /// Waits for both the slot and the admission by the policy, and holds neither while it waits for the other.
    pub(crate) async fn admit(&self, ask: Ask) -> Result<Ticket, Refused> {
        let mut lost_slot = false;
        loop {
            let mut slot = match &self.slots {
                Some(slots) => Some(Arc::clone(slots).acquire_owned().await.map_err(|_| Refused::Closed)?),
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
                if std::mem::take(&mut lost_slot) {
                    // Polls once more. The holder of the admission may be giving it back for this very slot. And two
                    // waiters for both could otherwise hand slot and admission on to each other for ever.
                    cx.waker().wake_by_ref();
                } else {
                    drop_quietly(slot.take());
                }
                Poll::Pending
            })
            .await;
            drop_quietly(admitting);
            match polled {
                Some(Ok(admitted)) => return Ok(Ticket { admitted, slot }),
                Some(Err(why)) => {
                    // A waiter that the slot wakes may panic.
                    drop_quietly(slot);
                    return Err(Refused::Task(why));
                }
                None => lost_slot = true,
            }
        }
    }
}

/// The admission under which a task runs. `None` without a policy.
pub(crate) type Admitted = Option<Box<dyn GatePermit>>;

pub(crate) type Admitting = Pin<Box<dyn Future<Output = Result<Admitted, Refusal>> + Send>>;

/// Admits tasks, in turn.
pub(crate) trait Gate: Send + Sync {
    /// Admits one task, in turn.
    fn admit(&self, ask: Ask) -> Admitting;
    /// Adds the permits that a task holds while it runs. A rate has none, because time refills it.
    fn held(&self, held: &mut Vec<PermitsId>);
}

/// The admission of a task, which runs while this lives.
pub(crate) trait GatePermit: Send {
    fn finish(self: Box<Self>, outcome: Outcome);
    /// Gives the admission back: no task has started under it.
    fn cancel(self: Box<Self>);
}

impl<L: Limiter + 'static> Gate for Policy<L> {
    fn admit(&self, ask: Ask) -> Admitting {
        let policy = self.clone();
        Box::pin(async move {
            let permit: Box<dyn GatePermit> = Box::new(policy.admit_owned(ask).await?);
            Ok(Some(permit))
        })
    }

    fn held(&self, held: &mut Vec<PermitsId>) {
        PermitsId::each_of(self, held);
    }
}

impl<L: Limiter> GatePermit for Permit<L> {
    fn finish(self: Box<Self>, outcome: Outcome) {
        // The worker continues even if the limiter or a woken waiter panics.
        quietly(|| Permit::finish(*self, outcome));
    }

    fn cancel(self: Box<Self>) {
        quietly(|| Permit::cancel(*self));
    }
}

/// Polls an admission. A policy that panics refuses the task.
pub(crate) fn poll_admitting(admitting: &mut Admitting, cx: &mut Context<'_>) -> Poll<Result<Admitted, TaskError>> {
    match catch_unwind(AssertUnwindSafe(|| admitting.as_mut().poll(cx))) {
        Ok(polled) => polled.map_err(TaskError::Refused),
        Err(payload) => Poll::Ready(Err(TaskError::panicked(payload))),
    }
}

impl From<Ran> for Outcome {
    fn from(ran: Ran) -> Self {
        match ran {
            Ran::Done => Self::Success,
            Ran::Panicked => Self::Failure,
            Ran::Gone => Self::Ignored,
        }
    }
}
