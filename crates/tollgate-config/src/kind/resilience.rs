//! Legs that learn from outcomes: breakers and adaptive limits.

use super::Around;
use crate::file::kinds;
use crate::spec::SpecError;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tollgate::{Quota, Semaphore, TokenBucket};
use tollgate_resilience::adaptive::{
    Adaptive, AdaptiveBuilder, AdaptiveError, Aimd, Cubic, Gradient, Gradient2, LimitLaw, Resizable, Trend, Vegas,
};
use tollgate_resilience::{BreakerError, CircuitBreaker, OpenTime};

/// A [`CircuitBreaker`]. A number that is not given is the builder's own: see
/// [`BreakerBuilder`](tollgate_resilience::breaker::BreakerBuilder). None can be changed in place.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Reason};
/// # use tollgate_config::{BreakerSpec, LegKind, LegSpec, PolicySpec};
/// let breaker = BreakerSpec { consecutive_failures: Some(1), ..BreakerSpec::default() };
/// let policy = PolicySpec::new([LegSpec::new("circuit", LegKind::Breaker(breaker))]).build(&ManualClock::new())?;
/// policy.try_admit(1).unwrap().finish(Outcome::Failure);
/// assert_eq!(policy.try_admit(1).unwrap_err().reason(), Reason::CircuitOpen);
/// # Ok::<(), tollgate_config::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BreakerSpec {
    /// The number of latest calls that the state is judged by, unless `time_window` is given.
    pub count_window: Option<usize>,
    /// The span whose calls the state is judged by.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub time_window: Option<Duration>,
    /// The least number of results that is judged.
    pub minimum_calls: Option<u64>,
    /// The part of failures that opens, above 0 to 1.
    pub failure_rate: Option<f64>,
    /// The duration above which a call is slow. It is given with `slow_rate`.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub slow_after: Option<Duration>,
    /// The part of slow calls that opens, above 0 to 1.
    pub slow_rate: Option<f64>,
    /// The number of failures without a success that opens.
    pub consecutive_failures: Option<u64>,
    /// How long it stays open.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub open_for: Option<Duration>,
    /// The number of probes while half open.
    pub probes: Option<u64>,
}

/// Sets what is given, and within its bounds where it has some.
macro_rules! set {
    ($builder:ident; $($key:ident $(in $bounds:expr)?),*) => {$(
        if let Some(number) = $key {
            $(if !$bounds.contains(&number) {
                let (least, most) = ($bounds.start(), $bounds.end());
                return Err(SpecError::given(stringify!($key), number, format_args!("{least} to {most}")));
            })?
            $builder = $builder.$key(number);
        }
    )*};
}

/// A fault of the key whose number is out of bounds.
fn breaker_fault(error: BreakerError) -> SpecError {
    let setting = match error {
        BreakerError::Rate { setting, .. }
        | BreakerError::Count { setting, .. }
        | BreakerError::Time { setting, .. } => setting,
        _ => "kind",
    };
    let key = match setting {
        "slow calls" => "slow_after".to_owned(),
        "slow call rate" => "slow_rate".to_owned(),
        "open time" => "open_for".to_owned(),
        other => other.replace(' ', "_"),
    };
    SpecError::new(&key, error.to_string())
}

impl BreakerSpec {
    pub(super) fn build(&self, around: &Around) -> Result<CircuitBreaker, SpecError> {
        let Self {
            count_window,
            time_window,
            minimum_calls,
            failure_rate,
            consecutive_failures,
            probes,
            ..
        } = *self;
        if count_window.is_some() && time_window.is_some() {
            let fault = "a count window was given already, and one of both is allowed";
            return Err(SpecError::new("time_window", fault));
        }
        let mut builder = CircuitBreaker::builder().on(&around.clock);
        set!(builder; count_window, time_window, minimum_calls, failure_rate, consecutive_failures, probes);
        if let Some(time) = self.open_for {
            builder = builder.open_for(OpenTime::fixed(time));
        }
        let missing = |key, other| SpecError::new(key, format!("it is given with `{other}`, which is missing"));
        match (self.slow_after, self.slow_rate) {
            (Some(after), Some(rate)) => builder = builder.slow_calls(after, rate),
            (None, None) => {}
            (Some(_), None) => return Err(missing("slow_after", "slow_rate")),
            (None, Some(_)) => return Err(missing("slow_rate", "slow_after")),
        }
        builder.build().map_err(breaker_fault)
    }
}

