//! Never more than allowed in any span of time, for the rates behind a lock: whole histories of eight threads in rounds.
//!
//! In a round all threads race at one instant, some of them with readings of the clock that are stale. So each admission is
//! counted at the round's instant exactly, and the check does not rely on the threads' claims. (A bucket counts an admission by
//! the reading that it was given: there no reading is stale. `any_window` has those that are.) As many admissions as
//! `TOLLGATE_ADMISSIONS` says, a fifth of them here.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Demand, FixedWindow, Instant, LeakyBucket, Limiter, ManualClock, Quota, SlidingLog, SlidingWindow, Warmup,
};

const THREADS: u64 = 8;
const ATTEMPTS: u64 = 32;
const LENGTH: u64 = 1_000_000;
const LIMIT: u64 = 1_000;

fn admissions() -> u64 {
    let wanted = std::env::var("TOLLGATE_ADMISSIONS").ok();
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(1_000_000) / 5
}

struct Random(u64);

impl Random {
    /// xorshift64* (Vigna, 2016).
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// One thread's part of a round: how many tokens it was given.
fn attempts<L: Limiter>(limiter: &L, clock: &ManualClock, random: &mut Random, oldest: u64) -> (u64, u64) {
    let (mut tokens, mut count) = (0, 0);
    let now = clock.elapsed().as_nanos() as u64;
    for _ in 0..ATTEMPTS {
        let stale = if random.below(4) == 0 { random.below(oldest) } else { 0 };
        let instant = clock.after(Instant::ZERO, Duration::from_nanos(now.saturating_sub(stale)));
        let n = 1 + random.below(3);
        let (ask, reading) = (Ask::many(n), ClockReading::at(clock, instant));
        if let Ok(ticket) = limiter.try_reserve(&Demand::new(&ask, &reading)) {
            // Some are given back at once, and do not count.
            if random.below(8) == 0 {
                limiter.cancel(ticket);
            } else {
                (tokens, count) = (tokens + n, count + 1);
            }
        }
    }
    (tokens, count)
}

/// Races for `limiter` round by round, and reports to `hear` the instant of each and the tokens granted in it.
fn race<L: Limiter>(limiter: &L, clock: &ManualClock, hear: impl FnMut(u64, u64)) {
    race_for(admissions(), 2 * LENGTH, limiter, clock, hear);
}

/// The same until there were that number of `admissions`, with readings up to `oldest` nanoseconds old.
fn race_for<L: Limiter>(
    admissions: u64,
    oldest: u64,
    limiter: &L,
    clock: &ManualClock,
    mut hear: impl FnMut(u64, u64),
) {
    let (tokens, count, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let gate = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tokens, count, done, gate) = (&tokens, &count, &done, &gate);
            scope.spawn(move || {
                let mut random = Random(thread | 1 << 60);
                loop {
                    gate.wait();
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let (given, admitted) = attempts(limiter, clock, &mut random, oldest);
                    tokens.fetch_add(given, Ordering::Relaxed);
                    count.fetch_add(admitted, Ordering::Relaxed);
                    gate.wait();
                }
            });
        }
        let mut random = Random(1 << 61);
        while count.load(Ordering::Relaxed) < admissions {
            let leap = if random.below(500) == 0 { 3 * LENGTH } else { LENGTH / 4 };
            clock.advance(Duration::from_nanos(random.below(leap)));
            // It has seen this instant before a stale one can be counted as of the last.
            let (ask, reading) = (Ask::one(), ClockReading::at(clock, clock.now()));
            let _ = limiter.look(&Demand::new(&ask, &reading));
            gate.wait();
            gate.wait();
            hear(clock.elapsed().as_nanos() as u64, tokens.swap(0, Ordering::Relaxed));
        }
        done.store(true, Ordering::Relaxed);
        gate.wait();
    });
}

/// Looks at every span of a length.
struct Spans {
    length: u64,
    limit: u64,
    held: VecDeque<(u64, u64)>,
    sum: u64,
    fullest: u64,
}

impl Spans {
    fn new(length: u64, limit: u64) -> Self {
        Self {
            length,
            limit,
            held: VecDeque::new(),
            sum: 0,
            fullest: 0,
        }
    }

