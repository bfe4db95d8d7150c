//! A resizable limiter that learns its limit.

use super::builder::AdaptiveBuilder;
use super::law::LimitLaw;
use super::resizable::Resizable;
use super::tuner::{Ended, Settings, Tuner};
use crate::sync::Mutex;
use std::fmt;
use std::sync::Weak;
use tollgate::sync::both;
use tollgate::sync::{Place, Watch};
use tollgate::{Clock, Demand, Description, Instant, Limiter, Outcome, Refusal, Role, Semaphore, Settlement};

/// A limiter whose limit adapts to the latency of its work, and to drops for overload.
///
/// It learns from [`Permit::finish`](tollgate::Permit::finish): [`Outcome::Success`] counts with the time since the
/// admission, [`Outcome::Overload`] as dropped. [`Outcome::Failure`] and dropped permits only come back: a quick error
/// says nothing of a queue. Feed one sample per attempt, not one per sequence of retries.
///
/// The law is asked once per window. The limit changes by [`Resizable::set_limit`], at once, within the floor and the
/// ceiling. No law raises it while less than half of it is used.
///
/// A request for more permits than the limit in force is refused as [`Oversized`](tollgate::Reason::Oversized), also below the
/// ceiling: let the floor be as large as the largest request.
///
/// # Rates
/// Over a [`TokenBucket`](tollgate::TokenBucket) the limit is the count of its [`Quota`](tollgate::Quota) per period, and the burst
/// stays. Count a refusal of the server (HTTP 429, `RESOURCE_EXHAUSTED`) as [`Outcome::Overload`]. Then the law finds the
/// rate that the server allows, between floor and ceiling. [`Aimd`](super::Aimd) and [`Cubic`](super::Cubic) need nothing but
/// these outcomes.
///
/// The law is asked at the first drop, without delay, and then at most once per window. Drops of requests that were admitted
/// before the limit was lowered do not count: they say nothing about the lower rate. No law raises the limit while less
/// than half of it ends per period. The period is that of the bucket when the limit is built; do not change it later.
///
/// ```
/// # use tollgate_resilience::adaptive::{Adaptive, Cubic};
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(100).burst(10)).on(&clock);
/// let rate = Adaptive::builder(bucket).law(Cubic::new()).bounds(5, 500).on(&clock).build()?;
/// rate.try_admit(1).unwrap().finish(Outcome::Overload);
/// assert_eq!(rate.limit(), 70);
/// assert_eq!(rate.limiter().quota(), Quota::per_second(70).burst(10));
/// # Ok::<(), tollgate_resilience::adaptive::AdaptiveError>(())
/// ```
///
/// # Fairness
/// That of the limiter inside.
///
/// ```
/// # use tollgate_resilience::adaptive::{Adaptive, Aimd};
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Semaphore};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let gate = Adaptive::builder(Semaphore::new(10))
///     .law(Aimd::new())
///     .bounds(2, 20)
///     .window(Duration::ZERO, 1)
///     .on(&clock)
///     .build()?;
/// gate.try_admit(1).unwrap().finish(Outcome::Overload);
/// assert_eq!(gate.limit(), 9);
/// gate.pin(15);
/// gate.try_admit(1).unwrap().finish(Outcome::Overload);
/// assert_eq!(gate.limit(), 15);
/// # Ok::<(), tollgate_resilience::adaptive::AdaptiveError>(())
/// ```
pub struct Adaptive<L: Resizable = Semaphore> {
    limiter: L,
    tuner: Mutex<Tuner>,
    settings: Settings,
    clock: Clock,
}

impl<L: Resizable> Adaptive<L> {
    /// Settings for a limit over `limiter`, to be built.
    pub fn builder(limiter: L) -> AdaptiveBuilder<L> {
        AdaptiveBuilder::new(limiter)
    }

    pub(super) fn of(limiter: L, tuner: Tuner, settings: Settings, clock: Clock) -> Self {
        let adaptive = Self {
            limiter,
            tuner: Mutex::new(tuner),
            settings,
            clock,
        };
        adaptive.apply();
        adaptive
    }

    /// The limiter inside.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// The limit in force. A snapshot.
    pub fn limit(&self) -> usize {
        self.limiter.limit()
    }

    /// Holds the limit at `limit`, or at the bound nearest to it, while the law goes on learning: for tests and
    /// emergencies.
    pub fn pin(&self, limit: usize) {
        let limit = limit.clamp(self.settings.floor, self.settings.ceiling);
        self.tuner.lock().pinned = Some(limit);
        self.apply();
    }

    /// Goes back to the law's limit.
    pub fn unpin(&self) {
        self.tuner.lock().pinned = None;
        self.apply();
    }

    /// Applies the tuner's limit to the limiter. A change wakes waiters, so it is made outside the lock, and the target
    /// is read once more. Of two threads that change it at once, the last sees the target of both.
    fn apply(&self) {
        let mut applied = None;
        loop {
            let target = self.tuner.lock().target();
            if applied == Some(target) {
                return;
            }
            if applied.is_some() || self.limiter.limit() != target {
                self.limiter.set_limit(target);
            }
            applied = Some(target);
        }
    }

