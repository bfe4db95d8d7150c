//! The numbers of a policy that a search may turn: the limit of a semaphore or a window, the count of a rate. A rate's
//! burst goes with its count. Numbers are tried in steps of two digits: 1 to 99, then 100, 110 and so on.

use super::trace::Trace;
use std::time::Duration;
use tollgate::Quota;
use tollgate_config::{ConfigFile, LegKind, LegSpec, PolicySpec};

/// The number of one leg.
#[derive(Clone, Debug)]
pub struct Knob {
    pub leg: usize,
    pub name: String,
    kind: LegKind,
    /// The step at which it binds no request any more.
    pub most: usize,
}

/// The number at a step; step 0 is one.
pub fn number(step: usize) -> u64 {
    if step < 99 {
        return step as u64 + 1;
    }
    let (decade, place) = ((step - 99) / 90, (step - 99) % 90);
    (10 + place as u64).saturating_mul(10u64.saturating_pow(decade as u32 + 1))
}

/// The first step whose number is at least `value`.
pub fn step(value: u64) -> usize {
    (0..).find(|&step| number(step) >= value).unwrap_or(usize::MAX)
}

/// The knobs of a policy: legs that always apply and have a number.
pub fn knobs(spec: &PolicySpec, trace: &Trace) -> Vec<Knob> {
    let legs = spec.legs.iter().enumerate();
    legs.filter_map(|(leg, spec)| Knob::of(leg, spec, trace)).collect()
}

impl Knob {
    fn of(leg: usize, spec: &LegSpec, trace: &Trace) -> Option<Self> {
        if spec.shadow || spec.when.is_some() {
            return None;
        }
        let units: u64 = match &spec.per {
            None => trace.requests.len() as u64,
            Some(cost) => {
                let column = trace.costs.iter().position(|known| known == cost)?;
                let units = trace.requests.iter().map(|request| request.units[column]);
                units.map(|[charged, used]| charged.max(used)).sum()
            }
        };
        let units = units.max(1);
        let most = match Number::of(&spec.kind)? {
            // As much as there is in all, at one instant.
            Number::Limit(u64::MAX) => return None,
            Number::Limit(_) => units,
            Number::Quota(quota) => {
                if quota.is_unlimited() || quota.is_zero() {
                    return None;
                }
                let all = u128::from(quota.count()) * u128::from(units);
                let by_burst = all.div_ceil(u128::from(quota.burst_size()).max(1));
                // One that spaces and has no burst: a thousandth of a second for all.
                let by_rate = u128::from(units) * (quota.period().as_nanos() / 1_000_000).max(1);
                let is_bucket = matches!(spec.kind, LegKind::TokenBucket { .. });
                let most = if is_bucket { by_burst } else { by_rate };
                most.min(quota.period().as_nanos()) as u64
            }
        };
        let knob = |most| Self {
            leg,
            name: spec.name.clone(),
            kind: spec.kind.clone(),
            most,
        };
        // Where the round number above is not allowed, the one below it is.
        let top = step(most);
        (0..=top).rev().map(knob).find(|knob| knob.at(knob.most).is_some())
    }

    /// The kind with the number of this step, if that is allowed.
    pub fn at(&self, step: usize) -> Option<LegKind> {
        let value = number(step);
        let number = match Number::of(&self.kind)? {
            Number::Limit(_) => Number::Limit(value),
            Number::Quota(quota) => Number::Quota(scaled(&quota, value)?),
        };
        let kind = number.put_into(self.kind.clone())?;
        PolicySpec::new([LegSpec::new("one", kind.clone())]).check().ok()?;
        Some(kind)
    }
}

/// The same quota at another count, its burst in proportion.
fn scaled(quota: &Quota, count: u64) -> Option<Quota> {
    let burst = u128::from(quota.burst_size()) * u128::from(count);
    let burst = burst
        .div_ceil(u128::from(quota.count()))
        .clamp(1, u128::from(Quota::MAX_BURST)) as u64;
    let scaled = Quota::new(count, quota.period()).ok()?.with_burst(burst).ok()?;
    Some(if quota.is_by_interval() {
        scaled.by_interval()
    } else {
        scaled
    })
}

/// How a leg's number is written in a file: the key, and the value.
pub fn written(kind: &LegKind) -> (&'static str, String) {
    match Number::of(kind) {
        Some(Number::Limit(limit)) => ("limit", limit.to_string()),
        Some(Number::Quota(quota)) => ("quota", quota.to_string()),
        None => ("", String::new()),
    }
}

/// The number of a leg that may be turned.
pub enum Number {
    Limit(u64),
    Quota(Quota),
}

impl Number {
    pub fn of(kind: &LegKind) -> Option<Self> {
        Some(match kind {
            LegKind::Semaphore { limit } => Self::Limit(*limit as u64),
            LegKind::FixedWindow { limit, .. }
            | LegKind::SlidingWindow { limit, .. }
            | LegKind::SlidingLog { limit, .. } => Self::Limit(*limit),
            LegKind::TokenBucket { quota } | LegKind::LeakyBucket { quota, .. } | LegKind::Warmup { quota, .. } => {
                Self::Quota(*quota)
            }
            _ => return None,
        })
    }

    /// The same kind with this number, where it has one of the sort.
    fn put_into(self, mut kind: LegKind) -> Option<LegKind> {
        match (&mut kind, self) {
            (LegKind::Semaphore { limit }, Self::Limit(to)) => *limit = usize::try_from(to).ok()?,
            (
                LegKind::FixedWindow { limit, .. }
                | LegKind::SlidingWindow { limit, .. }
                | LegKind::SlidingLog { limit, .. },
                Self::Limit(to),
            ) => *limit = to,
            (
                LegKind::TokenBucket { quota } | LegKind::LeakyBucket { quota, .. } | LegKind::Warmup { quota, .. },
                Self::Quota(to),
            ) => *quota = to,
            _ => return None,
        }
        Some(kind)
    }
}

/// The length of a window.
pub fn window(kind: &LegKind) -> Option<Duration> {
    match kind {
        LegKind::FixedWindow { window, .. }
        | LegKind::SlidingWindow { window, .. }
        | LegKind::SlidingLog { window, .. } => Some(*window),
        _ => None,
    }
}

/// The units that a rate or a window lets through a second.
pub fn per_second(kind: &LegKind) -> Option<f64> {
    match Number::of(kind)? {
        Number::Limit(limit) => Some(limit as f64 / window(kind)?.as_secs_f64()),
        Number::Quota(quota) => Some(quota.count() as f64 / quota.period().as_secs_f64()),
    }
}
