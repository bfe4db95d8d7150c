//! The status of limiters, for a page, a metric or a header: snapshots, leg by leg, of any limiter or policy.
//!
//! ```
//! use tollgate::status::State;
//! use tollgate::{Limiter, LimiterExt, Policy, Quota, Semaphore, TokenBucket};
//!
//! let policy = Policy::builder()
//!     .limit(TokenBucket::new(Quota::per_minute(60)).named("requests"))
//!     .limit(Semaphore::new(4).named("in flight"))
//!     .build()?;
//! let _permit = policy.try_admit(1).unwrap();
//!
//! let mut seen = Vec::new();
//! policy.describe(&mut |leg| match leg.state {
//!     State::Permits { limit, in_use, .. } => seen.push(format!("{}: {in_use} of {limit}", leg.leg)),
//!     State::Rate { limit, available, .. } => seen.push(format!("{}: {available} of {limit} left", leg.leg)),
//!     _ => {}
//! });
//! assert_eq!(seen, ["requests: 59 of 60 left", "in flight: 1 of 4"]);
//! # Ok::<(), tollgate::PolicyError>(())
//! ```

use crate::core::ask::Cost;
use crate::time::Clock;
use std::time::Duration;

/// What one leg is, and how it stands: shown by [`Limiter::describe`](crate::Limiter::describe).
///
/// ```
/// # use tollgate::status::{Description, State};
/// # use tollgate::{Cost, Limiter, LimiterExt, Semaphore};
/// const BYTES: Cost = Cost::new("bytes");
/// let gate = Semaphore::new(100).per(BYTES).named("memory");
/// let mut seen = None;
/// gate.describe(&mut |leg| seen = Some((leg.leg == "memory", leg.kind, leg.cost)));
/// assert_eq!(seen, Some((true, "semaphore", Some(BYTES))));
///
/// // A limiter of your own makes one.
/// let mine = Description::new("gate").state(State::Queue { waiting: 2 }).per(BYTES);
/// assert_eq!((mine.named("other").leg, mine.cost), ("other", Some(BYTES)));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Description<'a> {
    /// Its name, as refusals have it.
    pub leg: &'a str,
    /// Its kind, in lower case: `semaphore`, `token_bucket`, `breaker`.
    pub kind: &'static str,
    /// The cost that it counts; calls if none.
    pub cost: Option<Cost>,
    /// The clock by which it decides, if it decides by one.
    pub clock: Option<&'a Clock>,
    /// Its numbers.
    pub state: State,
    /// True when it equals one just made: nothing is held or awaited, all units that were taken have come back, no setting has been
    /// changed, and there is no other handle of it. [`Keyed`](crate::Keyed) drops such a limiter when it needs the room, and makes a new
    /// one when the key comes back.
    pub is_as_new: bool,
    /// The queue of waiters to which it hands units over.
    pub(crate) hands_over: Option<usize>,
    /// Whose permits an admission holds until its work ends.
    pub(crate) permits_of: Option<usize>,
}

impl<'a> Description<'a> {
    /// A leg of this kind that counts calls, is called as its kind, decides without a clock, shows no numbers, and is not as new.
    pub fn new(kind: &'static str) -> Self {
        Self {
            leg: kind,
            kind,
            cost: None,
            clock: None,
            state: State::Unknown,
            is_as_new: false,
            hands_over: None,
            permits_of: None,
        }
    }

