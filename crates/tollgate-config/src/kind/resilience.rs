//! Legs that learn from outcomes: breakers and adaptive limits.

use super::{Around, Kind};
use crate::spec::SpecError;
use crate::spec::tagged::tagged;
use laws::LawSpec as Law;
pub use laws::LawSpec;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use tollgate::{Quota, Semaphore, TokenBucket};
use tollgate_resilience::adaptive::{Adaptive, AdaptiveBuilder, AdaptiveError, Resizable};
use tollgate_resilience::{BreakerError, CircuitBreaker, OpenTime};

/// A [`CircuitBreaker`]. A number that is not given is the builder's own: see
/// [`BreakerBuilder`](tollgate_resilience::breaker::BreakerBuilder). None can be changed in place.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Reason};
/// # use tollgate_config::{BreakerSpec, LegSpec, PolicySpec};
/// let breaker = BreakerSpec { consecutive_failures: Some(1), ..BreakerSpec::default() };
/// let policy = PolicySpec::new([LegSpec::new("circuit", breaker)]).build(&ManualClock::new())?;
/// policy.try_admit(1).unwrap().finish(Outcome::Failure);
/// assert_eq!(policy.try_admit(1).unwrap_err().reason(), Reason::CircuitOpen);
/// # Ok::<(), tollgate_config::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BreakerSpec {
    /// The number of latest calls that the state is judged by, unless `time_window` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_window: Option<usize>,
    /// The span whose calls the state is judged by.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub time_window: Option<Duration>,
    /// The least number of results that is judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_calls: Option<u64>,
    /// The part of failures that opens, above 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<f64>,
    /// The duration above which a call is slow. It is given with `slow_rate`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub slow_after: Option<Duration>,
    /// The part of slow calls that opens, above 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_rate: Option<f64>,
    /// The number of failures without a success that opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<u64>,
    /// How long it stays open.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub open_for: Option<Duration>,
    /// The number of probes while half open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<u64>,
}