fn second() -> Duration {
    Duration::from_secs(1)
}

fn ten() -> u64 {
    10
}

fn one() -> usize {
    1
}

fn adaptive_fault(error: AdaptiveError) -> SpecError {
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
fn check_start(key: &str, limit: u64, floor: usize, ceiling: usize) -> Result<(), SpecError> {
    if (floor as u64..=ceiling as u64).contains(&limit) {
        return Ok(());
    }
    let allowed = format!("{floor} to {ceiling}, the floor and the ceiling,");
    Err(SpecError::given(key, limit, allowed))
}

/// A [`Semaphore`] whose limit [adapts](Adaptive). See [`AdaptiveBuilder`] for the meaning of its numbers. None can be changed in place.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use tollgate_config::{Format, PolicySpec, parse};
/// let text = "[[leg]]\nname = 'in flight'\nkind = 'adaptive'\nlimit = 10\nwindow = '0s'\nsamples = 1\nlaw = { kind = 'aimd' }";
/// let policy = parse::<PolicySpec>(text, Format::Toml)?.build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity(), Some(9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AdaptiveSpec {
    /// The law that sets the limit, with its numbers.
    pub law: LawSpec,
    /// The limit at the start: 20, as far as the bounds allow, unless it is given.
    pub limit: Option<usize>,
    /// The lowest limit.
    pub floor: usize,
    /// The highest limit.
    pub ceiling: usize,
    /// The law is asked once per window.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub window: Duration,
    /// The number of requests that must have finished before it is asked again.
    pub samples: u64,
    /// The percentile of a window's latencies that it sees, 0 to 100.
    pub percentile: f64,
}

impl Default for AdaptiveSpec {
    fn default() -> Self {
        Self {
            law: LawSpec::default(),
            limit: None,
            floor: 1,
            ceiling: 1_000,
            window: second(),
            samples: ten(),
            percentile: 50.0,
        }
    }
}

impl AdaptiveSpec {
    pub(super) fn build(&self, around: &Around) -> Result<Adaptive, SpecError> {
        let start = self
            .limit
            .unwrap_or(20.clamp(self.floor.min(self.ceiling), self.ceiling));
        let builder = Adaptive::builder(Semaphore::new(start.min(Semaphore::MAX_PERMITS)))
            .bounds(self.floor, self.ceiling)
            .window(self.window, self.samples)
            .percentile(self.percentile);
        let adaptive = self.law.build_with(builder, around)?;
        check_start("limit", start as u64, self.floor, self.ceiling)?;
        Ok(adaptive)
    }
}

/// A [`TokenBucket`] whose rate [adapts](Adaptive#rates): it finds the rate that an upstream allows. None of its numbers can be changed
/// in place.
///
/// Report a refusal of the upstream as [`Outcome::Overload`](tollgate::Outcome::Overload).
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use tollgate_config::{AdaptiveRateSpec, LegKind, LegSpec, PolicySpec};
/// let rate = AdaptiveRateSpec::new("100/s burst 10".parse()?, 500);
/// let policy = PolicySpec::new([LegSpec::new("upstream", LegKind::AdaptiveRate(rate))]).build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("upstream").unwrap().per_second().map(f64::round), Some(70.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdaptiveRateSpec {
    /// The law that sets the rate, with its numbers.
    #[serde(default = "LawSpec::cubic")]
    pub law: LawSpec,
    /// The rate at the start. Its period and its burst stay.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub quota: Quota,
    /// The lowest count per period.
    #[serde(default = "one")]
    pub floor: usize,
    /// The highest count per period.
    pub ceiling: usize,
    /// The law is asked once per window, and at the first refusal of the upstream.
    #[serde(default = "second", with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub window: Duration,
    /// The number of requests that must have finished before it is asked again.
    #[serde(default = "ten")]
    pub samples: u64,
}

impl AdaptiveRateSpec {
    /// A rate that starts at `quota` and finds itself between one and `ceiling` units per period, by the law `cubic`.
    pub fn new(quota: Quota, ceiling: usize) -> Self {
        Self {
            law: LawSpec::cubic(),
            quota,
            floor: one(),
            ceiling,
            window: second(),
            samples: ten(),
        }
    }
}

