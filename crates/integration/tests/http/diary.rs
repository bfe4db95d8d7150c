//! A limiter that keeps a diary.

use std::sync::Mutex;
use tollgate::{Demand, Limiter, Outcome, ReadyAt, Refusal, time};

/// Admits everything, and keeps what it is told.
#[derive(Debug, Default)]
pub(crate) struct Diary(Mutex<Vec<Outcome>>);

impl Diary {
    pub(crate) fn read(&self) -> Vec<Outcome> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn take(&self) -> Vec<Outcome> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Limiter for Diary {
    type Ticket = ();
    fn try_reserve(&self, _: Demand<'_>) -> Result<(), Refusal<'_>> {
        Ok(())
    }
    fn cancel(&self, (): (), _: &time::ClockReading) {}
    fn finish(&self, (): (), outcome: Outcome, _: &time::ClockReading) {
        self.0.lock().unwrap().push(outcome);
    }
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn tollgate::sync::WaitQueue)) {}
}
