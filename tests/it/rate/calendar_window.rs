//! The calendar window: borders by the published rules of time zones, and steps of the wall clock.

use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tollgate::status::State;
use tollgate::{
    Ask, CalendarPeriod, CalendarWindow, ClockReading, Cost, Demand, FixedWindow, Inherit, Limiter, LimiterExt,
    ManualClock, Policy, Reason, Settlement,
};

const TOKENS: Cost = Cost::new("tokens");
const NANO: Duration = Duration::from_nanos(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// `2024-03-31T01:00:00Z`, by the days of the Gregorian calendar.
fn utc(text: &str) -> SystemTime {
    let part = |at: std::ops::Range<usize>| text[at].parse::<i64>().unwrap();
    let (year, month, day) = (part(0..4), part(5..7), part(8..10));
    // Years that begin in March.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + part(11..13) * 3_600 + part(14..16) * 60 + part(17..19);
    let since = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH - since
    } else {
        UNIX_EPOCH + since
    }
}

fn at(wall: &str) -> ManualClock {
    let clock = ManualClock::new();
    clock.set_wall(utc(wall));
    clock
}

fn daily(clock: &ManualClock, limit: u64) -> CalendarWindow {
    CalendarWindow::new(limit, CalendarPeriod::Day, "UTC")
        .unwrap()
        .on(clock)
}

