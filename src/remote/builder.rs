//! Setting up a remote limiter.

use super::backend::{Backend, Rule};
use super::client::Client;
use super::config::{Config, LEASED, MAX_UNITS, OnUnavailable, Prefetch};
use super::driver::Driver;
use super::error::RemoteError;
use super::key::Key;
use super::limiter::Remote;
use super::model::Fill;
use super::random;
use super::settings::{check, runtime};
use super::shared::Shared;
use crate::rate::Quota;
use crate::time::Clock;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`Remote`]. All have defaults; one out of range is found when the limiter is built.
///
/// ```
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::{ManualClock};
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// # use std::time::Duration;
/// let builder = || Remote::permits(Key::new("exports").unwrap(), 8).on(&clock);
/// assert!(builder().ttl(Duration::from_secs(30)).in_place(Arc::clone(&store)).is_ok());
/// // A renewal is due within half the time to live.
/// let renewal = Duration::from_secs(9);
/// assert!(builder().ttl(Duration::from_secs(10)).renewal(renewal).in_place(store).is_err());
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is limited before it is built"]
pub struct RemoteBuilder<K = OneKey> {
    pub(super) kind: K,
    pub(super) clock: Clock,
    pub(super) ttl: Duration,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Option<Duration>,
    pub(super) on_unavailable: OnUnavailable,
    pub(super) unavailable_after: Option<Duration>,
}

/// What a [`RemoteBuilder`] builds: a [`Remote`], or a [`RemoteKeyed`](super::RemoteKeyed).
pub trait RemoteKind: Sized {
    /// The limiter that is built.
    type Limiter<B: Backend>;
    /// Builds it: [`RemoteBuilder::build`] calls this.
    ///
    /// # Errors
    /// As [`RemoteBuilder::build`].
    fn build<B: Backend>(builder: RemoteBuilder<Self>, backend: B) -> Result<(Self::Limiter<B>, Driver), RemoteError>;
}

/// A [`RemoteBuilder`] builds a [`Remote`].
///
/// ```
/// # use tollgate::remote::{Key, OneKey, Remote, RemoteBuilder};
/// # use std::time::Duration;
/// let long = |builder: RemoteBuilder<OneKey>| builder.ttl(Duration::from_secs(60));
/// let _exports = long(Remote::permits(Key::new("exports")?, 8));
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OneKey {
    key: Key,
    rule: Rule,
    client: Option<u64>,
    renewal: Option<Duration>,
    prefetch: Option<Prefetch>,
    capacity: bool,
}

/// The range of durations.
pub(super) const SHORTEST: Duration = Duration::from_millis(50);
pub(super) const LONGEST: Duration = Duration::from_secs(86_400);

impl<K: RemoteKind> RemoteBuilder<K> {
    pub(super) fn of(kind: K) -> Self {
        Self {
            kind,
            clock: Clock::real(),
            ttl: Duration::from_secs(10),
            timeout: None,
            retry: None,
            on_unavailable: OnUnavailable::default(),
            unavailable_after: None,
        }
    }

    /// The clock that measures leases, waits and time-outs here; the real one unless set. The store counts by its own.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// The silence after which the store takes back the units of this process: 50 ms to a day, 10 s unless set. Others wait at
    /// most this long for permits of a process that has died. A process renews the permits of a key, and the places of its waiters,
    /// three times in it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the store may take to answer before a request is sent again: up to half the time to live. Unless set, a second and at
    /// most a quarter of the time to live, and with many keys a second and at most half of it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long after a failure the store is tried again. Unless set, a tenth of the time to live and at most a second, and with many keys
    /// 200 ms. At most half the time to live, and with many keys a day.
    pub fn retry(mut self, retry: Duration) -> Self {
        self.retry = Some(retry);
        self
    }

    /// What happens to requests while the store is unavailable; they are refused unless set. There are no
    /// [shares](OnUnavailable::Share) of many keys.
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// How long the store may fail before it counts as unavailable: up to a day. Unless set, a third of the time to live, and with many
    /// keys three seconds. Permits that are held stay valid until their lease ends.
    pub fn unavailable_after(mut self, patience: Duration) -> Self {
        self.unavailable_after = Some(patience);
        self
    }

    /// Builds the limiter, and the [`Driver`] that has to be run for it.
    ///
    /// # Errors
    /// [`RemoteError`] when a setting is out of range, a leg has numbers that stores do not count, or the store cannot do it.
    ///
    /// ```
    /// # use tollgate::remote::{Key, Memory, OnUnavailable, Remote};
    /// # use tollgate::Clock;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (reports, driver) = Remote::permits(Key::new("reports")?, 2)
    ///     .ttl(Duration::from_secs(10))
    ///     .renewal(Duration::from_secs(3))
    ///     .timeout(Duration::from_secs(1))
    ///     .retry(Duration::from_millis(100))
    ///     .unavailable_after(Duration::from_secs(2))
    ///     .on_unavailable(OnUnavailable::Reject)
    ///     .build(Memory::new(&Clock::real()))?;
    /// let task = tokio::spawn(driver);
    /// let permit = reports.acquire(1).await;
    /// assert!(permit.is_ok());
    /// drop(permit);
    /// reports.close().await;
    /// # drop(reports);
    /// # task.abort();
    /// # Ok(())
    /// # }
    /// ```
    pub fn build<B: Backend>(self, backend: B) -> Result<(K::Limiter<B>, Driver), RemoteError> {
        K::build(self, backend)
    }

