//! The results of a run: the table, the page, and the waits as a file.

use super::audit::{Limits, Row};
use super::page::series::{self, Event, Kind, Leg, Run};
use super::page::{Page, Table};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The legs, and the queue, in the order in which they are asked.
const LEGS: [&str; 5] = ["requests", "tokens", "window", "in flight", "queue"];

/// The totals of a tenant's log, in the trace's time.
pub struct Summary {
    pub tenant: String,
    pub arrived: usize,
    pub admitted: usize,
    pub refused: BTreeMap<String, usize>,
    pub waited: usize,
    /// Of the admitted: half, 95 and 99 of a hundred waited no longer, in seconds.
    pub waits: [f64; 3],
    pub peak_in_flight: i64,
    pub charged: i64,
    pub real: i64,
    pub budget: i64,
}

/// Whether it waited at all. Live, some time passes in any case: it did when its first look did not admit it.
fn waited(limits: &Limits, row: &Row) -> bool {
    if limits.live {
        row.noted > Some(row.joined)
    } else {
        row.ended_wait > row.arrived
    }
}

pub fn summary(limits: &Limits, rows: &[Row]) -> Summary {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.tenant == limits.tenant).collect();
    let admitted: Vec<&&Row> = rows.iter().filter(|row| row.admitted_order.is_some()).collect();
    let mut refused = BTreeMap::new();
    for leg in rows.iter().filter_map(|row| row.leg.clone()) {
        *refused.entry(leg).or_default() += 1;
    }
    let mut waits: Vec<i64> = admitted.iter().map(|row| row.ended_wait - row.arrived).collect();
    waits.sort_unstable();
    let percentile = |percent: usize| match waits.len() {
        0 => 0.0,
        len => waits[(len * percent).div_ceil(100).clamp(1, len) - 1] as f64 * limits.speed as f64 / 1e9,
    };
    // At one instant the number gives the order.
    let mut events: Vec<(i64, i64, i64)> = Vec::new();
    for row in &admitted {
        events.extend(row.noted.zip(row.admitted_order).map(|(at, order)| (at, order, 1)));
        events.extend(row.finished.zip(row.finished_order).map(|(at, order)| (at, order, -1)));
    }
    events.sort_unstable();
    let mut in_flight = 0;
    let peak_in_flight = events
        .iter()
        .map(|(_, _, step)| {
            in_flight += step;
            in_flight
        })
        .max()
        .unwrap_or(0);
    let end = rows.iter().map(|row| row.ended_wait).max().unwrap_or(0);
    let [count, period, burst] = limits.tokens;
    Summary {
        tenant: limits.tenant.clone(),
        arrived: rows.len(),
        admitted: admitted.len(),
        waited: admitted.iter().filter(|row| waited(limits, row)).count(),
        waits: [percentile(50), percentile(95), percentile(99)],
        peak_in_flight,
        charged: admitted.iter().map(|row| row.estimate).sum(),
        real: admitted.iter().map(|row| row.context + row.generated).sum(),
        budget: burst + (i128::from(end) * i128::from(count) / i128::from(period)) as i64,
        refused,
    }
}

/// The table: one column a tenant.
pub fn table(summaries: &[Summary], limits: &[Limits]) -> Table {
    let mut rows = Vec::new();
    let mut line = |name: &str, cell: &dyn Fn(usize) -> String| {
        let cells = (0..summaries.len()).map(cell);
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    };
    let of = |index: usize| &summaries[index];
    line("arrived", &|i| of(i).arrived.to_string());
    line("admitted", &|i| of(i).admitted.to_string());
    line("refused", &|i| (of(i).arrived - of(i).admitted).to_string());
    line("  share", &|i| {
        format!(
            "{:.1} %",
            100.0 * (of(i).arrived - of(i).admitted) as f64 / of(i).arrived.max(1) as f64
        )
    });
    for leg in LEGS {
        if summaries.iter().any(|summary| summary.refused.contains_key(leg)) {
            line(&format!("  by {leg}"), &|i| {
                of(i).refused.get(leg).copied().unwrap_or(0).to_string()
            });
        }
    }
    line("waited", &|i| of(i).waited.to_string());
    for (index, name) in ["wait p50", "wait p95", "wait p99"].into_iter().enumerate() {
        line(name, &|i| format!("{:.3} s", of(i).waits[index]));
    }
    line("peak in flight", &|i| {
        format!("{} of {}", of(i).peak_in_flight, limits[i].in_flight)
    });
    line("tokens charged", &|i| of(i).charged.to_string());
    line("tokens used", &|i| of(i).real.to_string());
    line("tokens in the budget", &|i| of(i).budget.to_string());
    let tenants = summaries.iter().map(|summary| summary.tenant.clone());
    Table {
        title: "What came of it".into(),
        head: std::iter::once(String::new()).chain(tenants).collect(),
        rows,
    }
}

/// The page: the table, and plots of each tenant side by side, in the trace's time.
pub fn page(table: Table, limits: &[Limits], rows: &[Row], how: &str, connections: &str) -> Page {
    let legs: Vec<Vec<Leg>> = limits.iter().map(legs).collect();
    let events: Vec<Vec<Event>> = limits.iter().map(|limits| events(limits, rows)).collect();
    let runs: Vec<Run<'_>> = limits
        .iter()
        .zip(legs.iter().zip(&events))
        .map(|(limits, (legs, events))| Run {
            caption: limits.tenant.clone(),
            legs,
            events,
        })
        .collect();
    Page {
        title: "An LLM gateway on real traffic".into(),
        lead: format!(
            "Each tenant behind one policy: requests and tokens per minute, a window against bursts, calls in flight. {how}"
        ),
        tables: vec![table],
        groups: series::groups(&runs),
        below: Vec::new(),
        notes: vec![
            "Tokens are charged by an estimate on admission, and settled when the work is done.".into(),
            "A request that would wait longer than its bound is refused at once, by the leg that it would wait for."
                .into(),
            connections.into(),
        ],
    }
}

fn legs(limits: &Limits) -> Vec<Leg> {
    // Rates are of the run; the plots are of the trace.
    let rate = |[count, period, _]: [i64; 3], cost| Kind::Rate {
        per_second: count as f64 * 1e9 / (period * limits.speed) as f64,
        cost,
    };
    let window = [limits.window[0], limits.window[1], 0];
    let kinds = [
        rate(limits.requests, None),
        rate(limits.tokens, Some(0)),
        rate(window, None),
        Kind::Slots {
            limit: limits.in_flight as f64,
        },
    ];
    let leg = |(name, kind): (&str, Kind)| Leg {
        name: name.into(),
        kind,
    };
    LEGS.into_iter().zip(kinds).map(leg).collect()
}

fn events(limits: &Limits, rows: &[Row]) -> Vec<Event> {
    let rows = rows.iter().filter(|row| row.tenant == limits.tenant);
    let nanos = |at: i64| (at * limits.speed) as u64;
    let event = |row: &Row| Event {
        arrived: nanos(row.arrived),
        ended: nanos(row.ended_wait),
        finished: row.finished.map(nanos),
        refused_by: row.leg.clone(),
        units: vec![[row.estimate as u64, (row.context + row.generated) as u64]],
    };
    rows.map(event).collect()
}

/// One line per request that was admitted: tenant, number, wait in nanoseconds of the run.
pub fn waits(rows: &[Row]) -> String {
    let mut text = String::from("tenant,request,wait_ns\n");
    for row in rows.iter().filter(|row| row.admitted_order.is_some()) {
        let _ = writeln!(text, "{},{},{}", row.tenant, row.id, row.ended_wait - row.arrived);
    }
    text
}
