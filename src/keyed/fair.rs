//! One rate for many keys, shared fairly.

use super::max_min::{GRAIN, MaxMin, Share};
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::{Description, State};
use crate::core::ticket::Ticket;
use crate::rate::Quota;
use crate::sync::shim::{Mutex, MutexGuard};
use crate::sync::wait_queue::{Place, WaitQueue};
use crate::time::{Clock, ClockReading, Instant};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

const LEG: &str = "fair_share";

/// Shares one rate fairly among any number of keys, each with a [`FairShare`]: max-min fairly, exactly, and never idle while a share wants
/// it.
///
/// ```
/// # use tollgate::keyed::FairBudget;
/// # use tollgate::{Keyed, LimiterExt, ManualClock, Quota};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let budget = FairBudget::new(Quota::per_second(10).burst(10)).on(&clock);
/// let tenants = Keyed::new(1_000, move |_: &u64| budget.share());
/// let (a, b) = (tenants.get(&1).unwrap(), tenants.get(&2).unwrap());
/// assert!(a.try_acquire(10).is_ok() && b.try_acquire(10).is_ok());
/// // Both are empty: ten a second are five for each.
/// clock.advance(Duration::from_secs(1));
/// assert_eq!((a.available(), b.available()), (5, 5));
/// // Until one is full. Then the other gets all.
/// assert!(b.try_acquire(5).is_ok());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!((a.available(), b.available()), (10, 5));
/// clock.advance(Duration::from_millis(500));
/// assert_eq!((a.available(), b.available()), (10, 10));
/// ```
///
/// The quota's rate is divided in equal parts among all shares that are not full; a share holds at most the quota's
/// burst. So a share that wants less than its part gets all it wants, and the others divide the rest. A lone share gets
/// the whole rate, at once.
///
/// In any span of time `t` all shares together take at most `rate x t`, plus a burst for each share that takes in it.
/// If the bursts may not add up, put a common [`TokenBucket`](crate::TokenBucket) behind it, in a
/// [`Shared`](super::Shared).
///
/// At [`Quota::unlimited`] everything is admitted, and nothing is counted; at [`Quota::zero`] each share has its burst once.
///
/// # Fairness
/// Each share has its own queue of waiters: a key with many waiting policies delays no other key.
///
/// # Cost
/// Each change of a share costs the logarithm of the number of shares, under one lock. A refusal visits the shares that
/// will be full before it can be admitted. A refund also wakes the oldest waiter of each share, since a share that fills up leaves its
/// part to the others.
#[derive(Clone)]
pub struct FairBudget(Arc<Budget>);

struct Budget {
    quota: Quota,
    clock: Clock,
    state: Mutex<BudgetState>,
}

struct BudgetState {
    max_min: MaxMin,
    /// The number of the next share.
    next: u64,
    /// The queues with waiters, by the number of the share.
    waiting: BTreeMap<u64, Arc<WaitQueue>>,
}

impl Budget {
    /// The state as of `now`.
    fn at(&self, now: Instant) -> MutexGuard<'_, BudgetState> {
        let mut state = self.state.lock();
        state.max_min.advance(now.ticks());
        state
    }

    /// Changes the state. If that brings more to a share, the waiters at all shares look again: a share that is fuller leaves more to
    /// the others.
    fn refund(&self, change: impl FnOnce(&mut BudgetState) -> bool) {
        let waiting: Vec<_> = {
            let mut state = self.at(self.clock.now());
            match change(&mut state) {
                true => state.waiting.values().cloned().collect(),
                false => return,
            }
        };
        waiting.iter().for_each(|queue| queue.notify());
    }
}

impl FairBudget {
    /// A rate to be shared, on the real clock. The burst is what each share can hold.
    pub fn new(quota: Quota) -> Self {
        Self::build(quota, &Clock::real())
    }

    /// The same on `clock`, without any share yet.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.0.quota, clock)
    }

    fn build(quota: Quota, clock: &Clock) -> Self {
        let (count, nanos) = quota.reduced();
        // Per 2^40 ticks pass `nanos_scale` nanoseconds; 64 fractional bits less those 40 are 24. Rounded up, so that a
        // whole token is there at the instant at which the exact rate yields it.
        let (grains, nanos) = (u128::from(count) << GRAIN, u128::from(nanos));
        let scale = u128::from(clock.nanos_scale());
        let flow = match grains.checked_mul(scale << 24) {
            Some(scaled) => scaled.div_ceil(nanos),
            // Such a count per period is close to one per nanosecond: fewer bits are as exact.
            None => (grains * scale).div_ceil(nanos) << 24,
        };
        let max_min = MaxMin::new(flow, self::grains(quota.burst_size()), clock.now().ticks());
        Self(Arc::new(Budget {
            quota,
            clock: clock.clone(),
            state: Mutex::new(BudgetState {
                max_min,
                next: 0,
                waiting: BTreeMap::new(),
            }),
        }))
    }

    /// A new share, full.
    pub fn share(&self) -> FairShare {
        let mut state = self.0.state.lock();
        let number = state.next;
        state.next += 1;
        let share = state.max_min.new_share(number);
        drop(state);
        FairShare {
            budget: Arc::clone(&self.0),
            number,
            share: Mutex::new(share),
            queue: Arc::new(WaitQueue::new(LEG)),
        }
    }
}

