//! The calendar window: a count that starts anew with each hour, day, week or month of a time zone.
//!
//! The borders of its ring come from a calendar: the end of the current period is computed when the period begins, so that an
//! admission compares one number.
//!
//! # Periods
//! The periods of a calendar are numbered by the local dates: hours and days since 1970, weeks and months alike. A
//! period begins at the first instant at which the local clock shows its number, or a later one. So a day has 23, 24 or
//! 25 hours. A day whose midnight does not exist begins with its first hour. A local time that comes twice is in one period. A period that a change of the offset skips altogether is none: it has no length, and admits nothing.

use super::limiter::Rate;
use super::meter::Locked;
use super::ring::{Borders, Ring};
use crate::time::{Clock, Instant, nanos_since_1970};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use std::fmt;
use std::time::Duration;

/// Admits at most `limit` per hour, day, week or month of a time zone, and starts to count anew at each border: a daily
/// budget, or a monthly plan.
///
/// ```
/// # use tollgate::{CalendarPeriod, CalendarWindow, ManualClock};
/// # use std::time::{Duration, UNIX_EPOCH};
/// let clock = ManualClock::new();
/// // 2026-03-28 23:00 UTC, midnight in Berlin, at the start of a day of 23 hours.
/// clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_774_738_800));
/// let budget = CalendarWindow::new(1_000, CalendarPeriod::Day, "Europe/Berlin")?.on(&clock);
/// assert!(budget.try_acquire(1_000).is_ok());
/// let hour = Duration::from_secs(3_600);
/// assert_eq!(budget.try_acquire(1).unwrap_err().retry_after(), Some(23 * hour));
/// clock.advance(23 * hour);
/// assert!(budget.try_acquire(1_000).is_ok());
/// assert_eq!(budget.time_until(1), Some(24 * hour));
/// # Ok::<(), tollgate::TimeZoneError>(())
/// ```
///
/// An hour begins with the full hour of the local clock, a day at midnight, a week on Monday (ISO 8601), a month on the
/// 1st. The clock changes are those of the zone: a day has 23 or 25 hours where they say so. A day whose midnight does
/// not exist begins with its first instant. An hour that comes twice is one period of two hours, and one that is left
/// out is none.
///
/// A cancel or a settlement gives back exactly, in any order, as long as its period runs. Units beyond the limit
/// ([`force_acquire`](Self::force_acquire), a settlement) count in the period in which they were taken, and leave with it.
///
/// The count is in memory: a process that starts anew begins with an empty period. Charge the units that are known to be
/// used, from a bill or a log, by [`force_acquire`](Self::force_acquire).
///
/// # Time zones
/// The data of a zone is read when the window is made: from the system's time zone database if it has the zone, else
/// from the copy that is compiled in (200 kB). An admission reads no file. A keyed map makes a window for each new key, whose
/// first use may read one. Rules that are published later are in force
/// for windows that are made later.
///
/// # The wall clock
/// Periods follow [`Clock::wall`]. It is read when the window is made, when a period ends, and by the first admission or
/// look a minute after the last reading. Between the readings the monotonic clock counts, so a promised instant is kept
/// to the nanosecond as long as the wall clock is not set.
///
/// | the wall clock | then |
/// |---|---|
/// | drifts from the monotonic clock, up to a second | the period that was promised begins at the promised instant |
/// | is set forward beyond the end of the period | the next period begins with the next reading: at most `limit` units more |
/// | is set back, within the period | the period ends later |
/// | is set back by up to an hour beyond the start of the period | the same: no period begins twice |
/// | is set back by more | the count goes on to the next border of the wall clock: at most `limit` units more |
///
/// A machine that sleeps is a clock that is set forward. A waiter of a [`Policy`](crate::Policy) sleeps by the monotonic
/// clock to the border that was known when it began to wait. If the wall clock is set forward meanwhile, or the machine
/// sleeps, the first reading that finds the new border wakes it. It wakes up at the known border at the latest.
///
/// No period has more than `limit`, as the window's own time counts.
pub type CalendarWindow = Rate<Locked<Ring<Civil>>>;

