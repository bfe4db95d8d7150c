//! One rate for many keys, shared fairly.

use super::max_min::{GRAIN, MaxMin, Share, ShareMark};
use crate::core::ask::{Demand, Place};
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::status::{State, Status};
use crate::core::ticket::Ticket;
use crate::core::turns::Turns;
use crate::rate::Quota;
use crate::rate::in_turn::Forecast;
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::sync::Arc;

const LEG: &str = "fair_share";

/// One rate shared by any number of [`FairShare`]s: max-min fairly, exactly, and never idle while a share wants it.
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
/// Each change of a share costs the logarithm of the number of shares, under one lock. A refusal visits the shares that
/// will be full before it can be admitted.
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
#[derive(Clone)]
pub struct FairBudget(Arc<Budget>);

struct Budget {
    quota: Quota,
    clock: Clock,
    state: Mutex<BudgetState>,
    notify: Notify,
}

struct BudgetState {
    max_min: MaxMin,
    /// The number of the next share.
    next: u64,
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
            state: Mutex::new(BudgetState { max_min, next: 0 }),
            notify: Notify::new(),
        }))
    }

    /// A new share, full.
    pub fn share(&self) -> FairShare {
        let mut state = self.0.state.lock();
        let number = state.next;
        state.next += 1;
        let share = Mutex::new(state.max_min.new_share(number));
        drop(state);
        FairShare {
            budget: Arc::clone(&self.0),
            share,
            turns: Turns::new(),
        }
    }

    /// The rate that is shared, and the burst of each share.
    pub fn quota(&self) -> Quota {
        self.0.quota
    }
}

impl fmt::Debug for FairBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FairBudget({})", self.0.quota)
    }
}

/// One key's part of a [`FairBudget`]: a token bucket whose rate depends on how many others want theirs. Dropping it
/// leaves its part to them.
///
/// A request for more than the burst is `Oversized`. `retry_after` is true as long as nothing else is admitted: takes
/// of other shares divide the rate among more.
///
/// # Giving back
/// A cancelled reservation gives back all it took, as long as its share had room for that ever since. Tokens that would
/// have overflowed are gone, and so are later refunds of the same share. So no span exceeds its bound. A settlement to
/// less follows the same rule; one to more is taken now, into debt if need be.
///
/// # Memory ordering
/// None is promised to callers.
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
pub struct FairShare {
    budget: Arc<Budget>,
    /// Always locked after the lock of the state.
    share: Mutex<Share>,
    turns: Turns,
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
    mark: ShareMark,
}

impl Ticket for FairTicket {
    const WORDS: usize = 5;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        let ShareMark { empty, refunded } = self.mark;
        let halves = [
            empty as u64,
            (empty >> 64) as u64,
            refunded as u64,
            (refunded >> 64) as u64,
        ];
        words[0] = self.tokens;
        words[1..5].copy_from_slice(&halves);
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        let whole = |at: usize| u128::from(words[at]) | u128::from(words[at + 1]) << 64;
        Self {
            tokens: words[0],
            mark: ShareMark {
                empty: whole(1),
                refunded: whole(3),
            },
        }
    }
}

fn grains(tokens: u64) -> u64 {
    tokens.min(u64::MAX >> GRAIN) << GRAIN
}

impl FairShare {
    /// Runs `look` on the budget and the share, as of `now`.
    fn with<R>(&self, now: Instant, look: impl FnOnce(&mut MaxMin, &mut Share) -> R) -> R {
        let mut state = self.budget.state.lock();
        state.max_min.advance(now.ticks());
        look(&mut state.max_min, &mut self.share.lock())
    }

    /// Takes `n` tokens, or refuses: the method for a share that stands alone.
    ///
    /// # Errors
    /// `RateExceeded`, with `retry_after`; `Oversized` when `n` exceeds the burst.
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        let now = self.budget.clock.now();
        if self.turns.is_waited() {
            self.let_try(n, None, now)?;
        }
        self.take(n, now).map(|_| ())
    }

    /// Refuses a demand for `n` at `place` while the heads of queues are before it. One that is never admitted is
    /// refused later, with its own reason.
    #[cold]
    fn let_try(&self, n: u64, place: Option<&Place<'_>>, now: Instant) -> Result<(), Refusal<'_>> {
        let clock = &self.budget.clock;
        let forecast = |n, ahead| self.forecast(n, ahead, now);
        match self.turns.let_try(n, place, now, clock, forecast) {
            Err(Some(at)) => {
                let wait = Wait::Until(Due::at(clock, now, at));
                Err(Refusal::new(Reason::RateExceeded, LEG, n, wait))
            }
            _ => Ok(()),
        }
    }

    /// When `n` tokens are admitted behind `ahead` others.
    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        if n > self.budget.quota.burst_size() {
            return Forecast::Never;
        }
        let wanted = u128::from(n) + u128::from(ahead);
        let ticks = self.with(now, |max_min, share| max_min.holds_at(share, wanted << GRAIN));
        let at = Instant::from_ticks(ticks);
        match at > now {
            false => Forecast::Now,
            // Nothing is refilled as time passes.
            true if self.budget.quota.is_zero() => Forecast::Spent,
            true => Forecast::At(at),
        }
    }

    fn take(&self, n: u64, now: Instant) -> Result<ShareMark, Refusal<'_>> {
        if self.budget.quota.is_unlimited() {
            return Ok(ShareMark::UNCOUNTED);
        }
        if n > self.budget.quota.burst_size() {
            return Err(Refusal::new(Reason::Oversized, LEG, n, Wait::Never));
        }
        let taken = self.with(now, |max_min, share| {
            max_min
                .take(share, grains(n))
                .ok_or_else(|| max_min.holds_at(share, grains(n).into()))
        });
        taken.map_err(|ticks| {
            let due = match self.budget.quota.is_zero() {
                true => Due::never(&self.budget.clock, now),
                false => Due::at(&self.budget.clock, now, Instant::from_ticks(ticks)),
            };
            Refusal::new(Reason::RateExceeded, LEG, n, Wait::Until(due))
        })
    }

    /// Whole tokens that could be taken now; `u64::MAX` at an unlimited rate. A snapshot.
    pub fn available(&self) -> u64 {
        if self.budget.quota.is_unlimited() {
            return u64::MAX;
        }
        let held = self.with(self.budget.clock.now(), |max_min, share| max_min.held(share));
        (held.max(0) >> GRAIN) as u64
    }
}