    /// Builds the limiter, and runs its driver as a task of the tokio runtime that is current.
    ///
    /// # Errors
    /// As [`build`](Self::build), and when there is no runtime.
    pub fn spawn<B: Backend>(self, backend: B) -> Result<K::Limiter<B>, RemoteError> {
        let runtime = runtime()?;
        let (limiter, driver) = self.build(backend)?;
        runtime.spawn(driver);
        Ok(limiter)
    }

    /// Builds the limiter, and runs its driver [in place](Driver::in_place): for stores that answer at once.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn in_place<B: Backend>(self, backend: B) -> Result<K::Limiter<B>, RemoteError> {
        let (limiter, driver) = self.build(backend)?;
        driver.in_place();
        Ok(limiter)
    }
}

impl RemoteKind for OneKey {
    type Limiter<B: Backend> = Remote<B>;

    fn build<B: Backend>(builder: RemoteBuilder, backend: B) -> Result<(Remote<B>, Driver), RemoteError> {
        let clock = builder.clock.clone();
        let supports = |rule| backend.supports(rule, builder.ttl);
        let is_unsupported = |rule| matches!(supports(rule), Err(RemoteError::Unsupported { .. }));
        builder.check_capacity()?;
        let counts = !is_unsupported(&builder.kind.rule);
        // A store that tells no time leases what it cannot count.
        let leases = matches!(builder.kind.rule, Rule::Rate { .. })
            && builder.kind.prefetch.is_none()
            && !counts
            && !is_unsupported(&LEASED);
        let capacity = leases || builder.kind.capacity && !(is_sparse(&builder.kind.rule) && counts);
        let supported = supports(if capacity { &LEASED } else { &builder.kind.rule });
        let quota_is_fixed = builder.kind.capacity || leases;
        let config = builder.config(capacity, quota_is_fixed)?;
        supported?;
        let shared = Arc::new(Shared::new(Client::new(config, &clock), backend, clock));
        let driver = Driver::of(Arc::clone(&shared));
        Ok((Remote::new(shared), driver))
    }
}

impl RemoteBuilder {
    pub(super) fn new(key: Key, rule: Rule) -> Self {
        Self::of(OneKey {
            key,
            rule,
            client: None,
            renewal: None,
            prefetch: None,
            capacity: false,
        })
    }

    /// How often the lease is renewed: up to half the time to live, a third of it unless set.
    pub fn renewal(mut self, renewal: Duration) -> Self {
        self.kind.renewal = Some(renewal);
        self
    }

    /// Fetches several units at a time, to spend them in this process.
    pub fn prefetch(mut self, prefetch: Prefetch) -> Self {
        self.kind.prefetch = Some(prefetch);
        self
    }

    /// Leases the capacity of a rate, and spends it in this process, instead of asking the store for each token.
    ///
    /// The store hands out parts of the rate and of its burst like permits. Each process has a bucket of its own, as large as
    /// its part, and admits from it at local speed; the store has one step a [renewal](Self::renewal). Parts follow the demand.
    ///
    /// # Bounds
    /// In any span `t` at most `burst + rate x t`, whatever the number of processes, and if they crash, are suspended or cut
    /// off. `rate` is measured by the clocks of the processes, which may be fast by 1 %. [`OnUnavailable`] comes on top.
    ///
    /// A part comes empty. So a process that was just started has its first token once its part has gained it, and the whole
    /// burst is there after `burst / rate` without demand. What an idle process has gained is lost when its part goes to
    /// others. Prefer steps of the store for a rate of less than some tokens a second and process, or for processes that live
    /// shorter than that.
    ///
    /// A rate of less than a token a second is counted by single steps all the same, by a store that counts rates. So let all processes
    /// have the same quota.
    ///
    /// All processes must use this, or none. Each has the quota that it was set up with; [`set_quota`](Remote::set_quota) is
    /// unsupported. Stores that do not report the time keep rates in no other way, so there it is the default.
    ///
    /// A token that was cancelled, or charged too high, comes back as far as `rate` has not refilled it. A charge that was too
    /// low becomes debt of this process. It keeps its part until that is repaid; only its end cancels it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::{LimiterExt, ManualClock, Quota};
    /// let clock = ManualClock::new();
    /// let store = Arc::new(Memory::new(&clock));
    /// let calls = Remote::rate(Key::new("calls")?, Quota::per_second(1_000).burst(100)).capacity();
    /// let calls = calls.on(&clock).in_place(store)?;
    /// clock.run(calls.acquire(1)).unwrap();
    /// clock.advance(Duration::from_secs(1));
    /// let at_once = (0..1_000).take_while(|_| calls.try_admit(1).is_ok()).count();
    /// assert_eq!((at_once, calls.stats().syncs), (100, 1));
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn capacity(mut self) -> Self {
        self.kind.capacity = true;
        self
    }

