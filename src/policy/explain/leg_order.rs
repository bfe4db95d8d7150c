//! The best order of legs, by the decisions so far.
//!
//! A refusal costs the legs up to the one that refuses. So those that refuse most, for their cost, go first. For
//! independent tests the best order is by cost over refusals (W. Kim's and Hellerstein's rank of predicates); here the
//! decisions are known together, so that legs which refuse the same requests are seen to do so: each place goes to the leg
//! that refuses most of the rest, for its cost. That greedy order costs at most four times the best one (Munagala et
//! al., *The pipelined set cover problem*, 2005), and is the best one where legs refuse independently.

use super::Decision;
use std::collections::BTreeMap;
use std::fmt;

/// Counts decisions, and advises in which order to ask the legs.
///
/// ```
/// # use tollgate::policy::explain::LegOrder;
/// # use tollgate::{Ask, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
/// let clock = ManualClock::new();
/// let policy = Policy::builder()
///     .limit(TokenBucket::new(Quota::per_second(1_000)).on(&clock).named("roomy"))
///     .limit(Semaphore::new(1).named("tight"))
///     .build()?;
/// let mut advice = LegOrder::new();
/// let _held = policy.try_admit(Ask::one());
/// for _ in 0..10 {
///     advice.count(&policy.explain(Ask::one()));
/// }
/// assert_eq!(advice.order(), ["tight", "roomy"]);
/// assert_eq!((advice.cost_as_is(), advice.cost_at_best()), (2.0, 1.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LegOrder {
    legs: Vec<Box<str>>,
    costs: Vec<f64>,
    /// The number of decisions that exactly these legs refused, a bit for each leg.
    seen: BTreeMap<u64, u64>,
}

impl LegOrder {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a decision. A policy has at most 22 legs; a leg that is seen for the first time goes to the end.
    pub fn count(&mut self, decision: &Decision) {
        let mut refused = 0;
        for leg in decision.legs.iter().filter(|leg| !leg.shadow) {
            let at = self.position(&leg.leg);
            if leg.verdict.refuses() && at < 64 {
                refused |= 1 << at;
            }
        }
        *self.seen.entry(refused).or_default() += 1;
    }

    /// Sets the cost of asking a leg: any measure, 1 unless set; at least a billionth.
    pub fn set_cost(&mut self, leg: &str, cost: f64) {
        let at = self.position(leg);
        self.costs[at] = cost.max(1e-9);
    }

    fn position(&mut self, leg: &str) -> usize {
        if let Some(at) = self.legs.iter().position(|known| &**known == leg) {
            return at;
        }
        self.legs.push(leg.into());
        self.costs.push(1.0);
        self.legs.len() - 1
    }

    /// The number of counted decisions that each leg refused, by name.
    pub fn refusals(&self) -> Vec<(&str, u64)> {
        let refused = |at: usize| {
            self.seen
                .iter()
                .filter(move |(legs, _)| at < 64 && *legs >> at & 1 == 1)
        };
        let legs = self.legs.iter().enumerate();
        legs.map(|(at, leg)| (&**leg, refused(at).map(|(_, times)| times).sum()))
            .collect()
    }

    /// The order in which they are best asked. Legs that refuse nothing keep their order, at the end.
    pub fn order(&self) -> Vec<&str> {
        self.best().into_iter().map(|at| &*self.legs[at]).collect()
    }

    fn best(&self) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.legs.len().min(64)).collect();
        let mut open: Vec<(u64, u64)> = self.seen.iter().map(|(&legs, &times)| (legs, times)).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let gain = |at: usize| -> f64 {
                let refused = open.iter().filter(|(legs, _)| legs >> at & 1 == 1);
                refused.map(|(_, times)| *times as f64).sum::<f64>() / self.costs[at]
            };
            let mut pick = 0;
            for candidate in 1..left.len() {
                if gain(left[candidate]) > gain(left[pick]) {
                    pick = candidate;
                }
            }
            let at = left.remove(pick);
            open.retain(|(legs, _)| legs >> at & 1 == 0);
            order.push(at);
        }
        order
    }

    fn cost(&self, order: &[usize]) -> f64 {
        let total: u64 = self.seen.values().sum();
        if total == 0 {
            return 0.0;
        }
        let one = |legs: u64| {
            let refuser = order.iter().position(|at| legs >> at & 1 == 1);
            let asked = refuser.map_or(order.len(), |place| place + 1);
            order[..asked].iter().map(|&at| self.costs[at]).sum::<f64>()
        };
        let sum: f64 = self.seen.iter().map(|(&legs, &times)| times as f64 * one(legs)).sum();
        sum / total as f64
    }

    /// The mean cost of a decision in the order as it is.
    pub fn cost_as_is(&self) -> f64 {
        self.cost(&(0..self.legs.len().min(64)).collect::<Vec<_>>())
    }

    /// The mean cost in the [order](Self::order) that is advised.
    pub fn cost_at_best(&self) -> f64 {
        self.cost(&self.best())
    }
}

impl fmt::Display for LegOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, best) = (self.cost_as_is(), self.cost_at_best());
        let decisions: u64 = self.seen.values().sum();
        write!(f, "by {decisions} decisions: ")?;
        if best < now {
            let order = self.order().join(", ");
            write!(f, "ask {order}: {best:.2} per decision instead of {now:.2}")
        } else {
            write!(f, "the order is good as it is, at {now:.2} per decision")
        }
    }
}
