//! A sliding log as a leg.

use super::*;
use super::shared::{fault, window_rule};
use crate::rate::SlidingLog;

/// A [`SlidingLog`](crate::SlidingLog).
///
/// ```
/// # use tollgate::policy::spec::{LegSpec, PolicySpec, SlidingLogRule};
/// # use tollgate::{LimiterExt, ManualClock};
/// # use std::time::Duration;
/// let rule = SlidingLogRule { limit: 100, window: Duration::from_secs(1), entries: Some(2) };
/// let clock = ManualClock::new();
/// let policy = PolicySpec::new([LegSpec::new("exact", rule)]).build(&clock)?;
/// for _ in 0..2 {
///     assert!(policy.try_admit(1).is_ok());
///     clock.advance(Duration::from_millis(1));
/// }
/// assert!(policy.try_admit(1).is_err(), "two admissions are all it remembers");
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLogRule {
    /// Units in any span of that length.
    pub limit: u64,
    /// The length.
    pub window: Duration,
    /// Admissions that it can remember; the limit unless set. Fewer refuse before the limit does. They cannot be changed in place.
    pub entries: Option<usize>,
}

impl SlidingLogRule {
    fn limiter(&self) -> Result<SlidingLog, SpecError> {
        let log = SlidingLog::new(self.limit, self.window).map_err(fault("window"))?;
        match self.entries {
            Some(entries) => log.max_entries(entries).map_err(fault("entries")),
            None => Ok(log),
        }
    }
}

impl Rule for SlidingLogRule {
    type Limiter = SlidingLog;
    const KIND: &'static str = "sliding-log";
    window_rule!();

    fn text(&self) -> String {
        let text = format!("{} per {:?}", self.limit, self.window);
        match self.entries {
            Some(entries) => format!("{text} in {entries} entries"),
            None => text,
        }
    }

    fn fixed(&self) -> String {
        self.entries.map(|entries| entries.to_string()).unwrap_or_default()
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for SlidingLogRule {
    const KEYS: &'static [&'static str] = &["limit", "window", "entries"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let (limit, window) = (super::shared::limit(table)?, super::shared::window(table)?);
        let entries = table.whole("entries", 1, 1 << 32)?.map(|entries| entries as usize);
        Ok(Self { limit, window, entries })
    }
}

impl LegRule {
    /// A sliding log with room for the whole limit.
    pub fn sliding_log(limit: u64, window: Duration) -> Self {
        let entries = None;
        SlidingLogRule { limit, window, entries }.into()
    }
}
