//! Thresholds from history: the setting, and the learnt rates.
//!
//! # The chart
//! A control chart of a fraction says which rate is usual, and which deviation from it is too much (W. A. Shewhart's p
//! chart, 1931; D. C. Montgomery, *Introduction to Statistical Quality Control*, chapter 7).
//!
//! Results are taken in batches. The first batches are averaged; from then on the mean forgets one hundredth per batch.
//! One word holds it all:
//!
//! | bits | what |
//! |---|---|
//! | 63..48 | results of this batch |
//! | 47..32 | bad results of this batch |
//! | 31..20 | batches so far, up to [`BATCHES`] |
//! | 19..0 | the usual rate, in millionths |

use super::builder::BreakerBuilder;
use super::error::BreakerError;
use super::thresholds::{CallResult, Thresholds};
use crate::sync::atomic::{AtomicU64, Ordering};

/// How thresholds follow the usual rates, for [`BreakerBuilder::adaptive`].
///
/// While the circuit is closed it learns the usual part `p` of failed calls, and of slow calls. A window of `n` results
/// trips when its part exceeds `p` by `deviations` times the standard deviation `sqrt(p (1 - p) / n)`: chance alone
/// hardly ever does that. So one setting fits a resource that fails once in a thousand calls and one that fails once in
/// ten. A small window needs more evidence than a large one.
///
/// It learns in batches of one hundredth of its memory, and not from a batch in which the circuit opens. It also learns
/// from a resource that gets worse too slowly to stand out: the rates that the builder sets stay the maximum.
///
/// The method is the p chart of W. A. Shewhart (1931).
///
/// ```
/// # use tollgate_resilience::CircuitBreaker;
/// # use tollgate_resilience::breaker::History;
/// let breaker = CircuitBreaker::builder().adaptive(History::new().deviations(4.0).memory(10_000)).build();
/// assert!(breaker.is_ok());
/// let error = CircuitBreaker::builder().adaptive(History::new().deviations(-1.0)).build();
/// assert!(error.is_err());
/// ```
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

    /// Three standard deviations, a least threshold of 0.05, a memory of 10,000 calls.
    pub fn new() -> Self {
        Self {
            deviations: 3.0,
            least: 0.05,
            memory: 10_000,
        }
    }

    /// How many standard deviations above the usual rate trip the breaker, above 0 to 100.
    pub fn deviations(mut self, deviations: f64) -> Self {
        self.deviations = deviations;
        self
    }

    /// The lowest threshold, above 0 to 1.
    pub fn least(mut self, rate: f64) -> Self {
        self.least = rate;
        self
    }

    /// The number of calls that it remembers, 1 to [`MAX_MEMORY`](Self::MAX_MEMORY), and at least a hundred times the
    /// builder's [minimum](BreakerBuilder::minimum_calls). Older calls fade: after that many again, they have 37 % of
    /// their weight. Until a tenth of the memory is filled, the rates that the builder sets are the thresholds.
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

/// The learnt rates of failures and of slow calls, each in a word. No other memory depends on either, so all accesses
/// are relaxed: a threshold may be a result behind.
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

    /// Records `n` results of a circuit that is closed, or that only measures.
    pub(super) fn record(&self, result: CallResult, n: u64, thresholds: &Thresholds) {
        for (word, rate, bad) in [
            (&self.failed, thresholds.failure_rate, result.failed),
            (&self.slow, thresholds.slow_rate, result.slow),
        ] {
            if rate.is_some() {
                update(word, |seen| self.chart.add(seen, bad, n));
            }
        }
    }

    /// True if anything has been learnt.
    pub(super) fn has_any(&self) -> bool {
        [&self.failed, &self.slow]
            .iter()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Drops the current batch.
    pub(super) fn drop_batch(&self) {
        for word in [&self.failed, &self.slow] {
            update(word, Chart::drop_batch);
        }
    }

    /// The thresholds for `calls` results.
    pub(super) fn adapt(&self, thresholds: Thresholds, calls: u64) -> Thresholds {
        let adapt = |word: &AtomicU64, rate: Option<u64>| {
            let word = word.load(Ordering::Relaxed);
            rate.map(|most| self.chart.threshold(word, calls, most))
        };
        Thresholds {
            failure_rate: adapt(&self.failed, thresholds.failure_rate),
            slow_rate: adapt(&self.slow, thresholds.slow_rate),
            ..thresholds
        }
    }

    /// The lowest possible thresholds.
    pub(super) fn lowest(&self, thresholds: Thresholds) -> Thresholds {
        let lower = |rate: Option<u64>| rate.map(|most| self.chart.least.min(most));
        Thresholds {
            failure_rate: lower(thresholds.failure_rate),
            slow_rate: lower(thresholds.slow_rate),
            ..thresholds
        }
    }

    /// The usual rates of failures and of slow calls, in millionths, if they are known.
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

/// The number of batches in a memory.
const BATCHES: u64 = 100;
/// The number of batches before a rate is usual.
const ENOUGH: u64 = BATCHES / 10;

const RATE_BITS: u32 = 20;
const COUNT_BITS: u32 = 12;
const BAD_SHIFT: u32 = RATE_BITS + COUNT_BITS;
const FIELD_BITS: u32 = 16;
const MILLION: u64 = 1_000_000;

fn bits(word: u64, from: u32, len: u32) -> u64 {
    word >> from & ((1 << len) - 1)
}

/// The chart's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chart {
    /// Results to a batch, 1 to [`Chart::MAX_BATCH`].
    batch: u64,
    /// The number of standard deviations above the usual rate that is too much.
    deviations: f64,
    /// No threshold is below this rate, in millionths.
    least: u64,
}

