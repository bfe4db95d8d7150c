//! Legs with a window.

use super::{Around, Kind, LegKind, fault, is_full};
use crate::spec::SpecError;
use crate::spec::text::limit;
use serde::{Deserialize, Serialize};
use std::time::Duration;
#[cfg(feature = "calendar")]
use tollgate::{CalendarPeriod, CalendarWindow};
use tollgate::{FixedWindow, Inherit, SlidingLog, SlidingWindow};

/// Writes how a window of a length is changed.
macro_rules! set_window {
    () => {
        fn put_in_force(&self, window: &Self::Limiter, inherit: Inherit) {
            // Numbers that have been checked are not refused; refused ones would leave the old in force.
            if self.window != window.length() {
                let _ = window.set_length(self.window);
            }
            window.set_limit(self.limit, inherit);
        }
    };
}

/// A [`FixedWindow`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FixedWindowSpec {
    /// Units per window; in a file `"unlimited"` as well.
    #[serde(with = "limit")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::spec::NumberOrText"))]
    pub limit: u64,
    /// The length of a window.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub window: Duration,
}

impl Kind for FixedWindowSpec {
    type Limiter = FixedWindow;

    fn build(&self, around: &Around<'_>) -> Result<FixedWindow, SpecError> {
        let window = FixedWindow::new(self.limit, self.window).map_err(fault("window"))?;
        Ok(window.on(around.clock))
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }

    set_window!();
    is_full!();
}

/// A [`SlidingWindow`]. The number of segments cannot be changed in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlidingWindowSpec {
    /// Units per window; in a file `"unlimited"` as well.
    #[serde(with = "limit")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::spec::NumberOrText"))]
    pub limit: u64,
    /// The length of a window.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub window: Duration,
    /// The parts of the window that are counted apart.
    #[serde(default = "SlidingWindowSpec::segments")]
    pub segments: usize,
}

impl SlidingWindowSpec {
    fn segments() -> usize {
        SlidingWindow::SEGMENTS
    }
}

impl Kind for SlidingWindowSpec {
    type Limiter = SlidingWindow;

    fn build(&self, around: &Around<'_>) -> Result<SlidingWindow, SpecError> {
        let window = SlidingWindow::new(self.limit, self.window).map_err(fault("window"))?;
        Ok(window
            .segments(self.segments)
            .map_err(fault("segments"))?
            .on(around.clock))
    }

    fn fits(&self, before: &Self) -> bool {
        self.segments == before.segments
    }

    set_window!();
    is_full!();
}

/// A [`SlidingLog`]. The number of entries cannot be changed in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlidingLogSpec {
    /// Units per window; in a file `"unlimited"` as well.
    #[serde(with = "limit")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::spec::NumberOrText"))]
    pub limit: u64,
    /// The length of a window.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub window: Duration,
    /// The most entries that are kept; as many as the limit without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<usize>,
}

impl Kind for SlidingLogSpec {
    type Limiter = SlidingLog;

    fn build(&self, around: &Around<'_>) -> Result<SlidingLog, SpecError> {
        let log = SlidingLog::new(self.limit, self.window).map_err(fault("window"))?;
        let log = match self.entries {
            Some(entries) => log.max_entries(entries).map_err(fault("entries"))?,
            None => log,
        };
        Ok(log.on(around.clock))
    }

    fn fits(&self, before: &Self) -> bool {
        self.entries == before.entries
    }

    set_window!();
    is_full!();
}

/// A [`CalendarWindow`]. The period and the time zone cannot be changed in place.
#[cfg(feature = "calendar")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalendarWindowSpec {
    /// Units per period; in a file `"unlimited"` as well.
    #[serde(with = "limit")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::spec::NumberOrText"))]
    pub limit: u64,
    /// The period.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub period: CalendarPeriod,
    /// The IANA name of the time zone.
    #[serde(default = "CalendarWindowSpec::utc")]
    pub time_zone: String,
}

#[cfg(feature = "calendar")]
impl CalendarWindowSpec {
    fn utc() -> String {
        "UTC".to_owned()
    }
}

#[cfg(feature = "calendar")]
impl Kind for CalendarWindowSpec {
    type Limiter = CalendarWindow;

    fn build(&self, around: &Around<'_>) -> Result<CalendarWindow, SpecError> {
        let window = CalendarWindow::new(self.limit, self.period, &self.time_zone);
        Ok(window.map_err(fault("time_zone"))?.on(around.clock))
    }

    fn fits(&self, before: &Self) -> bool {
        // Names of zones are the same in any case.
        self.period == before.period && self.time_zone.eq_ignore_ascii_case(&before.time_zone)
    }

    is_full!();

    fn put_in_force(&self, window: &CalendarWindow, inherit: Inherit) {
        window.set_limit(self.limit, inherit);
    }
}

impl LegKind {
    /// A fixed window.
    pub fn fixed_window(limit: u64, window: Duration) -> Self {
        FixedWindowSpec { limit, window }.into()
    }

    /// A sliding window.
    pub fn sliding_window(limit: u64, window: Duration) -> Self {
        let segments = SlidingWindowSpec::segments();
        SlidingWindowSpec {
            limit,
            window,
            segments,
        }
        .into()
    }

    /// A sliding log.
    pub fn sliding_log(limit: u64, window: Duration) -> Self {
        let entries = None;
        SlidingLogSpec { limit, window, entries }.into()
    }

    /// A window of a calendar in UTC.
    #[cfg(feature = "calendar")]
    pub fn calendar_window(limit: u64, period: CalendarPeriod) -> Self {
        let time_zone = CalendarWindowSpec::utc();
        CalendarWindowSpec {
            limit,
            period,
            time_zone,
        }
        .into()
    }
}
