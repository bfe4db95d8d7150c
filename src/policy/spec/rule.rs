//! The kinds of legs, and their numbers.

use crate::breaker::{BreakerBuilder, CircuitBreaker, OpenTime};
use crate::rate::{FixedWindow, LeakyBucket, Quota, SlidingLog, SlidingWindow, Warmup};
use crate::semaphore::Semaphore;
use std::fmt;
use std::time::Duration;

/// A kind of limiter and its numbers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LegRule {
    /// A [`TokenBucket`](crate::TokenBucket).
    TokenBucket {
        /// The rate and the burst.
        quota: Quota,
    },
    /// A [`LeakyBucket`].
    LeakyBucket {
        /// The rate.
        quota: Quota,
        /// Units that may catch up with the spacing.
        slack: u64,
    },
    /// A [`Warmup`].
    Warmup {
        /// The rate when it is warm.
        quota: Quota,
        /// The time to get warm.
        period: Duration,
        /// The factor of the interval when it is cold.
        cold_factor: u32,
    },
    /// A [`FixedWindow`].
    FixedWindow {
        /// Units per window.
        limit: u64,
        /// The length of a window.
        window: Duration,
    },
    /// A [`SlidingWindow`].
    SlidingWindow {
        /// Units in any span of that length.
        limit: u64,
        /// The length.
        window: Duration,
        /// The segments in which it moves.
        segments: usize,
    },
    /// A [`SlidingLog`].
    SlidingLog {
        /// Units in any span of that length.
        limit: u64,
        /// The length.
        window: Duration,
        /// Admissions that it can remember; the limit unless set. Fewer refuse before the limit does.
        entries: Option<usize>,
    },
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore {
        /// Units at once.
        limit: usize,
    },
    /// A [`CircuitBreaker`].
    Breaker(BreakerRule),
}

impl LegRule {
    /// A token bucket of `quota`.
    pub fn token_bucket(quota: Quota) -> Self {
        Self::TokenBucket { quota }
    }

    /// A leaky bucket of `quota` without slack.
    pub fn leaky_bucket(quota: Quota) -> Self {
        Self::LeakyBucket { quota, slack: 0 }
    }

    /// A sliding window in [`SEGMENTS`](SlidingWindow::SEGMENTS) segments.
    pub fn sliding_window(limit: u64, window: Duration) -> Self {
        let segments = SlidingWindow::SEGMENTS;
        Self::SlidingWindow {
            limit,
            window,
            segments,
        }
    }

    /// A fixed window.
    pub fn fixed_window(limit: u64, window: Duration) -> Self {
        Self::FixedWindow { limit, window }
    }

    /// A sliding log with room for the whole limit.
    pub fn sliding_log(limit: u64, window: Duration) -> Self {
        Self::SlidingLog {
            limit,
            window,
            entries: None,
        }
    }

    /// A semaphore of `limit` permits.
    pub fn semaphore(limit: usize) -> Self {
        Self::Semaphore { limit }
    }

    /// Which kind it is.
    pub fn kind(&self) -> RuleKind {
        match self {
            Self::TokenBucket { .. } => RuleKind::TokenBucket,
            Self::LeakyBucket { .. } => RuleKind::LeakyBucket,
            Self::Warmup { .. } => RuleKind::Warmup,
            Self::FixedWindow { .. } => RuleKind::FixedWindow,
            Self::SlidingWindow { .. } => RuleKind::SlidingWindow,
            Self::SlidingLog { .. } => RuleKind::SlidingLog,
            Self::Semaphore { .. } => RuleKind::Semaphore,
            Self::Breaker(_) => RuleKind::Breaker,
        }
    }

    /// The rate or the limit that it stands for, as numbers per second, where it is a rate.
    pub(crate) fn per_second(&self) -> Option<f64> {
        match self {
            Self::TokenBucket { quota } | Self::LeakyBucket { quota, .. } | Self::Warmup { quota, .. } => {
                Some(quota.count() as f64 / quota.period().as_secs_f64())
            }
            Self::FixedWindow { limit, window }
            | Self::SlidingWindow { limit, window, .. }
            | Self::SlidingLog { limit, window, .. } => Some(*limit as f64 / window.as_secs_f64()),
            Self::Semaphore { .. } | Self::Breaker(_) => None,
        }
    }

    /// True for a rate, or a window, that counts nothing.
    pub(crate) fn is_unlimited(&self) -> bool {
        match self {
            Self::TokenBucket { quota } | Self::LeakyBucket { quota, .. } | Self::Warmup { quota, .. } => {
                quota.is_unlimited()
            }
            Self::FixedWindow { limit, .. } => *limit == FixedWindow::UNLIMITED,
            Self::SlidingWindow { limit, .. } => *limit == SlidingWindow::UNLIMITED,
            Self::SlidingLog { limit, .. } => *limit == SlidingLog::UNLIMITED,
            Self::Semaphore { .. } | Self::Breaker(_) => false,
        }
    }

