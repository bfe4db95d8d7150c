//! The policy in front of the workers, with its type erased.

use super::cell::Ran;
use super::error::TaskError;
use super::hooks::quietly;
use crate::core::ask::Ask;
use crate::core::limiter::{Limiter, Outcome};
use crate::core::permit::Permit;
use crate::core::refusal::Rejection;
use crate::policy::Policy;
use crate::sync::wait_queue::{Permits, QueueId};
use crate::time::ClockReading;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The admission under which a task runs. `None` without a policy.
pub(crate) type Admitted = Option<Box<dyn Admission>>;

pub(crate) type Admitting = Pin<Box<dyn Future<Output = Result<Admitted, Rejection>> + Send>>;

/// Admits tasks, in turn.
pub(crate) trait Gate: Send + Sync {
    /// Admits one task, in turn.
    fn admit(&self, ask: Ask) -> Admitting;
    /// Adds the queues whose permits a task holds while it runs. Queues of rates are not among them, because time
    /// refills a rate.
    fn held(&self, held: &mut Vec<QueueId>);
}

/// The admission of a task, which runs while this lives.
pub(crate) trait Admission: Send {
    fn finish(self: Box<Self>, outcome: Outcome);
    /// Gives the admission back, as far as the limiter still can: no task has started under it.
    fn cancel(self: Box<Self>);
}

impl<L> Gate for Policy<L>
where
    L: Limiter + 'static,
    L::Ticket: Send,
{
    fn admit(&self, ask: Ask) -> Admitting {
        let policy = self.clone();
        Box::pin(async move { policy.admit_owned(ask).await.map(boxed) })
    }

    fn held(&self, held: &mut Vec<QueueId>) {
        self.queues(&mut |queue| match queue.permits() {
            Permits::None => {}
            Permits::Own => held.push(QueueId::of_queue(queue)),
            Permits::Of(shared) => held.push(shared),
        });
    }
}

fn boxed<L>(permit: Permit<L>) -> Admitted
where
    L: Limiter + 'static,
    Permit<L>: Send,
{
    Some(Box::new(permit))
}

impl<L: Limiter> Admission for Permit<L>
where
    Self: Send,
{
    fn finish(self: Box<Self>, outcome: Outcome) {
        // The worker continues even if the limiter or a woken waiter panics.
        quietly(|| Permit::finish(*self, outcome));
    }

    fn cancel(mut self: Box<Self>) {
        if self.limiter().callbacks().commit {
            return self.finish(Outcome::Ignored);
        }
        quietly(|| {
            if let Some(ticket) = self.ticket_mut().take() {
                self.limiter().cancel(ticket, &ClockReading::new());
            }
        });
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
