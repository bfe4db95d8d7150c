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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::Semaphore;

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

/// A semaphore per key, made when the key is first seen. Keys come from outside, so there is a bound on how many are
/// kept: whoever comes with another one shares the last.
struct Bulkhead {
    share: usize,
    most: usize,
    routes: Mutex<HashMap<String, Arc<Semaphore>>>,
    others: Arc<Semaphore>,
}

impl Bulkhead {
    fn new(share: usize, most: usize) -> Self {
        Self {
            share,
            most,
            routes: Mutex::default(),
            others: Arc::new(Semaphore::new(share)),
        }
    }

    fn of(&self, route: &str) -> Arc<Semaphore> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = routes.get(route) {
            return Arc::clone(known);
        }
        if routes.len() >= self.most {
            return Arc::clone(&self.others);
        }
        let semaphore = Arc::new(Semaphore::new(self.share));
        routes.insert(route.into(), Arc::clone(&semaphore));
        semaphore
    }
}

/// The longest wait of each route, for `requests` each, all sent at once and the slow route's first.
async fn longest_waits(requests: usize, gate: impl Fn(&str) -> Arc<Semaphore>) -> HashMap<&'static str, Duration> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (route, takes) in ROUTES {
        for _ in 0..requests {
            let semaphore = gate(route);
            tasks.spawn(async move {
                let permit = semaphore.acquire().await.expect("nobody closes it");
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
    // A quarter for each route, and one for those that nobody has heard of.
    let share = args.capacity / 4;
    let bulkhead = Bulkhead::new(share, ROUTES.len());
    let apart = longest_waits(args.requests, |route| bulkhead.of(route)).await;

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
    assert!(Arc::ptr_eq(&bulkhead.of("/users"), &bulkhead.of("/users")));
    assert!(Arc::ptr_eq(&bulkhead.of("/made-up-1"), &bulkhead.of("/made-up-2")));
    for (route, _) in ROUTES {
        assert_eq!(bulkhead.of(route).available_permits(), share);
    }
}