impl Chart {
    /// Two of them fit into a field.
    const MAX_BATCH: u64 = 1 << (FIELD_BITS - 1);

    /// `word` after `n` results, all bad or all good. A full batch is learnt from when the next begins: until then it
    /// can be dropped.
    fn add(&self, word: u64, bad: bool, n: u64) -> u64 {
        let word = if Self::batch_of(word).0 < self.batch {
            word
        } else {
            Self::learn(word)
        };
        let (calls, failed) = Self::batch_of(word);
        // More than a batch counts as a full one.
        let n = n.min(self.batch);
        let failed = failed + if bad { n } else { 0 };
        (calls + n) << (BAD_SHIFT + FIELD_BITS) | failed << BAD_SHIFT | Self::drop_batch(word)
    }

    /// The results of the batch, and the bad ones.
    fn batch_of(word: u64) -> (u64, u64) {
        let field = |from| bits(word, from, FIELD_BITS);
        (field(BAD_SHIFT + FIELD_BITS), field(BAD_SHIFT))
    }

    fn learn(word: u64) -> u64 {
        let (calls, bad) = Self::batch_of(word);
        let batches = (bits(word, RATE_BITS, COUNT_BITS) + 1).min(BATCHES);
        let (rate, usual) = (bad * MILLION / calls, bits(word, 0, RATE_BITS));
        // Rounded to the nearest, from either side alike.
        let step = |difference: u64| (difference + batches / 2) / batches;
        let usual = if rate >= usual {
            usual + step(rate - usual)
        } else {
            usual - step(usual - rate)
        };
        batches << RATE_BITS | usual
    }

    /// `word` without the current batch.
    fn drop_batch(word: u64) -> u64 {
        bits(word, 0, BAD_SHIFT)
    }

    /// The usual rate, in millionths; `None` before there are enough batches.
    fn usual(word: u64) -> Option<u64> {
        (bits(word, RATE_BITS, COUNT_BITS) >= ENOUGH).then_some(bits(word, 0, RATE_BITS))
    }

    /// The threshold for `calls` results, in millionths, at most `most`; `most` before a rate is usual.
    fn threshold(&self, word: u64, calls: u64, most: u64) -> u64 {
        let Some(usual) = Self::usual(word) else { return most };
        let part = usual as f64 / MILLION as f64;
        let deviation = (part * (1.0 - part) / calls.max(1) as f64).sqrt();
        let limit = (part + self.deviations * deviation) * MILLION as f64;
        (limit.ceil() as u64).max(self.least).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: Chart = Chart {
        batch: 100,
        deviations: 3.0,
        least: 1,
    };

    /// `word` after `calls` calls, each `every`th bad, and one more by which the last batch is learnt from.
    fn fed(mut word: u64, calls: u64, every: u64) -> u64 {
        for n in 0..calls {
            word = CHART.add(word, n % every == every - 1, 1);
        }
        Chart::drop_batch(CHART.add(word, false, 1))
    }

    #[test]
    fn no_rate_is_usual_before_ten_batches() {
        assert_eq!(Chart::usual(fed(0, 999, 10)), None);
        assert_eq!(CHART.threshold(fed(0, 999, 10), 100, 500_000), 500_000);
        assert_eq!(Chart::usual(fed(0, 1_000, 10)), Some(100_000));
    }

    #[test]
    fn the_threshold_is_that_of_the_chart() {
        // 10 % of 100: 3 standard deviations are 9 %. Of 900: 3 %.
        let word = fed(0, 1_000, 10);
        assert_eq!(CHART.threshold(word, 100, MILLION), 190_000);
        assert_eq!(CHART.threshold(word, 900, MILLION), 130_000);
        assert_eq!(CHART.threshold(word, 100, 150_000), 150_000);
        let chart = Chart {
            least: 200_000,
            ..CHART
        };
        assert_eq!(chart.threshold(word, 100, MILLION), 200_000);
        assert_eq!(chart.threshold(word, 100, 50_000), 50_000);
    }

    #[test]
    fn a_usual_rate_is_forgotten() {
        let word = fed(0, 10_000, 10);
        assert_eq!(Chart::usual(word), Some(100_000));
        // A hundred batches later 0.99^100 of it is left.
        let later = Chart::usual(fed(word, 10_000, u64::MAX)).unwrap();
        assert!((36_000..=37_500).contains(&later), "{later}");
    }

    #[test]
    fn a_batch_is_learnt_from_when_the_next_begins() {
        let word = fed(0, 1_000, 10);
        let full = (0..100).fold(word, |word, _| CHART.add(word, true, 1));
        assert_eq!(Chart::drop_batch(full), word);
        assert_ne!(Chart::drop_batch(CHART.add(full, true, 1)), word);
        // A call of any number of units is at most one batch.
        let many = CHART.add(CHART.add(word, true, u64::MAX), true, 1);
        assert_eq!(Chart::usual(many), Some(100_000 + 900_000 / 11));
    }
}
