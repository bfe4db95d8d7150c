//! A service behind three levels of protection, and a page on which its operator sees them work.
//!
//! Each client has a rate. The core has a number of permits, from a file that may change while it runs. The downstream is asked
//! through a circuit breaker and an adaptive limit; its failures are answered from a cache. The database has a permit for each
//! connection, and background jobs a worker pool.
//!
//! Read `app.rs` first, where the layers are put on, and then `limits.rs`, which has the limits of each. The answer to a
//! client: `curl -i http://127.0.0.1:8080/index.html`.
//!
//! ```text
//! cargo run --release -p tollgate-examples --example service              # http://127.0.0.1:8080/limits
//! cargo run --release -p tollgate-examples --example service -- --load 3  # finds out what it bears, and sends more
//! ```
//!
//! `--load N` looks for the rate at which the core is 80 % in use, and sends N times as much over real sockets, with the
//! clients and paths of a real web server's day. Exit code 1: 0.2 % or more failed other than by a refusal, more was in flight
//! than the limit, a refusal had no `Retry-After`, a client that kept to that of a 429 was refused by its rate again, or one
//! that kept to that of a 503 was refused again at all: a waiting room keeps a place for it.

mod app;
mod downstream;
mod judge;
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
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_config::{FileSource, Format, PolicySpec, Reload};

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
    /// An answer that has not come after PATIENCE seconds has failed. A busy machine needs more.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// Without --load: sends itself RATE requests a second, so that there is something to see; 0 for none.
    #[arg(long, value_name = "RATE", default_value_t = 200)]
    traffic: u32,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times > 0.0 && times <= 100.0 => Ok(times),
        _ => Err(format!("`{text}` is no number above 0 and up to 100")),
    }
}

/// The policy of the core, and where its next versions come from: the file that was named, or none.
fn read_policy(path: Option<PathBuf>) -> Result<(PolicySpec, Option<FileSource<PolicySpec>>), Failure> {
    Ok(match path {
        Some(path) => {
            let (spec, source) = FileSource::open(path)?;
            (spec, Some(source))
        }
        None => (tollgate_config::parse(include_str!("policy.toml"), Format::Toml)?, None),
    })
}

async fn run(args: Args) -> Result<bool, Failure> {
    let (policy, source) = read_policy(args.policy)?;
    let limits = Arc::new(Limits::new(&policy)?);
    let folder = tempfile::tempdir()?;
    let store = Arc::new(store::Store::open(&folder.path().join("hits.sqlite"))?);
    let listener = TcpListener::bind(("127.0.0.1", args.port)).await?;
    let address = listener.local_addr()?;
    let app = app::router(Arc::clone(&limits), store).into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    if let Some(source) = source {
        // A mistake is told with its line and column, and the version before stays in force.
        let (core, source) = (limits.core.clone(), source.watch()?);
        tokio::spawn(async move {
            let said = |event| match event {
                Ok(version) => println!("policy: version {version} is in force"),
                Err(error) => println!("policy: {error}"),
            };
            core.follow(source, said).await;
        });
    }
    println!("http://{address}/limits");

    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/nasa_19950801_replay.csv.gz");
    let trace = trace::read(&data).map_err(|error| error.to_string())?;
    let driver = load::Driver::new(address, trace, Duration::from_secs(args.patience));
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
