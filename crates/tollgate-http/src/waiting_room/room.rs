//! The room: appointments at a rate, by the hashes of keys.

use super::appointments::{Appointments, Booked};
use super::service_rate::ServiceRate;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate::{Clock, Instant, Quota, Wait};

/// Gives each refused client an appointment: an instant to come back at, and a place that is kept for it from then on.
///
/// It is unknown when a permit comes back, so a concurrency limit cannot tell a client when to ask again: by then
/// newcomers may have taken the free permits. A waiting room makes such an instant true. It gives out instants at a
/// rate that the service can surely serve ([`book`](Self::book)), one per key. It recognises a client that comes back
/// ([`redeem`](Self::redeem)), so that the client can be admitted before newcomers. It admits no client itself: that is
/// the job of a bypass queue in front of the same limiter, [`Policy::bypass_queue`](tollgate::Policy::bypass_queue).
/// [`LimitLayer::waiting_room`](crate::LimitLayer::waiting_room) does both for the requests of a service, and the instant is their `Retry-After`.
///
/// No permit is held for a client that has not come: an unused place costs the others nothing.
///
/// # The rate
/// Instants are evenly spaced at a [`Quota`]; its burst does not count. The service must be able to serve returning
/// clients at that rate. In a bypass queue beside that of the newcomers that is half of its capacity, since the two take turns.
///
/// With a [`share`](Self::share) the rate is that part of the measured service rate, if that is more than the quota.
/// The service rate is measured while newcomers are refused: the lower of the latest two runs of 64 that had waited and
/// were [served](Self::note_served). It is kept until no client has been refused for a second and every promised
/// instant has come.
///
/// When the rate changes, the next place is behind all places still to come, as if these had the new rate. It is as far
/// from each of them as the new rate requires. So at a faster rate new places fill the gaps between promised instants,
/// where these are wide enough, and are behind the last of them otherwise. No span holds more than the faster rate
/// allows.
///
/// # The places
/// A key has one place at most, and is given the same instant until that has come. The client may come as late as the
/// [`grace`](Self::grace), 5 s unless set; then the place is free for another key. A client that asks meanwhile may
/// come at once, and with less than [`LEAST_GRACE`](Self::LEAST_GRACE) left it is given another place. Only a client
/// with many keys can hoard places. Put a per-key rate limit in front.
///
/// There are at most `places` at a time, the furthest `places / rate` ahead. If none is free, the error says when the
/// last of them is due, or, if all are, when the first of them is over ([`RoomFull`]). That is no promise, and cannot
/// be: the room does not remember a client without a place. With as many places as there can be keys it does not
/// happen.
///
/// # Memory
/// Of a key it keeps 128 bits of a hash, by a secret from the operating system. So the room takes 100 to 150 bytes for
/// each place, and none of it is the key's choice. Two keys of one hash would share a place.
///
/// # Memory ordering
/// None is promised to callers.
///
/// ```
/// # use tollgate_http::WaitingRoom;
/// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, Semaphore};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let core = Policy::builder().on(&clock).max_wait(Duration::ZERO).limit(Semaphore::new(1)).build()?;
/// let bypass = core.bypass_queue(Duration::from_secs(5));
/// let room = WaitingRoom::new(1_000, Quota::per_second(2))?.on(&clock);
///
/// let busy = core.try_admit(1).unwrap();
/// assert!(core.try_admit(1).is_err());
/// assert_eq!(room.book("ada")?, Duration::ZERO);
/// assert_eq!(room.book("grace")?, Duration::from_millis(500));
/// assert_eq!(room.book("grace")?, Duration::from_millis(500), "one place to a key");
/// assert!(!room.redeem("grace"), "not yet");
///
/// clock.advance(Duration::from_millis(500));
/// drop(busy);
/// assert!(room.redeem("grace"));
/// clock.run(async { assert!(bypass.admit(1).await.is_ok()) });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "appointment")]
#[doc(alias = "retry-after")]
#[doc(alias = "virtual queue")]
pub struct WaitingRoom {
    clock: Clock,
    settings: Settings,
    /// Two keys with the same 128-bit print are practically impossible.
    prints: [RandomState; 2],
    state: Mutex<RoomState>,
    /// The number of places taken. Written under the lock of `state`; read without it as a hint.
    taken: AtomicUsize,
    /// The number of served requests that had to wait.
    served: AtomicU64,
    broken: AtomicU64,
}

