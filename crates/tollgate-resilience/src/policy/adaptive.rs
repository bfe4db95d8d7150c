//! A semaphore with an adaptive limit as a leg, and the laws.

use crate::adaptive::{
    Adaptive, AdaptiveBuilder, AdaptiveError, Aimd, Cubic, Gradient, Gradient2, Resizable, Trend, Vegas,
};
use std::time::Duration;
#[cfg(feature = "policy-file")]
use tollgate::policy::file::{FromTable, PolicyFileError, Table};
use tollgate::policy::spec::{Rule, SpecError};
use tollgate::{Clock, Semaphore};

/// A [`Semaphore`](tollgate::Semaphore) whose limit [adapts](crate::adaptive::Adaptive). See
/// [`AdaptiveBuilder`](crate::adaptive::AdaptiveBuilder) for the meaning of its numbers. None can be changed in place.
///
/// ```
/// # use tollgate_resilience::adaptive::Aimd;
/// # use tollgate::policy::spec::{LegSpec, PolicySpec};
/// # use tollgate_resilience::policy::{AdaptiveLaw, AdaptiveRule};
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use std::time::Duration;
/// let mut rule = AdaptiveRule::default();
/// rule.law = AdaptiveLaw::Aimd(Aimd::new());
/// (rule.limit, rule.window, rule.samples) = (10, Duration::ZERO, 1);
/// let policy = PolicySpec::new([LegSpec::new("in flight", rule)]).build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity, Some(9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdaptiveRule {
    /// The law that sets the limit, with its numbers.
    pub law: AdaptiveLaw,
    /// The limit at the start.
    pub limit: usize,
    /// The lowest limit.
    pub floor: usize,
    /// The highest limit.
    pub ceiling: usize,
    /// The law is asked once per window.
    pub window: Duration,
    /// The number of requests that must have finished before it is asked again.
    pub samples: u64,
    /// The percentile of a window's latencies that it sees, 0 to 100.
    pub percentile: f64,
}

/// A law of [`adaptive`](crate::adaptive) with its numbers.
///
/// ```
/// # use tollgate_resilience::adaptive::Aimd;
/// # use tollgate::policy::spec::{LegSpec, PolicySpec};
/// # use tollgate_resilience::policy::{AdaptiveLaw, AdaptiveRule};
/// let mut rule = AdaptiveRule::default();
/// rule.law = AdaptiveLaw::Aimd(Aimd::new());
/// assert!(PolicySpec::new([LegSpec::new("in flight", rule)]).check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AdaptiveLaw {
    Aimd(Aimd),
    Cubic(Cubic),
    Gradient(Gradient),
    Gradient2(Gradient2),
    Trend(Trend),
    Vegas(Vegas),
}

impl AdaptiveLaw {
    pub(super) fn drives<L: Resizable>(&self, builder: AdaptiveBuilder<L>) -> AdaptiveBuilder<L> {
        match self.clone() {
            Self::Aimd(law) => builder.law(law),
            Self::Cubic(law) => builder.law(law),
            Self::Gradient(law) => builder.law(law),
            Self::Gradient2(law) => builder.law(law),
            Self::Trend(law) => builder.law(law),
            Self::Vegas(law) => builder.law(law),
        }
    }
}

/// A fault of the key whose number is out of bounds.
pub(super) fn fault(error: AdaptiveError) -> SpecError {
    let key = match error {
        AdaptiveError::Bounds { ceiling, .. } if ceiling as u64 > 1 << 32 => "ceiling",
        AdaptiveError::Bounds { .. } => "floor",
        AdaptiveError::Percentile { .. } => "percentile",
        AdaptiveError::Window { .. } => "window",
        _ => "kind",
    };
    SpecError::new(key, error.to_string())
}

/// Refuses a limit at the start that is out of its bounds.
pub(super) fn check_start(key: &'static str, limit: u64, floor: usize, ceiling: usize) -> Result<(), SpecError> {
    if (floor as u64..=ceiling as u64).contains(&limit) {
        return Ok(());
    }
    let fault = format!("{limit} was given, and {floor} to {ceiling}, the floor and the ceiling, is allowed");
    Err(SpecError::new(key, fault))
}

impl Default for AdaptiveRule {
    fn default() -> Self {
        Self {
            law: AdaptiveLaw::Gradient2(Gradient2::new()),
            limit: 20,
            floor: 1,
            ceiling: 1_000,
            window: Duration::from_secs(1),
            samples: 10,
            percentile: 50.0,
        }
    }
}

impl Rule for AdaptiveRule {
    type Limiter = Adaptive;
    const KIND: &'static str = "adaptive";
    const HOLDS: bool = true;

    fn build(&self, clock: &Clock) -> Result<Adaptive, SpecError> {
        let builder = Adaptive::builder(Semaphore::new(self.limit.min(Semaphore::MAX_PERMITS)))
            .bounds(self.floor, self.ceiling)
            .window(self.window, self.samples)
            .percentile(self.percentile)
            .on(clock);
        let adaptive = self.law.drives(builder).build().map_err(fault)?;
        check_start("limit", self.limit as u64, self.floor, self.ceiling)?;
        Ok(adaptive)
    }