/// The starts of periods that follow each other: the changes of the clock are those of the tz database (`europe`,
/// `northamerica`, `southamerica`, `asia`, `australasia`).
const BORDERS: &[(&str, CalendarPeriod, &[&str])] = &[
    // 2024-03-31 02:00 is 03:00: a day of 23 hours, and no hour from 2 to 3.
    (
        "Europe/Berlin",
        CalendarPeriod::Day,
        &[
            "2024-03-29T23:00:00Z",
            "2024-03-30T23:00:00Z",
            "2024-03-31T22:00:00Z",
            "2024-04-01T22:00:00Z",
        ],
    ),
    (
        "Europe/Berlin",
        CalendarPeriod::Hour,
        &["2024-03-31T00:00:00Z", "2024-03-31T01:00:00Z", "2024-03-31T02:00:00Z"],
    ),
    // 2024-10-27 03:00 is 02:00: a day of 25 hours, and an hour of two.
    (
        "Europe/Berlin",
        CalendarPeriod::Day,
        &[
            "2024-10-25T22:00:00Z",
            "2024-10-26T22:00:00Z",
            "2024-10-27T23:00:00Z",
            "2024-10-28T23:00:00Z",
        ],
    ),
    (
        "Europe/Berlin",
        CalendarPeriod::Hour,
        &[
            "2024-10-26T23:00:00Z",
            "2024-10-27T00:00:00Z",
            "2024-10-27T02:00:00Z",
            "2024-10-27T03:00:00Z",
        ],
    ),
    // Mondays: a week of 167 hours, and one of 169.
    (
        "Europe/Berlin",
        CalendarPeriod::Week,
        &["2024-03-24T23:00:00Z", "2024-03-31T22:00:00Z", "2024-04-07T22:00:00Z"],
    ),
    (
        "Europe/Berlin",
        CalendarPeriod::Week,
        &["2024-10-20T22:00:00Z", "2024-10-27T23:00:00Z", "2024-11-03T23:00:00Z"],
    ),
    // A leap year, then none; the first week of 2025 begins in 2024.
    (
        "Europe/Berlin",
        CalendarPeriod::Month,
        &[
            "2024-01-31T23:00:00Z",
            "2024-02-29T23:00:00Z",
            "2024-03-31T22:00:00Z",
            "2024-04-30T22:00:00Z",
        ],
    ),
    (
        "UTC",
        CalendarPeriod::Month,
        &[
            "2024-12-01T00:00:00Z",
            "2025-01-01T00:00:00Z",
            "2025-02-01T00:00:00Z",
            "2025-03-01T00:00:00Z",
        ],
    ),
    (
        "UTC",
        CalendarPeriod::Week,
        &["2024-12-23T00:00:00Z", "2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z"],
    ),
    (
        "America/New_York",
        CalendarPeriod::Day,
        &[
            "2024-03-09T05:00:00Z",
            "2024-03-10T05:00:00Z",
            "2024-03-11T04:00:00Z",
            "2024-03-12T04:00:00Z",
        ],
    ),
    (
        "America/New_York",
        CalendarPeriod::Day,
        &[
            "2024-11-02T04:00:00Z",
            "2024-11-03T04:00:00Z",
            "2024-11-04T05:00:00Z",
            "2024-11-05T05:00:00Z",
        ],
    ),
    // 2018-11-04 00:00 is 01:00: no midnight. 2019-02-17 00:00 is 2019-02-16 23:00.
    (
        "America/Sao_Paulo",
        CalendarPeriod::Day,
        &[
            "2018-11-03T03:00:00Z",
            "2018-11-04T03:00:00Z",
            "2018-11-05T02:00:00Z",
            "2018-11-06T02:00:00Z",
        ],
    ),
    (
        "America/Sao_Paulo",
        CalendarPeriod::Day,
        &[
            "2019-02-15T02:00:00Z",
            "2019-02-16T02:00:00Z",
            "2019-02-17T03:00:00Z",
            "2019-02-18T03:00:00Z",
        ],
    ),
    // 2010-11-07 00:01 is 2010-11-06 23:01: the day has begun by then, and begins once.
    (
        "America/St_Johns",
        CalendarPeriod::Day,
        &[
            "2010-11-06T02:30:00Z",
            "2010-11-07T02:30:00Z",
            "2010-11-08T03:30:00Z",
            "2010-11-09T03:30:00Z",
        ],
    ),
    // 1919-03-30 23:30 is 1919-03-31 00:30: the midnight is in the midst of what is left out.
    (
        "America/Toronto",
        CalendarPeriod::Day,
        &["1919-03-30T05:00:00Z", "1919-03-31T04:30:00Z", "1919-04-01T04:00:00Z"],
    ),
    // 5:45 ahead; 1986-01-01 00:00 is 00:15.
    (
        "Asia/Kathmandu",
        CalendarPeriod::Day,
        &[
            "1985-12-30T18:30:00Z",
            "1985-12-31T18:30:00Z",
            "1986-01-01T18:15:00Z",
            "1986-01-02T18:15:00Z",
        ],
    ),
    (
        "Asia/Kathmandu",
        CalendarPeriod::Hour,
        &["2026-11-23T18:15:00Z", "2026-11-23T19:15:00Z", "2026-11-23T20:15:00Z"],
    ),
    // No 2011-12-30.
    (
        "Pacific/Apia",
        CalendarPeriod::Day,
        &[
            "2011-12-28T10:00:00Z",
            "2011-12-29T10:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-31T10:00:00Z",
            "2012-01-01T10:00:00Z",
        ],
    ),
    (
        "Pacific/Apia",
        CalendarPeriod::Week,
        &["2011-12-26T10:00:00Z", "2012-01-01T10:00:00Z", "2012-01-08T10:00:00Z"],
    ),
    (
        "Pacific/Apia",
        CalendarPeriod::Month,
        &["2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z", "2012-01-31T10:00:00Z"],
    ),
    // 2024-04-07 02:00 is 01:30: an hour of ninety minutes.
    (
        "Australia/Lord_Howe",
        CalendarPeriod::Hour,
        &["2024-04-06T14:00:00Z", "2024-04-06T15:30:00Z", "2024-04-06T16:30:00Z"],
    ),
];

/// Given a zone whose borders are known, then each period admits its limit, a refusal names the next border to the nanosecond,
/// it is refused just before and admitted at it; and a debt of several periods is paid at the border that is counted off.
#[test]
fn periods_begin_when_the_published_rules_say() {
    for (zone, period, borders) in BORDERS {
        let clock = at(borders[0]);
        let window = CalendarWindow::new(3, *period, zone).unwrap().on(&clock);
        for pair in borders.windows(2) {
            let length = utc(pair[1]).duration_since(utc(pair[0])).unwrap();
            assert_eq!(window.acquire_up_to(9), 3, "{zone} {period:?} {pair:?}");
            assert_eq!(
                window.try_acquire(1).unwrap_err().retry_after(),
                Some(length),
                "{zone} {pair:?}"
            );
            let third = length / 3;
            clock.advance(third);
            assert_eq!(window.time_until(2), Some(length - third), "{zone} {pair:?}");
            clock.advance(length - third - NANO);
            assert_eq!(
                window.try_acquire(1).unwrap_err().retry_after(),
                Some(NANO),
                "{zone} {pair:?}"
            );
            clock.advance(NANO);
        }
        assert_eq!(window.available(), 3);
    }
}

