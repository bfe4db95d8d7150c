//! A plan: the requests of a log that another version of a policy would decide otherwise.

use super::error::LabError;
use super::page::{Table, ticks};
use super::replay::{Bench, Replay};
use super::trace::Trace;
use super::{counted, name, read, write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

#[derive(clap::Args)]
pub struct PlanArgs {
    /// The policy in force, TOML or JSON.
    old: PathBuf,
    /// The policy that is to follow it.
    new: PathBuf,
    /// The policy of a service's file: its name, or `MAP.TIER`, which is replayed as the policy of one key.
    #[arg(long = "policy", value_name = "NAME")]
    named: Option<String>,
    /// An admission log, or whatever `--trace` can name.
    #[arg(long)]
    log: String,
    /// Exit code 1 when more requests than these, `20` or `1%`, were allowed and would be denied.
    #[arg(long, value_name = "COUNT")]
    most_denied: Option<Most>,
    /// Exit code 1 when more requests than these were denied and would be allowed.
    #[arg(long, value_name = "COUNT")]
    most_allowed: Option<Most>,
    /// Prints the first REQUESTS of those that flip. All are in `flips.csv`.
    #[arg(long, value_name = "REQUESTS", default_value_t = 10)]
    list: usize,
    /// How long a request works, of a trace that does not say.
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    hold: Duration,
    /// Where the list goes.
    #[arg(long, default_value = "target/lab")]
    out: PathBuf,
}

/// A number of requests, or a share of all in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Most {
    Count(usize),
    Percent(f64),
}

impl FromStr for Most {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let most = match text.strip_suffix('%') {
            None => text.parse().ok().map(Self::Count),
            Some(share) => {
                let share: Option<f64> = share.trim().parse().ok();
                share.filter(|share| (0.0..=100.0).contains(share)).map(Self::Percent)
            }
        };
        most.ok_or_else(|| "a number of requests, or a share of 0% to 100%, is allowed".into())
    }
}

impl Most {
    fn is_exceeded(self, flips: usize, all: usize) -> bool {
        match self {
            Self::Count(most) => flips > most,
            Self::Percent(share) => flips as f64 * 100.0 > share * all as f64,
        }
    }
}

/// A request that is decided otherwise.
struct Flip<'a> {
    request: usize,
    /// The legs that refuse it: before, or after.
    old: Option<&'a str>,
    new: Option<&'a str>,
}

fn flips<'a>(old: &'a Replay, new: &'a Replay) -> impl Iterator<Item = Flip<'a>> {
    let both = old.events.iter().zip(&new.events).enumerate();
    let flips = both.map(|(request, (old, new))| Flip {
        request,
        old: old.refused_by.as_deref(),
        new: new.refused_by.as_deref(),
    });
    flips.filter(|flip| flip.old.is_some() != flip.new.is_some())
}

/// Makes the plan. False when it exceeds a bound that was given.
pub fn run(args: &PlanArgs) -> Result<bool, LabError> {
    let named = args.named.as_deref();
    let (old, new) = (read(&args.old, named)?, read(&args.new, named)?);
    let trace = Trace::read(&args.log, &counted([&old, &new]), args.hold)?;
    let replayed = |spec| Bench::new(spec, &trace)?.run(spec);
    let (before, after) = (replayed(&old)?, replayed(&new)?);
    let flips: Vec<Flip<'_>> = flips(&before, &after).collect();
    let (denied, allowed): (Vec<&Flip<'_>>, Vec<_>) = flips.iter().partition(|flip| flip.new.is_some());

    let title = format!(
        "{} -> {} on {}",
        name(&args.old, Some(&args.new)),
        name(&args.new, Some(&args.old)),
        trace.name
    );
    let all = trace.requests.len();
    let refused = |replay: &Replay| replay.reasons.iter().flatten().count();
    let row = |name: &str, count: usize| {
        let share = format!("{:.2} %", 100.0 * count as f64 / all.max(1) as f64);
        vec![name.to_owned(), ticks::number(count as f64), share]
    };
    let head = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
    let mut rows = vec![
        row("all", all),
        row("denied before", refused(&before)),
        row("denied after", refused(&after)),
        row("allow -> deny", denied.len()),
    ];
    let mut legs: Vec<(&str, usize)> = Vec::new();
    for leg in denied.iter().filter_map(|flip| flip.new) {
        match legs.iter_mut().find(|(known, _)| *known == leg) {
            Some((_, count)) => *count += 1,
            None => legs.push((leg, 1)),
        }
    }
    rows.extend(legs.iter().map(|(leg, count)| row(&format!("  by {leg}"), *count)));
    rows.push(row("deny -> allow", allowed.len()));
    let unknown = trace.requests.iter().filter(|request| !request.known).count();
    if unknown > 0 {
        let flip = flips.iter().filter(|flip| !trace.requests[flip.request].known).count();
        rows.push(row("work not known", unknown));
        rows.push(row("  of those that flip", flip));
    }
    let mut tables = vec![Table {
        title,
        head: head(&["requests", "count", "share"]),
        rows,
    }];
    let lines: Vec<Vec<String>> = flips.iter().map(|flip| line(flip, &trace)).collect();
    let columns = [
        vec!["request", "at"],
        trace.costs.iter().map(String::as_str).collect(),
        vec!["before", "after", "work"],
    ]
    .concat();
    if !lines.is_empty() && args.list > 0 {
        tables.push(Table {
            title: "the first that flip".into(),
            head: head(&columns),
            rows: lines.iter().take(args.list).cloned().collect(),
        });
    }
    std::fs::create_dir_all(&args.out).map_err(|error| LabError::new(format!("{}: {error}", args.out.display())))?;
    write(&args.out.join("flips.csv"), csv(&columns, &lines)?)?;
    println!("{}", tables[0].title);
    print!("{}", tables.iter().map(Table::text).collect::<Vec<_>>().join("\n"));
    if unknown > 0 {
        println!(
            "{unknown} requests were refused when they were recorded. How long they would have worked cannot be known: they work for \
             the median of the others."
        );
    }
    println!("written to {}", args.out.display());

    let mut is_met = true;
    for (most, flips, what) in [
        (args.most_denied, denied.len(), "deny"),
        (args.most_allowed, allowed.len(), "allow"),
    ] {
        if most.is_some_and(|most| most.is_exceeded(flips, all)) {
            eprintln!("lab: the plan would {what} {flips} of {all} requests, which is more than it may");
            is_met = false;
        }
    }
    Ok(is_met)
}

fn line(flip: &Flip<'_>, trace: &Trace) -> Vec<String> {
    let request = &trace.requests[flip.request];
    let verdict = |leg: Option<&str>| leg.map_or("allow".into(), |leg| format!("deny: {leg}"));
    let mut line = vec![flip.request.to_string(), format!("{:.3}", request.at as f64 / 1e9)];
    line.extend(request.units.iter().map(|[charged, _]| charged.to_string()));
    let work = if request.known { "known" } else { "not known" };
    line.extend([verdict(flip.old), verdict(flip.new), work.into()]);
    line
}

fn csv(columns: &[&str], lines: &[Vec<String>]) -> Result<Vec<u8>, LabError> {
    let failed = |error: csv::Error| LabError::new(error.to_string());
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(columns).map_err(failed)?;
    lines
        .iter()
        .try_for_each(|line| out.write_record(line))
        .map_err(failed)?;
    out.into_inner().map_err(|error| LabError::new(error.to_string()))
}
