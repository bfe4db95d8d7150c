//! Setting up a remote limiter.

use super::backend::{Backend, Rule};
use super::book::Fill;
use super::desk::Desk;
use super::driver::Driver;
use super::error::RemoteError;
use super::key::Key;
use super::limiter::Remote;
use super::plan::{Away, Blocks, MAX_UNITS, Plan};
use super::random;
use super::settings::{check, runtime};
use super::shared::Shared;
use crate::rate::Quota;
use crate::time::Clock;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`Remote`]. All have defaults; what is out of range is found when it is built.
#[derive(Clone, Debug)]
#[must_use = "nothing is limited before it is built"]
pub struct RemoteBuilder {
    key: Key,
    rule: Rule,
    clock: Clock,
    client: Option<u64>,
    ttl: Duration,
    renewal: Option<Duration>,
    timeout: Option<Duration>,
    retry: Option<Duration>,
    away: Away,
    away_after: Option<Duration>,
    blocks: Option<Blocks>,
}

/// The times that can be set.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(86_400);

impl RemoteBuilder {
    pub(super) fn new(key: Key, rule: Rule) -> Self {
        Self {
            key,
            rule,
            clock: Clock::real(),
            client: None,
            ttl: Duration::from_secs(10),
            renewal: None,
            timeout: None,
            retry: None,
            away: Away::default(),
            away_after: None,
            blocks: None,
        }
    }

    /// The clock that measures leases here; the real one unless set. It must not be a coarse one.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// After how long of silence the store takes back what this process holds: 50 ms to a day, 10 s unless set. It is also
    /// how long others wait at most for permits of a process that has died.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How often the lease is renewed: up to half the time to live, a third of it unless set.
    pub fn renewal(mut self, renewal: Duration) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// How long an answer of the store may take before the step is tried again: up to half the time to live; a quarter of it,
    /// and at most a second, unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long after a failure the store is tried again: up to half the time to live; a tenth of it, and at most a second,
    /// unless set.
    pub fn retry(mut self, retry: Duration) -> Self {
        self.retry = Some(retry);
        self
    }

    /// What happens to requests while the store is away; they are refused unless set.
    pub fn away(mut self, away: Away) -> Self {
        self.away = away;
        self
    }

    /// How long the store may fail before it counts as away: up to a day, a third of the time to live unless set. Permits
    /// that are held stay good until their lease ends.
    pub fn away_after(mut self, patience: Duration) -> Self {
        self.away_after = Some(patience);
        self
    }

    /// Units are taken several at a time, and spent in this process.
    pub fn blocks(mut self, blocks: Blocks) -> Self {
        self.blocks = Some(blocks);
        self
    }

    /// The number by which the store knows this process; drawn at random unless set. No two may have the same.
    #[doc(hidden)]
    pub fn client(mut self, client: u64) -> Self {
        self.client = Some(client);
        self
    }

    /// Builds the limiter, and the [`Driver`] that somebody has to run.
    ///
    /// # Errors
    /// [`RemoteError`] when a setting is out of range, or the store cannot do it.
    pub fn build<B: Backend>(self, backend: B) -> Result<(Remote<B>, Driver), RemoteError> {
        let clock = self.clock.clone();
        let plan = self.plan()?;
        backend.supports(&plan.rule, plan.ttl)?;
        let shared = Arc::new(Shared::new(Desk::new(plan, &clock), backend, clock));
        let driver = Driver::of(Arc::clone(&shared));
        Ok((Remote::new(shared), driver))
    }

    /// Builds the limiter, and runs its driver as a task of the tokio runtime that is current.
    ///
    /// # Errors
    /// [`RemoteError`] when a setting is out of range, or when there is no runtime.
    pub fn spawn<B: Backend>(self, backend: B) -> Result<Remote<B>, RemoteError> {
        let runtime = runtime()?;
        let (remote, driver) = self.build(backend)?;
        runtime.spawn(driver);
        Ok(remote)
    }

    /// Builds the limiter, and runs its driver [in place](Driver::in_place): for stores that answer at once.
    ///
    /// # Errors
    /// [`RemoteError`] when a setting is out of range.
    pub fn in_place<B: Backend>(self, backend: B) -> Result<Remote<B>, RemoteError> {
        let (remote, driver) = self.build(backend)?;
        driver.in_place();
        Ok(remote)
    }

    fn plan(self) -> Result<Plan, RemoteError> {
        let most = check_rule(&self.rule)?;
        check("time to live", self.ttl, (SHORTEST, LONGEST))?;
        let within = |what, given: Option<Duration>, default: Duration| {
            let given = given.unwrap_or(default);
            check(what, given, (Duration::from_millis(1), self.ttl / 2)).map(|()| given)
        };
        let second = Duration::from_secs(1);
        if let Some(blocks) = self.blocks {
            if blocks.most == 0 || blocks.most > most {
                return Err(RemoteError::Block {
                    given: blocks.most,
                    most,
                });
            }
            if blocks.low > blocks.most {
                return Err(RemoteError::Block {
                    given: blocks.low,
                    most: blocks.most,
                });
            }
            let times = (Duration::from_micros(1), LONGEST);
            check("time until idle permits go back", blocks.idle, times)?;
            check("turn", blocks.turn, (Duration::ZERO, LONGEST))?;
            check("expiry", blocks.expiry, times)?;
            check("span", blocks.span, times)?;
        }
        let away_after = self.away_after.unwrap_or(self.ttl / 3);
        check("time until the store is away", away_after, (Duration::ZERO, LONGEST))?;
        Ok(Plan {
            client: self.client.unwrap_or_else(random::number),
            renewal: within("renewal", self.renewal, self.ttl / 3)?,
            timeout: within("time-out", self.timeout, (self.ttl / 4).min(second))?,
            retry: within("retry", self.retry, (self.ttl / 10).min(second))?,
            key: self.key,
            rule: self.rule,
            set_up: self.rule,
            ttl: self.ttl,
            away: self.away,
            away_after,
            blocks: self.blocks,
        })
    }
}

/// The most that can be asked for at once, if a store can count by `rule`.
pub(super) fn check_rule(rule: &Rule) -> Result<u64, RemoteError> {
    match rule {
        Rule::Permits { limit } | Rule::Window { limit, .. } if *limit > MAX_UNITS => {
            Err(RemoteError::Limit { given: *limit })
        }
        // It may be raised.
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
