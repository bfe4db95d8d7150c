//! Several limiters of which one admits: the first that does.

use super::all_or_nothing::LongTickets;
use super::boxed::{BoxLimiter, Erased};
use crate::core::ask::{Demand, Place};
use crate::core::decision::LegDecision;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Reason, Refusal};
use crate::core::status::Status;
use crate::core::ticket::BoxTicket;
use crate::sync::notify::Notify;
use crate::sync::unwind::both;
use crate::sync::wait_queue::{Permits, WaitQueue};
use crate::time::{Clock, ClockReading};
use std::fmt;

/// A waterfall: takes from the first of several sources that admits, such as a plan, then credits, then pay-as-you-go.
///
/// The source that was taken from is the one that is settled, given back to, and [named](crate::Permit::source) by the permit. The
/// others are left without a trace. It is a limiter as any other: a leg of a policy, or itself a source.
///
/// # Refusals
/// When all sources refuse, the refusal is that of the source that admits first, under its name. It is permanent only if all are. A
/// request that lacks a cost or a key of a source is refused there ([`Unpriced`](Reason::Unpriced),
/// [`Unkeyed`](Reason::Unkeyed), [`Misconfigured`](Reason::Misconfigured)), and the sources behind it are not asked.
///
/// # Waiting
/// A policy that waits is admitted by the source that first has room. It stands in the queue of one source, the first whose permits are
/// missing. Permits of another that end through the same `FirstOf` reach it as well. **Starvation**: permits of another that are
/// held and given back outside the `FirstOf` do not wake it; let such sources be rates or budgets.
///
/// The time that a waiter behind others is told is that without those ahead: which source admits them is not known.
///
/// # Settling
/// A settlement goes to the source that was taken from, and to no other. It fails as [`UnknownCost`](crate::UnknownCost) if that source
/// does not count the cost.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Ask, Cost, FirstOf, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let bucket = |quota| Arc::new(TokenBucket::new(quota).on(&clock));
/// let (plan, credits) = (bucket(Quota::per_hour(1_000)), bucket(Quota::per_hour(500)));
/// let billing = FirstOf::new("plan", Arc::clone(&plan).per(TOKENS)).or("credits", Arc::clone(&credits).per(TOKENS));
/// let policy = Policy::builder().limit(Semaphore::new(8)).limit(billing).on(&clock).build()?;
///
/// let ask = Ask::one().cost(TOKENS, 400);
/// let sources: Vec<_> = (0..2).map(|_| policy.try_admit(ask).unwrap().source().map(str::to_owned)).collect();
/// assert_eq!(sources, [Some("plan".into()), Some("plan".into())]);
///
/// assert_eq!(policy.explain(ask).legs[1].source(), Some("credits"));
/// let mut permit = policy.try_admit(ask).unwrap();
/// assert_eq!(permit.source(), Some("credits"));
/// permit.settle(TOKENS, 100).unwrap();
/// assert_eq!((plan.available(), credits.available()), (200, 400));
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
pub struct FirstOf {
    sources: Vec<Source>,
    callbacks: Callbacks,
    /// Sources in whose queues a policy waits for permits.
    queues: usize,
    /// Tells a policy that stands in the queue of another source. Of use with two of them.
    notify: Notify,
    long: Option<Box<LongTickets>>,
}

/// A ticket of it is the number of the source in the first word, and the source's own ticket behind.
struct Source {
    name: Box<str>,
    limiter: Box<dyn Erased>,
    words: usize,
}

impl FirstOf {
    /// One source, asked first. `name` is that of its refusals.
    pub fn new<L: Limiter + 'static>(name: impl Into<Box<str>>, limiter: L) -> Self {
        let empty = Self {
            sources: Vec::new(),
            callbacks: Callbacks::NONE,
            queues: 0,
            notify: Notify::new(),
            long: None,
        };
        empty.or(name, limiter)
    }

    /// Adds a source, asked when all before it refuse.
    #[must_use]
    pub fn or<L: Limiter + 'static>(mut self, name: impl Into<Box<str>>, limiter: L) -> Self {
        let BoxLimiter {
            limiter,
            callbacks,
            words,
            ..
        } = BoxLimiter::new(limiter);
        let mut waits = false;
        limiter.queues(&mut |queue| waits |= queue.permits() != Permits::None);
        self.queues += usize::from(waits);
        self.callbacks = Callbacks {
            roll_back: self.callbacks.roll_back || callbacks.roll_back,
            commit: self.callbacks.commit || callbacks.commit,
            finish: self.callbacks.finish || callbacks.finish,
        };
        self.sources.push(Source {
            name: name.into(),
            limiter,
            words,
        });
        let most = self.sources.iter().map(|source| source.words).max();
        self.long = LongTickets::unless_fits(1 + most.unwrap_or(0), BoxTicket::WORDS_INLINE);
        self
    }

    /// The names of the sources, in order.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|source| &*source.name)
    }

    fn reserve<'a>(&'a self, demand: Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        let mut refused: Option<Refusal<'a>> = None;
        for (number, source) in self.sources.iter().enumerate() {
            let refusal = match source.limiter.try_reserve(&demand, &mut words[1..]) {
                Ok(()) => {
                    words[0] = number as u64;
                    return Ok(());
                }
                Err(refusal) => refusal.looked().named(&source.name),
            };
            if is_fault(refusal.reason()) {
                return Err(refusal);
            }
            refused = Some(refused.map_or(refusal, |before| before.or(refusal)));
        }
        match refused {
            Some(refusal) => Err(refusal),
            None => unreachable!("it has a source"),
        }
    }

    /// The earliest answer, and how many sources can admit such a demand at all.
    fn earliest(&self, demand: Demand<'_>) -> (ReadyAt<'_>, usize) {
        let (mut earliest, mut able): (Option<ReadyAt<'_>>, usize) = (None, 0);
        for source in &self.sources {
            let ready = source.limiter.ready_at(demand).named(&source.name);
            let due = |at| source.limiter.clock().is_none_or(|clock| at <= demand.now(clock));
            if !ready.is_event() && !ready.is_never() && ready.not_before().is_none_or(due) {
                return (ReadyAt::NOW, 1);
            }
            let never = ready.never_admits(demand.units());
            able += usize::from(never.is_none());
            let is_last = never.is_some_and(|never| is_fault(never.reason()));
            earliest = Some(earliest.map_or(ready, |before| match is_last {
                true if before.is_never() => ready,
                true => before,
                false => before.or(ready),
            }));
            if is_last {
                break;
            }
        }
        (earliest.unwrap_or(ReadyAt::NOW), able)
    }

    fn of<'a>(&'a self, words: &[u64]) -> &'a Source {
        &self.sources[words[0] as usize]
    }

    /// Ends a ticket. What comes back may be what a policy waits for that stands in another queue.
    fn end(&self, ticket: &BoxTicket, end: impl Fn(&Source, &[u64])) {
        let end = |words: &[u64]| end(self.of(words), &words[1..]);
        let give_back = || match &self.long {
            None => end(ticket.words()),
            Some(long) => long.end(ticket.words(), end),
        };
        match self.queues {
            0 | 1 => give_back(),
            _ => both(give_back, || self.notify.notify_all()),
        }
    }
}