impl Limiter for FairShare {
    type Ticket = FairTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<FairTicket, Refusal<'_>> {
        let (tokens, now) = (demand.units(), demand.now(&self.budget.clock));
        if self.turns.is_waited() {
            self.let_try(tokens, demand.place(), now)?;
        }
        let mark = self.take(tokens, now)?;
        Ok(FairTicket { tokens, mark })
    }

    fn cancel(&self, ticket: FairTicket, now: &ClockReading) {
        if self.budget.quota.is_unlimited() {
            return;
        }
        let refunded = self.with(now.now(&self.budget.clock), |max_min, share| {
            max_min.give_back(share, ticket.mark, grains(ticket.tokens))
        });
        if refunded {
            // Notifies the waiters at all shares: if one is fuller, the others gain faster.
            self.budget.notify.notify_all();
        }
    }

    fn settle(&self, ticket: &mut FairTicket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        if self.budget.quota.is_unlimited() || actual == ticket.tokens {
            ticket.tokens = actual;
            return 1;
        }
        let (charged, actual_grains) = (grains(ticket.tokens), grains(actual));
        let refunded = self.with(
            settlement.reading().now(&self.budget.clock),
            |max_min, share| match actual_grains.checked_sub(charged) {
                Some(more) => {
                    ticket.mark = max_min.take_more(share, ticket.mark, more);
                    false
                }
                None => max_min.give_back(share, ticket.mark, charged - actual_grains),
            },
        );
        if refunded {
            self.budget.notify.notify_all();
        }
        ticket.tokens = actual;
        1
    }

    #[inline]
    fn finish(&self, _: FairTicket, _: Outcome, _: &ClockReading) {}

    #[inline]
    fn forget(&self, _: FairTicket) {}

    #[inline]
    fn callbacks(&self) -> Callbacks {
        Callbacks::NONE
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.budget.notify);
        let units = demand.units();
        if self.budget.quota.is_unlimited() {
            return ReadyAt::NOW;
        }
        if units > self.budget.quota.burst_size() {
            return ReadyAt::never_for(Reason::Oversized, LEG, units);
        }
        let now = demand.now(&self.budget.clock);
        let clock = &self.budget.clock;
        (self.turns).ready_at(LEG, demand, clock, |n, ahead| self.forecast(n, ahead, now))
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.budget.clock)
    }

    /// Reports a rate that is divided by the number of shares that want theirs now.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let Budget { quota, clock, .. } = &*self.budget;
        let now = clock.now();
        let (held, one_at, sharers) = self.with(now, |max_min, share| {
            let one_at = max_min.holds_at(share, 1 << GRAIN);
            (max_min.held(share), one_at, max_min.sharers(share))
        });
        let next = (quota.count() > 0).then(|| clock.between(now, Instant::from_ticks(one_at)));
        let state = quota.status((held.max(0) >> GRAIN) as u64, next);
        if let Some(mut state) = state {
            if let State::Rate { window, .. } = &mut state {
                *window = window.saturating_mul(u32::try_from(sharers).unwrap_or(u32::MAX));
            }
            visit(Status::new(LEG, LEG, state));
        }
    }

    fn is_pristine(&self, now: &ClockReading) -> bool {
        !self.turns.is_waited() && self.with(now.now(&self.budget.clock), |max_min, share| max_min.is_full(share))
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(&self.turns);
    }
}

impl Drop for FairShare {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.max_min.advance(self.budget.clock.now().ticks());
        let leaves_more = state.max_min.leave(&self.share.lock());
        drop(state);
        if leaves_more {
            self.budget.notify.notify_all();
        }
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
                    let Forecast::At(at) = share.forecast(1, 0, now) else {
                        unreachable!("it is empty")
                    };
                    now = at;
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
