//! One rate for each key, all of the same quota, in as few bytes as that takes.

use super::hashing::Hashing;
use super::shards::{Shard, Shards};
use super::table::{KeyHash, MAX_SLOTS, Table};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::core::status::Description;
use crate::rate::{Axis, Quota};
use crate::time::{Clock, Instant};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

const LEG: &str = "keyed_rate";

/// A token bucket for each key, all of one quota: a number per key, in a map with a hard bound.
///
/// It admits the same as a [`Keyed`](super::Keyed) of [`TokenBucket`](crate::TokenBucket)s, to the token, in a tenth of
/// the memory and less time. Prefer the other if quotas differ or change, if callers wait, give back or settle, or if
/// the rate is one leg of several. In front of an HTTP service, the layer of the crate `tollgate-http` takes either.
///
/// # Eviction
/// At most `max_entries` keys. When a new one finds no room, a key whose bucket is full is evicted. Its owner gains
/// nothing, also by an earlier reading of the clock, and loses what comes in a nanosecond at most. When none of 64
/// entries is full, the new key is refused as `Saturated`. A new key goes on from where the last one stopped, so a map of
/// up to 64 entries is searched in full.
///
/// # Memory
/// At most [`ENTRY_BYTES`](Self::ENTRY_BYTES) for each key, plus the heap memory of keys themselves; half as much again
/// while a shard doubles.
///
/// # Locks
/// A shard's lock is held while keys are compared: their `Eq` must not use the map. Hashing, cloning and dropping of keys
/// run without it.
///
/// ```
/// # use tollgate::keyed::KeyedRate;
/// # use tollgate::{ManualClock, Quota};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let logins = KeyedRate::new(100_000, Quota::per_minute(6).burst(2)).on(&clock);
/// assert!(logins.try_acquire("ada", 2).is_ok());
/// let refused = logins.try_acquire("ada", 1).unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(10)));
/// assert!(logins.try_acquire("grace", 1).is_ok());
/// # let _: &KeyedRate<String> = &logins;
/// ```
pub struct KeyedRate<K> {
    shards: Shards<Rates<K>>,
    quota: Quota,
    clock: Clock,
    max_entries: usize,
}

struct Rates<K> {
    axis: Axis,
    /// Where the axis was when a key was last evicted as full: by an earlier reading it may not have been full.
    dropped: u64,
    positions: Table<K, u64>,
}

/// How many entries a new key without room checks.
const LOOKS: usize = 64;

impl<K> KeyedRate<K> {
    /// The most bytes of a key, without its own heap memory.
    pub const ENTRY_BYTES: usize = Table::<K, u64>::SLOT_BYTES;

    /// An empty map of at most `max_entries` keys, on the real clock. With a maximum of zero every key is refused.
    pub fn new(max_entries: usize, quota: Quota) -> Self {
        Self::build(max_entries, quota, Clock::real(), Hashing::fold())
    }

    /// The same on `clock`, empty.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        Self::build(self.max_entries, self.quota, clock.clone(), self.shards.into_hashing())
    }

    /// The same, empty, with keys hashed by SipHash: slower, and safe from an attacker who can time single lookups. See
    /// [the threats](super#keys-from-outside).
    #[must_use]
    pub fn siphash(self) -> Self {
        Self::build(self.max_entries, self.quota, self.clock, Hashing::sip())
    }

    fn build(max_entries: usize, quota: Quota, clock: Clock, hashing: Hashing) -> Self {
        let axis = Axis::new(&quota, &clock, clock.now());
        let shards = Shards::new(max_entries, hashing, |part| Rates {
            axis,
            dropped: axis.start(),
            positions: Table::new(part),
        });
        Self {
            max_entries: max_entries.min(shards.len() * MAX_SLOTS),
            shards,
            quota,
            clock,
        }
    }

    /// How many keys there are. A snapshot.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().positions.len()).sum()
    }

    /// True when there are none. A snapshot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Rates<K> {
    /// Where the axis is at `now`.
    fn axis_at(&mut self, now: Instant) -> u64 {
        match self.axis.at(now) {
            Some(at) => at,
            None => self.start_anew(now),
        }
    }

    /// Runs once in the life of an axis, which is some hours at the least, and mostly years. Positions that are older than a life
    /// could not be told from later ones.
    #[cold]
    fn start_anew(&mut self, now: Instant) -> u64 {
        let before = self.axis.at_any(now);
        for (_, _, position) in self.positions.entries() {
            *position = before.wrapping_sub(self.axis.level(*position, before) as u64);
        }
        self.dropped = before;
        self.axis = self.axis.go_on(now);
        self.axis.at_any(now)
    }

    /// The position of a new key: it may have been here, until the last eviction.
    fn start(&self) -> u64 {
        self.axis.full(self.dropped)
    }
}

/// The position after a take of `n` tokens at `position`, or the one that the axis has to reach for them.
#[inline] // row: keyed rate
fn take(axis: &Axis, position: u64, n: u64, at: u64) -> Result<u64, u64> {
    let (level, need) = (axis.level(position, at), axis.units(n));
    let after = at.wrapping_sub(level as u64).wrapping_add(need);
    // Nothing is there also in debt.
    if need as i64 <= level.max(0) {
        Ok(after)
    } else {
        Err(after)
    }
}

