//! Retries as a part of the requests.

use super::error::{ShedError, within};
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::standing::{Standing, State};
use crate::sync::bell::Bell;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::time::Pass;
use std::fmt;

const LEG: &str = "retry_budget";
const MILLION: u64 = 1_000_000;

/// Lets through at most so many retries per request, so that a resource in trouble is not asked many times over.
///
/// Each first attempt [`deposit`](Self::deposit)s a part of a retry, and a retry is admitted when a whole one is there. Of
/// what is not used so many are kept. Admitting takes it for good, whatever the outcome; a cancel gives it back.
///
/// With a ratio of 0.1 the load on a resource that fails everything is at most 1.1 times what is asked, and the reserve
/// once. The idea is that of Finagle's retry budgets.
///
/// ```
/// # use tollgate::shed::RetryBudget;
/// # use tollgate::LimiterExt;
/// let budget = RetryBudget::new(0.5, 2)?;
/// let retries = || std::iter::from_fn(|| budget.try_admit(1).ok()).count();
/// assert_eq!(retries(), 2, "the reserve");
/// (0..7).for_each(|_| budget.deposit());
/// assert_eq!(retries(), 2, "half of seven, but not more than is kept");
/// # Ok::<(), tollgate::shed::ShedError>(())
/// ```
pub struct RetryBudget {
    /// In millionths of a retry.
    balance: AtomicU64,
    ratio: u64,
    most: u64,
    bell: Bell,
}

impl RetryBudget {
    /// `ratio` retries per request (0 to 1,000, rounded down to a millionth), of which up to `reserve` (to 10^9) are kept;
    /// all of them are there at first.
    ///
    /// # Errors
    /// [`ShedError::Number`] when a number is not within its bounds.
    pub fn new(ratio: f64, reserve: u64) -> Result<Self, ShedError> {
        let ratio = within("ratio", ratio, 0.0, 1e3)?;
        let most = within("reserve", reserve as f64, 0.0, 1e9)? as u64 * MILLION;
        Ok(Self {
            balance: AtomicU64::new(most),
            ratio: (ratio * 1e6).floor() as u64,
            most,
            bell: Bell::new(),
        })
    }

    /// Counts a first attempt: to be called once for each, after it was admitted by whatever limits first attempts. One that
    /// was refused puts no load on the resource, and earns no retry.
    pub fn deposit(&self) {
        self.add(self.ratio);
    }

    /// How many retries are there. A snapshot.
    pub fn available(&self) -> u64 {
        self.balance.load(Ordering::Relaxed) / MILLION
    }

    fn add(&self, amount: u64) {
        // Relaxed: the number says nothing about any other memory; the bell has a fence of its own.
        let add = |balance: u64| Some(balance.saturating_add(amount).min(self.most));
        let old = self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        // Only a whole retry more can change an answer.
        if old.is_ok_and(|old| add(old).unwrap_or(old) / MILLION > old / MILLION) {
            self.bell.ring();
        }
    }
}

impl Limiter for RetryBudget {
    /// How many retries.
    type Ticket = u64;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<u64, Refusal<'_>> {
        let units = demand.units();
        let take = |balance: u64| balance.checked_sub(units.checked_mul(MILLION)?);
        match self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(units),
            Err(_) => Err(Refusal::new(Reason::Saturated, LEG, units, Wait::Event)),
        }
    }

    fn cancel(&self, units: u64, _: Pass<'_>) {
        self.add(units * MILLION);
    }

    fn finish(&self, _: u64, _: Outcome, _: Pass<'_>) {}

    fn forget(&self, _: u64) {}

    #[inline]
    fn heeds(&self) -> Heeds {
        Heeds::NONE
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.bell);
        match demand.units().saturating_add(demand.ahead()) <= self.available() {
            true => ReadyAt::NOW,
            false => ReadyAt::on_event(LEG),
        }
    }

    /// The reserve is there.
    fn is_fresh(&self, _: Pass<'_>) -> bool {
        self.balance.load(Ordering::Relaxed) == self.most
    }

    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        let state = State::Budget {
            limit: self.most / MILLION,
            available: self.available(),
        };
        visit(Standing::new(LEG, LEG, state));
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn crate::sync::turn::Turnstile)) {}
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
