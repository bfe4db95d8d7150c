//! Every limiter of a rate on the same hour of real arrivals, in virtual time.
//!
//! 8,819 requests, 2.6 a second on average and up to 67 in one second, ask for four a second, in the measure that each
//! limiter has. They differ in the admissions: how many, how many at most in any span, and how evenly. Each bound is
//! checked on the instants at which requests were admitted.
//!
//! ```text
//! cargo run --example rates
//! ```

#[allow(unreachable_pub, dead_code)]
#[path = "gateway/trace.rs"]
mod trace;

use std::path::Path;
use std::time::Duration;
use tollgate::{
    Ask, BoxLimiter, FixedWindow, LeakyBucket, Limiter, LimiterExt, ManualClock, Policy, Quota, SlidingLog,
    SlidingWindow, TokenBucket, Warmup,
};

const SECOND: Duration = Duration::from_secs(1);
const TEN: Duration = Duration::from_secs(10);

/// A name, a limiter, and the most that it admits in any span of one second, and in any of ten.
type Row = (&'static str, BoxLimiter, [u64; 2]);

fn limiters(clock: &ManualClock) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let quota = Quota::per_second(4).burst(20);
    let bucket = |quota| TokenBucket::new(quota).on(clock);
    Ok(vec![
        // The burst, and the inflow of the span.
        ("token bucket 4/s burst 20", bucket(quota).boxed(), [24, 60]),
        // Up to two ends of an interval lie in a second.
        (
            "token bucket, by interval",
            bucket(quota.by_interval()).boxed(),
            [24, 60],
        ),
        (
            "two buckets: and 150/min burst 50",
            bucket(quota).and(bucket(Quota::per_minute(150).burst(50))).boxed(),
            [24, 60],
        ),
        // One, and the inflow of the span.
        ("leaky bucket 4/s", LeakyBucket::new(quota).on(clock).boxed(), [5, 41]),
        (
            "leaky bucket, slack 3",
            LeakyBucket::new(quota).on(clock).slack(3)?.boxed(),
            [8, 44],
        ),
        // Twice the limit, across a boundary.
        (
            "fixed window 40 per 10 s",
            FixedWindow::new(40, TEN)?.on(clock).boxed(),
            [80, 80],
        ),
        (
            "sliding window 40 per 10 s",
            SlidingWindow::new(40, TEN)?.on(clock).boxed(),
            [40, 40],
        ),
        (
            "sliding log 40 per 10 s",
            SlidingLog::new(40, TEN)?.on(clock).boxed(),
            [40, 40],
        ),
        (
            "warm-up 4/s in 30 s",
            Warmup::new(quota, TEN * 3)?.on(clock).boxed(),
            [5, 41],
        ),
    ])
}

/// The most instants in any span that is so long, its end not included.
fn most_in(instants: &[u64], span: Duration) -> u64 {
    let span = span.as_nanos() as u64;
    let mut from = 0;
    let counts = instants.iter().enumerate().map(|(index, &at)| {
        while at - instants[from] >= span {
            from += 1;
        }
        index - from + 1
    });
    counts.max().unwrap_or(0) as u64
}

fn row(name: &str, instants: &[u64], arrivals: usize) {
    let gaps = instants.windows(2).map(|pair| pair[1] - pair[0]);
    println!(
        "{name:<36} {:>8} {:>7.1} % {:>8} {:>8} {:>8} ms",
        instants.len(),
        100.0 * (arrivals - instants.len()) as f64 / arrivals as f64,
        most_in(instants, SECOND),
        most_in(instants, TEN),
        gaps.min().unwrap_or(0) / 1_000_000,
    );
}

/// Asks once for each request, when it comes.
fn refusing(limiter: &BoxLimiter, clock: &ManualClock, arrivals: &[u64]) -> Vec<u64> {
    let mut admitted = Vec::new();
    for &at in arrivals {
        clock.advance_to(clock.after(tollgate::Instant::ZERO, Duration::from_nanos(at)));
        match limiter.try_admit(Ask::one()) {
            Ok(permit) => {
                permit.forget();
                admitted.push(at);
            }
            Err(refused) => {
                let wait = refused.retry_after();
                assert!(
                    wait.is_some_and(|wait| !wait.is_zero()),
                    "a rate knows when: {refused:?}"
                );
            }
        }
    }
    admitted
}

/// Lets the requests wait in a queue, up to ten seconds each.
fn delaying(limiter: impl Limiter + 'static, clock: &ManualClock, arrivals: &[u64]) -> Vec<u64> {
    let line = Policy::builder()
        .on(clock)
        .max_wait(TEN)
        .limit(limiter)
        .build()
        .expect("one limiter, on one clock");
    let (line, start) = (&line, clock.now());
    clock.run(async move {
        let requests = arrivals.iter().map(|&at| async move {
            clock.sleep_until(clock.after(start, Duration::from_nanos(at))).await;
            let permit = line.admit(Ask::one()).await.ok()?;
            permit.forget();
            Some(clock.between(start, clock.now()).as_nanos() as u64)
        });
        let admitted = futures::future::join_all(requests).await;
        let mut admitted: Vec<_> = admitted.into_iter().flatten().collect();
        admitted.sort_unstable();
        admitted
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/azure_llm_2023_code.csv.gz");
    let requests = trace::read(&path)?;
    let first = requests.first().map_or(0, |request| request.at);
    let arrivals: Vec<u64> = requests.iter().map(|request| request.at - first).collect();

    println!(
        "{:<36} {:>8} {:>9} {:>8} {:>8} {:>11}",
        "four a second", "admitted", "refused", "in 1 s", "in 10 s", "least gap"
    );
    row("the arrivals", &arrivals, arrivals.len());
    // Each on a clock of its own: the hour starts anew.
    for index in 0..limiters(&ManualClock::new())?.len() {
        let clock = ManualClock::new();
        let (name, limiter, bound) = limiters(&clock)?.swap_remove(index);
        let admitted = refusing(&limiter, &clock, &arrivals);
        row(name, &admitted, arrivals.len());
        assert!(most_in(&admitted, SECOND) <= bound[0], "{name} in a second");
        assert!(most_in(&admitted, TEN) <= bound[1], "{name} in ten seconds");
    }

    let clock = ManualClock::new();
    let admitted = delaying(LeakyBucket::new(Quota::per_second(4)).on(&clock), &clock, &arrivals);
    row("leaky bucket, waiting up to 10 s", &admitted, arrivals.len());
    let even = admitted.windows(2).all(|pair| pair[1] - pair[0] >= 250_000_000);
    assert!(even, "what comes out is at least 250 ms apart");
    Ok(())
}
