//! Why a request was not admitted: the leg, the reason, the numbers, and how to wait.
//!
//! A [`Refusal`] is made on the hot path, so it stores numbers and divides nothing: [`Refusal::retry_after`] computes
//! when it is asked. It borrows the leg's name; [`Rejection`] is the owned form, an ordinary `'static` error.

use crate::ask::{Ask, Demand};
use crate::limiter::Limiter;
use crate::sync::turn::Turnstile;
use crate::time::{Clock, Instant, Phase};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// All permits are in use.
    Saturated,
    /// The rate, or the window, has no room before some later instant.
    RateExceeded,
    /// A circuit breaker is open.
    CircuitOpen,
    /// The line in front of the gate is as long as it may be.
    QueueFull,
    /// The wait would have ended, or did end, after its deadline.
    TimedOut,
    /// More than any instant can admit under the settings in force.
    Oversized,
    /// A leg counts a cost that the request does not name.
    Unpriced,
    /// There is a limiter for each key, and the request does not say which is its own.
    Unkeyed,
    /// What a limit needs has not been set up by the program.
    Misconfigured,
    /// The limiter has been closed for good.
    Closed,
    /// The store that holds the permits cannot be reached.
    Unavailable,
}

impl Reason {
    /// True when asking again cannot succeed, as long as the settings are what they are.
    pub fn is_permanent(self) -> bool {
        matches!(
            self,
            Self::Oversized | Self::Unpriced | Self::Unkeyed | Self::Misconfigured | Self::Closed
        )
    }

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
        }
    }
}

/// The earliest instant at which a refused request could succeed, in the numbers of whoever refused: nothing has been
/// divided yet.
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
        /// As wide as a word, like the rest: what a result holds is then copied in whole words.
        shift: u64,
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
                shift: shift.into(),
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
            } => origin.after_ticks(crate::algo::axis::ticks_until(distance, mul, shift as u32)),
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

    /// How long that is after the request was made, rounded up to a nanosecond.
    pub fn after(&self) -> Duration {
        self.clock.between(self.asked_at, self.instant())
    }
}

/// How a refused request may wait.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// Not at all: waiting changes nothing.
    Never,
    /// Until an instant.
    Until(Due<'a>),
    /// In the turn of a queue, which will hand over what it has at an instant that nobody knows.
    Turn(&'a dyn Turnstile),
    /// Until something rings the bell that the leg lets its waiters hear; nobody knows when.
    Event,
}

/// All legs of the composite that refused, and what it was asked for: from this the latest instant is computed, when it is
/// asked for.
#[derive(Clone, Copy)]
struct Whole<'a> {
    legs: &'a dyn Legs,
    units: u64,
    ask: Ask,
}

/// What a refusal wants of all legs.
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
    reason: Reason,
    leg: &'a str,
    units: u64,
    wait: Wait<'a>,
    whole: Option<Whole<'a>>,
}

impl<'a> Refusal<'a> {
    /// A refusal by the leg `leg` of `units` units.
    #[inline]
    pub fn new(reason: Reason, leg: &'a str, units: u64, wait: Wait<'a>) -> Self {
        Self {
            reason,
            leg,
            units,
            wait,
            whole: None,
        }
    }

    /// The same refusal, by one of several legs.
    #[inline(always)]
    pub(crate) fn among(mut self, legs: &'a dyn Legs, demand: Demand<'_>) -> Self {
        self.whole = Some(Whole {
            legs,
            units: demand.units(),
            ask: *demand.ask(),
        });
        self
    }

    /// The same refusal, where `adapter` changes what the legs inside it say of the same demand.
    #[inline]
    pub(crate) fn through(mut self, adapter: &'a dyn Legs) -> Self {
        if let Some(whole) = &mut self.whole {
            whole.legs = adapter;
        }
        self
    }

