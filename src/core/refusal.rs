//! Why a request was not admitted: the leg, the reason, the numbers, and how to wait.
//!
//! A [`Refusal`] is made on the hot path, so it stores numbers and divides nothing: [`Refusal::retry_after`] computes
//! when it is asked. It borrows the leg's name; [`Rejection`] is the owned form, an ordinary `'static` error.

use crate::core::ask::{Ask, Cost, Demand};
use crate::core::limiter::Limiter;
pub use crate::core::ready::ReadyAt;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The kinds of refusal.
///
/// ```
/// # use tollgate::{LimiterExt, Quota, Reason, Semaphore, TokenBucket};
/// let reason = |refused: tollgate::Refusal<'_>| refused.reason();
/// assert_eq!(reason(Semaphore::new(0).try_admit(1).unwrap_err()), Reason::Saturated);
/// let bucket = TokenBucket::new(Quota::per_second(1).burst(5));
/// assert!(bucket.try_admit(5).is_ok());
/// assert_eq!(reason(bucket.try_admit(1).unwrap_err()), Reason::RateExceeded);
/// assert_eq!(reason(bucket.try_admit(6).unwrap_err()), Reason::Oversized);
/// assert!(Reason::Oversized.is_permanent() && !Reason::RateExceeded.is_permanent());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// All permits are in use.
    Saturated,
    /// The rate, or the window, has no room before some later instant.
    RateExceeded,
    /// A circuit breaker is open.
    CircuitOpen,
    /// The queue is full.
    QueueFull,
    /// The wait would have ended, or did end, after its deadline.
    TimedOut,
    /// More than any instant can admit under the settings in force.
    Oversized,
    /// A leg counts a cost that the request does not name.
    Unpriced,
    /// There is a limiter for each key, and the request does not say which is its own.
    Unkeyed,
    /// The program has not set up a part that a limit needs.
    Misconfigured,
    /// The limiter has been closed for good.
    Closed,
    /// The store that holds the permits cannot be reached.
    Unavailable,
    /// Only the store can tell, and a request that does not wait asks no store: there may be room.
    RoundTrip,
}

impl Reason {
    /// True when asking again cannot succeed under the present settings.
    pub fn is_permanent(self) -> bool {
        matches!(
            self,
            Self::Oversized | Self::Unpriced | Self::Unkeyed | Self::Misconfigured | Self::Closed
        )
    }

    /// All, each at its number.
    const ALL: [Self; 12] = [
        Self::Saturated,
        Self::RateExceeded,
        Self::CircuitOpen,
        Self::QueueFull,
        Self::TimedOut,
        Self::Oversized,
        Self::Unpriced,
        Self::Unkeyed,
        Self::Misconfigured,
        Self::Closed,
        Self::Unavailable,
        Self::RoundTrip,
    ];

    fn clause(self) -> &'static str {
        match self {
            Self::Saturated => "is saturated",
            Self::RateExceeded => "has exceeded its rate",
            Self::CircuitOpen => "has an open circuit",
            Self::QueueFull => "has a full queue",
            Self::TimedOut => "did not admit in time",
            Self::Oversized => "can never admit that many",
            Self::Unpriced => "counts a cost that was not named",
            Self::Unkeyed => "is not in the request",
            Self::Misconfigured => "has not been set up",
            Self::Closed => "is closed",
            Self::Unavailable => "is unavailable",
            Self::RoundTrip => "is decided by a store, which was not asked",
        }
    }
}

/// The earliest instant at which a refused request could succeed, in the numbers of the leg that refused: nothing has been
/// divided yet.
///
/// ```
/// # use tollgate::{ManualClock, Quota, TokenBucket, Wait};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(1)).on(&clock);
/// bucket.try_acquire(1).unwrap();
/// let refused = bucket.try_acquire(1).unwrap_err();
/// let Wait::Until(due) = refused.wait() else { panic!() };
/// assert_eq!(due.after(), Duration::from_secs(1));
/// assert_eq!(due.instant(), clock.after(clock.now(), due.after()));
/// ```
#[derive(Clone, Copy)]
pub struct Due<'a> {
    clock: &'a Clock,
    asked_at: Instant,
    at: At,
}

#[derive(Clone, Copy)]
enum At {
    Instant(Instant),
    /// The first instant at which `origin + ceil(distance * 2^64 / mul) >> shift` ticks have passed.
    Axis {
        origin: Instant,
        distance: u64,
        mul: u64,
        shift: u32,
    },
}

