//! The map: the shard of a key, the path of a miss, and the entries that may be evicted for a new key.

use super::hashing::Hashing;
use super::shards::{self, Shards};
use super::table::{KeyHash, MAX_SLOTS, Table};
use crate::core::limiter::Limiter;
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

/// Gives each key a limiter of its own: each tenant, route or address. The limiter is made when its key is first seen.
///
/// ```
/// # use tollgate::{Keyed, ManualClock, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let for_all = clock.clone();
/// let tenants = Keyed::new(10_000, move |tenant: &String| {
///     let quota = if tenant == "gold" { Quota::per_second(100) } else { Quota::per_second(2) };
///     TokenBucket::new(quota).on(&for_all)
/// });
/// let tenant = tenants.get("a")?;
/// assert!(tenant.try_acquire(2).is_ok());
/// assert!(tenants.get("a")?.try_acquire(1).is_err());
/// assert!(tenants.get("b")?.try_acquire(1).is_ok());
/// assert!(tenants.get("gold")?.try_acquire(100).is_ok());
/// # Ok::<(), tollgate::KeysFull>(())
/// ```
///
/// [`get`](Self::get) returns an [`Arc`] of the key's limiter, which is a limiter itself: it composes with
/// [`and`](crate::LimiterExt::and), it is a leg of a [`Policy`](crate::Policy), and its owned permits can be moved anywhere. The limiter
/// of a key may also be a policy, in which callers wait.
///
/// # Eviction
/// The map keeps at most `max_entries` keys. When a new key finds no room, the map evicts an entry that has no handle outside the map
/// and whose legs are all [as new](crate::status::Description::is_as_new): its bucket is full, no permit of it is held, no caller waits
/// for it, and no setting has been changed. If its key comes back, the key gets an equal limiter. So no key gains a token by an eviction,
/// as long as the closure makes the same limiter for the same key. When no entry can be evicted, the new key is refused with
/// [`KeysFull`], or it shares one limiter with other such keys: [`overflow`](Self::overflow).
///
/// A new key checks 32 entries at most, from where the last one stopped. So it may be refused although an entry further on is as new; a
/// map of up to 32 entries is searched in full. A limiter whose `describe` never says that it is as new is never evicted: `Governed` and
/// `ChannelSemaphore`, for example.
///
/// | limiter | is as new when |
/// |---|---|
/// | `CircuitBreaker` of the crate `tollgate-resilience` | it is closed, with no failed or slow call in its window, and has learnt nothing. A window of calls keeps a failure until later calls push it out: prefer a window of time |
/// | `Adaptive` of the same crate | nothing is in use, and it has learnt nothing for a minute and for a hundred windows |
/// | `Throttler` of the same crate | nothing was asked for a window |
/// | `RetryBudget` of the same crate | the reserve is full |
/// | a [`Shared`](super::Shared) | at any time: its permits do not belong to the entry |
///
/// Keys are spread over shards by their hash, each with its part of `max_entries`: one shard per 1,024 entries, at most
/// four per processor. A shard may be full a few per cent before the map is.
///
/// # Overrides
/// The closure that makes a limiter sees the key, and may give each key its own quota. At run time, change the limiter
/// that [`entry`](Self::entry) returns: an entry whose settings have changed is not as new, and stays, until it is
/// [removed](Self::remove).
///
/// # Memory
/// At most [`max_bytes`](Self::max_bytes), plus the heap memory of keys and limiters themselves. That is
/// [`ENTRY_BYTES`](Self::ENTRY_BYTES) for each entry. While a shard doubles, the part that is not the limiter takes
/// half as much again.
///
/// # Locks
/// A shard's lock is held while keys are compared: their `Eq` must not use the map. The map hashes keys, makes limiters, asks whether they
/// are as new, and drops them without a lock.
pub struct Keyed<K, L> {
    shards: Shards<Table<K, MapEntry<L>>>,
    make: Box<Make<K, L>>,
    overflow: Option<Arc<L>>,
    max_entries: usize,
    /// The number of visits of all entries so far.
    visits: AtomicU64,
}

type Shard<K, L> = shards::Shard<Table<K, MapEntry<L>>>;
type Make<K, L> = dyn Fn(&K) -> Result<L, KeysFull> + Send + Sync;

struct MapEntry<L> {
    limiter: Arc<L>,
    /// Handed out since it was last a candidate for eviction.
    touched: bool,
}

impl<L> MapEntry<L> {
    fn hand_out(&mut self) -> Arc<L> {
        self.touched = true;
        Arc::clone(&self.limiter)
    }

    /// True without a handle outside the map, not even a weak one.
    fn is_alone(&mut self) -> bool {
        // Not a count that may be stale: this sees all writes of the last holder of a handle.
        Arc::get_mut(&mut self.limiter).is_some()
    }

