//! Retries as a part of the requests.

use super::error::{ShedError, within};
use crate::algo::shed::Reserve;
use crate::ask::Demand;
use crate::limiter::{Callbacks, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::status::{State, Status};
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::time::ClockReading;
use std::fmt;

const LEG: &str = "retry_budget";
const MILLION: u64 = 1_000_000;

/// Lets through at most so many retries per request, so that a resource in trouble is not asked many times over.
///
/// Each first attempt [`deposit`](Self::deposit)s a part of a retry, and a retry is admitted when a whole one is there. Up to
/// `reserve` unused retries are kept. Admitting takes one for good, whatever the outcome. A
/// request for more than the reserve is `Oversized`.
///
/// # Giving back
/// A reservation that is cancelled gives back what it took, except what deposits made since would have overflowed the reserve
/// by. So the budget is as if that reservation had never been made. The newest 64 reservations are told apart; of older ones
/// less may come back.
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
    reserve: Mutex<Reserve>,
    ratio: u64,
    notify: Notify,
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
            reserve: Mutex::new(Reserve::new(most)),
            ratio: (ratio * 1e6).floor() as u64,
            notify: Notify::new(),
        })
    }

    /// Counts a first attempt: to be called once for each, after it was admitted by whatever limits first attempts. One that
    /// was refused puts no load on the resource, and earns no retry.
    pub fn deposit(&self) {
        self.raise(|reserve| reserve.add(self.ratio));
    }

    /// How many retries are there. A snapshot.
    pub fn available(&self) -> u64 {
        self.reserve.lock().held() / MILLION
    }

    /// More than the reserve can ever hold.
    fn never_fits(&self, units: u64) -> bool {
        units > self.reserve.lock().size() / MILLION
    }

    fn raise(&self, raise: impl FnOnce(&mut Reserve)) {
        let whole_more = {
            let mut reserve = self.reserve.lock();
            let before = reserve.held();
            raise(&mut reserve);
            reserve.held() / MILLION > before / MILLION
        };
        // Only a whole retry more can change an answer.
        if whole_more {
            self.notify.notify_all();
        }
    }
}

impl Limiter for RetryBudget {
    /// The number of the reservation, and how many retries it took.
    type Ticket = (u64, u64);

    fn try_reserve(&self, demand: Demand<'_>) -> Result<(u64, u64), Refusal<'_>> {
        let units = demand.units();
        let taken = units
            .checked_mul(MILLION)
            .and_then(|amount| self.reserve.lock().take(amount));
        match taken {
            Some(number) => Ok((number, units)),
            None if self.never_fits(units) => Err(Refusal::new(Reason::Oversized, LEG, units, Wait::Never)),
            None => Err(Refusal::new(Reason::Saturated, LEG, units, Wait::Event)),
        }
    }

    fn cancel(&self, (number, units): (u64, u64), _: &ClockReading) {
        self.raise(|reserve| reserve.give_back(number, units * MILLION));
    }

    fn finish(&self, _: (u64, u64), _: Outcome, _: &ClockReading) {}

    fn forget(&self, _: (u64, u64)) {}

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::NONE
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        match demand.units().saturating_add(demand.ahead()) <= self.available() {
            true => ReadyAt::NOW,
            false if self.never_fits(demand.units()) => ReadyAt::never_for(Reason::Oversized, LEG, demand.units()),
            false => ReadyAt::on_event(LEG),
        }
    }

    /// The reserve is there.
    fn is_pristine(&self, _: &ClockReading) -> bool {
        let reserve = self.reserve.lock();
        reserve.held() == reserve.size()
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let [limit, available] = {
            let reserve = self.reserve.lock();
            [reserve.size(), reserve.held()].map(|amount| amount / MILLION)
        };
        let state = State::Budget { limit, available };
        visit(Status::new(LEG, LEG, state));
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn crate::sync::wait_queue::WaitQueue)) {}
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
