//! How the legs stand.

use super::LiveLegs;
use super::node::Body;
use super::set::SetLeg;
use crate::policy::ShadowStats;
use crate::policy::spec::{Rule, RuleKind};

/// How a leg stands. A snapshot.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LegStatus {
    /// What it is called.
    pub name: Box<str>,
    /// What it is, with the numbers that are in force just now.
    pub rule: Rule,
    /// How many units it could give now, where it counts units.
    pub available: Option<u64>,
    /// How many it can give at most: its limit, or its burst.
    pub capacity: Option<u64>,
    /// True while it is asked: always, unless it is linked and the load is low.
    pub applies: bool,
    /// True in shadow mode.
    pub shadow: bool,
    /// What it would have done whenever it was in shadow mode.
    pub trial: ShadowStats,
}

impl LegStatus {
    /// Which kind it is.
    pub fn kind(&self) -> RuleKind {
        self.rule.kind()
    }
}

impl LiveLegs {
    /// How the legs in force stand, in order.
    pub fn status(&self) -> Vec<LegStatus> {
        let now = self.clock.now();
        let (_, set) = self.in_force();
        self.follow_peaks(set, now);
        let status = |leg: &SetLeg| {
            let rule = leg.node.in_force();
            let (available, capacity) = numbers(&leg.node.body, &rule);
            LegStatus {
                name: leg.node.name.clone(),
                rule,
                available,
                capacity,
                applies: leg.link.as_ref().is_none_or(|link| link.gate.is_exceeded(now)),
                shadow: leg.shadow,
                trial: leg.node.trial.stats(),
            }
        };
        set.legs().iter().map(status).collect()
    }

    /// How the leg called `name` stands, if there is one in force.
    pub fn leg(&self, name: &str) -> Option<LegStatus> {
        self.status().into_iter().find(|leg| &*leg.name == name)
    }

    /// How many units of the leg called `name` are in use: what is held of a semaphore.
    pub fn in_use(&self, name: &str) -> Option<u64> {
        let (_, set) = self.in_force();
        let leg = set.legs().iter().find(|leg| &*leg.node.name == name)?;
        match &leg.node.body {
            Body::Semaphore(semaphore) => Some(semaphore.in_use() as u64),
            _ => None,
        }
    }
}

/// How many units a leg could give, and how many at most, where it counts units.
pub(super) fn numbers(body: &Body, rule: &Rule) -> (Option<u64>, Option<u64>) {
    match (body, rule) {
        (Body::TokenBucket(bucket), Rule::TokenBucket { quota }) => {
            (Some(bucket.available()), Some(quota.burst_size()))
        }
        (Body::LeakyBucket(bucket), Rule::LeakyBucket { slack, .. }) => {
            (Some(bucket.available()), Some(slack.saturating_add(1)))
        }
        (Body::Warmup(warmup), _) => (Some(warmup.available()), None),
        (Body::FixedWindow(window), Rule::FixedWindow { limit, .. }) => (Some(window.available()), Some(*limit)),
        (Body::SlidingWindow(window), Rule::SlidingWindow { limit, .. }) => (Some(window.available()), Some(*limit)),
        (Body::SlidingLog(log), Rule::SlidingLog { limit, .. }) => (Some(log.available()), Some(*limit)),
        (Body::Semaphore(semaphore), _) => {
            let free = semaphore.available_permits() as u64;
            (Some(free), Some(semaphore.limit() as u64))
        }
        _ => (None, None),
    }
}
