//! What several processes have written down, and whether it stays inside the budget in every span of time.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// One admission: from when to when it ran, on the clock that all processes of a machine share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) tokens: u64,
}

/// The limits: a rate per second with a burst, a number in a span, a number at once.
pub(crate) struct Budget {
    pub(crate) calls: (u64, u64),
    pub(crate) tokens: (u64, u64),
    pub(crate) window: (u64, Duration),
    pub(crate) in_flight: u64,
}

/// The time since the machine was started.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) fn write(path: &Path, admitted: &[Admission]) -> std::io::Result<()> {
    let mut text = String::new();
    for Admission { from, until, tokens } in admitted {
        let _ = writeln!(text, "{},{},{tokens}", from.as_nanos(), until.as_nanos());
    }
    std::fs::write(path, text)
}

pub(crate) fn read(path: &Path) -> Result<Vec<Admission>, Box<dyn std::error::Error + Send + Sync>> {
    let mut admitted = Vec::new();
    for row in csv::ReaderBuilder::new()
        .has_headers(false)
        .from_path(path)?
        .deserialize()
    {
        let (from, until, tokens) = row?;
        let (from, until) = (Duration::from_nanos(from), Duration::from_nanos(until));
        admitted.push(Admission { from, until, tokens });
    }
    Ok(admitted)
}

/// The burst that the worst span needed, of admissions that came at `rate` a second besides.
fn burst(rate: u64, spent: impl Iterator<Item = (Duration, u64)>) -> f64 {
    let (mut level, mut last, mut most) = (0.0_f64, Duration::ZERO, 0.0_f64);
    for (at, units) in spent {
        level = (level - (at - last).as_secs_f64() * rate as f64).max(0.0) + units as f64;
        (last, most) = (at, most.max(level));
    }
    most
}

/// The most in any span of this length.
fn most_within(length: Duration, admitted: &[Admission]) -> usize {
    let mut first = 0;
    let held = admitted.iter().enumerate().map(|(last, admission)| {
        while admitted[first].from + length <= admission.from {
            first += 1;
        }
        last + 1 - first
    });
    held.max().unwrap_or(0)
}

fn most_at_once(admitted: &[Admission]) -> i64 {
    let starts = admitted.iter().map(|admission| (admission.from, 1));
    let ends = admitted.iter().map(|admission| (admission.until, -1));
    let mut events: Vec<_> = starts.chain(ends).collect();
    // What ends at an instant has ended.
    events.sort();
    let mut held = 0;
    let held = events.into_iter().map(|(_, change)| {
        held += change;
        held
    });
    held.max().unwrap_or(0)
}

/// Prints what was seen beside what is allowed. False when it is too much, or nothing was seen.
pub(crate) fn report(budget: &Budget, admitted: &[Admission]) -> bool {
    let mut admitted = admitted.to_vec();
    admitted.sort_by_key(|admission| admission.from);
    let calls = burst(budget.calls.0, admitted.iter().map(|admission| (admission.from, 1)));
    let tokens = admitted.iter().map(|admission| (admission.from, admission.tokens));
    let tokens = burst(budget.tokens.0, tokens);
    let rows = [
        ("calls, burst", calls, budget.calls.1),
        ("tokens, burst", tokens, budget.tokens.1),
        (
            "calls in a window",
            most_within(budget.window.1, &admitted) as f64,
            budget.window.0,
        ),
        ("in flight", most_at_once(&admitted) as f64, budget.in_flight),
    ];
    println!(
        "{} admitted\n{:<18} {:>10} {:>10}",
        admitted.len(),
        "",
        "seen",
        "allowed"
    );
    let mut inside = !admitted.is_empty();
    for (name, seen, allowed) in rows {
        // Instants are whole nanoseconds.
        let fits = seen <= allowed as f64 + 1e-3;
        inside &= fits;
        println!(
            "{name:<18} {seen:>10.1} {allowed:>10}{}",
            if fits { "" } else { "  EXCEEDED" }
        );
    }
    println!(
        "{}",
        if inside {
            "inside the budget"
        } else {
            "NOT inside the budget"
        }
    );
    inside
}