/// Also one that is made in the midst of a period, and one that sleeps through many.
#[test]
fn a_window_that_is_made_or_asked_late_ends_with_its_period() {
    for (zone, period, borders) in BORDERS {
        let clock = at(borders[0]);
        let old = CalendarWindow::new(1, *period, zone).unwrap().on(&clock);
        old.try_acquire(1).unwrap();
        let [before, last] = [borders[borders.len() - 2], borders[borders.len() - 1]].map(utc);
        let length = last.duration_since(before).unwrap();
        clock.advance(before.duration_since(utc(borders[0])).unwrap() + length / 2);
        let new = CalendarWindow::new(1, *period, zone).unwrap().on(&clock);
        for window in [old, new] {
            window.try_acquire(1).unwrap();
            assert_eq!(window.time_until(1), Some(length - length / 2), "{zone} {period:?}");
        }
    }
}

#[test]
fn a_waiter_wakes_at_the_border() {
    let clock = at("2024-03-30T23:00:00Z");
    let berlin = CalendarWindow::new(2, CalendarPeriod::Day, "Europe/Berlin").unwrap();
    let starts = crate::rate::alike::starts(&clock, berlin.on(&clock), 5);
    assert_eq!(
        starts,
        [Duration::ZERO, Duration::ZERO, 23 * HOUR, 23 * HOUR, 47 * HOUR]
    );
}

/// Rows: the wall clock when ten of ten are taken; the time that passes; the wall clock that is set then; how many are
/// there, and how long until the next.
const STEPS: &[(&str, u64, &str, u64, u64)] = &[
    // As it was.
    ("2026-11-23T12:00:00Z", 600, "2026-11-23T12:10:00Z", 0, 12 * 3_600 - 600),
    // Forward: within the day, to its end, beyond it, by years.
    ("2026-11-23T12:00:00Z", 600, "2026-11-23T18:00:00Z", 0, 6 * 3_600),
    ("2026-11-23T12:00:00Z", 600, "2026-11-24T00:00:00Z", 10, 0),
    ("2026-11-23T12:00:00Z", 600, "2026-11-24T03:00:00Z", 10, 0),
    ("2026-11-23T12:00:00Z", 600, "2036-11-24T03:00:00Z", 10, 0),
    // Back, within the day.
    ("2026-11-23T12:00:00Z", 600, "2026-11-23T01:00:00Z", 0, 23 * 3_600),
    // Back beyond its start, by up to an hour: it does not begin twice.
    ("2026-11-23T00:00:00Z", 600, "2026-11-22T23:59:59Z", 0, 24 * 3_600 + 1),
    ("2026-11-23T00:00:00Z", 600, "2026-11-22T23:00:00Z", 0, 25 * 3_600),
    // By more: the count goes on to the next midnight.
    ("2026-11-23T00:00:00Z", 600, "2026-11-22T22:59:59Z", 0, 3_601),
    ("2026-11-23T00:00:00Z", 600, "2006-11-22T12:00:00Z", 0, 12 * 3_600),
];

#[test]
fn a_step_of_the_wall_clock_costs_what_is_stated() {
    for (start, passes, set, available, next) in STEPS {
        let clock = at(start);
        let window = daily(&clock, 10);
        window.try_acquire(10).unwrap();
        clock.advance(Duration::from_secs(*passes));
        clock.set_wall(utc(set));
        assert_eq!(window.available(), *available, "{start}, then {set}");
        let next = Duration::from_secs(*next);
        assert_eq!(window.time_until(1), Some(next), "{start}, then {set}");
        if !next.is_zero() {
            clock.advance(next - NANO);
            assert_eq!(window.available(), 0, "{start}, then {set}");
            clock.advance(NANO);
            assert_eq!(window.available(), 10, "{start}, then {set}");
        }
    }
}

#[test]
fn the_wall_clock_is_read_a_minute_after_the_last_reading() {
    let clock = at("2026-11-23T12:00:00Z");
    let window = daily(&clock, 10);
    window.try_acquire(10).unwrap();
    clock.set_wall(utc("2026-11-24T03:00:00Z"));
    clock.advance(Duration::from_secs(60) - NANO);
    assert_eq!(window.available(), 0);
    clock.advance(NANO);
    assert_eq!(window.available(), 10);
}

