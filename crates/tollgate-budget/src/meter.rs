//! The meter of a running request.

use crate::account::{Account, Charge};
use crate::exceeded::Exceeded;
use crate::lend::Cursor;
use std::fmt;
use tollgate::{Cost, MAX_COSTS};

/// The meter of one admitted request: it holds the reservation, and charges what the request uses. Dropped, it ends the request:
/// what was metered stays charged, and the rest of the reservation comes back.
///
/// | the request | call |
/// |---|---|
/// | is about to send its prompt | [`extend`](Self::extend)`(INPUT, n)`: from then on a drop charges it |
/// | has produced a part of its stream | [`extend`](Self::extend)`(OUTPUT, n)` |
/// | has learnt the true cost | [`settle`](Self::settle)`(OUTPUT, n)` |
/// | ends, is cancelled, or fails | drop it |
///
/// # Periods
/// A reservation belongs to the period in which it starts, and units beyond it to the period in which they are produced. Once a period
/// is over, nothing comes back to it, and nothing of it moves into the next one.
///
/// ```
/// use tollgate::Ask;
/// use tollgate_budget::{Budgets, INPUT, Limit, OUTPUT, Period, Rule};
///
/// let rule = Rule::new("all")
///     .limit(Limit::cost(INPUT, 10_000, Period::Day))
///     .limit(Limit::cost(OUTPUT, 1_000, Period::Day));
/// let account = Budgets::builder().rule(rule).build()?.account(&[]);
/// let used = || account.usage().next().unwrap().to_string();
///
/// let mut meter = account.reserve(Ask::one().cost(INPUT, 300).cost(OUTPUT, 400)).unwrap();
/// meter.extend(INPUT, 300).unwrap();
/// // The stream: first from the reservation, then from what is left.
/// for _ in 0..5 {
///     meter.extend(OUTPUT, 100).unwrap();
/// }
/// assert_eq!(used(), "all: 300 of 10000 input per day, 500 of 1000 output per day");
/// // 100 tokens more than are left: they stay charged, and the stream is to stop.
/// assert!(meter.extend(OUTPUT, 600).is_err());
/// assert_eq!(used(), "all: 300 of 10000 input per day, 1100 of 1000 output per day");
/// // The upstream's bill says less.
/// meter.settle(OUTPUT, 900).unwrap();
/// drop(meter);
/// assert_eq!(used(), "all: 300 of 10000 input per day, 900 of 1000 output per day");
/// # Ok::<(), tollgate_budget::BudgetError>(())
/// ```
#[must_use = "dropping a meter ends the request, and gives back what was not metered"]
pub struct Meter {
    account: Account,
    /// What is held of the reservation.
    reserved: Charge,
    used: [u64; MAX_COSTS],
    /// What was charged beyond the reservation, of each cost.
    beyond: [u64; MAX_COSTS],
    /// The part of it that each limit can still give back. Empty until something is charged beyond the reservation.
    parts: Vec<Part>,
    ended: bool,
}

/// Units that one limit was charged beyond the reservation, in one of its periods.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    at: u64,
    units: u64,
}

impl Meter {
    #[inline]
    pub(crate) fn new(account: Account, reserved: Charge) -> Self {
        Self {
            account,
            reserved,
            used: [0; MAX_COSTS],
            beyond: [0; MAX_COSTS],
            parts: Vec::new(),
            ended: false,
        }
    }

    /// The account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The units of `cost` that were metered so far.
    pub fn used(&self, cost: Cost) -> u64 {
        self.account.number_of(cost).map_or(0, |number| self.used[number])
    }

    /// Charges `units` more of `cost`, which the request has used or is about to use: from the reservation while that lasts, then from
    /// what the levels have left. Within the reservation it takes no lock. A cost that no limit of the account counts is not charged.
    ///
    /// # Errors
    /// [`Exceeded`] when a hard limit is over now: the stream is to stop. The units have been produced, so they stay charged, on all
    /// levels. So a level is over by at most the largest single charge of each running stream, if every stream stops.
    pub fn extend(&mut self, cost: Cost, units: u64) -> Result<(), Exceeded> {
        let Some(number) = self.account.number_of(cost) else {
            return Ok(());
        };
        let before = self.used[number];
        let used = before.saturating_add(units);
        self.used[number] = used;
        let held = self.reserved.costs[number].saturating_add(self.beyond[number]);
        if used <= held && (units == 0 || !self.account.lends()) {
            return Ok(());
        }
        self.charge_beyond(number, before, used.saturating_sub(held))
    }

    #[cold]
    fn charge_beyond(&mut self, number: usize, before: u64, units: u64) -> Result<(), Exceeded> {
        self.beyond[number] += units;
        let (parts, start, reserved) = (&mut self.parts, self.reserved.at, self.reserved.costs[number]);
        let spent = (before.min(reserved), self.used[number].min(reserved));
        self.account.charge_more(number, units, |limit, counter, at| {
            counter.spend(start, spent.0, spent.1);
            if units == 0 {
                return;
            }
            if parts.len() <= limit {
                parts.resize(limit + 1, Part::default());
            }
            let part = &mut parts[limit];
            if !counter.counter().is_current(part.at) {
                // They are of a period that is over.
                counter.close(part.at, part.units);
                *part = Part { at, units: 0 };
            }
            part.units = part.units.saturating_add(units);
            counter.take(units);
            counter.spend(at, 0, units);
        })
    }

