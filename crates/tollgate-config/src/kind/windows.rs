//! Legs with a window.

use super::{Around, Kind, LegKind, fault, is_full};
use crate::spec::SpecError;
use crate::spec::text::limit;
use serde::{Deserialize, Serialize};
use std::time::Duration;
#[cfg(feature = "calendar")]
use tollgate::{CalendarPeriod, CalendarWindow};
use tollgate::{FixedWindow, Inherit, SlidingLog, SlidingWindow};

/// Writes how the limit of a window is changed.
macro_rules! set_limit {
    () => {
        fn put_in_force(&self, window: &Self::Limiter, inherit: Inherit) {
            window.set_limit(self.limit, inherit);
        }
    };
}

/// A [`FixedWindow`]. The length cannot be changed in place.
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

    fn fits(&self, before: &Self) -> bool {
        self.window == before.window
    }

    set_limit!();
    is_full!();
}

/// A [`SlidingWindow`]. The length and the number of segments cannot be changed in place.
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
        (self.window, self.segments) == (before.window, before.segments)
    }

    set_limit!();
    is_full!();
}

/// A [`SlidingLog`]. The length cannot be changed in place.
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
}

impl Kind for SlidingLogSpec {
    type Limiter = SlidingLog;

    fn build(&self, around: &Around<'_>) -> Result<SlidingLog, SpecError> {
        let log = SlidingLog::new(self.limit, self.window).map_err(fault("window"))?;
        Ok(log.on(around.clock))
    }

    fn fits(&self, before: &Self) -> bool {
        self.window == before.window
    }

    set_limit!();
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

    set_limit!();
    is_full!();
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
        SlidingLogSpec { limit, window }.into()
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