/// The request, or the program, is at fault: no other source makes up for it.
fn is_fault(reason: Reason) -> bool {
    matches!(reason, Reason::Unpriced | Reason::Unkeyed | Reason::Misconfigured)
}

impl Limiter for FirstOf {
    type Ticket = BoxTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<BoxTicket, Refusal<'_>> {
        let mut ticket = BoxTicket::EMPTY;
        match &self.long {
            None => self.reserve(demand, ticket.words_mut())?,
            Some(long) => long.fill(ticket.words_mut(), |words| self.reserve(demand, words))?,
        }
        Ok(ticket)
    }

    fn cancel(&self, ticket: BoxTicket, now: &ClockReading) {
        self.end(&ticket, |source, words| source.limiter.cancel(words, now));
    }

    fn commit(&self, ticket: &mut BoxTicket, now: &ClockReading) {
        if !self.callbacks.commit {
            return;
        }
        let commit = |words: &mut [u64]| self.of(words).limiter.commit(&mut words[1..], now);
        match &self.long {
            None => commit(ticket.words_mut()),
            Some(long) => long.change(ticket.words(), commit),
        }
    }

    fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        let settle = |words: &mut [u64]| self.of(words).limiter.settle(&mut words[1..], actual);
        match &self.long {
            None => settle(ticket.words_mut()),
            Some(long) => long.change(ticket.words(), settle),
        }
    }

    fn finish(&self, ticket: BoxTicket, outcome: Outcome, now: &ClockReading) {
        self.end(&ticket, |source, words| source.limiter.finish(words, outcome, now));
    }

    fn forget(&self, ticket: BoxTicket) {
        self.end(&ticket, |source, words| source.limiter.forget(words));
    }

    fn callbacks(&self) -> Callbacks {
        self.callbacks
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        if self.queues > 1 {
            demand.listen(&self.notify);
        }
        match self.earliest(demand) {
            // Those ahead may be admitted by any of several.
            (_, 2..) if demand.is_behind() => {
                let place = demand.place().map(Place::at_the_front);
                self.earliest(demand.placed(place.as_ref())).0
            }
            (ready, _) => ready,
        }
    }

    fn clock(&self) -> Option<&Clock> {
        self.sources.iter().find_map(|source| source.limiter.clock())
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.sources.iter().for_each(|source| source.limiter.queues(visit));
    }

    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.sources.iter().for_each(|source| source.limiter.clocks(visit));
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        for source in &self.sources {
            source
                .limiter
                .visit_status(&mut |status| visit(status.named(&source.name)));
        }
    }

    fn visit_sources<'a>(&'a self, ticket: &BoxTicket, visit: &mut dyn FnMut(&'a str)) {
        let mut look = |words: &[u64]| {
            let source = self.of(words);
            visit(&source.name);
            source.limiter.visit_sources(&words[1..], visit);
        };
        match &self.long {
            None => look(ticket.words()),
            Some(long) => long.look(ticket.words(), look),
        }
    }

    fn explain_legs(&self, demand: Demand<'_>, visit: &mut dyn FnMut(LegDecision)) {
        let sources = self.sources.iter().map(|source| {
            let mut legs = Vec::new();
            source.limiter.explain_legs(demand, &mut |leg| legs.push(leg));
            LegDecision::of_source(&source.name, legs)
        });
        visit(LegDecision::of_first(sources.collect()));
    }

    fn is_pristine(&self, now: &ClockReading) -> bool {
        self.sources.iter().all(|source| source.limiter.is_pristine(now))
    }
}

impl fmt::Debug for FirstOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FirstOf")?;
        f.debug_list().entries(self.sources()).finish()
    }
}
