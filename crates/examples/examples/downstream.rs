//! A flaky downstream behind a breaker, an adaptive limit, a retry budget and a fallback, beside the same calls without.
//!
//! A hundred requests a second go to a downstream that answers in 20 ms. From the 10th to the 20th second nine calls in ten
//! time out, after half a second. Each request may be tried three times. Unguarded, the sick downstream is asked three times
//! as often as the well one, and every request waits for three time-outs. Guarded, the breaker opens after a few of them,
//! answers come from a cache, and probes find out when the downstream is back. The clock is virtual, so the numbers are exact.
//!
//! ```text
//! cargo run -p tollgate-examples --example downstream
//! ```

use futures::future::join_all;
use std::cell::RefCell;
use std::time::Duration;
use tollgate::{Clock, Instant, LimiterExt, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};
use tollgate_resilience::shed::RetryBudget;
use tollgate_resilience::{CircuitBreaker, OpenTime};

const SECONDS: usize = 30;
const EACH_SECOND: usize = 100;
const TRIES: usize = 3;

async fn sleep(clock: &Clock, time: Duration) {
    clock.sleep(time).await;
}

fn second(clock: &Clock) -> usize {
    clock.between(Instant::ZERO, clock.now()).as_secs() as usize
}

/// The results of the requests, and of the calls, that began in one second.
#[derive(Clone, Copy, Default)]
struct Tally {
    calls: usize,
    fresh: usize,
    cached: usize,
    failed: usize,
    longest: Duration,
}

/// It says no more than that it did not answer in time.
#[derive(Debug)]
struct TimedOut;

/// An adaptive limit learns from overload, and not from other failures.
fn meaning(result: &Result<&'static str, TimedOut>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(TimedOut) => Outcome::Overload,
    }
}

struct Downstream {
    clock: Clock,
    tallies: RefCell<Vec<Tally>>,
}

impl Downstream {
    fn new(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            tallies: RefCell::new(vec![Tally::default(); 2 * SECONDS]),
        }
    }

    fn tally(&self, second: usize, change: impl FnOnce(&mut Tally)) {
        change(&mut self.tallies.borrow_mut()[second]);
    }

    async fn call(&self, request: usize) -> Result<&'static str, TimedOut> {
        let now = second(&self.clock);
        self.tally(now, |tally| tally.calls += 1);
        let is_sick = (10..20).contains(&now) && !request.is_multiple_of(10);
        sleep(&self.clock, Duration::from_millis(if is_sick { 500 } else { 20 })).await;
        if is_sick { Err(TimedOut) } else { Ok("fresh") }
    }

    /// All requests, each begun at its instant.
    async fn serve(&self, request: impl AsyncFn(usize) -> Result<&'static str, TimedOut>) -> Vec<Tally> {
        let all = (0..SECONDS * EACH_SECOND).map(async |number| {
            sleep(&self.clock, Duration::from_secs(1) / EACH_SECOND as u32 * number as u32).await;
            let began = self.clock.now();
            let answer = request(number).await;
            self.tally(number / EACH_SECOND, |tally| {
                match answer {
                    Ok("fresh") => tally.fresh += 1,
                    Ok(_) => tally.cached += 1,
                    Err(TimedOut) => tally.failed += 1,
                }
                tally.longest = tally.longest.max(self.clock.between(began, self.clock.now()));
            });
        });
        join_all(all).await;
        self.tallies.take()
    }
}

/// Tried three times, whatever happens.
fn unguarded() -> Vec<Tally> {
    let clock = ManualClock::new();
    let downstream = Downstream::new(&clock);
    clock.run(downstream.serve(async |number| {
        for _ in 1..TRIES {
            if let Ok(answer) = downstream.call(number).await {
                return Ok(answer);
            }
        }
        downstream.call(number).await
    }))
}

fn guarded() -> Result<Vec<Tally>, Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let downstream = Downstream::new(&clock);
    let breaker = CircuitBreaker::builder()
        .time_window(Duration::from_secs(5))
        .minimum_calls(20)
        .failure_rate(0.5)
        .probes(5)
        .open_for(OpenTime::fixed(Duration::from_secs(1)))
        .seed(1)
        .on(&clock)
        .build()?;
    let limit = Adaptive::builder(Semaphore::new(20))
        .law(Aimd::new())
        .bounds(2, 100)
        .on(&clock)
        .build()?;
    // A refused request has a fallback, so it does not wait. The breaker comes first: it is asked before a permit
    // of the limit is taken, and a probe that the limit then refuses comes back.
    let policy = Policy::builder()
        .limit(breaker)
        .limit(limit)
        .max_queue(0)
        .on(&clock)
        .build()?;
    let retries = RetryBudget::new(0.1, 10)?;

    let attempt = async |number| {
        policy
            .run_classified(1, || downstream.call(number), meaning)
            .or_else(async |_| Ok("cached"))
            .await
    };
    let tallies = clock.run(downstream.serve(async |number| {
        retries.deposit();
        let mut left = TRIES;
        loop {
            left -= 1;
            match attempt(number).await {
                Ok(answer) => return Ok(answer),
                Err(TimedOut) if left > 0 && retries.try_admit(1).is_ok() => {}
                Err(TimedOut) => return Ok("cached"),
            }
        }
    }));
    Ok(tallies)
}

fn sum(tallies: &[Tally]) -> Tally {
    tallies.iter().fold(Tally::default(), |sum, tally| Tally {
        calls: sum.calls + tally.calls,
        fresh: sum.fresh + tally.fresh,
        cached: sum.cached + tally.cached,
        failed: sum.failed + tally.failed,
        longest: sum.longest.max(tally.longest),
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| | seconds | calls | fresh | cached | failed | longest |\n|---|---|---:|---:|---:|---:|---:|");
    let ways = [("unguarded", unguarded()), ("guarded", guarded()?)];
    for (name, tallies) in &ways {
        for (from, to) in [(0, 10), (10, 20), (20, 22), (22, 30)] {
            let Tally {
                calls,
                fresh,
                cached,
                failed,
                longest,
            } = sum(&tallies[from..to]);
            println!("| {name} | {from} to {to} | {calls} | {fresh} | {cached} | {failed} | {longest:?} |");
        }
    }

    let sick = |way: usize| sum(&ways[way].1[10..20]);
    assert!(
        sick(0).failed > 800,
        "without a guard all fail but those whose last try is late enough"
    );
    assert!(sick(0).calls > 2_000, "and are tried three times each");
    assert_eq!(sick(1).failed, 0, "with one, refused requests get the cached answer");
    assert!(sick(1).calls < 200, "the sick downstream is left alone");
    // Back within two seconds, and as if nothing had been.
    for (_, tallies) in &ways {
        let well = sum(&tallies[22..30]);
        assert_eq!((well.calls, well.fresh), (800, 800));
    }
    Ok(())
}