/// The settings of a room.
#[derive(Clone, Copy)]
struct Settings {
    places: usize,
    quota: Quota,
    grace: Duration,
    /// In millionths; zero for none.
    share: u64,
}

/// A key, as the room remembers it.
type Print = [u64; 2];

/// The state behind the lock.
struct RoomState {
    appointments: Appointments<Print>,
    service_rate: ServiceRate,
    quota: Quota,
    counts: WaitingRoomStats,
}

/// The counts of a [`WaitingRoom`] so far.
///
/// ```
/// # use tollgate_http::WaitingRoom;
/// # use tollgate::{ManualClock, Quota};
/// let clock = ManualClock::new();
/// let room = WaitingRoom::new(1, Quota::per_second(1)).unwrap().on(&clock);
/// let wait = room.book("a").unwrap();
/// assert!(room.book("b").is_err());
/// clock.advance(wait);
/// assert!(room.redeem("a"));
/// let stats = room.stats();
/// assert_eq!((stats.booked, stats.full, stats.redeemed), (1, 1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingRoomStats {
    /// Places given out.
    pub booked: u64,
    /// Places whose clients came back in time.
    pub redeemed: u64,
    /// Places that ended unused, or were so near their end that the key was given another. The places booked, and
    /// neither redeemed, missed nor cancelled, are [`len`](WaitingRoom::len).
    pub missed: u64,
    /// Clients that came back in time and were refused all the same: broken promises. Counted only by
    /// [`note_broken`](WaitingRoom::note_broken).
    pub broken: u64,
    /// Calls that found no free place.
    pub full: u64,
}

const MILLION: u64 = 1_000_000;
/// Overload is over after this long without a refusal, if no place is still to come.
const GAP: Duration = Duration::from_secs(1);

impl WaitingRoom {
    /// How long a place is kept unless set otherwise.
    pub const GRACE: Duration = Duration::from_secs(5);
    /// The shortest grace: a `Retry-After` in whole seconds is up to one second late, and so is the network.
    pub const LEAST_GRACE: Duration = Duration::from_secs(2);
    /// The longest grace.
    pub const MOST_GRACE: Duration = Duration::from_secs(86_400);

    /// A room of `places` places, given out at `rate`, on the real clock. A room without places is always full.
    ///
    /// # Errors
    /// [`WaitingRoomError::NoRate`] for a quota of zero.
    pub fn new(places: usize, rate: Quota) -> Result<Self, WaitingRoomError> {
        let set = Settings {
            places,
            quota: some_rate(rate)?,
            grace: Self::GRACE,
            share: 0,
        };
        Ok(Self::build(set, &Clock::real()))
    }