impl fmt::Debug for FairBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FairBudget({})", self.0.quota)
    }
}

/// Limits one key by its part of a [`FairBudget`]: a token bucket whose rate depends on how many others want theirs. Dropping it
/// leaves its part to them.
///
/// ```
/// # use tollgate::keyed::FairBudget;
/// # use tollgate::{ManualClock, Quota};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let budget = FairBudget::new(Quota::per_second(10)).on(&clock);
/// let share = budget.share();
/// assert!(share.try_acquire(10).is_ok());
/// assert!(share.try_acquire(1).is_err());
/// clock.advance(Duration::from_secs(1)); // No other share wants its part.
/// assert_eq!(share.available(), 10);
/// ```
///
/// A request for more than the burst is `Oversized`. `retry_after` is true as long as nothing else is admitted: takes
/// of other shares divide the rate among more.
///
/// # Giving back
/// A cancelled admission gives back all it took, as long as its share had room for that ever since. Tokens that would
/// have overflowed are gone, and so are later refunds of the same share. So no span exceeds its bound. A settlement to
/// less follows the same rule; one to more is taken now, into debt if need be.
///
/// # Memory ordering
/// None is promised to callers.
pub struct FairShare {
    budget: Arc<Budget>,
    number: u64,
    /// Always locked after the lock of the state.
    share: Mutex<Share>,
    queue: Arc<WaitQueue>,
}

/// The tokens taken, and the share's state after the take.
///
/// ```
/// # use tollgate::keyed::{FairShare, FairTicket};
/// # use tollgate::{Limiter, Ticket};
/// fn words<L: Limiter<Ticket = FairTicket>>() -> usize {
///     FairTicket::WORDS
/// }
/// assert!(words::<FairShare>() > 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FairTicket {
    tokens: u64,
    mark: u128,
}

impl Ticket for FairTicket {
    const WORDS: usize = 3;
    fn write(&self, words: &mut [u64]) {
        words[..3].copy_from_slice(&[self.tokens, self.mark as u64, (self.mark >> 64) as u64]);
    }
    fn read(words: &[u64]) -> Self {
        Self {
            tokens: words[0],
            mark: u128::from(words[1]) | u128::from(words[2]) << 64,
        }
    }
}

fn grains(tokens: u64) -> u64 {
    tokens.min(u64::MAX >> GRAIN) << GRAIN
}

impl FairShare {
    /// Runs `look` on the budget and the share, as of `now`.
    fn with<R>(&self, now: Instant, look: impl FnOnce(&mut MaxMin, &mut Share) -> R) -> R {
        look(&mut self.budget.at(now).max_min, &mut self.share.lock())
    }

    /// Takes `n` tokens, or refuses: the method for a share that stands alone.
    ///
    /// # Errors
    /// `RateExceeded`, with `retry_after`; `Oversized` when `n` exceeds the burst.
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal> {
        let (ask, reading) = (Ask::many(n), ClockReading::default());
        self.try_reserve(&Demand::new(&ask, &reading)).map(drop)
    }

    fn take(&self, n: u64, now: Instant) -> Result<u128, Refusal> {
        if self.budget.quota.is_unlimited() {
            return Ok(0);
        }
        self.check_size(n)?;
        let taken = self.with(now, |max_min, share| {
            let holds_at = |max_min: &MaxMin, share: &Share| max_min.holds_at(share, grains(n).into());
            max_min.take(share, grains(n)).ok_or_else(|| holds_at(max_min, share))
        });
        taken.map_err(|ticks| self.not_before(ticks, now))
    }

    /// Would `n` tokens be admitted now, behind `ahead` others? Runs under the lock of the queue.
    fn judge(&self, n: u64, ahead: u64, now: Instant) -> Result<(), Refusal> {
        if self.budget.quota.is_unlimited() {
            return Ok(());
        }
        self.check_size(n)?;
        let wanted = ((u128::from(n) + u128::from(ahead)) << GRAIN).min(grains(self.budget.quota.burst_size()).into());
        let mut state = self.budget.at(now);
        if !self.queue.is_empty() {
            let queue = || Arc::clone(&self.queue);
            state.waiting.entry(self.number).or_insert_with(queue);
        }
        let share = self.share.lock();
        if state.max_min.held(&share) >= wanted as i128 {
            return Ok(());
        }
        Err(self.not_before(state.max_min.holds_at(&share, wanted), now))
    }

    fn check_size(&self, n: u64) -> Result<(), Refusal> {
        match n > self.budget.quota.burst_size() {
            true => Err(Refusal::new(Reason::Oversized, LEG, Wait::Never)),
            false => Ok(()),
        }
    }

