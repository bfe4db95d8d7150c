//! The kinds of legs: a variant of [`LegKind`] with its numbers, and how its limiter is built and changed.

mod custom;
#[cfg(feature = "resilience")]
mod resilience;

pub use custom::Kinds;
#[cfg(feature = "resilience")]
pub use resilience::{AdaptiveSpec, BreakerSpec, LawSpec};

use crate::file::{Node, Reader};
use crate::live::Built;
use crate::spec::{ConfigError, NumberOrText, PartitionsSpec, named};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::Shared;
use tollgate::policy::Partitions;
#[cfg(feature = "calendar")]
use tollgate::{CalendarPeriod, CalendarWindow};
use tollgate::{Clock, FixedWindow, LeakyBucket, Quota, Semaphore, SlidingLog, SlidingWindow, TokenBucket, Warmup};

/// The partitions of a running set, by name.
pub(crate) type LivePartitions = BTreeMap<String, (PartitionsSpec, Arc<Partitions>)>;

/// What a limiter is built with, beside its numbers.
#[derive(Clone, Default)]
pub(crate) struct Around {
    pub(crate) clock: Clock,
    pub(crate) kinds: Kinds,
    pub(crate) partitions: Arc<LivePartitions>,
}

impl Around {
    /// Without partitions.
    pub(crate) fn new(clock: &Clock, kinds: &Kinds) -> Self {
        Self {
            clock: clock.clone(),
            kinds: kinds.clone(),
            partitions: Arc::default(),
        }
    }
}

/// A kind of leg and its numbers: a built-in one, or one of the program's own that [`Kinds`] knows.
///
/// In a leg it is the key `kind`, beside the keys of its numbers. As a value of its own, serde writes it as any enum, and reads the
/// built-in kinds.
///
/// ```
/// # use tollgate_config::LegKind;
/// # use std::time::Duration;
/// let kind = LegKind::SlidingLog { limit: 10, window: Duration::from_secs(60) };
/// assert_eq!(kind.name(), "sliding-log");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(tag = "kind"))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LegKind {
    /// A [`TokenBucket`].
    TokenBucket {
        /// The rate and the burst.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        quota: Quota,
    },
    /// A [`LeakyBucket`].
    LeakyBucket {
        /// The rate.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        quota: Quota,
        /// Units that may catch up with the spacing.
        #[serde(default)]
        slack: u64,
    },
    /// A [`Warmup`]. The `period` and the `cold_factor` cannot be changed in place.
    Warmup {
        /// The rate when it is warm.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        quota: Quota,
        /// How long it takes to get warm.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        period: Duration,
        /// How many times longer the interval is when it is cold.
        #[serde(default = "LegKind::cold_factor")]
        cold_factor: u32,
    },
    /// A [`FixedWindow`]. The length cannot be changed in place.
    FixedWindow {
        /// Units per window; in a file `"unlimited"` as well.
        #[serde(with = "NumberOrText")]
        limit: u64,
        /// The length of a window.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        window: Duration,
    },
    /// A [`CalendarWindow`]. The period and the time zone cannot be changed in place.
    #[cfg(feature = "calendar")]
    CalendarWindow {
        /// Units per period; in a file `"unlimited"` as well.
        #[serde(with = "NumberOrText")]
        limit: u64,
        /// The period.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        period: CalendarPeriod,
        /// The IANA name of the time zone.
        #[serde(default = "LegKind::utc")]
        time_zone: String,
    },
    /// A [`SlidingWindow`]. The length and the number of segments cannot be changed in place.
    SlidingWindow {
        /// Units per window; in a file `"unlimited"` as well.
        #[serde(with = "NumberOrText")]
        limit: u64,
        /// The length of a window.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        window: Duration,
        /// The parts of the window that are counted apart.
        #[serde(default = "LegKind::segments")]
        segments: usize,
    },
    /// A [`SlidingLog`]. The length cannot be changed in place.
    SlidingLog {
        /// Units per window; in a file `"unlimited"` as well.
        #[serde(with = "NumberOrText")]
        limit: u64,
        /// The length of a window.
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        window: Duration,
    },
    /// A [`Semaphore`].
    Semaphore {
        /// Units at once.
        limit: usize,
    },
    /// A [class](tollgate::policy::Class) of [`Partitions`] that several policies share.
    ///
    /// The partitions are those of the [`PolicySetSpec`](crate::PolicySetSpec) that the policy stands in. A policy alone has none, and
    /// is refused.
    ///
    /// ```
    /// # use tollgate_config::{LegKind, LegSpec, PartitionsSpec, PolicySetSpec, PolicySpec, ShareSpec};
    /// # use tollgate::{LimiterExt, ManualClock};
    /// let mut spec = PolicySetSpec::default();
    /// let share = ShareSpec::Levels([("live".into(), 1.0), ("batch".into(), 0.5)].into());
    /// spec.partitions.insert("gpus".into(), PartitionsSpec { limit: 4, share });
    /// for class in ["live", "batch"] {
    ///     let leg = LegSpec::new("gpus", LegKind::Partition { of: "gpus".into(), class: class.into() });
    ///     spec.policies.insert(class.into(), PolicySpec::new([leg]));
    /// }
    /// let set = spec.build(&ManualClock::new())?;
    /// let (live, batch) = (set.policy("live")?, set.policy("batch")?);
    /// let held = live.try_admit(2)?;
    /// assert!(batch.try_admit(1).is_err(), "half of them are in use");
    /// assert!(live.try_admit(2).is_ok());
    /// assert_eq!(set.partitions("gpus")?.in_use(), 2);
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Partition {
        /// The name of the partitions.
        of: String,
        /// The name of the class.
        class: String,
    },
    /// A breaker.
    #[cfg(feature = "resilience")]
    Breaker(BreakerSpec),
    /// A limit or a rate that adapts.
    #[cfg(feature = "resilience")]
    Adaptive(AdaptiveSpec),
    /// A kind of the program's own: see [`Kinds`].
    #[serde(skip_deserializing)]
    #[cfg_attr(feature = "schema", schemars(untagged))]
    Custom {
        /// The name of the kind.
        kind: String,
        /// Its numbers.
        #[serde(flatten)]
        numbers: Map<String, Value>,
    },
}

