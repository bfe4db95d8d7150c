//! Never more than allowed in any span of time: whole histories of eight threads, each admission with the instant that it
//! was counted at.
//!
//! Of a history in order, `taken` up to some admission less what the rate yields until its instant may exceed the same
//! number at any earlier one by no more than the burst. So one pass with a running minimum looks at every span.
//!
//! As many admissions as `TOLLGATE_ADMISSIONS` says; they are checked by the million.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{Ask, Demand, Inherit, Instant, Limiter, ManualClock, Quota, SlidingWindow, Ticket, TokenBucket};

const THREADS: u64 = 8;
const BATCH: u64 = 1_000_000;

fn admissions() -> u64 {
    let wanted = std::env::var("TOLLGATE_ADMISSIONS").ok();
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(1_000_000)
}

/// An admission: when it was counted, and how many tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Admission {
    nanos: u64,
    tokens: u64,
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

/// Checks every span of a history that arrives piece by piece.
struct Judge {
    rate: u64,
    burst: u64,
    /// What may be there besides the burst.
    parked: u64,
    taken: i128,
    /// The least of the charges, plus the burst, less the yield, before any admission. In billionths.
    least: i128,
    count: u64,
}

impl Judge {
    fn new(rate: u64, burst: u64, parked: u64) -> Self {
        Self {
            rate,
            burst,
            parked,
            taken: 0,
            least: i128::MAX,
            count: 0,
        }
    }

    fn hear(&mut self, mut history: Vec<Admission>) {
        history.sort_unstable();
        for admission in &history {
            let nanos = admission.nanos;
            let yielded = i128::from(nanos) * i128::from(self.rate);
            let burst = i128::from(self.burst + self.parked) * 1_000_000_000;
            self.least = self.least.min(self.taken + burst - yielded);
            self.taken += i128::from(admission.tokens) * 1_000_000_000;
            // A millionth of a token for rounding.
            assert!(self.taken - yielded <= self.least + 1_000, "too many at {nanos} ns");
        }
        self.count += history.len() as u64;
    }
}

#[test]
#[should_panic(expected = "too many at 2000 ns")]
fn the_judge_finds_one_too_many() {
    let of = |nanos, tokens| Admission { nanos, tokens };
    let mut judge = Judge::new(1_000_000, 4, 0);
    judge.hear(vec![of(0, 4), of(1_000, 1), of(5_000, 4)]);
    let mut judge = Judge::new(1_000_000, 4, 0);
    judge.hear(vec![of(0, 3), of(1_000, 2), of(2_000, 2)]);
}

/// Attempts at `instant`.
fn attempt<L: Limiter>(limiter: &L, clock: &ManualClock, instant: Instant, n: u64) -> Option<L::Ticket> {
    let (ask, reading) = (Ask::many(n), ClockReading::at(clock, instant));
    limiter.try_reserve(&Demand::new(&ask, &reading)).ok()
}

fn nanos(clock: &ManualClock, instant: Instant) -> u64 {
    clock.between(Instant::ZERO, instant).as_nanos() as u64
}

/// Runs `work` on eight threads until one batch is admitted, and gathers what they say.
fn batch(seed: u64, work: impl Fn(&mut Random, &mut Vec<Admission>) + Sync) -> Vec<Admission> {
    let start = Barrier::new(THREADS as usize);
    let share = admissions().min(BATCH) / THREADS / 4;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread | 1 << 60);
                    let mut history = Vec::new();
                    start.wait();
                    while (history.len() as u64) < share {
                        work(&mut random, &mut history);
                    }
                    history
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// How many batches a quarter of all admissions takes.
fn seeds() -> std::ops::RangeInclusive<u64> {
    1..=admissions().div_ceil(BATCH)
}