    #[cold]
    fn not_before(&self, ticks: u64, now: Instant) -> Refusal {
        let Budget { quota, clock, .. } = &*self.budget;
        let wait = match quota.is_zero() {
            true => Wait::SPENT,
            false => Wait::until(clock, now, Instant::from_ticks(ticks)),
        };
        Refusal::new(Reason::RateExceeded, LEG, wait)
    }

    /// Whole tokens that could be taken now; `u64::MAX` at an unlimited rate. A snapshot.
    pub fn available(&self) -> u64 {
        if self.budget.quota.is_unlimited() {
            return u64::MAX;
        }
        let held = self.with(self.budget.clock.now(), |max_min, share| max_min.held(share));
        (held.max(0) >> GRAIN) as u64
    }

    fn state(&self, now: Instant) -> State {
        let Budget { quota, clock, .. } = &*self.budget;
        let (held, one_at, sharers) = self.with(now, |max_min, share| {
            let one_at = max_min.holds_at(share, 1 << GRAIN);
            (max_min.held(share), one_at, max_min.sharers(share))
        });
        let next = (quota.count() > 0).then(|| clock.between(now, Instant::from_ticks(one_at)));
        let mut state = quota.status((held.max(0) >> GRAIN) as u64, next);
        if let State::Rate { window, .. } = &mut state {
            *window = window.saturating_mul(u32::try_from(sharers).unwrap_or(u32::MAX));
        }
        state
    }
}

impl Limiter for FairShare {
    type Ticket = FairTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<FairTicket, Refusal> {
        let (tokens, now) = (demand.units(), demand.now(&self.budget.clock));
        self.queue.check(demand, |units, ahead| self.judge(units, ahead, now))?;
        let mark = self.take(tokens, now)?;
        Ok(FairTicket { tokens, mark })
    }

    fn cancel(&self, ticket: FairTicket) {
        if self.budget.quota.is_unlimited() {
            return;
        }
        let grains = grains(ticket.tokens);
        (self.budget).refund(|state| state.max_min.give_back(&mut self.share.lock(), ticket.mark, grains));
    }

    fn finish(&self, _: FairTicket, _: Outcome) {}

    fn settle(&self, ticket: &mut FairTicket, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        let (charged, actual_grains) = (grains(ticket.tokens), grains(actual));
        if !self.budget.quota.is_unlimited() && actual != ticket.tokens {
            self.budget.refund(|state| {
                let (max_min, mut share) = (&mut state.max_min, self.share.lock());
                if actual_grains <= charged {
                    return max_min.give_back(&mut share, ticket.mark, charged - actual_grains);
                }
                ticket.mark = max_min.take_more(&mut share, ticket.mark, actual_grains - charged);
                false
            });
        }
        ticket.tokens = actual;
        1
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.budget.clock);
        (self.queue).look(demand, |units, ahead| self.judge(units, ahead, now))
    }

    fn leave(&self, place: &Place) {
        self.queue.leave(place);
        let mut state = self.budget.state.lock();
        // Under the lock of the state: a head that joins is counted before it is judged there.
        if self.queue.is_empty() {
            state.waiting.remove(&self.number);
        }
    }

    /// Shows a rate that is divided by the number of shares that want theirs now.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let now = self.budget.clock.now();
        let is_full = self.with(now, |max_min, share| max_min.is_full(share));
        let leg = Description::new(LEG).on(&self.budget.clock).state(self.state(now));
        visit(leg.as_new(is_full && self.queue.is_empty()));
    }
}

impl Drop for FairShare {
    fn drop(&mut self) {
        self.budget.refund(|state| {
            state.waiting.remove(&self.number);
            state.max_min.leave(&self.share.lock())
        });
    }
}

impl fmt::Debug for FairShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairShare")
            .field("budget", &format_args!("{}", self.budget.quota))
            .field("available", &self.available())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the machine's own clock and in nanoseconds: each token is taken at the first tick at which it is there.
    #[test]
    fn steady_demand_of_a_lone_share_loses_no_part_of_a_tick() {
        const TOKENS: u32 = 50_000;
        let manual = crate::time::ManualClock::new();
        for clock in [&Clock::real(), manual.clock()] {
            for count in [7, 900_000, 1_000_003, 3_000_000] {
                let share = FairBudget::new(Quota::per_second(count).burst(1)).on(clock).share();
                let start = clock.now();
                let mut now = start;
                for _ in 0..TOKENS {
                    share.take(1, now).unwrap();
                    let refused = share.judge(1, 0, now).unwrap_err();
                    now = refused.wait().not_before().unwrap();
                }
                let exact = std::time::Duration::from_secs(1) * TOKENS / count as u32;
                let off = clock.between(start, now).abs_diff(exact);
                assert!(
                    off.as_nanos() <= 2 + exact.as_nanos() / 1_000_000,
                    "{count}/s: {off:?} off"
                );
            }
        }
    }
}
