//! The admission of a task that its waiter runs, as the policy of the pool admits one that a worker runs.
//!
//! Until it is admitted it stays in the queue, and a worker may take it: the waiter holds nothing but its place in the policy's
//! queue. One thing is different from a worker. A waiter that is a task of the pool has a permit already, and what is missing may
//! be what it holds itself: where something has to be given back first, the inner task runs under the permit of the outer one.
//! Where time alone decides, as with a rate, it is waited for.

use super::error::TaskError;
use super::gate::{Admitted, Admitting, Gate, Waiter, poll_admitting};
use super::hooks::drop_quietly;
use super::kin::Kin;
use crate::ask::Ask;
use crate::sync::shim::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Where a handle waits for the admission of its task. The lock is not held while the policy is polled.
pub(super) struct Door {
    ask: Ask,
    admitting: Mutex<Option<Admitting>>,
}

impl Door {
    /// None where there is no policy.
    pub(super) fn new(gate: Option<&Arc<dyn Gate>>, ask: Ask) -> Option<Box<Self>> {
        gate?;
        let admitting = Mutex::default();
        Some(Box::new(Self { ask, admitting }))
    }

    /// Joins the policy's queue at the first call.
    pub(super) fn poll(
        &self,
        gate: Option<&Arc<dyn Gate>>,
        waiter: Waiter,
        waker: &Waker,
    ) -> Poll<Result<Admitted, TaskError>> {
        let Some(gate) = gate.filter(|_| !seeded!("pool_passes_by_the_policy")) else {
            return Poll::Ready(Ok(None));
        };
        let known = self.admitting.lock().take();
        let mut admitting = known.unwrap_or_else(|| gate.admit(self.ask, waiter));
        let polled = poll_admitting(&mut admitting, &mut Context::from_waker(waker));
        match polled {
            Poll::Ready(_) => drop_quietly(admitting),
            Poll::Pending => *self.admitting.lock() = Some(admitting),
        }
        polled
    }

    /// Leaves the policy's queue.
    pub(super) fn leave(&self) {
        let admitting = self.admitting.lock().take();
        drop_quietly(admitting);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.leave();
    }
}

crate::sync::shim::thread_local! {
    /// The pools by whose policy a task has been admitted that this thread runs, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static ADMITTED: RefCell<Vec<Kin>> = RefCell::new(Vec::new());
}

/// True on a thread that runs a task under a permit of the policy of `pool`.
pub(super) fn is_admitted(pool: Kin) -> bool {
    let look = |pools: &RefCell<Vec<Kin>>| pools.borrow().contains(&pool);
    ADMITTED.try_with(look).unwrap_or(false)
}

/// While it lives, this thread runs a task under such a permit.
pub(super) struct Inside;

impl Inside {
    /// None without a permit.
    pub(super) fn enter(pool: Kin, admitted: &Admitted) -> Option<Self> {
        admitted.as_ref()?;
        let _ = ADMITTED.try_with(|pools| pools.borrow_mut().push(pool));
        Some(Self)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = ADMITTED.try_with(|pools| pools.borrow_mut().pop());
    }
}
