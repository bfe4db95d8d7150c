//! A service behind three levels of protection, and a page on which its operator sees them work.
//!
//! Each client has a rate; the core has so many permits, from a file that may change while it runs; the downstream is asked
//! through a circuit breaker and a limit that finds itself, and what it does not give comes from a cache. The database has
//! a permit for each connection, and background jobs a worker pool.
//!
//! ```text
//! cargo run --release --example service --features axum,pool,policy-file              # http://127.0.0.1:8080/limits
//! cargo run --release --example service --features axum,pool,policy-file -- --load 3  # finds out what it bears, and sends more
//! ```
//!
//! `--load N` looks for the rate at which the core is 80 % in use, and sends N times as much over real sockets, with the
//! clients and paths of a real web server's day. Exit code 1: more than 0.2 % failed other than by a refusal, more was in flight
//! than the limit, a refusal had no `Retry-After`, or a client that kept to it was refused again.

mod app;
mod downstream;
mod limits;
mod load;
mod page;
mod store;
mod trace;

use clap::Parser;
use limits::{Failure, Limits};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tollgate::policy::file::Format;
use tollgate::policy::spec::PolicySpec;

/// Serves behind limits, and shows how they stand.
#[derive(Parser)]
struct Args {
    /// Listens on this port of the loopback interface; 0 for any that is free.
    #[arg(long, default_value_t = 8_080)]
    port: u16,
    /// The policy of the core: a TOML or JSON file, which is read again when it changes.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Sends N times the rate at which the core is 80 % in use, and ends with a report.
    #[arg(long, value_name = "N", value_parser = positive)]
    load: Option<f64>,
    /// How long the load lasts, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Without --load: sends itself so many requests a second, so that there is something to see; 0 for none.
    #[arg(long, value_name = "RATE", default_value_t = 200)]
    traffic: u32,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times > 0.0 && times <= 100.0 => Ok(times),
        _ => Err(format!("`{text}` is no number above 0 and up to 100")),
    }
}

fn read_policy(path: Option<&Path>) -> Result<PolicySpec, Failure> {
    Ok(match path {
        Some(path) => PolicySpec::read(path)?,
        None => PolicySpec::parse(include_str!("policy.toml"), Format::Toml)?,
    })
}

/// Applies each version of the file that is none the worse for wear; says why of the others.
async fn follow(path: PathBuf, limits: Arc<Limits>) {
    let modified = |path: &Path| -> Option<SystemTime> { std::fs::metadata(path).ok()?.modified().ok() };
    let mut known = modified(&path);
    loop {
        sleep(Duration::from_millis(500)).await;
        let now = modified(&path);
        if now == known {
            continue;
        }
        known = now;
        match PolicySpec::read(&path)
            .map_err(Failure::from)
            .and_then(|spec| Ok(limits.core.apply(spec)?))
        {
            Ok(_) => println!("policy: version {} is in force", limits.core.limiter().version()),
            Err(error) => eprintln!("policy: {error}; the version before stays in force"),
        }
    }
}

async fn run(args: Args) -> Result<bool, Failure> {
    let limits = Arc::new(Limits::new(&read_policy(args.policy.as_deref())?)?);
    let folder = tempfile::tempdir()?;
    let store = Arc::new(store::Store::open(&folder.path().join("hits.sqlite"))?);
    let listener = TcpListener::bind(("127.0.0.1", args.port)).await?;
    let address = listener.local_addr()?;
    let app = app::router(Arc::clone(&limits), store).into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    if let Some(path) = args.policy {
        tokio::spawn(follow(path, Arc::clone(&limits)));
    }
    println!("http://{address}/limits");

    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/nasa_19950801_replay.csv.gz");
    let driver = load::Driver::new(address, trace::read(&data).map_err(|error| error.to_string())?);
    let good = match args.load {
        Some(times) => load::report(&driver, &limits, times, Duration::from_secs(args.seconds)).await?,
        None => {
            if args.traffic > 0 {
                let rate = f64::from(args.traffic);
                tokio::spawn(async move { driver.run(rate, Duration::from_secs(86_400 * 365)).await });
            }
            tokio::signal::ctrl_c().await?;
            true
        }
    };
    serving.abort();
    Ok(good)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}
