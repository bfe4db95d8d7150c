//! How a limiter of many keys is set up.

use super::client::{Client, Config};
use super::levels::{Level, Tiers};
use super::limits::KeyedLimits;
use super::{Handles, RemoteKeyed, Shared, driver};
use crate::remote::backend::Backend;
use crate::remote::builder::{LONGEST, SHORTEST};
use crate::remote::config::OnUnavailable;
use crate::remote::driver::Driver;
use crate::remote::error::RemoteError;
use crate::remote::key::Key;
use crate::remote::random;
use crate::remote::settings::{check, runtime};
use crate::time::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`RemoteKeyed`]. All have defaults; one out of range is found when it is built.
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
/// # use tollgate::{ManualClock, Quota};
/// let clock = ManualClock::new();
/// let keyed = |quota| {
///     let limits = KeyedLimits::new(10, "all", [RemoteLeg::rate("calls", quota)]);
///     Remote::keyed(Key::new("tenants").unwrap(), limits).on(&clock).in_place(Memory::new(&clock))
/// };
/// assert!(keyed(Quota::per_second(10)).is_ok());
/// let error = keyed(Quota::unlimited()).unwrap_err();
/// assert!(error.to_string().starts_with("tier `all`, leg `calls`: the quota `unlimited` was given"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is limited before it is built"]
pub struct RemoteKeyedBuilder {
    name: Key,
    levels: Vec<(Box<str>, KeyedLimits)>,
    clock: Clock,
    ttl: Duration,
    timeout: Option<Duration>,
    retry: Duration,
    on_unavailable: OnUnavailable,
    unavailable_after: Duration,
    reserves: bool,
}

impl RemoteKeyedBuilder {
    pub(super) fn new(name: Key, levels: Vec<(Box<str>, KeyedLimits)>) -> Self {
        Self {
            name,
            levels,
            clock: Clock::real(),
            ttl: Duration::from_secs(10),
            timeout: None,
            retry: Duration::from_millis(200),
            on_unavailable: OnUnavailable::default(),
            unavailable_after: Duration::from_secs(3),
            reserves: false,
        }
    }

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
    /// A reservation is used as it is [spent](super::RemoteKeyPermit::spend), and when its permit ends. What of it is not used goes back when the store has not
    /// heard of the process for a [time to live](Self::ttl), and at most a quarter of it more. A key with reservations is renewed as one with permits.
    ///
    /// **Over-admission**: a process that cannot reach the store for so long keeps its reservations, and the store gives them away. Once it
    /// is heard of again, they count once more.
    ///
    /// ```
    /// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
    /// # use tollgate::{Ask, Cost, ManualClock};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// const TOKENS: Cost = Cost::new("tokens");
    /// let clock = ManualClock::new();
    /// let store = Arc::new(Memory::new(&clock));
    /// let day = RemoteLeg::window("tokens", 1_000, Duration::from_secs(86_400)).per(TOKENS);
    /// let limits = KeyedLimits::new(100, "free", [day]);
    /// let process = || Remote::keyed(Key::new("tenants").unwrap(), limits.clone()).reserves(true).on(&clock);
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
    /// [`RemoteError`] when a setting is out of range, a leg has numbers that stores do not count, or this store cannot do it.
    ///
    /// ```
    /// # use tollgate::remote::{Key, KeyedLimits, Memory, OnUnavailable, Remote, RemoteLeg};
    /// # use tollgate::ManualClock;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let free = |limit| KeyedLimits::new(1_000, "free", [RemoteLeg::permits("slots", limit)]);
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
        let level = |(name, limits): &(Box<str>, KeyedLimits)| {
            let (tiers, name) = (Arc::new(Tiers::of(limits, None)?), name.clone());
            Ok(Level { name, tiers })
        };
        let levels = self.levels.iter().map(level).collect::<Result<Vec<_>, RemoteError>>()?;
        if levels.is_empty() {
            return Err(Level::error("", "one or more"));
        }
        Level::check(&levels)?;
        let max_keys = self.levels.iter().map(|(_, limits)| limits.max_keys);
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
