//! A rate that warms up after it was idle.

use super::inherit::Inherit;
use super::quota::Quota;
use super::rate_error::RateError;
use super::shell::{RateTicket, Shell, limiter_of_shell};
use crate::algo::drain::Drain;
use crate::algo::meter::Meter;
use crate::algo::warmup::{self, Pace, Shape};
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::time::Duration;

const LEG: &str = "warmup";

/// Lets one request start at a time, spaced by its rate, and more slowly at first: for an upstream with caches to fill
/// and connections to open.
///
/// A fresh one is cold: the first interval is nearly the cold factor (3 unless set otherwise) times the stable one, and
/// the intervals shrink to the stable one in the course of the warm-up period. Idle time cools it down again: after one
/// such period it is cold. At 2 a second, warmed up in 4 seconds, the intervals from cold are 1.375, 1.125, 0.875,
/// 0.625 and then 0.5 seconds.
///
/// A request of up to the quota's burst starts when the line is free, and occupies it for the sum of its units'
/// intervals: it is paid for by the next. A larger one is `Oversized`. In any span of time `t` it admits at most
/// `burst + rate x t`, where `t` counts a tick of the clock longer.
///
/// # Giving back
/// A reservation that is cancelled before another is admitted leaves no trace, however late. Later it gives back nothing:
/// the intervals that it kept have passed. A [`settle`](crate::Permit::settle) of the latest admission is exact too; of an
/// earlier one only more is charged, from now on, and the latest can still be given back. One whose successors were all
/// cancelled may count as either. (When the latest settles after that, its
/// intervals count from then on, not from when it was admitted.) Time without a rate, unlimited or zero, is not idle: nothing
/// cools down in it.
///
/// The construction is that of `SmoothWarmingUp` in Guava; for a cold factor of 3 that of Sentinel's warm-up is the
/// same.
///
/// ```
/// # use tollgate::{ManualClock, Quota, Warmup};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let warmup = Warmup::new(Quota::per_second(2), Duration::from_secs(4)).unwrap().on(&clock);
/// let mut waits = Vec::new();
/// for _ in 0..6 {
///     warmup.try_acquire(1).unwrap();
///     let wait = warmup.time_until(1).unwrap();
///     waits.push(wait.as_millis());
///     clock.advance(wait);
/// }
/// assert_eq!(waits, [1_375, 1_125, 875, 625, 500, 500]);
/// ```
pub struct Warmup {
    shell: Shell<warmup::Warmup>,
    set: Mutex<Set>,
}

/// As it was set.
#[derive(Clone, Copy, Debug)]
struct Set {
    quota: Quota,
    period: Duration,
    cold: u32,
}

impl Set {
    /// Compiled for a clock, and the most that one request may take.
    fn compile(&self, clock: &Clock) -> Result<(Pace, u64), RateError> {
        if self.period.is_zero() || self.period > Duration::from_secs(365 * 86_400) {
            return Err(RateError::Period { given: self.period });
        }
        if self.cold == 0 || self.cold > Shape::MAX_COLD {
            return Err(RateError::ColdFactor { given: self.cold });
        }
        let quota = self.quota;
        if quota.is_zero() {
            return Ok((Pace::Stopped, 0));
        }
        if quota.is_unlimited() {
            return Ok((Pace::Unlimited, 0));
        }
        let (count, nanos) = quota.reduced();
        let interval = Drain::new(count, nanos, clock.nanos_scale()).interval();
        let shape = Shape::new(
            (count, nanos),
            // At most 365 days.
            self.period.as_nanos() as u64,
            self.cold,
            interval.unwrap_or(u128::MAX),
            clock.ticks_of(self.period),
        );
        match shape {
            Some(shape) => Ok((Pace::Shaped(shape), quota.burst_size())),
            None => Err(RateError::Permits {
                quota,
                period: self.period,
            }),
        }
    }
}

impl Warmup {
    /// At the quota's rate once it is warm, `period` after a cold start; cold, on the real clock. At [`Quota::zero`] it
    /// admits nothing.
    ///
    /// # Errors
    /// [`RateError::Period`] when the period is zero or above 365 days; [`RateError::Permits`] when the rate yields more
    /// than 2^31 permits in that time.
    pub fn new(quota: Quota, period: Duration) -> Result<Self, RateError> {
        let set = Set { quota, period, cold: 3 };
        Self::build(set, &Clock::real())
    }

    /// The same limiter on `clock`, cold.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let set = *self.set.lock();
        // What is allowed does not depend on the clock: it was checked when this one was made.
        Self::build(set, clock).unwrap_or(self)
    }

    /// The same limiter with another cold factor: how many times longer the interval is when it is cold.
    ///
    /// # Errors
    /// [`RateError::ColdFactor`] when it is none of 1 to 100.
    pub fn cold_factor(self, cold: u32) -> Result<Self, RateError> {
        let set = Set {
            cold,
            ..*self.set.lock()
        };
        Self::build(set, self.shell.clock())
    }

    fn build(set: Set, clock: &Clock) -> Result<Self, RateError> {
        let (pace, burst) = set.compile(clock)?;
        Ok(Self {
            shell: Shell::new(LEG, clock, |now| warmup::Warmup::new(now, pace, burst)),
            set: Mutex::new(set),
        })
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.set.lock().quota
    }

    /// Changes the rate at once. What has been admitted is paid for at the old one. `inherit` says how cold it is then:
    /// by as many stored permits as before, by the same share of the most, by as many more or less as the most has changed
    /// by, or, after a [`Reset`](Inherit::Reset), cold and free.
    ///
    /// # Errors
    /// [`RateError::Permits`] as for [`new`](Self::new). Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) -> Result<(), RateError> {
        let mut set = self.set.lock();
        let new = Set { quota, ..*set };
        let (pace, burst) = new.compile(self.shell.clock())?;
        self.shell.change(|warmup| {
            let (stored, old) = warmup.stored();
            let kept = inherit.room(stored.into(), old, pace.max()).max(0);
            warmup.set_pace(pace, burst, kept as u64);
            if inherit == Inherit::Reset {
                warmup.clear();
            }
        });
        *set = new;
        drop(set);
        self.shell.ring();
        Ok(())
    }

    /// How far apart it admits single units just now: the stable interval, up to the cold factor times that. `None`
    /// when the rate is zero or unlimited. Rounded down to a nanosecond.
    pub fn interval(&self) -> Option<Duration> {
        let ticks = self.shell.read(warmup::Warmup::interval)?;
        let nanos = (ticks >> 32).saturating_mul(u128::from(self.shell.clock().nanos_scale())) >> 40;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl Warmup {
    fn status(&self) -> Option<State> {
        State::by_quota(&self.quota(), self.available(), self.time_until(1))
    }
}

limiter_of_shell!(Warmup, 1, status);

impl fmt::Debug for Warmup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = *self.set.lock();
        f.debug_struct("Warmup")
            .field("quota", &format_args!("{}", set.quota))
            .field("period", &set.period)
            .field("cold_factor", &set.cold)
            .field("interval", &self.interval())
            .finish_non_exhaustive()
    }
}
