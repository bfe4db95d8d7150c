//! Reservations on two hours of real requests, weighted by their tokens, of which many are given up again: by
//! the instants of the kept ones no span has more than its bound.
//!
//! With `TOLLGATE_TRACES`, as many rounds as it says of millions; else one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Demand, Instant, LeakyBucket, Limiter, ManualClock, Quota, SlidingLog, SlidingWindow, TokenBucket,
};

#[allow(unreachable_pub, dead_code)]
#[path = "../../../examples/gateway/trace.rs"]
mod requests;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_NANOS: u64 = 60_000_000_000;
/// A third of what the conversations ask for.
const PER_MINUTE: u64 = 150_000;
const BURST: u64 = 20_000;

fn rounds() -> u64 {
    let wanted = std::env::var("TOLLGATE_TRACES").ok();
    let traces = wanted.and_then(|wanted| wanted.parse::<u64>().ok()).unwrap_or(0);
    1 + traces.div_ceil(20_000)
}

/// When they came, in nanoseconds since the first, and their tokens.
fn requests(file: &str) -> Vec<(u64, u64)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data").join(file);
    let trace = requests::read(&path).unwrap();
    let first = trace[0].at;
    let request = |request: &requests::Request| (request.at - first, request.context + request.generated);
    trace.iter().map(request).collect()
}

fn traces() -> [Vec<(u64, u64)>; 2] {
    let traces = ["azure_llm_2023_code.csv.gz", "azure_llm_2023_conv.csv.gz"].map(requests);
    assert_eq!([traces[0].len(), traces[1].len()], [8_819, 19_366]);
    traces
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

fn go_to(clock: &ManualClock, nanos: u64) {
    clock.advance_to(clock.after(Instant::ZERO, Duration::from_nanos(nanos)));
}

/// Which admissions are cancelled, and when: each newcomer goes through it, and `give_up` is called for each in its turn.
struct GivenUp<T> {
    due: BinaryHeap<Reverse<(u64, usize)>>,
    held: Vec<Option<T>>,
}

impl<T> GivenUp<T> {
    fn new() -> Self {
        Self {
            due: BinaryHeap::new(),
            held: Vec::new(),
        }
    }

    fn hold(&mut self, until: u64, what: T) {
        self.due.push(Reverse((until, self.held.len())));
        self.held.push(Some(what));
    }

    /// Goes to `nanos`, and gives up what is due on the way.
    fn pass(&mut self, clock: &ManualClock, nanos: u64, give_up: impl Fn(T)) {
        while let Some(&Reverse((due, index))) = self.due.peek()
            && due <= nanos
        {
            go_to(clock, due);
            self.due.pop();
            give_up(self.held[index].take().unwrap());
        }
        go_to(clock, nanos);
    }
}

/// Reserves for each request as it comes; two in five give up within half a minute, in any order. Returns those that were
/// kept, and how many were given up.
fn kept<L: Limiter>(limiter: &L, clock: &ManualClock, requests: &[(u64, u64)], seed: u64) -> (Vec<(u64, u64)>, usize) {
    let mut random = Random(seed);
    let (mut kept, mut given_up) = (Vec::new(), GivenUp::new());
    let cancel = |ticket| limiter.cancel(ticket);
    for &(at, tokens) in requests {
        given_up.pass(clock, at, cancel);
        let (ask, reading) = (Ask::many(tokens), ClockReading::at(clock, clock.now()));
        let Ok(ticket) = limiter.try_reserve(&Demand::new(&ask, &reading)) else {
            continue;
        };
        if random.below(5) < 2 {
            given_up.hold(at + random.below(30_000_000_000), ticket);
        } else {
            kept.push((at, tokens));
        }
    }
    let count = given_up.held.len();
    given_up.pass(clock, u64::MAX >> 1, cancel);
    (kept, count)
}

/// By how many tokens the worst span exceeds `burst`, and what the rate yields in it; in tokens, rounded up.
fn excess(admitted: &[(u64, u64)], per_minute: u64, burst: u64) -> u64 {
    let (mut taken, mut least, mut worst) = (0, i128::MAX, 0);
    for &(at, tokens) in admitted {
        let yielded = i128::from(at) * i128::from(per_minute);
        least = least.min(taken - yielded);
        taken += i128::from(tokens) * i128::from(MINUTE_NANOS);
        worst = worst.max(taken - yielded - least - i128::from(burst) * i128::from(MINUTE_NANOS));
    }
    // A millionth of a token for rounding.
    u64::try_from((worst - i128::from(MINUTE_NANOS / 1_000_000)).max(0))
        .unwrap()
        .div_ceil(MINUTE_NANOS)
}

#[test]
fn an_excess_is_seen() {
    assert_eq!(excess(&[(0, 5), (0, 5), (MINUTE_NANOS, 10)], 10, 10), 0);
    assert_eq!(excess(&[(0, 5), (0, 6)], 10, 10), 1);
    assert_eq!(
        excess(&[(0, 1), (MINUTE_NANOS * 9, 10), (MINUTE_NANOS * 10, 13)], 10, 10),
        3
    );
}

/// How many tokens were admitted in the worst span of a minute, the end of which does not belong to it.
fn worst_minute(admitted: &[(u64, u64)]) -> u64 {
    let (mut first, mut sum, mut worst) = (0, 0, 0);
    for &(at, tokens) in admitted {
        sum += tokens;
        while at - admitted[first].0 >= MINUTE_NANOS {
            sum -= admitted[first].1;
            first += 1;
        }
        worst = worst.max(sum);
    }
    worst
}

#[test]
fn cancelled_reservations_admit_no_start_beyond_the_bound() {
    for (trace, requests) in traces().iter().enumerate() {
        for seed in 1..=rounds() {
            let clock = ManualClock::new();
            let quota = Quota::per_minute(PER_MINUTE).burst(BURST);
            let bucket = TokenBucket::new(quota).on(&clock);
            let (admitted, given_up) = kept(&bucket, &clock, requests, seed);
            assert_eq!(
                excess(&admitted, PER_MINUTE, BURST),
                0,
                "bucket, trace {trace}, seed {seed}"
            );
            // The rate binds, and many were given up.
            assert!(
                given_up > 500 && admitted.len() + given_up < requests.len() - 500,
                "{given_up}"
            );
            assert_eq!(bucket.available(), BURST);

            let clock = ManualClock::new();
            let leaky = LeakyBucket::new(Quota::per_minute(PER_MINUTE))
                .slack(BURST - 1)
                .unwrap()
                .on(&clock);
            let (admitted, _) = kept(&leaky, &clock, requests, seed);
            assert_eq!(
                excess(&admitted, PER_MINUTE, BURST),
                0,
                "leaky, trace {trace}, seed {seed}"
            );

            let clock = ManualClock::new();
            let log = SlidingLog::new(PER_MINUTE, MINUTE).unwrap().on(&clock);
            let (admitted, _) = kept(&log, &clock, requests, seed);
            let worst = worst_minute(&admitted);
            assert!(
                (PER_MINUTE / 2..=PER_MINUTE).contains(&worst),
                "log, trace {trace}, seed {seed}: {worst}"
            );

            let clock = ManualClock::new();
            let window = SlidingWindow::new(PER_MINUTE, MINUTE).unwrap().on(&clock);
            let (admitted, _) = kept(&window, &clock, requests, seed);
            let worst = worst_minute(&admitted);
            assert!(
                (PER_MINUTE / 2..=PER_MINUTE).contains(&worst),
                "window, trace {trace}, seed {seed}: {worst}"
            );
        }
    }
}
