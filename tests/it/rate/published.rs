//! What other projects publish of their limiters, and exact numbers for real traffic, in virtual time.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use tollgate::{Instant, LeakyBucket, ManualClock, Policy, Quota, SlidingLog, SlidingWindow, TokenBucket};
use tollgate::{LimiterExt, Reason, Warmup};

const SECOND: Duration = Duration::from_secs(1);

fn at(clock: &ManualClock, since: Duration) {
    clock.advance_to(clock.after(Instant::ZERO, since));
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// .NET: one permit in a window of two segments, and three in one of three. The segmented window is a segment later than
/// published: the published one lets more through than the limit within one window.
#[test]
fn a_sliding_window_admits_as_published() {
    let ticks = |admits: &dyn Fn() -> bool, clock: &ManualClock| -> Vec<bool> {
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(admits());
            clock.advance(SECOND);
        }
        seen
    };
    let clock = ManualClock::new();
    let log = SlidingLog::new(1, SECOND * 2).unwrap().on(&clock);
    assert_eq!(
        ticks(&|| log.try_acquire(1).is_ok(), &clock),
        [true, false, true, false]
    );
    let window = SlidingWindow::new(1, SECOND * 2)
        .unwrap()
        .segments(2)
        .unwrap()
        .on(&clock);
    assert_eq!(
        ticks(&|| window.try_acquire(1).is_ok(), &clock),
        [true, false, false, true]
    );

    let clock = ManualClock::new();
    let log = SlidingLog::new(3, SECOND * 3).unwrap().on(&clock);
    let queue = Policy::builder().max_queue(1).limit(log).build().unwrap();
    clock.run(async {
        queue.try_admit(2).unwrap().forget();
        let (first, second) = futures::join!(queue.admit(2), queue.admit(2));
        assert_eq!(second.unwrap_err().reason(), Reason::QueueFull);
        first.unwrap().forget();
        assert_eq!(clock.elapsed(), SECOND * 3);
    });
}

/// Guava: two a second, warmed up in four seconds, three times as slow when cold.
#[test]
fn a_cold_limiter_warms_up_as_published() {
    let clock = ManualClock::new();
    let warmup = Warmup::new(Quota::per_second(2), SECOND * 4).unwrap().on(&clock);
    let mut waits = Vec::new();
    for _ in 0..8 {
        warmup.try_acquire(1).unwrap();
        let wait = warmup.time_until(1).unwrap();
        waits.push(wait);
        clock.advance(wait);
    }
    assert_eq!(waits, [1_375, 1_125, 875, 625, 500, 500, 500, 500].map(millis));
}

/// Sentinel: rates by how many tokens are stored above the warning line, and its two examples of the curve.
#[test]
fn the_rate_follows_the_published_curve() {
    let clock = ManualClock::new();
    let per_second = |warmup: &Warmup| 1e9 / warmup.interval().unwrap().as_nanos() as f64;
    // At 10 a second over 10 s: 100 stored when cold, 50 of them above the line.
    let warmup = Warmup::new(Quota::per_second(10), SECOND * 10).unwrap().on(&clock);
    for rate in [10.0 / 3.0, 5.0, 10.0, 10.0] {
        assert!(
            (per_second(&warmup) - rate).abs() < 1e-6,
            "{} is not {rate}",
            per_second(&warmup)
        );
        warmup.force_acquire(25);
    }
    // At 100 a second over 10 s: 1,000 stored, 500 of them above the line.
    let warmup = Warmup::new(Quota::per_second(100), SECOND * 10).unwrap().on(&clock);
    for (taken, rate) in [(250, 100.0 / 3.0), (250, 50.0), (500, 100.0), (1, 100.0)] {
        assert!(
            (per_second(&warmup) - rate).abs() < 1e-5,
            "{} is not {rate}",
            per_second(&warmup)
        );
        warmup.force_acquire(taken);
    }
}

/// x/time/rate: a wait that cannot end before its deadline fails at once, and says when it would have ended.
#[test]
fn a_wait_that_cannot_end_in_time_fails_at_once() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(LeakyBucket::new(Quota::per_second(10)).on(&clock))
        .build()
        .unwrap();
    clock.run(async {
        policy.admit(1).await.unwrap().forget();
        let refused = policy
            .admit_timeout(1, millis(100) - Duration::from_nanos(1))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.reason(), refused.retry_after()),
            (Reason::TimedOut, Some(millis(100)))
        );
        assert_eq!(clock.elapsed(), Duration::ZERO);
        policy.admit_timeout(1, millis(100)).await.unwrap().forget();
        assert_eq!(clock.elapsed(), millis(100));
    });
}

/// One day of a web server, (second, client).
fn nasa() -> Vec<(u64, u32)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nasa_19950801_arrivals.csv.gz");
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let (second, client) = line.split_once(',').unwrap();
        (second.parse().unwrap(), client.parse().unwrap())
    });
    rows.collect()
}

/// Exactly as rational arithmetic has it: a bucket that drifts refuses others, and more.
/// Keeps out redisson#2072.
#[test]
fn a_day_of_real_traffic_is_refused_exactly() {
    let day = nasa();
    assert_eq!(day.len(), 30_969);
    let quota = |count, seconds, burst| Quota::new(count, SECOND * seconds).unwrap().burst(burst);
    for (quota, rejected, clients) in [
        (quota(1, 2, 5), 368, 116),
        (quota(1, 5, 5), 1_459, 473),
        (quota(1, 10, 5), 3_123, 884),
    ] {
        let clock = ManualClock::new();
        let mut buckets = HashMap::new();
        let mut refused = HashMap::<u32, u32>::new();
        for &(second, client) in &day {
            at(&clock, SECOND * second as u32);
            let bucket = buckets
                .entry(client)
                .or_insert_with(|| TokenBucket::new(quota).on(&clock));
            if bucket.try_acquire(1).is_err() {
                *refused.entry(client).or_default() += 1;
            }
        }
        assert_eq!(
            (refused.values().sum::<u32>(), refused.len()),
            (rejected, clients),
            "{quota}"
        );
    }
    for (quota, rejected) in [(quota(1, 1, 10), 3_779), (quota(4, 5, 20), 5_610)] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(quota).on(&clock);
        let refused = day.iter().filter(|&&(second, _)| {
            at(&clock, SECOND * second as u32);
            bucket.try_acquire(1).is_err()
        });
        assert_eq!(refused.count(), rejected, "{quota}");
    }
}