/// Given a wall clock that is slower than the monotonic one, then a promised instant is kept up to a second before the border,
/// and the day that begins there ends with the next midnight of the wall clock.
#[test]
fn a_drift_of_a_second_breaks_no_promise() {
    for (late, kept) in [
        (NANO, true),
        (Duration::from_secs(1), true),
        (Duration::from_secs(1) + NANO, false),
    ] {
        let clock = at("2026-11-23T23:59:30Z");
        let window = daily(&clock, 1);
        window.try_acquire(1).unwrap();
        let promised = window.try_acquire(1).unwrap_err().retry_after().unwrap();
        clock.set_wall(clock.wall() - late);
        clock.advance(promised);
        assert_eq!(window.try_acquire(1).is_ok(), kept, "{late:?}");
        assert_eq!(
            window.time_until(1),
            Some(late + if kept { DAY } else { Duration::ZERO })
        );
        // The readings that follow, before midnight and after it, begin no other day.
        for _ in 0..3 {
            clock.advance(Duration::from_secs(60));
            window.acquire_up_to(1);
            assert_eq!(window.available(), 0);
        }
    }
}

/// Given a waiter, and a wall clock that is set back meanwhile, then it is refused at the old border, and waits for the new one.
#[test]
fn a_waiter_outlasts_a_step_back() {
    let clock = at("2026-11-23T22:00:00Z");
    let policy = Policy::new(daily(&clock, 1));
    clock.run(async {
        policy.admit(1).await.unwrap().forget();
        clock.set_wall(utc("2026-11-23T20:00:00Z"));
        policy.admit(1).await.unwrap().forget();
    });
    assert_eq!(clock.elapsed(), 4 * HOUR);
}

#[test]
fn an_unknown_zone_and_an_impossible_ask_are_refused() {
    for name in [
        "Europe/Berlim",
        "",
        "CEST?",
        "../../etc/passwd",
        "/etc/localtime",
        "Europe/Berlin\0",
        "Etc/Unknown",
    ] {
        let error = CalendarWindow::new(1, CalendarPeriod::Day, name).unwrap_err();
        assert!(error.to_string().contains(&format!("`{name}` was given")), "{error}");
    }
    let clock = at("2026-11-23T12:00:00Z");
    let window = daily(&clock, 3);
    assert_eq!(window.try_acquire(4).unwrap_err().reason(), Reason::Oversized);
    assert_eq!(daily(&clock, 0).try_acquire(1).unwrap_err().reason(), Reason::Oversized);
    assert_eq!(window.limit(), 3);
    assert_eq!(
        format!("{window:?}"),
        "Rate { kind: \"calendar_window\", limit: 3, window: 86400s, available: 3, .. }"
    );
    let mut seen = Vec::new();
    window.describe(&mut |leg| seen.push(leg.state));
    let state = State::Rate {
        limit: 3,
        window: DAY,
        available: 3,
        next: Some(Duration::ZERO),
        reset: None,
    };
    assert_eq!(seen, [state]);
}

/// Borders at the ends of the calendar, and of the clock.
#[test]
fn no_wall_clock_is_out_of_bounds() {
    let far = Duration::from_secs(1 << 40);
    for (wall, waits) in [
        (UNIX_EPOCH + far, false),
        (UNIX_EPOCH - far, false),
        (UNIX_EPOCH - HOUR, true),
    ] {
        for period in CalendarPeriod::ALL {
            let clock = ManualClock::new();
            clock.set_wall(wall);
            let window = CalendarWindow::new(1, period, "Europe/Berlin").unwrap().on(&clock);
            window.try_acquire(1).unwrap();
            let after = window.try_acquire(1).unwrap_err().retry_after();
            assert!(after.is_some_and(|after| !after.is_zero()));
            assert!(!waits || after < Some(32 * DAY));
            window.force_acquire(u64::MAX);
            assert!(window.time_until(1).is_some());
            clock.advance(Duration::MAX);
            window.acquire_up_to(1);
        }
    }
}