/// A fault of `key`.
fn fault<E: fmt::Display>(key: &'static str) -> impl Fn(E) -> ConfigError {
    move |error| ConfigError::new(key, error.to_string())
}

impl LegKind {
    /// Builds the limiter, and tells how another one that [fits](Self::fits) is changed to its numbers.
    pub(crate) fn build(&self, around: &Around) -> Result<Built, ConfigError> {
        let clock = &around.clock;
        // Numbers that have been checked are not refused by a change; refused ones would leave the old in force.
        Ok(match *self {
            Self::TokenBucket { quota } => {
                let bucket = TokenBucket::new(quota).on(clock);
                Built::new(bucket, move |bucket, inherit| bucket.set_quota(quota, inherit))
            }
            Self::LeakyBucket { quota, slack } => {
                let bucket = LeakyBucket::new(quota).slack(slack).map_err(fault("slack"))?.on(clock);
                Built::new(bucket, move |bucket, inherit| bucket.set_quota(quota, slack, inherit))
            }
            Self::Warmup {
                quota,
                period,
                cold_factor,
            } => {
                let warmup = Warmup::new(quota, period).map_err(fault("period"))?;
                let warmup = warmup.cold_factor(cold_factor).map_err(fault("cold_factor"))?.on(clock);
                Built::new(warmup, move |warmup, inherit| warmup.set_quota(quota, inherit))
            }
            Self::FixedWindow { limit, window } => {
                let window = FixedWindow::new(limit, window).map_err(fault("window"))?.on(clock);
                Built::new(window, move |window, inherit| window.set_limit(limit, inherit))
            }
            #[cfg(feature = "calendar")]
            Self::CalendarWindow {
                limit,
                period,
                ref time_zone,
            } => {
                let window = CalendarWindow::new(limit, period, time_zone)
                    .map_err(fault("time_zone"))?
                    .on(clock);
                Built::new(window, move |window, inherit| window.set_limit(limit, inherit))
            }
            Self::SlidingWindow {
                limit,
                window,
                segments,
            } => {
                let window = SlidingWindow::new(limit, window).map_err(fault("window"))?;
                let window = window.segments(segments).map_err(fault("segments"))?.on(clock);
                Built::new(window, move |window, inherit| window.set_limit(limit, inherit))
            }
            Self::SlidingLog { limit, window } => {
                let log = SlidingLog::new(limit, window).map_err(fault("window"))?.on(clock);
                Built::new(log, move |log, inherit| log.set_limit(limit, inherit))
            }
            Self::Semaphore { limit } => {
                let most = Semaphore::MAX_PERMITS;
                if limit > most {
                    let allowed = format_args!("a whole number of 0 to {most}");
                    return Err(ConfigError::given("limit", limit, allowed));
                }
                Built::new(Semaphore::new(limit), move |semaphore, _| semaphore.set_limit(limit))
            }
            Self::Partition { ref of, ref class } => {
                let known = named(&around.partitions, of, "partitions");
                let (spec, partitions) = known.map_err(|error| error.within("of"))?;
                let Some(number) = spec.classes().position(|known| known == class) else {
                    let what = format!("class of `{of}`");
                    return Err(ConfigError::unknown(class, &what, spec.classes()).within("class"));
                };
                // A key of a map may go while others hold permits.
                Built::fixed(Shared::from(Arc::clone(partitions.class(number))))
            }
            #[cfg(feature = "resilience")]
            Self::Breaker(ref breaker) => Built::fixed(breaker.build(around)?),
            #[cfg(feature = "resilience")]
            Self::Adaptive(ref adaptive) => adaptive.build(around)?,
            Self::Custom { ref kind, ref numbers } => Built::fixed(around.kinds.build(kind, numbers, clock)?),
        })
    }

