//! The leaky bucket: even spacing, one after the other.

use super::booking::Booking;
use super::inherit::Inherit;
use super::quota::Quota;
use super::rate_error::RateError;
use super::shell::{RateTicket, Shell, limiter_of_shell};
use crate::algo::drain::{Drain, grains};
use crate::algo::leaky::Leaky;
use crate::algo::meter::Meter;
use crate::ask::Demand;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::refusal::{ReadyAt, Refusal};
use crate::status::State;
use crate::sync::shim::Mutex;
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::time::Duration;

const LEG: &str = "leaky_bucket";

/// Lets units out one by one, an interval apart: at ten a second, one each 100 ms. Exact integers, no drift.
///
/// What time has passed idle is lost, but for the *slack*: up to so many units may follow at once, and the spacing is
/// caught up with. In any span of time `t` it admits at most `1 + slack + rate x t`, where `t` counts a tick of the
/// clock longer: what a wait is rounded up by is not lost, up to a unit per 16 ns. (On a machine's clock each wait for a single
/// unit is rounded up to a tick at higher rates.) A request for more than `1 + slack` units is `Oversized`; it can be
/// booked.
///
/// As a [`Limiter`] it admits what may start now and refuses the rest; in a [`Policy`](crate::Policy) the refused wait in
/// line, and come out evenly spaced. [`book`](Self::book) admits for later: the bucket holds what is booked and not yet
/// due, and what does not fit into it is refused. Its size is the quota's burst.
///
/// | | 4 at one instant, at 10/s burst 3 |
/// |---|---|
/// | `try_acquire` | 1 admitted, 3 refused |
/// | `book` | due after 0, 100 and 200 ms, 1 refused |
/// | `try_acquire`, slack 1 | 2 admitted, 2 refused |
///
/// # Giving back
/// A reservation or a booking that is cancelled gives back all it took, unless the bucket could have been empty in
/// between without it: precisely, what it left in the bucket less what has flowed out since, and what older ones have
/// given back since. So cancels are exact in any order, and no span exceeds its bound. Of more than 64 cancels while
/// the bucket does not run empty some count as older than they are, and give back less. Before those who have
/// [booked](Self::book) an instant to come less is given back, so that no span exceeds its bound by these. A [`settle`](crate::Permit::settle)
/// corrects the charge from now on.
///
/// The bucket is the meter of ITU-T I.371 (generic cell rate algorithm), in its leaky form.
///
/// # Memory ordering
/// None is promised to callers: a rate orders no work after other work.
///
/// ```
/// # use tollgate::{LeakyBucket, ManualClock, Quota};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let bucket = LeakyBucket::new(Quota::per_second(10).burst(3)).on(&clock);
/// assert!(bucket.try_acquire(1).is_ok());
/// assert_eq!(bucket.try_acquire(1).unwrap_err().retry_after(), Some(Duration::from_millis(100)));
///
/// // A long pause earns nothing.
/// clock.advance(Duration::from_secs(60));
/// let waits: Vec<_> = (0..3).map(|_| bucket.book(1).unwrap()).map(|booking| {
///     let wait = booking.wait().as_millis();
///     booking.commit();
///     wait
/// }).collect();
/// assert_eq!(waits, [0, 100, 200]);
/// assert!(bucket.book(1).is_err());
/// ```
pub struct LeakyBucket {
    shell: Shell<Leaky>,
    set: Mutex<Set>,
}

/// As it was set.
#[derive(Clone, Copy, Debug)]
struct Set {
    quota: Quota,
    slack: u64,
}

impl Set {
    /// What may be in the bucket right after an admission, and after a booking.
    fn sizes(&self) -> (u64, u64) {
        let ahead = self.quota.burst_size().max(1);
        (self.slack + 1, self.slack.saturating_add(ahead))
    }

    fn check(self) -> Result<Self, RateError> {
        let given = self.slack;
        let flows_out = || self.quota.is_unlimited() || self.quota.with_burst(given + 1).is_ok();
        if given < Quota::MAX_BURST && flows_out() {
            Ok(self)
        } else {
            Err(RateError::Slack { given })
        }
    }
}

/// How units flow out; nothing when none are counted.
fn drain_of(quota: &Quota, clock: &Clock) -> Option<Drain> {
    if quota.is_unlimited() {
        return None;
    }
    if quota.is_zero() {
        return Some(Drain::STOPPED);
    }
    let (count, nanos) = quota.reduced();
    Some(Drain::new(count, nanos, clock.nanos_scale()))
}

impl LeakyBucket {
    /// An empty bucket without slack, on the real clock. At [`Quota::zero`] nothing flows out, and nothing is admitted.
    pub fn new(quota: Quota) -> Self {
        Self::build(Set { quota, slack: 0 }, &Clock::real())
    }

