//! One semaphore per route, so that a slow route cannot starve the others.
//!
//! A service has eight workers' worth of capacity. Its route `/reports` hangs. Behind one shared semaphore all capacity
//! is soon stuck there; behind one semaphore per route `/reports` fills its own share, and the other routes do not
//! notice. The clock is virtual, so the numbers are exact.
//!
//! ```text
//! cargo run --example bulkhead -- --capacity 8 --requests 50
//! ```

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{Keyed, Semaphore};

/// Sends requests to a slow route and to two quick ones, with one semaphore for all and with one per route.
#[derive(Parser)]
struct Args {
    /// How many requests run at once, in all.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(4..=1_000))]
    capacity: usize,
    /// How many requests each route gets.
    #[arg(long, default_value_t = 50, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    requests: usize,
}

/// Routes, and how long one request takes.
const ROUTES: [(&str, Duration); 3] = [
    ("/reports", Duration::from_secs(30)),
    ("/users", Duration::from_millis(10)),
    ("/health", Duration::from_millis(1)),
];

/// The longest wait of each route, for `requests` each, all sent at once and the slow route's first.
async fn longest_waits(requests: usize, gate: impl Fn(&str) -> Arc<Semaphore>) -> HashMap<&'static str, Duration> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (route, takes) in ROUTES {
        for _ in 0..requests {
            let semaphore = gate(route);
            tasks.spawn(async move {
                let permit = semaphore.acquire().await.expect("it is never closed");
                let waited = start.elapsed();
                sleep(takes).await;
                drop(permit);
                (route, waited)
            });
        }
    }
    let mut waits = HashMap::new();
    for (route, waited) in tasks.join_all().await {
        let longest = waits.entry(route).or_insert(waited);
        *longest = waited.max(*longest);
    }
    waits
}

/// `requests` in rounds of `at_once`: the last round starts when all before it are over.
fn last_round(requests: usize, at_once: usize, takes: Duration) -> Duration {
    takes * ((requests - 1) / at_once) as u32
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let args = Args::parse();

    let shared = Arc::new(Semaphore::new(args.capacity));
    let together = longest_waits(args.requests, |_| Arc::clone(&shared)).await;
    // A quarter for each route, and one for unknown routes: routes come from outside, so there is a bound
    // on how many are kept.
    let share = args.capacity / 4;
    let routes = Keyed::new(ROUTES.len(), move |_: &String| Semaphore::new(share)).overflow(Semaphore::new(share));
    let of = |route: &str| routes.get(route).expect("there is an overflow");
    let known = ROUTES.map(|(route, _)| of(route));
    let apart = longest_waits(args.requests, of).await;

    for (route, takes) in ROUTES {
        println!(
            "{route:10} takes {takes:>6.0?}: waits {:>8.0?} behind one semaphore, {:>8.0?} behind its own",
            together[route], apart[route]
        );
        let expected = last_round(args.requests, share, takes);
        // Its own requests are all that a route waits for; timers round up to a millisecond each round.
        let rounds = args.requests as u32;
        assert!(
            apart[route] >= expected && apart[route] <= expected + Duration::from_millis(1) * rounds,
            "{route}: {expected:?} expected"
        );
    }
    if args.requests >= args.capacity {
        assert!(together["/health"] >= ROUTES[0].1, "it waited for the slow route");
    }
    // As long as they are in use, they stay, and requests of another route share the last.
    for ((route, _), semaphore) in ROUTES.iter().zip(&known) {
        assert!(Arc::ptr_eq(&of(route), semaphore));
        assert_eq!(semaphore.available_permits(), share);
    }
    assert!(Arc::ptr_eq(&of("/made-up-1"), &of("/made-up-2")));
}
