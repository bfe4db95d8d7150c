//! Checks a policy given as data, so that it can be built.

use super::{LegSpec, LoadMetric, PartitionRule, PartitionsSpec, Peak, PeakKey, PolicySpec, SpecError, When};
use crate::policy::reload::MAX_LEGS;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The longest span that a metric is measured over.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// The partitions of a set, by name.
type InSet<'a> = Option<&'a BTreeMap<String, PartitionsSpec>>;

pub(super) fn check(spec: &PolicySpec, partitions: InSet<'_>) -> Result<(), SpecError> {
    if spec.legs.is_empty() {
        return Err(SpecError::new("leg", "none was given, and at least one is needed"));
    }
    let order = spec.order.check();
    order.map_err(|error| SpecError::new("order", error.to_string()))?;
    for (position, leg) in spec.legs.iter().enumerate() {
        check_leg(spec, position, leg, partitions).map_err(|error| error.of_leg(position, &leg.name))?;
        if position == MAX_LEGS {
            let fault = format!(
                "too many legs: {} were given, and {MAX_LEGS} are allowed",
                spec.legs.len()
            );
            return Err(SpecError::new("leg", fault).of_leg(position, &leg.name));
        }
    }
    Ok(())
}

fn check_leg(spec: &PolicySpec, position: usize, leg: &LegSpec, partitions: InSet<'_>) -> Result<(), SpecError> {
    if leg.name.is_empty() {
        return Err(SpecError::new("name", "it is empty, and every leg needs one"));
    }
    if let Some(first) = spec.legs[..position].iter().position(|other| other.name == leg.name) {
        let fault = format!(
            "`{}` is the name of leg {} already, and names are unique",
            leg.name,
            first + 1
        );
        return Err(SpecError::new("name", fault));
    }
    if leg.per.as_deref() == Some("") {
        return Err(SpecError::new(
            "per",
            "it is empty, and `call` or the name of a cost is allowed",
        ));
    }
    match (leg.rule.get::<PartitionRule>(), partitions) {
        (Some(rule), Some(partitions)) => rule.check_in(partitions)?,
        _ => leg.rule.0.check()?,
    }
    if let Some(when) = &leg.when {
        check_when(spec, leg, when)?;
    }
    if let Some(peak) = &leg.peak {
        check_peak(spec, leg, peak)?;
    }
    Ok(())
}

fn check_when(spec: &PolicySpec, leg: &LegSpec, when: &When) -> Result<(), SpecError> {
    check_measured(spec, leg, "when", &when.leg, when.metric, when.over)?;
    check_marks("when.", when.above, when.below)
}

fn check_peak(spec: &PolicySpec, leg: &LegSpec, peak: &Peak) -> Result<(), SpecError> {
    check_measured(spec, leg, "peak", &peak.leg, peak.metric, peak.over)?;
    if peak.steps.is_empty() {
        return Err(SpecError::new(
            "peak.steps",
            "none was given, and at least one is needed",
        ));
    }
    let kind = leg.rule.kind();
    let Some(number) = leg.rule.peak() else {
        let fault = format!("a {kind} has no number that could depend on load");
        return Err(SpecError::new("peak", fault));
    };
    let mut last: Option<f64> = None;
    for (row, step) in peak.steps.iter().enumerate() {
        let at = format!("peak.steps[{row}].");
        check_marks(&at, step.above, step.below)?;
        if let Some(last) = last.filter(|&last| step.above <= last) {
            let fault = format!("{} was given after {last}, and rows go upwards", step.above);
            return Err(SpecError::new(&format!("{at}above"), fault));
        }
        last = Some(step.above);
        let (quota, limit) = (("quota", step.quota.is_some()), ("limit", step.limit.is_some()));
        let ((wanted, found), (other, odd)) = match number {
            PeakKey::Quota => (quota, limit),
            PeakKey::Limit => (limit, quota),
        };
        if !found {
            return Err(SpecError::new(&format!("{at}{wanted}"), "it is missing"));
        }
        if odd {
            let fault = format!("it is none of a {kind}, which takes `{wanted}`");
            return Err(SpecError::new(&format!("{at}{other}"), fault));
        }
        let checked = leg.rule.at(step).0.check();
        checked.map_err(|error| SpecError::new(&format!("{at}{wanted}"), error.fault()))?;
    }
    check_circle(spec, leg)
}

/// The use of a leg depends on its numbers: tables that look at each other's use could change them for ever.
fn check_circle(spec: &PolicySpec, leg: &LegSpec) -> Result<(), SpecError> {
    let next = |leg: &LegSpec| {
        let peak = leg.peak.as_ref().filter(|peak| peak.metric == LoadMetric::Use)?;
        spec.leg(&peak.leg)
    };
    let mut way = leg.name.clone();
    let mut at = leg;
    for _ in &spec.legs {
        let Some(further) = next(at) else { return Ok(()) };
        let _ = write!(way, " -> {}", further.name);
        if further.name == leg.name {
            let fault = format!("the use of one depends on the numbers of the next in a circle: {way}");
            return Err(SpecError::new("peak.leg", fault));
        }
        at = further;
    }
    Ok(())
}

fn check_measured(
    spec: &PolicySpec,
    leg: &LegSpec,
    table: &str,
    other: &str,
    metric: LoadMetric,
    over: Duration,
) -> Result<(), SpecError> {
    let key = |key: &str| format!("{table}.{key}");
    if other == leg.name {
        let fault = format!("`{other}` is the leg itself, and another one is allowed");
        return Err(SpecError::new(&key("leg"), fault));
    }
    let Some(measured) = spec.leg(other) else {
        let mut fault = format!("`{other}` is no leg, and there are: ");
        for (n, known) in spec.legs.iter().filter(|known| known.name != leg.name).enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            let _ = write!(fault, "{comma}{}", known.name);
        }
        return Err(SpecError::new(&key("leg"), fault));
    };
    let rule = &measured.rule;
    if metric == LoadMetric::Use && !rule.holds() && rule.per_second().is_none() {
        let kind = rule.kind();
        let fault = format!(
            "`use` was given, and a {kind} as `{other}` is in no use; `rate`, `latency`, `refusals` are allowed"
        );
        return Err(SpecError::new(&key("metric"), fault));
    }
    if over.is_zero() || over > LONGEST {
        let fault = format!("{over:?} was given, and above zero to 24 hours is allowed");
        return Err(SpecError::new(&key("over"), fault));
    }
    Ok(())
}

fn check_marks(table: &str, above: f64, below: f64) -> Result<(), SpecError> {
    if !above.is_finite() || above < 0.0 {
        let fault = format!("{above} was given, and a number of at least 0 is allowed");
        return Err(SpecError::new(&format!("{table}above"), fault));
    }
    if !(0.0..=above).contains(&below) {
        let fault = format!("{below} was given, and 0 to {above}, which is `above`, is allowed");
        return Err(SpecError::new(&format!("{table}below"), fault));
    }
    Ok(())
}
