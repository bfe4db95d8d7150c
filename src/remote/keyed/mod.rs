//! A policy of rates, windows and permits for each of many keys, at a store that all processes share: one step of the store an
//! admission.

mod client;
mod driver;
mod held;
mod legs;
mod reserved;
mod usage;

use self::client::{Client, Config, End};
use self::legs::Legs;
use self::reserved::Charge;
use super::backend::Backend;
use super::builder::{LONGEST, SHORTEST};
use super::config::{MAX_UNITS, OnUnavailable};
use super::driver::Driver;
use super::error::RemoteError;
use super::key::Key;
use super::limiter::Remote;
use super::memory::Memory;
use super::random;
use super::settings::{check, runtime};
use super::step::{KeyLeg, LegUnits};
use crate::core::ask::{Ask, Cost, Demand};
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::core::ticket::Ticket;
use crate::policy::spec::{KeyTier, KeyedSpec, SpecError};
use crate::sync::wait_queue::{Permits, QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::sync::wake::{PanicCollector, wake_all};
use crate::time::{Clock, ClockReading, Instant, Sleep};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
pub use usage::RemoteKeyUsage;

/// A policy for each of many keys, such as tenants, that is kept in a store and that all processes share.
///
/// The legs of a key are semaphores, token buckets and sliding windows, of calls or of [costs](Cost). One step of the store takes from all of
/// them, or from none, and names the leg that admits last and the instant at which it does. One connection and one
/// [driver](Driver) serve any number of keys.
///
/// The policies are those of a [`KeyedSpec`], which may come from the file of a service: a tier for most keys, and others for some.
///
/// # Bounds
/// In any span `t` all processes together take at most `burst + rate x t` of a bucket, and at most the limit of a window in any
/// span of its length. A window counts in 64 segments, so that units come back up to one segment late. What is [given
/// back](Limiter::cancel) or [settled](Permit::settle) to less comes back as far as it has not come back by itself. Of a semaphore all
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
/// A key is known here while a step is under way, a permit is held or awaited, or a refusal holds, and no key beyond [`KeyedSpec::max_keys`]: another one is
/// refused as [`QueueFull`](Reason::QueueFull) then. The store forgets a key once all that was taken has come back.
///
/// # Outages
/// A step is repeated for at least twice the time until the store is unavailable. What was to be given back in a longer outage
/// comes back by itself, at the pace of its leg.
///
/// # Fairness
/// Asks that a process makes for one key reach the store in order. Those of several processes are decided as they arrive. With a
/// semaphore the first waiter of each process has a place in the queue of the key, which other asks for its permits do not overtake.
/// Without one no waiter has a place at the store: the first to ask at the instant that it named is admitted. Requests that wait in
/// a [`Policy`](crate::Policy) around a [`RemoteKey`] keep their order within this process.
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::{Ask, Cost, ManualClock};
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let tenant = PolicySpec::new([
///     LegSpec::new("requests", LegRule::token_bucket("60/min burst 10".parse()?)),
///     LegSpec::new("tokens", LegRule::token_bucket("6000/min burst 1000".parse()?)).per("tokens"),
/// ]);
/// let spec = KeyedSpec::new(100_000, "free", tenant);
/// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(store)?;
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
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

/// Keys of one kind, such as organisations. A limiter without levels has one, with the empty name.
#[derive(Clone)]
struct Level {
    name: Box<str>,
    tiers: Arc<Tiers>,
}

/// All handles and permits: when the last is gone, the driver ends.
struct Handles<B: Backend>(Arc<Shared<B>>);

/// The legs by tier.
struct Tiers {
    named: BTreeMap<String, Arc<Legs>>,
    default: Arc<Legs>,
    keys: BTreeMap<String, Arc<Legs>>,
}

impl Tiers {
    /// The tiers of `spec`. Legs that are as they were stay the same, with what is known of them.
    fn of(spec: &KeyedSpec, before: Option<&Self>) -> Result<Self, SpecError> {
        let same = |known: Option<&Arc<Legs>>, legs: Legs| match known {
            Some(known) if **known == legs => Arc::clone(known),
            _ => Arc::new(legs),
        };
        spec.check("keys", &BTreeMap::new())?;
        let mut named = BTreeMap::new();
        for (tier, policy) in &spec.tiers {
            let legs = Legs::of(policy).map_err(|error| error.within(&["tier", tier]))?;
            let known = before.and_then(|before| before.named.get(tier));
            named.insert(tier.clone(), same(known, legs));
        }
        let mut keys = BTreeMap::new();
        for (key, tier) in &spec.keys {
            let legs = match tier {
                KeyTier::Named(tier) => Arc::clone(&named[tier]),
                KeyTier::Own(policy) => {
                    let legs = Legs::of(policy).map_err(|error| error.within(&["keys", key]))?;
                    same(before.and_then(|before| before.keys.get(key)), legs)
                }
            };
            keys.insert(key.clone(), legs);
        }
        Ok(Self {
            default: Arc::clone(&named[&spec.default]),
            named,
            keys,
        })
    }

    fn legs(&self, key: &str) -> &Arc<Legs> {
        self.keys.get(key).unwrap_or(&self.default)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Legs>> {
        self.named.values().chain(self.keys.values())
    }

    fn have_permits(&self) -> bool {
        self.all().any(|legs| legs.has_permits())
    }
}

impl Level {
    fn error(given: &str, known: impl Into<Box<str>>) -> RemoteError {
        let (given, known) = (given.into(), known.into());
        RemoteError::Level { given, known }
    }

    /// Checks that one step can decide on all levels.
    fn check(levels: &[Self]) -> Result<(), RemoteError> {
        for (at, level) in levels.iter().enumerate() {
            let others = levels[..at].iter();
            if levels.len() > 1 && level.name.is_empty() || level.name.contains([':', '/']) {
                return Err(Self::error(&level.name, "a name without `:` and `/`"));
            }
            if others.clone().any(|other| other.name == level.name) {
                return Err(Self::error(&level.name, "each name once"));
            }
            if level.tiers.have_permits() && others.clone().any(|other| other.tiers.have_permits()) {
                let fault = "`semaphore` was given at a second level, and one step holds permits at one of them";
                return Err(SpecError::new("kind", fault).within(&["level", &level.name]).into());
            }
        }
        let most = |level: &Self| level.tiers.all().map(|legs| legs.counted.len()).max();
        let given: usize = levels.iter().filter_map(most).sum();
        if given > KeyLeg::MOST {
            let fault = format!(
                "{given} were given at all levels, and 1 to {} are allowed",
                KeyLeg::MOST
            );
            return Err(SpecError::new("leg", fault).into());
        }
        Ok(())
    }

    fn position(levels: &[Self], name: &str) -> Result<usize, RemoteError> {
        let found = levels.iter().position(|level| *level.name == *name);
        found.ok_or_else(|| {
            let known: Vec<_> = levels.iter().map(|level| format!("`{}`", level.name)).collect();
            Self::error(name, known.join(", "))
        })
    }
}

impl<B> Shared<B> {
    /// Changes the client, and wakes and notifies once it is unlocked.
    fn with<R>(&self, change: impl FnOnce(&mut Client) -> R) -> R {
        let mut client = self.client.lock();
        let result = change(&mut client);
        let (wakers, notifies, aborts) = client.take_wakers();
        drop(client);
        if !wakers.is_empty() || !notifies.is_empty() || !aborts.is_empty() {
            let mut panics = PanicCollector::default();
            aborts.iter().for_each(|listening| panics.run(|| listening.abort()));
            panics.run(|| wake_all(wakers));
            notifies.iter().for_each(|notify| panics.run(|| notify.notify_all()));
            panics.end();
        }
        result
    }
}

impl<B: Backend> Drop for Handles<B> {
    fn drop(&mut self) {
        self.0.with(Client::close);
    }
}

impl Remote<Memory> {
    /// A policy of rates, windows and permits for each key, as `spec` says. `name` comes before the keys at the store. See
    /// [`RemoteKeyed`].
    pub fn keyed(name: Key, spec: KeyedSpec) -> RemoteKeyedBuilder {
        Self::levels(name, [("", spec)])
    }

    /// Policies for keys of several levels, such as organisations, teams and users, of which [one step of the
    /// store](RemoteKeyed::get_all) decides on some together.
    ///
    /// Each level has its name, and the tiers of its keys. `name` comes before all of them at the store. In a cluster of Redis it is the
    /// hash tag: all keys of all levels lie in **one slot**, on one server.
    ///
    /// # Errors
    /// Found when it is built: [`RemoteError::Level`] for a name that is given twice, or that has a `:` or `/`;
    /// [`RemoteError::Spec`] for semaphores at more than one level, and for more than [`KeyLeg::MOST`] legs at all levels together.
    ///
    /// ```
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::ManualClock;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let level = |quota: &str| {
    ///     let requests = LegSpec::new("requests", LegRule::token_bucket(quota.parse()?));
    ///     Ok::<_, tollgate::QuotaError>(KeyedSpec::new(1_000, "all", PolicySpec::new([requests])))
    /// };
    /// let levels = [("organisation", level("1/s burst 3")?), ("user", level("1/s burst 2")?)];
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn levels<L: Into<Box<str>>>(
        name: Key,
        levels: impl IntoIterator<Item = (L, KeyedSpec)>,
    ) -> RemoteKeyedBuilder {
        RemoteKeyedBuilder {
            name,
            levels: levels.into_iter().map(|(level, spec)| (level.into(), spec)).collect(),
            clock: Clock::real(),
            ttl: Duration::from_secs(10),
            timeout: None,
            retry: Duration::from_millis(200),
            on_unavailable: OnUnavailable::default(),
            unavailable_after: Duration::from_secs(3),
            reserves: false,
        }
    }
}

/// The settings of a [`RemoteKeyed`]. All have defaults; one out of range is found when it is built.
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::ManualClock;
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let policy = |rule: LegRule| PolicySpec::new([LegSpec::new("leg", rule)]);
/// let keyed = |rule| Remote::keyed(Key::new("tenants").unwrap(), KeyedSpec::new(10, "all", policy(rule))).on(&clock);
/// assert!(keyed(LegRule::token_bucket("10/s".parse()?)).in_place(Memory::new(&clock)).is_ok());
/// let error = keyed(LegRule::fixed_window(3, Duration::from_secs(1))).in_place(Memory::new(&clock)).unwrap_err();
/// assert!(error.to_string().contains("a store counts `semaphore`, `sliding-window` and `token-bucket`"));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is limited before it is built"]
pub struct RemoteKeyedBuilder {
    name: Key,
    levels: Vec<(Box<str>, KeyedSpec)>,
    clock: Clock,
    ttl: Duration,
    timeout: Option<Duration>,
    retry: Duration,
    on_unavailable: OnUnavailable,
    unavailable_after: Duration,
    reserves: bool,
}

impl RemoteKeyedBuilder {
    /// The clock by which waits and time-outs are measured here; the real one unless set. The store counts by its own.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// How long the store keeps permits, and places of waiters, of a process that it does not hear of: 50 ms to a day, ten seconds unless
    /// set. A process renews those of a key three times in it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the store may take to answer before a step is repeated: up to half a time to live; unless set a second, or that half if it
    /// is less.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long after a failure a step is repeated: up to a day, 200 ms unless set.
    pub fn retry(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    /// What happens to requests while the store is unavailable; they are refused unless set. There are no
    /// [shares](OnUnavailable::Share) of keys.
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// How long the store may fail before it counts as unavailable: up to a day, three seconds unless set.
    pub fn unavailable_after(mut self, patience: Duration) -> Self {
        self.unavailable_after = patience;
        self
    }

    /// Whether an admission *reserves* what it takes of windows; unless set, it uses it.
    ///
    /// A reservation is used as it is [spent](RemoteKeyPermit::spend), and when its permit ends. What of it is not used goes back when the store has not
    /// heard of the process for a [time to live](Self::ttl), and at most a quarter of it more. A key with reservations is renewed as one with permits.
    ///
    /// **Over-admission**: a process that cannot reach the store for so long keeps its reservations, and the store gives them away. Once it
    /// is heard of again, they count once more.
    ///
    /// ```
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::{Ask, Cost, ManualClock};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// const TOKENS: Cost = Cost::new("tokens");
    /// let clock = ManualClock::new();
    /// let store = Arc::new(Memory::new(&clock));
    /// let day = LegSpec::new("tokens", LegRule::sliding_window(1_000, Duration::from_secs(86_400))).per("tokens");
    /// let spec = KeyedSpec::new(100, "free", PolicySpec::new([day]));
    /// let process = || Remote::keyed(Key::new("tenants").unwrap(), spec.clone()).reserves(true).on(&clock);
    /// let (dying, mut driver) = process().build(Arc::clone(&store))?;
    /// let other = process().in_place(store)?.get("acme")?;
    /// clock.run(async {
    ///     let acme = dying.get("acme").unwrap();
    ///     let ask = Box::pin(acme.acquire_now(Ask::one().cost(TOKENS, 900)));
    ///     let futures::future::Either::Left((permit, _)) = futures::future::select(ask, &mut driver).await else { panic!() };
    ///     // Its process dies: nothing is sent any more.
    ///     std::mem::forget((permit.unwrap(), driver));
    ///     clock.advance(Duration::from_secs(9));
    ///     assert!(other.acquire_now(Ask::one().cost(TOKENS, 200)).await.is_err());
    ///     // Its lease ends, and this process does not rely on a refusal for longer than that.
    ///     clock.advance(Duration::from_secs(10));
    ///     assert!(other.acquire_now(Ask::one().cost(TOKENS, 200)).await.is_ok());
    /// });
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn reserves(mut self, reserves: bool) -> Self {
        self.reserves = reserves;
        self
    }

    /// Builds the limiter, and the [`Driver`] that has to be run for it.
    ///
    /// # Errors
    /// [`RemoteError`] when a setting is out of range, a leg is of a kind that stores do not count, or this store cannot do it.
    ///
    /// ```
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, OnUnavailable, Remote};
    /// # use tollgate::ManualClock;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let free = |limit| KeyedSpec::new(1_000, "free", PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(limit))]));
    /// let tenants = Remote::keyed(Key::new("tenants")?, free(1))
    ///     .ttl(Duration::from_secs(10))
    ///     .timeout(Duration::from_secs(1))
    ///     .retry(Duration::from_millis(100))
    ///     .unavailable_after(Duration::from_secs(2))
    ///     .on_unavailable(OnUnavailable::Reject)
    ///     .on(&clock)
    ///     .in_place(Memory::new(&clock))?;
    /// let acme = tenants.get("acme")?;
    /// clock.run(async { assert!(acme.acquire_now(2).await.is_err()) });
    /// tenants.apply(&free(2))?; // Another version.
    /// let acme = tenants.get("acme")?;
    /// clock.run(async { assert!(acme.acquire_now(2).await.is_ok()) });
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn build<B: Backend>(self, backend: B) -> Result<(RemoteKeyed<B>, Driver), RemoteError> {
        check("time to live", self.ttl, (SHORTEST, LONGEST))?;
        let timeout = self.timeout.unwrap_or(Duration::from_secs(1).min(self.ttl / 2));
        check("time-out", timeout, (SHORTEST / 2, self.ttl / 2))?;
        check("retry", self.retry, (Duration::from_millis(1), LONGEST))?;
        let name = "time until the store is unavailable";
        check(name, self.unavailable_after, (Duration::ZERO, LONGEST))?;
        if matches!(self.on_unavailable, OnUnavailable::Share { .. }) {
            return Err(RemoteError::Unsupported {
                what: "shares of many keys",
                store: "a limiter of many keys",
            });
        }
        let level = |(name, spec): &(Box<str>, KeyedSpec)| {
            let (tiers, name) = (Arc::new(Tiers::of(spec, None)?), name.clone());
            Ok(Level { name, tiers })
        };
        let levels = self.levels.iter().map(level).collect::<Result<Vec<_>, SpecError>>()?;
        if levels.is_empty() {
            return Err(Level::error("", "one or more"));
        }
        Level::check(&levels)?;
        let max_keys = self.levels.iter().map(|(_, spec)| spec.max_keys);
        backend.supports_steps()?;
        let config = Config {
            client: random::number(),
            max_keys: max_keys.fold(0, usize::saturating_add),
            ttl: self.ttl,
            timeout,
            retry: self.retry,
            on_unavailable: self.on_unavailable,
            unavailable_after: self.unavailable_after,
            reserves: self.reserves,
        };
        let shared = Arc::new(Shared {
            client: Mutex::new(Client::new(config, &self.clock)),
            backend,
            clock: self.clock,
            name: self.name,
            reserves: self.reserves,
            levels: Mutex::new(Arc::new(levels)),
        });
        let driver = Driver::new(driver::drive(Arc::clone(&shared)));
        let handles = Arc::new(Handles(shared));
        Ok((RemoteKeyed { handles }, driver))
    }

    /// Builds the limiter, and runs its driver as a task of the tokio runtime that is current.
    ///
    /// # Errors
    /// As [`build`](Self::build), and when there is no runtime.
    pub fn spawn<B: Backend>(self, backend: B) -> Result<RemoteKeyed<B>, RemoteError> {
        let runtime = runtime()?;
        let (keyed, driver) = self.build(backend)?;
        runtime.spawn(driver);
        Ok(keyed)
    }

    /// Builds the limiter, and runs its driver [in place](Driver::in_place): for stores that answer at once.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn in_place<B: Backend>(self, backend: B) -> Result<RemoteKeyed<B>, RemoteError> {
        let (keyed, driver) = self.build(backend)?;
        driver.in_place();
        Ok(keyed)
    }
}

impl<B: Backend> RemoteKeyed<B> {
    /// Refuses all requests from now on, and sends what is still to be sent: settlements, what was given back, and permits that are held,
    /// which are lost. Ends when the store has carried it out, or does not answer. Without it, a program that ends right after its last
    /// settlement leaves more charged than it used.
    ///
    /// The [driver](Driver) has to run meanwhile.
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
}

impl<B: Backend> RemoteKeyed<B> {
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
    /// [`RemoteError::Spec`] when a leg is of a kind that stores do not count: nothing has changed then.
    pub fn apply(&self, spec: &KeyedSpec) -> Result<(), RemoteError> {
        self.apply_to("", spec)
    }

    /// Puts other tiers of one [level](Remote::levels) in force, as [`apply`](Self::apply) does.
    ///
    /// # Errors
    /// As `apply`, and as [`Remote::levels`]: nothing has changed then.
    pub fn apply_to(&self, level: &str, spec: &KeyedSpec) -> Result<(), RemoteError> {
        let levels = &self.handles.0.levels;
        let before = Arc::clone(&levels.lock());
        let mut after = Vec::clone(&before);
        let level = &mut after[Level::position(&before, level)?];
        level.tiers = Arc::new(Tiers::of(spec, Some(&level.tiers))?);
        Level::check(&after)?;
        let replaced = std::mem::replace(&mut *levels.lock(), Arc::new(after));
        drop(replaced);
        Ok(())
    }

    /// The keys that are known in this process.
    pub fn keys_in_memory(&self) -> usize {
        self.handles.0.with(|client| client.len())
    }

    /// The store.
    pub fn backend(&self) -> &B {
        &self.handles.0.backend
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
            .field("keys_in_memory", &self.keys_in_memory())
            .finish_non_exhaustive()
    }
}

/// One key of a [`RemoteKeyed`]: a [`Limiter`] over all its legs. A handle.
///
/// `try_admit` never asks the store, and so refuses; [`acquire_now`](Self::acquire_now) asks it. In a [`Policy`](crate::Policy),
/// also beside other legs, `admit` does. When a later leg refuses, the units go back, and are asked for again in their turn.
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let free = PolicySpec::new([LegSpec::new("calls", LegRule::token_bucket("1/s burst 2".parse()?))]);
/// let spec = KeyedSpec::new(1_000, "free", free);
/// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(Memory::new(&clock))?;
/// let acme = tenants.get("acme")?;
/// clock.run(async {
///     assert!(acme.acquire_now(2).await.is_ok());
///     assert_eq!(acme.acquire_now(1).await.unwrap_err().leg(), "calls");
///     acme.grant("calls", 1).await?; // By an operator.
///     assert!(acme.acquire(1).await.is_ok());
///     acme.reset().await?;
///     assert!(acme.usage().await?.legs().count() == 1 && acme.key_of("calls").is_some());
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RemoteKey<B: Backend> {
    handles: Arc<Handles<B>>,
    key: Key,
    legs: Arc<Legs>,
}

/// A permit of a [`RemoteKey`]. What it holds of semaphores goes back when it is dropped; [`settle`](Permit::settle) corrects the cost of
/// rates and windows.
pub type RemoteKeyPermit<B> = Permit<RemoteKey<B>>;

/// The ticket of a [`RemoteKey`].
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate::remote::{Memory, RemoteKey, RemoteKeyTicket};
/// fn is_ticket<L: Limiter<Ticket = RemoteKeyTicket>>() -> bool {
///     true
/// }
/// assert!(is_ticket::<RemoteKey<Memory>>());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RemoteKeyTicket {
    /// When the units were taken, by the store's clock; [`UNCOUNTED`] for an admission that is not counted.
    at: u64,
    /// The number of the lease of its permits; zero without any.
    lease: u64,
    units: LegUnits,
    /// What of them is used for certain.
    spent: LegUnits,
}

impl RemoteKeyTicket {
    fn charge(&self) -> Charge {
        Charge {
            units: self.units,
            spent: self.spent,
        }
    }
}

const UNCOUNTED: u64 = u64::MAX;

impl Ticket for RemoteKeyTicket {
    const WORDS: usize = 2 + 2 * KeyLeg::MOST;

    fn write(&self, words: &mut [u64]) {
        words[..2].copy_from_slice(&[self.at, self.lease]);
        words[2..2 + KeyLeg::MOST].copy_from_slice(&self.units);
        words[2 + KeyLeg::MOST..Self::WORDS].copy_from_slice(&self.spent);
    }

    fn read(words: &[u64]) -> Self {
        let (mut units, mut spent) = (LegUnits::default(), LegUnits::default());
        units.copy_from_slice(&words[2..2 + KeyLeg::MOST]);
        spent.copy_from_slice(&words[2 + KeyLeg::MOST..Self::WORDS]);
        Self {
            at: words[0],
            lease: words[1],
            units,
            spent,
        }
    }
}

/// A wait for the store's answer, which ends when this is dropped.
struct Asking<'a, B: Backend> {
    shared: &'a Shared<B>,
    number: u64,
}

impl<B: Backend> Drop for Asking<'_, B> {
    fn drop(&mut self) {
        let waker = self.shared.with(|client| client.leave(self.number));
        drop(waker);
    }
}

/// A watch for the loss of a lease, which ends when this is dropped.
struct Watching<'a, B: Backend> {
    key: &'a RemoteKey<B>,
    number: Option<u64>,
}

