//! How a limiter of many keys is set up.

use super::client::{Client, Config};
use super::levels::{Level, Tiers};
use super::limits::KeyedLimits;
use super::{Handles, RemoteKeyed, Shared, driver};
use crate::remote::backend::Backend;
use crate::remote::builder::{LONGEST, RemoteBuilder, RemoteKind, SHORTEST};
use crate::remote::config::OnUnavailable;
use crate::remote::driver::Driver;
use crate::remote::error::RemoteError;
use crate::remote::key::Key;
use crate::remote::random;
use crate::remote::settings::check;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`RemoteKeyed`]: those of every [`RemoteBuilder`], and [`reserves`](RemoteBuilder::reserves).
/// All have defaults; one out of range is found when it is built.
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
pub type RemoteKeyedBuilder = RemoteBuilder<ManyKeys>;

/// A [`RemoteBuilder`] builds a [`RemoteKeyed`].
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, ManyKeys, Remote, RemoteBuilder};
/// # use std::time::Duration;
/// let long = |builder: RemoteBuilder<ManyKeys>| builder.ttl(Duration::from_secs(60));
/// let _tenants = long(Remote::keyed(Key::new("tenants")?, KeyedLimits::new(10, "all", [])));
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManyKeys {
    name: Key,
    levels: Vec<(Box<str>, KeyedLimits)>,
    reserves: bool,
}

impl RemoteBuilder<ManyKeys> {
    pub(super) fn keyed(name: Key, levels: Vec<(Box<str>, KeyedLimits)>) -> Self {
        let reserves = false;
        Self::of(ManyKeys { name, levels, reserves })
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
        self.kind.reserves = reserves;
        self
    }
}

impl RemoteKind for ManyKeys {
    type Limiter<B: Backend> = RemoteKeyed<B>;

    fn build<B: Backend>(builder: RemoteKeyedBuilder, backend: B) -> Result<(RemoteKeyed<B>, Driver), RemoteError> {
        check("time to live", builder.ttl, (SHORTEST, LONGEST))?;
        let timeout = builder.timeout.unwrap_or(Duration::from_secs(1).min(builder.ttl / 2));
        check("time-out", timeout, (SHORTEST / 2, builder.ttl / 2))?;
        let retry = builder.retry.unwrap_or(Duration::from_millis(200));
        check("retry", retry, (Duration::from_millis(1), LONGEST))?;
        let name = "time until the store is unavailable";
        let unavailable_after = builder.unavailable_after.unwrap_or(Duration::from_secs(3));
        check(name, unavailable_after, (Duration::ZERO, LONGEST))?;
        if matches!(builder.on_unavailable, OnUnavailable::Share { .. }) {
            return Err(RemoteError::Unsupported {
                what: "shares of many keys",
                store: "a limiter of many keys",
            });
        }
        let level = |(name, limits): &(Box<str>, KeyedLimits)| {
            let (tiers, name) = (Arc::new(Tiers::of(limits, None)?), name.clone());
            Ok(Level { name, tiers })
        };
        let levels = builder
            .kind
            .levels
            .iter()
            .map(level)
            .collect::<Result<Vec<_>, RemoteError>>()?;
        if levels.is_empty() {
            return Err(Level::error("", "one or more"));
        }
        Level::check(&levels)?;
        let max_keys = builder.kind.levels.iter().map(|(_, limits)| limits.max_keys);
        backend.supports_steps()?;
        let config = Config {
            client: random::number(),
            max_keys: max_keys.fold(0, usize::saturating_add),
            ttl: builder.ttl,
            timeout,
            retry,
            on_unavailable: builder.on_unavailable,
            unavailable_after,
            reserves: builder.kind.reserves,
        };
        let shared = Arc::new(Shared {
            client: Mutex::new(Client::new(config, &builder.clock)),
            backend,
            clock: builder.clock,
            name: builder.kind.name,
            reserves: builder.kind.reserves,
            levels: Mutex::new(Arc::new(levels)),
        });
        let driver = Driver::new(driver::drive(Arc::clone(&shared)));
        let handles = Arc::new(Handles(shared));
        Ok((RemoteKeyed { handles }, driver))
    }
}
