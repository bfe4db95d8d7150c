//! Periods of the wall clock: their borders, and how a clock that is set moves them.
//!
//! All levels of a limit share one [`Borders`], so that they begin a period at the same instant. A level keeps the border that it
//! was told, and asks again when that is due: at the end of the period, or a minute after the last reading of the wall clock.
//!
//! | the wall clock | then |
//! |---|---|
//! | drifts from the monotonic clock, up to a second | the promised border stays |
//! | is set forward beyond the end of the period | the next period begins with the next reading |
//! | is set back, or runs behind | the period ends later |
//! | is set back by more than an hour before the period's start | the count goes on to the next border of the wall clock |
//!
//! So no period begins twice.

use crate::rule::Period;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tollgate::{Clock, Instant};

const SECOND: i128 = 1_000_000_000;
/// A step of the wall clock that is taken for drift.
const DRIFT: i128 = SECOND;
/// A step back that is waited out.
const STEP_BACK: i128 = 3_600 * SECOND;
/// How long a reading of the wall clock serves, in nanoseconds.
const READ_EVERY: u64 = 60_000_000_000;

/// The zone with this name of the IANA database, from the system's copy or the one that is compiled in.
pub(crate) fn zone(name: &str) -> Option<TimeZone> {
    let zone = TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    zone.ok().filter(|zone| zone.iana_name().is_some())
}

/// Nanoseconds from the origin of `clock`.
pub(crate) fn nanos_of(clock: &Clock, at: Instant) -> u64 {
    u64::try_from(clock.between(Instant::ZERO, at).as_nanos()).unwrap_or(u64::MAX)
}

/// The instant at `nanos` from the origin of `clock`, rounded up.
pub(crate) fn instant_of(clock: &Clock, nanos: u64) -> Instant {
    clock.after(Instant::ZERO, Duration::from_nanos(nanos))
}

/// Nanoseconds since 1970.
pub(crate) fn since_1970(wall: SystemTime) -> i128 {
    match wall.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

/// A period as its levels know it, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// It began then, as far as it was seen to: later than that of any period before, so that it also names the period.
    pub(crate) began: u64,
    pub(crate) ends: u64,
    /// When the borders are to be asked again.
    pub(crate) due: u64,
}

impl Span {
    /// Before any period.
    pub(crate) const NONE: Self = Self {
        began: 0,
        ends: 0,
        due: 0,
    };
}

/// The borders of one limit's periods. Plain data; the caller holds its lock.
#[derive(Debug)]
pub(crate) struct Borders {
    period: Period,
    zone: TimeZone,
    /// The current period by the wall clock, in nanoseconds since 1970.
    wall: (i128, i128),
    span: Span,
}

impl Borders {
    pub(crate) fn new(period: Period, zone: TimeZone) -> Self {
        Self {
            period,
            zone,
            wall: (0, i128::MIN),
            span: Span::NONE,
        }
    }

    /// The period at `now`, when the wall clock shows `wall`.
    pub(crate) fn at(&mut self, now: u64, wall: impl FnOnce() -> i128) -> Span {
        if now < self.span.due {
            return self.span;
        }
        let mut wall = wall();
        let reached = now >= self.span.ends;
        if reached && wall < self.wall.1 && wall >= self.wall.1 - DRIFT {
            wall = self.wall.1;
        }
        let is_over = wall >= self.wall.1;
        if is_over {
            self.span.began = if reached && self.span.ends > self.span.began {
                now
            } else {
                now.max(self.span.began + 1)
            };
        }
        if is_over || wall < self.wall.0 - STEP_BACK {
            self.wall = self.around(wall);
        }
        let ends = now.saturating_add(u64::try_from(self.wall.1 - wall).unwrap_or(u64::MAX));
        // Within the drift the end stays where it was first told, so that small steps do not add up.
        if is_over || i128::from(ends.abs_diff(self.span.ends)) > DRIFT {
            self.span.ends = ends;
        }
        self.span.due = self.span.ends.min(now.saturating_add(READ_EVERY)).max(now + 1);
        self.span
    }

    /// The start of the period at `now`, in nanoseconds since 1970, when the wall clock shows `wall`.
    #[cfg(feature = "shared")]
    pub(crate) fn started(&mut self, now: u64, wall: impl FnOnce() -> i128) -> i128 {
        self.at(now, wall);
        self.wall.0
    }

    /// Whether `now` is in the period that contains `then`, or before it.
    pub(crate) fn lasts(&self, then: i128, now: i128) -> bool {
        now < self.around(then).1
    }