impl<'a> Due<'a> {
    /// Due at `at`, seen from `asked_at`.
    #[inline]
    pub fn at(clock: &'a Clock, asked_at: Instant, at: Instant) -> Self {
        Self {
            clock,
            asked_at,
            at: At::Instant(at),
        }
    }

    /// Due at no instant under the settings in force: only a change of them helps, or units that come back.
    pub(crate) fn never(clock: &'a Clock, asked_at: Instant) -> Self {
        Self::on_axis(clock, asked_at, asked_at, 1, 0, 0)
    }

    /// Due once an axis that starts at `origin`, and gains `mul / 2^(64 - shift)` units a tick, has gained `distance`.
    #[inline]
    pub(crate) fn on_axis(
        clock: &'a Clock,
        asked_at: Instant,
        origin: Instant,
        distance: u64,
        mul: u64,
        shift: u32,
    ) -> Self {
        Self {
            clock,
            asked_at,
            at: At::Axis {
                origin,
                distance,
                mul,
                shift,
            },
        }
    }

    /// The instant, rounded up to a tick of the clock.
    pub fn instant(&self) -> Instant {
        match self.at {
            At::Instant(at) => at,
            At::Axis {
                origin,
                distance,
                mul,
                shift,
            } => origin.after_ticks(crate::time::axis::ticks_until(distance, mul, shift)),
        }
    }

    /// True when the axis gains nothing, so that no instant would help.
    fn is_never(&self) -> bool {
        matches!(
            self.at,
            At::Axis {
                mul: 0,
                distance: 1..,
                ..
            }
        )
    }

    /// The time from the request to that instant, rounded up to a nanosecond.
    pub fn after(&self) -> Duration {
        self.clock.between(self.asked_at, self.instant())
    }
}

/// How a refused request may wait.
///
/// ```
/// # use tollgate::{LimiterExt, Quota, Semaphore, TokenBucket, Wait};
/// let (bucket, semaphore) = (TokenBucket::new(Quota::per_hour(1)), Semaphore::new(1));
/// let _held = (bucket.try_admit(1).unwrap(), semaphore.try_admit(1).unwrap());
/// assert!(matches!(bucket.try_admit(1).unwrap_err().wait(), Wait::Until(_)));
/// assert!(matches!(bucket.try_admit(2).unwrap_err().wait(), Wait::Never));
/// assert!(matches!(semaphore.try_admit(1).unwrap_err().wait(), Wait::Turn(_)));
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// Not at all: waiting changes nothing.
    Never,
    /// Until an instant.
    Until(Due<'a>),
    /// In the turn of a queue, which hands over at an instant that is not known.
    Turn(&'a dyn WaitQueue),
    /// Until the leg notifies its waiters, at an instant that is not known.
    Event,
}

impl<'a> How<'a> {
    /// As `wait` says, and the shift of its axis.
    #[inline(always)]
    fn of(wait: Wait<'a>) -> (Self, u32) {
        match wait {
            Wait::Never => (Self::Never, 0),
            Wait::Event => (Self::Event, 0),
            Wait::Turn(wait_queue) => (Self::Turn(wait_queue), 0),
            Wait::Until(Due { clock, asked_at, at }) => match at {
                At::Instant(at) => (Self::Until { clock, asked_at, at }, 0),
                At::Axis {
                    origin,
                    distance,
                    mul,
                    shift,
                } => {
                    let axis = Self::OnAxis {
                        clock,
                        asked_at,
                        origin,
                        distance,
                        mul,
                    };
                    (axis, shift)
                }
            },
        }
    }

    fn due(self, shift: u64) -> Option<Due<'a>> {
        match self {
            Self::Never | Self::Event | Self::Turn(_) => None,
            Self::Until { clock, asked_at, at }
            | Self::Of {
                clock, asked_at, at, ..
            } => Some(Due::at(clock, asked_at, at)),
            Self::OnAxis {
                clock,
                asked_at,
                origin,
                distance,
                mul,
            } => Some(Due::on_axis(clock, asked_at, origin, distance, mul, shift as u32)),
        }
    }
}