    /// The number by which the store knows this process; drawn at random unless set. No two processes may have the same.
    #[doc(hidden)]
    pub fn client(mut self, client: u64) -> Self {
        self.kind.client = Some(client);
        self
    }

    /// Checks that the limit is one that can be leased.
    fn check_capacity(&self) -> Result<(), RemoteError> {
        let (given, of) = match self.kind.rule {
            Rule::Permits { .. } => ("capacity lease", "number of permits"),
            Rule::Window { .. } => ("capacity lease", "window"),
            Rule::Rate { .. } => ("prefetch", "capacity lease"),
        };
        if self.kind.capacity && (of != "capacity lease" || self.kind.prefetch.is_some()) {
            return Err(RemoteError::Rule { given, of });
        }
        Ok(())
    }

    fn config(self, capacity: bool, quota_is_fixed: bool) -> Result<Config, RemoteError> {
        let most = check_rule(&self.kind.rule)?;
        check("time to live", self.ttl, (SHORTEST, LONGEST))?;
        let within = |what, given: Option<Duration>, default: Duration| {
            let given = given.unwrap_or(default);
            check(what, given, (Duration::from_millis(1), self.ttl / 2)).map(|()| given)
        };
        let second = Duration::from_secs(1);
        if let Some(prefetch) = self.kind.prefetch {
            if prefetch.most == 0 || prefetch.most > most {
                return Err(RemoteError::Prefetch {
                    given: prefetch.most,
                    most,
                });
            }
            if prefetch.low > prefetch.most {
                return Err(RemoteError::Prefetch {
                    given: prefetch.low,
                    most: prefetch.most,
                });
            }
            let times = (Duration::from_micros(1), LONGEST);
            check("time until idle permits go back", prefetch.idle, times)?;
            check("turn", prefetch.turn, (Duration::ZERO, LONGEST))?;
            check("expiry", prefetch.expiry, times)?;
            check("span", prefetch.span, times)?;
        }
        let unavailable_after = self.unavailable_after.unwrap_or(self.ttl / 3);
        check(
            "time until the store is unavailable",
            unavailable_after,
            (Duration::ZERO, LONGEST),
        )?;
        Ok(Config {
            client: self.kind.client.unwrap_or_else(random::number),
            renewal: within("renewal", self.kind.renewal, self.ttl / 3)?,
            timeout: within("time-out", self.timeout, (self.ttl / 4).min(second))?,
            retry: within("retry", self.retry, (self.ttl / 10).min(second))?,
            key: if capacity {
                self.kind.key.of_kind("capacity")
            } else {
                self.kind.key.clone()
            },
            name: self.kind.key,
            rule: self.kind.rule,
            set_up: self.kind.rule,
            ttl: self.ttl,
            on_unavailable: self.on_unavailable,
            unavailable_after,
            prefetch: self.kind.prefetch,
            capacity,
            quota_is_fixed,
        })
    }
}

/// True for a rate of less than a token a second: a part of it gains too little between two renewals.
fn is_sparse(rule: &Rule) -> bool {
    matches!(rule, Rule::Rate { quota } if u128::from(quota.count()) * 1_000_000_000 < quota.period().as_nanos())
}

/// The most units that can be requested at once, if a store can count by `rule`.
pub(super) fn check_rule(rule: &Rule) -> Result<u64, RemoteError> {
    match rule {
        Rule::Permits { limit } | Rule::Window { limit, .. } if *limit > MAX_UNITS => {
            Err(RemoteError::Limit { given: *limit })
        }
        // The limit may be raised.
        Rule::Permits { .. } => Ok(MAX_UNITS),
        Rule::Rate { quota } if Fill::of(quota).is_some() => Ok(quota.burst_size()),
        Rule::Rate { quota } => Err(RemoteError::Quota {
            given: quota.to_string().into(),
        }),
        Rule::Window { limit, length } => {
            check("window", *length, (Duration::from_millis(1), 365 * LONGEST))?;
            Ok(*limit)
        }
    }
}

/// A rule for permits.
pub(super) fn permits(limit: u64) -> Rule {
    Rule::Permits { limit }
}

/// A rule for a rate.
pub(super) fn rate(quota: Quota) -> Rule {
    Rule::Rate { quota }
}
