//! What the legs of a policy that was built say of a request. Of one that is data: [`super::live`].

use super::boxed::Erased;
use super::legs::Legs;
use super::live::{Decision, LegDecision, Verdict};
use super::policy::Policy;
use crate::core::ask::{Ask, Demand};
use crate::core::status::{State, Status};
use crate::time::ClockReading;

impl Policy<Legs> {
    /// What each leg says of `ask` now, and on what numbers: which one refuses, how much is missing, what would have
    /// sufficed. Nothing is taken, and an admission that is not explained pays nothing for it. Decisions add up to an
    /// [advice](super::live::OrderAdvice) on the order of the legs.
    ///
    /// A leg has the name that it was [given](crate::LimiterExt::named), else what it calls itself, else its position, as
    /// `leg 2`. One that is made of several, by [`and`](crate::LimiterExt::and) or as a policy of its own, is one leg here, with
    /// the numbers of its first. One in shadow mode agrees to everything; one that is linked, and does not apply, agrees.
    ///
    /// It looks at the legs, past the line. Taken right after a refusal it says why, unless others were admitted in between.
    ///
    /// ```
    /// # use tollgate::policy::live::{OrderAdvice, Verdict};
    /// # use tollgate::{Ask, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_second(10).burst(5)).on(&clock).named("requests"))
    ///     .limit(Semaphore::new(3).named("in flight"))
    ///     .build()?;
    /// let held = policy.try_admit(1)?;
    /// let decision = policy.explain(Ask::many(3));
    /// let refused = decision.refused_by().unwrap();
    /// assert_eq!((&*refused.leg, refused.available, refused.missing()), ("in flight", Some(2), Some(1)));
    /// assert_eq!(refused.verdict, Verdict::OnEvent);
    ///
    /// let mut advice = OrderAdvice::new();
    /// advice.count(&decision);
    /// assert_eq!(advice.order(), ["in flight", "requests"]);
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, ask: impl Into<Ask>) -> Decision {
        let ask = ask.into();
        let now = self.clock().now();
        let reading = ClockReading::at(self.clock(), now);
        let demand = Demand::new(&ask, &reading);
        let say = |(position, leg): (usize, &dyn Erased)| {
            let ready = leg.ready_at(demand);
            let (own, units, available, capacity) = numbers(leg, &ask);
            let name = match (leg.name(), own, ready.leg(), ready.event_leg()) {
                (Some(name), ..) => name.into(),
                (None, Some(own), ..) => own,
                (None, None, "", "") => format!("leg {}", position + 1).into(),
                (None, None, "", event) => event.into(),
                (None, None, by, _) => by.into(),
            };
            LegDecision {
                leg: name,
                units,
                available,
                capacity,
                verdict: Verdict::of(ready, self.clock(), now),
                shadow: false,
                when: None,
                peak: None,
            }
        };
        Decision {
            legs: self.limiter().iter().enumerate().map(say).collect(),
        }
    }
}

/// What the first of a leg's limiters calls itself, how many units it is asked for, has, and can have at most.
fn numbers(leg: &dyn Erased, ask: &Ask) -> (Option<Box<str>>, Option<u64>, Option<u64>, Option<u64>) {
    let mut first = None;
    leg.visit_status(&mut |status: Status<'_>| {
        first.get_or_insert_with(|| {
            let units = match status.cost {
                Some(cost) => ask.of(cost),
                None => Some(ask.count()),
            };
            let (available, capacity) = match status.state {
                State::Permits { limit, in_use, .. } => (Some(limit.saturating_sub(in_use)), Some(limit)),
                State::Rate { limit, available, .. } => (Some(available), Some(limit)),
                _ => (None, None),
            };
            (Some(status.leg.into()), units, available, capacity)
        });
    });
    first.unwrap_or_default()
}
