//! Tenants whose limits all processes share: started twice, two processes have ten calls a second together.
//!
//! ```sh
//! redis-server --port 6399 --save '' &
//! cargo run -p tollgate-examples --example shared_tenants --features redis -- redis://127.0.0.1:6399
//! cargo run -p tollgate-examples --example shared_tenants --features redis -- redis://127.0.0.1:6399   # in another terminal
//! ```
//!
//! Without an address it runs over a store in memory. A second argument is the number of seconds, ten if there is none.
//! It ends with an error if this process alone was admitted more often than all may be.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tollgate::remote::{Backend, Key, KeyedLimits, Memory, Remote, RemoteLeg};
use tollgate::{Ask, Clock, Cost, Policy, Quota};

const TOKENS: Cost = Cost::new("tokens");
const BURST: u64 = 10;
const PER_SECOND: u64 = 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shared_tenants: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let (address, seconds) = (words.next(), words.next().map_or(Ok(10), |seconds| seconds.parse()));
    let seconds = seconds.map_err(|_| "the second argument is a number of seconds")?;
    match address {
        None => share(Arc::new(Memory::new(&Clock::real())), seconds).await,
        #[cfg(feature = "redis")]
        Some(address) => share(tollgate_stores::Redis::options(&*address).connect()?, seconds).await,
        #[cfg(not(feature = "redis"))]
        Some(address) => Err(format!("{address} needs `--features redis`").into()),
    }
}

async fn share<B: Backend>(store: B, seconds: u64) -> Result<(), Failure> {
    let free = [
        RemoteLeg::rate("calls", Quota::per_second(PER_SECOND).burst(BURST)),
        RemoteLeg::rate("tokens", Quota::per_minute(30_000).burst(5_000)).per(TOKENS),
    ];
    let tenants = Remote::keyed(Key::new("shared-tenants")?, KeyedLimits::new(100_000, "free", free)).spawn(store)?;
    // Waits in order. To be refused at once, ask the key itself: `acquire_now`.
    let acme = Policy::new(tenants.get("acme")?);

    let (start, mut all) = (Instant::now(), 0);
    for second in 1..=seconds {
        let end = start + Duration::from_secs(second);
        let mut admitted = 0;
        while let Ok(permit) = timeout_at(end, acme.admit(Ask::one().cost(TOKENS, 100))).await {
            // The call has taken less than was thought: the rest goes back to all.
            permit?.settle(TOKENS, 40)?;
            admitted += 1;
        }
        all += admitted;
        println!("second {second}: {admitted} calls admitted");
        let most = BURST + PER_SECOND * (start.elapsed().as_secs() + 1);
        if all > most {
            return Err(format!("{all} calls were admitted, and all processes may have {most}").into());
        }
    }
    Ok(())
}