    /// True when a limiter of the numbers `before`, if it can be changed at all, can be changed to these while it runs.
    pub(crate) fn fits(&self, before: &Self) -> bool {
        let [fixed, before] = [self, before].map(|kind| {
            let mut table = kind.table().unwrap_or_default();
            table.retain(|key, _| !["quota", "slack", "limit"].contains(&&**key));
            table
        });
        fixed == before
    }

    /// The name of the kind, as in a file.
    pub fn name(&self) -> String {
        let table = self.table().unwrap_or_default();
        table.get("kind").and_then(Value::as_str).unwrap_or_default().into()
    }

    /// Reads the kind of a leg and its numbers. A name that no built-in kind has is one of the program's own.
    pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = BTreeMap::deserialize(deserializer)?;
        Self::of_table(table).map_err(D::Error::custom)
    }

    fn of_table(mut table: BTreeMap<String, Node>) -> Result<Self, ConfigError> {
        let kind = table.remove("kind").ok_or_else(|| ConfigError::missing_field("kind"))?;
        let kind = String::deserialize(Reader(&kind)).map_err(|error| error.within("kind"))?;
        let numbers = Node::Table(table);
        let tagged = Node::Table([(kind.clone(), numbers.clone())].into());
        Self::deserialize(Reader(&tagged)).or_else(|error| match error.of_kind() {
            error if error.path() == ["kind"] => {
                let numbers = Map::deserialize(Reader(&numbers))?;
                Ok(Self::Custom { kind, numbers })
            }
            error => Err(error),
        })
    }

    /// Writes it as a table with a kind.
    pub(crate) fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let table = self.table().map_err(S::Error::custom)?;
        table.serialize(serializer)
    }

    /// The kind and its numbers: serde writes it as a table of one key, its name.
    fn table(&self) -> Result<Map<String, Value>, serde_json::Error> {
        let tagged = serde_json::from_value::<BTreeMap<String, Map<String, Value>>>(serde_json::to_value(self)?)?;
        let (kind, mut table) = tagged.into_iter().next().unwrap_or_default();
        table.retain(|_, number| !number.is_null());
        table.entry("kind").or_insert(kind.into());
        Ok(table)
    }

    fn cold_factor() -> u32 {
        3
    }

    fn segments() -> usize {
        SlidingWindow::SEGMENTS
    }

    #[cfg(feature = "calendar")]
    fn utc() -> String {
        "UTC".to_owned()
    }
}