/// All legs of the composite that refused, and the request. From these is computed, on demand, which leg is ready last, and
/// whether one never is.
///
/// An ask of at most one named cost, in few words: both numbers are in the refusal or here.
#[derive(Clone, Copy)]
struct Whole<'a> {
    legs: &'a dyn Legs,
    /// Of the calls and the named cost, the one that the refusing leg does not count.
    other: u64,
    cost: Option<Cost>,
}

/// What all legs say of a refusal by one of them.
enum Answer<'a> {
    /// One never admits.
    Never(Refusal<'a>),
    /// One is ready later.
    Later(How<'a>),
    Same,
}

impl<'a> Answer<'a> {
    /// Of `demand` now, for an ask that a refusal cannot carry. `due` is the instant of the leg that refused.
    #[cold]
    #[inline(never)]
    fn now(legs: &'a dyn Legs, demand: Demand<'_>, due: Option<Due<'a>>) -> Self {
        let Some(clock) = legs.decides_by() else {
            return Self::Same;
        };
        let now = clock.now();
        let reading = ClockReading::at(clock, now);
        let ready = legs.ready(Demand::new(demand.ask(), &reading).with_units(demand.units(), 0));
        Self::of(&ready, due, clock, now, demand.units())
    }

    fn of(ready: &ReadyAt<'a>, due: Option<Due<'a>>, clock: &'a Clock, now: Instant, units: u64) -> Self {
        if let Some(never) = ready.never_admits(units) {
            return Self::Never(never);
        }
        if ready.has_no_instant() {
            return Self::Later(How::of(Wait::Until(Due::never(clock, now))).0);
        }
        // When it was asked, if that is known by this clock.
        let asked_at = due
            .filter(|due| due.clock.is_same(clock))
            .map_or(now, |due| due.asked_at);
        let at = ready.not_before().filter(|&at| at > now);
        match at.filter(|&at| Some(clock.between(asked_at, at)) > due.map(|due| due.after())) {
            Some(at) => Self::Later(How::Of {
                clock,
                asked_at,
                at,
                leg: ready.leg(),
            }),
            None => Self::Same,
        }
    }
}

impl<'a> Whole<'a> {
    /// That of a refusal by a leg for `units`, with its head. `None` where the ask is too long to be carried.
    #[cold]
    #[inline(never)]
    fn of(legs: &'a dyn Legs, demand: Demand<'_>, head: Head, units: u64, whole: Option<Self>) -> Option<(Head, Self)> {
        let ask = demand.ask();
        let (calls, cost) = (ask.count(), ask.first_cost());
        let named = |units| matches!(cost, Some((_, cost)) if cost == units);
        let (by_calls, all_by_calls) = (units == calls, demand.units() == calls);
        let by_another = whole.is_some_and(|whole| !whole.is_of(ask, units, head));
        if by_another || ask.has_costs() || !(by_calls || named(units)) || !(all_by_calls || named(demand.units())) {
            return None;
        }
        let mut flags = 0;
        let mut other = cost.map_or(0, |(_, units)| units);
        if !by_calls {
            flags |= Head::LEG_COUNTS_COST;
            other = calls;
        }
        if !all_by_calls {
            flags |= Head::WHOLE_COUNTS_COST;
        }
        let head = Head(head.0 & !(Head::LEG_COUNTS_COST | Head::WHOLE_COUNTS_COST) | flags);
        let cost = cost.map(|(cost, _)| cost);
        Some((head, Self { legs, other, cost }))
    }

    /// True if this is of `ask`, and so are the `units` that the refusing leg was asked for.
    #[inline(always)]
    fn is_of(&self, ask: &Ask, units: u64, head: Head) -> bool {
        let (calls, cost) = match head.has(Head::LEG_COUNTS_COST) {
            false => (units, self.other),
            true => (self.other, units),
        };
        calls == ask.count() && self.cost.map(|name| (name, cost)) == ask.first_cost() && !ask.has_costs()
    }
}

/// How a refused request may wait, as a refusal keeps it: in whole words, since a result is copied at every attempt.
#[derive(Clone, Copy)]
#[repr(u64)]
enum How<'a> {
    Never,
    Event,
    Turn(&'a dyn WaitQueue),
    Until {
        clock: &'a Clock,
        asked_at: Instant,
        at: Instant,
    },
    /// As [`At::Axis`]. The shift is in the [`Head`].
    OnAxis {
        clock: &'a Clock,
        asked_at: Instant,
        origin: Instant,
        distance: u64,
        mul: u64,
    },
    /// Until an instant of the leg of this name, which is ready later than the one that refused.
    Of {
        clock: &'a Clock,
        asked_at: Instant,
        at: Instant,
        leg: &'a str,
    },
}

/// The small fields of a refusal in one word.
///
/// | bits | meaning |
/// |---|---|
/// | 0..8 | the reason |
/// | 8 | the leg that refused counts the named cost, not calls |
/// | 9 | so does the composite |
/// | 10..14 | the cause and one, or zero |
/// | 16.. | the shift of the axis |
#[derive(Clone, Copy)]
struct Head(u64);

impl Head {
    const LEG_COUNTS_COST: u64 = 1 << 8;
    const WHOLE_COUNTS_COST: u64 = 1 << 9;
    const CAUSE: u32 = 10;
    const CAUSES: u64 = 0xf << Self::CAUSE;
    const SHIFT: u32 = 16;

    fn reason(self) -> Reason {
        Reason::ALL[(self.0 & 0xff) as usize]
    }

    fn cause(self) -> Option<Reason> {
        let cause = (self.0 & Self::CAUSES) >> Self::CAUSE;
        Some(Reason::ALL[cause.checked_sub(1)? as usize])
    }

    /// The same with another reason. The reason before it is the cause of a wait that has failed.
    fn with_reason(self, reason: Reason) -> Self {
        let cause = match reason {
            Reason::TimedOut | Reason::QueueFull => self.cause().unwrap_or(self.reason()) as u64 + 1,
            _ => 0,
        };
        Self(self.0 & !0xff & !Self::CAUSES | reason as u64 | cause << Self::CAUSE)
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
}

/// The legs of a composite, as a refusal needs them.
pub(crate) trait Legs: Send + Sync {
    fn ready(&self, demand: Demand<'_>) -> ReadyAt<'_>;
    fn decides_by(&self) -> Option<&Clock>;
}

impl<L: Limiter> Legs for L {
    fn ready(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.ready_at(demand)
    }
    fn decides_by(&self) -> Option<&Clock> {
        self.clock()
    }
}

/// A refusal: which leg, why, and how to wait. It has left no trace in any limiter.
///
/// It borrows the limiter, and is no [`Error`] itself. The operator `?` turns it into a boxed error, by way of the owned
/// [`Rejection`], which is one. For other kinds of errors: `.map_err(Rejection::from)?`.
///
/// ```
/// # use tollgate::{ManualClock, Policy, Rejection, Semaphore};
/// async fn work() -> Result<(), Box<dyn std::error::Error>> {
///     let policy = Policy::builder().limit(Semaphore::new(0)).max_queue(0).build()?;
///     let _permit = policy.admit(1).await?;
///     Ok(())
/// }
/// let error = ManualClock::new().run(work()).unwrap_err();
/// assert_eq!(&*error.downcast_ref::<Rejection>().unwrap().leg, "semaphore");
/// ```
#[derive(Clone, Copy)]
#[must_use = "a refusal says why the work must not start"]
pub struct Refusal<'a> {
    head: Head,
    leg: &'a str,
    units: u64,
    how: How<'a>,
    whole: Option<Whole<'a>>,
}

// It is returned at every attempt, so it stays small: `clippy::result_large_err` warns from 128 bytes on.
const _: () = assert!(size_of::<Refusal<'_>>() <= 120);

impl<'a> Refusal<'a> {
    /// A refusal by the leg `leg` of `units` units.
    #[inline(always)]
    pub fn new(reason: Reason, leg: &'a str, units: u64, wait: Wait<'a>) -> Self {
        let (how, shift) = How::of(wait);
        Self {
            head: Head(reason as u64 | u64::from(shift) << Head::SHIFT),
            leg,
            units,
            how,
            whole: None,
        }
    }

    /// The same refusal, by one of several legs.
    ///
    /// No call takes the refusal by its address: its words stay in registers until they are written once.
    #[inline(always)]
    pub(crate) fn among(self, legs: &'a dyn Legs, demand: Demand<'_>) -> Self {
        if matches!(self.how, How::Never) {
            return self;
        }
        let ask = demand.ask();
        let calls = ask.count();
        let by_calls = !self.head.has(Head::LEG_COUNTS_COST | Head::WHOLE_COUNTS_COST);
        if by_calls && self.units == calls && demand.units() == calls && !ask.has_costs() {
            // Anew, also where it is of other legs: an adapter may have asked these by an ask of its own.
            let (cost, other) = ask.first_cost().unzip();
            let other = other.unwrap_or(0);
            let whole = Some(Whole { legs, other, cost });
            return Self { whole, ..self };
        }
        // Of a copy, so that the caller need not have its ask in memory.
        let ask = *ask;
        let demand = demand.of(&ask);
        if let Some((head, whole)) = Whole::of(legs, demand, self.head, self.units, self.whole) {
            let whole = Some(whole);
            return Self { head, whole, ..self };
        }
        self.answered(Answer::now(legs, demand, self.own_due()))
    }

    /// The same refusal, with the answer of all legs in it.
    #[inline(always)]
    fn answered(self, answer: Answer<'a>) -> Self {
        match answer {
            Answer::Never(never) => never,
            Answer::Later(how) => Self {
                how,
                whole: None,
                ..self
            },
            Answer::Same => Self { whole: None, ..self },
        }
    }

    /// The same refusal for good: all legs are looked at once more, and never again.
    pub(crate) fn looked(self) -> Self {
        let answer = self.look().map_or(Answer::Same, |(ready, clock, now)| {
            Answer::of(&ready, self.own_due(), clock, now, self.units)
        });
        self.answered(answer)
    }

    fn own_due(&self) -> Option<Due<'a>> {
        self.how.due(self.head.0 >> Head::SHIFT).filter(|due| !due.is_never())
    }

    /// False where no instant will do, as far as the leg that refused knows.
    fn own_is_retryable(&self) -> bool {
        let due = self.how.due(self.head.0 >> Head::SHIFT);
        !self.head.reason().is_permanent() && !due.is_some_and(|due| due.is_never())
    }

    /// The answer of all legs to the same demand now, with the clock and the instant.
    fn look(&self) -> Option<(ReadyAt<'a>, &'a Clock, Instant)> {
        let whole = self.whole.as_ref()?;
        let (legs, other) = (whole.legs, whole.other);
        let (calls, units) = match self.head.has(Head::LEG_COUNTS_COST) {
            false => (self.units, other),
            true => (other, self.units),
        };
        let ask = Ask::many(calls);
        let ask = whole.cost.map_or(ask, |cost| ask.cost(cost, units));
        let demanded = match self.head.has(Head::WHOLE_COUNTS_COST) {
            false => calls,
            true => units,
        };
        let clock = legs.decides_by()?;
        let now = clock.now();
        let reading = ClockReading::at(clock, now);
        let ready = legs.ready(Demand::new(&ask, &reading).with_units(demanded, 0));
        Some((ready, clock, now))
    }

    /// The same refusal, or that of a leg which no instant makes admit, where another has refused before that.
    #[inline]
    pub(crate) fn judged(self) -> Self {
        match self.whole {
            Some(_) => self.judged_slow(),
            None => self,
        }
    }

    #[cold]
    fn judged_slow(self) -> Self {
        let never = self.look().and_then(|(ready, ..)| ready.never_admits(self.units));
        never.unwrap_or(self)
    }

    /// This or `other`, of two sources that have refused for good: the one that admits first, as far as that is known.
    pub(crate) fn or(self, other: Self) -> Self {
        let rank = |refusal: &Self| match (refusal.how, refusal.own_due()) {
            (How::Never, _) => (3, None),
            (_, Some(due)) => (0, Some(due.after())),
            (_, None) if refusal.own_is_retryable() => (1, None),
            (_, None) => (2, None),
        };
        if rank(&other) < rank(&self) { other } else { self }
    }

    /// The same refusal, where `adapter` changes the answers of the legs inside it to the same demand.
    #[inline]
    pub(crate) fn through(mut self, adapter: &'a dyn Legs) -> Self {
        if let Some(whole) = &mut self.whole {
            whole.legs = adapter;
        }
        self
    }

    /// The reason. Of several legs it is that of the first which refuses. But if no instant can admit the request at one of the
    /// legs, also behind that, the reason is [permanent](Reason::is_permanent), and [`leg`](Self::leg) and [`wait`](Self::wait) are
    /// those of that leg.
    ///
    /// It is looked up here, not when the request was refused: each call, `Display` included, asks all legs of the composite for
    /// [`ready_at`](Limiter::ready_at). [`to_rejection`](Self::to_rejection) asks them once.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, Reason, TokenBucket};
    /// let clock = ManualClock::new();
    /// let small = TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock);
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_second(1).burst(9)).on(&clock))
    ///     .limit(small.named("small"))
    ///     .build()?;
    /// policy.limiter().try_admit(1).unwrap().forget();
    /// let refused = policy.try_admit(9).unwrap_err();
    /// assert_eq!((refused.reason(), refused.leg()), (Reason::Oversized, "small"));
    /// assert_eq!(refused.retry_after(), None);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn reason(&self) -> Reason {
        self.judged().head.reason()
    }

    /// Why the [leg](Self::leg) was in the way of a wait that failed, where the reason is [`TimedOut`](Reason::TimedOut) or
    /// [`QueueFull`](Reason::QueueFull). `None` for other reasons, and where only the queue was in the way.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Reason, Semaphore};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(1).named("in flight")).on(&clock).build()?;
    /// clock.run(async {
    ///     let _held = policy.admit(1).await.unwrap();
    ///     let refused = policy.admit_timeout(1, Duration::from_secs(1)).await.unwrap_err();
    ///     assert_eq!((refused.reason(), refused.cause()), (Reason::TimedOut, Some(Reason::Saturated)));
    ///     assert_eq!(refused.to_string(), "limiter `in flight` did not admit in time: it is saturated");
    /// });
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn cause(&self) -> Option<Reason> {
        self.judged().head.cause()
    }

    /// The name of the leg that refused.
    pub fn leg(&self) -> &'a str {
        self.judged().leg
    }

    /// The units that this leg was asked for.
    pub fn units(&self) -> u64 {
        self.judged().units
    }

    /// How to wait.
    pub fn wait(&self) -> Wait<'a> {
        let refusal = self.judged();
        match (refusal.how, refusal.own_due()) {
            (How::Never, _) => Wait::Never,
            (How::Turn(wait_queue), _) => Wait::Turn(wait_queue),
            (_, Some(due)) => Wait::Until(due),
            (_, None) => Wait::Event,
        }
    }

    /// The time to wait before asking again, rounded up: until the earliest instant at which this request could succeed if no
    /// other is admitted meanwhile. Of several legs it is the latest instant, also of those behind the leg that refused.
    /// `None` when no instant is known, or none would help: [`is_retryable`](Self::is_retryable) tells these two apart.
    ///
    /// Computed here, not when the request was refused: the other legs are looked at now.
    ///
    /// All callers that are refused at one instant get the same time. If all of them ask again then, all but the first are refused
    /// again: add a jitter, wait in the queue of a [`Policy`](crate::Policy), or give each an appointment in a
    /// `WaitingRoom` of the crate `tollgate-http`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, TokenBucket};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock).named("second"))
    ///     .limit(TokenBucket::new(Quota::per_minute(1).burst(1)).on(&clock).named("minute"))
    ///     .build()?;
    /// policy.try_admit(1).unwrap().forget();
    /// let refused = policy.try_admit(1).unwrap_err();
    /// assert_eq!(refused.leg(), "second");
    /// assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    /// assert_eq!(refused.retry_leg(), "minute");
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry().1
    }

    /// False when waiting alone does not help: the reason is [permanent](Reason::is_permanent), or a leg has spent what its rate of
    /// zero had as its burst. A refusal that is retryable and has no [`retry_after`](Self::retry_after) ends at an instant that is not
    /// known.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
    /// let trial = TokenBucket::new(Quota::zero().burst(1)).on(&ManualClock::new());
    /// trial.try_acquire(1)?;
    /// let (spent, busy) = (trial.try_acquire(1).unwrap_err(), Semaphore::new(0));
    /// assert_eq!((spent.retry_after(), spent.is_retryable()), (None, false));
    /// let busy = busy.try_admit(1).unwrap_err();
    /// assert_eq!((busy.retry_after(), busy.is_retryable()), (None, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_retryable(&self) -> bool {
        self.looked().own_is_retryable()
    }

    /// The leg that [`retry_after`](Self::retry_after) is of: the one that is ready last. That which refused, when no instant
    /// is known.
    pub fn retry_leg(&self) -> &'a str {
        self.retry().0
    }

    fn retry(&self) -> (&'a str, Option<Duration>) {
        let looked = self.looked();
        let leg = match looked.how {
            How::Of { leg, .. } => leg,
            _ => looked.leg,
        };
        (leg, looked.own_due().map(|due| due.after()))
    }

    /// The same refusal for another reason: a wait that failed keeps the leg that it waited for, and the reason of that as its
    /// [cause](Self::cause). The other legs are looked at here, and not again: the reason stays.
    pub fn with_reason(self, reason: Reason) -> Self {
        let mut refusal = self.looked();
        refusal.head = refusal.head.with_reason(reason);
        refusal
    }

    /// The same refusal with another way to wait.
    pub(crate) fn with_wait(mut self, wait: Wait<'a>) -> Self {
        let (how, shift) = How::of(wait);
        self.how = how;
        self.head.0 = self.head.0 & ((1 << Head::SHIFT) - 1) | u64::from(shift) << Head::SHIFT;
        self
    }

    /// The same refusal under another name of its leg.
    #[inline]
    pub fn named(mut self, leg: &'a str) -> Self {
        self.leg = leg;
        if let How::Of { leg: later, .. } = &mut self.how {
            *later = leg;
        }
        self
    }

    /// The owned form, to be returned and stored as an error. The other legs are looked at here, once.
    pub fn to_rejection(&self) -> Rejection {
        let refusal = self.looked();
        let (leg, retry_after) = refusal.retry();
        Rejection {
            reason: refusal.head.reason(),
            cause: refusal.head.cause(),
            leg: refusal.leg.into(),
            units: refusal.units,
            retry_after,
            retryable: refusal.own_is_retryable(),
            retry_leg: (leg != refusal.leg).then(|| leg.into()),
        }
    }
}

