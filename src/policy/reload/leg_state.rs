//! One leg while it lives: a limiter that keeps its state from version to version, and its numbers.

use crate::core::ask::{Ask, Cost, Demand};
use crate::core::boxed::Erased;
use crate::core::limiter::{Limiter, Outcome};
use crate::core::refusal::Refusal;
use crate::core::shadow::Counts;
use crate::policy::kind::LegLimiter;
use crate::policy::spec::{LegRule, LegSpec, SpecError};
use crate::rate::{Inherit, TokenBucket};
use crate::semaphore::Semaphore;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::time::{Clock, ClockReading};
use std::any::{Any, TypeId};

/// The identity of a leg from version to version. Each setting that cannot be changed in place is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity {
    name: Box<str>,
    kind: TypeId,
    per: Option<Box<str>>,
    fixed: Box<str>,
}

impl Identity {
    pub(super) fn of(leg: &LegSpec) -> Self {
        Self {
            name: leg.name.as_str().into(),
            kind: leg.rule.0.facts().id,
            per: leg.per.as_deref().map(Into::into),
            fixed: leg.rule.0.fixed().into(),
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
    /// Units are held until the work ends.
    pub(super) holds: bool,
    /// The decisions while it was in shadow mode.
    pub(super) trial: Counts,
    /// The numbers in force. Changed under the lock of the registry.
    in_force: Mutex<LegRule>,
    /// The held units of the requests that all legs have admitted. Units that an attempt takes, and gives back
    /// because a later leg refuses, are no load.
    held: AtomicU64,
}

/// The limiter. The most usual kinds are called directly.
pub(super) enum Body {
    Semaphore(Semaphore),
    Bucket(Box<TokenBucket>),
    Other(Box<dyn LegLimiter>),
}

impl LegState {
    /// A fresh leg. The specification has been checked; if it has a fault all the same, the fault.
    pub(super) fn new(number: usize, leg: &LegSpec, clock: &Clock) -> Result<Self, SpecError> {
        let body = Body::of(leg.rule.0.build(clock)?);
        let mut other = false;
        body.erased().clocks(&mut |known| other |= !known.is_same(clock));
        if other {
            let fault = "its limiter decides by another clock than the policy waits by";
            return Err(SpecError::new("kind", fault));
        }
        Ok(Self {
            number,
            name: leg.name.as_str().into(),
            per: leg.per.as_deref().map(Cost::interned),
            body,
            holds: leg.rule.holds(),
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
            from.0.change(self.body.any(), to, inherit);
        }
    }

    /// Gives back all that was taken. Permits that are held stay held, and a breaker keeps its state.
    pub(super) fn reset(&self) {
        self.in_force().0.reset(self.body.any());
    }

    /// Announces the most units that a table allows.
    pub(super) fn may_reach(&self, most: u64) {
        self.in_force().0.may_reach(self.body.any(), most);
    }

    /// Units that it could give now, where it counts units.
    pub(super) fn available(&self) -> Option<u64> {
        self.in_force().0.available(self.body.any())
    }

    /// Units that it can give at most, where that is known.
    pub(super) fn capacity(&self) -> Option<u64> {
        match self.semaphore() {
            Some(semaphore) => Some(semaphore.limit() as u64),
            None => self.in_force().0.capacity(self.body.any()),
        }
    }

    /// Units per second, of a rate.
    pub(super) fn per_second(&self) -> Option<f64> {
        self.in_force().0.rate(self.body.any())
    }

    /// The semaphore, if it is one.
    pub(super) fn semaphore(&self) -> Option<&Semaphore> {
        match &self.body {
            Body::Semaphore(semaphore) => Some(semaphore),
            Body::Bucket(_) | Body::Other(_) => None,
        }
    }

    /// Units that are held.
    pub(super) fn held(&self) -> u64 {
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

impl Body {
    fn of(limiter: Box<dyn LegLimiter>) -> Self {
        let limiter = match downcast(limiter) {
            Ok(semaphore) => return Self::Semaphore(*semaphore),
            Err(limiter) => limiter,
        };
        match downcast(limiter) {
            Ok(bucket) => Self::Bucket(bucket),
            Err(limiter) => Self::Other(limiter),
        }
    }

    #[inline(always)]
    pub(super) fn try_reserve<'a>(&'a self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        match self {
            Self::Semaphore(semaphore) => Erased::try_reserve(semaphore, demand, words),
            Self::Bucket(bucket) => Erased::try_reserve(&**bucket, demand, words),
            Self::Other(limiter) => limiter.try_reserve(demand, words),
        }
    }

    #[inline(always)]
    pub(super) fn finish(&self, words: &[u64], outcome: Outcome, now: &ClockReading) {
        match self {
            Self::Semaphore(semaphore) => Erased::finish(semaphore, words, outcome, now),
            other => other.erased().finish(words, outcome, now),
        }
    }

    /// The limiter behind one type.
    #[inline]
    pub(super) fn erased(&self) -> &dyn LegLimiter {
        match self {
            Self::Semaphore(semaphore) => semaphore,
            Self::Bucket(bucket) => &**bucket,
            Self::Other(limiter) => &**limiter,
        }
    }

    /// The limiter for its rule.
    fn any(&self) -> &dyn Any {
        match self {
            Self::Semaphore(semaphore) => semaphore,
            Self::Bucket(bucket) => &**bucket,
            Self::Other(limiter) => limiter.as_any(),
        }
    }
}

fn downcast<L: Limiter + 'static>(limiter: Box<dyn LegLimiter>) -> Result<Box<L>, Box<dyn LegLimiter>> {
    if !limiter.as_any().is::<L>() {
        return Err(limiter);
    }
    match limiter.into_any().downcast() {
        Ok(limiter) => Ok(limiter),
        Err(_) => unreachable!("it is one"),
    }
}
