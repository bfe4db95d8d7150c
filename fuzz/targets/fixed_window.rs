//! The fixed window against counts by window: what is taken, cancelled and booked, and what is changed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;
use tollgate::{FixedWindow, Inherit, LimiterExt, ManualClock, Reason};

/// Nanoseconds.
const LENGTH: u64 = 100;

fn window(clock: &ManualClock, limit: u64, length: u64) -> FixedWindow {
    FixedWindow::new(limit, Duration::from_nanos(length)).unwrap().on(clock)
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Advance(u64),
    Take(u64),
    UpTo(u64),
    Reserve(u64),
    Book(u64),
    Cancel(usize),
}

impl Op {
    pub(crate) fn decode([which, a, _]: [u8; 3]) -> Self {
        let n = u64::from(a);
        match which % 15 {
            0..3 => Self::Advance(n % 150),
            3..5 => Self::Take(n % 7),
            5 => Self::UpTo(n % 7),
            6..9 => Self::Reserve(1 + n % 6),
            9..11 => Self::Book(1 + n % 11),
            _ => Self::Cancel(usize::from(a % 6)),
        }
    }
}

/// Given anything but bookings, then it is a list of counts by window, and every cancel in time is exact.
pub(crate) fn counts(limit: u64, ops: Vec<Op>) {
    let clock = ManualClock::new();
    let window = window(&clock, limit, LENGTH);
    let mut counts = BTreeMap::<u64, u64>::new();
    let mut held = Vec::new();
    let mut now = 0u64;
    for op in ops {
        let count = *counts.entry(now / LENGTH).or_default();
        assert_eq!(window.available(), limit - count);
        match op {
            Op::Advance(step) => {
                now += step;
                clock.advance(Duration::from_nanos(step));
            }
            Op::Take(n) | Op::Reserve(n) | Op::Book(n) => match window.reserve(n) {
                Ok(reserved) => {
                    assert!(count + n <= limit);
                    *counts.entry(now / LENGTH).or_default() += n;
                    held.push((reserved, now / LENGTH, n));
                }
                Err(refused) => {
                    assert!(count + n > limit);
                    let wait = refused.retry_after().map(|wait| wait.as_nanos() as u64);
                    assert_eq!(wait, (n <= limit).then(|| LENGTH - now % LENGTH));
                }
            },
            Op::UpTo(n) => {
                assert_eq!(window.acquire_up_to(n), n.min(limit - count));
                *counts.entry(now / LENGTH).or_default() += n.min(limit - count);
            }
            Op::Cancel(index) => {
                if index < held.len() {
                    let (reserved, at, n) = held.remove(index);
                    drop(reserved);
                    *counts.entry(at).or_default() -= n;
                }
            }
        }
    }
}