    fn hear(&mut self, at: u64, tokens: u64) {
        while self.held.front().is_some_and(|(from, _)| from + self.length <= at) {
            self.sum -= self.held.pop_front().map_or(0, |(_, tokens)| tokens);
        }
        self.held.push_back((at, tokens));
        self.sum += tokens;
        self.fullest = self.fullest.max(self.sum);
        assert!(self.sum <= self.limit, "{} in the span that ends at {at} ns", self.sum);
    }
}

#[test]
#[should_panic(expected = "5 in the span that ends at 9 ns")]
fn the_spans_find_one_too_many() {
    let mut spans = Spans::new(10, 4);
    for (at, tokens) in [(0, 2), (5, 2), (9, 1)] {
        spans.hear(at, tokens);
    }
}

#[test]
fn no_span_of_a_logs_length_has_more_than_its_limit() {
    let clock = ManualClock::new();
    let log = SlidingLog::new(LIMIT, Duration::from_nanos(LENGTH)).unwrap().on(&clock);
    let mut spans = Spans::new(LENGTH, LIMIT);
    race(&log, &clock, |at, tokens| spans.hear(at, tokens));
    assert!(spans.fullest > LIMIT - 3, "it was filled: {}", spans.fullest);
}

#[test]
fn no_span_of_a_sliding_windows_length_has_more_than_its_limit() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(LIMIT, Duration::from_nanos(LENGTH))
        .unwrap()
        .on(&clock);
    let mut spans = Spans::new(LENGTH, LIMIT);
    race(&window, &clock, |at, tokens| spans.hear(at, tokens));
    assert!(spans.fullest > LIMIT - 3, "it was filled: {}", spans.fullest);
}

/// Any span has what flows out in it, the slack and one.
#[test]
fn no_span_at_a_leaky_bucket_has_more_than_flows_out_and_the_slack() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1_000_000))
        .slack(99)
        .unwrap()
        .on(&clock);
    // In thousandths of tokens, of which one flows out in a nanosecond.
    let (mut taken, mut least) = (0i128, i128::MAX);
    race_for(admissions(), 1, &bucket, &clock, |at, tokens| {
        least = least.min(taken - i128::from(at));
        taken += i128::from(tokens) * 1_000;
        assert!(taken - i128::from(at) <= least + 100_000, "too many at {at} ns");
    });
}

/// Without a slack there is one in a round, taken beside callers that are refused, that give back or that want more than ever fits.
#[test]
fn no_span_at_an_even_leaky_bucket_has_more_than_flows_out_and_one() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1_000_000)).on(&clock);
    let mut free = 0;
    race_for(admissions() / 100, 1, &bucket, &clock, |at, tokens| {
        assert!(tokens <= u64::from(at >= free), "{tokens} at {at} ns, free from {free}");
        free = if tokens > 0 { at + 1_000 } else { free };
    });
}

/// The same of a warm-up, at its stable interval at the least.
#[test]
fn no_two_are_admitted_by_a_warm_up_within_an_interval() {
    let clock = ManualClock::new();
    let warmup = Warmup::new(Quota::per_second(1_000_000).burst(1), Duration::from_micros(10));
    let warmup = warmup.unwrap().on(&clock);
    let mut free = 0;
    race_for(admissions() / 100, 2 * LENGTH, &warmup, &clock, |at, tokens| {
        assert!(tokens <= u64::from(at >= free), "{tokens} at {at} ns, free from {free}");
        free = if tokens > 0 { at + 1_000 } else { free };
    });
}

#[test]
fn no_fixed_window_has_more_than_its_limit() {
    let clock = ManualClock::new();
    let start = clock.elapsed().as_nanos() as u64;
    let window = FixedWindow::new(LIMIT, Duration::from_nanos(LENGTH))
        .unwrap()
        .on(&clock);
    let (mut number, mut sum) = (0, 0);
    race(&window, &clock, |at, tokens| {
        let now = (at - start) / LENGTH;
        sum = if now == number { sum + tokens } else { tokens };
        number = now;
        assert!(sum <= LIMIT, "{sum} in window {now}");
    });
}