/// The period of a [`CalendarWindow`].
///
/// ```
/// # use tollgate::{CalendarPeriod, CalendarWindow};
/// for period in CalendarPeriod::ALL {
///     assert_eq!(CalendarWindow::new(100, period, "UTC")?.available(), 100);
/// }
/// # Ok::<(), tollgate::TimeZoneError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum CalendarPeriod {
    /// From full hour to full hour.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the 1st to the 1st.
    Month,
}

impl CalendarPeriod {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hour, Self::Day, Self::Week, Self::Month];
}

/// A time zone that neither the system nor the compiled-in database knows.
///
/// ```
/// # use tollgate::{CalendarPeriod, CalendarWindow};
/// let error = CalendarWindow::new(10, CalendarPeriod::Day, "Europe/Berlim").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the time zone `Europe/Berlim` was given, and a name of the IANA database such as `Europe/Berlin` or `UTC` is allowed"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeZoneError {
    given: Box<str>,
}

impl fmt::Display for TimeZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = &self.given;
        write!(
            f,
            "the time zone `{given}` was given, and a name of the IANA database such as `Europe/Berlin` or `UTC` is allowed"
        )
    }
}

impl std::error::Error for TimeZoneError {}

impl Rate<Locked<Ring<Civil>>> {
    /// At most `limit` per `period` of the zone with this IANA name, on the real clock, from now on. A limit of zero admits
    /// nothing.
    ///
    /// # Errors
    /// [`TimeZoneError`] when no such zone is known.
    ///
    /// ```
    /// # use tollgate::{CalendarPeriod, CalendarWindow, Inherit, ManualClock};
    /// let budget = CalendarWindow::new(100, CalendarPeriod::Month, "UTC")?.on(&ManualClock::new());
    /// assert_eq!(budget.acquire_up_to(150), 100);
    /// budget.set_limit(120, Inherit::AsIs);
    /// assert_eq!(budget.available(), 20);
    /// budget.force_acquire(30); // Known from the bill.
    /// assert!(budget.debt() == 10 && budget.time_until(1).is_some());
    /// budget.reset();
    /// assert_eq!(budget.available(), 120);
    /// # Ok::<(), tollgate::TimeZoneError>(())
    /// ```
    pub fn new(limit: u64, period: CalendarPeriod, time_zone: &str) -> Result<Self, TimeZoneError> {
        let zone = TimeZone::get(time_zone).or_else(|_| TimeZoneDatabase::bundled().get(time_zone));
        // A zone without a name is `Etc/Unknown`, of which no rules are known.
        let zone = zone.ok().filter(|zone| zone.iana_name().is_some());
        let zone = zone.ok_or_else(|| TimeZoneError {
            given: time_zone.into(),
        })?;
        Ok(Self::build(limit, Calendar { zone, period }, &Clock::real()))
    }

    fn build(limit: u64, calendar: Calendar, clock: &Clock) -> Self {
        let now = clock.now().ticks();
        Self::of(
            Locked::new(Ring::new(now, Civil::new(calendar, clock, now), limit)),
            clock,
        )
    }

    /// The same window on `clock`, and by its [time of day](Clock::wall), empty. It reads no file.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let calendar = self.meter.look(|ring| ring.borders.calendar.clone());
        Self::build(self.limit(), calendar, clock)
    }
}

/// The local dates of a time zone, cut into periods. Instants are seconds since 1970.
#[derive(Clone)]
struct Calendar {
    zone: TimeZone,
    period: CalendarPeriod,
}

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;
/// The Monday before 1970.
const MONDAY: i64 = -3 * DAY;

/// The nearest timestamp that there is.
fn timestamp(second: i64) -> Timestamp {
    let second = second.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(second).unwrap_or_default()
}

