//! The policy in front of the workers, without its type.

use super::hooks::quietly;
use crate::ask::Ask;
use crate::limiter::{Limiter, Outcome};
use crate::permit::Permit;
use crate::policy::Policy;
use crate::refusal::Rejection;
use std::pin::Pin;

pub(crate) type Admitting<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Admission>, Rejection>> + Send + 'a>>;

/// Admits tasks, in turn.
pub(crate) trait Gate: Send + Sync {
    fn admit(&self, ask: Ask) -> Admitting<'_>;
}

/// A task runs while this lives.
pub(crate) trait Admission: Send {
    fn finish(self: Box<Self>, outcome: Outcome);
}

impl<L> Gate for Policy<L>
where
    L: Limiter + 'static,
    L::Ticket: Send,
{
    fn admit(&self, ask: Ask) -> Admitting<'_> {
        Box::pin(async move {
            let permit = self.admit_owned(ask).await?;
            Ok(Box::new(permit) as Box<dyn Admission>)
        })
    }
}

impl<L: Limiter> Admission for Permit<L>
where
    Self: Send,
{
    fn finish(self: Box<Self>, outcome: Outcome) {
        // Whoever ran the task goes on, whatever the limiter and those whom it wakes do.
        quietly(|| Permit::finish(*self, outcome));
    }
}