/// Given threads whose clocks are wrong, up to a second behind and up to a second ahead, in any order, then by the instants
/// that they claim no span has more than its burst and what the rate yields.
/// Keeps out go#71360, go#45245, go#65508, governor#39, filtermail#166.
#[test]
fn stale_permuted_and_early_instants_add_nothing() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1_000_000).burst(1_000)).on(&clock);
    let mut judge = Judge::new(1_000_000, 1_000, 0);
    for seed in seeds() {
        let history = batch(seed, |random, history| {
            let now = clock.now();
            let ahead = if random.below(500) == 0 { 1_000_000_000 } else { 20_000 };
            let instant = match random.below(64) {
                0 => clock.after(now, Duration::from_nanos(random.below(ahead))),
                1..9 => {
                    let behind = random.below(nanos(&clock, now).clamp(1, 1_000_000_000));
                    clock.after(Instant::ZERO, Duration::from_nanos(nanos(&clock, now) - behind))
                }
                _ => now,
            };
            let tokens = 1 + random.below(3);
            if attempt(&bucket, &clock, instant, tokens).is_some() {
                let nanos = nanos(&clock, instant);
                history.push(Admission { nanos, tokens });
            } else {
                // The clock jumps ahead of what the early ones have claimed now and then.
                let leap = if random.below(1_000) == 0 { 1_000_000_000 } else { 4_000 };
                clock.advance(Duration::from_nanos(random.below(leap)));
            }
        });
        judge.hear(history);
        // The next batch claims no instant of this one.
        clock.advance(Duration::from_secs(3));
    }
    assert!(judge.count >= admissions() / 4);
}

/// Given threads that take as fast as they can with instants that are up to a millisecond old, while the quota changes
/// under them, then no span has more than the largest burst, and what the fastest rate yields in it and in the age of a reading.
#[test]
fn changes_of_the_quota_add_nothing() {
    let mut count = 0;
    for seed in seeds() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1));
        let (rate, burst) = (1_000_000, 500);
        let bucket = TokenBucket::new(Quota::per_second(rate).burst(burst)).on(&clock);
        // The fastest rate and the largest burst, and what comes in the age of the oldest reading.
        let mut judge = Judge::new(3_100_000, 1_010, 3_100);
        let done = AtomicBool::new(false);
        let (history, changes) = thread::scope(|scope| {
            let changer = scope.spawn(|| {
                let (mut changes, mut random) = (0, Random(seed | 1 << 61));
                // The only one that moves the clock.
                while !done.load(Ordering::Relaxed) {
                    clock.advance(Duration::from_nanos(random.below(100_000)));
                    if random.below(50) == 0 {
                        let (rate, burst) = (100_000 + random.below(3_000_000), 10 + random.below(1_000));
                        changes += 1;
                        bucket.set_quota(Quota::per_second(rate).burst(burst), Inherit::AsIs);
                    }
                }
                changes
            });
            let history = batch(seed, |random, history| {
                let most = if random.below(4) == 0 { 1_000_000 } else { 10_000 };
                let stale = Duration::from_nanos(nanos(&clock, clock.now()) - random.below(most));
                let instant = clock.after(Instant::ZERO, stale);
                let tokens = 1 + random.below(3);
                if attempt(&bucket, &clock, instant, tokens).is_some() {
                    let nanos = nanos(&clock, instant);
                    history.push(Admission { nanos, tokens });
                }
            });
            done.store(true, Ordering::Relaxed);
            (history, changer.join().unwrap())
        });
        assert!(changes > 3, "the quota changed {changes} times");
        judge.hear(history);
        count += judge.count;
    }
    assert!(count >= admissions() / 4);
}

/// For a sliding window: in no span of its length are there more than its limit, by the segments that they were
/// counted in. A span touches one more than it has.
/// Keeps out go#45245, go#65508.
#[test]
fn no_span_of_a_windows_length_has_more_than_its_limit() {
    const LIMIT: u64 = 1_000;
    const LENGTH: u64 = 1_000_000;
    let clock = ManualClock::new();
    let window = SlidingWindow::new(LIMIT, Duration::from_nanos(LENGTH))
        .unwrap()
        .on(&clock);
    let mut count = 0;
    for seed in seeds() {
        let mut history = batch(seed, |random, history| {
            let tokens = 1 + random.below(3);
            if let Some(ticket) = attempt(&window, &clock, clock.now(), tokens) {
                let mut words = [0; 2];
                ticket.write(&mut words);
                // The ticket's second word is the number of the segment.
                let nanos = words[1];
                history.push(Admission { nanos, tokens });
            } else {
                let leap = if random.below(1_000) == 0 {
                    3 * LENGTH
                } else {
                    LENGTH / 40
                };
                clock.advance(Duration::from_nanos(random.below(leap)));
            }
        });
        history.sort_unstable();
        let (mut first, mut sum) = (0, 0);
        for admission in &history {
            sum += admission.tokens;
            while admission.nanos - history[first].nanos > SlidingWindow::SEGMENTS as u64 {
                sum -= history[first].tokens;
                first += 1;
            }
            assert!(sum <= LIMIT, "{sum} in one window");
        }
        count += history.len() as u64;
        // No span reaches into the next batch.
        clock.advance(Duration::from_nanos(2 * LENGTH));
    }
    assert!(count >= admissions() / 4);
}