impl Calendar {
    /// What the local clock shows, as seconds since its 1970.
    fn local(&self, second: i64) -> i64 {
        let offset = self.zone.to_offset(timestamp(second));
        second.saturating_add(offset.seconds().into())
    }

    /// The number of the period of a local time.
    fn number(&self, local: i64) -> i64 {
        match self.period {
            CalendarPeriod::Hour => local.div_euclid(HOUR),
            CalendarPeriod::Day => local.div_euclid(DAY),
            CalendarPeriod::Week => local.saturating_sub(MONDAY).div_euclid(WEEK),
            CalendarPeriod::Month => {
                let date = Offset::UTC.to_datetime(timestamp(local));
                i64::from(date.year()) * 12 + i64::from(date.month()) - 1
            }
        }
    }

    /// The local time at which a period begins; `None` outside the years that have dates.
    fn local_start(&self, number: i64) -> Option<DateTime> {
        let second = match self.period {
            CalendarPeriod::Hour => number.checked_mul(HOUR)?,
            CalendarPeriod::Day => number.checked_mul(DAY)?,
            CalendarPeriod::Week => number.checked_mul(WEEK)?.checked_add(MONDAY)?,
            CalendarPeriod::Month => {
                let year = i16::try_from(number.div_euclid(12)).ok()?;
                let month = i8::try_from(number.rem_euclid(12) + 1).ok()?;
                return Some(Date::new(year, month, 1).ok()?.into());
            }
        };
        Some(Offset::UTC.to_datetime(Timestamp::from_second(second).ok()?))
    }

    /// The first instant at which the local clock shows this period, or a later one.
    fn start(&self, number: i64) -> Option<i64> {
        let local = self.local_start(number)?;
        let ambiguous = self.zone.to_ambiguous_timestamp(local);
        let in_gap = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let earlier = ambiguous.earlier().ok()?;
        if !in_gap {
            return Some(earlier.as_second());
        }
        // It is left out: the first instant behind the gap.
        let mut transitions = self.zone.following(earlier);
        let end = transitions.find(|after| after.offset().to_datetime(after.timestamp()) >= local)?;
        Some(end.timestamp().as_second())
    }

    /// The number of the period of an instant.
    fn period_at(&self, second: i64) -> i64 {
        let mut number = self.number(self.local(second));
        // It has begun before, and the local clock was set back since.
        while self.start(number + 1).is_some_and(|start| start <= second) {
            number += 1;
        }
        number
    }

    /// How many periods of no length there are after `from`, up to `to`.
    fn skipped(&self, from: i64, to: i64) -> i64 {
        let transitions = self.zone.following(timestamp(from));
        let transitions = transitions.map(|after| after.timestamp().as_second());
        let skips = |at: i64| self.number(self.local(at)) - self.number(self.local(at - 1)) - 1;
        transitions.take_while(|at| *at <= to).map(|at| skips(at).max(0)).sum()
    }

    /// The start of the period `periods` after the one with this number, which began at `began`. `None` after `latest`.
    fn start_after(&self, number: i64, began: i64, periods: u64, latest: i64) -> Option<i64> {
        let straight = number.checked_add(i64::try_from(periods).ok()?)?;
        let mut skipped = 0;
        loop {
            let start = self.start(straight.checked_add(skipped)?)?;
            if start > latest {
                return None;
            }
            let all = self.skipped(began, start);
            if all == skipped {
                return Some(start);
            }
            skipped = all;
        }
    }
}

/// A step of the wall clock that is taken for drift: a promised border is kept.
const DRIFT: i64 = 1;
/// A step back that is waited out: no period begins twice.
const STEP_BACK: i64 = HOUR;
/// How long a reading of the wall clock serves.
const READ_EVERY: Duration = Duration::from_secs(60);

