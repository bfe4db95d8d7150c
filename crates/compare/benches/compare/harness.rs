//! Interleaved measuring: short batches in rotating order, tenth percentiles.

use rustix::time::{ClockId, clock_gettime};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const BATCH: Duration = Duration::from_micros(300);
const ROUNDS: usize = 180;

/// One side of a row that is measured by wall time: runs the given number of operations.
pub(crate) type Batch<'a> = Box<dyn FnMut(u64) + 'a>;

/// One side of a row that measures itself: the cost of one operation, in whatever unit the row has.
pub(crate) type Sample<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// The rows that were asked for.
pub(crate) struct Rows {
    filters: Vec<String>,
}

impl Rows {
    pub(crate) fn new(filters: Vec<String>) -> Self {
        Self { filters }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    /// A row by wall time in nanoseconds. The first side is ours.
    pub(crate) fn wall(&self, name: &str, sides: Vec<(&str, Batch<'_>)>) {
        if !self.wants(name) {
            return;
        }
        let mut sides: Vec<_> = sides
            .into_iter()
            .map(|(peer, mut batch)| {
                let n = calibrate(&mut batch);
                let sample = move || {
                    let start = Instant::now();
                    batch(n);
                    start.elapsed().as_nanos() as f64 / n as f64
                };
                (peer, Box::new(sample) as Sample<'_>)
            })
            .collect();
        print(name, &quantiles(0.1, &mut sides, ROUNDS));
    }

    /// A row whose sides measure themselves, in a number of rounds each.
    pub(crate) fn sampled(&self, name: &str, rounds: usize, mut sides: Vec<(&str, Sample<'_>)>) {
        if self.wants(name) {
            print(name, &quantiles(0.1, &mut sides, rounds));
        }
    }

    /// A row of medians, of sides that measure themselves.
    pub(crate) fn medians(&self, name: &str, rounds: usize, mut sides: Vec<(&str, Sample<'_>)>) {
        if self.wants(name) {
            print(name, &quantiles(0.5, &mut sides, rounds));
        }
    }

    /// A row of given figures.
    pub(crate) fn figures(&self, name: &str, sides: &[(&str, f64)]) {
        if self.wants(name) {
            print(name, sides);
        }
    }
}

/// Returns the number of operations that take about as long as one batch. One interruption must not pass for slow operations:
/// too short a batch would measure the start of threads.
fn calibrate(batch: &mut Batch<'_>) -> u64 {
    let mut n = 16;
    let mut takes = |n| {
        let start = Instant::now();
        batch(n);
        start.elapsed()
    };
    while (0..3).any(|_| takes(n) < BATCH) {
        n += n / 4;
    }
    n
}

fn quantiles<'a>(part: f64, sides: &mut [(&'a str, Sample<'_>)], rounds: usize) -> Vec<(&'a str, f64)> {
    let mut samples = vec![Vec::with_capacity(rounds); sides.len()];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let side = (round + turn) % sides.len();
            samples[side].push((sides[side].1)());
        }
    }
    let names = sides.iter().map(|(peer, _)| *peer);
    names
        .zip(samples)
        .map(|(peer, mut costs)| (peer, quantile(part, &mut costs)))
        .collect()
}

/// The lowest sample that is above `part` of them.
pub(crate) fn quantile(part: f64, samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() as f64 * part) as usize]
}

fn print(name: &str, sides: &[(&str, f64)]) {
    let Some(((_, ours), peers)) = sides.split_first() else {
        return;
    };
    for (peer, theirs) in peers {
        println!(
            "{name:<40} {ours:>12.3} {peer:<18} {theirs:>12.3} {:>8.2}",
            theirs / ours
        );
    }
}

/// The CPU time that `work` takes, of all threads, in nanoseconds.
pub(crate) fn cpu_nanos(work: impl FnOnce()) -> f64 {
    let read = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    };
    let start = read();
    work();
    read() - start
}

/// Polls a future once that is ready.
#[inline]
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match poll_once(future.as_mut()) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing else holds what it waits for"),
    }
}

/// Polls a future once, with a waker that does nothing.
#[inline]
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A side that runs one expression over and over.
macro_rules! each {
    ($name:literal, $operation:expr) => {
        (
            $name,
            Box::new(|n: u64| {
                for _ in 0..n {
                    std::hint::black_box($operation);
                }
            }) as $crate::harness::Batch<'_>,
        )
    };
}
pub(crate) use each;
