//! Why a request was not admitted: the leg, the reason, and how long to wait.

use crate::time::{Clock, Instant};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why a limiter refused.
///
/// ```
/// # use tollgate::{LimiterExt, Quota, Reason, Semaphore, TokenBucket};
/// let reason = |refused: Result<_, tollgate::Refusal>| refused.map(|_| ()).unwrap_err().reason();
/// let slots = Semaphore::new(2);
/// let held = slots.try_admit(2).unwrap();
/// assert_eq!(reason(slots.try_admit(1).map(drop)), Reason::Saturated);
/// assert_eq!(reason(slots.try_admit(3).map(drop)), Reason::Oversized);
/// assert!(Reason::Oversized.is_permanent());
/// # drop(held);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// All permits are in use, or waiters that came first want what is free.
    Saturated,
    /// The rate was exceeded.
    RateExceeded,
    /// A circuit breaker is open.
    CircuitOpen,
    /// The queue is full, or the waiter was evicted from it.
    QueueFull,
    /// The wait would not have ended in time, or did not.
    TimedOut,
    /// More than the limit: no waiting helps as long as the limit stays.
    Oversized,
    /// The leg counts a cost that the request does not name.
    Unpriced,
    /// The request has no key.
    Unkeyed,
    /// The limiter has not been set up.
    Misconfigured,
    /// The limiter or the policy has been closed.
    Closed,
    /// The limiter cannot decide just now: a store is away, or maintenance is on.
    Unavailable,
    /// A store decides, which was not asked: wait for it.
    RoundTrip,
}

impl Reason {
    /// True when the same request is refused at any later time as well, unless a setting changes.
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
            Self::RoundTrip => "is decided by a store, which was not asked",
        }
    }
}

/// The name of a leg, in a refusal or a description: a copyable value that owns its text.
///
/// A name that is written in the program may have any length. A name that is made at run time (of a file, of a key) is stored in
/// place, at most [`MAX_RUNTIME`](Self::MAX_RUNTIME) bytes of it: nothing is leaked, and nothing is kept longer than the value.
///
/// ```
/// # use tollgate::LegName;
/// let of_program = LegName::from("requests per minute of the whole service");
/// let of_file = LegName::from(format!("tenant {}", 7));
/// assert_eq!((of_program.len(), &*of_file), (40, "tenant 7"));
/// assert_eq!(LegName::from("x".repeat(99)).len(), LegName::MAX_RUNTIME);
/// ```
#[derive(Clone, Copy)]
pub struct LegName(Text);

#[derive(Clone, Copy)]
enum Text {
    Static(&'static str),
    Inline { len: u8, bytes: [u8; LegName::MAX_RUNTIME] },
}

impl LegName {
    /// The bytes of a name made at run time that are kept. A longer name is cut before the character that would exceed them.
    pub const MAX_RUNTIME: usize = 38;

    /// No name: the limiter's own name stays.
    pub const NONE: Self = Self(Text::Static(""));

    /// A copy of `name`, which is cut to [`MAX_RUNTIME`](Self::MAX_RUNTIME) bytes.
    pub fn copied(name: &str) -> Self {
        let mut len = name.len().min(Self::MAX_RUNTIME);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; Self::MAX_RUNTIME];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self(Text::Inline { len: len as u8, bytes })
    }

    /// The text.
    fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(name) => name,
            Text::Inline { len, bytes } => std::str::from_utf8(&bytes[..usize::from(*len)]).unwrap_or_default(),
        }
    }
}

impl From<&'static str> for LegName {
    fn from(name: &'static str) -> Self {
        Self(Text::Static(name))
    }
}

impl From<String> for LegName {
    fn from(name: String) -> Self {
        Self::copied(&name)
    }
}

impl From<&String> for LegName {
    fn from(name: &String) -> Self {
        Self::copied(name)
    }
}

impl std::ops::Deref for LegName {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for LegName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for LegName {}

impl fmt::Debug for LegName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for LegName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// When a refused request could be admitted, as far as the limiter knows.
///
/// The variants are in the order of patience: of several legs the last one decides, see [`and`](Self::and).
///
/// ```
/// # use tollgate::{Clock, ManualClock, Wait};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let (now, at) = (clock.now(), clock.after(clock.now(), Duration::from_secs(2)));
/// let wait = Wait::until(&clock, now, at);
/// assert_eq!(wait, Wait::Until { nanos: 2_000_000_000, at });
/// // A permit has to come back as well: the instant is only a lower bound then.
/// assert_ne!(wait.and(Wait::EVENT), wait);
/// assert_eq!(wait.and(Wait::EVENT).not_before(), Some(at));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Time is enough.
    Until {
        /// The nanoseconds from the refusal on, rounded up.
        nanos: u64,
        /// The instant, on the clock of the limiter.
        at: Instant,
    },
    /// Something has to happen (a permit comes back, a probe succeeds), and not before this instant.
    Event {
        /// The nanoseconds from the refusal on, rounded up.
        nanos: u64,
        /// The instant, on the clock of the limiter: zero where none is known, and [`Instant::MAX`] where time alone never helps.
        at: Instant,
    },
    /// Nothing helps but another setting.
    Never,
}