    /// The same bucket on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(*self.set.lock(), clock)
    }

    /// The same bucket with another slack, empty: so many units may catch up with the spacing after a pause.
    ///
    /// # Errors
    /// [`RateError::Slack`] when it is 2^40 or more, or would not flow out within 584 years.
    pub fn slack(self, slack: u64) -> Result<Self, RateError> {
        let set = Set {
            slack,
            ..*self.set.lock()
        };
        Ok(Self::build(set.check()?, self.shell.clock()))
    }

    fn build(set: Set, clock: &Clock) -> Self {
        let (brim, size) = set.sizes();
        let drain = drain_of(&set.quota, clock);
        Self {
            shell: Shell::new(LEG, clock, |now| Leaky::new(now, drain, brim, size)),
            set: Mutex::new(set),
        }
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.set.lock().quota
    }

    /// Changes the rate, and with it the size, at once. What is in the bucket flows out at the new rate: since the
    /// slack stays as it is, every rule but [`Inherit::Reset`], which empties the bucket, comes to the same. An
    /// unlimited quota empties it as well.
    ///
    /// # Errors
    /// [`RateError::Slack`] when the slack would not flow out within 584 years. Nothing is changed then.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) -> Result<(), RateError> {
        self.set_all(|set| Set { quota, ..set }, inherit)
    }

    /// Changes the slack at once; `inherit` says what becomes of the room that is left. A debt stays.
    ///
    /// # Errors
    /// [`RateError::Slack`] as for [`slack`](Self::slack). Nothing is changed then.
    pub fn set_slack(&self, slack: u64, inherit: Inherit) -> Result<(), RateError> {
        self.set_all(|set| Set { slack, ..set }, inherit)
    }

    fn set_all(&self, change: impl FnOnce(Set) -> Set, inherit: Inherit) -> Result<(), RateError> {
        let mut set = self.set.lock();
        let new = change(*set).check()?;
        self.apply(&new, inherit);
        *set = new;
        drop(set);
        self.shell.ring();
        Ok(())
    }

    fn apply(&self, set: &Set, inherit: Inherit) {
        let (brim, size) = set.sizes();
        let drain = drain_of(&set.quota, self.shell.clock());
        self.shell.change(|leaky| {
            let (old, new) = (leaky.brim() as i128, grains(brim));
            let room = leaky.room();
            let wanted = inherit.scaled(room, old, new as i128);
            let counted = [old, new as i128].map(|brim| drain.is_some().then_some(brim));
            let room = self.shell.inherit(inherit, room, wanted, counted);
            leaky.set_drain(drain);
            leaky.set_brim(new, size, room);
            if inherit == Inherit::Reset || drain.is_none() {
                leaky.clear();
            }
        });
    }

    /// Takes `n` for the first instant at which all of them have had their turn, behind everything booked before. Any
    /// weight that fits into the bucket can be booked, with a slack or without.
    ///
    /// Those behind a booking that is given back keep their instants, although they could start earlier now. By these no
    /// span of time `t` has more than `1 + slack + rate x t`, or than one weight that is more than `1 + slack`, and `rate x t`.
    /// So one before others gives back at most as much as had flowed out, without it, when each of them starts: without a
    /// slack its place stays empty. The rest comes back when those in its way are given back as well. Of more than 256 booked
    /// ahead neighbours count as one, and of more than 64 that wait for the rest the oldest is forgotten: both give back
    /// less. After a change of the quota or the slack nothing is given back before others that were booked before it; they
    /// keep their instants whatever the new rate is, and are counted by those of the old one: at a higher rate the bucket is
    /// empty sooner, and others start beside them.
    ///
    /// # Errors
    /// `QueueFull` when the bucket would run over, with a true `retry_after`; `Oversized` when `n` never fits.
    pub fn book(&self, n: u64) -> Result<Booking<'_, Self>, Refusal<'_>> {
        let (mark, made, start) = self.shell.book(n, |leaky| leaky.book(n))?;
        let ticket = RateTicket { units: n, mark };
        Ok(Booking::new(self, ticket, self.shell.clock(), made, start))
    }

    /// How many units are owed, by bookings and debts, before the next can be admitted with no slack left; rounded up.
    pub fn debt(&self) -> u64 {
        self.shell.read(Leaky::debt)
    }
}

impl LeakyBucket {
    fn status(&self) -> Option<State> {
        State::by_quota(&self.quota(), self.available(), self.time_until(1))
    }
}

limiter_of_shell!(LeakyBucket, 3, status);

impl fmt::Debug for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = *self.set.lock();
        f.debug_struct("LeakyBucket")
            .field("quota", &format_args!("{}", set.quota))
            .field("slack", &set.slack)
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
