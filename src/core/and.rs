//! Two limiters as one, all-or-nothing.

use crate::core::ask::Demand;
use crate::core::decision::LegDecision;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::sync::notify::{EndOfSteps, together};
use crate::sync::unwind::{self, Rest, in_panic};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::thread::panicking;

/// Both `A` and `B`, asked in this order. Made by [`LimiterExt::and`](crate::LimiterExt::and).
///
/// A semaphore without room refuses before the legs before it are taken from, where one look shows that they would admit. When
/// `B` refuses otherwise, or panics, the ticket of `A` is given back. When a leg panics as it ends, the other is ended all the same,
/// and the first panic goes on. None goes on while the thread is panicking already: so a permit that is dropped by a panic
/// aborts nothing.
///
/// **Livelock**: the same semaphore in both. A policy that waits for it could not tell its two places there apart, and might
/// never stop trying. A builder refuses such legs.
///
/// ```
/// # use tollgate::{And, LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
/// let clock = ManualClock::new();
/// let both: And<Semaphore, TokenBucket> = Semaphore::new(8).and(TokenBucket::new(Quota::per_second(2)).on(&clock));
/// assert!(both.try_admit(2).is_ok());
/// // The bucket refuses, and the slot is given back.
/// assert_eq!(both.try_admit(1).unwrap_err().leg(), "token_bucket");
/// ```
#[derive(Debug)]
pub struct And<A, B> {
    a: A,
    b: B,
}

impl<A, B> And<A, B> {
    pub(crate) fn new(a: A, b: B) -> Self {
        Self { a, b }
    }
}

impl<A: Limiter, B: Limiter> And<A, B> {
    /// Asks the second, where the first has given `a`.
    #[inline(always)]
    fn reserve_second(&self, a: A::Ticket, demand: Demand<'_>) -> Result<(A::Ticket, B::Ticket), Refusal<'_>> {
        // It has a copy of the ticket, so that the kept one need not be read back from there.
        let (first, reading) = (&self.a, demand.reading());
        let roll_back = Rest::new(move || {
            first.cancel(a, reading);
        });
        match self.b.reserve_link(demand) {
            Ok(b) => {
                roll_back.forget();
                Ok((a, b))
            }
            Err(refusal) => {
                roll_back.make();
                Err(refusal)
            }
        }
    }

    /// True when the second is the first to refuse, so that the refusal is its own.
    #[cold]
    #[inline(never)]
    fn first_admits(&self, demand: Demand<'_>) -> bool {
        self.a.admits(demand)
    }

    /// The end of the first for the paths of panics. Not inlined: each copy of a chain's end has three of the shorter chain's,
    /// and they would multiply.
    #[cold]
    #[inline(never)]
    fn finish_first(&self, a: A::Ticket, outcome: Outcome, now: &ClockReading) {
        self.a.finish(a, outcome, now);
    }
}

/// The calls of both legs, the second also when the first panics. A pair has no loop, and the second call is written out
/// where nothing has panicked: as a closure with two callers it is not inlined, which costs a chain a tenth.
macro_rules! both {
    ($first:expr, $second:expr) => {{
        let rest = Rest::new(|| $second);
        $first;
        rest.forget();
        $second
    }};
    (of copies: $first:expr, $second:expr) => {{
        if panicking() {
            return in_panic(move || $first, move || $second);
        }
        let rest = Rest::new(move || $second);
        $first;
        rest.forget();
        $second
    }};
}

impl<A: Limiter, B: Limiter> Limiter for And<A, B> {
    type Ticket = (A::Ticket, B::Ticket);

    #[inline(always)]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        match self.reserve_link(demand) {
            Ok(ticket) => Ok(ticket),
            Err(refusal) => Err(refusal.among(self, demand)),
        }
    }

    #[inline(always)]
    fn reserve_link(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        if let Some(refusal) = self.b.refuses(demand) {
            if self.first_admits(demand) {
                return Err(refusal);
            }
        }
        let a = self.a.reserve_link(demand)?;
        let end = EndOfSteps::begin(self.b.callbacks().roll_back);
        let both = self.reserve_second(a, demand);
        end.reached_quietly();
        both
    }

    #[inline]
    fn cancel(&self, (a, b): Self::Ticket, now: &ClockReading) {
        together(|| both!(of copies: self.b.cancel(b, now), self.a.cancel(a, now)));
    }

    #[inline(always)]
    fn commit(&self, (a, b): &mut Self::Ticket, now: &ClockReading) {
        both!(self.a.commit(a, now), self.b.commit(b, now));
    }

    #[inline]
    fn settle(&self, (a, b): &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        let (mut first, mut second) = (0, 0);
        together(|| {
            unwind::both(
                || first = self.a.settle(a, actual),
                || second = self.b.settle(b, actual),
            );
        });
        first + second
    }

    #[inline(always)]
    fn finish(&self, (a, b): Self::Ticket, outcome: Outcome, now: &ClockReading) {
        let end = EndOfSteps::begin(self.a.callbacks().finish && self.b.callbacks().finish);
        if self.finish_may_panic() && panicking() {
            return in_panic(
                move || self.b.finish(b, outcome, now),
                move || self.finish_first(a, outcome, now),
            );
        }
        let rest = Rest::new(move || self.finish_first(a, outcome, now));
        self.b.finish(b, outcome, now);
        rest.forget();
        self.a.finish(a, outcome, now);
        end.reached();
    }

    #[inline]
    fn forget(&self, (a, b): Self::Ticket) {
        together(|| both!(of copies: self.b.forget(b), self.a.forget(a)));
    }

    #[inline]
    fn callbacks(&self) -> Callbacks {
        self.a.callbacks().and(self.b.callbacks())
    }

    #[inline(always)]
    fn refuses(&self, demand: Demand<'_>) -> Option<Refusal<'_>> {
        // Of the first alone: the second is the first to refuse only where that admits.
        self.a.refuses(demand)
    }

    #[inline]
    fn admits(&self, demand: Demand<'_>) -> bool {
        self.a.admits(demand) && self.b.admits(demand)
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.a.ready_at(demand).and(self.b.ready_at(demand))
    }

    fn clock(&self) -> Option<&Clock> {
        self.a.clock().or_else(|| self.b.clock())
    }

    #[inline(always)]
    fn finish_may_panic(&self) -> bool {
        self.a.finish_may_panic() || self.b.finish_may_panic()
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.a.queues(visit);
        self.b.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.a.clocks(visit);
        self.b.clocks(visit);
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.a.visit_status(visit);
        self.b.visit_status(visit);
    }

    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        self.a.explain_legs(demand, visit);
        self.b.explain_legs(demand, visit);
    }

    fn visit_sources<'a>(&'a self, (a, b): &Self::Ticket, visit: &mut dyn FnMut(&'a str)) {
        self.a.visit_sources(a, visit);
        self.b.visit_sources(b, visit);
    }

    fn is_pristine(&self, now: &ClockReading) -> bool {
        self.a.is_pristine(now) && self.b.is_pristine(now)
    }
}