impl Wait {
    /// Something has to happen, at any time.
    pub const EVENT: Self = Self::Event {
        nanos: 0,
        at: Instant::ZERO,
    };

    /// Time alone never helps: a rate of zero has spent its burst, and only a refund or a change lets it admit again.
    pub const SPENT: Self = Self::Event {
        nanos: u64::MAX,
        at: Instant::MAX,
    };

    /// Until `at` on `clock`, for a request that was refused at `now`.
    pub fn until(clock: &Clock, now: Instant, at: Instant) -> Self {
        let nanos = clock.between(now, at).as_nanos();
        Self::Until {
            nanos: u64::try_from(nanos).unwrap_or(u64::MAX),
            at,
        }
    }

    /// The instant before which the request is not admitted, if one is known.
    pub fn not_before(self) -> Option<Instant> {
        match self {
            Self::Until { at, .. } => Some(at),
            Self::Event { at, .. } if at != Instant::ZERO && at != Instant::MAX => Some(at),
            Self::Event { .. } | Self::Never => None,
        }
    }

    /// The wait for both: the later instant, an event where either is one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Until { nanos: a, at: i }, Self::Until { nanos: b, at: j }) => Self::Until {
                nanos: a.max(b),
                at: i.max(j),
            },
            (
                Self::Until { nanos: a, at: i } | Self::Event { nanos: a, at: i },
                Self::Until { nanos: b, at: j } | Self::Event { nanos: b, at: j },
            ) => Self::Event {
                nanos: a.max(b),
                at: i.max(j),
            },
        }
    }

    /// The wait for either: the earlier instant. Where one of both is an event, the instant of the other bounds it from above.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.min(other)
    }
}

/// Why a limiter refused, and when to ask again: a plain value, and an error.
///
/// All of it was computed when the request was refused. Of several legs the leg and the reason are those of the first that
/// refused; but where another leg can never admit the request, they are those of that leg.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{LimiterExt, ManualClock, Quota, Reason, Refusal, TokenBucket};
/// fn call(bucket: &TokenBucket) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     Ok(bucket.try_acquire(1)?)
/// }
/// let bucket = TokenBucket::new(Quota::per_second(1)).on(&ManualClock::new());
/// call(&bucket).unwrap();
/// let error = call(&bucket).unwrap_err();
/// let refusal: Refusal = *error.downcast().unwrap();
/// assert_eq!((refusal.reason(), refusal.leg()), (Reason::RateExceeded, "token_bucket"));
/// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a refusal says why the work must not start"]
pub struct Refusal {
    wait: Wait,
    leg: LegName,
    reason: Reason,
    cause: Option<Reason>,
    at_once: bool,
}

impl Refusal {
    /// A refusal of the leg that is called `leg`.
    pub fn new(reason: Reason, leg: impl Into<LegName>, wait: Wait) -> Self {
        Self {
            wait,
            leg: leg.into(),
            reason,
            cause: None,
            at_once: false,
        }
    }

    /// The reason.
    pub fn reason(&self) -> Reason {
        self.reason
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
        self.cause
    }

    /// The name of the leg that refused.
    pub fn leg(&self) -> &str {
        &self.leg
    }

    /// The name of the leg that refused, as a value that outlives the refusal.
    pub fn leg_name(&self) -> LegName {
        self.leg
    }

