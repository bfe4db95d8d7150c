//! The fixed window against counts by window: what is taken and cancelled, and what is changed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;
use tollgate::{FixedWindow, Inherit, LimiterExt, ManualClock};

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
            9..11 => Self::Reserve(1 + n % 11),
            _ => Self::Cancel(usize::from(a % 6)),
        }
    }
}

/// Given any takes and cancels, then it is a list of counts by window, and every cancel in time is exact.
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
            Op::Take(n) | Op::Reserve(n) => match window.try_admit(n) {
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
                    reserved.cancel();
                    *counts.entry(at).or_default() -= n;
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Advance(u64),
    Take(u64),
    Force(u64),
    Reserve(u64),
    Cancel(usize),
    Limit(u64, Inherit),
}

impl Change {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        use Inherit::{AsIs, Proportional, Reset};
        let n = u64::from(a);
        match which % 17 {
            0..3 => Self::Advance(n % 80),
            3..6 => Self::Take(1 + n % 6),
            6 => Self::Force(1 + n % 11),
            7..13 => Self::Reserve(1 + n % 3),
            13..15 => Self::Cancel(usize::from(a % 6)),
            _ => Self::Limit(n % 9, [AsIs, AsIs, Proportional, Reset][usize::from(b % 4)]),
        }
    }
}

/// What counts, and where windows lie.
struct Oracle {
    start: u64,
    length: u64,
    limit: u64,
    now: u64,
    count: u64,
    /// Charges of another era than the present one are not given back.
    era: u64,
}

impl Oracle {
    fn advance(&mut self, ticks: u64) {
        self.now += ticks;
        let passed = (self.now - self.start) / self.length;
        self.start += passed * self.length;
        if passed > 0 {
            (self.count, self.era) = (0, self.era + 1);
        }
    }

    fn set_limit(&mut self, limit: u64, rule: Inherit) {
        match rule {
            Inherit::Reset => self.count = 0,
            Inherit::Proportional => self.count = (self.count * limit).div_ceil(self.limit.max(1)),
            _ => {}
        }
        // By these rules earlier charges are not given back any more.
        self.era += u64::from(rule != Inherit::AsIs);
        self.limit = limit;
    }
}

/// Given admissions, debts, reservations and cancels, while the limit changes by any rule, then the window counts what the
/// contract says, and a refused caller is admitted at the instant that its refusal names, and not a nanosecond before.
pub(crate) fn changes(limit: u64, length: u64, ops: Vec<Change>) {
    let clock = ManualClock::new();
    let nanos = Duration::from_nanos;
    let window = window(&clock, limit, length);
    let mut oracle = Oracle {
        start: 0,
        length,
        limit,
        now: 0,
        count: 0,
        era: 0,
    };
    let mut held = Vec::new();
    for op in ops {
        match op {
            Change::Advance(ticks) => {
                clock.advance(nanos(ticks));
                oracle.advance(ticks);
            }
            Change::Take(n) => {
                if let Err(refused) = window.try_acquire(n) {
                    assert!(oracle.count + n > oracle.limit);
                    let Some(wait) = refused.retry_after() else {
                        assert!(n > oracle.limit);
                        continue;
                    };
                    clock.advance(wait - nanos(1));
                    assert!(window.try_acquire(n).is_err());
                    clock.advance(nanos(1));
                    oracle.advance(wait.as_nanos() as u64);
                    assert!(window.try_acquire(n).is_ok());
                }
                oracle.count += n;
                assert!(oracle.count <= oracle.limit, "{n} more, of {}", oracle.limit);
            }
            Change::Force(n) => {
                window.force_acquire(n);
                oracle.count += n;
            }
            Change::Reserve(n) => {
                if let Ok(reserved) = window.try_admit(n) {
                    oracle.count += n;
                    assert!(oracle.count <= oracle.limit, "{n} more, of {}", oracle.limit);
                    held.push((reserved, oracle.era, n));
                }
            }
            Change::Cancel(index) => {
                if index < held.len() {
                    let (reserved, era, n) = held.remove(index);
                    reserved.cancel();
                    oracle.count -= if era == oracle.era { n } else { 0 };
                }
            }
            Change::Limit(limit, rule) => {
                window.set_limit(limit, rule);
                oracle.set_limit(limit, rule);
            }
        }
        let free = oracle.limit.saturating_sub(oracle.count);
        assert_eq!(
            (window.available(), window.debt()),
            (free, oracle.count.saturating_sub(oracle.limit))
        );
    }
    clock.advance(window.time_until_full().unwrap());
    assert_eq!((window.available(), window.debt()), (oracle.limit, 0));
}
