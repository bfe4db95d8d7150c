//! One leg while it lives: a limiter that keeps its state from version to version, and its numbers.

use crate::breaker::{BreakerTicket, CircuitBreaker};
use crate::core::ask::{Ask, Cost};
use crate::core::boxed::Erased;
use crate::core::limiter::Limiter;
use crate::core::shadow::Counts;
use crate::core::ticket::Ticket;
use crate::policy::spec::{BreakerRule, LegRule, LegSpec, RuleKind};
use crate::rate::{FixedWindow, Inherit, LeakyBucket, Quota, SlidingLog, SlidingWindow, TokenBucket, Warmup};
use crate::semaphore::Semaphore;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::time::Clock;
use std::time::Duration;

/// The identity of a leg from version to version. Each setting that cannot be changed in place is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity {
    name: Box<str>,
    kind: &'static str,
    per: Option<Box<str>>,
    fixed: Box<str>,
}

impl Identity {
    pub(super) fn of(leg: &LegSpec) -> Self {
        let fixed = match &leg.rule {
            LegRule::Warmup {
                period, cold_factor, ..
            } => format!("{period:?} {cold_factor}"),
            LegRule::SlidingWindow { segments, .. } => segments.to_string(),
            LegRule::SlidingLog { entries, .. } => entries.map(|entries| entries.to_string()).unwrap_or_default(),
            LegRule::Breaker(rule) => format!("{rule:?}"),
            _ => String::new(),
        };
        Self {
            name: leg.name.as_str().into(),
            kind: leg.rule.kind().name(),
            per: leg.per.as_deref().map(Into::into),
            fixed: fixed.into(),
        }
    }
}

/// The state of a leg.
pub(super) struct LegState {
    /// No other leg of the policy has, or had, this number.
    pub(super) number: usize,
    pub(super) name: Box<str>,
    pub(super) per: Option<Cost>,
    pub(super) body: Body,
    /// The decisions while it was in shadow mode.
    pub(super) trial: Counts,
    /// The numbers in force. Changed under the lock of the registry.
    in_force: Mutex<LegRule>,
    /// Of a semaphore, the units of the requests that all legs have admitted. Units that an attempt takes, and gives back
    /// because a later leg refuses, are no load.
    held: AtomicU64,
}

/// The limiter.
pub(super) enum Body {
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    Warmup(Warmup),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    Semaphore(Semaphore),
    Breaker(CircuitBreaker),
}

impl LegState {
    /// A fresh leg. The specification has been checked; if it has a fault all the same, the fault.
    pub(super) fn new(number: usize, leg: &LegSpec, clock: &Clock) -> Result<Self, String> {
        Ok(Self {
            number,
            name: leg.name.as_str().into(),
            per: leg.per.as_deref().map(Cost::interned),
            body: Body::new(&leg.rule, clock)?,
            trial: Counts::default(),
            in_force: Mutex::new(leg.rule.clone()),
            held: AtomicU64::new(0),
        })
    }

    /// The numbers that are in force.
    pub(super) fn in_force(&self) -> LegRule {
        self.in_force.lock().clone()
    }

    /// Puts other numbers in force. To be called under the lock of the registry.
    pub(super) fn retune(&self, to: &LegRule, inherit: Inherit) {
        let from = std::mem::replace(&mut *self.in_force.lock(), to.clone());
        if from != *to {
            self.body.set(&from, to, inherit);
        }
    }

    /// Gives back all that was taken. Permits that are held stay held, and a breaker keeps its state.
    pub(super) fn reset(&self) {
        self.body.reset();
    }

    /// Units that are held of a semaphore.
    pub(super) fn held(&self) -> u64 {
        if seeded!("reload_counts_attempts_as_load")
            && let Body::Semaphore(semaphore) = &self.body
        {
            return semaphore.in_use() as u64;
        }
        // Relaxed: a waiter that must see it fall is notified after it has, and the notification orders the two.
        self.held.load(Ordering::Relaxed)
    }