    /// The same room on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.settings, clock)
    }

    /// The same room, empty, where a place is kept for `grace` from its instant on. Make it longer than a client may be
    /// late: rounding to whole seconds, the network, and the waits of layers outside.
    ///
    /// # Errors
    /// [`WaitingRoomError::Grace`] when it is less than [`LEAST_GRACE`](Self::LEAST_GRACE), or more than
    /// [`MOST_GRACE`](Self::MOST_GRACE).
    pub fn grace(self, grace: Duration) -> Result<Self, WaitingRoomError> {
        if !(Self::LEAST_GRACE..=Self::MOST_GRACE).contains(&grace) {
            return Err(WaitingRoomError::Grace { given: grace });
        }
        Ok(Self::build(Settings { grace, ..self.settings }, &self.clock))
    }

    /// The same room, empty, which gives out places at this part (0 to 1) of the service rate measured under overload,
    /// if that is more than its quota. Below one half where returning clients take turns with newcomers.
    ///
    /// # Errors
    /// [`WaitingRoomError::Share`] when it is not 0 to 1.
    ///
    /// ```
    /// # use tollgate_http::WaitingRoom;
    /// # use tollgate::{ManualClock, Quota};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let room = WaitingRoom::new(100, Quota::per_second(2))?.grace(Duration::from_secs(3))?.on(&clock);
    /// assert_eq!(room.book_from("ada", Duration::from_secs(10))?, Duration::from_secs(10));
    /// assert!(room.cancel("ada") && room.is_empty());
    /// room.set_quota(Quota::per_second(4))?;
    /// assert_eq!(room.quota(), Quota::per_second(4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(self, share: f64) -> Result<Self, WaitingRoomError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(WaitingRoomError::Share { given: share });
        }
        let share = (share * MILLION as f64) as u64;
        Ok(Self::build(Settings { share, ..self.settings }, &self.clock))
    }

    fn build(set: Settings, clock: &Clock) -> Self {
        let state = RoomState {
            appointments: Appointments::new(set.places, nanos(set.grace), nanos(Self::LEAST_GRACE)),
            service_rate: ServiceRate::new(nanos(GAP)),
            quota: set.quota,
            counts: WaitingRoomStats::default(),
        };
        Self {
            clock: clock.clone(),
            settings: set,
            prints: [RandomState::new(), RandomState::new()],
            state: Mutex::new(state),
            taken: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        }
    }

    /// The rate in force: the least at which places are given out.
    pub fn quota(&self) -> Quota {
        self.state().quota
    }

    /// Changes the rate from the next place on. That place is behind all places still to come, as if they had the new
    /// rate, and not too near to any of them. Promised instants stay.
    ///
    /// # Errors
    /// [`WaitingRoomError::NoRate`] for a quota of zero. Nothing is changed then.
    pub fn set_quota(&self, rate: Quota) -> Result<(), WaitingRoomError> {
        self.state().quota = some_rate(rate)?;
        Ok(())
    }

    /// How long a place is kept from its instant on.
    pub fn kept_for(&self) -> Duration {
        self.settings.grace
    }

    /// The most places that there can be.
    pub fn max_places(&self) -> usize {
        self.settings.places
    }

    /// The number of places taken. A snapshot. A place whose time is over counts until a call of `book` or `redeem`
    /// drops it; each drops at most 64 of them, so that no call takes long.
    pub fn len(&self) -> usize {
        // Relaxed: a hint. A client with a place comes after this was stored; a newcomer has none to be found.
        self.taken.load(Ordering::Relaxed)
    }

    /// True if no place is taken. With no appointments outstanding, the cost is one atomic load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long the refused `key` should wait before it asks again, by its place or a new one. Zero if it may come at
    /// once.
    ///
    /// # Errors
    /// [`RoomFull`] when there is no place.
    pub fn book<K: Hash + ?Sized>(&self, key: &K) -> Result<Duration, RoomFull> {
        self.book_from(key, Duration::ZERO)
    }

    /// [`book`](Self::book) for a key that may not come before `not_before` from now on: its place is then or later. If
    /// that is beyond the last possible place, no place is kept, and the result is `not_before`.
    ///
    /// # Errors
    /// [`RoomFull`] when there is no place.
    pub fn book_from<K: Hash + ?Sized>(&self, key: &K, not_before: Duration) -> Result<Duration, RoomFull> {
        let (print, now) = (self.print(key), self.now());
        let back = now.saturating_add(nanos(not_before));
        // Relaxed: the number says nothing about any other memory.
        let served = self.served.load(Ordering::Relaxed);
        let booked = self.open(|state| {
            let awaited = state.appointments.is_awaited(now);
            state.service_rate.refused(now, served, awaited);
            let interval = self.interval(state);
            let booked = state.appointments.book(print, now, interval, back);
            match booked {
                Booked::New(_) => state.counts.booked += 1,
                Booked::Known(_) | Booked::Beyond(_) => {}
                Booked::Full(_) => state.counts.full += 1,
            }
            booked
        });
        match booked {
            Booked::New(at) | Booked::Known(at) | Booked::Beyond(at) => {
                Ok(Duration::from_nanos(at.saturating_sub(now)))
            }
            Booked::Full(end) => Err(RoomFull {
                places: self.settings.places,
                retry_after: Duration::from_nanos(end.saturating_sub(now)),
            }),
        }
    }

    /// Takes the place of `key`, which has come back. False if it has none, or its instant has not come: then it is a
    /// newcomer like any other, and keeps its place.
    pub fn redeem<K: Hash + ?Sized>(&self, key: &K) -> bool {
        if self.is_empty() {
            return false;
        }
        let (print, now) = (self.print(key), self.now());
        self.open(|state| {
            let redeemed = state.appointments.redeem(print, now);
            state.counts.redeemed += u64::from(redeemed);
            redeemed
        })
    }

    /// Gives up the place of `key`, if it has one.
    pub fn cancel<K: Hash + ?Sized>(&self, key: &K) -> bool {
        let print = self.print(key);
        self.open(|state| state.appointments.cancel(print))
    }

    /// Counts an admitted request that had to wait: the [`share`](Self::share) is measured by it.
    #[inline]
    pub fn note_served(&self) {
        // Relaxed: a count, read as such.
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a client that came back in time and was refused all the same.
    pub fn note_broken(&self) {
        // Relaxed: a count, read as such.
        self.broken.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far. A snapshot.
    pub fn stats(&self) -> WaitingRoomStats {
        let state = self.state();
        WaitingRoomStats {
            missed: state.appointments.missed(),
            broken: self.broken.load(Ordering::Relaxed),
            ..state.counts
        }
    }

    /// The distance of the next place from the latest, in nanoseconds.
    fn interval(&self, state: &RoomState) -> u64 {
        let stated = match state.quota.is_unlimited() {
            true => 0,
            // Rounded up, so that the rate is not exceeded.
            false => nanos(state.quota.period()).div_ceil(state.quota.count()),
        };
        let measured = state.service_rate.interval().filter(|_| self.settings.share > 0);
        let of_share = measured.map(|took| {
            let apart = (u128::from(took) * u128::from(MILLION)).div_ceil(self.settings.share.into());
            u64::try_from(apart).unwrap_or(u64::MAX)
        });
        of_share.map_or(stated, |apart| apart.min(stated))
    }

    /// The wait of a client that comes back in `time`.
    pub(super) fn wait(&self, time: Duration) -> Wait {
        let now = self.clock.now();
        Wait::until(&self.clock, now, self.clock.after(now, time))
    }

    /// Nanoseconds since the clock's origin.
    fn now(&self) -> u64 {
        nanos(self.clock.between(Instant::ZERO, self.clock.now()))
    }

    fn state(&self) -> MutexGuard<'_, RoomState> {
        // No caller's code runs under the lock, so no panic leaves a half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print<K: Hash + ?Sized>(&self, key: &K) -> Print {
        self.prints.each_ref().map(|state| state.hash_one(key))
    }

    fn open<R>(&self, change: impl FnOnce(&mut RoomState) -> R) -> R {
        let mut state = self.state();
        let result = change(&mut state);
        // Relaxed: see `len`.
        self.taken.store(state.appointments.len(), Ordering::Relaxed);
        result
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn some_rate(rate: Quota) -> Result<Quota, WaitingRoomError> {
    if rate.is_zero() {
        Err(WaitingRoomError::NoRate)
    } else {
        Ok(rate)
    }
}

impl fmt::Debug for WaitingRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRoom")
            .field("len", &self.len())
            .field("max_places", &self.max_places())
            .field("rate", &format_args!("{}", self.quota()))
            .finish_non_exhaustive()
    }
}

