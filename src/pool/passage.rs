//! The way of a task that is not run by a worker: whoever runs it here, its submitter or whoever waits for it, has it
//! admitted by the policy of the pool as a worker would.
//!
//! Until it is admitted it stays where it is, and others may take it: nothing is held but a place in the line of the
//! policy. One thing is different from a worker. Whoever waits inside a task of the pool has a permit already, and what is
//! missing may be what it holds itself: where something has to be given back first, the inner task runs under the permit
//! of the outer one. Where time alone decides, as with a rate, it is waited for.

use super::error::{TaskError, Turned};
use super::gate::{Admitted, Admitting, Gate, Waiter, poll_admitting};
use super::hooks::drop_quietly;
use super::kin::Kin;
use crate::ask::Ask;
use crate::sync::shim::Mutex;
use std::cell::RefCell;
use std::mem::take;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A place in the line of the policy, for as long as somebody waits.
#[derive(Default)]
pub(super) struct Passage(Option<Admitting>);

impl Passage {
    /// Ready at once where there is no policy. It takes its place in line at the first call.
    pub(super) fn poll(
        &mut self,
        gate: Option<&Arc<dyn Gate>>,
        ask: impl FnOnce() -> Ask,
        waiter: impl FnOnce() -> Waiter,
        waker: &Waker,
    ) -> Poll<Result<Admitted, TaskError>> {
        let Some(gate) = gate else {
            return Poll::Ready(Ok(None));
        };
        if seeded!("pool_passes_by_the_policy") {
            return Poll::Ready(Ok(None));
        }
        let admitting = self.0.get_or_insert_with(|| gate.admit(ask(), waiter()));
        let polled = poll_admitting(admitting, &mut Context::from_waker(waker));
        if polled.is_ready() {
            self.leave();
        }
        polled
    }

    /// Gives up the place in line. What has been granted and not been seen is given back.
    pub(super) fn leave(&mut self) {
        drop_quietly(self.0.take());
    }
}

/// Others move up then, and their wakers may panic.
impl Drop for Passage {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What the policy is to be asked for by whoever waits for a task and could run it, and that one's place in line. A
/// handle has it, where there is a policy.
pub(super) struct Door {
    ask: Ask,
    passage: Mutex<Passage>,
}

impl Door {
    pub(super) fn new(gate: Option<&Arc<dyn Gate>>, ask: Ask) -> Option<Box<Self>> {
        gate?;
        let passage = Mutex::default();
        Some(Box::new(Self { ask, passage }))
    }

    pub(super) fn poll(
        &self,
        gate: Option<&Arc<dyn Gate>>,
        waiter: Waiter,
        waker: &Waker,
    ) -> Poll<Result<Admitted, TaskError>> {
        let mut passage = take(&mut *self.passage.lock());
        let polled = passage.poll(gate, || self.ask, || waiter, waker);
        *self.passage.lock() = passage;
        polled
    }

    pub(super) fn leave(&self) {
        let mut passage = take(&mut *self.passage.lock());
        passage.leave();
    }
}

/// Why a task is handed back that was to be run by its submitter.
///
/// # Panics
/// When the policy has.
pub(super) fn turned(why: TaskError) -> Turned {
    match why {
        TaskError::Refused(rejection) => Turned::Refused(Box::new(rejection)),
        TaskError::Panicked(payload) => resume_unwind(payload),
        _ => Turned::Closed,
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
