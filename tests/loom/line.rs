//! The queue of a policy: a release against a join, against a cancel, and a head that leaves.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{
    Ask, Demand, Description, Instant, Limiter, LimiterExt, ManualClock, Outcome, Policy, Reason, Refusal, Wait,
};

/// A counter of free places that announces every return by its queue, and by nothing else: all its own accesses are relaxed, so that
/// whatever orders them is the queue's doing.
struct Gate {
    free: AtomicU64,
    queue: WaitQueue,
}

impl Gate {
    fn new(free: u64) -> Self {
        Self {
            free: AtomicU64::new(free),
            queue: WaitQueue::new("gate"),
        }
    }

    fn give(&self, units: u64) {
        self.free.fetch_add(units, Ordering::Relaxed);
        self.queue.notify();
    }

    fn judge(&self, units: u64, ahead: u64) -> Result<(), Refusal> {
        match self.free.load(Ordering::Relaxed) >= units + ahead {
            true => Ok(()),
            false => Err(Refusal::new(Reason::Saturated, "gate", Wait::EVENT)),
        }
    }
}

impl Limiter for Gate {
    type Ticket = u64;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        self.queue.check(demand, |units, ahead| self.judge(units, ahead))?;
        let units = demand.units();
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(units))
            .map(|_| units)
            .map_err(|_| Refusal::new(Reason::Saturated, "gate", Wait::EVENT))
    }
    fn cancel(&self, ticket: u64) {
        self.give(ticket);
    }
    fn finish(&self, ticket: u64, outcome: Outcome) {
        if outcome != Outcome::Forgotten {
            self.give(ticket);
        }
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.look(demand, |units, ahead| self.judge(units, ahead))
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("gate"));
    }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Count(std::sync::atomic::AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Count {
    fn woken(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst) > 0
    }
}

/// On a clock that stands still: a model must do the same in every execution.
fn policy(free: u64) -> Policy<Arc<Gate>> {
    Policy::builder()
        .on(&ManualClock::new())
        .limit(Arc::new(Gate::new(free)))
        .build()
        .unwrap()
}

fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

/// Given a waiter that joins and one place that comes back meanwhile, then it is admitted or woken: no wake-up falls between
/// the look and the wait.
#[test]
fn a_release_beside_a_join_is_not_lost() {
    crate::exhaustive(|| {
        let policy = policy(0);
        let gate = Arc::clone(policy.limiter());
        let releaser = thread::spawn(move || gate.give(1));
        let count = Arc::new(Count::default());
        let mut waiter = pin!(policy.admit(Ask::one()));
        let first = poll(waiter.as_mut(), &count);
        releaser.join().unwrap();
        if first.is_pending() {
            assert!(count.woken(), "a place is free and the waiter sleeps");
            assert!(poll(waiter, &count).is_ready());
        }
    });
}

/// Given two waiters and one place that comes back while the first leaves, then the second is admitted, whether the
/// first had been given the place or not.
#[test]
fn a_cancel_beside_a_release_hands_the_place_on() {
    crate::exhaustive(|| {
        let policy = policy(0);
        let gate = Arc::clone(policy.limiter());
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let leaver = policy.clone();
        let mut first = Box::pin(async move { leaver.admit_owned(Ask::one()).await.is_ok() });
        assert!(poll(first.as_mut(), &counts[0]).is_pending());
        let mut second = pin!(policy.admit(Ask::one()));
        assert!(poll(second.as_mut(), &counts[1]).is_pending());
        let releaser = thread::spawn(move || gate.give(1));
        drop(first);
        releaser.join().unwrap();
        assert!(counts[1].woken(), "the place was lost");
        assert!(poll(second, &counts[1]).is_ready());
        assert_eq!(policy.waiting(), 0);
    });
}

/// Given a large head and a small one behind it that would fit, when the head leaves beside a release elsewhere, then
/// the small one is admitted at once.
#[test]
fn a_head_that_leaves_frees_the_one_behind() {
    crate::exhaustive(|| {
        let policy = policy(1);
        let gate = Arc::clone(policy.limiter());
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let leaver = policy.clone();
        let mut large = Box::pin(async move { leaver.admit_owned(Ask::many(3)).await.is_ok() });
        assert!(poll(large.as_mut(), &counts[0]).is_pending());
        let mut small = pin!(policy.admit(Ask::one()));
        assert!(poll(small.as_mut(), &counts[1]).is_pending());
        let other = thread::spawn(move || gate.give(0));
        drop(large);
        other.join().unwrap();
        assert!(counts[1].woken());
        assert!(poll(small, &counts[1]).is_ready());
    });
}