    /// Why.
    #[inline]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The name of the leg that refused.
    #[inline]
    pub fn leg(&self) -> &'a str {
        self.leg
    }

    /// How many units that leg was asked for.
    #[inline]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// How to wait.
    #[inline]
    pub fn wait(&self) -> Wait<'a> {
        match self.wait {
            Wait::Until(due) if due.is_never() => Wait::Event,
            wait => wait,
        }
    }

    /// How long to wait before asking again, rounded up: the earliest instant at which this request could succeed if no
    /// other is admitted meanwhile. Of several legs it is the latest instant, also of those behind the leg that refused.
    /// `None` when no instant is known, or none would help.
    ///
    /// Computed here, not when the request was refused: the other legs are looked at now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, TokenBucket};
    /// # let clock = ManualClock::new();
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

    /// The leg that [`retry_after`](Self::retry_after) is of: the one that is ready last. That which refused, when no instant
    /// is known.
    pub fn retry_leg(&self) -> &'a str {
        self.retry().0
    }

    fn retry(&self) -> (&'a str, Option<Duration>) {
        let wait = self.wait();
        let own = match wait {
            Wait::Until(due) => Some(due.after()),
            _ => None,
        };
        let (Some(whole), false) = (&self.whole, matches!(wait, Wait::Never)) else {
            return (self.leg, own);
        };
        let Some(clock) = whole.legs.decides_by() else {
            return (self.leg, own);
        };
        let now = clock.now();
        let phase = Phase::at(clock, now);
        let ready = whole
            .legs
            .ready(Demand::new(&whole.ask, phase.pass()).with_units(whole.units, 0));
        if ready.is_never() {
            return (ready.leg(), None);
        }
        let since = match wait {
            Wait::Until(due) if due.clock.is_same(clock) => due.asked_at,
            _ => now,
        };
        match ready
            .not_before()
            .filter(|&at| at > now)
            .map(|at| clock.between(since, at))
        {
            all if all > own => (ready.leg(), all),
            _ => (self.leg, own),
        }
    }

    /// The same refusal for another reason: a wait that failed keeps the leg that it waited for.
    pub fn with_reason(mut self, reason: Reason) -> Self {
        self.reason = reason;
        self
    }

    /// The same refusal with another way to wait.
    pub(crate) fn with_wait(mut self, wait: Wait<'a>) -> Self {
        self.wait = wait;
        self
    }

    /// The same refusal under another name of its leg.
    #[inline]
    pub fn named(mut self, leg: &'a str) -> Self {
        self.leg = leg;
        self
    }

    /// The owned form, to be returned and stored as an error.
    pub fn to_rejection(&self) -> Rejection {
        let (leg, retry_after) = self.retry();
        Rejection {
            reason: self.reason,
            leg: self.leg.into(),
            units: self.units,
            retry_after,
            retry_leg: (leg != self.leg).then(|| leg.into()),
        }
    }
}

impl fmt::Debug for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("reason", &self.reason)
            .field("leg", &self.leg)
            .field("units", &self.units)
            .field("retry_after", &self.retry_after())
            .finish()
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limiter `{}` {}", self.leg, self.reason.clause())
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// Why.
    pub reason: Reason,
    /// The name of the leg that refused.
    pub leg: Box<str>,
    /// How many units that leg was asked for.
    pub units: u64,
    /// See [`Refusal::retry_after`]. As of when this was made.
    pub retry_after: Option<Duration>,
    /// The leg that `retry_after` is of, where that is another than the one that refused.
    pub retry_leg: Option<Box<str>>,
}

impl From<Refusal<'_>> for Rejection {
    fn from(refusal: Refusal<'_>) -> Self {
        refusal.to_rejection()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limiter `{}` {}", self.leg, self.reason.clause())
    }
}

impl Error for Rejection {}

/// A queue to join while an instant is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueTurn<'a> {
    pub(crate) turnstile: &'a dyn Turnstile,
    pub(crate) units: u64,
    /// Others wait there already.
    pub(crate) behind: bool,
}

