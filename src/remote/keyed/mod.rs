//! A policy of rates, windows and permits for each of many keys, at a store that all processes share: one step of the store an
//! admission.

mod builder;
mod client;
mod driver;
mod held;
mod key;
mod legs;
mod levels;
mod limits;
mod permit;
mod reserved;
mod stats;
mod usage;

use self::client::Client;
use self::legs::Legs;
use self::levels::{Level, Tiers};
use super::backend::Backend;
use super::error::RemoteError;
use super::key::Key;
use super::limiter::Remote;
use super::memory::Memory;
use crate::sync::unwind::quietly;
use crate::sync::wake::wake_all;
use crate::time::Clock;
pub use builder::{ManyKeys, RemoteKeyedBuilder};
pub use key::RemoteKey;
pub use limits::{KeyedLimits, RemoteLeg};
use parking_lot::Mutex;
pub use permit::{RemoteKeyPermit, RemoteKeyTicket};
pub use stats::RemoteKeyedStats;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
pub use usage::RemoteKeyUsage;

/// A policy for each of many keys, such as tenants, that is kept in a store and that all processes share.
///
/// The legs of a key are semaphores, token buckets and sliding windows, of calls or of [costs](crate::Cost). One step of the store takes from all of
/// them, or from none, and names the leg that admits last and the instant at which it does. One connection and one
/// [driver](super::Driver) serve any number of keys.
///
/// The legs are those of [`KeyedLimits`]: a tier for most keys, and others for some.
///
/// # Bounds
/// In any span `t` all processes together take at most `burst + rate x t` of a bucket, and at most the limit of a window in any
/// span of its length. A window counts in 64 segments, so that units come back up to one segment late. What is [given
/// back](crate::Limiter::cancel) or [settled](crate::Permit::settle) to less comes back as far as it has not come back by itself. Of a semaphore all
/// processes together hold at most its limit, as long as leases are honoured: see [`is_lost`](RemoteKeyPermit::is_lost).
///
/// # Cost
/// An admission is one step of the store, a refusal too; a settlement, a cancellation or the end of a permit is another. A key with
/// permits in use or with waiters for them is renewed three times in a [time to live](RemoteKeyedBuilder::ttl). While the store has said that a leg
/// does not admit some units before an instant, this process does not ask for as many again: for more of a rate not before its own
/// instant, for more of a window not before that one. What this process gives back ends that, and so does a time to live. Asks for one key that come while a step at that
/// key is under way travel together in the next one.
///
/// # Memory
/// A key is known here while a step is under way, a permit is held or awaited, or a refusal holds, and at most the `max_keys` keys of [`KeyedLimits::new`]: another one is
/// refused as [`QueueFull`](crate::Reason::QueueFull) then. The store forgets a key once all that was taken has come back.
///
/// # Outages
/// A step is repeated for at least twice the time until the store is unavailable. What was to be given back in a longer outage
/// comes back by itself, at the pace of its leg.
///
/// A key whose steps fail for that time is unavailable by itself: a row may be locked, or one server of a cluster dead. The store is
/// unavailable for all keys when no step of any was answered for that time, and those of two keys or more have failed. Then the ask of one
/// other key at a time still goes to the store, to find out whether it is back; the others are refused, or
/// [admitted](super::OnUnavailable::Admit), at once. A key that the store refuses for good, such as one that holds a value of another type, is
/// refused as [`Misconfigured`](crate::Reason::Misconfigured), and no other key is.
///
/// # Fairness
/// Asks that a process makes for one key reach the store in order. Those of several processes are decided as they arrive. With a
/// semaphore the first waiter of each process has a place in the queue of the key, which other asks for its permits do not overtake.
/// Without one no waiter has a place at the store: the first to ask at the instant that it named is admitted. Requests that wait in
/// a [`Policy`](crate::Policy) around a [`RemoteKey`] keep their order within this process.
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
/// # use tollgate::{Ask, Cost, ManualClock, Quota};
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let legs = [
///     RemoteLeg::rate("requests", Quota::per_minute(60).burst(10)),
///     RemoteLeg::rate("tokens", Quota::per_minute(6_000).burst(1_000)).per(TOKENS),
/// ];
/// let limits = KeyedLimits::new(100_000, "free", legs);
/// let tenants = Remote::keyed(Key::new("tenants")?, limits).on(&clock).in_place(store)?;
/// clock.run(async {
///     let acme = tenants.get("acme").unwrap();
///     let mut permit = acme.acquire_now(Ask::one().cost(TOKENS, 900)).await.unwrap();
///     let refused = acme.acquire_now(Ask::one().cost(TOKENS, 400)).await.unwrap_err();
///     assert_eq!((refused.leg(), refused.retry_after()), ("tokens", Some(Duration::from_secs(3))));
///
///     // It took less than was thought.
///     permit.settle(TOKENS, 100).unwrap();
///     assert!(acme.acquire_now(Ask::one().cost(TOKENS, 800)).await.is_ok());
///     assert!(tenants.get("another").unwrap().acquire_now(Ask::one().cost(TOKENS, 1_000)).await.is_ok());
/// });
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
pub struct RemoteKeyed<B: Backend> {
    handles: Arc<Handles<B>>,
}

struct Shared<B> {
    client: Mutex<Client>,
    backend: B,
    clock: Clock,
    name: Key,
    reserves: bool,
    levels: Mutex<Arc<Vec<Level>>>,
}

/// All handles and permits: when the last is gone, the driver ends.
struct Handles<B: Backend>(Arc<Shared<B>>);

impl<B> Shared<B> {
    /// Changes the client, and wakes once it is unlocked.
    fn with<R>(&self, change: impl FnOnce(&mut Client) -> R) -> R {
        let mut client = self.client.lock();
        let result = change(&mut client);
        let (wakers, aborts) = client.take_wakers();
        let stale = client.take_stale();
        drop(client);
        drop(stale);
        aborts.iter().for_each(|listening| quietly(|| listening.abort()));
        wake_all(wakers);
        result
    }
}

impl<B: Backend> Drop for Handles<B> {
    fn drop(&mut self) {
        self.0.with(Client::close);
    }
}

impl Remote<Memory> {
    /// Rates, windows and permits for each key, as `limits` say. `name` comes before the keys at the store. See [`RemoteKeyed`].
    pub fn keyed(name: Key, limits: KeyedLimits) -> RemoteKeyedBuilder {
        Self::levels(name, [("", limits)])
    }

    /// Policies for keys of several levels, such as organisations, teams and users, of which [one step of the
    /// store](RemoteKeyed::get_all) decides on some together.
    ///
    /// Each level has its name, and the tiers of its keys. `name` comes before all of them at the store. In a cluster of Redis it is the
    /// hash tag: all keys of all levels lie in **one slot**, on one server.
    ///
    /// # Errors
    /// Found when it is built: [`RemoteError::Level`] for a name that is given twice, or that has a `:` or `/`;
    /// [`RemoteError::Keyed`] for permits at more than one level, and for more than [`KeyLeg::MOST`](super::KeyLeg::MOST) legs at all levels together.
    ///
    /// ```
    /// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
    /// # use tollgate::{ManualClock, Quota};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let level = |burst| {
    ///     let requests = RemoteLeg::rate("requests", Quota::per_second(1).burst(burst));
    ///     KeyedLimits::new(1_000, "all", [requests])
    /// };
    /// let levels = [("organisation", level(3)), ("user", level(2))];
    /// let limits = Remote::levels(Key::new("calls")?, levels).on(&clock).in_place(Memory::new(&clock))?;
    /// clock.run(async {
    ///     let ann = limits.get_all(&[("organisation", "acme"), ("user", "ann")]).unwrap();
    ///     let bob = limits.get_all(&[("organisation", "acme"), ("user", "bob")]).unwrap();
    ///     assert!(ann.acquire_now(2).await.is_ok());
    ///     // Nothing is taken from bob.
    ///     let refused = bob.acquire_now(2).await.unwrap_err();
    ///     assert_eq!((refused.leg(), refused.retry_after()), ("organisation/requests", Some(Duration::from_secs(1))));
    ///     assert_eq!(bob.key_of(refused.leg()).unwrap().as_str(), "calls:organisation:acme");
    ///     assert!(bob.acquire_now(1).await.is_ok());
    /// });
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn levels<L: Into<Box<str>>>(
        name: Key,
        levels: impl IntoIterator<Item = (L, KeyedLimits)>,
    ) -> RemoteKeyedBuilder {
        let levels = levels.into_iter().map(|(level, limits)| (level.into(), limits));
        RemoteKeyedBuilder::keyed(name, levels.collect())
    }
}

impl<B: Backend> RemoteKeyed<B> {
    /// Refuses all requests from now on, and sends what is still to be sent: settlements, what was given back, and permits that are held,
    /// which are lost. What permits have reserved and not used counts as used. Ends when the store has carried it out, or does not answer. Without it, a program that ends right after its last
    /// settlement leaves more charged than it used.
    ///
    /// The [driver](super::Driver) has to run meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future does not open the limiter again. What is to be sent is sent as long as the driver runs.
    pub async fn close(&self) {
        let shared = &self.handles.0;
        shared.with(Client::close);
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (stopped, _waker) = shared.with(|client| client.poll_stopped(waker));
            if stopped { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The limiter of `key`. No round trip, and nothing is kept for a key that is not asked for.
    ///
    /// It has the policy of the key's tier as of now: get it anew for each request where the tiers may [change](Self::apply).
    ///
    /// # Errors
    /// [`RemoteError::Key`] when the name, a colon and the key are no [`Key`]; [`RemoteError::Level`] with [levels](Remote::levels).
    pub fn get(&self, key: &str) -> Result<RemoteKey<B>, RemoteError> {
        let shared = &self.handles.0;
        let levels = Arc::clone(&shared.levels.lock());
        let level = &levels[Level::position(&levels, "")?];
        Ok(RemoteKey {
            key: Key::new(format!("{}:{key}", shared.name))?,
            legs: Arc::clone(level.tiers.legs(key)),
            handles: Arc::clone(&self.handles),
        })
    }

    /// The limiter of keys of several [levels](Remote::levels), each with the name of its level: one step takes from all legs of all of
    /// them, or from none. With one key it is that of an operator, for its usage.
    ///
    /// The names of its legs are `level/leg`, in refusals, in the usage, and in grants; [`RemoteKey::key_of`] has the key of a leg.
    ///
    /// Steps of one process run beside each other unless they have the same *own* key: that of the level with semaphores, or else of the
    /// last level that is given, in the order of [`Remote::levels`]. So let the last level be the finest. Permits, their lease, and
    /// the queue are those of the own key.
    ///
    /// While a leg at another key refuses, this process asks again each time: other keys may have given back.
    ///
    /// # Errors
    /// [`RemoteError::Level`] for a level that is unknown or given twice, and for none; [`RemoteError::Key`] when the name, the level and
    /// the key, with colons between, are no [`Key`].
    pub fn get_all(&self, keys: &[(&str, &str)]) -> Result<RemoteKey<B>, RemoteError> {
        let shared = &self.handles.0;
        let levels = Arc::clone(&shared.levels.lock());
        let mut given: Vec<Option<(Key, &Arc<Legs>)>> = vec![None; levels.len()];
        let mut own: Option<(bool, usize)> = None;
        for &(name, key) in keys {
            let at = Level::position(&levels, name)?;
            let level = &levels[at];
            let full = shared.name.with(&format!(":{name}:{key}"))?;
            if given[at].replace((full, level.tiers.legs(key))).is_some() {
                return Err(Level::error(name, "each level once"));
            }
            own = own.max(Some((level.tiers.have_permits(), at)));
        }
        let Some((_, own)) = own else {
            return Err(Level::error("", "one or more"));
        };
        let parts = given.iter().enumerate().filter_map(|(at, given)| {
            let (key, legs) = given.as_ref()?;
            Some((&*levels[at].name, (at != own).then(|| key.clone()), &***legs))
        });
        let legs = Arc::new(Legs::of_levels(parts));
        let key = given[own].take().map(|(key, _)| key);
        Ok(RemoteKey {
            key: key.ok_or_else(|| Level::error("", "one or more"))?,
            legs,
            handles: Arc::clone(&self.handles),
        })
    }

    /// Puts other tiers in force, for keys that are got from now on. What was taken stays taken at the legs of the same name
    /// and kind. The bound of keys stays as it was built.
    ///
    /// # Errors
    /// [`RemoteError::Keyed`] when a leg has numbers that stores do not count: nothing has changed then.
    pub fn apply(&self, limits: &KeyedLimits) -> Result<(), RemoteError> {
        self.apply_to("", limits)
    }

    /// Puts other tiers of one [level](Remote::levels) in force, as [`apply`](Self::apply) does.
    ///
    /// # Errors
    /// As `apply`, and as [`Remote::levels`]: nothing has changed then.
    pub fn apply_to(&self, level: &str, limits: &KeyedLimits) -> Result<(), RemoteError> {
        let levels = &self.handles.0.levels;
        let before = Arc::clone(&levels.lock());
        let mut after = Vec::clone(&before);
        let level = &mut after[Level::position(&before, level)?];
        level.tiers = Arc::new(Tiers::of(limits, Some(&level.tiers))?);
        Level::check(&after)?;
        let replaced = std::mem::replace(&mut *levels.lock(), Arc::new(after));
        drop(replaced);
        Ok(())
    }

    /// What it holds and has done. Goes through the keys that are known in this process; no round trip.
    pub fn stats(&self) -> RemoteKeyedStats {
        let shared = &self.handles.0;
        let now = shared.clock.now();
        shared.with(|client| RemoteKeyedStats::of(client, now))
    }
}

impl<B: Backend> Clone for RemoteKeyed<B> {
    fn clone(&self) -> Self {
        Self {
            handles: Arc::clone(&self.handles),
        }
    }
}

impl<B: Backend> fmt::Debug for RemoteKeyed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKeyed")
            .field("name", &self.handles.0.name)
            .field("keys", &self.handles.0.with(|client| client.len()))
            .finish_non_exhaustive()
    }
}