    /// The period that contains an instant of the wall clock: its start, and its end.
    fn around(&self, wall: i128) -> (i128, i128) {
        let second = wall.div_euclid(SECOND);
        let fixed = |length: i128| {
            let start = second.div_euclid(length) * length;
            (start * SECOND, (start + length) * SECOND)
        };
        let local = || -> Option<(i128, i128)> {
            let second = i64::try_from(second).ok()?;
            let today = self.zone.to_datetime(Timestamp::from_second(second).ok()?).date();
            let mut first = match self.period {
                Period::Week => {
                    let days = today.weekday().to_monday_zero_offset();
                    (0..days).try_fold(today, |date, _| date.yesterday().ok())?
                }
                Period::Month => today.first_of_month(),
                _ => today,
            };
            loop {
                let next = self.next(first)?;
                // Where the local clock was set back, the next one may have begun already.
                if self.start(next)? > second {
                    let to_nanos = |second: i64| i128::from(second) * SECOND;
                    return Some((to_nanos(self.start(first)?), to_nanos(self.start(next)?)));
                }
                first = next;
            }
        };
        match self.period {
            Period::Minute => fixed(60),
            Period::Hour => fixed(3_600),
            // Outside the years that have dates, days of the universal time.
            _ => local().unwrap_or_else(|| fixed(86_400)),
        }
    }

    /// The first day of the next period.
    fn next(&self, first: Date) -> Option<Date> {
        match self.period {
            Period::Week => (0..7).try_fold(first, |date, _| date.tomorrow().ok()),
            Period::Month => first.last_of_month().tomorrow().ok(),
            _ => first.tomorrow().ok(),
        }
    }

    /// The first second of a day: behind the gap, where its midnight is left out.
    fn start(&self, date: Date) -> Option<i64> {
        Some(self.zone.to_timestamp(date.into()).ok()?.as_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borders(period: Period, zone_name: &str) -> Borders {
        Borders::new(period, zone(zone_name).unwrap())
    }

    #[test]
    fn periods_follow_the_calendar_of_the_zone() {
        let hour = 3_600;
        // Period, zone, an instant, start and end as seconds since 1970.
        let rows = [
            (Period::Minute, "UTC", 125, 120, 180),
            (Period::Hour, "Asia/Kathmandu", 7_300, 7_200, 10_800),
            (Period::Day, "UTC", 86_399, 0, 86_400),
            // 1970-01-01 was a Thursday.
            (Period::Week, "UTC", 0, -3 * 86_400, 4 * 86_400),
            (Period::Month, "UTC", 40 * 86_400, 31 * 86_400, 59 * 86_400),
            // 2026-03-29 in Berlin has 23 hours, 2026-10-25 has 25.
            (
                Period::Day,
                "Europe/Berlin",
                1_774_738_800 + 5,
                1_774_738_800,
                1_774_738_800 + 23 * hour,
            ),
            (
                Period::Day,
                "Europe/Berlin",
                1_792_879_200,
                1_792_879_200,
                1_792_879_200 + 25 * hour,
            ),
            // A day without a midnight.
            (
                Period::Day,
                "America/Sao_Paulo",
                1_541_300_400 + 9,
                1_541_300_400,
                1_541_300_400 + 23 * hour,
            ),
        ];
        for (period, zone, at, start, end) in rows {
            let borders = borders(period, zone);
            let seconds = |(start, end)| (start / SECOND, end / SECOND);
            assert_eq!(seconds(borders.around(at * SECOND)), (start, end), "{period:?} {zone}");
            assert_eq!(
                seconds(borders.around(end * SECOND - 1)),
                (start, end),
                "{period:?} {zone}"
            );
            assert_eq!(borders.around(end * SECOND).0, end * SECOND, "{period:?} {zone}");
        }
    }

    /// Given a wall clock that drifts, jumps and is set back, then the periods begin as the table of the module says.
    #[test]
    fn a_wall_clock_that_is_set_begins_no_period_twice() {
        let mut borders = borders(Period::Minute, "UTC");
        let second = 1_000_000_000u64;
        let mut at = |now: u64, wall: i128| borders.at(now, || wall);
        let wall = |second: i128| second * SECOND;
        // In the middle of a minute.
        let first = at(10 * second, wall(90));
        assert_eq!((first.began, first.ends), (10 * second, 40 * second));
        // The promised border comes although the wall clock is half a second behind.
        let second_period = at(40 * second, wall(120) - SECOND / 2);
        assert_eq!((second_period.began, second_period.ends), (40 * second, 100 * second));
        // Behind by more: the period ends later.
        let late = at(100 * second, wall(170));
        assert_eq!((late.began, late.ends), (40 * second, 110 * second));
        // Set forward by a day: the next period begins with this reading.
        let forward = at(110 * second, wall(86_400 + 30));
        assert_eq!((forward.began, forward.ends), (110 * second, 140 * second));
        // Set back by two hours: the count goes on to the next border.
        let back = at(140 * second, wall(86_400 - 7_170));
        assert_eq!((back.began, back.ends), (110 * second, 170 * second));
        assert_eq!(at(170 * second, wall(86_400 - 7_140)).began, 170 * second);
    }

    #[test]
    fn no_instant_is_out_of_bounds() {
        for period in [Period::Minute, Period::Day, Period::Week, Period::Month] {
            let mut borders = borders(period, "Europe/Berlin");
            for wall in [i128::MIN / 4, -1, i128::from(i64::MAX) * 4] {
                let span = borders.at(u64::MAX / 2, || wall);
                assert!(span.ends >= span.began);
            }
        }
    }
}
