//! Legs that learn from outcomes: breakers and adaptive limits.

use super::{Around, fault};
use crate::live::Built;
use crate::spec::ConfigError;
use serde::{Deserialize, Serialize};
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
        macro_rules! set {
            ($($key:ident),*) => {$(
                if let Some(number) = $key {
                    builder = builder.$key(number);
                }
            )*};
        }
        set!(
            count_window,
            time_window,
            minimum_calls,
            failure_rate,
            consecutive_failures,
            probes
        );
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
/// let text = "[[leg]]\nname = 'in flight'\nkind = 'adaptive'\nlimit = 10\nwindow = '0s'\nsamples = 1\nlaw = 'aimd'";
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
    /// The law that sets the limit; without it `gradient2`, and `cubic` of a rate.
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
            return self.drive(semaphore, LawSpec::Gradient2, ("limit", start as u64), around);
        };
        if self.limit.is_some() {
            let fault = "`quota` was given as well, and one of both is allowed";
            return Err(ConfigError::new("limit", fault));
        }
        let bucket = TokenBucket::new(quota).on(&around.clock);
        let adaptive = self.drive(bucket, LawSpec::Cubic, ("quota", quota.count()), around)?;
        Quota::new(ceiling as u64, quota.period()).map_err(fault("ceiling"))?;
        Ok(adaptive)
    }

    /// Lets the law, or the `usual` one, drive a limiter that starts with the number of a key.
    fn drive<L: Resizable + 'static>(
        &self,
        limiter: L,
        usual: LawSpec,
        (key, start): (&str, u64),
        around: &Around,
    ) -> Result<Built, ConfigError> {
        let (floor, ceiling) = (self.floor.unwrap_or(1), self.ceiling.unwrap_or(1_000));
        let adaptive = Adaptive::builder(limiter)
            .law(self.law.unwrap_or(usual).build())
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

/// A law of an adaptive limit. It has its usual numbers: a law with others is a kind of your own, see [`Kinds`](crate::Kinds).
///
/// ```
/// # use tollgate_config::{AdaptiveSpec, LawSpec};
/// let spec = AdaptiveSpec { law: Some(LawSpec::Vegas), ..AdaptiveSpec::default() };
/// assert_eq!(serde_json::to_value(&spec)?["law"], "vegas");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LawSpec {
    /// [`Aimd`].
    Aimd,
    /// [`Cubic`].
    Cubic,
    /// [`Gradient`].
    Gradient,
    /// [`Gradient2`].
    Gradient2,
    /// [`Trend`].
    Trend,
    /// [`Vegas`].
    Vegas,
}

impl LawSpec {
    fn build(self) -> Box<dyn LimitLaw> {
        match self {
            Self::Aimd => Box::new(Aimd::new()),
            Self::Cubic => Box::new(Cubic::new()),
            Self::Gradient => Box::new(Gradient::new()),
            Self::Gradient2 => Box::new(Gradient2::new()),
            Self::Trend => Box::new(Trend::new()),
            Self::Vegas => Box::new(Vegas::new()),
        }
    }
}
