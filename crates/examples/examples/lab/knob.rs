//! The numbers of a policy that a search may turn: the limit of a semaphore or a window, the count of a rate. A rate's
//! burst goes with its count. Numbers are tried in steps of two digits: 1 to 99, then 100, 110 and so on.

use super::trace::Trace;
use std::time::Duration;
use tollgate::Quota;
use tollgate::policy::spec::{
    FixedWindowRule, LeakyBucketRule, LegRule, LegSpec, PeakStep, PolicySpec, SemaphoreRule, SlidingLogRule,
    SlidingWindowRule, TokenBucketRule, WarmupRule,
};

/// The number of one leg.
#[derive(Clone, Debug)]
pub struct Knob {
    pub leg: usize,
    pub name: String,
    rule: LegRule,
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
        if spec.shadow || spec.when.is_some() || spec.peak.is_some() {
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
        let most = match Number::of(&spec.rule)? {
            // As much as there is in all, at one instant.
            Number::Limit(limit) => match spec.rule.get::<SlidingLogRule>() {
                Some(log) => log.entries.map_or(units, |entries| units.min(entries as u64)),
                None if limit == u64::MAX => return None,
                None => units,
            },
            Number::Quota(quota) => {
                if quota.is_unlimited() || quota.is_zero() {
                    return None;
                }
                let all = u128::from(quota.count()) * u128::from(units);
                let by_burst = all.div_ceil(u128::from(quota.burst_size()).max(1));
                // One that spaces and has no burst: a thousandth of a second for all.
                let by_rate = u128::from(units) * (quota.period().as_nanos() / 1_000_000).max(1);
                let bucket = spec.rule.get::<TokenBucketRule>();
                let most = if bucket.is_some() { by_burst } else { by_rate };
                most.min(quota.period().as_nanos()) as u64
            }
        };
        let knob = |most| Self {
            leg,
            name: spec.name.clone(),
            rule: spec.rule.clone(),
            most,
        };
        // Where the round number above is not allowed, the one below it is.
        let top = step(most);
        (0..=top).rev().map(knob).find(|knob| knob.at(knob.most).is_some())
    }

    /// The rule with the number of this step, if that is allowed.
    pub fn at(&self, step: usize) -> Option<LegRule> {
        let value = number(step);
        let (quota, limit) = match Number::of(&self.rule)? {
            Number::Limit(_) => (None, Some(value)),
            Number::Quota(quota) => (Some(scaled(&quota, value)?), None),
        };
        let rule = self.rule.at(&PeakStep {
            above: 0.0,
            below: 0.0,
            quota,
            limit,
        });
        PolicySpec::new([LegSpec::new("one", rule.clone())]).check().ok()?;
        Some(rule)
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

/// How a rule's number is written in a file: the key, and the value.
pub fn written(rule: &LegRule) -> (&'static str, String) {
    match Number::of(rule) {
        Some(Number::Limit(limit)) => ("limit", limit.to_string()),
        Some(Number::Quota(quota)) => ("quota", quota.to_string()),
        None => ("", String::new()),
    }
}

/// The number of a rule that may be turned.
pub enum Number {
    Limit(u64),
    Quota(Quota),
}

impl Number {
    pub fn of(rule: &LegRule) -> Option<Self> {
        let limit = || {
            let fixed = rule.get::<FixedWindowRule>().map(|rule| rule.limit);
            let sliding = rule.get::<SlidingWindowRule>().map(|rule| rule.limit);
            let log = rule.get::<SlidingLogRule>().map(|rule| rule.limit);
            let permits = rule.get::<SemaphoreRule>().map(|rule| rule.limit as u64);
            fixed.or(sliding).or(log).or(permits)
        };
        let quota = || {
            let token = rule.get::<TokenBucketRule>().map(|rule| rule.quota);
            let leaky = rule.get::<LeakyBucketRule>().map(|rule| rule.quota);
            let warmup = rule.get::<WarmupRule>().map(|rule| rule.quota);
            token.or(leaky).or(warmup)
        };
        limit().map(Self::Limit).or(quota().map(Self::Quota))
    }
}

/// The length of a window.
pub fn window(rule: &LegRule) -> Option<Duration> {
    let fixed = rule.get::<FixedWindowRule>().map(|rule| rule.window);
    let sliding = rule.get::<SlidingWindowRule>().map(|rule| rule.window);
    let log = rule.get::<SlidingLogRule>().map(|rule| rule.window);
    fixed.or(sliding).or(log)
}
