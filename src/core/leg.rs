//! A limiter as a leg of a policy: its name, what it counts, and when it applies.

use crate::core::ask::{Cost, Demand};
use crate::core::conditional::{Condition, Trigger};
use crate::core::decision::{LegDecision, LegVerdict};
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{LegName, Reason, Refusal, Wait};
use crate::core::status::Description;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::wait_queue::{Place, Watch};
use crate::time::Instant;
use std::fmt;
use std::sync::Weak;

/// A limiter with a name, a cost that it counts, and the conditions under which it applies. The methods of
/// [`LimiterExt`](crate::LimiterExt) make one, and each sets one field.
///
/// ```
/// # use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, Reason, TokenBucket};
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let leg = TokenBucket::new(Quota::per_minute(1_000)).on(&clock).per(TOKENS).named("tokens per minute");
/// assert!(leg.try_admit(Ask::one().cost(TOKENS, 600)).is_ok());
/// let refused = leg.try_admit(Ask::one().cost(TOKENS, 600)).unwrap_err();
/// assert_eq!((refused.leg(), refused.reason()), ("tokens per minute", Reason::RateExceeded));
/// assert_eq!(leg.limiter().available(), 400);
///
/// // Tries a limit out: it counts what it would refuse.
/// let trial = TokenBucket::new(Quota::per_minute(1)).on(&clock).shadow();
/// assert!((0..5).all(|_| trial.try_admit(1).is_ok()));
/// assert_eq!(trial.shadow_stats().unwrap().refused, 4);
/// ```
pub struct Leg<L> {
    limiter: L,
    name: LegName,
    /// What it counts instead of what the limiter around it is asked for.
    cost: Option<Cost>,
    at_once: bool,
    when: Option<Condition>,
    shadow: Option<Box<Shadow>>,
}

/// What a leg in shadow mode has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShadowStats {
    /// The requests that it admitted.
    pub admitted: u64,
    /// The requests that it would have refused.
    pub refused: u64,
    /// Those of them that it would have refused at any later time as well.
    pub refused_for_good: u64,
}

// Relaxed throughout: statistics.
#[derive(Default)]
struct Shadow {
    admitted: AtomicU64,
    refused: AtomicU64,
    for_good: AtomicU64,
}

impl Shadow {
    fn stats(&self) -> ShadowStats {
        ShadowStats {
            admitted: self.admitted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            refused_for_good: self.for_good.load(Ordering::Relaxed),
        }
    }
}

impl<L: Limiter> Leg<L> {
    /// `limiter` as it is.
    pub fn new(limiter: L) -> Self {
        Self {
            limiter,
            name: LegName::NONE,
            cost: None,
            at_once: false,
            when: None,
            shadow: None,
        }
    }

    /// Refusals carry this name.
    #[must_use]
    pub fn named(mut self, name: impl Into<LegName>) -> Self {
        self.name = name.into();
        self
    }

    /// It counts `cost`, and not calls. A request that does not name it is refused as [`Reason::Unpriced`].
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Self {
        self.cost = Some(cost);
        self
    }

    /// It counts the requests that it would refuse, and refuses none.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = Some(Box::default());
        self
    }

    /// A policy does not wait for it: see [`LimiterExt::at_once`](crate::LimiterExt::at_once).
    #[must_use]
    pub fn at_once(self) -> Self {
        let at_once = true;
        Self { at_once, ..self }
    }

    /// It applies only while `condition` holds: see [`LimiterExt::when`](crate::LimiterExt::when).
    #[must_use]
    pub fn when(mut self, condition: impl Into<Condition>) -> Self {
        self.when = Some(condition.into());
        self
    }

    /// The limiter.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// What it has counted; `None` unless it is in shadow mode.
    pub fn shadow_stats(&self) -> Option<ShadowStats> {
        self.shadow.as_ref().map(|shadow| shadow.stats())
    }

    #[inline(always)] // row: named, priced legs
    fn priced<'a>(&self, demand: &Demand<'a>) -> Result<Demand<'a>, Refusal> {
        match self.cost {
            None => Ok(*demand),
            Some(cost) => match demand.per(cost) {
                Some(demand) => Ok(demand),
                None => Err(unpriced(cost)),
            },
        }
    }

    fn trigger(&self) -> Option<&Trigger> {
        match &self.when {
            Some(Condition::Loaded(trigger)) => Some(trigger),
            _ => None,
        }
    }

    /// The refusal as this leg's own, with the end of its condition; `None` where it does not count.
    #[cold]
    #[inline(never)] // row: named, priced legs
    fn refused(&self, refusal: Refusal, demand: &Demand<'_>) -> Option<Refusal> {
        if let Some(shadow) = &self.shadow {
            shadow.refused.fetch_add(1, Ordering::Relaxed);
            if refusal.reason().is_permanent() {
                shadow.for_good.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        }
        Some(self.own(refusal, demand))
    }

    fn own(&self, refusal: Refusal, demand: &Demand<'_>) -> Refusal {
        let refusal = refusal.named(self.name);
        let refusal = match self.trigger() {
            Some(trigger) => until_end(refusal, trigger, demand),
            None => refusal,
        };
        match self.at_once {
            true => refusal.at_once(),
            false => refusal,
        }
    }

    /// Looks at the limiter; a head that joins its queue waits there until the condition ends, at most.
    fn look_inside(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let ends = self.trigger().and_then(|trigger| trigger.ends(demand));
        match (ends, demand.place()) {
            (Some(ends), Some(place)) => place.at_most_until(ends, || self.limiter.look(demand)),
            _ => self.limiter.look(demand),
        }
    }

    fn applies(&self, demand: &Demand<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when.applies(demand))
    }

    /// Writes the answer of this leg in place of the `inner` answers: one under its own name, also for a composite inside.
    fn explain(&self, looked: Option<Result<(), Refusal>>, demand: &Demand<'_>, inner: Vec<LegDecision>) {
        let Some(answers) = demand.answers() else { return };
        let mut decision = LegDecision::of(self, demand);
        // The numbers are those of the source that it would be taken from.
        if let Ok([only]) = <[LegDecision; 1]>::try_from(inner) {
            (decision.available, decision.capacity, decision.sources) = (only.available, only.capacity, only.sources);
        }
        decision.verdict = match looked {
            None => LegVerdict::Idle,
            Some(looked) => LegVerdict::of(looked),
        };
        decision.shadow = self.shadow.is_some();
        decision.when = self.trigger().and_then(|trigger| trigger.measured(demand));
        answers.borrow_mut().push(decision);
    }
}

