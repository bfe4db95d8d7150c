//! A leg that never refuses, and records by which instant the others admitted.
//!
//! A rate admits *as of* an instant: that at which the request was looked at, or the one at which a waiter's turn came,
//! which a timer may have told a little late. By these instants, not by those at which the caller hears of it, every limit
//! holds exactly. As the last leg of a policy this one is asked when all others have agreed, in the same pass.

use super::pace::Pace;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate::status::Description;
use tollgate::{Cost, Demand, Limiter, Outcome, Reason, Refusal, Wait};

/// The number of a request, named like a cost so that it reaches the legs.
pub const NUMBER: Cost = Cost::new("number");

/// Numbers what happens: instants alone do not, since many share one.
#[derive(Clone, Default)]
pub struct Order(Arc<AtomicI64>);

impl Order {
    pub fn next(&self) -> i64 {
        // Relaxed: each number is given once, and the numbers given to one permit follow its own acts.
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The record of one admission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noted {
    /// By which instant it was admitted.
    pub counted: Duration,
    /// By then all legs had agreed.
    pub at: Duration,
    pub order: i64,
}

/// The leg.
pub struct Witness {
    pace: Pace,
    order: Order,
    noted: Mutex<Vec<Noted>>,
}

impl Witness {
    /// For requests numbered from 0 to `count`.
    pub fn new(pace: &Pace, order: &Order, count: usize) -> Self {
        Self {
            pace: pace.clone(),
            order: order.clone(),
            noted: Mutex::new(vec![Noted::default(); count]),
        }
    }

    /// The record of the admission of the request of this number.
    pub fn of(&self, number: usize) -> Noted {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)[number]
    }
}

impl Limiter for Witness {
    type Ticket = ();

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let number = demand.ask().of(NUMBER).map(|number| number as usize);
        let noted = Noted {
            counted: self.pace.since(demand.now(&self.pace.clock)),
            at: self.pace.elapsed(),
            order: self.order.next(),
        };
        let mut all = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        match number.and_then(|number| all.get_mut(number)) {
            Some(place) => *place = noted,
            None => return Err(Refusal::new(Reason::Unpriced, NUMBER.name(), Wait::Never)),
        }
        Ok(())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("witness").on(&self.pace.clock));
    }
}
