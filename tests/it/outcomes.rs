//! A limiter that learns how the admitted work ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate::sync::{Notify, WaitQueue};
use tollgate::{ClockReading, Demand, Limiter, Outcome, ReadyAt, Reason, Refusal, Wait};

/// Admits everything until it is shut, and counts the successes and the failures of the admitted work.
#[derive(Default)]
pub(crate) struct Outcomes {
    shut: AtomicBool,
    ended: Mutex<(u64, u64)>,
    notify: Notify,
}

impl Outcomes {
    /// The calls that succeeded or failed, and those that failed.
    pub(crate) fn told(&self) -> (u64, u64) {
        *self.ended.lock().unwrap()
    }

    /// Refuses everything from now on, or admits it again.
    pub(crate) fn shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::SeqCst);
        self.notify.notify_all();
    }
}

impl Limiter for Outcomes {
    type Ticket = ();

    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        match self.shut.load(Ordering::SeqCst) {
            true => Err(Refusal::new(
                Reason::CircuitOpen,
                "outcomes",
                demand.units(),
                Wait::Event,
            )),
            false => Ok(()),
        }
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), outcome: Outcome, _: &ClockReading) {
        let failed = match outcome {
            Outcome::Success => 0,
            Outcome::Failure | Outcome::Overload => 1,
            _ => return,
        };
        let mut ended = self.ended.lock().unwrap();
        *ended = (ended.0 + 1, ended.1 + failed);
    }
    fn forget(&self, (): ()) {}
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        match self.shut.load(Ordering::SeqCst) {
            true => ReadyAt::on_event("outcomes").because(Reason::CircuitOpen).at_once(),
            false => ReadyAt::NOW,
        }
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}
