//! Explains decisions: what each leg answers to a request, and by which numbers.

pub use crate::core::decision::{Decision, LegDecision, LegVerdict, MeasuredLoad};

use super::policy::Policy;
use crate::core::ask::{Ask, Demand, Role, Waiting};
use crate::core::limiter::Limiter;
use crate::time::ClockReading;
use std::cell::RefCell;

impl<L: Limiter + 'static> Policy<L> {
    /// Explains the decision on `ask` now, leg by leg: which one refuses, the units that are missing, the limit that would have
    /// sufficed. Nothing is taken, and an admission that is not explained pays nothing for it.
    ///
    /// A leg has the name that it was [given](crate::LimiterExt::named), else that of the limiter, else its position, as `leg
    /// 2`. The legs are those of the [builder](crate::PolicyBuilder), of [`and`](crate::LimiterExt::and), of [`Legs`](super::Legs),
    /// or of the version in force of a policy that is data. A composite behind an adapter, such as a name, is one leg, with the
    /// numbers of its first; so is a policy of its own. The answer of one in shadow mode is
    /// marked. A conditional one that does not apply agrees.
    ///
    /// It looks at the legs, past the queue. Taken right after a refusal it says why, unless others were admitted in between.
    ///
    /// ```
    /// # use tollgate::policy::explain::LegVerdict;
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
    /// assert_eq!(refused.verdict, LegVerdict::OnEvent);
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, ask: impl Into<Ask>) -> Decision {
        let (ask, reading) = (ask.into(), ClockReading::at(self.clock(), self.clock().now()));
        let (none, answers) = (Ask::many(0), RefCell::new(Vec::new()));
        let waiting = Waiting {
            ahead: &none,
            place: None,
            role: Role::Newcomer,
            answers: Some(&answers),
        };
        let demand = Demand::waiting(&ask, &reading, &waiting);
        let looked = self.limiter().look(&demand);
        let mut legs = answers.take();
        if legs.is_empty() {
            legs.push(LegDecision::of_leg(self.limiter(), &demand, looked));
        }
        for (position, leg) in legs.iter_mut().enumerate().filter(|(_, leg)| leg.leg.is_empty()) {
            leg.leg = format!("leg {}", position + 1).into();
        }
        Decision { legs }
    }
}
