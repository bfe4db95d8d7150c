//! The gateway's policy with its budget shared by three processes in one Redis, and an audit of what they did together.
//!
//! ```sh
//! cargo run -p tollgate-examples --example gateway_shared           # three machines in one process, over memory
//! cargo run -p tollgate-examples --example gateway_shared --features redis -- --redis redis://127.0.0.1:6379/
//! ```
//!
//! A Redis that was just started grants permits after ten seconds: give it `--seconds 13`.
//!
//! Each process spends what it was given in blocks. So the store is given a smaller burst: a block less for each process. The
//! audit looks at every span of time, from what all of them have written down on one clock, and fails if the budget was
//! exceeded in any of them.

mod audit;

use audit::{Admission, Budget};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{Backend, Key, Memory, Prefetch, Remote, RemoteError};
use tollgate::{Ask, Clock, Cost, Limiter, LimiterExt, Policy, Quota};

const TOKENS: Cost = Cost::new("tokens");
const PROCESSES: u64 = 3;
const TASKS: u64 = 24;

/// What all processes together may do.
const BUDGET: Budget = Budget {
    calls: (200, 60),
    tokens: (100_000, 60_000),
    window: (260, Duration::from_secs(1)),
    in_flight: 24,
};
/// The largest blocks: of calls, and of tokens.
const BLOCKS: (u64, u64) = (8, 10_000);

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gateway_shared: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Failure> {
    let (mut address, mut worker, mut seconds) = (None, None, 3);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match &*word {
            "--redis" => address = Some(value),
            "--seconds" => {
                seconds = value
                    .parse::<u64>()
                    .map_err(|_| format!("--seconds {value} is no number"))?;
            }
            "--worker" => worker = Some(PathBuf::from(value)),
            _ => return Err(format!("{word} is unknown; there are --redis ADDRESS and --seconds N").into()),
        }
    }
    let time = Duration::from_secs(seconds.clamp(1, 3_600));
    if let (Some(path), Some(address)) = (&worker, &address) {
        let admitted = runtime()?.block_on(worker_at(address, time))?;
        audit::write(path, &admitted)?;
        return Ok(true);
    }
    let admitted = match &address {
        Some(address) => processes(address, seconds)?,
        None => machines(time)?,
    };
    Ok(audit::report(&BUDGET, &admitted))
}

/// Three machines in this process, over a store in memory.
fn machines(time: Duration) -> Result<Vec<Admission>, Failure> {
    println!("no --redis: three machines in one process, over a store in memory");
    runtime()?.block_on(async {
        let store = Arc::new(Memory::new(&Clock::real()));
        let mut machines = tokio::task::JoinSet::new();
        for _ in 0..PROCESSES {
            machines.spawn(serve(shared(&Arc::clone(&store))?, time));
        }
        let mut admitted = Vec::new();
        for machine in machines.join_all().await {
            admitted.extend(machine?);
        }
        Ok(admitted)
    })
}

/// Three processes of this program.
fn processes(address: &str, seconds: u64) -> Result<Vec<Admission>, Failure> {
    println!("three processes, Redis at {address}");
    let folder = std::env::temp_dir().join(format!("gateway_shared.{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let admitted = processes_in(&folder, address, seconds);
    std::fs::remove_dir_all(&folder)?;
    admitted
}

fn processes_in(folder: &Path, address: &str, seconds: u64) -> Result<Vec<Admission>, Failure> {
    let program = std::env::current_exe()?;
    let mut children = Vec::new();
    for n in 0..PROCESSES {
        let path = folder.join(n.to_string());
        let mut command = Command::new(&program);
        command.args(["--redis", address]);
        command.args(["--seconds", &seconds.to_string()]);
        children.push((command.arg("--worker").arg(&path).spawn()?, path));
    }
    let mut admitted = Vec::new();
    for (mut child, path) in children {
        if !child.wait()?.success() {
            return Err("a process has failed".into());
        }
        admitted.extend(audit::read(&path)?);
    }
    Ok(admitted)
}

#[cfg(feature = "redis")]
async fn worker_at(address: &str, time: Duration) -> Result<Vec<Admission>, Failure> {
    serve(shared(&tollgate_stores::Redis::options(address).connect()?)?, time).await
}

#[cfg(not(feature = "redis"))]
async fn worker_at(_: &str, _: Duration) -> Result<Vec<Admission>, Failure> {
    Err("--redis needs the feature `redis`".into())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// All of the budget lies in the store: the share of it that is left when each process has a block.
fn shared<B: Backend + Clone>(store: &B) -> Result<Policy<impl Limiter + use<B>>, Failure> {
    let left = |burst: u64, block: u64| burst - PROCESSES * block;
    let key = |name: &str| -> Result<Key, RemoteError> { Key::new(format!("gateway:{name}")) };
    let (calls, tokens) = BLOCKS;
    let quota = |(rate, burst): (u64, u64), block| Quota::per_second(rate).burst(left(burst, block));
    let (window, length) = BUDGET.window;
    let prefetch = Prefetch {
        expiry: Duration::from_millis(50),
        ..Prefetch::up_to(calls)
    };
    let calls_leg = Remote::rate(key("calls")?, quota(BUDGET.calls, calls)).prefetch(prefetch);
    let tokens_leg = Remote::rate(key("tokens")?, quota(BUDGET.tokens, tokens)).prefetch(Prefetch::up_to(tokens));
    let window_leg = Remote::window(key("window")?, left(window, calls), length).prefetch(prefetch);
    let in_flight = Remote::permits(key("in-flight")?, BUDGET.in_flight);
    let policy = Policy::builder()
        .limit(calls_leg.spawn(store.clone())?.named("calls"))
        .limit(tokens_leg.spawn(store.clone())?.per(TOKENS).named("tokens"))
        .limit(window_leg.spawn(store.clone())?.named("window"))
        .limit(in_flight.spawn(store.clone())?.named("in flight"))
        .max_wait(Duration::from_secs(10))
        .build()?;
    Ok(policy)
}

/// One process: tasks that want more than there is, for some time.
async fn serve(policy: Policy<impl Limiter + 'static>, time: Duration) -> Result<Vec<Admission>, Failure> {
    let policy = Arc::new(policy);
    let end = audit::now() + time;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let policy = Arc::clone(&policy);
        tasks.spawn(async move {
            let mut admitted = Vec::new();
            for round in 0.. {
                if audit::now() >= end {
                    break;
                }
                let tokens = 200 + 90 * ((task * 7 + round * 13) % 20);
                let Ok(permit) = policy.admit(Ask::one().cost(TOKENS, tokens)).await else {
                    continue;
                };
                let from = audit::now();
                tokio::time::sleep(Duration::from_millis(5 + (task + round * 11) % 60)).await;
                let until = audit::now();
                drop(permit);
                admitted.push(Admission { from, until, tokens });
            }
            admitted
        });
    }
    Ok(tasks.join_all().await.into_iter().flatten().collect())
}