    /// The same under the name that it was given.
    #[must_use]
    pub fn named<'b>(self, leg: &'b str) -> Description<'b>
    where
        'a: 'b,
    {
        Description { leg, ..self }
    }

    /// The same of a leg that counts `cost`.
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Self {
        self.cost = Some(cost);
        self
    }

    /// The same of a leg that decides by `clock`.
    #[must_use]
    pub fn on<'b>(self, clock: &'b Clock) -> Description<'b>
    where
        'a: 'b,
    {
        let clock = Some(clock);
        Description { clock, ..self }
    }

    /// The same with these numbers.
    #[must_use]
    pub fn state(mut self, state: State) -> Self {
        self.state = state;
        self
    }

    /// The same of a leg that hands units over to `queue`. Such a leg stands at most once in a policy.
    #[must_use]
    pub(crate) fn hands_over_to<Q>(mut self, queue: &Q) -> Self {
        self.hands_over = Some(std::ptr::from_ref(queue).addr());
        self
    }

    /// The same of a leg whose admissions hold permits of `owner` until their work ends: a pool then refuses the wait of a task that holds
    /// such permits for a task that needs them. Legs that share their permits name the same owner.
    #[must_use]
    pub fn holds_permits_of<T>(mut self, owner: &T) -> Self {
        self.permits_of = Some(std::ptr::from_ref(owner).addr());
        self
    }

    /// The same of a leg that is as new, or is not.
    #[must_use]
    pub fn as_new(mut self, is_as_new: bool) -> Self {
        self.is_as_new = is_as_new;
        self
    }
}

/// The numbers of a leg. Each is a snapshot of its own: they need not belong to one instant.
///
/// ```
/// # use tollgate::status::State;
/// # use tollgate::{Limiter, Semaphore};
/// let gate = Semaphore::new(2);
/// let _held = gate.try_acquire();
/// let mut state = None;
/// gate.describe(&mut |leg| state = Some(leg.state));
/// assert_eq!(state, Some(State::Permits { limit: 2, in_use: 1, waiting: 0 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// None are shown.
    Unknown,
    /// Permits that come back.
    Permits {
        /// The number of permits.
        limit: u64,
        /// Permits that are held: more than the limit after it has been lowered.
        in_use: u64,
        /// The number of waiters.
        waiting: u64,
    },
    /// Units per time.
    Rate {
        /// The most at once: a bucket's burst, or a window's limit.
        limit: u64,
        /// The time in which that many come back: a window's length, or the time in which a bucket fills.
        window: Duration,
        /// The units available now.
        available: u64,
        /// The time until there is one, if none is taken meanwhile: zero when there is one. `None` when no instant would help.
        next: Option<Duration>,
        /// The time until a window has all of them again, if none is taken meanwhile. `None` when it has all, when that is not known, and
        /// for a bucket, which fills steadily.
        reset: Option<Duration>,
    },
    /// A circuit.
    Breaker {
        /// Its state.
        state: BreakerState,
        /// The time for which it stays open, if known.
        open_for: Option<Duration>,
    },
    /// A rate that does not show its available units.
    Opaque {
        /// The time until there is one, by its last refusal: zero when that is past.
        next: Duration,
    },
    /// Units that are spent for good, and earned by use.
    Budget {
        /// The most that is kept.
        limit: u64,
        /// The units available now.
        available: u64,
    },
    /// A part is refused at random.
    Shed {
        /// The probability of a refusal for the next, 0 to 1.
        likelihood: f64,
    },
    /// Units of a limit that processes share, leased by this process.
    Lease {
        /// The units held: permits, or of a leased rate parts of 2^20.
        units: u64,
        /// Requests for units that were sent to the store.
        requests: u64,
        /// Times that units went back because other processes waited.
        recalls: u64,
        /// Leases that lapsed while they had units.
        lapses: u64,
    },
    /// The queue of a policy.
    Queue {
        /// The number of waiters.
        waiting: u64,
    },
}

/// The state of a circuit breaker.
///
/// ```
/// # use tollgate::status::{BreakerState, State};
/// # use std::time::Duration;
/// let open = State::Breaker { state: BreakerState::Open, open_for: Some(Duration::from_secs(30)) };
/// assert!(matches!(open, State::Breaker { state: BreakerState::Open, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Admits, and evaluates the window.
    Closed,
    /// Refuses until the open time is over.
    Open,
    /// Admits a number of probes, and evaluates them.
    HalfOpen,
    /// Refuses until the state is changed by hand.
    ForcedOpen,
    /// Admits everything and records nothing.
    Disabled,
    /// Admits everything and records it, and never opens.
    MetricsOnly,
}
