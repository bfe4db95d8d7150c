//! The legs of a key as a store counts them.

use super::limits::RemoteLeg;
use crate::core::ask::Cost;
use crate::core::refusal::LegName;
use crate::core::status::Description;
use crate::remote::backend::Rule;
use crate::remote::builder::check_rule;
use crate::remote::error::RemoteError;
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
    /// These legs, if a store can count them.
    pub(super) fn of(legs: &[RemoteLeg]) -> Result<Self, RemoteError> {
        if legs.is_empty() || legs.len() > KeyLeg::MOST {
            return Err(fault("", format!("{} legs were given, and {ALLOWED}", legs.len())));
        }
        let mut most = Vec::new();
        for (position, leg) in legs.iter().enumerate() {
            let at = format!("leg `{}`", leg.name);
            if leg.name.is_empty() {
                return Err(fault(&at, "every leg needs a name"));
            }
            if legs[..position].iter().any(|other| other.name == leg.name) {
                return Err(fault(&at, "another leg has this name, and names are unique"));
            }
            most.push(check_rule(&leg.rule).map_err(|error| fault(&at, error.to_string()))?);
        }
        let counted = legs.iter().map(|leg| KeyLeg::new(leg.name.clone(), leg.rule));
        Ok(Self {
            counted: counted.collect(),
            labels: legs.iter().map(|leg| leg.name.clone()).collect(),
            costs: legs.iter().map(|leg| leg.cost).collect(),
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

    /// Its name.
    pub(super) fn name(&self, leg: usize) -> &str {
        &self.labels[leg]
    }

    /// Its name as a refusal has it: a long one is cut.
    pub(super) fn leg_name(&self, leg: usize) -> LegName {
        LegName::copied(&self.labels[leg])
    }

    /// The leg with this name, in full or as in refusals.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        let whole = self.labels.iter().position(|label| **label == *name);
        whole.or_else(|| (0..self.labels.len()).find(|&leg| *self.leg_name(leg) == *name))
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

    /// `description` with the name of a leg and what it counts.
    pub(super) fn describe<'a>(&'a self, leg: usize, description: Description<'a>) -> Description<'a> {
        let description = description.named(&self.labels[leg]);
        match self.cost(leg) {
            Some(cost) => description.per(cost),
            None => description,
        }
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

/// How many legs a key may have.
pub(super) const ALLOWED: &str = "1 to 16 are allowed";
const _: () = assert!(KeyLeg::MOST == 16);

/// The error of limits at which there is a fault.
pub(super) fn fault(at: &str, fault: impl Into<Box<str>>) -> RemoteError {
    RemoteError::Keyed {
        at: at.into(),
        fault: fault.into(),
    }
}