impl AdaptiveRateSpec {
    pub(super) fn build(&self, around: &Around) -> Result<Adaptive<TokenBucket>, SpecError> {
        let builder = Adaptive::builder(TokenBucket::new(self.quota).on(&around.clock))
            .bounds(self.floor, self.ceiling)
            .window(self.window, self.samples);
        let adaptive = self.law.build_with(builder, around)?;
        check_start("quota", self.quota.count(), self.floor, self.ceiling)?;
        if Quota::new(self.ceiling as u64, self.quota.period()).is_err() {
            let fault = format!(
                "{} in {:?} is above one per nanosecond",
                self.ceiling,
                self.quota.period()
            );
            return Err(SpecError::new("ceiling", fault));
        }
        Ok(adaptive)
    }
}

/// A law of an adaptive limit, and its numbers. A number that is not given is the law's own. In a file it is a table whose key `kind`
/// names the law.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "LawSpec", tag = "kind")
)]
#[serde(remote = "Self", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LawSpec {
    /// [`Aimd`].
    Aimd {
        /// See [`Aimd::backoff`].
        backoff: Option<f64>,
        /// See [`Aimd::timeout`].
        #[serde(default, with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
        timeout: Option<Duration>,
    },
    /// [`Cubic`].
    Cubic {
        /// See [`Cubic::backoff`].
        backoff: Option<f64>,
        /// See [`Cubic::scale`].
        scale: Option<f64>,
    },
    /// [`Gradient`].
    Gradient {
        /// See [`Gradient::buffer`].
        buffer: Option<f64>,
        /// See [`Gradient::measure_every`].
        measure_every: Option<u32>,
        /// See [`Gradient::measure_at`].
        measure_at: Option<u32>,
    },
    /// [`Gradient2`].
    Gradient2 {
        /// See [`Gradient2::smoothing`].
        smoothing: Option<f64>,
        /// See [`Gradient2::tolerance`].
        tolerance: Option<f64>,
        /// See [`Gradient2::queue`].
        queue: Option<u32>,
    },
    /// [`Trend`].
    Trend {
        /// See [`Trend::average_over`].
        average_over: Option<u32>,
        /// See [`Trend::correlate_over`].
        correlate_over: Option<usize>,
    },
    /// [`Vegas`].
    Vegas {
        /// See [`Vegas::smoothing`].
        smoothing: Option<f64>,
        /// See [`Vegas::backoff`].
        backoff: Option<f64>,
    },
}

kinds! {
    LawSpec, &["kind"];
}

impl Default for LawSpec {
    fn default() -> Self {
        Self::Gradient2 {
            smoothing: None,
            tolerance: None,
            queue: None,
        }
    }
}

impl LawSpec {
    fn cubic() -> Self {
        let (backoff, scale) = (None, None);
        Self::Cubic { backoff, scale }
    }

    fn build(&self) -> Result<Box<dyn LimitLaw>, SpecError> {
        macro_rules! law {
            ($law:ident; $($set:tt)*) => {{
                let mut law = $law::new();
                set!(law; $($set)*);
                Box::new(law)
            }};
        }
        Ok(match *self {
            Self::Aimd { backoff, timeout } => law!(Aimd; backoff in (0.5..=0.99), timeout),
            Self::Cubic { backoff, scale } => law!(Cubic; backoff in (0.1..=0.99), scale in (1e-6..=1e6)),
            Self::Gradient {
                buffer,
                measure_every,
                measure_at,
            } => law!(Gradient; buffer in (0.0..=10.0), measure_every in (1..=u32::MAX), measure_at in (1..=u32::MAX)),
            Self::Gradient2 {
                smoothing,
                tolerance,
                queue,
            } => law!(Gradient2; smoothing in (0.01..=1.0), tolerance in (1.0..=10.0), queue),
            Self::Trend {
                average_over,
                correlate_over,
            } => law!(Trend; average_over in (1..=u32::MAX), correlate_over in (10..=1_000)),
            Self::Vegas { smoothing, backoff } => law!(Vegas; smoothing in (0.01..=1.0), backoff in (0.1..=0.99)),
        })
    }

    /// Builds a limit that this law drives.
    fn build_with<L: Resizable>(&self, builder: AdaptiveBuilder<L>, around: &Around) -> Result<Adaptive<L>, SpecError> {
        let law = self.build().map_err(|error| error.within("law"))?;
        builder.law(law).on(&around.clock).build().map_err(adaptive_fault)
    }
}
