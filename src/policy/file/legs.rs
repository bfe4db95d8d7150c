//! The legs of a file.

use super::error::PolicyFileError;
use super::kinds::Kinds;
use super::table::Table;
use super::tree::Node;
use crate::policy::kind::feature_of;
use crate::policy::spec::{LegSpec, LoadMetric, Peak, PeakStep, When};
use crate::rate::Inherit;
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

/// The error of a kind that `kinds` does not have: it may be one of another crate.
fn unknown_kind(leg: Table<'_>, given: &str, kinds: &Kinds) -> PolicyFileError {
    let names = kinds.names().collect::<Vec<_>>().join(", ");
    let why =
        format!("`{given}` was given, and one of {names} is allowed; `Kinds::with` adds the kinds of other crates");
    leg.wrong("kind", &why)
}

pub(super) fn leg(kinds: &Kinds, text: &str, node: &Node) -> Result<LegSpec> {
    let leg = Table::of(text, node, "leg")?;
    let Some(name) = leg.text("kind", "the name of a kind")? else {
        return Err(leg.missing("kind", "what the leg is"));
    };
    let Some(kind) = kinds.get(name) else {
        return Err(match feature_of(name) {
            Some(feature) => leg.wrong("kind", &format!("`{name}` needs the feature `{feature}` of tollgate")),
            None => unknown_kind(leg, name, kinds),
        });
    };
    leg.only(&[&COMMON[..], kind.keys].concat())?;
    let Some(name) = leg.text("name", "a text")? else {
        return Err(leg.missing("name", "every leg needs one"));
    };
    let mut spec = LegSpec::new(name, (kind.read)(leg)?);
    spec.per = match leg.text("per", "\"call\" or the name of a cost")? {
        None | Some("call") => None,
        Some(cost) => Some(cost.to_owned()),
    };
    spec.inherit = leg.choice("inherit", &INHERIT)?.unwrap_or(Inherit::AsIs);
    spec.shadow = leg.truth("shadow")?.unwrap_or(false);
    spec.when = leg.table("when")?.map(when).transpose()?;
    spec.peak = leg.table("peak")?.map(peak).transpose()?;
    Ok(spec)
}

/// The keys of `when` and `peak` alike: the leg, the metric, the span.
fn measured(table: Table<'_>) -> Result<(String, LoadMetric, Duration)> {
    let Some(leg) = table.text("leg", "the name of a leg")? else {
        return Err(table.missing("leg", "the name of the leg whose load it depends on"));
    };
    let metrics = LoadMetric::ALL.map(|metric| (metric.name(), metric));
    let Some(metric) = table.choice("metric", &metrics)? else {
        return Err(table.missing("metric", "what is measured: use, rate, latency or refusals"));
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