    /// A snapshot of the limit and of its changes.
    ///
    /// ```
    /// # use tollgate_resilience::adaptive::{Adaptive, Aimd};
    /// # use tollgate::{LimiterExt, ManualClock, Outcome, Quota, TokenBucket};
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_minute(60)).on(&clock);
    /// let rate = Adaptive::builder(bucket).law(Aimd::new()).bounds(6, 600).on(&clock).build()?;
    /// rate.try_admit(1).unwrap().finish(Outcome::Overload);
    /// let stats = rate.stats();
    /// assert_eq!((stats.limit, stats.floor, stats.ceiling), (54, 6, 600));
    /// assert_eq!((stats.drops, stats.raised, stats.lowered), (1, 0, 1));
    /// # Ok::<(), tollgate_resilience::adaptive::AdaptiveError>(())
    /// ```
    pub fn stats(&self) -> AdaptiveStats {
        let tuner = self.tuner.lock();
        AdaptiveStats {
            limit: tuner.target(),
            floor: self.settings.floor,
            ceiling: self.settings.ceiling,
            pinned: tuner.pinned.is_some(),
            drops: tuner.drops,
            raised: tuner.raised,
            lowered: tuner.lowered,
        }
    }

    /// When work that is admitted by `demand` begins. The reading of a head may be of an instant for which its timer was late.
    #[inline]
    fn begins(&self, demand: &Demand<'_>) -> Instant {
        match demand.role() {
            Role::Newcomer => demand.now(&self.clock),
            _ => self.clock.now(),
        }
    }

    /// A learnt limit counts for a minute without work, or for a hundred windows if that is more. Nothing may be in use.
    fn is_as_new(&self) -> bool {
        let (as_new, target) = {
            let tuner = self.tuner.lock();
            let as_new = tuner.is_pristine(&self.settings, &self.clock, self.clock.now());
            (as_new, tuner.target())
        };
        // A limit that differs from the law's was set by the user.
        as_new && self.limiter.in_use() == 0 && self.limiter.limit() == target
    }

    fn learn(&self, ended: Ended) {
        let mut asked = self.tuner.lock().learn(&self.settings, &self.clock, ended);
        // A window that another thread ended meanwhile is asked about as well. No third: a law that uses its limiter
        // ends one each time.
        for _ in 0..2 {
            let Some(question) = asked else { return };
            let mut lent = Lent {
                tuner: &self.tuner,
                law: Some(question.law),
            };
            let next = lent.law.as_mut().map(|law| law.next(question.limit, &question.sample));
            asked = next.and_then(|next| {
                let mut tuner = self.tuner.lock();
                tuner.law = lent.law.take();
                tuner.answer(&self.settings, next, question.sample.in_flight);
                tuner.question(&self.settings, &self.clock)
            });
            self.apply();
        }
    }
}

/// The limit of an [`Adaptive`] limiter, and its changes since it was made. See [`Adaptive::stats`].
///
/// ```
/// # use tollgate_resilience::adaptive::{Adaptive, Aimd};
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Semaphore};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let builder = Adaptive::builder(Semaphore::new(10)).law(Aimd::new()).bounds(2, 20).window(Duration::ZERO, 1);
/// let gate = builder.on(&clock).build()?;
/// gate.try_admit(1).unwrap().finish(Outcome::Overload);
/// let stats = gate.stats();
/// assert_eq!((stats.limit, stats.floor, stats.ceiling), (9, 2, 20));
/// assert_eq!((stats.drops, stats.lowered, stats.raised), (1, 1, 0));
/// # Ok::<(), tollgate_resilience::adaptive::AdaptiveError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveStats {
    /// The limit: of permits, or of units per period.
    pub limit: usize,
    /// The lowest limit.
    pub floor: usize,
    /// The highest limit.
    pub ceiling: usize,
    /// True if the limit is [pinned](Adaptive::pin).
    pub pinned: bool,
    /// The windows in which a request was dropped.
    pub drops: u64,
    /// How often the law raised the limit.
    pub raised: u64,
    /// How often the law lowered the limit.
    pub lowered: u64,
}

/// A law that is being asked: it comes back, also when it panics.
struct Lent<'a> {
    tuner: &'a Mutex<Tuner>,
    law: Option<Box<dyn LimitLaw>>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(law) = self.law.take() {
            self.tuner.lock().law = Some(law);
        }
    }
}

impl<L: Resizable> Limiter for Adaptive<L> {
    /// The start of the work, in ticks, and the ticket of the limiter inside.
    type Ticket = (u64, L::Ticket);

    #[inline]
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        let ticket = self.limiter.try_reserve(demand)?;
        Ok((self.begins(demand).ticks(), ticket))
    }

    #[inline]
    fn cancel(&self, (_, ticket): Self::Ticket) {
        self.limiter.cancel(ticket);
    }

    fn finish(&self, (started, ticket): Self::Ticket, outcome: Outcome) {
        // The number in flight is read while this request is still in it.
        both(
            || {
                if let Outcome::Success | Outcome::Overload = outcome {
                    self.learn(Ended {
                        started: Instant::from_ticks(started),
                        now: self.clock.now(),
                        dropped: outcome == Outcome::Overload,
                        used: match self.settings.period {
                            Some(_) => self.limiter.units(&ticket),
                            None => self.limiter.in_use() as u64,
                        },
                    });
                }
            },
            || self.limiter.finish(ticket, outcome),
        );
    }

    fn settle(&self, (_, ticket): &mut Self::Ticket, settlement: &Settlement) -> u32 {
        self.limiter.settle(ticket, settlement)
    }

    #[inline]
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.limiter.look(demand)
    }

    fn leave(&self, place: &Place) {
        self.limiter.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.limiter.watch(watcher);
    }

    /// The limiter inside, with the kind `adaptive`.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let as_new = self.is_as_new();
        self.limiter.describe(&mut |mut leg| {
            leg.kind = "adaptive";
            let leg = leg.as_new(as_new);
            visit(match leg.clock {
                Some(_) => leg,
                None => leg.on(&self.clock),
            });
        });
    }
}

impl<L: Resizable> fmt::Debug for Adaptive<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive")
            .field("limit", &self.limit())
            .field("in_use", &self.limiter.in_use())
            .finish_non_exhaustive()
    }
}
