//! The sliding window and the sliding log against a plain list of admissions.

use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Permit, SlidingLog, SlidingWindow};

const TOKENS: Cost = Cost::new("tokens");
/// Nanoseconds: five segments.
const LENGTH: u64 = 100;
const SEGMENT: u64 = 20;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Advance(u64),
    Take(u64),
    UpTo(u64),
    Force(u64),
    Reserve(u64),
    Cancel(usize),
    Settle(usize, u64),
    Limit(u64),
    Reset,
}

impl Op {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let (n, at) = (u64::from(a), usize::from(a % 6));
        match which % 19 {
            0..5 => Self::Advance(n % 60),
            5..8 => Self::Take(n % 7),
            8 => Self::UpTo(n % 7),
            9 => Self::Force(n % 4),
            10..13 => Self::Reserve(1 + n % 6),
            13..15 => Self::Cancel(at),
            15..17 => Self::Settle(at, u64::from(b % 9)),
            17 => Self::Limit(n % 12),
            _ => Self::Reset,
        }
    }
}

/// Admissions, by the instant at which they leave the window.
#[derive(Default)]
struct List {
    entries: Vec<(u64, u64)>,
}

impl List {
    fn held(&self, now: u64) -> u64 {
        let inside = self.entries.iter().filter(|&&(leaves, _)| leaves > now);
        inside.map(|&(_, n)| n).sum()
    }

    /// When at most `room` are left in the window.
    fn wait(&self, now: u64, room: u64) -> Duration {
        let mut at = now;
        while self.held(at) > room {
            let next = self
                .entries
                .iter()
                .map(|&(leaves, _)| leaves)
                .filter(|&leaves| leaves > at);
            at = next.min().unwrap();
        }
        Duration::from_nanos(at - now)
    }
}

macro_rules! against_a_list {
    ($name:ident, $ty:ty, $make:expr, $leaves:expr) => {
        pub(crate) fn $name(limit: u64, ops: Vec<Op>) {
            let (clock, mut limit) = (ManualClock::new(), limit);
            let window: Arc<$ty> = Arc::new($make(limit, &clock));
            let gate = Arc::clone(&window).per(TOKENS);
            let leaves: fn(u64) -> u64 = $leaves;
            let mut list = List::default();
            let mut held: Vec<(Permit<_>, usize)> = Vec::new();
            let mut now = 0;
            for op in ops {
                let count = list.held(now);
                assert_eq!(window.available(), limit.saturating_sub(count));
                assert_eq!(window.debt(), count.saturating_sub(limit));
                assert_eq!(window.time_until_full(), Some(list.wait(now, 0)));
                match op {
                    Op::Advance(step) => {
                        now += step;
                        clock.advance(Duration::from_nanos(step));
                    }
                    Op::Take(n) => {
                        let wait = limit.checked_sub(n).map(|room| list.wait(now, room));
                        let wait = if n == 0 { Some(Duration::ZERO) } else { wait };
                        assert_eq!(window.time_until(n), wait);
                        match window.try_acquire(n) {
                            Ok(()) => list.entries.push((leaves(now), n)),
                            Err(refused) => assert_eq!(refused.retry_after(), wait),
                        }
                        assert!(n == 0 || list.held(now) == count || count + n <= limit);
                        assert!(count + n > limit || list.held(now) == count + n);
                    }
                    Op::UpTo(n) => {
                        let there = n.min(limit.saturating_sub(count));
                        assert_eq!(window.acquire_up_to(n), there);
                        list.entries.push((leaves(now), there));
                    }
                    Op::Force(n) => {
                        window.force_acquire(n);
                        list.entries.push((leaves(now), n));
                    }
                    Op::Reserve(n) => {
                        if let Ok(permit) = gate.try_admit(Ask::one().cost(TOKENS, n)) {
                            held.push((permit, list.entries.len()));
                            list.entries.push((leaves(now), n));
                        }
                    }
                    Op::Cancel(index) => {
                        if index < held.len() {
                            // Settled to nothing, as a cancel does.
                            let (mut permit, entry) = held.remove(index);
                            permit.settle(TOKENS, 0).unwrap();
                            list.entries[entry].1 = 0;
                        }
                    }
                    // An admission settled to nothing is no entry any more; that has a test of its own.
                    Op::Settle(index, actual) => {
                        if index < held.len() && actual > 0 {
                            let (permit, entry) = &mut held[index];
                            permit.settle(TOKENS, actual).unwrap();
                            list.entries[*entry].1 = actual;
                        }
                    }
                    Op::Limit(new) => {
                        window.set_limit(new, Inherit::AsIs);
                        limit = new;
                    }
                    Op::Reset => {
                        window.reset();
                        list.entries.clear();
                        held.clear();
                    }
                }
            }
        }
    };
}

against_a_list!(
    log,
    SlidingLog,
    |limit, clock: &ManualClock| SlidingLog::new(limit, Duration::from_nanos(LENGTH)).unwrap().on(clock),
    |at| at + LENGTH
);
// Until the last instant of its segment lies a whole window back.
against_a_list!(
    sliding_window,
    SlidingWindow,
    |limit, clock: &ManualClock| {
        let window = SlidingWindow::new(limit, Duration::from_nanos(LENGTH)).unwrap();
        window.segments((LENGTH / SEGMENT) as usize).unwrap().on(clock)
    },
    |at| (at / SEGMENT + 1) * SEGMENT + LENGTH
);
