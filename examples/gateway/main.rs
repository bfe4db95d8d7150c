//! An LLM gateway's admission policy on an hour of real traffic: in virtual time, or live.
//!
//! Two tenants, each behind one policy of four legs: requests per minute, tokens per minute (charged by an estimate,
//! settled at the end), a window against bursts, and calls in flight. Every request is written to an audit log, which a
//! second pass replays without knowing the limiters, and which becomes a page of tables and plots.
//!
//! ```text
//! cargo run --release --example gateway               # an hour in a second, the same bytes each time
//! cargo run --release --example gateway -- --live 60  # an hour in a minute, on real threads and timers
//! ```
//! Live, the trace, the rates, the windows and the durations are scaled alike. The faster, the coarser: timers fire once a
//! millisecond, which at 60 times the trace's speed is 60 ms of it. The limits hold exactly at any speed; the verifier says
//! so.
//!
//! Exit code 1: the log does not hold. Exit code 2: the arguments or a trace are wrong.

#![allow(unreachable_pub)]

mod audit;
mod pace;
#[allow(dead_code)]
#[path = "../report/mod.rs"]
mod page;
mod report;
mod sim;
mod trace;
mod verify;
mod witness;

use clap::{Parser, ValueEnum};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{ManualClock, Quota};

/// Replays real LLM traffic through an admission policy.
#[derive(Parser)]
struct Args {
    /// Where the audit log and the report go.
    #[arg(long, default_value = "target/gateway")]
    out: PathBuf,
    /// The trace of the tenant `code`.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/azure_llm_2023_code.csv.gz"))]
    code: PathBuf,
    /// The trace of the tenant `conv`.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/azure_llm_2023_conv.csv.gz"))]
    conv: PathBuf,
    /// Which tenants to run.
    #[arg(long, value_enum, default_value_t = Which::Both)]
    tenant: Which,
    /// Requests per time, for all tenants that run: `300/min`, `10/s burst 50`.
    #[arg(long)]
    requests: Option<Quota>,
    /// Tokens per time, for all tenants that run.
    #[arg(long)]
    tokens: Option<Quota>,
    /// Calls in flight, for all tenants that run.
    #[arg(long)]
    in_flight: Option<usize>,
    /// The longest wait, in milliseconds.
    #[arg(long)]
    max_wait_ms: Option<u64>,
    /// Replays only the first REQUESTS requests of each trace.
    #[arg(long, value_name = "REQUESTS")]
    first: Option<usize>,
    /// Runs on real threads and timers, SPEED times as fast as the trace, instead of in virtual time.
    #[arg(long, value_name = "SPEED", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    live: Option<u32>,
    /// Only verifies this audit log.
    #[arg(long, value_name = "FILE")]
    verify: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Code,
    Conv,
    Both,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.verify {
        Some(log) => verify_log(log),
        None => run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let mut tenants = Vec::new();
    if args.tenant != Which::Conv {
        tenants.push(sim::Tenant::code(trace::read(&args.code)?));
    }
    if args.tenant != Which::Code {
        tenants.push(sim::Tenant::conv(trace::read(&args.conv)?));
    }
    for tenant in &mut tenants {
        tenant.trace.truncate(args.first.unwrap_or(usize::MAX));
        tenant.requests = args.requests.unwrap_or(tenant.requests);
        tenant.tokens = args.tokens.unwrap_or(tenant.tokens);
        tenant.in_flight = args.in_flight.unwrap_or(tenant.in_flight);
        tenant.max_wait = args.max_wait_ms.map_or(tenant.max_wait, Duration::from_millis);
    }
    fs::create_dir_all(&args.out).map_err(|error| format!("{}: {error}", args.out.display()))?;
    let log = args.out.join("audit.csv");
    if log.exists() {
        fs::remove_file(&log)?;
    }
    let audit = Arc::new(audit::Audit::create(&log)?);
    // Draws on a terminal only.
    let bar = indicatif::ProgressBar::new(tenants.iter().map(|tenant| tenant.trace.len() as u64).sum());
    let step = bar.clone();
    let progress: sim::Progress = Arc::new(move || step.inc(1));
    match args.live {
        None => sim::run(&tenants, &audit, &ManualClock::new(), &progress)?,
        Some(speed) => sim::run_live(&tenants, &audit, speed, &progress)?,
    }
    bar.finish_and_clear();

    let (limits, rows) = audit::read(&log)?;
    let summaries: Vec<_> = limits.iter().map(|limits| report::summary(limits, &rows)).collect();
    let table = report::table(&summaries, &limits);
    let (peak, opened) = (audit.peak(), audit.opened());
    let writers = format!(
        "Writers of the audit log: {opened} opened, {peak} in use at once, {} allowed.",
        audit::WRITERS
    );
    let text = format!("{}{writers}\n", table.text());
    fs::write(args.out.join("report.txt"), &text)?;
    fs::write(args.out.join("waits.csv"), report::waits(&rows))?;
    let how = match args.live {
        None => "In virtual time: the same run gives the same numbers.".to_owned(),
        Some(speed) => {
            format!("Live, on real threads and timers, {speed} times as fast; drawn in the trace's own time.")
        }
    };
    let page = report::page(table, &limits, &rows, &how, &writers);
    fs::write(args.out.join("report.html"), page.render())?;
    print!("{text}");
    println!("written to {}", args.out.display());
    if opened > audit::WRITERS || peak > audit::WRITERS {
        eprintln!("violation: more writers than are allowed");
        return Ok(false);
    }
    verify_log(&log)
}

/// Replays a log and prints its violations. True if there are none.
fn verify_log(log: &Path) -> Result<bool, Box<dyn Error>> {
    let (limits, rows) = audit::read(log).map_err(|error| format!("{}: {error}", log.display()))?;
    if limits.is_empty() {
        return Err(format!("{}: it holds no limits", log.display()).into());
    }
    let found = verify::violations(&limits, &rows);
    for violation in found.iter().take(20) {
        eprintln!("violation: {violation}");
    }
    match found.len() {
        0 => println!("verified: {} requests, every ledger holds", rows.len()),
        n => eprintln!("{n} violations"),
    }
    Ok(found.is_empty())
}
