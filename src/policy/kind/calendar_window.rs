//! A calendar window as a leg.

use super::*;
use super::shared::{fault, limit_rule};
use crate::rate::{CalendarPeriod, CalendarWindow};

/// A [`CalendarWindow`](crate::CalendarWindow).
///
/// ```
/// # use tollgate::CalendarPeriod;
/// # use tollgate::policy::spec::{CalendarWindowRule, LegSpec, PolicySpec};
/// let time_zone = "Europe/Berlin".to_string();
/// let rule = CalendarWindowRule { limit: 10_000, period: CalendarPeriod::Month, time_zone };
/// assert!(PolicySpec::new([LegSpec::new("plan", rule.clone())]).check().is_ok());
/// let nowhere = CalendarWindowRule { time_zone: "Nowhere".into(), ..rule };
/// assert_eq!(PolicySpec::new([LegSpec::new("plan", nowhere)]).check().unwrap_err().key(), "time_zone");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarWindowRule {
    /// Units per period.
    pub limit: u64,
    /// The period. It cannot be changed in place.
    pub period: CalendarPeriod,
    /// The IANA name of the time zone. It cannot be changed in place.
    pub time_zone: String,
}

impl CalendarWindowRule {
    fn limiter(&self) -> Result<CalendarWindow, SpecError> {
        CalendarWindow::new(self.limit, self.period, &self.time_zone).map_err(fault("time_zone"))
    }
}

impl Rule for CalendarWindowRule {
    type Limiter = CalendarWindow;
    const KIND: &'static str = "calendar-window";
    limit_rule!();

    fn text(&self) -> String {
        format!("{} per {} of {}", self.limit, self.period.name(), self.time_zone)
    }

    fn fixed(&self) -> String {
        // Names of zones are the same in any case.
        format!("{} of {}", self.period.name(), self.time_zone.to_ascii_lowercase())
    }

    fn change(&self, window: &CalendarWindow, to: &Self, inherit: Inherit) {
        if self.limit != to.limit {
            window.set_limit(to.limit, inherit);
        }
        window.adopt_settings();
    }

    fn tighter(&self, other: &Self) -> Self {
        Self {
            limit: self.limit.min(other.limit),
            ..self.clone()
        }
    }

    fn per_second(&self) -> Option<f64> {
        Some(self.limit as f64 / self.period.mean().as_secs_f64())
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for CalendarWindowRule {
    const KEYS: &'static [&'static str] = &["limit", "period", "time_zone"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let periods = CalendarPeriod::ALL.map(|period| (period.name(), period));
        let period = table.choice("period", &periods)?;
        Ok(Self {
            limit: super::shared::limit(table)?,
            period: period.ok_or_else(|| table.missing("period", "hour, day, week or month"))?,
            time_zone: table.text("time_zone", "the name of a time zone")?.unwrap_or("UTC").to_owned(),
        })
    }
}

impl LegRule {
    /// A window of a calendar in UTC.
    pub fn calendar_window(limit: u64, period: CalendarPeriod) -> Self {
        CalendarWindowRule {
            limit,
            period,
            time_zone: "UTC".to_owned(),
        }
        .into()
    }
}