/// When a request could be admitted, as far as it is known: at the earliest at an instant, and possibly only after an
/// event whose instant nobody knows.
///
/// A limiter must say [`on_event`](Self::on_event) or [`in_turn`](Self::in_turn) whenever `try_reserve` would refuse
/// for want of an event: a policy asks for real only when all legs look ready.
#[derive(Clone, Copy, Debug)]
pub struct ReadyAt<'a> {
    not_before: Option<Instant>,
    event: bool,
    never: bool,
    /// When the event happens by itself, at the latest.
    by: Option<Instant>,
    /// It takes larger settings, and a waiter for them holds up no other.
    raise: bool,
    /// The leg that is not waited for, as far as it is not ready.
    at_once: Option<AtOnce<'a>>,
    turn: Option<(&'a dyn Turnstile, u64)>,
    /// Nothing but that turn is missing.
    is_due: bool,
    /// The queue of the leg that names the instant.
    due_turn: Option<DueTurn<'a>>,
    /// Who names the instant, or says never.
    leg: &'a str,
    /// Who waits for an event.
    event_leg: &'a str,
}

/// A leg that is not waited for.
#[derive(Clone, Copy, Debug)]
struct AtOnce<'a> {
    reason: Reason,
    leg: &'a str,
    /// Ready at this instant; `None` when that takes an event.
    at: Option<Instant>,
}

impl<'a> ReadyAt<'a> {
    /// Ready, as far as this leg is concerned.
    pub const NOW: Self = Self {
        not_before: None,
        event: false,
        never: false,
        by: None,
        raise: false,
        at_once: None,
        turn: None,
        is_due: false,
        due_turn: None,
        leg: "",
        event_leg: "",
    };

    /// Not before `instant`.
    #[inline]
    pub fn at(leg: &'a str, instant: Instant) -> Self {
        Self {
            not_before: Some(instant),
            leg,
            ..Self::NOW
        }
    }

    /// When something happens whose instant nobody knows, and a bell is rung: a cancel, a raised limit.
    #[inline]
    pub fn on_event(leg: &'a str) -> Self {
        Self {
            event: true,
            event_leg: leg,
            ..Self::NOW
        }
    }

    /// When the limits are raised far enough: a waiter for that is passed over by those that fit, and looks again at each
    /// bell.
    #[inline]
    pub fn on_raise(leg: &'a str) -> Self {
        Self {
            raise: true,
            ..Self::on_event(leg)
        }
    }

    /// The same, where it is not waited for: as long as the leg is not ready, a policy refuses at once for `reason`.
    #[inline]
    #[must_use]
    pub fn at_once(mut self, reason: Reason) -> Self {
        if self.event || self.not_before.is_some() {
            let at = self.not_before.filter(|_| !self.event);
            let leg = self.leg();
            self.at_once = Some(AtOnce { reason, leg, at });
        }
        self
    }

    /// The same, where the event happens by itself at `instant` at the latest: whoever waits looks again then, bell or no
    /// bell.
    #[inline]
    #[must_use]
    pub fn by(mut self, instant: Instant) -> Self {
        self.by = Some(instant);
        self
    }

    /// When the turn in a queue comes that hands over `units`.
    #[inline]
    pub fn in_turn(leg: &'a str, turnstile: &'a dyn Turnstile, units: u64) -> Self {
        Self {
            event: true,
            turn: Some((turnstile, units)),
            event_leg: leg,
            ..Self::NOW
        }
    }

    /// The same, where queues take turns at the instants: a policy has its head join `turnstile` for `units`, as long as no
    /// other leg is ready later. `behind` says that others wait there already, whose going makes it ready sooner.
    #[inline]
    #[must_use]
    pub(crate) fn by_turns(mut self, turnstile: &'a dyn Turnstile, units: u64, behind: bool) -> Self {
        self.due_turn = Some(DueTurn {
            turnstile,
            units,
            behind,
        });
        self
    }

    /// When the turn in a queue comes: nothing else is missing since `instant`.
    #[inline]
    pub(crate) fn due_in_turn(leg: &'a str, instant: Instant, turnstile: &'a dyn Turnstile, units: u64) -> Self {
        Self {
            is_due: true,
            not_before: Some(instant),
            leg,
            ..Self::in_turn(leg, turnstile, units)
        }
    }

    /// Never, whatever happens.
    #[inline]
    pub fn never(leg: &'a str) -> Self {
        Self {
            never: true,
            leg,
            ..Self::NOW
        }
    }