    /// Its limiter, to be checked without the lock.
    fn as_candidate(&mut self) -> Arc<L> {
        self.touched = false;
        Arc::clone(&self.limiter)
    }
}

/// The next limiter without a handle outside the map, and the hash of its key.
fn candidate<K, L>(table: &mut Table<K, MapEntry<L>>, looks: &mut usize) -> Option<(KeyHash, Arc<L>)> {
    let position = table.sweep(looks, MapEntry::is_alone)?;
    let (hash, entry) = table.slot(position)?;
    Some((hash, entry.as_candidate()))
}

/// Removes a candidate, unless it has been handed out since.
fn take_untouched<K, L>(
    table: &mut Table<K, MapEntry<L>>,
    hash: KeyHash,
    candidate: &Arc<L>,
) -> Option<(K, MapEntry<L>)> {
    let position = table.position_of_value(hash, |entry| Arc::ptr_eq(&entry.limiter, candidate))?;
    let untouched = !table.slot(position)?.1.touched;
    untouched.then(|| table.remove(position)).flatten()
}

/// How many entries a new key without room checks.
const LOOKS: usize = 32;

impl<K, L> Keyed<K, L> {
    /// The most bytes of an entry, once the map is full, without the heap memory of the key and the limiter themselves.
    pub const ENTRY_BYTES: usize = Table::<K, MapEntry<L>>::SLOT_BYTES + Self::LIMITER_BYTES;
    /// The limiter, and the two counts of its `Arc`.
    const LIMITER_BYTES: usize = size_of::<L>() + 2 * size_of::<usize>();

    /// An empty map of at most `max_entries` keys, whose limiters `make` makes. With a maximum of zero every key is
    /// refused, or shares the overflow.
    pub fn new(max_entries: usize, make: impl Fn(&K) -> L + Send + Sync + 'static) -> Self {
        Self::try_new(max_entries, move |key| Ok(make(key)))
    }

    /// The same with a closure that may fail: for example if a leg comes from another map, which may be full. The key is then refused
    /// with the error of the closure, or shares the overflow.
    ///
    /// ```
    /// # use tollgate::keyed::Shared;
    /// # use tollgate::{Keyed, LimiterExt, Quota, Semaphore, TokenBucket};
    /// # use std::sync::Arc;
    /// let rates = Arc::new(Keyed::new(1, |_: &u32| TokenBucket::new(Quota::per_second(10))));
    /// let legs = Arc::clone(&rates);
    /// let tenants = Keyed::try_new(100, move |tenant: &u32| {
    ///     Ok(Shared::from(legs.entry(tenant)?).and(Semaphore::new(4)))
    /// });
    /// let one = tenants.get(&1)?;
    /// let in_use = rates.get(&1)?;
    /// assert!(tenants.get(&2).is_err(), "there is no rate for it");
    /// # drop((one, in_use));
    /// # Ok::<(), tollgate::KeysFull>(())
    /// ```
    pub fn try_new(max_entries: usize, make: impl Fn(&K) -> Result<L, KeysFull> + Send + Sync + 'static) -> Self {
        let shards = Shards::new(max_entries, Hashing::fold(), Table::new);
        Self {
            max_entries: max_entries.min(shards.len() * MAX_SLOTS),
            shards,
            make: Box::new(make),
            overflow: None,
            visits: AtomicU64::new(0),
        }
    }

    /// The same map, in which keys that find no room share `limiter`.
    #[must_use]
    pub fn overflow(mut self, limiter: L) -> Self {
        self.overflow = Some(Arc::new(limiter));
        self
    }

    /// The same map, empty, with keys hashed by SipHash: slower, and safe from an attacker who can time single lookups.
    /// See [the threats](super#keys-from-outside).
    #[must_use]
    pub fn siphash(mut self) -> Self {
        self.shards = Shards::new(self.max_entries, Hashing::sip(), Table::new);
        self
    }

    /// How many keys there are. A snapshot.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// True when there are none. A snapshot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most bytes of the map, without the heap memory of keys and limiters themselves: as asked of the allocator,
    /// while it grows as well.
    pub fn max_bytes(&self) -> usize {
        // While a shard doubles, its half is there too; and eight cells are the least.
        let shards = self.shards.len() * (size_of::<Shard<K, L>>() + 512);
        let slots = self.max_entries * Table::<K, MapEntry<L>>::SLOT_BYTES;
        self.max_entries * Self::LIMITER_BYTES + slots + slots / 2 + shards
    }
}