impl<K: Hash + Eq> KeyedRate<K> {
    /// Takes `n` tokens of `key`, or refuses.
    ///
    /// # Errors
    /// `RateExceeded`, with a true `retry_after`; `Oversized` if `n` exceeds the burst; `Saturated`, by the leg
    /// `keyed`, if the key is new and there is no room.
    pub fn try_acquire<Q>(&self, key: &Q, n: u64) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (shard, hash) = self.shards.place(key);
        let now = self.clock.now();
        {
            let mut rates = shard.lock();
            let at = rates.axis_at(now);
            let Rates { axis, positions, .. } = &mut *rates;
            if let Some(position) = positions.find(hash, |known| known.borrow() == key) {
                return match take(axis, *position, n, at) {
                    Ok(after) => {
                        *position = after;
                        Ok(())
                    }
                    Err(target) => Err(self.refusal(n, target, axis, now)),
                };
            }
        }
        self.begin(key.to_owned(), n, now, shard, hash)
    }

    fn refusal(&self, n: u64, target: u64, axis: &Axis, now: Instant) -> Refusal {
        if n > self.quota.burst_size() {
            return Refusal::new(Reason::Oversized, LEG, Wait::Never);
        }
        let wait = axis.reaches(target).map(|at| Wait::until(&self.clock, now, at));
        // Nothing comes back at a rate of zero.
        Refusal::new(Reason::RateExceeded, LEG, wait.unwrap_or(Wait::SPENT))
    }

    /// Takes the first tokens of a key.
    #[cold]
    fn begin(&self, key: K, n: u64, now: Instant, shard: &Shard<Rates<K>>, hash: KeyHash) -> Result<(), Refusal> {
        // The evicted key is dropped after the lock is released, as is one that is not kept.
        let _gone;
        let mut rates = shard.lock();
        let at = rates.axis_at(now);
        let start = rates.start();
        let Rates {
            axis,
            dropped,
            positions,
        } = &mut *rates;
        // Another thread may have added the key meanwhile.
        let known = positions.find(hash, |known| *known == key);
        let before = known.as_deref().copied().unwrap_or(start);
        let after = take(axis, before, n, at).map_err(|target| self.refusal(n, target, axis, now))?;
        if let Some(position) = known {
            *position = after;
            return Ok(());
        }
        if !positions.has_room() {
            let full = positions.sweep(&mut { LOOKS }, |position| {
                axis.level(*position, at) >= axis.whole_burst() as i64
            });
            let Some(full) = full else {
                return Err(Refusal::new(Reason::Saturated, "keyed", Wait::EVENT));
            };
            _gone = positions.remove(full);
            if at.wrapping_sub(*dropped) as i64 > 0 {
                *dropped = at;
            }
        }
        positions.insert(hash, key, after);
        Ok(())
    }

    /// Whole tokens that `key` could take now: the burst, when it is new. A snapshot.
    pub fn available<Q>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, |axis, position, at, _| axis.tokens(axis.level(position, at)))
    }

    /// The status of `key`'s rate; `None` if the quota is unlimited. A snapshot.
    ///
    /// ```
    /// # use tollgate::keyed::KeyedRate;
    /// # use tollgate::status::State;
    /// # use tollgate::{ManualClock, Quota};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let logins = KeyedRate::new(100_000, Quota::per_minute(6).burst(2)).on(&clock);
    /// logins.try_acquire("ada", 2).unwrap();
    /// let State::Rate { limit, window, available, next, .. } = logins.status("ada").unwrap().state else {
    ///     unreachable!()
    /// };
    /// assert_eq!((limit, available), (2, 0));
    /// assert_eq!((window, next), (Duration::from_secs(20), Some(Duration::from_secs(10))));
    /// # let _: &KeyedRate<String> = &logins;
    /// ```
    pub fn status<Q>(&self, key: &Q) -> Option<Description<'static>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.quota.is_unlimited() {
            return None;
        }
        let (available, next) = self.look(key, |axis, position, at, now| {
            let next = take(axis, position, 1, at)
                .err()
                .and_then(|target| axis.reaches(target));
            let due = next.map_or(Duration::ZERO, |due| self.clock.between(now, due));
            (axis.tokens(axis.level(position, at)), due)
        });
        let next = (self.quota.count() > 0 || available > 0).then_some(next);
        Some(Description::new(LEG).state(self.quota.status(available, next)))
    }

    /// What `look` says of the position of `key`, of the axis, and of the instant of both.
    fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&Axis, u64, u64, Instant) -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (shard, hash) = self.shards.place(key);
        let now = self.clock.now();
        let mut rates = shard.lock();
        let at = rates.axis_at(now);
        let start = rates.start();
        let known = rates.positions.find(hash, |known| known.borrow() == key);
        let position = known.map_or(start, |position| *position);
        look(&rates.axis, position, at, now)
    }
}

impl<K> fmt::Debug for KeyedRate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRate")
            .field("quota", &format_args!("{}", self.quota))
            .field("len", &self.len())
            .field("max_entries", &self.max_entries)
            .finish_non_exhaustive()
    }
}