    /// This, or `instant` if that comes first: something else makes it ready then. `None` is an instant that is not known; what
    /// by itself is never ready waits for that all the same.
    #[inline]
    #[must_use]
    pub fn or_at(mut self, instant: Option<Instant>) -> Self {
        if self.never {
            self = Self::on_event(self.leg);
        }
        if let Some(instant) = instant {
            self.not_before = self.not_before.map(|at| at.min(instant));
            if self.event {
                self.by = Some(self.by.map_or(instant, |by| by.min(instant)));
            }
        }
        self
    }

    /// Both this and `other`: the later of the two, under the name of whichever binds.
    #[inline]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let rank = |ready: &Self| (ready.never, ready.not_before);
        Self {
            not_before: self.not_before.max(other.not_before),
            event: self.event | other.event,
            never: self.never | other.never,
            by: match (self.by, other.by) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            raise: self.raise | other.raise,
            at_once: match (self.at_once, other.at_once) {
                // One that takes an event, else the one that is ready last.
                (Some(one), Some(two)) if one.at.is_some() && two.at.is_none_or(|at| one.at < Some(at)) => Some(two),
                (one, two) => one.or(two),
            },
            turn: self.turn.or(other.turn),
            is_due: if self.turn.is_some() { self.is_due } else { other.is_due },
            due_turn: if rank(&other) > rank(&self) {
                other.due_turn
            } else {
                self.due_turn
            },
            leg: if rank(&other) > rank(&self) {
                other.leg
            } else {
                self.leg
            },
            event_leg: if self.event { self.event_leg } else { other.event_leg },
        }
    }

    /// The instant before which admission is impossible; `None` when that is already past, or unknown.
    #[inline]
    pub fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// True when an event of unknown time is waited for as well.
    #[inline]
    pub fn is_event(&self) -> bool {
        self.event
    }

    /// When the event, or one of them, happens by itself at the latest; `None` when that is not known.
    #[inline]
    pub fn event_by(&self) -> Option<Instant> {
        self.by
    }

    /// The queue whose turn is waited for, and how many units it is to hand over.
    #[inline]
    pub fn turn(&self) -> Option<(&'a dyn Turnstile, u64)> {
        self.turn
    }

    /// The queue that waits for the instant in turn, if the leg that names it has one.
    #[inline]
    pub(crate) fn due_turn(&self) -> Option<DueTurn<'a>> {
        self.due_turn
    }

    /// True when it is due, and only the [turn](Self::turn) has not come.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// True when the limits have to be raised first.
    #[inline]
    pub fn is_raise(&self) -> bool {
        self.raise
    }

    /// True when some leg is not waited for.
    pub(crate) fn has_reason(&self) -> bool {
        self.at_once.is_some()
    }

    /// Why a policy refuses at `now` instead of waiting, the leg that it names, and when that is ready: see
    /// [`at_once`](Self::at_once). `None` when all legs that are not waited for are ready.
    pub fn refuses_at_once(&self, now: Instant) -> Option<(Reason, &'a str, Option<Instant>)> {
        let AtOnce { reason, leg, at } = self.at_once?;
        at.is_none_or(|at| at > now).then_some((reason, leg, at))
    }

    /// True when it can never be admitted.
    #[inline]
    pub fn is_never(&self) -> bool {
        self.never
    }

    /// The leg that binds, or `""` when none does: the one that is ready last, else the first that waits for an event.
    #[inline]
    pub fn leg(&self) -> &'a str {
        if self.leg.is_empty() { self.event_leg } else { self.leg }
    }

    /// The first leg that waits for an event, or `""` when none does.
    #[inline]
    pub fn event_leg(&self) -> &'a str {
        self.event_leg
    }

    /// The same under another name of the leg.
    #[inline]
    #[must_use]
    pub fn named(mut self, leg: &'a str) -> Self {
        let at_once = self.at_once.as_mut().map(|at_once| &mut at_once.leg);
        for name in [&mut self.leg, &mut self.event_leg].into_iter().chain(at_once) {
            if !name.is_empty() {
                *name = leg;
            }
        }
        self
    }
}