impl<K: Hash + Eq, L: Limiter> Keyed<K, L> {
    /// The limiter of `key`, made if it is new. As long as the handle lives, the entry stays.
    ///
    /// If there is no room for a new key, this is the overflow limiter, if there is one.
    ///
    /// # Errors
    /// [`KeysFull`] when there is no room and no overflow.
    pub fn get<Q>(&self, key: &Q) -> Result<Arc<L>, KeysFull>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (shard, hash) = self.shards.place(key);
        if let Some(entry) = shard.lock().find(hash, |known| known.borrow() == key) {
            return Ok(entry.hand_out());
        }
        match (self.find_room(key, shard, hash), &self.overflow) {
            (Err(_), Some(overflow)) => Ok(Arc::clone(overflow)),
            (result, _) => result,
        }
    }

    /// The limiter of `key`, made if it is new; never the overflow. To change the settings of one key.
    ///
    /// # Errors
    /// [`KeysFull`] when there is no room.
    pub fn entry<Q>(&self, key: &Q) -> Result<Arc<L>, KeysFull>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (shard, hash) = self.shards.place(key);
        self.find_room(key, shard, hash)
    }

    /// The limiter of `key`, if it has one.
    ///
    /// ```
    /// # use tollgate::{Inherit, Keyed, LimiterExt, ManualClock, Quota, Semaphore, TokenBucket};
    /// let clock = ManualClock::new();
    /// let for_all = clock.clone();
    /// let tenants = Keyed::new(100, move |_: &String| TokenBucket::new(Quota::per_second(2)).on(&for_all)).siphash();
    /// assert!(tenants.peek("acme").is_none(), "it was not asked for yet");
    /// tenants.entry("acme")?.set_quota(Quota::per_second(50), Inherit::Reset);
    /// assert_eq!(tenants.peek("acme").map(|bucket| bucket.available()), Some(50));
    /// tenants.remove("acme");
    /// assert_eq!(tenants.get("acme")?.available(), 2);
    ///
    /// let few = Keyed::new(1, |_: &u8| Semaphore::new(1)).overflow(Semaphore::new(5));
    /// let _held = few.get(&1)?.try_admit_owned(1);
    /// assert_eq!(few.get(&2)?.limit(), 5, "keys without room share one");
    /// # Ok::<(), tollgate::KeysFull>(())
    /// ```
    pub fn peek<Q>(&self, key: &Q) -> Option<Arc<L>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (shard, hash) = self.shards.place(key);
        let mut table = shard.lock();
        table.find(hash, |known| known.borrow() == key).map(MapEntry::hand_out)
    }

    /// Forgets `key` in any state: the next request for it gets a new limiter. Existing handles keep the old limiter,
    /// apart from the map.
    pub fn remove<Q>(&self, key: &Q) -> Option<Arc<L>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (shard, hash) = self.shards.place(key);
        let gone = shard.lock().take(hash, |known| known.borrow() == key);
        gone.map(|(_, entry)| entry.limiter)
    }

    /// Evicts all entries that are as new and have no handle outside the map, and returns their number.
    ///
    /// ```
    /// # use tollgate::{Keyed, LimiterExt, Semaphore};
    /// let tenants = Keyed::new(100, |_: &u32| Semaphore::new(1));
    /// let busy = tenants.get(&1)?.try_admit_owned(1);
    /// tenants.get(&2)?;
    /// assert_eq!((tenants.evict_as_new(), tenants.len()), (1, 1));
    /// # drop(busy);
    /// # Ok::<(), tollgate::KeysFull>(())
    /// ```
    pub fn evict_as_new(&self) -> usize {
        let mut evicted = 0;
        for shard in self.shards.iter() {
            let candidates: Vec<_> = {
                let mut table = shard.lock();
                let alone = table.entries().filter_map(|(hash, _, entry)| {
                    let is_alone = entry.is_alone();
                    is_alone.then(|| (hash, entry.as_candidate()))
                });
                alone.collect()
            };
            let evict = |(hash, limiter): &(KeyHash, Arc<L>)| evict_if_as_new(shard, *hash, limiter);
            evicted += candidates.iter().filter(|candidate| evict(candidate)).count();
        }
        evicted
    }

    /// Calls `visit` with each key and its limiter, in no order, and holds no lock meanwhile. Keys that come or go meanwhile may be missed.
    /// While a limiter is visited, all entries of its shard stay, so a long visit may leave no room for new keys. Keys are cloned under a
    /// lock: their `Clone` must not use the map.
    ///
    /// Every limiter that is missed is made after the visit began: the map discards a limiter whose closure began to run before, and calls
    /// the closure again. So after a change of the settings that the closure reads, a visit that changes each limiter leaves none with the
    /// old settings.
    ///
    /// **Deadlock**: do not call `for_each` from the closure that makes a limiter.
    ///
    /// ```
    /// # use tollgate::{Keyed, Quota, TokenBucket};
    /// let tenants = Keyed::new(100, |_: &String| TokenBucket::new(Quota::per_hour(10)));
    /// tenants.get("a").unwrap().try_acquire(10).unwrap();
    /// tenants.get("b").unwrap().try_acquire(3).unwrap();
    /// let mut spent = Vec::new();
    /// tenants.for_each(|tenant, bucket| spent.extend((bucket.available() == 0).then(|| tenant.clone())));
    /// assert_eq!(spent, ["a"]);
    /// ```
    pub fn for_each(&self, mut visit: impl FnMut(&K, &Arc<L>))
    where
        K: Clone,
    {
        // Release: publishes the settings that were changed before. Pairs with the acquiring load of the number by a maker.
        self.visits.fetch_add(1, Ordering::Release);
        for shard in self.shards.iter() {
            let entries: Vec<_> = {
                let mut table = shard.lock();
                let entries = table.entries();
                entries.map(|(_, key, entry)| (key.clone(), entry.hand_out())).collect()
            };
            entries.iter().for_each(|(key, limiter)| visit(key, limiter));
        }
    }

    /// True when no visit has begun since the number of visits was read, under the lock of a shard.
    fn is_current(&self, visits: u64) -> bool {
        // Relaxed: a visit of this shard that is over has counted before it took the lock.
        self.visits.load(Ordering::Relaxed) == visits
    }

    #[cold]
    fn find_room<Q>(&self, key: &Q, shard: &Shard<K, L>, hash: KeyHash) -> Result<Arc<L>, KeysFull>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut looks = LOOKS;
        let mut made: Option<(u64, K, Arc<L>)> = None;
        loop {
            let candidate = {
                let mut table = shard.lock();
                if let Some(entry) = table.find(hash, |known| known.borrow() == key) {
                    return Ok(entry.hand_out());
                }
                if !table.has_room() {
                    Some(candidate(&mut table, &mut looks).ok_or(KeysFull {
                        max_entries: self.max_entries,
                    })?)
                } else if let Some((_, key, limiter)) = made.take_if(|made| self.is_current(made.0)) {
                    let mut entry = MapEntry { limiter, touched: true };
                    let handle = entry.hand_out();
                    table.insert(hash, key, entry);
                    return Ok(handle);
                } else {
                    None
                }
            };
            if let Some((hash, candidate)) = candidate {
                evict_if_as_new(shard, hash, &candidate);
                continue;
            }
            // Acquire: sees the settings that were changed before that visit. Pairs with the visitor's addition.
            let visits = self.visits.load(Ordering::Acquire);
            let key = key.to_owned();
            let limiter = Arc::new((self.make)(&key)?);
            made = Some((visits, key, limiter));
        }
    }
}