#[cold]
fn unpriced(cost: Cost) -> Refusal {
    Refusal::new(Reason::Unpriced, cost.name(), Wait::Never)
}

/// The refusal of a leg that applies only for a while: when the load has fallen, it admits.
fn until_end(refusal: Refusal, trigger: &Trigger, demand: &Demand<'_>) -> Refusal {
    let ends = trigger.ends(demand);
    let bounded = match (refusal.wait(), ends) {
        // Larger than the limit, which admits it once the condition has ended.
        (Wait::Never, _) if refusal.reason() != Reason::Oversized => return refusal,
        (Wait::Never, None) => Wait::EVENT,
        (wait, None) => wait,
        (wait, Some(ends)) => match wait.not_before().is_some_and(|at| at <= ends_at(ends)) {
            true => wait,
            false => ends,
        },
    };
    match refusal.wait() {
        Wait::Never => refusal.with_reason(Reason::RateExceeded).with_wait(bounded),
        _ => refusal.with_wait(bounded),
    }
}

fn ends_at(ends: Wait) -> Instant {
    ends.not_before().unwrap_or(Instant::MAX)
}

impl<L: Limiter> Limiter for Leg<L> {
    /// `None` of a leg that took no part.
    type Ticket = Option<L::Ticket>;

    #[inline(always)] // row: named, priced legs
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        if self.when.is_some() && !self.applies(demand) {
            return Ok(None);
        }
        match self.priced(demand).and_then(|part| self.limiter.try_reserve(&part)) {
            Ok(ticket) => {
                if let Some(shadow) = &self.shadow {
                    shadow.admitted.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Some(ticket))
            }
            Err(refusal) => self.refused(refusal, demand).map_or(Ok(None), Err),
        }
    }

    fn cancel(&self, ticket: Self::Ticket) {
        if let Some(ticket) = ticket {
            self.limiter.cancel(ticket);
        }
    }

    #[inline(always)] // row: named, priced legs
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        if let Some(ticket) = ticket {
            self.limiter.finish(ticket, outcome);
        }
    }

    fn settle(&self, ticket: &mut Self::Ticket, settlement: &Settlement) -> u32 {
        let settlement = self.cost.map_or(*settlement, |cost| settlement.per(cost));
        match ticket {
            Some(ticket) => self.limiter.settle(ticket, &settlement),
            // It took no part, so nothing is left to correct.
            None => u32::from(settlement.actual().is_some()),
        }
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        // The head of a queue is not to wait, nor to have a place, at a leg that it does not obey.
        if self.shadow.is_some() && demand.answers().is_none() {
            return Ok(());
        }
        if !self.applies(demand) {
            self.explain(None, demand, Vec::new());
            return Ok(());
        }
        let before = demand.answers().map(|answers| answers.borrow().len());
        let looked = self.priced(demand).and_then(|part| self.look_inside(&part));
        let looked = looked.map_err(|refusal| self.own(refusal, demand));
        if let (Some(before), Some(answers)) = (before, demand.answers()) {
            let inner = answers.borrow_mut().drain(before..).collect();
            self.explain(Some(looked), demand, inner);
        }
        match self.shadow {
            Some(_) => Ok(()),
            None => looked,
        }
    }

    fn leave(&self, place: &Place) {
        self.limiter.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.limiter.watch(watcher);
        if let Some(trigger) = self.trigger() {
            trigger.watch(watcher);
        }
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.limiter.describe(&mut |leg| {
            let leg = match self.cost {
                Some(cost) if leg.cost.is_none() => leg.per(cost),
                _ => leg,
            };
            let leg = match self.name.is_empty() {
                true => leg,
                false => leg.named(&self.name),
            };
            visit(match self.trigger() {
                Some(trigger) if leg.clock.is_none() => leg.on(trigger.clock()),
                _ => leg,
            });
        });
    }
}

impl<L: fmt::Debug> fmt::Debug for Leg<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leg")
            .field("name", &self.name)
            .field("cost", &self.cost)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
