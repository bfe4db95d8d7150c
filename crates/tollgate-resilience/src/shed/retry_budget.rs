//! Retries as a part of the requests.
//!
//! # The reserve
//! Deposits fill it and reservations drain it. A deposit into a full reserve overflows. So a cancelled reservation
//! gives back `min(n, least)`, where `least` is the least that has been missing since it was made: the excess would
//! have overflowed. From then on the reserve is as if the reservation had never been made, also for other reservations
//! that are cancelled later.

use super::error::{ShedError, within};
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Weak;
use tollgate::status::State;
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{Demand, Description, Limiter, Outcome, Reason, Refusal, Wait};

const LEG: &str = "retry_budget";
const MILLION: u64 = 1_000_000;

/// Limits the retries per request, so that a resource in trouble is not asked many times over.
///
/// Each first attempt [`deposit`](Self::deposit)s a part of a retry, and a retry is admitted when a whole one is there.
/// Up to `reserve` unused retries are kept. Admitting takes one for good, at any outcome. A request for more than the
/// reserve is `Oversized`.
///
/// # Giving back
/// A cancelled reservation gives back all it took, except the part by which later deposits would have overflowed the
/// reserve. So the budget is as if that reservation had never been made. The newest 64 reservations are told apart;
/// older ones may give back less.
///
/// With a ratio of 0.1 the load on a resource that fails everything is at most 1.1 times the first attempts, plus the
/// reserve once. The idea is that of Finagle's retry budgets.
///
/// ```
/// # use tollgate_resilience::shed::RetryBudget;
/// # use tollgate::LimiterExt;
/// let budget = RetryBudget::new(0.5, 2)?;
/// let retries = || std::iter::from_fn(|| budget.try_admit(1).ok()).count();
/// assert_eq!(retries(), 2, "the reserve");
/// (0..7).for_each(|_| budget.deposit());
/// assert_eq!(retries(), 2, "half of seven, but not more than is kept");
/// # Ok::<(), tollgate_resilience::shed::ShedError>(())
/// ```
pub struct RetryBudget {
    /// In millionths of a retry.
    reserve: Mutex<Reserve>,
    ratio: u64,
    queue: WaitQueue,
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
            queue: WaitQueue::new(LEG),
        })
    }

    /// Counts a first attempt. Call it once for each, after the limiter of first attempts has admitted it. A refused
    /// attempt puts no load on the resource, and earns no retry.
    pub fn deposit(&self) {
        self.raise(|reserve| reserve.add(self.ratio));
    }

    /// How many retries are there. A snapshot.
    pub fn available(&self) -> u64 {
        self.reserve.lock().held() / MILLION
    }

    /// True if the reserve can never hold `units`.
    fn never_fits(&self, units: u64) -> bool {
        units > self.reserve.lock().size() / MILLION
    }

    /// Would `units` retries be admitted behind `ahead` others?
    fn judge(&self, units: u64, ahead: u64) -> Result<(), Refusal> {
        match units.saturating_add(ahead) <= self.available() {
            true => Ok(()),
            false => Err(self.refusal(units)),
        }
    }

    fn refusal(&self, units: u64) -> Refusal {
        match self.never_fits(units) {
            true => Refusal::new(Reason::Oversized, LEG, Wait::Never),
            false => Refusal::new(Reason::Saturated, LEG, Wait::EVENT),
        }
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
            self.queue.notify();
        }
    }
}

impl Limiter for RetryBudget {
    /// The number of the reservation, and its retries.
    type Ticket = (u64, u64);

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(u64, u64), Refusal> {
        self.queue.check(demand, |units, ahead| self.judge(units, ahead))?;
        let units = demand.units();
        let taken = units
            .checked_mul(MILLION)
            .and_then(|amount| self.reserve.lock().take(amount));
        taken.map(|number| (number, units)).ok_or_else(|| self.refusal(units))
    }

    fn cancel(&self, (number, units): (u64, u64)) {
        self.raise(|reserve| reserve.give_back(number, units * MILLION));
    }

    fn finish(&self, _: (u64, u64), _: Outcome) {}

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.look(demand, |units, ahead| self.judge(units, ahead))
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }

    /// As new while the reserve is full.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let (size, held) = {
            let reserve = self.reserve.lock();
            (reserve.size(), reserve.held())
        };
        let [limit, available] = [size, held].map(|amount| amount / MILLION);
        let state = State::Budget { limit, available };
        visit(Description::new(LEG).state(state).as_new(held == size));
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// At most this many reservations are told apart. The oldest two beyond that count as one, which gives back less.
const ENTRIES: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Reserve {
    size: u64,
    /// The amount missing in the reserve.
    missing: u64,
    /// The number of the latest reservation.
    latest: u64,
    /// The number of a reservation, and the least that has been missing since it was made. An entry holds for all reservations
    /// up to the next. Numbers and amounts ascend strictly; no amount is zero.
    least: VecDeque<(u64, u64)>,
}

impl Reserve {
    /// A full reserve.
    pub(super) fn new(size: u64) -> Self {
        Self {
            size,
            missing: 0,
            latest: 0,
            least: VecDeque::new(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn held(&self) -> u64 {
        self.size - self.missing
    }

    /// Takes `amount` and returns the number of the reservation, if that much is held.
    pub(super) fn take(&mut self, amount: u64) -> Option<u64> {
        if amount > self.held() {
            return None;
        }
        if amount > 0 {
            self.missing += amount;
            self.latest += 1;
            self.least.push_back((self.latest, self.missing));
            if self.least.len() > ENTRIES {
                self.least.remove(1);
            }
        }
        Some(self.latest)
    }

    /// Adds `amount`. The excess is lost.
    pub(super) fn add(&mut self, amount: u64) {
        self.missing = self.missing.saturating_sub(amount);
        let kept = self.least.partition_point(|&(_, least)| least < self.missing);
        if let Some((_, least)) = self.least.get_mut(kept) {
            *least = self.missing;
            self.least.truncate(if self.missing == 0 { 0 } else { kept + 1 });
        }
    }

    /// Gives back up to `amount` of a reservation: the part that would not have overflowed.
    pub(super) fn give_back(&mut self, number: u64, amount: u64) {
        let after = self.least.partition_point(|&(first, _)| first <= number);
        let Some(at) = after.checked_sub(1) else { return };
        let amount = amount.min(self.least[at].1);
        self.missing -= amount;
        // `amount` less has been missing ever since.
        self.least.range_mut(at..).for_each(|(_, least)| *least -= amount);
        let left = self.least[at].1;
        let as_much = self.least.partition_point(|&(_, least)| least < left);
        self.least[as_much].1 = left;
        self.least.drain(as_much + 1..=at);
        if left == 0 {
            self.least.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_reservations_the_oldest_give_back_less_and_none_gives_back_more() {
        let mut reserve = Reserve::new(1_000);
        let made: Vec<_> = (0..2 * ENTRIES).map(|_| reserve.take(2).unwrap()).collect();
        assert_eq!(reserve.least.len(), ENTRIES);
        for number in made.into_iter().rev() {
            let before = reserve.held();
            reserve.give_back(number, 2);
            let back = reserve.held() - before;
            assert!(
                back == 2 || back == 0 && number <= ENTRIES as u64,
                "{number} gave back {back}"
            );
        }
    }
}