impl<B: Backend> Drop for Watching<'_, B> {
    fn drop(&mut self) {
        let shared = &self.key.handles.0;
        let unwatch = |number| shared.with(|client| client.unwatch(&self.key.key, number));
        drop(self.number.map(unwatch));
    }
}

impl<B: Backend> RemoteKey<B> {
    /// Asks the store for all units of `ask`, and waits only for the reply.
    ///
    /// # Errors
    /// `RateExceeded` with the leg and the instant at which it admits; `Saturated` with the leg whose permits are in use, or awaited;
    /// `Oversized`, `Unpriced`, `Unavailable` while the store is unavailable, or when the permits were lost before they were handed out,
    /// `QueueFull` when this process knows as many keys as it may, `Closed`.
    ///
    /// # Cancel safety
    /// It may be dropped at any point. What it was granted goes back.
    pub async fn acquire_now(&self, ask: impl Into<Ask>) -> Result<RemoteKeyPermit<B>, Refusal<'_>> {
        let (ask, now) = (ask.into(), self.now());
        let units = self.units_of(&ask)?;
        if let Some(refusal) = self.refused(&units, now) {
            return Err(refusal);
        }
        self.ask(units, false).await
    }

    /// Waits for the store's answer, or with `queued` for the permits in turn.
    async fn ask(&self, units: LegUnits, queued: bool) -> Result<RemoteKeyPermit<B>, Refusal<'_>> {
        let now = self.now();
        let join = |client: &mut Client, number, waker| {
            client.join(number, queued, &self.key, &self.legs, units, waker, now);
        };
        let end = self.wait(join).await;
        let ticket = self.ended(end, units, self.now())?;
        Ok(Permit::new(self.clone(), ticket))
    }

    /// Waits for the end of what `join` begins at the first poll, with the number of the wait.
    async fn wait(&self, join: impl FnOnce(&mut Client, u64, Waker)) -> End {
        let shared = &*self.handles.0;
        let mut join = Some(join);
        let mut asking: Option<Asking<'_, B>> = None;
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (end, old) = match (&asking, join.take()) {
                (None, Some(join)) => {
                    let number = shared.with(Client::next_wait);
                    // First of all the wait has an owner: a waker that panics leaves nothing behind.
                    asking = Some(Asking { shared, number });
                    shared.with(|client| join(client, number, waker));
                    // A store that answers at once has answered.
                    shared.with(|client| client.poll(number, None))
                }
                (Some(asking), _) => shared.with(|client| client.poll(asking.number, Some(waker))),
                (None, None) => (None, None),
            };
            drop(old);
            end.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Asks the store for the usage of each leg, as an operator does. Nothing is taken.
    ///
    /// # Errors
    /// [`RemoteError::Unavailable`] while the store is unavailable, or this process knows as many keys as it may; [`RemoteError::Closed`].
    ///
    /// ```
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, Remote, RemoteError};
    /// # use tollgate::status::State;
    /// # use tollgate::ManualClock;
    /// let clock = ManualClock::new();
    /// let policy = PolicySpec::new([LegSpec::new("requests", LegRule::token_bucket("60/h".parse()?))]);
    /// let spec = KeyedSpec::new(100, "free", policy);
    /// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(Memory::new(&clock))?;
    /// # clock.run(async {
    /// let acme = tenants.get("acme")?;
    /// drop(acme.acquire_now(60).await.unwrap());
    /// let available = |usage: &tollgate::remote::RemoteKeyUsage| match usage.legs().next().unwrap().state {
    ///     State::Rate { available, .. } => available,
    ///     _ => unreachable!("it is a rate"),
    /// };
    /// assert_eq!(available(&acme.usage().await?), 0);
    /// assert_eq!(available(&acme.grant("requests", 5).await?), 5);
    /// assert_eq!(available(&acme.reset().await?), 60);
    /// # Ok::<(), RemoteError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn usage(&self) -> Result<RemoteKeyUsage, RemoteError> {
        self.look(LegUnits::default()).await
    }

    /// Gives back `units` of a rate or window, taken by any process, and no more than were taken. Returns the usage after that.
    ///
    /// This process asks again at once. Another one that remembers a refusal asks again within a [time to
    /// live](RemoteKeyedBuilder::ttl); what waits there for an instant goes on to wait for it.
    ///
    /// # Errors
    /// [`RemoteError::Leg`] when the key has no rate or window of this name; otherwise as [`usage`](Self::usage): it may be carried out
    /// all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, the grant may or may not be carried out.
    pub async fn grant(&self, leg: &str, units: u64) -> Result<RemoteKeyUsage, RemoteError> {
        let mut grant = LegUnits::default();
        let of_time = (0..self.legs.counted.len()).filter(|&leg| !self.legs.is_permits(leg));
        let Some(position) = of_time.clone().find(|&position| self.legs.name(position) == leg) else {
            let known: Vec<_> = of_time
                .map(|position| format!("`{}`", self.legs.name(position)))
                .collect();
            return Err(RemoteError::Leg {
                given: leg.into(),
                known: known.join(", ").into(),
            });
        };
        grant[position] = units;
        self.look(grant).await
    }

    /// Gives back all units of all rates and windows, as if the key were new. Permits stay with their holders. Returns the usage after
    /// that.
    ///
    /// # Errors
    /// As [`grant`](Self::grant), which also says when other processes see it.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be carried out.
    pub async fn reset(&self) -> Result<RemoteKeyUsage, RemoteError> {
        self.look([u64::MAX; KeyLeg::MOST]).await
    }

    async fn look(&self, grant: LegUnits) -> Result<RemoteKeyUsage, RemoteError> {
        let now = self.now();
        let join = |client: &mut Client, number, waker| client.grant(number, &self.key, &self.legs, grant, waker, now);
        match self.wait(join).await {
            End::Usage(usage) => Ok(RemoteKeyUsage::new(&self.legs, usage)),
            End::Failed(Reason::Closed) => Err(RemoteError::Closed),
            _ => Err(RemoteError::Unavailable),
        }
    }

    /// Waits until the store admits `ask`: it asks again at each instant that the store names, and when permits are there.
    ///
    /// # Errors
    /// As [`acquire_now`](Self::acquire_now), except `RateExceeded` and `Saturated`.
    ///
    /// # Cancel safety
    /// It may be dropped at any point. What it was granted goes back.
    ///
    /// # Fairness
    /// Waiters that need permits have places: those of a process in order, and one place at the store for the first of each process. Other
    /// waiters of one key race at that instant. For an order, and for deadlines, wait in a [`Policy`](crate::Policy).
    pub async fn acquire(&self, ask: impl Into<Ask>) -> Result<RemoteKeyPermit<B>, Refusal<'_>> {
        let ask = ask.into();
        let units = self.units_of(&ask)?;
        if self.legs.permits(&units).next().is_some() {
            return self.ask(units, true).await;
        }
        loop {
            match self.acquire_now(ask).await {
                Err(refusal) if let Wait::Until(due) = refusal.wait() => {
                    Sleep::until(&self.handles.0.clock, due.instant()).await;
                }
                ended => return ended,
            }
        }
    }

    /// The key, as the store has it; of several its own one.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The key at which a leg is counted, by the [name of the leg](Refusal::leg) in a refusal.
    pub fn key_of(&self, leg: &str) -> Option<&Key> {
        let leg = &self.legs.counted[self.legs.position(leg)?];
        Some(leg.key.as_ref().unwrap_or(&self.key))
    }

    fn now(&self) -> Instant {
        self.handles.0.clock.now()
    }

    /// Hands a correction to the store. Waiters ask again, behind it.
    fn correct(&self, at: u64, before: &Charge, after: &Charge) {
        if at != UNCOUNTED {
            let shared = &self.handles.0;
            shared.with(|client| client.recharge(&self.key, &self.legs, at, before, after, true));
        }
    }

    /// What a permit that ends has reserved is used.
    fn use_up(&self, ticket: &RemoteKeyTicket) {
        if self.handles.0.reserves {
            let spent = ticket.units;
            self.correct(
                ticket.at,
                &ticket.charge(),
                &Charge {
                    units: ticket.units,
                    spent,
                },
            );
        }
    }

    /// Gives the permits of `ticket` back.
    fn give(&self, ticket: &RemoteKeyTicket) {
        if ticket.lease > 0 {
            let shared = &self.handles.0;
            shared.with(|client| client.give_permits(&self.key, &self.legs, ticket.lease, &ticket.units));
        }
    }

    fn units_of(&self, ask: &Ask) -> Result<LegUnits, Refusal<'_>> {
        let refusal = |reason, leg, units| Err(Refusal::new(reason, self.legs.name(leg), units, Wait::Never));
        match self.legs.units(ask.count(), |cost| ask.of(cost)) {
            Err(leg) => refusal(Reason::Unpriced, leg, 0),
            Ok(units) => match self.legs.oversized(&units) {
                Some(leg) => refusal(Reason::Oversized, leg, units[leg]),
                None => Ok(units),
            },
        }
    }

    /// What the store has refused for some time yet.
    fn refused(&self, units: &LegUnits, now: Instant) -> Option<Refusal<'_>> {
        let shared = &self.handles.0;
        let refused = shared.with(|client| client.refused(&self.key, &self.legs, units, now));
        refused.map(|(leg, until)| self.rate_exceeded(leg, units, now, until))
    }

    fn rate_exceeded(&self, leg: usize, units: &LegUnits, now: Instant, until: Instant) -> Refusal<'_> {
        let wait = Wait::Until(Due::at(&self.handles.0.clock, now, until));
        Refusal::new(Reason::RateExceeded, self.legs.name(leg), units[leg], wait)
    }

    fn ended(&self, end: End, units: LegUnits, now: Instant) -> Result<RemoteKeyTicket, Refusal<'_>> {
        match end {
            End::Granted { at, lease } => Ok(RemoteKeyTicket {
                at,
                lease,
                units,
                spent: Charge::new(&self.legs, &units).spent,
            }),
            // Of a grant, which admits nothing.
            End::Usage(_) => Err(Refusal::new(
                Reason::Closed,
                self.handles.0.name.as_str(),
                units[0],
                Wait::Never,
            )),
            End::Uncounted => Ok(RemoteKeyTicket {
                at: UNCOUNTED,
                lease: 0,
                units,
                spent: LegUnits::default(),
            }),
            End::Saturated(leg) => {
                let wait = Wait::Turn(self);
                Err(Refusal::new(Reason::Saturated, self.legs.name(leg), units[leg], wait))
            }
            End::Refused(leg, Some(until)) => Err(self.rate_exceeded(leg, &units, now, until)),
            End::Refused(leg, None) => {
                let leg_units = units[leg];
                Err(Refusal::new(
                    Reason::Oversized,
                    self.legs.name(leg),
                    leg_units,
                    Wait::Never,
                ))
            }
            End::Failed(reason) => Err(Refusal::new(
                reason,
                self.handles.0.name.as_str(),
                units[0],
                Wait::Never,
            )),
        }
    }
}