    /// How to wait.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// The time to wait before asking again, rounded up: until the earliest instant at which this request could succeed if no
    /// other is admitted meanwhile. Of several legs it is the latest instant. `None` when no instant is known, or none would help:
    /// [`is_retryable`](Self::is_retryable) tells these two apart.
    ///
    /// All callers that are refused at one instant get the same time. If all of them ask again then, all but the first are refused
    /// again: add a jitter, wait in the queue of a [`Policy`](crate::Policy), or give each an appointment in a `WaitingRoom` of
    /// the crate `tollgate-http`.
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
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait {
            Wait::Until { nanos, .. } => Some(Duration::from_nanos(nanos)),
            Wait::Event { nanos, .. } if nanos > 0 && nanos < u64::MAX => Some(Duration::from_nanos(nanos)),
            Wait::Event { .. } | Wait::Never => None,
        }
    }

    /// False when waiting alone does not help: the reason is [permanent](Reason::is_permanent), or a leg has spent what its rate of
    /// zero had as its burst. A refusal that is retryable and has no [`retry_after`](Self::retry_after) ends at an instant that is
    /// not known.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
    /// let trial = TokenBucket::new(Quota::zero().burst(1)).on(&ManualClock::new());
    /// trial.try_acquire(1)?;
    /// let (spent, busy) = (trial.try_acquire(1).unwrap_err(), Semaphore::new(1));
    /// assert_eq!((spent.retry_after(), spent.is_retryable()), (None, false));
    /// let _held = busy.try_admit(1)?;
    /// let busy = busy.try_admit(1).unwrap_err();
    /// assert_eq!((busy.retry_after(), busy.is_retryable()), (None, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_retryable(&self) -> bool {
        let spent = matches!(self.wait, Wait::Event { at: Instant::MAX, .. });
        !self.reason.is_permanent() && !spent && self.wait != Wait::Never
    }

    /// True where a policy refuses at once instead of having the request wait: see
    /// [`LimiterExt::at_once`](crate::LimiterExt::at_once).
    pub fn is_at_once(&self) -> bool {
        self.at_once
    }

    /// The same refusal for another reason: a wait that failed keeps the leg that it waited for, and the reason of that as its
    /// [cause](Self::cause).
    pub fn with_reason(self, reason: Reason) -> Self {
        let cause = match reason {
            Reason::TimedOut | Reason::QueueFull => Some(self.cause.unwrap_or(self.reason)),
            _ => None,
        };
        Self { reason, cause, ..self }
    }

    /// The same refusal with another wait.
    pub fn with_wait(self, wait: Wait) -> Self {
        Self { wait, ..self }
    }

    /// The same refusal under another name of its leg; [`LegName::NONE`] changes nothing.
    pub fn named(self, leg: LegName) -> Self {
        let leg = if leg.is_empty() { self.leg } else { leg };
        Self { leg, ..self }
    }

    /// The same refusal of a leg that is not waited for.
    pub fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    /// The refusal of two legs of which this was asked first: with the later wait, and as that of the leg that can never admit, or
    /// that is not waited for.
    pub fn and(self, other: Self) -> Self {
        let rank = |it: &Self| (it.wait == Wait::Never, it.wait != Wait::Never && it.at_once);
        let first = if rank(&other) > rank(&self) { other } else { self };
        Self {
            wait: self.wait.and(other.wait),
            at_once: self.at_once | other.at_once,
            ..first
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limiter `{}` {}", self.leg, self.reason.clause())?;
        match self.cause {
            Some(cause) => write!(f, ": it {}", cause.clause()),
            None => Ok(()),
        }
    }
}

impl Error for Refusal {}

// It is returned at each attempt. `clippy::result_large_err` warns from 128 bytes on.
const _: () = assert!(size_of::<Refusal>() <= 72);

#[cfg(test)]
mod tests {
    use super::*;

    fn until(nanos: u64) -> Wait {
        let at = Instant::from_ticks(nanos);
        Wait::Until { nanos, at }
    }

    #[test]
    fn the_wait_of_two_legs_is_the_later_and_an_event_where_either_is_one() {
        assert_eq!(until(3).and(until(5)), until(5));
        assert_eq!(until(3).and(Wait::EVENT).not_before(), Some(Instant::from_ticks(3)));
        assert_eq!(until(3).and(Wait::Never), Wait::Never);
        assert_eq!(until(3).and(Wait::SPENT), Wait::SPENT);
        assert_eq!([until(3).or(until(5)), until(9).or(Wait::EVENT)], [until(3), until(9)]);
    }

    #[test]
    fn a_leg_that_never_admits_is_named_first() {
        let busy = Refusal::new(Reason::Saturated, "busy", Wait::EVENT);
        let never = Refusal::new(Reason::Oversized, "small", Wait::Never);
        for both in [busy.and(never), never.and(busy)] {
            assert_eq!(
                (both.reason(), both.leg(), both.wait()),
                (Reason::Oversized, "small", Wait::Never)
            );
        }
        // However the legs are grouped.
        let both = never.and(Refusal::new(Reason::Unpriced, "other", Wait::Never).and(busy.at_once()));
        assert_eq!((both.leg(), both.is_at_once()), ("small", true));
        let late = Refusal::new(Reason::RateExceeded, "late", until(7));
        assert_eq!(
            (late.and(busy.at_once()).leg(), late.and(busy).is_at_once()),
            ("busy", false)
        );
    }

    #[test]
    fn a_name_made_at_run_time_is_cut_before_a_character() {
        let name = "ä".repeat(30);
        let cut = LegName::copied(&name);
        assert!(cut.len() <= LegName::MAX_RUNTIME && name.starts_with(&*cut));
    }
}