/// The builder with a number, if there is one.
fn with<B, N>(builder: B, number: Option<N>, set: impl FnOnce(B, N) -> B) -> B {
    match number {
        Some(number) => set(builder, number),
        None => builder,
    }
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

impl Kind for BreakerSpec {
    type Limiter = CircuitBreaker;

    fn build(&self, around: &Around<'_>) -> Result<CircuitBreaker, SpecError> {
        if self.count_window.is_some() && self.time_window.is_some() {
            let fault = "a count window was given already, and one of both is allowed";
            return Err(SpecError::new("time_window", fault));
        }
        let slow = match (self.slow_after, self.slow_rate) {
            (Some(after), Some(rate)) => Some((after, rate)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(SpecError::new(
                    "slow_after",
                    "it is given with `slow_rate`, which is missing",
                ));
            }
            (None, Some(_)) => {
                return Err(SpecError::new(
                    "slow_rate",
                    "it is given with `slow_after`, which is missing",
                ));
            }
        };
        let builder = CircuitBreaker::builder().on(around.clock);
        let builder = with(builder, self.count_window, |builder, calls| builder.count_window(calls));
        let builder = with(builder, self.time_window, |builder, time| builder.time_window(time));
        let builder = with(builder, self.minimum_calls, |builder, calls| {
            builder.minimum_calls(calls)
        });
        let builder = with(builder, self.failure_rate, |builder, rate| builder.failure_rate(rate));
        let builder = with(builder, slow, |builder, (after, rate)| builder.slow_calls(after, rate));
        let builder = with(builder, self.consecutive_failures, |builder, n| {
            builder.consecutive_failures(n)
        });
        let builder = with(builder, self.open_for, |builder, time| {
            builder.open_for(OpenTime::fixed(time))
        });
        let builder = with(builder, self.probes, |builder, probes| builder.probes(probes));
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
    let fault = format!("{limit} was given, and {floor} to {ceiling}, the floor and the ceiling, is allowed");
    Err(SpecError::new(key, fault))
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
    #[serde(skip_serializing_if = "Option::is_none")]
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

impl Law {
    fn drives<L: Resizable>(&self, builder: AdaptiveBuilder<L>) -> Result<AdaptiveBuilder<L>, SpecError> {
        Ok(builder.law(self.build().map_err(|error| error.within("law"))?))
    }
}

impl Kind for AdaptiveSpec {
    type Limiter = Adaptive;

    fn build(&self, around: &Around<'_>) -> Result<Adaptive, SpecError> {
        let start = self
            .limit
            .unwrap_or(20.clamp(self.floor.min(self.ceiling), self.ceiling));
        let builder = Adaptive::builder(Semaphore::new(start.min(Semaphore::MAX_PERMITS)))
            .bounds(self.floor, self.ceiling)
            .window(self.window, self.samples)
            .percentile(self.percentile)
            .on(around.clock);
        let adaptive = self.law.drives(builder)?.build().map_err(adaptive_fault)?;
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
/// # use tollgate_config::{AdaptiveRateSpec, LegSpec, PolicySpec};
/// let rate = AdaptiveRateSpec::new("100/s burst 10".parse()?, 500);
/// let policy = PolicySpec::new([LegSpec::new("upstream", rate)]).build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("upstream").unwrap().per_second().map(f64::round), Some(70.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdaptiveRateSpec {
    /// The law that sets the rate, with its numbers.
    #[serde(default = "laws::cubic")]
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
            law: laws::cubic(),
            quota,
            floor: one(),
            ceiling,
            window: second(),
            samples: ten(),
        }
    }
}

impl Kind for AdaptiveRateSpec {
    type Limiter = Adaptive<TokenBucket>;

    fn build(&self, around: &Around<'_>) -> Result<Self::Limiter, SpecError> {
        let builder = Adaptive::builder(TokenBucket::new(self.quota).on(around.clock))
            .bounds(self.floor, self.ceiling)
            .window(self.window, self.samples)
            .on(around.clock);
        let adaptive = self.law.drives(builder)?.build().map_err(adaptive_fault)?;
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

/// The laws of adaptive limits, and their numbers. A number that is not given is the law's own.
pub mod laws {
    use super::*;
    use crate::spec::tagged::{kinds, no_more};
    use tollgate_resilience::adaptive::{Aimd, Cubic, Gradient, Gradient2, LimitLaw, Trend, Vegas};

    /// Refuses a number that is out of its bounds.
    fn within<N: PartialOrd + std::fmt::Display + Copy>(
        key: &str,
        given: Option<N>,
        least: N,
        most: N,
    ) -> Result<Option<N>, SpecError> {
        match given {
            Some(number) if !(least..=most).contains(&number) => Err(SpecError::new(
                key,
                format!("{number} was given, and {least} to {most} is allowed"),
            )),
            given => Ok(given),
        }
    }

    macro_rules! laws {
        ($($law:ident as $spec:ident { $($(#[$meta:meta])* $field:ident: $of:ty $(= $least:literal..=$most:expr)?,)* })*) => {$(
            #[doc = concat!("[`", stringify!($law), "`].")]
            #[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
            #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
            #[serde(default)]
            pub struct $spec {
                $(
                    $(#[$meta])*
                    #[doc = concat!("See [`", stringify!($law), "::", stringify!($field), "`].")]
                    #[serde(skip_serializing_if = "Option::is_none")]
                    pub $field: Option<$of>,
                )*
            }

            impl $spec {
                fn build(&self) -> Result<Box<dyn LimitLaw>, SpecError> {
                    let law = $law::new();
                    $(
                        let number = self.$field;
                        $(let number = within(stringify!($field), number, $least, $most)?;)?
                        let law = with(law, number, $law::$field);
                    )*
                    Ok(Box::new(law))
                }
            }
        )*

            impl LawSpec {
                pub(super) fn build(&self) -> Result<Box<dyn LimitLaw>, SpecError> {
                    match self {
                        $(Self::$law(law) => law.build(),)*
                    }
                }
            }
        };
    }
    laws! {
        Aimd as AimdSpec {
            backoff: f64 = 0.5..=0.99,
            #[serde(with = "humantime_serde")]
            #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
            timeout: Duration,
        }
        Cubic as CubicSpec {
            backoff: f64 = 0.1..=0.99,
            scale: f64 = 1e-6..=1e6,
        }
        Gradient as GradientSpec {
            buffer: f64 = 0.0..=10.0,
            measure_every: u32 = 1..=u32::MAX,
            measure_at: u32 = 1..=u32::MAX,
        }
        Gradient2 as Gradient2Spec {
            smoothing: f64 = 0.01..=1.0,
            tolerance: f64 = 1.0..=10.0,
            queue: u32,
        }
        Trend as TrendSpec {
            average_over: u32 = 1..=u32::MAX,
            correlate_over: usize = 10..=1_000,
        }
        Vegas as VegasSpec {
            smoothing: f64 = 0.01..=1.0,
            backoff: f64 = 0.1..=0.99,
        }
    }

    kinds! {
        /// A law of an adaptive limit, and its numbers. In a file it is a table whose key `kind` names the law.
        pub enum LawSpec {
            Aimd(AimdSpec) = "aimd",
            Cubic(CubicSpec) = "cubic",
            Gradient(GradientSpec) = "gradient",
            Gradient2(Gradient2Spec) = "gradient2",
            Trend(TrendSpec) = "trend",
            Vegas(VegasSpec) = "vegas",
        }
        common "kind"
    then no_more
    }

    impl Default for LawSpec {
        fn default() -> Self {
            Gradient2Spec::default().into()
        }
    }

    pub(super) fn cubic() -> LawSpec {
        CubicSpec::default().into()
    }

    impl<'de> Deserialize<'de> for LawSpec {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            tagged(deserializer)
        }
    }
}
