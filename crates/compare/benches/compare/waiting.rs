//! Waiting for a rate in real time, beside governor's `until_ready`: how long, how many polls, in what order, and how
//! close to the rate.

use crate::harness::Rows;
use crate::rate::governor;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tollgate::{Policy, Quota, TokenBucket};

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), future)
}

/// Polls `future` to its end and adds up the polls.
async fn counting<F: Future>(future: F, polls: &Cell<u64>) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

/// The results of waiters that came at once.
struct Crowd {
    seconds: f64,
    polls_each: f64,
    out_of_order: f64,
}

fn crowd<F: Future<Output = ()> + 'static>(waiters: usize, wait: impl Fn() -> F + 'static) -> Crowd {
    block_on(async {
        let wait = Rc::new(wait);
        let polls = Rc::new(Cell::new(0));
        let order = Rc::new(RefCell::new(Vec::new()));
        let start = Instant::now();
        let tasks: Vec<_> = (0..waiters)
            .map(|number| {
                let (wait, polls, order) = (Rc::clone(&wait), Rc::clone(&polls), Rc::clone(&order));
                tokio::task::spawn_local(async move {
                    counting(wait(), &polls).await;
                    order.borrow_mut().push(number);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        let out_of_order = order.borrow().windows(2).filter(|pair| pair[0] > pair[1]).count();
        Crowd {
            seconds: start.elapsed().as_secs_f64(),
            polls_each: polls.get() as f64 / waiters as f64,
            out_of_order: out_of_order as f64,
        }
    })
}

/// The error of the rate, in percent, when many callers ask repeatedly for `span`.
fn rate_error<F: Future<Output = ()> + 'static>(
    rate: f64,
    waiters: usize,
    span: Duration,
    wait: impl Fn() -> F + 'static,
) -> f64 {
    block_on(async {
        let wait = Rc::new(wait);
        let admitted = Rc::new(Cell::new(0u64));
        // The first is the burst: the span starts with it.
        wait().await;
        let start = Instant::now();
        let last = Rc::new(Cell::new(start));
        let tasks: Vec<_> = (0..waiters)
            .map(|_| {
                let (wait, admitted, last) = (Rc::clone(&wait), Rc::clone(&admitted), Rc::clone(&last));
                tokio::task::spawn_local(async move {
                    while start.elapsed() < span {
                        wait().await;
                        admitted.set(admitted.get() + 1);
                        last.set(Instant::now());
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        let seconds = last.get().duration_since(start).as_secs_f64();
        (admitted.get() as f64 / (rate * seconds) - 1.0) * 100.0
    })
}

fn ours(rate: u64) -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    let policy = Policy::new(TokenBucket::new(Quota::per_second(rate).burst(1)));
    move || {
        let policy = policy.clone();
        Box::pin(async move {
            drop(policy.admit(1).await.expect("nothing bounds the wait"));
        })
    }
}

fn governors(rate: u32) -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    let limiter = std::sync::Arc::new(governor(rate, 1));
    move || {
        let limiter = std::sync::Arc::clone(&limiter);
        Box::pin(async move { limiter.until_ready().await })
    }
}

/// It counts in milliseconds, so that a burst of one admits at most 1,000 a second.
fn leaky_buckets(rate: usize) -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    let limiter = leaky_bucket::RateLimiter::builder()
        .max(1)
        .initial(1)
        .refill(rate / 1_000)
        .interval(Duration::from_millis(1))
        .build();
    let limiter = std::sync::Arc::new(limiter);
    move || {
        let limiter = std::sync::Arc::clone(&limiter);
        Box::pin(async move { limiter.acquire_one().await })
    }
}

pub(crate) fn rows(rows: &Rows) {
    if rows.wants("waiting/1000-at-1000") {
        let (tollgate, governor) = (crowd(1_000, ours(1_000)), crowd(1_000, governors(1_000)));
        let row = |name, figure: fn(&Crowd) -> f64| {
            rows.figures(
                name,
                &[("tollgate", figure(&tollgate)), ("governor", figure(&governor))],
            );
        };
        row("waiting/1000-at-1000/s-seconds", |crowd| crowd.seconds);
        row("waiting/1000-at-1000/s-polls-each", |crowd| crowd.polls_each);
        row("waiting/1000-at-1000/s-out-of-order", |crowd| crowd.out_of_order);
    }
    for (name, waiters) in [
        ("waiting/5000/s-1-waiter-error-%", 1),
        ("waiting/5000/s-32-waiters-error-%", 32),
    ] {
        if rows.wants(name) {
            let span = Duration::from_secs(3);
            rows.figures(
                name,
                &[
                    ("tollgate", rate_error(5_000.0, waiters, span, ours(5_000))),
                    ("governor", rate_error(5_000.0, waiters, span, governors(5_000))),
                    ("leaky-bucket", rate_error(5_000.0, waiters, span, leaky_buckets(5_000))),
                ],
            );
        }
    }
}
