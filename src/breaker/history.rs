//! Thresholds from history: the setting, and what has been learnt.

use super::builder::BreakerBuilder;
use super::error::BreakerError;
use crate::algo::breaker::{BATCHES, Chart, Judge, Mark};
use crate::sync::shim::atomic::{AtomicU64, Ordering};

/// How thresholds follow what is usual, as [`BreakerBuilder::adaptive`] wants it.
///
/// While the circuit is closed it learns which part of the calls usually fails, and which part is slow. A window of `n`
/// results is too bad when that part, `p`, is exceeded by so many standard deviations, `sqrt(p (1 - p) / n)`: chance
/// alone does that hardly ever. So one setting fits a resource that fails once in a thousand calls and one that fails
/// once in ten, and a small window needs more evidence than a large one.
///
/// It learns in hundredths of its memory, and not from one in which the circuit opens. A resource that gets worse so
/// slowly that it never stands out is learnt from: the rates that the builder sets stay the most that is borne.
///
/// The method is the p chart of W. A. Shewhart (1931).
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct History {
    deviations: f64,
    least: f64,
    memory: u64,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// The longest memory, in calls.
    pub const MAX_MEMORY: u64 = BATCHES * Chart::MAX_BATCH;

    /// Three standard deviations, at least a part of 0.05, a memory of 10,000 calls.
    pub fn new() -> Self {
        Self {
            deviations: 3.0,
            least: 0.05,
            memory: 10_000,
        }
    }

    /// How many standard deviations above the usual part are too many, above 0 to 100.
    pub fn deviations(mut self, deviations: f64) -> Self {
        self.deviations = deviations;
        self
    }

    /// The lowest that a threshold gets, above 0 to 1.
    pub fn least(mut self, rate: f64) -> Self {
        self.least = rate;
        self
    }

    /// Over how many calls it learns, 1 to [`MAX_MEMORY`](Self::MAX_MEMORY), and no fewer than a hundred times the
    /// builder's [minimum](BreakerBuilder::minimum_calls). Older ones fade: after as many again, 37 % of what they said is
    /// left. Before a tenth of it has been seen, the rates that the builder sets are the thresholds.
    pub fn memory(mut self, calls: u64) -> Self {
        self.memory = calls;
        self
    }

    pub(super) fn check(self, minimum: u64) -> Result<Chart, BreakerError> {
        let memory = BreakerBuilder::count("memory of history", self.memory, Self::MAX_MEMORY)?;
        let least = BreakerBuilder::rate("least threshold", self.least)?;
        if !(self.deviations > 0.0 && self.deviations <= 100.0) {
            return Err(BreakerError::Deviations { given: self.deviations });
        }
        Ok(Chart {
            // A window that opens the circuit from the start is one batch, and is dropped.
            batch: memory.div_ceil(BATCHES).max(minimum).min(Chart::MAX_BATCH),
            deviations: self.deviations,
            least,
        })
    }
}

/// What has been learnt of failures and of slow calls, each in a word. Nobody else's memory depends on either, so all
/// accesses are relaxed: a threshold that is a result behind is as good.
pub(super) struct Learnt {
    chart: Chart,
    failed: AtomicU64,
    slow: AtomicU64,
}

impl Learnt {
    pub(super) fn new(chart: Chart) -> Self {
        Self {
            chart,
            failed: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        }
    }

    /// `n` results of a circuit that is closed, or that only measures.
    pub(super) fn record(&self, mark: Mark, n: u64, judge: &Judge) {
        for (word, rate, bad) in [
            (&self.failed, judge.failure_rate, mark.failed),
            (&self.slow, judge.slow_rate, mark.slow),
        ] {
            if rate.is_some() {
                update(word, |seen| self.chart.add(seen, bad, n));
            }
        }
    }

    /// True when anything has been learnt.
    pub(super) fn has_any(&self) -> bool {
        [&self.failed, &self.slow]
            .iter()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// What came last is not to be learnt from.
    pub(super) fn drop_batch(&self) {
        for word in [&self.failed, &self.slow] {
            update(word, Chart::drop_batch);
        }
    }

    /// The thresholds for `calls` results.
    pub(super) fn adapt(&self, judge: Judge, calls: u64) -> Judge {
        let adapt = |word: &AtomicU64, rate: Option<u64>| {
            let word = word.load(Ordering::Relaxed);
            rate.map(|most| self.chart.threshold(word, calls, most))
        };
        Judge {
            failure_rate: adapt(&self.failed, judge.failure_rate),
            slow_rate: adapt(&self.slow, judge.slow_rate),
            ..judge
        }
    }

    /// The lowest that thresholds get.
    pub(super) fn lowest(&self, judge: Judge) -> Judge {
        let lower = |rate: Option<u64>| rate.map(|most| self.chart.least.min(most));
        Judge {
            failure_rate: lower(judge.failure_rate),
            slow_rate: lower(judge.slow_rate),
            ..judge
        }
    }

    /// The usual parts that fail and that are slow, in millionths, where they are known.
    pub(super) fn usual(&self) -> (Option<u64>, Option<u64>) {
        let usual = |word: &AtomicU64| Chart::usual(word.load(Ordering::Relaxed));
        (usual(&self.failed), usual(&self.slow))
    }
}

fn update(word: &AtomicU64, change: impl Fn(u64) -> u64) {
    let mut seen = word.load(Ordering::Relaxed);
    // Relaxed: see `Learnt`.
    while let Err(now) = word.compare_exchange_weak(seen, change(seen), Ordering::Relaxed, Ordering::Relaxed) {
        seen = now;
    }
}
