//! The table at the end of a run, and the waits as a file.

use super::audit::{Limits, Row};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a tenant's log comes to.
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
        len => waits[(len * percent).div_ceil(100).clamp(1, len) - 1] as f64 / 1e9,
    };
    let mut events: Vec<(i64, i64)> = Vec::new();
    for row in &admitted {
        events.extend(row.admitted_order.map(|order| (order, 1)));
        events.extend(row.finished_order.map(|order| (order, -1)));
    }
    events.sort_unstable();
    let mut in_flight = 0;
    let peak_in_flight = events
        .iter()
        .map(|(_, step)| {
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
        waited: waits.iter().filter(|wait| **wait > 0).count(),
        waits: [percentile(50), percentile(95), percentile(99)],
        peak_in_flight,
        charged: admitted.iter().map(|row| row.estimate).sum(),
        real: admitted.iter().map(|row| row.context + row.generated).sum(),
        budget: burst + (i128::from(end) * i128::from(count) / i128::from(period)) as i64,
        refused,
    }
}

pub fn table(summaries: &[Summary], limits: &[Limits], peak_connections: usize) -> String {
    let mut text = String::new();
    let mut line = |name: &str, cell: &dyn Fn(usize) -> String| {
        let _ = write!(text, "{name:<26}");
        for index in 0..summaries.len() {
            let _ = write!(text, "{:>16}", cell(index));
        }
        let _ = writeln!(text);
    };
    let of = |index: usize| &summaries[index];
    line("", &|i| of(i).tenant.clone());
    line("arrived", &|i| of(i).arrived.to_string());
    line("admitted", &|i| of(i).admitted.to_string());
    line("refused", &|i| (of(i).arrived - of(i).admitted).to_string());
    line("  share", &|i| {
        format!(
            "{:.1} %",
            100.0 * (of(i).arrived - of(i).admitted) as f64 / of(i).arrived.max(1) as f64
        )
    });
    for leg in ["requests", "tokens", "window", "in flight", "line"] {
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
    let _ = writeln!(
        text,
        "audit connections: peak {peak_connections} of {}",
        super::audit::CONNECTIONS
    );
    text
}

/// One line per request that was admitted: tenant, number, wait in nanoseconds.
pub fn waits(rows: &[Row]) -> String {
    let mut text = String::from("tenant,request,wait_ns\n");
    for row in rows.iter().filter(|row| row.admitted_order.is_some()) {
        let _ = writeln!(text, "{},{},{}", row.tenant, row.id, row.ended_wait - row.arrived);
    }
    text
}
