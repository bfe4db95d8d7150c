//! The legs of a key, made from policies as data.

use crate::core::ask::Cost;
use crate::policy::spec::{LegSpec, PolicySpec, SemaphoreRule, SlidingWindowRule, SpecError, TokenBucketRule};
use crate::remote::backend::Rule;
use crate::remote::builder::check_rule;
use crate::remote::key::Key;
use crate::remote::model::Fill;
use crate::remote::step::{KeyLeg, LegUnits};
use std::sync::Arc;
use std::time::Duration;

/// The legs of the keys of a tier, or those of several levels together.
#[derive(Debug, PartialEq)]
pub(super) struct Legs {
    /// As the store counts them.
    pub(super) counted: Arc<[KeyLeg]>,
    /// Their names in refusals: with several levels, that of the level comes first.
    labels: Box<[Box<str>]>,
    /// What each counts; calls where there is nothing.
    costs: Box<[Option<Cost>]>,
    /// The most units that each can give at once.
    most: Box<[u64]>,
}

impl Legs {
    /// The legs of `policy`, if a store can count them.
    pub(super) fn of(policy: &PolicySpec) -> Result<Self, SpecError> {
        let queue = PolicySpec {
            legs: Vec::new(),
            ..policy.clone()
        };
        if queue != PolicySpec::default() {
            let fault =
                "the queue of a policy was set up, and a limit at a store has none: wait in a policy of this process";
            return Err(SpecError::new("leg", fault));
        }
        if policy.legs.is_empty() || policy.legs.len() > KeyLeg::MOST {
            let given = policy.legs.len();
            let fault = format!("{given} were given, and 1 to {} are allowed", KeyLeg::MOST);
            return Err(SpecError::new("leg", fault));
        }
        let (mut counted, mut most) = (Vec::new(), Vec::new());
        for (position, leg) in policy.legs.iter().enumerate() {
            let (rule, units) = rule_of(leg).map_err(|error| error.of_leg(position, &leg.name))?;
            counted.push(KeyLeg::new(leg.name.as_str(), rule));
            most.push(units);
        }
        let costs = policy.legs.iter().map(|leg| leg.per.as_deref().map(Cost::interned));
        Ok(Self {
            labels: counted.iter().map(|leg| leg.name.clone()).collect(),
            counted: counted.into(),
            costs: costs.collect(),
            most: most.into(),
        })
    }