    /// A request that holds `units` was admitted by all legs.
    pub(super) fn hold(&self, units: u64) {
        self.held.fetch_add(units, Ordering::Relaxed);
    }

    /// A request that held `units` ends.
    pub(super) fn let_go(&self, units: u64) {
        self.held.fetch_sub(units, Ordering::Relaxed);
    }

    /// The units of an ask at this leg, if it names its cost.
    pub(super) fn units(&self, ask: &Ask) -> Option<u64> {
        match self.per {
            Some(cost) => ask.of(cost),
            None => Some(ask.count()),
        }
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Body {
    // A function for each kind: a frame that held them all would be several kilobytes where nothing is optimised.
    fn new(rule: &LegRule, clock: &Clock) -> Result<Self, String> {
        match rule {
            LegRule::TokenBucket { quota } => Ok(Self::token_bucket(*quota, clock)),
            LegRule::LeakyBucket { quota, slack } => Self::leaky_bucket(*quota, *slack, clock),
            LegRule::Warmup {
                quota,
                period,
                cold_factor,
            } => Self::warmup(*quota, *period, *cold_factor, clock),
            LegRule::FixedWindow { limit, window } => Self::fixed_window(*limit, *window, clock),
            LegRule::SlidingWindow {
                limit,
                window,
                segments,
            } => Self::sliding_window(*limit, *window, *segments, clock),
            LegRule::SlidingLog { limit, window, entries } => Self::sliding_log(*limit, *window, *entries, clock),
            LegRule::Semaphore { limit } => Ok(Self::semaphore(*limit)),
            LegRule::Breaker(rule) => Self::breaker(rule, clock),
        }
    }

    fn token_bucket(quota: Quota, clock: &Clock) -> Self {
        Self::TokenBucket(TokenBucket::new(quota).on(clock))
    }

    fn leaky_bucket(quota: Quota, slack: u64, clock: &Clock) -> Result<Self, String> {
        let bucket = LeakyBucket::new(quota).slack(slack).map_err(text)?;
        Ok(Self::LeakyBucket(bucket.on(clock)))
    }

    fn warmup(quota: Quota, period: Duration, cold_factor: u32, clock: &Clock) -> Result<Self, String> {
        let warmup = Warmup::new(quota, period).map_err(text)?;
        Ok(Self::Warmup(warmup.cold_factor(cold_factor).map_err(text)?.on(clock)))
    }

    fn fixed_window(limit: u64, window: Duration, clock: &Clock) -> Result<Self, String> {
        let window = FixedWindow::new(limit, window).map_err(text)?;
        Ok(Self::FixedWindow(window.on(clock)))
    }

    fn sliding_window(limit: u64, window: Duration, segments: usize, clock: &Clock) -> Result<Self, String> {
        let window = SlidingWindow::new(limit, window).map_err(text)?;
        Ok(Self::SlidingWindow(window.segments(segments).map_err(text)?.on(clock)))
    }

    fn sliding_log(limit: u64, window: Duration, entries: Option<usize>, clock: &Clock) -> Result<Self, String> {
        let log = SlidingLog::new(limit, window).map_err(text)?;
        let log = match entries {
            Some(entries) => log.max_entries(entries).map_err(text)?,
            None => log,
        };
        Ok(Self::SlidingLog(log.on(clock)))
    }

    fn semaphore(limit: usize) -> Self {
        Self::Semaphore(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)))
    }

    fn breaker(rule: &BreakerRule, clock: &Clock) -> Result<Self, String> {
        Ok(Self::Breaker(rule.builder().clock(clock).build().map_err(text)?))
    }

    /// The limiter behind one type.
    #[inline]
    pub(super) fn erased(&self) -> &dyn Erased {
        match self {
            Self::TokenBucket(limiter) => limiter,
            Self::LeakyBucket(limiter) => limiter,
            Self::Warmup(limiter) => limiter,
            Self::FixedWindow(limiter) => limiter,
            Self::SlidingWindow(limiter) => limiter,
            Self::SlidingLog(limiter) => limiter,
            Self::Semaphore(limiter) => limiter,
            Self::Breaker(limiter) => limiter,
        }
    }