impl<B: Backend> RemoteKeyPermit<B> {
    /// True when the lease of its permits has ended, or the store has lost it: they may have another holder. Units of rates and
    /// windows are never lost, nor are admissions while the store was unavailable.
    pub fn is_lost(&self) -> bool {
        self.good_for() == Some(Duration::ZERO)
    }

    /// Notes that `units` more of what it has [reserved](RemoteKeyedBuilder::reserves) of `cost` are used: they stay charged, also if this
    /// process dies. No more than are reserved. It is told to the store with the next step at the key, within a third of a time to live.
    ///
    /// Without reservations, and for rates, it does nothing: what was taken is charged.
    ///
    /// ```
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::{Ask, Cost, ManualClock};
    /// # use std::time::Duration;
    /// const TOKENS: Cost = Cost::new("tokens");
    /// let clock = ManualClock::new();
    /// let day = LegSpec::new("tokens", LegRule::sliding_window(1_000, Duration::from_secs(86_400))).per("tokens");
    /// let spec = KeyedSpec::new(100, "free", PolicySpec::new([day]));
    /// let tenants = Remote::keyed(Key::new("tenants")?, spec).reserves(true).on(&clock).in_place(Memory::new(&clock))?;
    /// let acme = tenants.get("acme")?;
    /// clock.run(async {
    ///     let mut permit = acme.acquire_now(Ask::one().cost(TOKENS, 900)).await.unwrap();
    ///     permit.spend(TOKENS, 300);
    ///     permit.settle(TOKENS, 400).unwrap();
    ///     assert!(acme.acquire_now(Ask::one().cost(TOKENS, 600)).await.is_ok());
    /// });
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn spend(&mut self, cost: Cost, units: u64) {
        let key = self.limiter().clone();
        let Some(ticket) = self.ticket_mut() else { return };
        let before = ticket.charge();
        for leg in key.legs.counting(cost).filter(|&leg| key.legs.is_window(leg)) {
            ticket.spent[leg] = ticket.spent[leg].saturating_add(units).min(ticket.units[leg]);
        }
        let after = ticket.charge();
        if key.handles.0.reserves && ticket.at != UNCOUNTED && after != before {
            let (shared, at) = (&key.handles.0, ticket.at);
            shared.with(|client| client.recharge(&key.key, &key.legs, at, &before, &after, false));
        }
    }

