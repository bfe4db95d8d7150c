//! A queue that serves the oldest or the newest first, with any bounds, against a model of who is admitted when, and who is evicted.
//!
//! A tick is what published tables call a replenishment: a number of tokens at the end of each period.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{Eviction, ManualClock, Order, Permit, Policy, PolicyBuilder, Quota, Reason, Refusal, TokenBucket};

pub(crate) const TICK: Duration = Duration::from_secs(1);

pub(crate) type Queued = Policy<TokenBucket>;
pub(crate) type Wait<'a, L> = Pin<Box<dyn Future<Output = Result<Permit<&'a L>, Refusal>> + 'a>>;

pub(crate) fn queued(clock: &ManualClock, limit: u64, per_tick: u64, queue: usize, settings: PolicyBuilder) -> Queued {
    let quota = Quota::new(per_tick, TICK).unwrap().burst(limit).by_interval();
    let bucket = TokenBucket::new(quota).on(clock);
    settings.max_queue(queue).limit(bucket).build().unwrap()
}

/// A waiter for `n`, having been polled once.
pub(crate) fn wait<L: tollgate::Limiter>(policy: &Policy<L>, n: u64) -> Wait<'_, Policy<L>> {
    let mut wait: Wait<'_, Policy<L>> = Box::pin(policy.admit(n));
    if let Some(early) = look(&mut wait) {
        return Box::pin(std::future::ready(early));
    }
    wait
}

pub(crate) fn look<'a, L: tollgate::Limiter>(wait: &mut Wait<'a, L>) -> Option<Result<Permit<&'a L>, Refusal>> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ended) => Some(ended),
        Poll::Pending => None,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    action: u8,
    n: u64,
}

impl Step {
    pub(crate) fn decode([which, a, _]: [u8; 3]) -> Self {
        Self {
            action: which % 5,
            n: u64::from(1 + a % 5),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    newest_first: bool,
    evicts: bool,
    most: usize,
}

impl Bounds {
    pub(crate) fn decode([flags, most]: [u8; 2]) -> Self {
        Self {
            newest_first: flags & 1 > 0,
            evicts: flags & 2 > 0,
            most: usize::from(most % 5),
        }
    }
}

/// Who waits, and what there is: the tables' rules in a few lines.
struct Model {
    there: u64,
    limit: u64,
    newest_first: bool,
    evicts: bool,
    most: usize,
    waiting: Vec<(usize, u64)>,
    admitted: Vec<usize>,
    sent_away: Vec<usize>,
}

impl Model {
    fn serve(&mut self) {
        let head = |waiting: &[(usize, u64)], newest: bool| if newest { waiting.len().checked_sub(1) } else { Some(0) };
        while let Some(at) = head(&self.waiting, self.newest_first)
            && let Some(&(who, n)) = self.waiting.get(at)
            && n <= self.there
        {
            self.there -= n;
            self.admitted.push(who);
            self.waiting.remove(at);
        }
    }

    fn come(&mut self, who: usize, n: u64) {
        if n <= self.there && (self.newest_first || self.waiting.is_empty()) {
            self.there -= n;
            return self.admitted.push(who);
        }
        while self.waiting.len() >= self.most {
            if self.most == 0 || !self.evicts {
                return self.sent_away.push(who);
            }
            self.sent_away.push(self.waiting.remove(0).0);
        }
        self.waiting.push((who, n));
        self.serve();
    }
}

/// Exactly those are admitted, and those evicted or refused, that are by the rules.
pub(crate) fn run(bounds: Bounds, limit: u64, per_tick: u64, steps: Vec<Step>) {
    let clock = ManualClock::new();
    let eviction = if bounds.evicts {
        Eviction::Oldest
    } else {
        Eviction::Never
    };
    let order = if bounds.newest_first {
        Policy::builder().order(Order::Lifo)
    } else {
        Policy::builder()
    };
    let policy = queued(&clock, limit, per_tick, bounds.most, order.eviction(eviction));
    let mut model = Model {
        there: limit,
        limit,
        newest_first: bounds.newest_first,
        evicts: bounds.evicts,
        most: bounds.most,
        waiting: Vec::new(),
        admitted: Vec::new(),
        sent_away: Vec::new(),
    };
    let mut waits: Vec<Option<Wait<'_, Queued>>> = Vec::new();
    for Step { action, n } in steps {
        match action {
            0..3 => {
                model.come(waits.len(), n);
                waits.push(Some(wait(&policy, n)));
            }
            3 => {
                // A waiter goes.
                if let Some(at) = model.waiting.len().checked_sub(n as usize) {
                    let (who, _) = model.waiting.remove(at);
                    waits[who] = None;
                    model.serve();
                }
            }
            _ => {
                clock.advance(TICK);
                model.there = (model.there + per_tick).min(model.limit);
                model.serve();
            }
        }
        let (mut admitted, mut sent_away) = (Vec::new(), Vec::new());
        for (who, wait) in waits.iter_mut().enumerate() {
            match wait.as_mut().and_then(look) {
                Some(Ok(permit)) => {
                    permit.forget();
                    admitted.push(who);
                }
                Some(Err(refusal)) => {
                    assert_eq!(refusal.reason(), Reason::QueueFull);
                    sent_away.push(who);
                }
                None => continue,
            }
            *wait = None;
        }
        model.admitted.sort_unstable();
        model.sent_away.sort_unstable();
        assert_eq!(admitted, std::mem::take(&mut model.admitted));
        assert_eq!(sent_away, std::mem::take(&mut model.sent_away));
        assert_eq!(policy.waiting(), model.waiting.len());
        assert_eq!(policy.limiter().available(), model.there);
    }
}
