//! Legs that learn from outcomes: breakers and adaptive limits.

use super::{Around, fault};
use crate::file::{Node, read_kind, write_kind};
use crate::live::Built;
use crate::spec::ConfigError;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use tollgate::{Quota, Semaphore, TokenBucket};
use tollgate_resilience::adaptive::{
    Adaptive, AdaptiveError, Aimd, Cubic, Gradient, Gradient2, LimitLaw, Resizable, Trend, Vegas,
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
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
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
                return Err(ConfigError::given(stringify!($key), number, format_args!("{least} to {most}")));
            })?
            $builder = $builder.$key(number);
        }
    )*};
}

/// A fault of the key whose number is out of bounds.
fn breaker_fault(error: BreakerError) -> ConfigError {
    use BreakerError::{Count, Rate, Time};
    let why = error.to_string();
    let (Rate { setting, .. } | Count { setting, .. } | Time { setting, .. }) = error else {
        return ConfigError::new("kind", why);
    };
    let key = match setting {
        "slow calls" => "slow_after",
        "slow call rate" => "slow_rate",
        "open time" => "open_for",
        other => &other.replace(' ', "_"),
    };
    ConfigError::new(key, why)
}

impl BreakerSpec {
    pub(super) fn build(&self, around: &Around) -> Result<CircuitBreaker, ConfigError> {
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
            return Err(ConfigError::new("time_window", fault));
        }
        let mut builder = CircuitBreaker::builder().on(&around.clock);
        set!(builder; count_window, time_window, minimum_calls, failure_rate, consecutive_failures, probes);
        if let Some(time) = self.open_for {
            builder = builder.open_for(OpenTime::fixed(time));
        }
        let missing = |key, other| ConfigError::new(key, format!("it is given with `{other}`, which is missing"));
        match (self.slow_after, self.slow_rate) {
            (Some(after), Some(rate)) => builder = builder.slow_calls(after, rate),
            (None, None) => {}
            (Some(_), None) => return Err(missing("slow_after", "slow_rate")),
            (None, Some(_)) => return Err(missing("slow_rate", "slow_after")),
        }
        builder.build().map_err(breaker_fault)
    }
}

fn adaptive_fault(error: AdaptiveError) -> ConfigError {
    let key = match error {
        AdaptiveError::Bounds { ceiling, .. } if ceiling as u64 > 1 << 32 => "ceiling",
        AdaptiveError::Bounds { .. } => "floor",
        AdaptiveError::Percentile { .. } => "percentile",
        AdaptiveError::Window { .. } => "window",
        _ => "kind",
    };
    ConfigError::new(key, error.to_string())
}

/// A [`Semaphore`] whose limit [adapts](Adaptive), or with a `quota` a [`TokenBucket`] whose [rate adapts](Adaptive#rates): it finds the
/// rate that an upstream allows. See [`AdaptiveBuilder`](tollgate_resilience::adaptive::AdaptiveBuilder) for the meaning of the numbers.
/// None can be changed in place.
///
/// Report a refusal of the upstream as [`Outcome::Overload`](tollgate::Outcome::Overload).
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use tollgate_config::{Format, PolicySpec, parse};
/// let text = "[[leg]]\nname = 'in flight'\nkind = 'adaptive'\nlimit = 10\nwindow = '0s'\nsamples = 1\nlaw = { kind = 'aimd' }";
/// let policy = parse::<PolicySpec>(text, Format::Toml)?.build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("in flight").unwrap().capacity(), Some(9));
///
/// let text = "[[leg]]\nname = 'upstream'\nkind = 'adaptive'\nquota = '100/s burst 10'\nceiling = 500";
/// let policy = parse::<PolicySpec>(text, Format::Toml)?.build(&ManualClock::new())?;
/// policy.try_admit(1)?.finish(Outcome::Overload);
/// assert_eq!(policy.limiter().leg("upstream").unwrap().per_second().map(f64::round), Some(70.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveSpec {
    /// The law that sets the limit, with its numbers; without it `gradient2`, and `cubic` of a rate.
    #[serde(
        deserialize_with = "LawSpec::read",
        serialize_with = "write_kind",
        skip_serializing_if = "Option::is_none"
    )]
    pub law: Option<LawSpec>,
    /// The rate at the start, if a rate adapts. Its period and its burst stay.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub quota: Option<Quota>,
    /// The limit at the start, if permits adapt: 20, as far as the bounds allow, unless it is given.
    pub limit: Option<usize>,
    /// The lowest limit, or count per period: 1 unless it is given.
    pub floor: Option<usize>,
    /// The highest limit, or count per period: 1,000 unless it is given.
    pub ceiling: Option<usize>,
    /// The law is asked once per window, and of a rate at the first refusal of the upstream: 1 s unless it is given.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub window: Option<Duration>,
    /// The number of requests that must have finished before it is asked again: 10 unless it is given.
    pub samples: Option<u64>,
    /// The percentile of a window's latencies that it sees, 0 to 100: 50 unless it is given.
    pub percentile: Option<f64>,
}

impl AdaptiveSpec {
    pub(super) fn build(&self, around: &Around) -> Result<Built, ConfigError> {
        let (floor, ceiling) = (self.floor.unwrap_or(1), self.ceiling.unwrap_or(1_000));
        let Some(quota) = self.quota else {
            let start = self.limit.unwrap_or(20.clamp(floor.min(ceiling), ceiling));
            let semaphore = Semaphore::new(start.min(Semaphore::MAX_PERMITS));
            return self.drive(semaphore, Gradient2::new(), ("limit", start as u64), around);
        };
        if self.limit.is_some() {
            let fault = "`quota` was given as well, and one of both is allowed";
            return Err(ConfigError::new("limit", fault));
        }
        let bucket = TokenBucket::new(quota).on(&around.clock);
        let adaptive = self.drive(bucket, Cubic::new(), ("quota", quota.count()), around)?;
        Quota::new(ceiling as u64, quota.period()).map_err(fault("ceiling"))?;
        Ok(adaptive)
    }

    /// Lets the law, or the `usual` one, drive a limiter that starts with the number of a key.
    fn drive<L: Resizable + 'static>(
        &self,
        limiter: L,
        usual: impl LimitLaw + 'static,
        (key, start): (&str, u64),
        around: &Around,
    ) -> Result<Built, ConfigError> {
        let (floor, ceiling) = (self.floor.unwrap_or(1), self.ceiling.unwrap_or(1_000));
        let law = self
            .law
            .as_ref()
            .map_or_else(|| Ok(Box::new(usual) as _), LawSpec::build);
        let adaptive = Adaptive::builder(limiter)
            .law(law.map_err(|error| error.within("law"))?)
            .bounds(floor, ceiling)
            .window(
                self.window.unwrap_or(Duration::from_secs(1)),
                self.samples.unwrap_or(10),
            )
            .percentile(self.percentile.unwrap_or(50.0))
            .on(&around.clock)
            .build()
            .map_err(adaptive_fault)?;
        if !(floor as u64..=ceiling as u64).contains(&start) {
            let allowed = format_args!("{floor} to {ceiling}, the floor and the ceiling,");
            return Err(ConfigError::given(key, start, allowed));
        }
        Ok(Built::fixed(adaptive))
    }
}

/// A law of an adaptive limit, and its numbers. A number that is not given is the law's own. In a file it is a table whose key `kind`
/// names the law.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(tag = "kind"))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
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

impl LawSpec {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let node = Node::deserialize(deserializer)?;
        read_kind(node, "kind, ").map(Some).map_err(D::Error::custom)
    }

    fn build(&self) -> Result<Box<dyn LimitLaw>, ConfigError> {
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
}
