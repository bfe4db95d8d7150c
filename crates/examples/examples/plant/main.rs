//! Adaptive limits on a simulated plant, in virtual time: how soon each law finds the limit, how far it overshoots, and
//! what gets done meanwhile, beside the limit that an operator who knew the plant would set.
//!
//! `cargo run --release -p tollgate-examples --example plant` prints the table and checks what `docs/adaptive.md` claims;
//! `cargo run --release -p tollgate-examples --example plant -- docs` writes `docs/adaptive.csv` and `docs/adaptive.svg` as well.
//! The same seed gives the same run, to the last request.

mod plant;
mod plot;

use plant::{Second, run};
use std::fmt::Write as _;
use std::path::Path;
use tollgate_resilience::adaptive::{Aimd, Gradient, Gradient2, LimitLaw, Trend, Vegas};

/// Workers of the plant, from each second on.
pub(crate) const STEPS: [(u64, usize); 3] = [(0, 20), (60, 10), (120, 30)];
pub(crate) const END: u64 = 180;

/// How the limit of a run is set.
pub(crate) enum Setting {
    Law(Box<dyn LimitLaw>),
    /// The same, and the limit is raised to no more than a fifth above what is in flight.
    Near(Box<dyn LimitLaw>),
    Fixed(usize),
    /// Twice as many as the plant has workers, at every instant: all of them are busy, and no request waits long.
    Ideal,
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) seconds: Vec<Second>,
}

/// Workers at a second.
pub(crate) fn workers(second: u64) -> usize {
    let step = STEPS.iter().rev().find(|step| step.0 <= second);
    step.map_or(0, |step| step.1)
}

/// The limit of an operator who knows the plant.
pub(crate) fn ideal(second: u64) -> usize {
    2 * workers(second)
}

/// The seconds of each step.
fn phases(seconds: &[Second]) -> impl Iterator<Item = &[Second]> {
    let ends = STEPS.iter().skip(1).map(|step| step.0).chain([END]);
    STEPS
        .iter()
        .zip(ends)
        .map(|(step, end)| &seconds[step.0 as usize..end as usize])
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// From which second of the phase on three in a row do nine tenths of what the ideal does on average.
fn convergence(phase: &[Second], best: &[Second]) -> Option<usize> {
    let enough = 0.9 * mean(best.iter().map(|second| second.good as f64));
    phase
        .windows(3)
        .position(|three| three.iter().all(|second| second.good as f64 >= enough))
}

struct Summary {
    goodput: f64,
    utilisation: f64,
    overshoot: f64,
    fairness: f64,
    convergence: Vec<Option<usize>>,
}

fn summary(row: &Row, best: &Row) -> Summary {
    let seconds = &row.seconds;
    let peaks = phases(seconds).zip(STEPS).map(|(phase, step)| {
        // What the step before has left is no overshoot of this one.
        let peak = phase[10..].iter().map(|second| second.limit).max().unwrap_or(0);
        peak as f64 / ideal(step.0) as f64
    });
    let served = |class: usize| {
        let asked: u64 = seconds.iter().map(|second| second.asked[class]).sum();
        let admitted: u64 = seconds.iter().map(|second| second.admitted[class]).sum();
        admitted as f64 / asked as f64
    };
    let (a, b) = (served(0), served(1));
    Summary {
        goodput: mean(seconds.iter().map(|second| second.good as f64)),
        utilisation: mean(seconds.iter().map(|second| second.busy)),
        overshoot: peaks.fold(0.0, f64::max),
        // Jain's index of what part of its requests each class got through.
        fairness: (a + b).powi(2) / (2.0 * (a * a + b * b)),
        convergence: phases(seconds)
            .zip(phases(&best.seconds))
            .map(|(phase, best)| convergence(phase, best))
            .collect(),
    }
}

fn table(rows: &[Row]) -> (String, Vec<Summary>) {
    let best = &rows[0];
    let mut out = String::from(
        "| limit | goodput per s | utilisation | peak / ideal | fairness | s to 90 % at 20, 10, 30 workers |\n|---|---|---|---|---|---|\n",
    );
    let summaries: Vec<_> = rows.iter().map(|row| summary(row, best)).collect();
    for (row, sum) in rows.iter().zip(&summaries) {
        let times: Vec<_> = sum
            .convergence
            .iter()
            .map(|time| time.map_or("never".into(), |time| time.to_string()))
            .collect();
        let _ = writeln!(
            out,
            "| {} | {:.0} | {:.2} | {:.2} | {:.3} | {} |",
            row.name,
            sum.goodput,
            sum.utilisation,
            sum.overshoot,
            sum.fairness,
            times.join(", ")
        );
    }
    (out, summaries)
}

fn csv(rows: &[Row]) -> String {
    let mut out = String::from("limit,second,workers,limit_in_force,in_flight,good,late,busy\n");
    for row in rows {
        for (at, second) in row.seconds.iter().enumerate() {
            let Second {
                limit,
                in_flight,
                good,
                late,
                busy,
                ..
            } = second;
            let name = row.name;
            let _ = writeln!(
                out,
                "{name},{at},{},{limit},{in_flight},{good},{late},{busy:.3}",
                workers(at as u64)
            );
        }
    }
    out
}

fn main() -> std::io::Result<()> {
    let settings = [
        ("ideal", Setting::Ideal),
        ("fixed at 100", Setting::Fixed(100)),
        ("AIMD", Setting::Law(Box::new(Aimd::new().timeout(plant::LATE / 2)))),
        ("Vegas", Setting::Law(Box::new(Vegas::new()))),
        ("Gradient", Setting::Law(Box::new(Gradient::new()))),
        ("Gradient, headroom", Setting::Near(Box::new(Gradient::new()))),
        ("Gradient2", Setting::Law(Box::new(Gradient2::new()))),
        ("Trend", Setting::Law(Box::new(Trend::new()))),
    ];
    let rows: Vec<_> = settings
        .into_iter()
        .map(|(name, setting)| Row {
            name,
            seconds: run(setting),
        })
        .collect();
    let (table, summaries) = table(&rows);
    print!("{table}");

    // A limit that is too high for the plant does harm, and every law does better than that.
    for (row, sum) in rows.iter().zip(&summaries).skip(2) {
        assert!(sum.goodput > summaries[1].goodput, "{} is worse than no law", row.name);
        assert!(
            row.seconds.iter().all(|second| (1..=200).contains(&second.limit)),
            "out of its bounds"
        );
        assert!(sum.fairness > 0.99);
    }
    if let Some(folder) = std::env::args().nth(1) {
        std::fs::write(Path::new(&folder).join("adaptive.csv"), csv(&rows))?;
        std::fs::write(Path::new(&folder).join("adaptive.svg"), plot::svg(&rows))?;
    }
    Ok(())
}
