//! A limiter that learns how the admitted work ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{Demand, Description, Limiter, Outcome, Reason, Refusal, Wait};

/// Admits everything until it is shut, and counts the successes and the failures of the admitted work.
pub(crate) struct Outcomes {
    shut: AtomicBool,
    ended: Mutex<(u64, u64)>,
    queue: WaitQueue,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self {
            shut: AtomicBool::new(false),
            ended: Mutex::default(),
            queue: WaitQueue::new("outcomes"),
        }
    }
}

impl Outcomes {
    /// The calls that succeeded or failed, and those that failed.
    pub(crate) fn told(&self) -> (u64, u64) {
        *self.ended.lock().unwrap()
    }

    /// Refuses everything from now on, or admits it again.
    pub(crate) fn shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::SeqCst);
        self.queue.changed();
    }

    fn judge(&self) -> Result<(), Refusal> {
        match self.shut.load(Ordering::SeqCst) {
            true => Err(Refusal::new(Reason::CircuitOpen, "outcomes", Wait::EVENT).at_once()),
            false => Ok(()),
        }
    }
}

impl Limiter for Outcomes {
    type Ticket = ();

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.check(demand, |_, _| self.judge())?;
        self.judge()
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), outcome: Outcome) {
        let failed = match outcome {
            Outcome::Success => 0,
            Outcome::Failure | Outcome::Overload => 1,
            _ => return,
        };
        let mut ended = self.ended.lock().unwrap();
        *ended = (ended.0 + 1, ended.1 + failed);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.look(demand, |_, _| self.judge())
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("outcomes"));
    }
}
