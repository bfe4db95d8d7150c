//! A circuit breaker as a leg.

use crate::breaker::{BreakerBuilder, BreakerError, CircuitBreaker, OpenTime};
use std::time::Duration;
use tollgate::Clock;
#[cfg(feature = "policy-file")]
use tollgate::policy::file::{FromTable, PolicyFileError, Table};
use tollgate::policy::spec::{Rule, SpecError};

/// A [`CircuitBreaker`]. See [`BreakerBuilder`] for the meaning of its numbers and their defaults. None can be changed in place.
///
/// ```
/// # use tollgate::policy::spec::{LegSpec, PolicySpec};
/// # use tollgate_resilience::policy::BreakerRule;
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Reason};
/// let mut rule = BreakerRule::default();
/// rule.consecutive_failures = Some(1);
/// assert!(rule.builder().build().is_ok());
/// let policy = PolicySpec::new([LegSpec::new("circuit", rule)]).build(&ManualClock::new())?;
/// policy.try_admit(1).unwrap().finish(Outcome::Failure);
/// assert_eq!(policy.try_admit(1).unwrap_err().reason(), Reason::CircuitOpen);
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
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

/// A fault of the key whose number is out of bounds.
fn fault(error: BreakerError) -> SpecError {
    let setting = match error {
        BreakerError::Rate { setting, .. }
        | BreakerError::Count { setting, .. }
        | BreakerError::Time { setting, .. } => setting,
        _ => "",
    };
    let key = match setting {
        "count window" => "count_window",
        "time window" => "time_window",
        "minimum calls" => "minimum_calls",
        "failure rate" => "failure_rate",
        "slow calls" => "slow_after",
        "slow call rate" => "slow_rate",
        "consecutive failures" => "consecutive_failures",
        "open time" => "open_for",
        "probes" => "probes",
        _ => "kind",
    };
    SpecError::new(key, error.to_string())
}

impl Rule for BreakerRule {
    type Limiter = CircuitBreaker;
    const KIND: &'static str = "breaker";

    fn build(&self, clock: &Clock) -> Result<CircuitBreaker, SpecError> {
        self.builder().on(clock).build().map_err(fault)
    }

    fn check(&self) -> Result<(), SpecError> {
        self.builder().build().map(drop).map_err(fault)
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for BreakerRule {
    const KEYS: &'static [&'static str] = &[
        "count_window",
        "time_window",
        "minimum_calls",
        "failure_rate",
        "slow_after",
        "slow_rate",
        "consecutive_failures",
        "open_for",
        "probes",
    ];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let mut rule = Self::default();
        if table.has("count_window") && table.has("time_window") {
            return Err(table.wrong(
                "time_window",
                "a count window was given already, and one of both is allowed",
            ));
        }
        if let Some(calls) = table.whole("count_window", 1, BreakerBuilder::MAX_COUNT_WINDOW as u64)? {
            rule.count_window = calls as usize;
        }
        rule.time_window = table.time("time_window")?;
        if let Some(calls) = table.whole("minimum_calls", 1, u64::MAX)? {
            rule.minimum_calls = calls;
        }
        if let Some(rate) = table.real("failure_rate")? {
            rule.failure_rate = rate;
        }
        rule.slow_calls = match (table.time("slow_after")?, table.real("slow_rate")?) {
            (Some(after), Some(rate)) => Some((after, rate)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(table.missing("slow_rate", "the part of slow calls that opens, above 0 to 1"));
            }
            (None, Some(_)) => return Err(table.missing("slow_after", "what is slow, such as \"2s\"")),
        };
        rule.consecutive_failures = table.whole("consecutive_failures", 1, u32::MAX.into())?;
        if let Some(time) = table.time("open_for")? {
            rule.open_for = time;
        }
        if let Some(probes) = table.whole("probes", 1, BreakerBuilder::MAX_PROBES)? {
            rule.probes = probes;
        }
        Ok(rule)
    }
}
