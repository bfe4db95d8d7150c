//! Sends 20,000 requests to a local server from a pool of threads that share kept-alive connections.
//!
//! A worker takes an idle connection or opens one, so that there are never more than there are workers: the server
//! counts that for itself. Some of its answers are errors, and now and then it hangs up. Each request has one outcome,
//! and outcomes add up to what was sent and to what the server has seen.
//!
//! ```text
//! cargo run --release -p tollgate-examples --example http_pool -- --workers 16
//! ```
//! Exit code 1: the numbers do not add up. Exit code 2: the arguments are wrong.

mod client;
mod server;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use client::{Client, Outcome};
use server::Server;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tollgate::WorkerPool;

/// Sends requests through a worker pool.
#[derive(Parser)]
struct Args {
    /// How many requests.
    #[arg(long, default_value_t = 20_000, value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000_000))]
    requests: u32,
    /// How many workers, and so connections, at most.
    #[arg(long, default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=512))]
    workers: usize,
    /// How many requests may wait.
    #[arg(long, default_value_t = 256, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    queue: usize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let client = Arc::new(Client::new(server.address()));
    let pool = WorkerPool::builder()
        .workers(args.workers)
        .max_queue(args.queue)
        .name("http")
        .build()?;
    let bar = indicatif::ProgressBar::new(u64::from(args.requests));
    let start = Instant::now();
    let mut handles = Vec::with_capacity(args.requests as usize);
    for id in 0..args.requests {
        let (client, bar) = (Arc::clone(&client), bar.clone());
        // Waits while the queue is full: no more requests exist than may wait or run.
        handles.push(pool.submit(move || {
            let start = Instant::now();
            let outcome = client.get(id);
            bar.inc(1);
            (outcome, start.elapsed())
        })?);
    }
    let mut outcomes = BTreeMap::new();
    let mut latencies = Vec::with_capacity(handles.len());
    for handle in handles {
        let (outcome, latency) = handle.join()?;
        *outcomes.entry(outcome).or_insert(0) += 1;
        latencies.push(latency);
    }
    let took = start.elapsed();
    bar.finish();
    let report = pool.shutdown(Duration::from_secs(10));
    let seen = server.seen();

    latencies.sort();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "{} requests in {took:.2?}: {:.0}/s",
        args.requests,
        f64::from(args.requests) / took.as_secs_f64()
    );
    println!(
        "latency: p50 {:.1?}, p90 {:.1?}, p99 {:.1?}, max {:.1?}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    for (outcome, count) in &outcomes {
        println!("{outcome:?}: {count}");
    }
    println!(
        "server: {} requests on {} connections, {} at once of {} allowed",
        seen.requests, seen.connections, seen.peak, args.workers
    );

    let total: u32 = outcomes.values().sum();
    let count = |outcome| outcomes.get(&outcome).copied().unwrap_or(0);
    let checks = [
        ("every request has one outcome", total == args.requests),
        ("the server has seen every request", seen.requests == args.requests),
        (
            "errors are the server's",
            count(Outcome::Status(500)) == seen.errors && count(Outcome::HungUp) == seen.hang_ups,
        ),
        ("nothing else went wrong", count(Outcome::Failed) == 0),
        ("connections stayed within the limit", seen.peak <= args.workers),
        (
            "connections were kept",
            seen.connections as usize <= args.workers + seen.hang_ups as usize,
        ),
        ("the pool ended with nothing left", report.is_clean()),
    ];
    for (check, holds) in checks {
        println!("{} {check}", if holds { "ok     " } else { "FAILED " });
    }
    Ok(checks.iter().all(|(_, holds)| *holds))
}
