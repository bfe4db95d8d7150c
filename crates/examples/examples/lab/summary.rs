//! What a run comes to: the table, the page, and one line per request.

use super::error::LabError;
use super::knob::{self, Number};
use super::page::series::{self, Kind, Leg, Run};
use super::page::{Page, Table, ticks};
use super::replay::Replay;
use super::trace::Trace;
use std::time::Duration;
use tollgate_config::{LegKind, LegSpec, PolicySpec};

/// The numbers of one run.
pub struct Summary {
    pub arrived: usize,
    pub admitted: usize,
    pub waited: usize,
    /// Of the admitted: half, 95 and 99 of a hundred, and all, waited no longer.
    pub waits: [Duration; 4],
}

impl Summary {
    pub fn of(replay: &Replay) -> Self {
        let admitted = replay.events.iter().filter(|event| event.refused_by.is_none());
        let mut waits: Vec<u64> = admitted.map(|event| event.ended - event.arrived).collect();
        waits.sort_unstable();
        let percentile = |percent: usize| match waits.len() {
            0 => Duration::ZERO,
            len => Duration::from_nanos(waits[(len * percent).div_ceil(100).clamp(1, len) - 1]),
        };
        Self {
            arrived: replay.events.len(),
            admitted: waits.len(),
            waited: waits.iter().filter(|wait| **wait > 0).count(),
            waits: [50, 95, 99, 100].map(percentile),
        }
    }

    pub fn refused(&self) -> usize {
        self.arrived - self.admitted
    }
}

/// A policy that was run, under the name by which the report calls it.
pub struct Tried {
    pub name: String,
    pub spec: PolicySpec,
    pub replay: Replay,
}

/// The legs as they are drawn.
fn legs(spec: &PolicySpec, trace: &Trace) -> Vec<Leg> {
    let kind = |kind: &LegKind, cost: Option<usize>| match (Number::of(kind), knob::per_second(kind)) {
        (Some(Number::Limit(limit)), None) => Kind::Slots { limit: limit as f64 },
        (Some(Number::Limit(_)), Some(per_second)) => Kind::Rate { per_second, cost },
        (Some(Number::Quota(quota)), Some(per_second)) if !quota.is_unlimited() && !quota.is_zero() => {
            Kind::Rate { per_second, cost }
        }
        _ => Kind::Other,
    };
    let column = |name: &Option<String>| {
        name.as_ref()
            .and_then(|name| trace.costs.iter().position(|cost| cost == name))
    };
    let leg = |leg: &LegSpec| Leg {
        name: leg.name.clone(),
        // A linked leg counts only while it applies: what was admitted says nothing of its use.
        kind: if leg.when.is_some() {
            Kind::Other
        } else {
            kind(&leg.kind, column(&leg.per))
        },
    };
    spec.legs.iter().map(leg).collect()
}

/// The table: one column a policy.
pub fn table(tried: &[Tried], trace: &Trace) -> Table {
    let legs: Vec<_> = tried.iter().map(|tried| legs(&tried.spec, trace)).collect();
    let runs = runs(tried, &legs);
    let summaries: Vec<_> = tried.iter().map(|tried| Summary::of(&tried.replay)).collect();
    let mut rows = Vec::new();
    let mut line = |name: &str, cell: &dyn Fn(usize) -> String| {
        let cells = (0..tried.len()).map(cell);
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    };
    let of = |index: usize| &summaries[index];
    let count = |n: usize| ticks::number(n as f64);
    line("arrived", &|i| count(of(i).arrived));
    line("admitted", &|i| count(of(i).admitted));
    line("refused", &|i| count(of(i).refused()));
    line("  share", &|i| {
        format!("{:.2} %", 100.0 * of(i).refused() as f64 / of(i).arrived.max(1) as f64)
    });
    for leg in series::refusers(&runs) {
        line(&format!("  by {leg}"), &|i| {
            let events = &tried[i].replay.events;
            count(
                events
                    .iter()
                    .filter(|event| event.refused_by.as_ref() == Some(&leg))
                    .count(),
            )
        });
    }
    let mut shadows: Vec<&String> = Vec::new();
    for (name, _) in tried.iter().flat_map(|tried| &tried.replay.shadows) {
        if !shadows.contains(&name) {
            shadows.push(name);
        }
    }
    for name in shadows {
        line(&format!("  in shadow, by {name}"), &|i| {
            let shadow = tried[i].replay.shadows.iter().find(|shadow| shadow.0 == *name);
            shadow.map_or("-".into(), |shadow| ticks::number(shadow.1 as f64))
        });
    }
    line("waited", &|i| count(of(i).waited));
    for (index, name) in ["wait p50", "wait p95", "wait p99", "longest wait"]
        .into_iter()
        .enumerate()
    {
        line(name, &|i| format!("{:.3} s", of(i).waits[index].as_secs_f64()));
    }
    line("most in flight", &|i| {
        ticks::number(series::highest(&tried[i].replay.events).0 as f64)
    });
    line("most waiting", &|i| {
        ticks::number(series::highest(&tried[i].replay.events).1 as f64)
    });
    Table {
        title: "What came of it".into(),
        head: std::iter::once(String::new())
            .chain(tried.iter().map(|tried| tried.name.clone()))
            .collect(),
        rows,
    }
}