/// Given two waiters that join on threads of their own and two places that come back meanwhile, then none sleeps beside a
/// free place.
#[test]
fn two_joins_beside_two_releases_are_both_served() {
    crate::bounded(2, || {
        let policy = policy(0);
        let join = |policy: Policy<Arc<Gate>>| {
            thread::spawn(move || {
                let count = Arc::new(Count::default());
                let mut waiter =
                    Box::pin(async move { policy.admit_owned(Ask::one()).await.map(|permit| permit.forget()) });
                let first = poll(waiter.as_mut(), &count);
                (first.is_ready(), waiter, count)
            })
        };
        let joins = [join(policy.clone()), join(policy.clone())];
        policy.limiter().give(1);
        policy.limiter().give(1);
        for (ready, waiter, count) in joins.map(|join| join.join().unwrap()) {
            assert!(ready || count.woken(), "a place is free and a waiter sleeps");
            assert!(ready || poll(std::pin::pin!(waiter), &count).is_ready());
        }
        assert_eq!(policy.waiting(), 0);
    });
}

/// As many units as the limit, each ask for itself: a larger one never fits. All its own accesses are relaxed.
struct Ceiling {
    limit: AtomicU64,
    queue: WaitQueue,
}

impl Ceiling {
    fn set(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.queue.changed();
    }

    fn judge(&self, units: u64) -> Result<(), Refusal> {
        match self.limit.load(Ordering::Relaxed) >= units {
            true => Ok(()),
            false => Err(Refusal::new(Reason::Oversized, "ceiling", Wait::Never)),
        }
    }
}

impl Limiter for Ceiling {
    type Ticket = ();
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.check(demand, |units, _| self.judge(units))?;
        self.judge(demand.units())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.look(demand, |units, _| self.judge(units))
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("ceiling"));
    }
}

fn ceiling(limit: u64) -> Arc<Ceiling> {
    Arc::new(Ceiling {
        limit: AtomicU64::new(limit),
        queue: WaitQueue::new("ceiling"),
    })
}

/// A closed gate and a ceiling. In a function of its own: the builder would take half of a model's stack.
fn behind_a_gate(ceiling: &Arc<Ceiling>) -> Policy<impl Limiter + use<>> {
    let legs = Gate::new(0).and(Arc::clone(ceiling));
    let builder = Policy::builder().on(&ManualClock::new()).limit(legs);
    builder.build().unwrap()
}

/// Given a head that waits for another leg, and a limit that is lowered beside the join of a second, which does not fit any more, then
/// the second is refused, at once or when it is woken: it was looked at before the change, or is judged after it.
#[test]
fn a_change_of_settings_beside_a_join_judges_the_newcomer() {
    crate::bounded(3, || {
        let ceiling = ceiling(2);
        let policy = behind_a_gate(&ceiling);
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let mut head = Box::pin(policy.admit(1));
        assert!(poll(head.as_mut(), &counts[0]).is_pending());
        let setter = thread::spawn(move || ceiling.set(1));
        let mut second = Box::pin(policy.admit(2));
        let mut ended = poll(second.as_mut(), &counts[1]);
        setter.join().unwrap();
        if ended.is_pending() {
            assert!(counts[1].woken(), "it can never be admitted, and sleeps");
            ended = poll(second.as_mut(), &counts[1]);
        }
        let Poll::Ready(Err(refused)) = ended else {
            panic!("it is admitted, or waits")
        };
        assert_eq!(refused.reason(), Reason::Oversized);
    });
}

/// Ready from an instant on, which nothing but the clock announces.
struct From(ManualClock, Instant);

impl Limiter for From {
    type Ticket = ();
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.look(demand)
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.0);
        match now < self.1 {
            true => Err(Refusal::new(
                Reason::RateExceeded,
                "from",
                Wait::until(&self.0, now, self.1),
            )),
            false => Ok(()),
        }
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("from").on(&self.0));
    }
}

/// Given a waiter whose instant comes beside its join, while the queue's timer is being set, then it is admitted or woken.
#[test]
fn an_instant_that_comes_beside_a_join_is_not_slept_through() {
    crate::bounded(3, || {
        let clock = ManualClock::new();
        let second = Duration::from_secs(1);
        let leg = From(clock.clone(), clock.after(clock.now(), second));
        let policy = Policy::builder().on(&clock).limit(leg).build().unwrap();
        let count = Arc::new(Count::default());
        let mut waiter = pin!(policy.admit(1));
        let advances = {
            let clock = clock.clone();
            thread::spawn(move || clock.advance(second))
        };
        let first = poll(waiter.as_mut(), &count);
        advances.join().unwrap();
        if first.is_pending() {
            assert!(count.woken(), "its instant has come and it sleeps");
            assert!(poll(waiter, &count).is_ready());
        }
    });
}
