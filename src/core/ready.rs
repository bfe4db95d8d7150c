//! When a request could be admitted: the answer of one leg, and that of all legs of a composite together.

use crate::core::refusal::{Reason, Refusal, Wait};
use crate::sync::wait_queue::WaitQueue;
use crate::time::Instant;

/// A queue to join while an instant is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueTurn<'a> {
    pub(crate) wait_queue: &'a dyn WaitQueue,
    pub(crate) units: u64,
    /// Others wait there already.
    pub(crate) behind: bool,
}

/// When a request could be admitted, as far as it is known: at the earliest at an instant, and possibly only after an
/// event whose instant is not known.
///
/// A limiter must say [`on_event`](Self::on_event) or [`in_turn`](Self::in_turn) whenever `try_reserve` would refuse
/// for want of an event: a policy tries to reserve only when all legs look ready.
///
/// ```
/// # use tollgate::{Ask, ClockReading, Demand, Limiter, ManualClock, Quota, ReadyAt, Semaphore, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let (bucket, slots) = (TokenBucket::new(Quota::per_second(1)).on(&clock), Semaphore::new(1));
/// let (ask, reading) = (Ask::one(), ClockReading::new());
/// bucket.try_acquire(1)?;
/// let at = bucket.ready_at(Demand::new(&ask, &reading)).not_before();
/// assert_eq!(at, Some(clock.after(clock.now(), Duration::from_secs(1))));
/// assert!(!slots.ready_at(Demand::new(&ask, &reading)).is_event(), "it is free");
/// assert!(ReadyAt::on_event("mine").is_event() && ReadyAt::never("mine").is_never());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReadyAt<'a> {
    not_before: Option<Instant>,
    event: bool,
    never: Option<Never>,
    /// When the event happens by itself, at the latest.
    by: Option<Instant>,
    /// It takes larger settings, and a waiter for them holds up no other.
    raise: bool,
    /// Time alone makes it never ready.
    no_instant: bool,
    /// The leg that is not waited for, as far as it is not ready.
    at_once: Option<AtOnce<'a>>,
    turn: Option<(&'a dyn WaitQueue, u64)>,
    /// Nothing but that turn is missing.
    is_due: bool,
    /// The queue of the leg that names the instant.
    due_turn: Option<DueTurn<'a>>,
    /// The leg that names the instant, or says never; and why it is not ready.
    leg: &'a str,
    reason: Reason,
    /// The leg that waits for an event, and why.
    event_leg: &'a str,
    event_reason: Reason,
}