    /// Ends when its permits are lost, see [`is_lost`](Self::is_lost); never if it has none.
    ///
    /// # Cancel safety
    /// It may be dropped at any point.
    ///
    /// ```
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::time::Sleep;
    /// # use tollgate::ManualClock;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(4))]);
    /// let spec = KeyedSpec::new(100, "free", policy);
    /// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(Memory::new(&clock))?;
    /// # clock.run(async {
    /// let permit = tenants.get("acme").unwrap().acquire(1).await.unwrap();
    /// let work = Sleep::until(&clock, clock.after(clock.now(), Duration::from_secs(60)));
    /// let done = futures::future::select(work, Box::pin(permit.lost())).await;
    /// assert!(matches!(done, futures::future::Either::Left(_)), "renewed all the time");
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn lost(&self) {
        let (key, shared) = (self.limiter(), &*self.limiter().handles.0);
        let Some(ticket) = (*self.ticket()).filter(|ticket| ticket.lease > 0) else {
            return std::future::pending().await;
        };
        let mut watching = Watching { key, number: None };
        let mut timer: Option<Sleep> = None;
        poll_fn(|cx| {
            loop {
                let (now, waker, number) = (shared.clock.now(), cx.waker().clone(), &mut watching.number);
                let (deadline, old) = shared.with(|client| client.watch(&key.key, ticket.lease, number, waker, now));
                drop(old);
                let Some(deadline) = deadline else {
                    return Poll::Ready(());
                };
                let timer = timer.get_or_insert_with(|| Sleep::until(&shared.clock, deadline));
                timer.reset(deadline);
                if Pin::new(timer).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// How long its permits are valid unless their lease is renewed; zero when they are lost. `None` if it has none.
    pub fn good_for(&self) -> Option<Duration> {
        let ticket = (*self.ticket()).filter(|ticket| ticket.lease > 0)?;
        let (key, shared) = (self.limiter(), &self.limiter().handles.0);
        let now = shared.clock.now();
        shared.with(|client| {
            let deadline = client.deadline(&key.key);
            let deadline = deadline.filter(|_| !client.is_lost(&key.key, ticket.lease, now));
            Some(deadline.map_or(Duration::ZERO, |deadline| shared.clock.between(now, deadline)))
        })
    }
}

impl<B: Backend> Limiter for RemoteKey<B> {
    type Ticket = RemoteKeyTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<RemoteKeyTicket, Refusal<'_>> {
        let units = self.units_of(demand.ask())?;
        let (shared, now, id) = (&self.handles.0, self.now(), QueueId::of(self));
        if let Some(claim) = demand.queue_key(id) {
            let (end, _) = shared.with(|client| client.poll(claim.key(), None));
            if let Some(end) = end {
                demand.redeem(id);
                return self.ended(end, units, now);
            }
        } else if let Some(refusal) = self.refused(&units, now) {
            return Err(refusal);
        }
        let name = shared.name.as_str();
        if let Some(reason) = shared.with(|client| client.refuses(&self.key, now)) {
            return Err(Refusal::new(reason, name, demand.units(), Wait::Never));
        }
        Err(Refusal::new(Reason::RoundTrip, name, demand.units(), Wait::Turn(self)))
    }

    fn cancel(&self, ticket: RemoteKeyTicket, _: &ClockReading) {
        self.correct(ticket.at, &ticket.charge(), &Charge::default());
        self.give(&ticket);
    }

    /// At most [`MAX_UNITS`] are charged.
    fn settle(&self, ticket: &mut RemoteKeyTicket, actual: Settlement<'_>) -> u32 {
        // Each leg says for itself whether it counts the cost.
        let Some(units) = actual.per(actual.cost()).actual() else {
            return 0;
        };
        let units = units.min(MAX_UNITS);
        let (before, mut legs) = (ticket.charge(), 0);
        for leg in self.legs.counting(actual.cost()) {
            ticket.units[leg] = units;
            ticket.spent[leg] = ticket.spent[leg].min(units);
            legs += 1;
        }
        self.correct(ticket.at, &before, &ticket.charge());
        legs
    }

    fn finish(&self, ticket: RemoteKeyTicket, _: Outcome, _: &ClockReading) {
        self.use_up(&ticket);
        self.give(&ticket);
    }

    /// Permits stay held as long as this process lives.
    fn forget(&self, ticket: RemoteKeyTicket) {
        self.use_up(&ticket);
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let units = match self.units_of(demand.ask()) {
            Ok(units) => units,
            Err(refusal) => {
                let (reason, units) = (refusal.reason(), refusal.units());
                let leg = (0..self.legs.counted.len()).find(|&leg| self.legs.name(leg) == refusal.leg());
                return ReadyAt::never_for(reason, leg.map_or("", |leg| self.legs.name(leg)), units);
            }
        };
        let (shared, now) = (&self.handles.0, self.now());
        let claim = demand.queue_key(QueueId::of(self));
        let name = shared.name.as_str();
        // First, so that no refusal ends unheard.
        if let Some(notify) = shared.with(|client| client.notify(&self.key)) {
            demand.listen(&notify);
        }
        let (waits, refused, failed) = shared.with(|client| {
            let waits = claim.map(|claim| client.is_waiting(claim.key()));
            let refused = client.refused(&self.key, &self.legs, &units, now);
            (waits, refused, client.refuses(&self.key, now))
        });
        match (waits, refused, failed) {
            (Some(false), ..) => ReadyAt::NOW,
            (None, _, Some(reason)) => ReadyAt::never_for(reason, name, demand.units()),
            (None, Some((leg, until)), None) => ReadyAt::at(self.legs.name(leg), until).because(Reason::RateExceeded),
            _ => ReadyAt::in_turn(name, self, demand.units()).because(Reason::RoundTrip),
        }
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.handles.0.clock)
    }

    fn callbacks(&self) -> Callbacks {
        if self.legs.has_permits() || self.handles.0.reserves {
            Callbacks::FINISH
        } else {
            Callbacks::NONE
        }
    }

    fn finish_may_panic(&self) -> bool {
        self.legs.has_permits() || self.handles.0.reserves
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(self);
    }
}

impl<B: Backend> WaitQueue for RemoteKey<B> {
    fn join(&self, demand: QueueDemand<'_>, waker: &Waker) -> QueueKey {
        let (waker, now) = (waker.clone(), self.now());
        let named = |cost: Cost| {
            let mut costs = demand.costs.iter();
            costs.find_map(|&(name, units)| (name == cost.name()).then_some(units))
        };
        // The policy has asked before: a cost is missing only if it asks for something else now.
        let units = self.legs.units(demand.calls, named).unwrap_or_default();
        let number = self.handles.0.with(|client| {
            let number = client.next_wait();
            client.join(number, true, &self.key, &self.legs, units, waker, now);
            number
        });
        QueueKey::new(QueueId::of(self), number)
    }

    fn leave(&self, claim: QueueKey) {
        let waker = self.handles.0.with(|client| client.leave(claim.key()));
        drop(waker);
    }

    fn permits(&self) -> Permits {
        if self.legs.has_permits() {
            Permits::Own
        } else {
            Permits::None
        }
    }
}

impl<B: Backend> Clone for RemoteKey<B> {
    fn clone(&self) -> Self {
        Self {
            handles: Arc::clone(&self.handles),
            key: self.key.clone(),
            legs: Arc::clone(&self.legs),
        }
    }
}

impl<B: Backend> fmt::Debug for RemoteKey<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
