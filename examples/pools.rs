//! A folder of accounts is summed up by tasks that wait for tasks, over three connections, on two threads.
//!
//! Each account asks the database for its balance, and waits for the accounts below it. Two pools share the work: one walks the
//! tree, whose tasks lend their slots while they wait; the other has the connections, one to each task at a time. A connection whose
//! task panics is made anew. At the end a task waits for one that needs the permit it holds, and is told so.
//!
//! ```text
//! cargo run --example pools --features pool -- --depth 6
//! ```

use clap::Parser;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tollgate::pool::{StatefulPool, TaskError};
use tollgate::{Policy, Semaphore, WorkerPool};

/// Sums up a tree of accounts.
#[derive(Parser)]
struct Args {
    /// How many levels of accounts there are below the first, each with three below it.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=9))]
    depth: u32,
}

/// A connection to a database, which counts its queries.
struct Connection {
    queries: Arc<AtomicUsize>,
}

impl Connection {
    fn balance(&mut self, depth: u32) -> u64 {
        self.queries.fetch_add(1, Ordering::Relaxed);
        if depth > 9 {
            // As a panic would, without a word on the terminal.
            resume_unwind(Box::new("there is no such account"));
        }
        u64::from(depth) + 1
    }
}

/// The sum of an account and those below it.
fn sum(walkers: &WorkerPool, database: &StatefulPool<Connection>, depth: u32) -> u64 {
    let own = database.submit(move |connection| connection.balance(depth)).unwrap();
    // At most two of the accounts below are walked at once.
    let mut below = walkers.group::<u64, TaskError>().limit(2).unwrap();
    for _ in 0..if depth == 0 { 0 } else { 3 } {
        let (walkers, database) = (walkers.clone(), database.clone());
        below.submit(move || Ok(sum(&walkers, &database, depth - 1))).unwrap();
    }
    own.join().unwrap() + below.join().unwrap().into_iter().sum::<u64>()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Args { depth } = Args::parse();
    let (opened, queries) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (opens, asks) = (Arc::clone(&opened), Arc::clone(&queries));
    let database = WorkerPool::builder()
        .workers(3)
        .max_queue(100_000)
        .workers_with(move || {
            opens.fetch_add(1, Ordering::Relaxed);
            let queries = Arc::clone(&asks);
            Connection { queries }
        });
    let database = database.build()?;
    let walkers = WorkerPool::builder().workers(2).max_queue(100_000).build()?;

    let (here, there) = (walkers.clone(), database.clone());
    let total = walkers.run(move || sum(&here, &there, depth))?;
    let accounts: u64 = (0..=depth).map(|level| 3u64.pow(level)).sum();
    let expected: u64 = (0..=depth)
        .map(|level| 3u64.pow(level) * u64::from(depth - level + 1))
        .sum();
    assert_eq!((total, queries.load(Ordering::Relaxed) as u64), (expected, accounts));
    assert!(opened.load(Ordering::Relaxed) <= 3);
    println!("{accounts} accounts hold {total}, over at most 3 connections");

    let (before, failed) = (
        opened.load(Ordering::Relaxed),
        database.run(|connection| connection.balance(100)),
    );
    assert!(matches!(failed, Err(TaskError::Panicked(_))));
    let [one, two, three] = [0; 3].map(|_| database.submit(|connection| connection.balance(0)).unwrap());
    assert_eq!([one.join()?, two.join()?, three.join()?], [1; 3]);
    assert!(opened.load(Ordering::Relaxed) <= before.max(2) + 2);
    println!("a connection whose task panicked was made anew");

    let one_at_a_time = WorkerPool::builder()
        .workers(4)
        .admit_by(Policy::new(Semaphore::new(1)))
        .build()?;
    let here = one_at_a_time.clone();
    let told = one_at_a_time.run(move || here.submit(|| ()).unwrap().join())?;
    assert!(matches!(told, Err(TaskError::WouldDeadlock)));
    println!(
        "a task that waits for one which needs its own permit is told: {}",
        TaskError::WouldDeadlock
    );

    for pool in [&walkers, &*database, &one_at_a_time] {
        assert!(pool.shutdown(Duration::from_secs(10)).is_clean());
    }
    Ok(())
}