/// Why a leg can never admit a request.
#[derive(Clone, Copy, Debug)]
struct Never {
    reason: Reason,
    /// The units that it was asked for, if known.
    units: Option<u64>,
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
        never: None,
        by: None,
        raise: false,
        no_instant: false,
        at_once: None,
        turn: None,
        is_due: false,
        due_turn: None,
        leg: "",
        reason: Reason::RateExceeded,
        event_leg: "",
        event_reason: Reason::Saturated,
    };

    /// Not before `instant`: the leg has exceeded its rate, unless it [says otherwise](Self::because).
    #[inline]
    pub fn at(leg: &'a str, instant: Instant) -> Self {
        Self {
            not_before: Some(instant),
            leg,
            ..Self::NOW
        }
    }

    /// At an event of unknown time, such as a cancel or a raised limit, when the leg notifies. The leg is saturated, unless it
    /// [says otherwise](Self::because).
    #[inline]
    pub fn on_event(leg: &'a str) -> Self {
        Self {
            event: true,
            event_leg: leg,
            ..Self::NOW
        }
    }

    /// When the limits are raised far enough: a waiter for that is passed over by those that fit, and looks again whenever
    /// the leg notifies.
    #[inline]
    pub fn on_raise(leg: &'a str) -> Self {
        Self {
            raise: true,
            ..Self::on_event(leg)
        }
    }

    /// The same, where nothing comes back by itself: only a change of the settings, or a refund, makes the leg ready. A refusal is then
    /// not [retryable](Refusal::is_retryable).
    #[inline]
    #[must_use]
    pub(crate) fn without_instant(mut self) -> Self {
        self.no_instant = true;
        self
    }

    /// The same, where the leg is not ready for `reason`. A refusal by a wait that fails has it as its
    /// [cause](Refusal::cause).
    #[inline]
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        (self.reason, self.event_reason) = (reason, reason);
        self
    }

    /// The same, where it is not waited for: as long as the leg is not ready, a policy refuses at once.
    #[inline]
    #[must_use]
    pub fn at_once(mut self) -> Self {
        if self.event || self.not_before.is_some() {
            self.at_once = Some(match self.event {
                true => AtOnce {
                    reason: self.event_reason,
                    leg: self.event_leg,
                    at: None,
                },
                false => AtOnce {
                    reason: self.reason,
                    leg: self.leg,
                    at: self.not_before,
                },
            });
        }
        self
    }

    /// The same, where the event happens by itself at `instant` at the latest: the waiter looks again then,
    /// notified or not.
    #[inline]
    #[must_use]
    pub fn by(mut self, instant: Instant) -> Self {
        self.by = Some(instant);
        self
    }

    /// When the turn in a queue comes that hands over `units`.
    #[inline]
    pub fn in_turn(leg: &'a str, wait_queue: &'a dyn WaitQueue, units: u64) -> Self {
        Self {
            event: true,
            turn: Some((wait_queue, units)),
            event_leg: leg,
            ..Self::NOW
        }
    }

    /// The same, where queues take turns at the instants: a policy has its head join `wait_queue` for `units`, as long as no
    /// other leg is ready later. `behind` says that others wait there already, so that it is ready sooner when they
    /// leave.
    #[inline]
    #[must_use]
    pub(crate) fn by_turns(mut self, wait_queue: &'a dyn WaitQueue, units: u64, behind: bool) -> Self {
        self.due_turn = Some(DueTurn {
            wait_queue,
            units,
            behind,
        });
        self
    }

    /// When the turn in a queue comes: nothing else is missing since `instant`.
    #[inline]
    pub(crate) fn due_in_turn(leg: &'a str, instant: Instant, wait_queue: &'a dyn WaitQueue, units: u64) -> Self {
        Self {
            is_due: true,
            not_before: Some(instant),
            leg,
            ..Self::in_turn(leg, wait_queue, units)
        }
    }

    /// Never under the settings in force: as [`Oversized`](Reason::Oversized).
    #[inline]
    pub fn never(leg: &'a str) -> Self {
        Self {
            never: Some(Never {
                reason: Reason::Oversized,
                units: None,
            }),
            leg,
            ..Self::NOW
        }
    }

    /// Never, for a [permanent](Reason::is_permanent) `reason`, where the leg was asked for `units`.
    #[inline]
    pub fn never_for(reason: Reason, leg: &'a str, units: u64) -> Self {
        let units = Some(units);
        Self {
            never: Some(Never { reason, units }),
            leg,
            ..Self::NOW
        }
    }

    /// This, or `instant` if that comes first: another event makes it ready then. `None` is an instant that is not known. A demand
    /// that is never ready by itself waits for that event all the same, and holds up no other.
    #[inline]
    #[must_use]
    pub fn or_at(mut self, instant: Option<Instant>) -> Self {
        if self.is_never() {
            self = Self::on_raise(self.leg);
        }
        self.no_instant = false;
        if let Some(instant) = instant {
            self.not_before = self.not_before.map(|at| at.min(instant));
            if self.event {
                self.by = Some(self.by.map_or(instant, |by| by.min(instant)));
            }
        }
        self
    }

    /// Both this and `other`: the later of the two, under the name of the leg that binds. If both are never ready, it is the one with
    /// a [permanent](Reason::is_permanent) reason other than `Oversized`, which a larger limit may end.
    ///
    /// ```
    /// # use tollgate::{ManualClock, ReadyAt, Reason};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let at = |seconds| clock.after(clock.now(), Duration::from_secs(seconds));
    /// let both = ReadyAt::at("soon", at(1)).and(ReadyAt::at("late", at(5)).because(Reason::CircuitOpen));
    /// assert_eq!((both.leg(), both.not_before(), both.reason()), ("late", Some(at(5)), Reason::CircuitOpen));
    /// assert!(ReadyAt::NOW.and(ReadyAt::on_raise("small")).is_raise());
    /// assert_eq!(ReadyAt::on_event("busy").by(at(9)).event_by(), Some(at(9)));
    /// assert!(ReadyAt::on_event("busy").at_once().refuses_at_once(at(0)).is_some());
    /// assert!(ReadyAt::never_for(Reason::Oversized, "tiny", 9).named("renamed").never_admits(9).is_some());
    /// ```
    #[inline]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        // A permanent reason is not hidden by one that may pass, nor by a limit that may be raised.
        let permanent = |never: &Never| (never.reason.is_permanent(), never.reason != Reason::Oversized);
        let rank = |ready: &Self| (ready.never.as_ref().map(permanent), ready.not_before);
        Self {
            not_before: self.not_before.max(other.not_before),
            event: self.event | other.event,
            never: if rank(&other) > rank(&self) {
                other.never.or(self.never)
            } else {
                self.never.or(other.never)
            },
            by: match (self.by, other.by) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            raise: self.raise | other.raise,
            no_instant: self.no_instant | other.no_instant,
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
            reason: if rank(&other) > rank(&self) {
                other.reason
            } else {
                self.reason
            },
            event_leg: if self.event { self.event_leg } else { other.event_leg },
            event_reason: if self.event {
                self.event_reason
            } else {
                other.event_reason
            },
        }
    }

    /// This or `other`, where either would do: the earlier of the two.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        let is_now = |ready: &Self| !ready.event && ready.not_before.is_none() && ready.never.is_none();
        // One that is never ready, or that is not waited for, leaves the wait to the other.
        let rank = |ready: &Self| (ready.never.is_some(), ready.at_once.is_some(), ready.raise);
        if is_now(&self) || (!is_now(&other) && rank(&self) < rank(&other)) {
            return self;
        }
        if is_now(&other) || rank(&other) < rank(&self) {
            return other;
        }
        match (self.event, other.event) {
            _ if self.never.is_some() => self,
            (false, false) if other.not_before < self.not_before => other,
            (false, false) => self,
            (true, false) => self.or_at(other.not_before),
            (false, true) => other.or_at(self.not_before),
            (true, true) => {
                let (base, second) = match self.turn {
                    None if other.turn.is_some() => (other, self),
                    _ => (self, other),
                };
                let both = |one: Option<Instant>, two: Option<Instant>| Some(one?.min(two?));
                Self {
                    not_before: both(base.not_before, second.not_before),
                    by: [base.by, second.by].into_iter().flatten().min(),
                    no_instant: base.no_instant && second.no_instant,
                    ..base
                }
            }
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

    /// The queue that is to hand over, and the units that it is asked for.
    #[inline]
    pub fn turn(&self) -> Option<(&'a dyn WaitQueue, u64)> {
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

    /// True when [nothing comes back by itself](Self::without_instant).
    #[inline]
    pub(crate) fn has_no_instant(&self) -> bool {
        self.no_instant
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
        self.never.is_some()
    }

    /// The refusal by the leg that can never admit a request for `units`, if there is one.
    pub fn never_admits(&self, units: u64) -> Option<Refusal<'a>> {
        let Never { reason, units: asked } = self.never?;
        Some(Refusal::new(reason, self.leg, asked.unwrap_or(units), Wait::Never))
    }

    /// The leg that binds, or `""` when none does: the one that is ready last, else the first that waits for an event.
    #[inline]
    pub fn leg(&self) -> &'a str {
        if self.leg.is_empty() { self.event_leg } else { self.leg }
    }

    /// Why the leg that binds is not ready.
    #[inline]
    pub fn reason(&self) -> Reason {
        if self.leg.is_empty() {
            self.event_reason
        } else {
            self.reason
        }
    }

    /// Why the first leg that waits for an event does.
    #[inline]
    pub(crate) fn event_reason(&self) -> Reason {
        self.event_reason
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
