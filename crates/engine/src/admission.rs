//! The policy in front of a pool, without its type.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate::{Ask, Limiter, Policy, Semaphore};

/// A task runs while this lives.
pub(crate) type Admission = Option<Box<dyn Send>>;

type Admitting = Pin<Box<dyn Future<Output = Result<Admission, String>> + Send>>;

/// Admits the tasks of a pool.
pub(crate) trait Gate: Send + Sync {
    fn admit(&self, ask: Ask) -> Admitting;
    /// The semaphores whose permits a task holds while it runs.
    fn held(&self) -> Vec<usize>;
}

/// A policy, and the semaphores among its legs.
pub(crate) struct Gated<L: Limiter + 'static>(pub(crate) Policy<L>, pub(crate) Vec<Arc<Semaphore>>);

impl<L> Gate for Gated<L>
where
    L: Limiter + 'static,
    L::Ticket: Send,
{
    fn admit(&self, ask: Ask) -> Admitting {
        let policy = self.0.clone();
        Box::pin(async move {
            match policy.admit_owned(ask).await {
                Ok(permit) => Ok(Some(Box::new(permit) as Box<dyn Send>)),
                Err(rejection) => Err(rejection.to_string()),
            }
        })
    }

    fn held(&self) -> Vec<usize> {
        self.1.iter().map(|semaphore| Arc::as_ptr(semaphore) as usize).collect()
    }
}

/// An admission that is waited for.
pub(crate) struct Asking {
    pub(crate) ask: Ask,
    admitting: Admitting,
}

impl Asking {
    pub(crate) fn new(gate: &dyn Gate, ask: Ask) -> Self {
        Self {
            ask,
            admitting: gate.admit(ask),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Admission, String>> {
        catch_unwind(AssertUnwindSafe(|| self.admitting.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err("the policy panicked".to_owned())))
    }
}