    fn check(&self) -> Result<(), SpecError> {
        self.build(&Clock::real()).map(drop)
    }

    fn available(adaptive: &Adaptive) -> Option<u64> {
        Some(adaptive.limiter().available_permits() as u64)
    }

    fn most(&self) -> Option<u64> {
        Some(self.ceiling as u64)
    }

    fn capacity(&self, adaptive: &Adaptive) -> Option<u64> {
        Some(adaptive.limit() as u64)
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for AdaptiveRule {
    const KEYS: &'static [&'static str] = &["law", "limit", "floor", "ceiling", "window", "samples", "percentile"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let rule = Self::default();
        let permits = |key| bound(table, key);
        let (floor, ceiling) = (permits("floor")?, permits("ceiling")?);
        let (floor, ceiling) = (floor.unwrap_or(rule.floor), ceiling.unwrap_or(rule.ceiling));
        let start = rule.limit.clamp(floor, ceiling.max(floor));
        Ok(Self {
            law: table.table("law")?.map_or(Ok(rule.law), law)?,
            limit: permits("limit")?.unwrap_or(start),
            floor,
            ceiling,
            window: table.time("window")?.unwrap_or(rule.window),
            samples: table.whole("samples", 1, u64::MAX)?.unwrap_or(rule.samples),
            percentile: table.real_within("percentile", 0.0, 100.0)?.unwrap_or(rule.percentile),
        })
    }
}

/// A limit, or a bound of one.
#[cfg(feature = "policy-file")]
pub(super) fn bound(table: Table<'_>, key: &'static str) -> Result<Option<usize>, PolicyFileError> {
    Ok(table.whole(key, 1, 1 << 32)?.map(|limit| limit as usize))
}

/// The table `law`. A number that is not given is the law's own.
#[cfg(feature = "policy-file")]
pub(super) fn law(table: Table<'_>) -> Result<AdaptiveLaw, PolicyFileError> {
    fn with<L, N>(law: L, number: Option<N>, set: impl FnOnce(L, N) -> L) -> L {
        match number {
            Some(number) => set(law, number),
            None => law,
        }
    }
    let count = |key, least| -> Result<Option<u32>, PolicyFileError> {
        let count = table.whole(key, least, u32::MAX.into())?;
        Ok(count.map(|count| count as u32))
    };
    let laws = [
        ("aimd", AdaptiveLaw::Aimd(Aimd::new())),
        ("cubic", AdaptiveLaw::Cubic(Cubic::new())),
        ("gradient", AdaptiveLaw::Gradient(Gradient::new())),
        ("gradient2", AdaptiveLaw::Gradient2(Gradient2::new())),
        ("trend", AdaptiveLaw::Trend(Trend::new())),
        ("vegas", AdaptiveLaw::Vegas(Vegas::new())),
    ];
    let Some(law) = table.choice("kind", &laws)? else {
        return Err(table.missing("kind", "the name of a law"));
    };
    Ok(match law {
        AdaptiveLaw::Aimd(law) => {
            table.only(&["kind", "backoff", "timeout"])?;
            let law = with(law, table.real_within("backoff", 0.5, 0.99)?, Aimd::backoff);
            AdaptiveLaw::Aimd(with(law, table.time("timeout")?, Aimd::timeout))
        }
        AdaptiveLaw::Cubic(law) => {
            table.only(&["kind", "backoff", "scale"])?;
            let law = with(law, table.real_within("backoff", 0.1, 0.99)?, Cubic::backoff);
            AdaptiveLaw::Cubic(with(law, table.real_within("scale", 1e-6, 1e6)?, Cubic::scale))
        }
        AdaptiveLaw::Gradient(law) => {
            table.only(&["kind", "buffer", "measure_every", "measure_at"])?;
            let law = with(law, table.real_within("buffer", 0.0, 10.0)?, Gradient::buffer);
            let law = with(law, count("measure_every", 1)?, Gradient::measure_every);
            AdaptiveLaw::Gradient(with(law, count("measure_at", 1)?, Gradient::measure_at))
        }
        AdaptiveLaw::Gradient2(law) => {
            table.only(&["kind", "smoothing", "tolerance", "queue"])?;
            let law = with(law, table.real_within("smoothing", 0.01, 1.0)?, Gradient2::smoothing);
            let law = with(law, table.real_within("tolerance", 1.0, 10.0)?, Gradient2::tolerance);
            AdaptiveLaw::Gradient2(with(law, count("queue", 0)?, Gradient2::queue))
        }
        AdaptiveLaw::Trend(law) => {
            table.only(&["kind", "average_over", "correlate_over"])?;
            let law = with(law, count("average_over", 1)?, Trend::average_over);
            let windows = table.whole("correlate_over", 10, 1_000)?;
            let windows = windows.map(|windows| windows as usize);
            AdaptiveLaw::Trend(with(law, windows, Trend::correlate_over))
        }
        AdaptiveLaw::Vegas(law) => {
            table.only(&["kind", "smoothing", "backoff"])?;
            let law = with(law, table.real_within("smoothing", 0.01, 1.0)?, Vegas::smoothing);
            AdaptiveLaw::Vegas(with(law, table.real_within("backoff", 0.1, 0.99)?, Vegas::backoff))
        }
    })
}