/// Given units beyond the limit, then a take of this period still comes back in full.
#[test]
fn a_charge_beyond_the_limit_keeps_no_refund_back() {
    let clock = at("2026-11-23T12:00:00Z");
    let window = daily(&clock, 10);
    let now = ClockReading::at(&clock, clock.now());
    let reserve = |n| window.try_reserve(&Demand::new(&Ask::many(n), &now)).unwrap();
    let taken = reserve(6);
    window.force_acquire(6);
    assert_eq!((window.available(), window.debt()), (0, 2));
    window.cancel(taken);
    assert_eq!((window.available(), window.debt()), (4, 0));

    let by_tokens = (&window).per(TOKENS);
    let ask = Ask::one().cost(TOKENS, 4);
    let mut taken = by_tokens.try_reserve(&Demand::new(&ask, &now)).unwrap();
    by_tokens.settle(&mut taken, &Settlement::new(TOKENS, 9));
    window.force_acquire(3);
    assert_eq!((window.available(), window.debt()), (0, 8));
    by_tokens.settle(&mut taken, &Settlement::new(TOKENS, 1));
    assert_eq!((window.available(), window.debt()), (0, 0));
    window.force_acquire(5);
    by_tokens.cancel(taken);
    assert_eq!((window.available(), window.debt()), (0, 4));
    // In a later period there is nothing left to give back.
    let late = ClockReading::at(&clock, clock.now());
    clock.advance(12 * HOUR);
    assert_eq!((window.available(), window.debt()), (10, 0));
    let old = window.try_reserve(&Demand::new(&Ask::many(2), &late)).unwrap();
    window.force_acquire(4);
    clock.advance(DAY);
    window.force_acquire(5);
    window.cancel(old);
    assert_eq!((window.available(), window.debt()), (5, 0));
}

/// Given steps of the wall clock that are seen before the border, then each is compared with the instant that was promised first.
#[test]
fn a_drift_that_is_seen_breaks_no_promise() {
    let milli = Duration::from_millis(1);
    // How late the wall clock is at each reading; whether the promise is kept.
    let rows: [(&[u64], bool); 4] = [
        (&[1], true),
        (&[400, 900], true),
        (&[600, 1_000, 300], true),
        (&[600, 1_200], false),
    ];
    for (late, kept) in rows {
        let clock = at("2026-11-23T22:00:00Z");
        let window = daily(&clock, 1);
        window.try_acquire(1).unwrap();
        let promised = window.try_acquire(1).unwrap_err().retry_after().unwrap();
        for late in late {
            clock.advance(60 * Duration::from_secs(10));
            clock.set_wall(utc("2026-11-23T22:00:00Z") + clock.elapsed() - *late as u32 * milli);
            assert_eq!(window.available(), 0);
        }
        clock.advance(promised - clock.elapsed());
        assert_eq!(window.try_acquire(1).is_ok(), kept, "{late:?}");
    }
}

/// Given a waiter, and a wall clock that is set forward, then the first look that finds the earlier border wakes it.
#[test]
fn a_border_that_comes_early_wakes_the_waiters() {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    // How far the wall clock is set forward, and how long after the look the border is.
    let minute = Duration::from_secs(60);
    for (forward, rest) in [(15 * HOUR, Duration::ZERO), (6 * HOUR, 6 * HOUR - minute)] {
        for by_try in [false, true] {
            let clock = at("2026-11-23T12:00:00Z");
            let window = Arc::new(daily(&clock, 1));
            let policy = Policy::builder().on(&clock).limit(Arc::clone(&window)).build().unwrap();
            window.try_acquire(1).unwrap();
            let flag = Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&flag));
            let mut waiter = Box::pin(policy.admit(1));
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            clock.set_wall(clock.wall() + forward);
            clock.advance(minute);
            assert!(!flag.0.load(Ordering::SeqCst));
            match by_try {
                true => assert!(window.try_acquire(2).is_err()),
                // The waiter is served between: nothing is left.
                false => assert_eq!(window.available(), 0),
            }
            clock.advance(rest);
            assert!(flag.0.load(Ordering::SeqCst), "{forward:?}");
            assert!(
                waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(),
                "{forward:?}"
            );
        }
    }
}