    /// The legs of several levels, each with its name and, unless it is that of the step, its key.
    pub(super) fn of_levels<'a>(levels: impl Iterator<Item = (&'a str, Option<Key>, &'a Self)> + Clone) -> Self {
        let counted = levels.clone().flat_map(|(_, key, legs)| {
            let at = move |leg: &KeyLeg| KeyLeg {
                key: key.clone(),
                ..leg.clone()
            };
            legs.counted.iter().map(at)
        });
        let labels = levels.clone().flat_map(|(level, _, legs)| {
            let label = move |leg: &KeyLeg| format!("{level}/{}", leg.name).into();
            legs.counted.iter().map(label)
        });
        Self {
            counted: counted.collect(),
            labels: labels.collect(),
            costs: levels
                .clone()
                .flat_map(|(_, _, legs)| legs.costs.iter().copied())
                .collect(),
            most: levels.flat_map(|(_, _, legs)| legs.most.iter().copied()).collect(),
        }
    }

    /// Its name in refusals.
    pub(super) fn name(&self, leg: usize) -> &str {
        &self.labels[leg]
    }

    /// The leg with this name in refusals.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.labels.iter().position(|label| **label == *name)
    }

    /// The same legs: one step can carry asks for both.
    pub(super) fn is(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self == other
    }

    /// True when other keys count on it too.
    pub(super) fn is_shared(&self, leg: usize) -> bool {
        self.counted.get(leg).is_some_and(|leg| leg.key.is_some())
    }

    /// What a leg counts; calls where there is nothing.
    pub(super) fn cost(&self, leg: usize) -> Option<Cost> {
        self.costs[leg]
    }

    /// The units of each leg; otherwise the leg whose cost is not named.
    pub(super) fn units(&self, calls: u64, cost: impl Fn(Cost) -> Option<u64>) -> Result<LegUnits, usize> {
        let mut units = LegUnits::default();
        for (leg, counted) in self.costs.iter().enumerate() {
            units[leg] = match counted {
                None => calls,
                Some(counted) => cost(*counted).ok_or(leg)?,
            };
        }
        Ok(units)
    }

    /// The first leg that can never give so much at once.
    pub(super) fn oversized(&self, units: &LegUnits) -> Option<usize> {
        self.most.iter().zip(units).position(|(most, units)| units > most)
    }

    /// True when some are held until they are given back.
    pub(super) fn has_permits(&self) -> bool {
        (0..self.counted.len()).any(|leg| self.is_permits(leg))
    }

    pub(super) fn is_permits(&self, leg: usize) -> bool {
        (self.counted.get(leg)).is_some_and(|leg| matches!(leg.rule, Rule::Permits { .. }))
    }

    pub(super) fn has_windows(&self) -> bool {
        (0..self.counted.len()).any(|leg| self.is_window(leg))
    }

    pub(super) fn is_window(&self, leg: usize) -> bool {
        (self.counted.get(leg)).is_some_and(|leg| matches!(leg.rule, Rule::Window { .. }))
    }

    /// What `units` take of the permit legs.
    pub(super) fn permits<'a>(&'a self, units: &'a LegUnits) -> impl Iterator<Item = (&'a KeyLeg, u64)> {
        let legs = self.counted.iter().zip(units);
        legs.filter_map(|(leg, &n)| (n > 0 && matches!(leg.rule, Rule::Permits { .. })).then_some((leg, n)))
    }

    /// The time in which `units` come back; nothing for a window, of which that is not known.
    pub(super) fn time_of(&self, leg: usize, units: u64) -> Option<Duration> {
        match &self.counted[leg].rule {
            _ if units == 0 => Some(Duration::ZERO),
            Rule::Rate { quota } => {
                let fill = Fill::of(quota)?;
                Some(Duration::from_micros(
                    units.saturating_mul(fill.price).div_ceil(fill.gain),
                ))
            }
            _ => None,
        }
    }

    /// The legs that count `cost` as it is used. Permits are held as they were taken.
    pub(super) fn counting(&self, cost: Cost) -> impl Iterator<Item = usize> {
        let costs = self.costs.iter().enumerate();
        costs.filter_map(move |(leg, counted)| (*counted == Some(cost) && !self.is_permits(leg)).then_some(leg))
    }
}

/// The rule by which a store counts a leg, and the most units that it gives at once.
fn rule_of(leg: &LegSpec) -> Result<(Rule, u64), SpecError> {
    let plain = LegSpec {
        per: leg.per.clone(),
        ..LegSpec::new(leg.name.clone(), leg.rule.clone())
    };
    if *leg != plain {
        let fault = "`inherit`, `shadow`, `when` or `peak` was given, and a store does none of them";
        return Err(SpecError::new("kind", fault));
    }
    let rule = if let Some(bucket) = leg.rule.get::<TokenBucketRule>() {
        Rule::Rate { quota: bucket.quota }
    } else if let Some(window) = leg.rule.get::<SlidingWindowRule>() {
        Rule::Window {
            limit: window.limit,
            length: window.window,
        }
    } else if let Some(semaphore) = leg.rule.get::<SemaphoreRule>() {
        Rule::Permits {
            limit: semaphore.limit as u64,
        }
    } else {
        let fault = format!(
            "`{}` was given, and a store counts `semaphore`, `sliding-window` and `token-bucket`",
            leg.rule.kind()
        );
        return Err(SpecError::new("kind", fault));
    };
    let key = if matches!(rule, Rule::Rate { .. }) {
        "quota"
    } else {
        "limit"
    };
    let most = check_rule(&rule).map_err(|error| SpecError::new(key, error.to_string()))?;
    Ok((rule, most))
}