/// The borders of a [`CalendarWindow`]: those of a calendar's periods, on a clock.
pub struct Civil {
    calendar: Calendar,
    clock: Clock,
    /// The current period's number, and when it begins and ends, in seconds since 1970.
    number: i64,
    began: i64,
    ends: Option<i64>,
    /// When it ends, in ticks.
    end: u64,
    /// It has come earlier than it was told.
    early: bool,
    /// When the wall clock is read again.
    due: u64,
    /// The last reading, in nanoseconds since 1970, and its instant.
    wall: i128,
    at: u64,
}

fn nanos(second: i64) -> i128 {
    i128::from(second) * 1_000_000_000
}

impl Civil {
    fn new(calendar: Calendar, clock: &Clock, now: u64) -> Self {
        let mut civil = Self {
            calendar,
            clock: clock.clone(),
            number: 0,
            began: 0,
            ends: None,
            end: 0,
            early: false,
            due: 0,
            wall: 0,
            at: 0,
        };
        civil.read_wall(now);
        civil.enter(civil.second());
        civil.end = civil.tick_of(civil.ends);
        civil.set_due();
        civil
    }

    /// Reads the wall clock, as of `now`.
    fn read_wall(&mut self, now: u64) {
        let (at, now) = (self.clock.now(), Instant::from_ticks(now));
        let since = self.clock.between(at, now).as_nanos() as i128;
        let before = self.clock.between(now, at).as_nanos() as i128;
        self.wall = nanos_since_1970(self.clock.wall()) + since - before;
        self.at = now.ticks();
    }

    /// The second that the wall clock showed.
    fn second(&self) -> i64 {
        self.wall.div_euclid(nanos(1)) as i64
    }

    /// True when the wall clock showed an instant before `second`, by at most `slack`.
    fn is_just_before(&self, second: i64, slack: i64) -> bool {
        (nanos(second.saturating_sub(slack))..nanos(second)).contains(&self.wall)
    }

    /// Makes the period of an instant the current one.
    fn enter(&mut self, second: i64) {
        self.number = self.calendar.period_at(second);
        self.began = self.calendar.start(self.number).unwrap_or(second);
        self.ends = self.start_after(1);
    }

    fn set_due(&mut self) {
        let next = self.clock.after(Instant::from_ticks(self.at), READ_EVERY).ticks();
        self.due = if self.early { 0 } else { self.end.min(next) };
    }

    /// No instant beyond what a clock shows is looked for.
    fn start_after(&self, periods: u64) -> Option<i64> {
        let latest = self.began.saturating_add(600 * 366 * DAY);
        self.calendar.start_after(self.number, self.began, periods, latest)
    }

    /// The instant of a border, after the last reading.
    fn tick_of(&self, second: Option<i64>) -> u64 {
        let Some(second) = second else { return u64::MAX };
        let ahead = (nanos(second) - self.wall).max(0);
        let ahead = Duration::from_nanos(u64::try_from(ahead).unwrap_or(u64::MAX));
        self.clock.after(Instant::from_ticks(self.at), ahead).ticks()
    }
}

impl Borders for Civil {
    const LEG: &'static str = "calendar_window";
    const MAY_COME_EARLY: bool = true;

    fn before(&self) -> usize {
        0
    }

    fn length(&self) -> Duration {
        let seconds = self.ends.map_or(0, |ends| ends - self.began);
        Duration::from_secs(seconds.unsigned_abs())
    }

    fn due(&self) -> u64 {
        self.due
    }

    #[cold]
    fn advance(&mut self, now: u64) -> u64 {
        let reached = now >= self.end;
        self.read_wall(now);
        let second = match self.ends {
            Some(ends) if reached && self.is_just_before(ends, DRIFT) => ends,
            _ if self.is_just_before(self.began, STEP_BACK) => self.began,
            _ => self.second(),
        };
        let is_over = match self.ends {
            Some(ends) => second < self.began || second >= ends,
            // Outside the years that have dates.
            None => self.calendar.period_at(second) != self.number,
        };
        let mut passed = 0;
        if is_over {
            let before = self.number;
            self.enter(second);
            // One is enough: none of before counts in it. Where it is earlier, the count goes on.
            passed = u64::from(self.number > before);
        }
        let end = self.tick_of(self.ends);
        let drift = self.clock.ticks_of(Duration::from_secs(DRIFT.unsigned_abs()));
        // Within the drift the end stays where it was first told, so that small steps do not add up.
        if is_over || end.abs_diff(self.end) > drift {
            self.early |= !reached && (is_over || end < self.end);
            self.end = end;
        }
        self.set_due();
        passed
    }