/// Given a system's database that lacks a zone, then the copy that is compiled in has it. In a process of its own, which reads the
/// name of the folder when it starts.
#[test]
fn a_zone_that_the_system_lacks_is_compiled_in() {
    const NAME: &str = "rate::calendar_window::a_zone_that_the_system_lacks_is_compiled_in";
    if std::env::var_os("TOLLGATE_ONE_ZONE").is_some() {
        for zone in ["Test/Only", "Europe/Berlin"] {
            assert!(CalendarWindow::new(1, CalendarPeriod::Day, zone).is_ok(), "{zone}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // UTC, as zic writes it.
    let mut header = b"TZif2".to_vec();
    header.extend([0; 15 + 4 * 4]);
    header.extend([0, 0, 0, 1, 0, 0, 0, 4]);
    header.extend([0; 6]);
    header.extend(b"UTC\0");
    let file = [&header[..], &header[..], b"\nUTC0\n"].concat();
    std::fs::create_dir(folder.path().join("Test")).unwrap();
    std::fs::write(folder.path().join("Test/Only"), file).unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .envs([
            ("TZDIR", folder.path().as_os_str()),
            ("TOLLGATE_ONE_ZONE", "1".as_ref()),
        ])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

/// Given a wall clock before the first year that has a date, then the period ends with the first reading of a later one.
#[test]
fn a_window_that_was_made_before_the_calendar_turns() {
    let clock = ManualClock::new();
    clock.set_wall(UNIX_EPOCH - Duration::from_secs(1 << 40));
    let window = daily(&clock, 1);
    window.try_acquire(1).unwrap();
    clock.set_wall(utc("2026-11-23T12:00:00Z"));
    clock.advance(Duration::from_secs(60));
    assert_eq!(window.available(), 1);
    assert_eq!(window.time_until(1), Some(Duration::ZERO));
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Take(u64),
    Force(u64),
    Reserve(u64),
    Cancel,
    Settle(u64),
    Limit(u64, Inherit),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..9_000u64).prop_map(Step::Pass),
        (1..8u64).prop_map(Step::Take),
        (1..30u64).prop_map(Step::Force),
        (1..8u64).prop_map(Step::Reserve),
        Just(Step::Cancel),
        (0..9u64).prop_map(Step::Settle),
        (
            0..12u64,
            prop_oneof![Just(Inherit::AsIs), Just(Inherit::Proportional), Just(Inherit::Reset)]
        )
            .prop_map(|(limit, rule)| Step::Limit(limit, rule)),
        Just(Step::Reset),
    ]
}

proptest! {
    /// Where hours have 60 minutes, both are one machine. They differ in what comes back before a debt, so none is given back then.
    #[test]
    fn an_hour_of_utc_is_a_fixed_window_of_an_hour(steps in prop::collection::vec(step(), 1..60)) {
        let clock = at("2026-11-23T22:17:00Z");
        let calendar = CalendarWindow::new(8, CalendarPeriod::Hour, "UTC").unwrap().on(&clock);
        let fixed = FixedWindow::new(8, HOUR).unwrap().on(&clock).aligned();
        let (by_calendar, by_length) = ((&calendar).per(TOKENS), (&fixed).per(TOKENS));
        let mut held = Vec::new();
        for step in steps {
            let now = ClockReading::at(&clock, clock.now());
            match step {
                Step::Pass(seconds) => clock.advance(Duration::from_secs(seconds)),
                Step::Take(n) => prop_assert_eq!(calendar.try_acquire(n).is_ok(), fixed.try_acquire(n).is_ok()),
                Step::Force(n) => {
                    calendar.force_acquire(n);
                    fixed.force_acquire(n);
                }
                Step::Reserve(n) => {
                    let ask = Ask::one().cost(TOKENS, n);
                    let taken = by_calendar.try_reserve(&Demand::new(&ask, &now));
                    let same = by_length.try_reserve(&Demand::new(&ask, &now));
                    prop_assert_eq!(taken.is_ok(), same.is_ok());
                    held.extend(taken.ok().zip(same.ok()).map(|(taken, same)| (taken, same, n)));
                }
                Step::Cancel | Step::Settle(_) if calendar.debt() > 0 => {}
                Step::Cancel => if let Some((taken, same, _)) = held.pop() {
                    by_calendar.cancel(taken);
                    by_length.cancel(same);
                },
                Step::Settle(n) => if let Some((taken, same, units)) = held.first_mut() {
                    // Less than before: a charge makes no debt.
                    *units = n.min(*units);
                    let n = *units;
                    by_calendar.settle(taken, &Settlement::new(TOKENS, n));
                    by_length.settle(same, &Settlement::new(TOKENS, n));
                },
                Step::Limit(limit, rule) => {
                    calendar.set_limit(limit, rule);
                    fixed.set_limit(limit, rule);
                }
                Step::Reset => {
                    calendar.reset();
                    fixed.reset();
                }
            }
            prop_assert_eq!((calendar.available(), calendar.debt()), (fixed.available(), fixed.debt()));
            prop_assert_eq!(
                [calendar.time_until(1), calendar.time_until(8), calendar.time_until_full()],
                [fixed.time_until(1), fixed.time_until(8), fixed.time_until_full()]
            );
        }
    }
}
