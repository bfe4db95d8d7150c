//! Several limiters of which one admits: the first that does.

use crate::core::ask::{Ask, Demand, Waiting};
use crate::core::decision::LegDecision;
use crate::core::legs::Legs;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{LegName, Reason, Refusal, Wait};
use crate::core::status::Description;
use crate::core::ticket::BoxTicket;
use crate::sync::unwind::each;
use crate::sync::wait_queue::{Place, Watch};
use std::fmt;
use std::sync::Weak;

/// A waterfall: takes from the first of several sources that admits, such as a plan, then credits, then pay-as-you-go.
///
/// The source that was taken from is settled and given back to, and [`source`](Self::source) names it. The
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
/// let (_, billing) = policy.limiter();
/// for _ in 0..2 {
///     let permit = policy.try_admit(ask).unwrap();
///     assert_eq!(billing.source(&permit.ticket().unwrap().1), "plan");
/// }
///
/// assert_eq!(policy.explain(ask).legs[1].source(), Some("credits"));
/// let mut permit = policy.try_admit(ask).unwrap();
/// assert_eq!(billing.source(&permit.ticket().unwrap().1), "credits");
/// permit.settle(TOKENS, 100).unwrap();
/// assert_eq!((plan.available(), credits.available()), (200, 400));
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
pub struct FirstOf {
    sources: Vec<Source>,
}

struct Source {
    name: LegName,
    limiter: Legs,
}

/// The number of the source that admitted, and its ticket.
pub type SourceTicket = (u64, BoxTicket);

impl FirstOf {
    /// One source, asked first. `name` is that of its refusals.
    pub fn new<L: Limiter + 'static>(name: impl Into<LegName>, limiter: L) -> Self {
        Self { sources: Vec::new() }.or(name, limiter)
    }

    /// Adds a source, asked when all before it refuse.
    #[must_use]
    pub fn or<L: Limiter + 'static>(mut self, name: impl Into<LegName>, limiter: L) -> Self {
        self.sources.push(Source {
            name: name.into(),
            limiter: Legs::new().and(limiter),
        });
        self
    }

    /// The name of the source that an admission was taken from.
    ///
    /// ```
    /// # use tollgate::{FirstOf, LimiterExt, Policy, Semaphore};
    /// let lanes = FirstOf::new("fast lane", Semaphore::new(1)).or("slow lane", Semaphore::new(1));
    /// let policy = Policy::new(lanes);
    /// let permits = [policy.try_admit(1).unwrap(), policy.try_admit(1).unwrap()];
    /// let sources = permits.each_ref().map(|permit| policy.limiter().source(permit.ticket().unwrap()));
    /// assert_eq!(sources, ["fast lane", "slow lane"]);
    /// ```
    pub fn source(&self, ticket: &SourceTicket) -> &str {
        &self.of(ticket).name
    }

    fn of(&self, ticket: &SourceTicket) -> &Source {
        &self.sources[ticket.0 as usize]
    }

    /// The refusal of all sources, in their order: the soonest of their waits, with its leg. `look` answers for one source; a fault of
    /// the request ends the search.
    fn first<T>(&self, mut look: impl FnMut(usize, &Source) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let mut soonest: Option<Refusal> = None;
        for (number, source) in self.sources.iter().enumerate() {
            let refusal = match look(number, source) {
                Ok(admitted) => return Ok(admitted),
                Err(refusal) => refusal.named(source.name),
            };
            if is_fault(refusal.reason()) {
                return Err(refusal);
            }
            soonest = Some(match soonest {
                Some(first) if first.wait() <= refusal.wait() => first,
                _ => refusal,
            });
        }
        // `new` makes one with a source.
        Err(soonest.unwrap_or(Refusal::new(Reason::Misconfigured, LegName::NONE, Wait::Never)))
    }

    /// Looks at all sources, so that each tells when it could admit and a head joins the queues of all that refuse.
    fn look_at_sources(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let look = |next: &mut dyn FnMut()| {
            self.first(|_, source| {
                let looked = source.limiter.look(demand);
                next();
                looked
            })
        };
        match demand.place() {
            Some(place) => place.for_either(look),
            None => look(&mut || {}),
        }
    }

    fn explain(&self, demand: &Demand<'_>) -> Option<Result<(), Refusal>> {
        let answers = demand.answers()?;
        let (mut looked, mut sources) = (Vec::new(), Vec::new());
        for source in &self.sources {
            let before = answers.borrow().len();
            looked.push(source.limiter.look(demand));
            let legs = answers.borrow_mut().drain(before..).collect();
            sources.push(LegDecision::of_source(&source.name, legs));
        }
        answers.borrow_mut().push(LegDecision::of_first(sources));
        Some(self.first(|number, _| looked[number]))
    }
}

/// True for a refusal that lies in the request, so that no other source may have it.
fn is_fault(reason: Reason) -> bool {
    matches!(reason, Reason::Unpriced | Reason::Unkeyed | Reason::Misconfigured)
}

impl Limiter for FirstOf {
    type Ticket = SourceTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<SourceTicket, Refusal> {
        self.first(|number, source| {
            let ticket = source.limiter.try_reserve(demand)?;
            Ok((number as u64, ticket))
        })
    }

    fn cancel(&self, ticket: SourceTicket) {
        self.of(&ticket).limiter.cancel(ticket.1);
    }

    fn settle(&self, ticket: &mut SourceTicket, settlement: &Settlement) -> u32 {
        self.of(ticket).limiter.settle(&mut ticket.1, settlement)
    }

    fn finish(&self, ticket: SourceTicket, outcome: Outcome) {
        self.of(&ticket).limiter.finish(ticket.1, outcome);
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        if let Some(looked) = self.explain(demand) {
            return looked;
        }
        let looked = self.look_at_sources(demand);
        match (&looked, demand.queue()) {
            // Those ahead may be admitted by any of several: then only the request itself is judged.
            (Err(refusal), Some(waiting)) if demand.ahead() > 0 && self.several_can(demand) => {
                let ahead = &Ask::many(0);
                let waiting = Waiting { ahead, ..*waiting };
                let alone = demand.with_units(demand.units(), 0).in_queue(Some(&waiting));
                self.look_at_sources(&alone).map_err(|own| match own.wait() {
                    Wait::Never => *refusal,
                    _ => own,
                })
            }
            _ => looked,
        }
    }

    fn leave(&self, place: &Place) {
        each(self.sources.iter(), |source| source.limiter.leave(place));
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.sources.iter().for_each(|source| source.limiter.watch(watcher));
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        for source in &self.sources {
            source.limiter.describe(&mut |leg| visit(leg.named(&source.name)));
        }
    }
}

impl FirstOf {
    fn several_can(&self, demand: &Demand<'_>) -> bool {
        let can = |source: &&Source| {
            source
                .limiter
                .look(demand)
                .map_or_else(|no| no.wait() != Wait::Never, |()| true)
        };
        self.sources.iter().filter(can).count() > 1
    }
}

impl fmt::Debug for FirstOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FirstOf")?;
        let names = self.sources.iter().map(|source| &source.name);
        f.debug_list().entries(names).finish()
    }
}
