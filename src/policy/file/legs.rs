//! The legs of a file.

use super::error::PolicyFileError;
use super::table::Table;
use super::tree::Node;
use crate::policy::spec::{BreakerRule, LegRule, LegSpec, LoadMetric, Peak, PeakStep, RuleKind, When};
use crate::rate::{FixedWindow, Inherit, Quota, SlidingLog, SlidingWindow};
use crate::semaphore::Semaphore;
use std::time::Duration;

type Result<T> = std::result::Result<T, PolicyFileError>;

const INHERIT: [(&str, Inherit); 4] = [
    ("as-is", Inherit::AsIs),
    ("proportional", Inherit::Proportional),
    ("additive", Inherit::Additive),
    ("reset", Inherit::Reset),
];

/// The keys that a leg of any kind may have.
const COMMON: [&str; 7] = ["name", "kind", "per", "inherit", "shadow", "when", "peak"];

/// The keys of each kind besides.
fn keys(kind: RuleKind) -> &'static [&'static str] {
    match kind {
        RuleKind::TokenBucket => &["quota"],
        RuleKind::LeakyBucket => &["quota", "slack"],
        RuleKind::Warmup => &["quota", "period", "cold_factor"],
        RuleKind::FixedWindow => &["limit", "window"],
        RuleKind::SlidingWindow => &["limit", "window", "segments"],
        RuleKind::SlidingLog => &["limit", "window", "entries"],
        RuleKind::Semaphore => &["limit"],
        RuleKind::Breaker => &[
            "count_window",
            "time_window",
            "minimum_calls",
            "failure_rate",
            "slow_after",
            "slow_rate",
            "consecutive_failures",
            "open_for",
            "probes",
        ],
    }
}

pub(super) fn leg(text: &str, node: &Node) -> Result<LegSpec> {
    let leg = Table::of(text, node, "leg")?;
    let kinds = || RuleKind::ALL.map(RuleKind::name).join(", ");
    let Some((name, place)) = leg.text("kind", "the name of a kind")? else {
        return Err(leg.missing("kind", "what the leg is"));
    };
    let Some(kind) = RuleKind::of(name) else {
        let why = format!("`{name}` was given, and one of {} is allowed", kinds());
        return Err(leg.wrong(place, "kind", &why));
    };
    leg.only(&[&COMMON[..], keys(kind)].concat())?;
    let Some((name, _)) = leg.text("name", "a text")? else {
        return Err(leg.missing("name", "every leg needs one"));
    };
    let mut spec = LegSpec::new(name, rule(leg, kind)?);
    spec.per = match leg.text("per", "\"call\" or the name of a cost")? {
        None | Some(("call", _)) => None,
        Some((cost, _)) => Some(cost.to_owned()),
    };
    spec.inherit = match leg.text("inherit", "the name of a rule")? {
        None => Inherit::AsIs,
        Some((given, place)) => match INHERIT.iter().find(|(name, _)| *name == given) {
            Some((_, inherit)) => *inherit,
            None => {
                let names = INHERIT.map(|(name, _)| name).join(", ");
                let why = format!("`{given}` was given, and one of {names} is allowed");
                return Err(leg.wrong(place, "inherit", &why));
            }
        },
    };
    spec.shadow = leg.truth("shadow")?.unwrap_or(false);
    spec.when = leg.table("when")?.map(when).transpose()?;
    spec.peak = leg.table("peak")?.map(peak).transpose()?;
    Ok(spec)
}

fn rule(leg: Table<'_>, kind: RuleKind) -> Result<LegRule> {
    let quota = || -> Result<Quota> {
        let quota = leg.quota("quota")?;
        quota.ok_or_else(|| leg.missing("quota", "the rate, such as \"100/s burst 20\""))
    };
    let limit = |most: u64| -> Result<u64> {
        let limit = match leg.text("limit", &format!("a whole number of 0 to {most}, or \"unlimited\",")) {
            Ok(Some(("unlimited", _))) if most == FixedWindow::UNLIMITED => Some(most),
            _ => leg.whole("limit", 0, most)?,
        };
        limit.ok_or_else(|| leg.missing("limit", "a whole number"))
    };
    let window = || -> Result<Duration> {
        let window = leg.time("window")?;
        window.ok_or_else(|| leg.missing("window", "its length, such as \"10s\""))
    };
    Ok(match kind {
        RuleKind::TokenBucket => LegRule::TokenBucket { quota: quota()? },
        RuleKind::LeakyBucket => LegRule::LeakyBucket {
            quota: quota()?,
            slack: leg.whole("slack", 0, Quota::MAX_BURST - 1)?.unwrap_or(0),
        },
        RuleKind::Warmup => LegRule::Warmup {
            quota: quota()?,
            period: match leg.time("period")? {
                Some(period) => period,
                None => return Err(leg.missing("period", "how long it takes to get warm, such as \"10s\"")),
            },
            cold_factor: leg.whole("cold_factor", 1, 100)?.unwrap_or(3) as u32,
        },
        RuleKind::FixedWindow => LegRule::FixedWindow {
            limit: limit(FixedWindow::UNLIMITED)?,
            window: window()?,
        },
        RuleKind::SlidingWindow => LegRule::SlidingWindow {
            limit: limit(SlidingWindow::UNLIMITED)?,
            window: window()?,
            segments: leg
                .whole("segments", 1, SlidingWindow::MAX_SEGMENTS as u64)?
                .map_or(SlidingWindow::SEGMENTS, |segments| segments as usize),
        },
        RuleKind::SlidingLog => LegRule::SlidingLog {
            limit: limit(SlidingLog::UNLIMITED)?,
            window: window()?,
            entries: leg.whole("entries", 1, 1 << 32)?.map(|entries| entries as usize),
        },
        RuleKind::Semaphore => LegRule::Semaphore {
            limit: limit(Semaphore::MAX_PERMITS as u64)? as usize,
        },
        RuleKind::Breaker => LegRule::Breaker(breaker(leg)?),
    })
}

