//! A limiter that keeps a diary.

use std::sync::Mutex;
use tollgate::{Demand, Description, Limiter, Outcome, Refusal};

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
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), outcome: Outcome) {
        self.0.lock().unwrap().push(outcome);
    }
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("diary"));
    }
}