    /// Sets the numbers that differ. Numbers that have been checked are not refused; a refused one would leave the old in
    /// force.
    fn set(&self, from: &LegRule, to: &LegRule, inherit: Inherit) {
        match (self, from, to) {
            (Self::TokenBucket(bucket), _, LegRule::TokenBucket { quota }) => bucket.set_quota(*quota, inherit),
            (
                Self::LeakyBucket(bucket),
                LegRule::LeakyBucket {
                    quota: old,
                    slack: less,
                },
                LegRule::LeakyBucket { quota, slack },
            ) => {
                // First the number that shrinks, so that no step between has a slack that the rate cannot carry.
                if slack < less {
                    let _ = bucket.set_slack(*slack, inherit);
                }
                if quota != old {
                    let _ = bucket.set_quota(*quota, inherit);
                }
                if slack > less {
                    let _ = bucket.set_slack(*slack, inherit);
                }
            }
            (Self::Warmup(warmup), _, LegRule::Warmup { quota, .. }) => drop(warmup.set_quota(*quota, inherit)),
            (
                Self::FixedWindow(fixed),
                LegRule::FixedWindow {
                    limit: old,
                    window: length,
                },
                LegRule::FixedWindow { limit, window },
            ) => {
                if length != window {
                    let _ = fixed.set_length(*window);
                }
                if old != limit {
                    fixed.set_limit(*limit, inherit);
                }
            }
            (
                Self::SlidingWindow(sliding),
                LegRule::SlidingWindow {
                    limit: old,
                    window: length,
                    ..
                },
                LegRule::SlidingWindow { limit, window, .. },
            ) => {
                if length != window {
                    let _ = sliding.set_length(*window);
                }
                if old != limit {
                    sliding.set_limit(*limit, inherit);
                }
            }
            (
                Self::SlidingLog(log),
                LegRule::SlidingLog {
                    limit: old,
                    window: length,
                    ..
                },
                LegRule::SlidingLog { limit, window, .. },
            ) => {
                if length != window {
                    let _ = log.set_length(*window);
                }
                if old != limit {
                    log.set_limit(*limit, inherit);
                }
            }
            (Self::Semaphore(semaphore), _, LegRule::Semaphore { limit }) => semaphore.set_limit(*limit),
            _ => {}
        }
    }

    fn reset(&self) {
        match self {
            Self::TokenBucket(limiter) => limiter.reset(),
            Self::LeakyBucket(limiter) => limiter.reset(),
            Self::Warmup(limiter) => limiter.reset(),
            Self::FixedWindow(limiter) => limiter.reset(),
            Self::SlidingWindow(limiter) => limiter.reset(),
            Self::SlidingLog(limiter) => limiter.reset(),
            Self::Semaphore(_) | Self::Breaker(_) => {}
        }
    }

    /// The units of the leg's part of a ticket.
    pub(super) fn units_of(&self, words: &[u64]) -> u64 {
        match self {
            Self::Breaker(_) => BreakerTicket::read(words).units(),
            _ => words[0],
        }
    }
}

impl RuleKind {
    /// The words of a leg of this kind in a ticket.
    pub(in crate::policy) fn words(self) -> usize {
        fn of<L: Limiter>() -> usize {
            L::Ticket::WORDS
        }
        match self {
            Self::TokenBucket => of::<TokenBucket>(),
            Self::LeakyBucket => of::<LeakyBucket>(),
            Self::Warmup => of::<Warmup>(),
            Self::FixedWindow => of::<FixedWindow>(),
            Self::SlidingWindow => of::<SlidingWindow>(),
            Self::SlidingLog => of::<SlidingLog>(),
            Self::Semaphore => of::<Semaphore>(),
            Self::Breaker => of::<CircuitBreaker>(),
        }
    }
}