    fn take_early(&mut self) -> bool {
        let early = std::mem::take(&mut self.early);
        self.set_due();
        early
    }

    fn start_of(&self, windows: u64) -> u64 {
        match windows {
            0 | 1 => self.end,
            _ => self.tick_of(self.start_after(windows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The starts of periods, found minute by minute: the local clock shows a period that it never showed before.
    fn by_minutes(calendar: &Calendar, from: i64, minutes: i64) -> Vec<i64> {
        let mut latest = calendar.number(calendar.local(from));
        let mut starts = Vec::new();
        for second in (0..minutes).map(|minute| from + 60 * minute) {
            let number = calendar.number(calendar.local(second));
            if number > latest {
                latest = number;
                starts.push(second);
            }
            if second % 660 == 0 {
                assert_eq!(calendar.period_at(second), latest, "{:?} at {second}", calendar.zone);
            }
        }
        starts
    }

    #[test]
    fn each_start_is_the_first_minute_that_shows_a_later_period() {
        // All near a change of the clock: days before 1970 where negative.
        let rows = [
            ("Europe/Berlin", [19_811, 20_021]),
            ("America/New_York", [19_788, 20_029]),
            ("America/Sao_Paulo", [17_835, 17_940]),
            ("America/St_Johns", [14_679, 14_917]),
            ("America/Toronto", [-18_543, 19_788]),
            ("Asia/Kathmandu", [5_838, 20_000]),
            ("Asia/Manila", [20_000, 20_100]),
            ("Australia/Lord_Howe", [19_815, 19_997]),
            ("Africa/Cairo", [19_836, 20_025]),
            ("Asia/Beirut", [19_811, 20_019]),
            ("Pacific/Apia", [15_333, 15_400]),
            ("Pacific/Kwajalein", [8_628, 8_630]),
            ("UTC", [19_722, 11_014]),
        ];
        let minutes = 6 * 24 * 60;
        for (zone, days) in rows {
            let zone = TimeZone::get(zone).unwrap();
            for period in CalendarPeriod::ALL {
                let calendar = Calendar {
                    zone: zone.clone(),
                    period,
                };
                for from in days.map(|day| day * DAY - DAY) {
                    let starts = by_minutes(&calendar, from, minutes);
                    let number = calendar.period_at(from);
                    for (n, start) in (1..).zip(&starts) {
                        let found = calendar.start_after(number, from, n, i64::MAX);
                        assert_eq!(found, Some(*start), "{zone:?}: {period:?} {n} from day {}", from / DAY);
                        // As it is entered, and at its last second.
                        let here = calendar.period_at(*start);
                        assert_eq!(calendar.start(here), Some(*start), "{zone:?} {period:?}");
                        if let Some(next) = starts.get(n as usize) {
                            assert_eq!(calendar.period_at(next - 1), here, "{zone:?} {period:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn no_number_is_out_of_bounds() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        for period in CalendarPeriod::ALL {
            let calendar = Calendar {
                zone: zone.clone(),
                period,
            };
            for far in [i64::MIN, i64::MIN / 2, i64::MAX / 2, i64::MAX] {
                assert_eq!(calendar.start(far), None);
                assert_eq!(calendar.start_after(0, 0, far.unsigned_abs(), i64::MAX), None);
                calendar.period_at(far);
                assert_eq!(calendar.skipped(far, far), 0);
            }
        }
    }
}