fn breaker(leg: Table<'_>) -> Result<BreakerRule> {
    let mut rule = BreakerRule::default();
    if let (Some(_), Some(time)) = (leg.get("count_window"), leg.get("time_window")) {
        return Err(leg.wrong(
            time,
            "time_window",
            "a count window was given already, and one of both is allowed",
        ));
    }
    if let Some(calls) = leg.whole("count_window", 1, u32::MAX.into())? {
        rule.count_window = calls as usize;
    }
    rule.time_window = leg.time("time_window")?;
    if let Some(calls) = leg.whole("minimum_calls", 1, u64::MAX)? {
        rule.minimum_calls = calls;
    }
    if let Some(rate) = leg.real("failure_rate")? {
        rule.failure_rate = rate;
    }
    rule.slow_calls = match (leg.time("slow_after")?, leg.real("slow_rate")?) {
        (Some(after), Some(rate)) => Some((after, rate)),
        (None, None) => None,
        (Some(_), None) => return Err(leg.missing("slow_rate", "the part of slow calls that opens, above 0 to 1")),
        (None, Some(_)) => return Err(leg.missing("slow_after", "what is slow, such as \"2s\"")),
    };
    rule.consecutive_failures = leg.whole("consecutive_failures", 1, u32::MAX.into())?;
    if let Some(time) = leg.time("open_for")? {
        rule.open_for = time;
    }
    if let Some(probes) = leg.whole("probes", 1, crate::breaker::BreakerBuilder::MAX_PROBES)? {
        rule.probes = probes;
    }
    Ok(rule)
}

/// The keys of `when` and `peak` alike: the leg, the metric, the span.
fn measured(table: Table<'_>) -> Result<(String, LoadMetric, Duration)> {
    let Some((leg, _)) = table.text("leg", "the name of a leg")? else {
        return Err(table.missing("leg", "the name of the leg whose load it depends on"));
    };
    let names = LoadMetric::ALL.map(LoadMetric::name).join(", ");
    let Some((name, place)) = table.text("metric", &names)? else {
        return Err(table.missing("metric", "what is measured: use, rate, latency or refusals"));
    };
    let Some(metric) = LoadMetric::of(name) else {
        let why = format!("`{name}` was given, and one of {names} is allowed");
        return Err(table.wrong(place, "metric", &why));
    };
    let over = table.time("over")?.unwrap_or(When::OVER);
    Ok((leg.to_owned(), metric, over))
}

/// A mark: a number, or a time for a latency.
fn mark(table: Table<'_>, key: &str, metric: LoadMetric) -> Result<Option<f64>> {
    match metric {
        LoadMetric::Latency => Ok(table.time(key)?.map(|time| time.as_secs_f64())),
        _ => table.real(key),
    }
}

fn marks(table: Table<'_>, metric: LoadMetric) -> Result<(f64, f64)> {
    let Some(above) = mark(table, "above", metric)? else {
        return Err(table.missing("above", "the load above which it applies"));
    };
    Ok((above, mark(table, "below", metric)?.unwrap_or(above)))
}

fn when(table: Table<'_>) -> Result<When> {
    table.only(&["leg", "metric", "above", "below", "over"])?;
    let (leg, metric, over) = measured(table)?;
    let (above, below) = marks(table, metric)?;
    Ok(When {
        leg,
        metric,
        above,
        below,
        over,
    })
}

fn peak(table: Table<'_>) -> Result<Peak> {
    table.only(&["leg", "metric", "over", "steps"])?;
    let (leg, metric, over) = measured(table)?;
    let Some(rows) = table.list("steps")? else {
        return Err(table.missing("steps", "a list of tables, each with `above` and `quota` or `limit`"));
    };
    let step = |node| -> Result<PeakStep> {
        let row = Table::of(table.text, node, "steps")?;
        row.only(&["above", "below", "quota", "limit"])?;
        let (above, below) = marks(row, metric)?;
        Ok(PeakStep {
            above,
            below,
            quota: row.quota("quota")?,
            limit: row.whole("limit", 0, u64::MAX)?,
        })
    };
    Ok(Peak {
        leg,
        metric,
        over,
        steps: rows.iter().map(step).collect::<Result<_>>()?,
    })
}