    /// The most units that one ask can have under these numbers, as far as that is known.
    pub(crate) fn most(&self) -> u64 {
        match self {
            _ if self.is_unlimited() => u64::MAX,
            Self::TokenBucket { quota } => quota.burst_size(),
            Self::LeakyBucket { slack, .. } => slack.saturating_add(1),
            Self::FixedWindow { limit, .. } | Self::SlidingWindow { limit, .. } | Self::SlidingLog { limit, .. } => {
                *limit
            }
            Self::Semaphore { limit } => *limit as u64,
            Self::Warmup { .. } | Self::Breaker(_) => u64::MAX,
        }
    }

    /// Finds the key with a number that is out of bounds, and the fault.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::TokenBucket { .. } => Ok(()),
            Self::Semaphore { limit } if *limit > Semaphore::MAX_PERMITS => {
                let most = Semaphore::MAX_PERMITS;
                Err(("limit", format!("{limit} was given, and 0 to {most} is allowed")))
            }
            Self::Semaphore { .. } => Ok(()),
            Self::Breaker(rule) => rule.check(),
            Self::LeakyBucket { .. } | Self::Warmup { .. } => self.check_pace(),
            Self::FixedWindow { .. } | Self::SlidingWindow { .. } | Self::SlidingLog { .. } => self.check_window(),
        }
    }

    fn check_pace(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::LeakyBucket { quota, slack } => {
                LeakyBucket::new(*quota).slack(*slack).map_err(fault("slack"))?;
            }
            Self::Warmup {
                quota,
                period,
                cold_factor,
            } => {
                let warmup = Warmup::new(*quota, *period).map_err(fault("period"))?;
                warmup.cold_factor(*cold_factor).map_err(fault("cold_factor"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn check_window(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::FixedWindow { limit, window } => {
                FixedWindow::new(*limit, *window).map_err(fault("window"))?;
            }
            Self::SlidingWindow {
                limit,
                window,
                segments,
            } => {
                let window = SlidingWindow::new(*limit, *window).map_err(fault("window"))?;
                window.segments(*segments).map_err(fault("segments"))?;
            }
            Self::SlidingLog { limit, window, entries } => {
                let log = SlidingLog::new(*limit, *window).map_err(fault("window"))?;
                if let Some(entries) = entries {
                    log.max_entries(*entries).map_err(fault("entries"))?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A fault of `key`.
fn fault<E: fmt::Display>(key: &'static str) -> impl Fn(E) -> (&'static str, String) {
    move |error| (key, error.to_string())
}

/// The names of the kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RuleKind {
    TokenBucket,
    LeakyBucket,
    Warmup,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Semaphore,
    Breaker,
}

impl RuleKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Warmup,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::Semaphore,
        Self::Breaker,
    ];

    /// The name in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Warmup => "warmup",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingLog => "sliding-log",
            Self::Semaphore => "semaphore",
            Self::Breaker => "breaker",
        }
    }

    /// The kind of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The numbers of a breaker. See [`BreakerBuilder`] for their meaning and their defaults.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BreakerRule {
    /// The number of latest calls that the state is judged by, unless `time_window` is given.
    pub count_window: usize,
    /// The span whose calls the state is judged by.
    pub time_window: Option<Duration>,
    /// The least number of results that is judged.
    pub minimum_calls: u64,
    /// The part of failures that opens, above 0 to 1.
    pub failure_rate: f64,
    /// The duration above which a call is slow, and the part of slow calls that opens.
    pub slow_calls: Option<(Duration, f64)>,
    /// The number of failures without a success that opens.
    pub consecutive_failures: Option<u64>,
    /// How long it stays open.
    pub open_for: Duration,
    /// The number of probes while half open.
    pub probes: u64,
}

impl Default for BreakerRule {
    fn default() -> Self {
        Self {
            count_window: 100,
            time_window: None,
            minimum_calls: 20,
            failure_rate: 0.5,
            slow_calls: None,
            consecutive_failures: None,
            open_for: Duration::from_secs(30),
            probes: 10,
        }
    }
}

impl BreakerRule {
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.builder().build().map(drop).map_err(fault("kind"))
    }

    /// A builder with these numbers.
    pub fn builder(&self) -> BreakerBuilder {
        let mut builder = CircuitBreaker::builder()
            .count_window(self.count_window)
            .minimum_calls(self.minimum_calls)
            .failure_rate(self.failure_rate)
            .open_for(OpenTime::fixed(self.open_for))
            .probes(self.probes);
        if let Some(time) = self.time_window {
            builder = builder.time_window(time);
        }
        if let Some((after, rate)) = self.slow_calls {
            builder = builder.slow_calls(after, rate);
        }
        if let Some(failures) = self.consecutive_failures {
            builder = builder.consecutive_failures(failures);
        }
        builder
    }
}