/// Evicts a candidate if it is as new. It had no other handle when it was chosen, so a new handle came from the table,
/// which remembers that.
fn evict_if_as_new<K, L: Limiter>(shard: &Shard<K, L>, hash: KeyHash, candidate: &Arc<L>) -> bool {
    let (mut legs, mut as_new) = (0, true);
    // `L`'s own method: the map's handle is a second one here.
    L::describe(candidate, &mut |leg| {
        (legs, as_new) = (legs + 1, as_new && leg.is_as_new);
    });
    // One that describes nothing may remember anything.
    if legs == 0 || !as_new {
        return false;
    }
    // A statement of its own: the removed entry is dropped without the lock.
    let gone = take_untouched(&mut shard.lock(), hash, candidate);
    gone.is_some()
}

impl<K, L> fmt::Debug for Keyed<K, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("len", &self.len())
            .field("max_entries", &self.max_entries)
            .finish_non_exhaustive()
    }
}

/// A new key found no room in a [`Keyed`]: it is full, and no entry that was checked could be evicted. Waiting does not
/// help by itself.
///
/// ```
/// # use tollgate::{Keyed, Semaphore};
/// let tenants = Keyed::new(1, |_: &u32| Semaphore::new(1));
/// let busy = tenants.get(&1).unwrap();
/// let permit = busy.try_acquire().unwrap();
/// let error = tenants.get(&2).unwrap_err();
/// assert_eq!(error.to_string(), "no room for another key beside 1");
/// # drop(permit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeysFull {
    /// The most keys that the map may hold.
    pub max_entries: usize,
}

impl fmt::Display for KeysFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no room for another key beside {}", self.max_entries)
    }
}

impl std::error::Error for KeysFull {}

/// As `Saturated`, by the leg `keyed`.
impl From<KeysFull> for Refusal {
    fn from(_: KeysFull) -> Self {
        Refusal::new(Reason::Saturated, "keyed", Wait::EVENT)
    }
}
