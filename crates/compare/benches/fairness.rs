//! What each order of a policy costs and buys. First 64 tasks of one thread take turns at 4 permits, each held across a
//! few yields, for a while; there a hand-over is cheap. Then 4 threads take turns at one permit of a semaphore, each held for a
//! moment; there a hand-over is a switch of threads.
//!
//! `cargo bench -p tollgate-compare --bench fairness`. Jain's index is 1 when all tasks got the same, 1/64 when one got everything; the longest
//! wait is counted in turns of others, which no machine makes faster or slower.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::{Ask, Clock, Order, Policy, Semaphore};

const TASKS: usize = 64;
const SPAN: Duration = Duration::from_millis(500);

struct Seen {
    turns: Vec<u64>,
    longest_wait: u64,
    seconds: f64,
}

/// Runs the tasks, each of class `task % 4`, for a while.
fn run(policy: Policy<Semaphore>) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let turns = Rc::new(RefCell::new(vec![0u64; TASKS]));
    let (total, longest) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let start = Instant::now();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (policy, turns) = (policy.clone(), Rc::clone(&turns));
                let (total, longest) = (Rc::clone(&total), Rc::clone(&longest));
                tokio::task::spawn_local(async move {
                    while start.elapsed() < SPAN {
                        let before = total.get();
                        let ask = Ask::one().class(task as u64 % 4);
                        let permit = policy.admit(ask).await.expect("the queue has no bound");
                        longest.set(longest.get().max(total.get() - before));
                        total.set(total.get() + 1);
                        turns.borrow_mut()[task] += 1;
                        for _ in 0..1 + task % 3 {
                            tokio::task::yield_now().await;
                        }
                        drop(permit);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    let turns = turns.borrow().clone();
    Seen {
        turns,
        longest_wait: longest.get(),
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Runs threads that take turns at what `acquire` hands out, each holding it for a moment.
fn run_threads<P>(acquire: impl Fn() -> P + Sync) -> Seen {
    const THREADS: usize = 4;
    let total = AtomicU64::new(0);
    let start = Instant::now();
    let each: Vec<(u64, u64)> = thread::scope(|scope| {
        let worker = || {
            let (mut turns, mut longest) = (0, 0);
            while start.elapsed() < SPAN {
                let before = total.load(Ordering::Relaxed);
                let permit = acquire();
                let now = total.fetch_add(1, Ordering::Relaxed);
                longest = longest.max(now - before);
                turns += 1;
                for round in 0..100 {
                    black_box(round);
                }
                drop(permit);
            }
            (turns, longest)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .collect()
    });
    Seen {
        turns: each.iter().map(|(turns, _)| *turns).collect(),
        longest_wait: each.iter().map(|(_, longest)| *longest).max().unwrap_or(0),
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Jain, Chiu and Hawe, 1984.
fn jain(turns: &[u64]) -> f64 {
    let (sum, squares) = turns.iter().fold((0.0, 0.0), |(sum, squares), &turns| {
        let turns = turns as f64;
        (sum + turns, squares + turns * turns)
    });
    sum * sum / (turns.len() as f64 * squares)
}

fn main() {
    let priority = Order::Priority {
        classes: 4,
        patience: 16,
    };
    let orders = [
        ("fifo", Order::Fifo),
        ("lifo", Order::Lifo),
        ("priority, patience 16", priority),
        ("round robin", Order::RoundRobin),
        ("shares 8:4:2:1", Order::Shares(vec![8, 4, 2, 1])),
    ];
    println!(
        "{:<24} {:>12} {:>8} {:>14}   turns by class, %",
        "order", "turns/s", "Jain", "longest wait"
    );
    for (name, order) in orders {
        let policy = Policy::builder()
            .limit(Semaphore::new(4))
            .order(order)
            .on(&Clock::real());
        let seen = run(policy.build().expect("the order has classes"));
        let total: u64 = seen.turns.iter().sum();
        let classes: Vec<String> = (0..4)
            .map(|class| {
                let turns: u64 = seen.turns.iter().skip(class).step_by(4).sum();
                format!("{:.0}", turns as f64 / total as f64 * 100.0)
            })
            .collect();
        println!(
            "{name:<24} {:>12.0} {:>8.3} {:>14}   {}",
            total as f64 / seen.seconds,
            jain(&seen.turns),
            seen.longest_wait,
            classes.join(" ")
        );
    }

    println!(
        "\n{:<24} {:>12} {:>8} {:>14}",
        "4 threads, 1 permit", "turns/s", "Jain", "longest wait"
    );
    let semaphore = Semaphore::new(1);
    print("Semaphore", &run_threads(|| semaphore.blocking_acquire()));
    let lock = parking_lot::Mutex::new(());
    print("parking_lot::Mutex", &run_threads(|| lock.lock()));
}

fn print(name: &str, seen: &Seen) {
    let total: u64 = seen.turns.iter().sum();
    println!(
        "{name:<24} {:>12.0} {:>8.3} {:>14}",
        total as f64 / seen.seconds,
        jain(&seen.turns),
        seen.longest_wait
    );
}