/// Given bookings as well, then no window ever holds more than its limit, not counting cancelled ones.
pub(crate) fn bookings(limit: u64, ops: Vec<Op>) {
    let clock = ManualClock::new();
    let window = window(&clock, limit, LENGTH);
    let mut counts = BTreeMap::<u64, u64>::new();
    let mut held = Vec::new();
    let mut now = 0u64;
    for op in ops {
        match op {
            Op::Advance(step) => {
                now += step;
                clock.advance(Duration::from_nanos(step));
            }
            Op::Take(n) | Op::UpTo(n) | Op::Reserve(n) => {
                if window.try_acquire(n).is_ok() {
                    *counts.entry(now / LENGTH).or_default() += n;
                }
            }
            Op::Book(n) if n > limit => assert_eq!(window.book(n).unwrap_err().reason(), Reason::Oversized),
            Op::Book(n) => {
                // Behind all that is charged: where the debt ends, or in the window that runs. Or in the next.
                let (debt, free) = (window.debt(), window.available());
                let (at, room) = match debt.checked_sub(1) {
                    None => (now / LENGTH, free),
                    Some(last) => (now / LENGTH + 1 + last / limit, limit - 1 - last % limit),
                };
                let at = at + u64::from(n > room);
                let booked = window.book(n).unwrap();
                *counts.entry(at).or_default() += n;
                assert_eq!((now + booked.wait().as_nanos() as u64) / LENGTH, at);
                held.push((booked, at, n));
            }
            Op::Cancel(index) => {
                if index < held.len() {
                    let (booked, at, n) = held.remove(index);
                    drop(booked);
                    *counts.entry(at).or_default() -= n;
                }
            }
        }
        for (at, count) in &counts {
            assert!(*count <= limit, "{count} in window {at}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Advance(u64),
    Take(u64),
    Force(u64),
    Book,
    Cancel(usize),
    Limit(u64, Inherit),
    Length(u64),
}

impl Change {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        use Inherit::{Additive, AsIs, Proportional, Reset};
        let n = u64::from(a);
        match which % 19 {
            0..3 => Self::Advance(n % 80),
            3..6 => Self::Take(1 + n % 6),
            6 => Self::Force(1 + n % 11),
            7..13 => Self::Book,
            13..15 => Self::Cancel(usize::from(a % 6)),
            15..17 => Self::Limit(n % 9, [AsIs, Proportional, Additive, Reset][usize::from(b % 4)]),
            _ => Self::Length(1 + n % 89),
        }
    }
}

/// What counts, by the promised instants, and where windows lie.
struct Oracle {
    start: u64,
    length: u64,
    limit: u64,
    now: u64,
    /// Number, instant and weight.
    counted: Vec<(usize, u64, u64)>,
    next: usize,
}

impl Oracle {
    fn advance(&mut self, ticks: u64) {
        self.now += ticks;
        self.start += (self.now - self.start) / self.length * self.length;
    }

    fn set_length(&mut self, length: u64) {
        self.length = length;
        self.advance(0);
    }

    fn count(&mut self, at: u64, n: u64) -> usize {
        self.next += 1;
        self.counted.push((self.next, at, n));
        self.next
    }

    /// What the window holds in which `at` lies.
    fn holds(&self, at: u64) -> u64 {
        let begin = at - (at - self.start) % self.length;
        let inside = |&&(_, at, _): &&(usize, u64, u64)| (begin..begin + self.length).contains(&at);
        self.counted.iter().filter(inside).map(|(.., n)| n).sum()
    }

    /// Whatever has been admitted until now is forgiven, and nothing that starts later.
    fn forgive(&mut self) {
        self.counted.retain(|(_, at, _)| *at > self.now);
    }
}

/// Given admissions, debts, bookings and cancels, while limit and length change by any rule, then each admission and
/// booking fits into the window of its instant, by the limit in force and with all promised instants in it counted;
/// a refused caller is admitted at the instant that its refusal names; and in the end nothing is left.
pub(crate) fn changes(limit: u64, length: u64, ops: Vec<Change>) {
    let clock = ManualClock::new();
    let nanos = Duration::from_nanos;
    let window = window(&clock, limit, length);
    let mut oracle = Oracle {
        start: 0,
        length,
        limit,
        now: 0,
        counted: Vec::new(),
        next: 0,
    };
    let mut held = Vec::new();
    for op in ops {
        match op {
            Change::Advance(ticks) => {
                clock.advance(nanos(ticks));
                oracle.advance(ticks);
            }
            Change::Take(n) => match window.try_acquire(n) {
                Ok(()) => {
                    oracle.count(oracle.now, n);
                    assert!(
                        oracle.holds(oracle.now) <= oracle.limit,
                        "{n} more, of {}",
                        oracle.limit
                    );
                }
                Err(refused) => {
                    if let Some(wait) = refused.retry_after() {
                        // Refused a nanosecond before, and admitted then.
                        assert!(!wait.is_zero());
                        clock.advance(wait - nanos(1));
                        assert!(window.try_acquire(n).is_err());
                        clock.advance(nanos(1));
                        oracle.advance(wait.as_nanos() as u64);
                        assert!(window.try_acquire(n).is_ok());
                        oracle.count(oracle.now, n);
                        assert!(
                            oracle.holds(oracle.now) <= oracle.limit,
                            "{n} more, of {}",
                            oracle.limit
                        );
                    } else {
                        assert!(n > oracle.limit);
                    }
                }
            },
            Change::Force(n) => {
                window.force_acquire(n);
                oracle.count(oracle.now, n);
            }
            // One, so that it lies in one window.
            Change::Book => {
                if let Ok(booked) = window.book(1) {
                    let at = oracle.now + booked.wait().as_nanos() as u64;
                    let number = oracle.count(at, 1);
                    assert!(
                        oracle.holds(at) <= oracle.limit,
                        "one more at {at}, of {}",
                        oracle.limit
                    );
                    held.push((booked, number));
                }
            }
            Change::Cancel(index) => {
                if index < held.len() {
                    let (booked, number) = held.remove(index);
                    drop(booked);
                    oracle.counted.retain(|(other, ..)| *other != number);
                }
            }
            Change::Limit(limit, rule) => {
                window.set_limit(limit, rule);
                oracle.limit = limit;
                if rule != Inherit::Additive {
                    oracle.forgive();
                }
            }
            Change::Length(length) => {
                window.set_length(nanos(length)).unwrap();
                oracle.set_length(length);
            }
        }
    }
    if oracle.limit > 0 {
        let full = window.time_until_full().unwrap();
        clock.advance(full);
        assert_eq!((window.available(), window.debt()), (oracle.limit, 0));
    }
}
