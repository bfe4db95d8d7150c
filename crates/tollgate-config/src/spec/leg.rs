//! One leg as data: its kind, and when and how it applies.

#[cfg(feature = "schema")]
use super::text::NumberOrText;
use super::{ConfigError, text};
use crate::kind::LegKind;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use tollgate::Inherit;
use tollgate::policy::conditional::LoadMetric;

/// One leg of a policy.
///
/// ```
/// # use tollgate::Inherit;
/// # use tollgate_config::{LegKind, LegSpec};
/// let kind = LegKind::TokenBucket { quota: "90000/min".parse()? };
/// let (per, inherit) = (Some("tokens".into()), Inherit::Proportional);
/// let leg = LegSpec { per, inherit, shadow: true, ..LegSpec::new("tokens", kind) };
/// assert_eq!((&*leg.name, &*leg.kind.name(), leg.per.as_deref(), leg.shadow), ("tokens", "token-bucket", Some("tokens"), true));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegSpec {
    /// Its name, unique in its policy. The leg of the same name, kind and cost in the next version is the same leg.
    pub name: String,
    /// Its kind and its numbers.
    #[serde(flatten, deserialize_with = "LegKind::read", serialize_with = "LegKind::write")]
    pub kind: LegKind,
    /// The name of the cost that it counts; without it, calls.
    #[serde(default, deserialize_with = "LegSpec::cost", skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// What becomes of its state when a version changes its numbers.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub inherit: Inherit,
    /// It is counted, and refuses nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shadow: bool,
    /// The policy does not wait for it: see [`LimiterExt::at_once`](tollgate::LimiterExt::at_once).
    #[serde(default, skip_serializing_if = "is_default")]
    pub at_once: bool,
    /// It applies only while another leg is under load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl LegSpec {
    fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        let cost = Option::<String>::deserialize(deserializer)?;
        Ok(cost.filter(|cost| cost != "call"))
    }

    /// A leg that counts calls.
    pub fn new(name: impl Into<String>, kind: LegKind) -> Self {
        Self {
            name: name.into(),
            kind,
            per: None,
            inherit: Inherit::AsIs,
            shadow: false,
            at_once: false,
            when: None,
        }
    }
}

/// A leg applies only while the load of another is above a mark.
///
/// The load of a leg in a policy's own request counts at the legs behind it: put the leg that depends on a load first.
///
/// ```
/// # use tollgate::policy::conditional::LoadMetric;
/// # use tollgate::{LimiterExt, ManualClock};
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec, When};
/// let busy = When { below: Some(0.5), ..When::above("slots", LoadMetric::Use, 0.8) };
/// let calls = LegSpec { when: Some(busy), ..LegSpec::new("calls", LegKind::TokenBucket { quota: "1/s".parse()? }) };
/// let slots = LegSpec::new("slots", LegKind::Semaphore { limit: 10 });
/// let policy = PolicySpec::new([calls, slots]).build(&ManualClock::new())?;
/// let _held = policy.try_admit(9)?; // No rate while the slots are idle.
/// assert!(policy.try_admit(1).is_ok());
/// assert_eq!(policy.limiter().leg("calls").map(|leg| leg.applies), Some(true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The name of the other leg.
    pub load_of: String,
    /// What is measured of it.
    #[serde(default = "When::metric")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub metric: LoadMetric,
    /// It starts to apply above this. A latency counts in seconds; a file may give a time.
    #[serde(deserialize_with = "text::load")]
    #[cfg_attr(feature = "schema", schemars(with = "NumberOrText"))]
    pub above: f64,
    /// It stops to apply at or below this; without it, at `above`.
    #[serde(default, deserialize_with = "text::load", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<NumberOrText>"))]
    pub below: Option<f64>,
    /// The span that rates and latencies are measured over: a second unless it is given.
    #[serde(default = "When::over", with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub over: Duration,
}

impl When {
    /// While `metric` of `leg` is above `above`, measured over a second.
    pub fn above(leg: impl Into<String>, metric: LoadMetric, above: f64) -> Self {
        Self {
            load_of: leg.into(),
            metric,
            above,
            below: None,
            over: Self::over(),
        }
    }

    /// Refuses numbers that no load could have.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let above = self.above;
        if self.over.is_zero() || self.over > Duration::from_secs(24 * 3_600) {
            let over = humantime::format_duration(self.over);
            return Err(ConfigError::given("over", over, "above zero to 24 hours"));
        }
        if !above.is_finite() || above < 0.0 {
            return Err(ConfigError::given("above", above, "a number of at least 0"));
        }
        let below = self.below.unwrap_or_default();
        if !(0.0..=above).contains(&below) {
            let allowed = format_args!("0 to {above}, which is `above`,");
            return Err(ConfigError::given("below", below, allowed));
        }
        Ok(())
    }

    fn metric() -> LoadMetric {
        LoadMetric::Use
    }

    fn over() -> Duration {
        Duration::from_secs(1)
    }
}