/// There is no place in a [`WaitingRoom`].
///
/// ```
/// # use tollgate_http::WaitingRoom;
/// # use tollgate::{ManualClock, Quota};
/// let clock = ManualClock::new();
/// let room = WaitingRoom::new(1, Quota::per_second(1)).unwrap().on(&clock);
/// assert!(room.book("first").is_ok());
/// let full = room.book("second").unwrap_err();
/// assert_eq!(full.to_string(), "all 1 places of the waiting room are taken");
/// assert!(!full.retry_after().is_zero());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomFull {
    places: usize,
    retry_after: Duration,
}

impl RoomFull {
    /// When the last of all places is due, or, if all are, when the first of them is over. A client that asks again
    /// then has no place, but no later instant has been promised, unless others have come meanwhile. Zero only in a
    /// room without places.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }
}

impl fmt::Display for RoomFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all {} places of the waiting room are taken", self.places)
    }
}

impl std::error::Error for RoomFull {}

/// A setting of a [`WaitingRoom`] that is out of bounds.
///
/// ```
/// # use tollgate::Quota;
/// # use tollgate_http::{WaitingRoom, WaitingRoomError};
/// let error = WaitingRoom::new(1, Quota::zero()).unwrap_err();
/// assert_eq!(error, WaitingRoomError::NoRate);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum WaitingRoomError {
    /// A waiting room needs a rate above zero.
    NoRate,
    /// The grace of an appointment must be neither too short nor too long.
    Grace {
        /// The given grace.
        given: Duration,
    },
    /// The share of the service rate must be 0 to 1.
    Share {
        /// The given share.
        given: f64,
    },
}

impl fmt::Display for WaitingRoomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRate => f.write_str("a rate of zero was given, and a waiting room needs one above"),
            Self::Grace { given } => {
                let (least, most) = (WaitingRoom::LEAST_GRACE, WaitingRoom::MOST_GRACE);
                write!(
                    f,
                    "a grace of {given:?} was given, and {least:?} to {most:?} is allowed"
                )
            }
            Self::Share { given } => write!(f, "share: {given} was given, and 0 to 1 is allowed"),
        }
    }
}

impl std::error::Error for WaitingRoomError {}