    /// Corrects the charge for `cost` to `actual` units in all, as if they had been metered. What was charged beyond that comes back,
    /// the last units first, as far as their period lasts. What is missing is charged to the period in which the request started, if
    /// that lasts, and the reservation is used up.
    ///
    /// # Errors
    /// [`Exceeded`] when a hard limit is over by the correction, which is made all the same: the excess that is to be reported.
    pub fn settle(&mut self, cost: Cost, actual: u64) -> Result<(), Exceeded> {
        let Some(number) = self.account.number_of(cost) else {
            return Ok(());
        };
        let (before, start) = (self.used[number].min(self.reserved.costs[number]), self.reserved.at);
        self.used[number] = actual;
        let held = self.reserved.costs[number].saturating_add(self.beyond[number]);
        if actual > held {
            let more = actual - held;
            self.reserved.costs[number] += more;
            let after = actual.min(self.reserved.costs[number]);
            return self.account.charge_more(number, more, |_, counter, _| {
                counter.take_more(start, more);
                counter.spend(start, before, after);
            });
        }
        if actual < held || self.account.lends() {
            let back = Back::of(self, Some(number));
            back.note(&mut self.reserved.costs, &mut self.beyond);
            let after = actual.min(self.reserved.costs[number]);
            self.account.change(true, |limit, measure, counter, _| {
                back.give(&mut self.parts, start, limit, measure, counter);
                if measure == number + 2 {
                    counter.spend(start, before, after);
                }
            });
        }
        Ok(())
    }

    /// Ends the request as if it had not been: also the call itself comes back, as far as its period lasts.
    ///
    /// ```
    /// # use tollgate::Ask;
    /// # use tollgate_budget::{Budgets, Limit, Period, Rule};
    /// let rule = Rule::new("calls").limit(Limit::requests(1, Period::Day));
    /// let account = Budgets::builder().rule(rule).build()?.account(&[]);
    /// let meter = account.reserve(Ask::one()).unwrap();
    /// // The upstream could not be reached.
    /// meter.cancel();
    /// assert!(account.reserve(Ask::one()).is_ok());
    /// # Ok::<(), tollgate_budget::BudgetError>(())
    /// ```
    pub fn cancel(mut self) {
        let used = std::mem::take(&mut self.used);
        // Nothing is left for the drop to end.
        self.ended = true;
        self.end(Some(used));
    }

    /// Ends the request; as `cancelled` where it had used that.
    fn end(&mut self, cancelled: Option<[u64; MAX_COSTS]>) {
        let back = Back::of(self, None);
        let (at, calls) = (self.reserved.at, self.reserved.calls);
        let parts = &mut self.parts;
        self.account.change(true, |limit, measure, counter, _| match measure {
            0 if cancelled.is_none() => counter.close(at, calls),
            0 | 1 => counter.give_back(at, calls),
            cost => {
                if let Some(used) = cancelled {
                    counter.spend(at, used[cost - 2].min(self.reserved.costs[cost - 2]), 0);
                }
                back.give(parts, at, limit, measure, counter);
                counter.close(at, self.reserved.costs[cost - 2] - back.reserved[cost - 2]);
                if let Some(part) = parts.get(limit) {
                    counter.close(part.at, part.units);
                }
            }
        });
    }
}

/// What is held beyond what is used, of each cost.
struct Back {
    reserved: [u64; MAX_COSTS],
    beyond: [u64; MAX_COSTS],
}

impl Back {
    /// Of one cost, or of all: the units that were charged last come back first.
    fn of(meter: &Meter, only: Option<usize>) -> Self {
        let (mut reserved, mut beyond) = ([0; MAX_COSTS], [0; MAX_COSTS]);
        for number in (0..MAX_COSTS).filter(|number| only.is_none_or(|only| only == *number)) {
            let held = meter.reserved.costs[number].saturating_add(meter.beyond[number]);
            let back = held.saturating_sub(meter.used[number]);
            beyond[number] = back.min(meter.beyond[number]);
            reserved[number] = back - beyond[number];
        }
        Self { reserved, beyond }
    }

    fn give(&self, parts: &mut [Part], start: u64, limit: usize, measure: usize, counter: &mut Cursor<'_>) {
        let Some(cost) = measure.checked_sub(2) else { return };
        if let Some(part) = parts.get_mut(limit) {
            let units = self.beyond[cost].min(part.units);
            part.units -= units;
            counter.spend(part.at, units, 0);
            counter.give_back(part.at, units);
        }
        counter.give_back(start, self.reserved[cost]);
    }

    fn note(&self, reserved: &mut [u64; MAX_COSTS], beyond: &mut [u64; MAX_COSTS]) {
        for number in 0..MAX_COSTS {
            reserved[number] -= self.reserved[number];
            beyond[number] -= self.beyond[number];
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if !self.ended {
            self.end(None);
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter")
            .field("reserved", &self.reserved)
            .field("used", &self.used)
            .field("beyond", &self.beyond)
            .finish_non_exhaustive()
    }
}