/// The legs of each policy in words, by name.
fn legs_table(tried: &[Tried]) -> Table {
    let mut names: Vec<&String> = Vec::new();
    for leg in tried.iter().flat_map(|tried| &tried.spec.legs) {
        if !names.contains(&&leg.name) {
            names.push(&leg.name);
        }
    }
    let row = |name: &String| {
        let cells = tried
            .iter()
            .map(|tried| tried.spec.leg(name).map_or("-".into(), in_words));
        std::iter::once(name.clone()).chain(cells).collect()
    };
    let mut rows: Vec<Vec<String>> = names.into_iter().map(row).collect();
    let mut line = |name: &str, cell: &dyn Fn(&PolicySpec) -> Option<String>| {
        let cells = tried
            .iter()
            .map(|tried| cell(&tried.spec).unwrap_or_else(|| "any".into()));
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    };
    line("longest wait allowed", &|spec| {
        Some(humantime::format_duration(spec.max_wait?).to_string())
    });
    line("waiters allowed", &|spec| Some(ticks::number(spec.max_queue? as f64)));
    Table {
        title: "The legs".into(),
        head: std::iter::once(String::new())
            .chain(tried.iter().map(|tried| tried.name.clone()))
            .collect(),
        rows,
    }
}

/// `sliding-window: 40 per 2s`, and what sets it apart.
fn in_words(leg: &LegSpec) -> String {
    let per = |window| format!(" per {}", humantime::format_duration(window));
    let window = knob::window(&leg.kind).map_or(String::new(), per);
    let number = knob::written(&leg.kind).1;
    let colon = if number.is_empty() { "" } else { ": " };
    let of = leg.per.as_ref().map_or(String::new(), |cost| format!(", of {cost}"));
    let marks = [(leg.shadow, ", in shadow"), (leg.when.is_some(), ", linked")];
    let marks: String = marks.iter().filter(|mark| mark.0).map(|mark| mark.1).collect();
    format!("{}{colon}{number}{window}{of}{marks}", leg.kind.name())
}

fn runs<'a>(tried: &'a [Tried], legs: &'a [Vec<Leg>]) -> Vec<Run<'a>> {
    let run = |(tried, legs): (&'a Tried, &'a Vec<Leg>)| Run {
        caption: tried.name.clone(),
        legs,
        events: &tried.replay.events,
    };
    tried.iter().zip(legs).map(run).collect()
}

/// The page.
pub fn page(tried: &[Tried], trace: &Trace, tables: Vec<Table>, notes: Vec<String>) -> Page {
    let legs: Vec<_> = tried.iter().map(|tried| legs(&tried.spec, trace)).collect();
    let names: Vec<_> = tried.iter().map(|tried| tried.name.as_str()).collect();
    let span = trace.requests.last().map_or(0, |last| last.at) as f64 / 1e9;
    Page {
        title: format!("{} on {}", names.join(" and "), trace.name),
        lead: format!(
            "{} requests over {}, in virtual time: the same files give the same page.",
            ticks::number(trace.requests.len() as f64),
            ticks::instant(span)
        ),
        tables,
        groups: series::groups(&runs(tried, &legs)),
        below: vec![legs_table(tried)],
        notes,
    }
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// One line per request and policy.
pub fn csv(tried: &[Tried]) -> Result<Vec<u8>, LabError> {
    let failed = |error: csv::Error| LabError::new(error.to_string());
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record([
        "policy",
        "request",
        "arrived_s",
        "waited_s",
        "refused_by",
        "reason",
        "finished_s",
    ])
    .map_err(failed)?;
    for tried in tried {
        for (index, (event, reason)) in tried.replay.events.iter().zip(&tried.replay.reasons).enumerate() {
            out.write_record([
                tried.name.clone(),
                index.to_string(),
                seconds(event.arrived),
                seconds(event.ended - event.arrived),
                event.refused_by.clone().unwrap_or_default(),
                reason.map_or(String::new(), |reason| format!("{reason:?}")),
                event.finished.map_or(String::new(), seconds),
            ])
            .map_err(failed)?;
        }
    }
    out.into_inner().map_err(|error| LabError::new(error.to_string()))
}