/// The answer of the leg that refused. The other legs are not looked at, so that this runs no users' code.
impl fmt::Debug for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("reason", &self.head.reason())
            .field("leg", &self.leg)
            .field("units", &self.units)
            .field("retry_after", &self.own_due().map(|due| due.after()))
            .finish()
    }
}

/// The leg and the [reason](Refusal::reason), which is looked up.
impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refusal = self.judged();
        write_refusal(f, refusal.leg, refusal.head.reason(), refusal.head.cause())
    }
}

fn write_refusal(f: &mut fmt::Formatter<'_>, leg: &str, reason: Reason, cause: Option<Reason>) -> fmt::Result {
    write!(f, "limiter `{leg}` {}", reason.clause())?;
    match cause {
        Some(cause) => write!(f, ": it {}", cause.clause()),
        None => Ok(()),
    }
}

macro_rules! into_boxed_error {
    ($($error:ty),*) => {$(
        impl From<Refusal<'_>> for Box<$error> {
            fn from(refusal: Refusal<'_>) -> Self {
                refusal.to_rejection().into()
            }
        }
    )*};
}
into_boxed_error!(dyn Error, dyn Error + Send + Sync);

/// A [`Refusal`] that owns its leg's name and has computed its numbers.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Quota, Rejection, TokenBucket};
/// # use std::time::Duration;
/// fn call(bucket: &TokenBucket) -> Result<(), Rejection> {
///     // Owned: it outlives the limiter.
///     Ok(bucket.try_acquire(1).map_err(|refusal| refusal.to_rejection())?)
/// }
/// let bucket = TokenBucket::new(Quota::per_second(1)).on(&ManualClock::new());
/// assert!(call(&bucket).is_ok());
/// assert_eq!(call(&bucket).unwrap_err().retry_after, Some(Duration::from_secs(1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason.
    pub reason: Reason,
    /// See [`Refusal::cause`].
    pub cause: Option<Reason>,
    /// The name of the leg that refused.
    pub leg: Box<str>,
    /// The units that this leg was asked for.
    pub units: u64,
    /// See [`Refusal::retry_after`]. As of when this was made.
    pub retry_after: Option<Duration>,
    /// See [`Refusal::is_retryable`].
    pub retryable: bool,
    /// The leg of `retry_after`, if it is another than the one that refused.
    pub retry_leg: Option<Box<str>>,
}

impl From<Refusal<'_>> for Rejection {
    fn from(refusal: Refusal<'_>) -> Self {
        refusal.to_rejection()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_refusal(f, &self.leg, self.reason, self.cause)
    }
}

impl Error for Rejection {}
