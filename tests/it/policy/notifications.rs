//! When a policy's waiters are notified: after the last step of what several legs do at once, and by their place in the queue
//! after a change of settings.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::{Meter, Trigger};
use tollgate::policy::spec::{LegRule, LegSpec, LoadMetric, PolicySpec, When};
use tollgate::sync::Notify;
use tollgate::sync::WaitQueue;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Cost, Demand, Inherit, Keyed, Legs, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, ReadyAt, Reason,
    Refusal, Semaphore, TokenBucket, Wait,
};

const SECOND: Duration = Duration::from_secs(1);
const TOKENS: Cost = Cost::new("tokens");

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn counted<F: Future + ?Sized>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

// ---- Roll-backs

thread_local! {
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::new(None);
}

/// Refuses, and lets something happen before.
#[derive(Debug)]
struct Intrudes;

impl Limiter for Intrudes {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        if let Some(meanwhile) = MEANWHILE.with(RefCell::take) {
            meanwhile();
        }
        Err(Refusal::new(Reason::Saturated, "intrudes", demand.units(), Wait::Event))
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::on_event("intrudes")
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

/// A rate of two tokens for an hour, and one permit.
struct Shared {
    clock: ManualClock,
    slow: Arc<TokenBucket>,
    slots: Arc<Semaphore>,
}

impl Shared {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            slow: Arc::new(TokenBucket::new(Quota::per_hour(1).burst(2)).on(&clock)),
            slots: Arc::new(Semaphore::new(1)),
            clock,
        }
    }
    fn slow(&self) -> Arc<TokenBucket> {
        Arc::clone(&self.slow)
    }
    fn slots(&self) -> Arc<Semaphore> {
        Arc::clone(&self.slots)
    }
}

/// Given a composite that takes the first of two tokens and the permit before its last leg refuses, when a policy of the same legs
/// waits for the permit meanwhile, and the other token goes, then its waiter gets both: had it been asked when the permit was given
/// back and the token was not, it would have been too late for its deadline.
#[track_caller]
fn gives_back_as_a_whole<L: Limiter>(composite: impl FnOnce(&Shared) -> L) {
    let shared = Shared::new();
    let policy = Policy::builder().on(&shared.clock).max_wait(5 * SECOND);
    let policy = policy.limit(shared.slow()).limit(shared.slots()).build().unwrap();
    let waits = async move { policy.admit(1).await.map(drop).map_err(|refusal| refusal.reason()) };
    let waits: Rc<RefCell<Pin<Box<dyn Future<Output = _>>>>> = Rc::new(RefCell::new(Box::pin(waits)));
    let (joins, slow) = (Rc::clone(&waits), shared.slow());
    MEANWHILE.set(Some(Box::new(move || {
        assert!(poll(joins.borrow_mut().as_mut()).is_pending());
        slow.try_acquire(1).unwrap();
    })));
    let composite = composite(&shared);
    assert_eq!(
        composite.try_admit(1).map(drop).unwrap_err().reason(),
        Reason::Saturated
    );
    assert!(MEANWHILE.with(RefCell::take).is_none());
    assert_eq!(poll(waits.borrow_mut().as_mut()), Poll::Ready(Ok(())));
}

#[test]
fn no_waiter_is_asked_at_half_of_a_roll_back() {
    gives_back_as_a_whole(|shared| shared.slow().and(shared.slots()).and(Intrudes));
    gives_back_as_a_whole(|shared| -> Legs {
        let legs = [shared.slow().boxed(), shared.slots().boxed(), Intrudes.boxed()];
        legs.into_iter().collect()
    });
    gives_back_as_a_whole(|shared| shared.slow().and(shared.slots()).boxed().and(Intrudes));
}

#[test]
fn no_waiter_is_asked_at_half_of_a_roll_back_by_a_nested_leg() {
    gives_back_as_a_whole(|shared| shared.slow().and(shared.slots().and(Intrudes)));
    gives_back_as_a_whole(|shared| shared.slow().boxed().and(shared.slots().and(Intrudes).boxed()).boxed());
    gives_back_as_a_whole(|shared| {
        shared
            .slow()
            .and(shared.slots().and(Intrudes).named("named").per_call())
    });
    gives_back_as_a_whole(|shared| {
        shared
            .slow()
            .and(shared.slots().and(Intrudes).at_once().wait_for_raise())
    });
    gives_back_as_a_whole(|shared| {
        shared
            .slow()
            .and(Semaphore::new(9))
            .and(Semaphore::new(9).and(shared.slots().and(Intrudes)))
    });
    gives_back_as_a_whole(|shared| {
        let meter = Meter::new(&shared.clock, SECOND);
        shared.slow().and(Arc::new(meter.watch(shared.slots().and(Intrudes))))
    });
    gives_back_as_a_whole(|shared| -> Legs {
        let legs = [shared.slow().boxed(), shared.slots().and(Intrudes).boxed()];
        legs.into_iter().collect()
    });
    gives_back_as_a_whole(|shared| -> Legs {
        let inner: Legs = [shared.slots().boxed(), Intrudes.boxed()].into_iter().collect();
        let inner = Policy::builder().on(&shared.clock).limit(inner).build().unwrap();
        [shared.slow().boxed(), inner.boxed()].into_iter().collect()
    });
    gives_back_as_a_whole(|shared| {
        let inner = Policy::builder()
            .on(&shared.clock)
            .limit(shared.slots())
            .limit(Intrudes);
        shared.slow().and(inner.build().unwrap().bypass_queue(SECOND))
    });
    gives_back_as_a_whole(|shared| {
        let slots = shared.slots();
        let keyed = Keyed::new(10, move |_: &u64| Arc::new(Arc::clone(&slots).and(Intrudes)));
        shared.slow().and(keyed.get(&1).unwrap())
    });
}

// ---- The ends of what loads are measured by

/// Given a waiter for the permit of measured work, and a limit that is not waited for and applies while two are in flight, when one
/// of the two ends, then the waiter is asked under the load that is left.
#[test]
fn a_waiter_is_asked_after_the_load_has_fallen_with_the_end_of_measured_work() {
    type End = fn(tollgate::Permit<&tollgate::policy::conditional::Metered<Arc<Semaphore>>>);
    let ends: [End; 3] = [
        |permit| drop(permit),
        |permit| permit.finish(Outcome::Failure),
        |permit| {
            permit.forget();
        },
    ];
    for end in ends {
        let clock = ManualClock::new();
        let meter = Meter::new(&clock, SECOND);
        let slots = Arc::new(Semaphore::new(1));
        let (work, more) = (meter.watch(Arc::clone(&slots)), meter.watch(Semaphore::new(2)));
        let busy = Trigger::above(meter.load(LoadMetric::Use, 1.0), 1.5).on(&clock);
        let closed = TokenBucket::new(Quota::zero().burst(1)).on(&clock);
        closed.try_acquire(1).unwrap();
        let policy = Policy::new(Arc::clone(&slots).and(closed.at_once().when(busy)));
        let held = work.try_admit(1).unwrap();
        let mut waiter = pin!(policy.admit(1));
        assert!(poll(waiter.as_mut()).is_pending());
        let _more = more.try_admit(1).unwrap();
        end(held);
        // Forgotten permits do not come back.
        slots.set_limit(2);
        let _again = more.try_admit(1).unwrap();
        assert!(matches!(poll(waiter), Poll::Ready(Ok(_))));
    }
}

/// Given a policy that is data, whose rate applies while its work takes long, when fast work ends, then the waiter for its permit is
/// asked by the latency that counts it.
#[test]
fn a_waiter_is_asked_after_the_latency_has_fallen_with_the_end_of_work() {
    let clock = ManualClock::new();
    let when = When {
        over: 60 * SECOND,
        ..When::above("slots", LoadMetric::Latency, 2.0)
    };
    let rate = LegRule::token_bucket(Quota::per_hour(1).burst(5));
    let mut spec = PolicySpec::new([
        LegSpec::new("slots", LegRule::semaphore(2)),
        LegSpec::new("tokens", rate).per("tokens").when(when),
    ]);
    spec.max_wait = Some(10 * SECOND);
    let policy = spec.build(&clock).unwrap();
    let take = |calls, tokens| {
        policy
            .limiter()
            .try_admit(Ask::many(calls).cost(TOKENS, tokens))
            .unwrap()
    };
    let [slow, _held] = [take(1, 0), take(1, 0)];
    clock.advance(3 * SECOND);
    slow.finish(Outcome::Success);
    let fast = take(1, 0);
    let mut waiter = pin!(policy.admit(Ask::one().cost(TOKENS, 5)));
    assert!(poll(waiter.as_mut()).is_pending());
    // It is never told that this has ended.
    std::mem::forget(take(0, 5));
    fast.finish(Outcome::Success);
    assert!(matches!(poll(waiter), Poll::Ready(Ok(_))));
}

// ---- Waiters that are passed over

/// Given a waiter for a larger limit, a head that holds a place in the semaphore's own queue, and a direct waiter behind that, when
/// limits change and stay too small for the first, then the head keeps its place.
#[test]
fn a_waiter_for_a_larger_limit_takes_no_place_from_the_head_that_fits() {
    let slots = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&slots).wait_for_raise());
    let [one, other] = [slots.try_acquire().unwrap(), slots.try_acquire().unwrap()];
    let counts: [Arc<Count>; 3] = Default::default();
    let (mut large, mut small) = (pin!(policy.admit(5)), pin!(policy.admit(1)));
    assert!(counted(large.as_mut(), &counts[0]).is_pending() && counted(small.as_mut(), &counts[1]).is_pending());
    let mut direct = pin!(slots.acquire());
    assert!(counted(direct.as_mut(), &counts[2]).is_pending());
    slots.set_limit(1);
    slots.set_limit(2);
    drop(one);
    assert_eq!(counts.each_ref().map(|count| count.get()), [0, 1, 0]);
    assert!(matches!(counted(small, &counts[1]), Poll::Ready(Ok(_))));
    drop(other);
    assert!(matches!(counted(direct, &counts[2]), Poll::Ready(Ok(_))));
    slots.set_limit(5);
    assert!(matches!(counted(large, &counts[0]), Poll::Ready(Ok(_))));
}

/// Given a waiter for a larger quota that came first, when the quota is large enough, then it is served before one that came later.
#[test]
fn a_waiter_for_a_larger_quota_is_served_in_its_turn_once_it_fits() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock));
    bucket.try_acquire(2).unwrap();
    let policy = Policy::new(Arc::clone(&bucket).wait_for_raise());
    let (mut large, mut small) = (pin!(policy.admit(3)), pin!(policy.admit(1)));
    assert!(poll(large.as_mut()).is_pending() && poll(small.as_mut()).is_pending());
    bucket.set_quota(Quota::per_second(1).burst(3), Inherit::AsIs);
    clock.advance(2 * SECOND);
    assert!(poll(small.as_mut()).is_pending());
    clock.advance(SECOND);
    assert!(poll(small.as_mut()).is_pending());
    assert!(matches!(poll(large), Poll::Ready(Ok(_))));
    clock.advance(SECOND);
    assert!(matches!(poll(small), Poll::Ready(Ok(_))));
}

/// Given a waiter behind the head that takes a larger limit since the settings have changed, then it is passed over at once, and not
/// counted before the one behind it.
#[test]
fn a_waiter_that_a_change_of_settings_turns_to_a_raise_is_ahead_of_none() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(10)).on(&clock));
    bucket.try_acquire(10).unwrap();
    let policy = Policy::builder().on(&clock);
    let policy = policy.limit(Arc::clone(&bucket).wait_for_raise()).build().unwrap();
    let [mut head, mut large, mut last] =
        [(2, 99), (8, 99), (1, 12)].map(|(units, patience)| Box::pin(policy.admit_timeout(units, patience * SECOND)));
    assert!(poll(head.as_mut()).is_pending() && poll(large.as_mut()).is_pending() && poll(last.as_mut()).is_pending());
    bucket.set_quota(Quota::per_second(1).burst(6), Inherit::AsIs);
    clock.advance(2 * SECOND);
    assert!(matches!(poll(head.as_mut()), Poll::Ready(Ok(_))));
    clock.advance(SECOND);
    assert!(matches!(poll(last.as_mut()), Poll::Ready(Ok(_))));
    bucket.set_quota(Quota::per_second(1).burst(8), Inherit::AsIs);
    assert!(poll(large.as_mut()).is_pending());
    clock.advance(8 * SECOND);
    assert!(matches!(poll(large.as_mut()), Poll::Ready(Ok(_))));
}

/// Panics a set number of times when it is looked at for more than its limit, and then answers that it takes a raise.
struct Ceiling {
    limit: AtomicUsize,
    panics: AtomicUsize,
    notify: Notify,
}

impl Limiter for Ceiling {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        if demand.units() <= self.limit.load(SeqCst) as u64 {
            return Ok(());
        }
        Err(Refusal::new(Reason::Oversized, "ceiling", demand.units(), Wait::Event))
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        if self.panics.load(SeqCst) > 0 {
            self.panics.fetch_sub(1, SeqCst);
            std::panic::resume_unwind(Box::new("ceiling"));
        }
        if demand.units() <= self.limit.load(SeqCst) as u64 {
            return ReadyAt::NOW;
        }
        ReadyAt::on_raise("ceiling")
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

/// Given a waiter that is passed over, when the leg panics once as it is looked at after the raise, then it is looked at once more.
#[test]
fn a_leg_that_panics_for_a_waiter_that_is_passed_over_is_asked_once_more() {
    for panics in 1..=2 {
        let ceiling = Arc::new(Ceiling {
            limit: AtomicUsize::new(1),
            panics: AtomicUsize::new(0),
            notify: Notify::new(),
        });
        let policy = Policy::new(Arc::clone(&ceiling));
        let mut large = Box::pin(policy.admit(2));
        assert!(poll(large.as_mut()).is_pending());
        let woken = Arc::new(Count::default());
        assert!(counted(large.as_mut(), &woken).is_pending());
        ceiling.limit.store(2, SeqCst);
        ceiling.panics.store(panics, SeqCst);
        ceiling.notify.notify_all();
        assert_eq!(woken.get(), 1, "it is told by the ring, not by its own look");
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(large.as_mut())));
        match polled {
            Ok(Poll::Ready(Ok(_))) => assert_eq!(panics, 1),
            Ok(_) => panic!("it waits, or is refused"),
            Err(panic) => assert_eq!((panics, panic.downcast_ref()), (2, Some(&"ceiling"))),
        }
        assert_eq!(policy.waiting(), 0);
    }
}

/// Admits, and rings as it does.
struct Rings(Notify);

impl Limiter for Rings {
    type Ticket = ();
    fn try_reserve(&self, _: Demand<'_>) -> Result<(), Refusal<'_>> {
        self.0.notify_all();
        Ok(())
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

/// Listens to the `Notify`, and admits nothing at first.
struct Deaf<'a>(&'a Rings, AtomicUsize);

impl Limiter for Deaf<'static> {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        match self.1.load(SeqCst) {
            0 => Err(Refusal::new(Reason::Saturated, "deaf", demand.units(), Wait::Event)),
            _ => Ok(()),
        }
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.0.0);
        match self.1.load(SeqCst) {
            0 => ReadyAt::on_event("deaf"),
            _ => ReadyAt::NOW,
        }
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

struct PanicsWhenWoken;

impl Wake for PanicsWhenWoken {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("woken"));
    }
}

/// Given a chain and a built policy of which the last leg wakes a waiter of another policy, whose waker panics, as it admits, then the
/// admission is there, and its end gives everything back.
#[test]
fn a_waker_that_panics_costs_an_admission_nothing() {
    for built in [false, true] {
        let rings: &'static Rings = Box::leak(Box::new(Rings(Notify::new())));
        let deaf = Arc::new(Deaf(rings, AtomicUsize::new(0)));
        let other = Policy::new(Arc::clone(&deaf));
        let mut waits = Box::pin(other.admit(1));
        let waker = Waker::from(Arc::new(PanicsWhenWoken));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        deaf.1.store(1, SeqCst);
        let slots = Arc::new(Semaphore::new(1));
        if built {
            let policy = Policy::builder()
                .limit(Arc::clone(&slots))
                .limit(rings)
                .build()
                .unwrap();
            drop(policy.try_admit(1).unwrap());
        } else {
            let policy = Policy::new(Arc::clone(&slots).and(Semaphore::new(1).and(rings)));
            drop(policy.try_admit(1).unwrap());
        }
        assert_eq!(slots.available_permits(), 1);
        assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
    }
}

/// Given a newcomer that takes a larger limit, then it is ahead of none, and is served once the limit is there.
#[test]
fn a_newcomer_that_waits_for_a_raise_is_ahead_of_none() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(10)).on(&clock));
    bucket.try_acquire(10).unwrap();
    let policy = Policy::builder().on(&clock);
    let policy = policy.limit(Arc::clone(&bucket).wait_for_raise()).build().unwrap();
    let (mut head, mut large) = (Box::pin(policy.admit(1)), Box::pin(policy.admit(20)));
    assert!(poll(head.as_mut()).is_pending() && poll(large.as_mut()).is_pending());
    let mut last = Box::pin(policy.admit_timeout(1, 5 * SECOND));
    assert!(poll(last.as_mut()).is_pending());
    clock.advance(SECOND);
    assert!(matches!(poll(head.as_mut()), Poll::Ready(Ok(_))));
    clock.advance(SECOND);
    assert!(matches!(poll(last.as_mut()), Poll::Ready(Ok(_))));
    bucket.set_quota(Quota::per_second(1).burst(20), Inherit::AsIs);
    assert!(poll(large.as_mut()).is_pending());
    clock.advance(20 * SECOND);
    assert!(matches!(poll(large.as_mut()), Poll::Ready(Ok(_))));
    assert_eq!(policy.waiting(), 0);
}

// ---- Changes of settings

/// Refuses all, and changes its settings as it is looked at for waiters behind the head.
struct Restless {
    /// What it was looked at for: how many units are ahead.
    seen: Mutex<Vec<u64>>,
    changes: AtomicUsize,
    notify: Notify,
}

impl Limiter for Restless {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        Err(Refusal::new(Reason::Saturated, "restless", demand.units(), Wait::Event))
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        self.seen.lock().unwrap().push(demand.ahead());
        if demand.ahead() > 0 && self.changes.load(SeqCst) > 0 {
            self.changes.fetch_sub(1, SeqCst);
            // As settings change: on another thread than the one that asks.
            std::thread::scope(|scope| scope.spawn(|| self.notify.notify_reconfigured()).join()).unwrap();
        }
        ReadyAt::on_event("restless")
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

/// Given settings that change whenever a waiter behind the head is judged, then the head is asked after each change, and the others are
/// judged all the same; once the changes have ended, all have been judged since the last.
#[test]
fn settings_that_keep_changing_keep_neither_the_head_waiting_nor_those_behind_it() {
    let leg = Arc::new(Restless {
        seen: Mutex::default(),
        changes: AtomicUsize::new(0),
        notify: Notify::new(),
    });
    let policy = Policy::new(Arc::clone(&leg));
    let mut waits: Vec<_> = (0..4).map(|_| Box::pin(policy.admit(1))).collect();
    waits
        .iter_mut()
        .for_each(|wait| assert!(poll(wait.as_mut()).is_pending()));
    let seen = || std::mem::take(&mut *leg.seen.lock().unwrap());
    seen();
    leg.notify.notify_reconfigured();
    assert_eq!(seen(), [0, 1, 2, 3]);
    leg.changes.store(5, SeqCst);
    leg.notify.notify_reconfigured();
    assert_eq!(seen(), [0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3, 1, 2, 3]);
}

/// Given a waiter behind the head, for which a leg that is not waited for has tokens, when it has none left as the settings change,
/// then the waiter is refused at once, as a newcomer at its place would be.
#[test]
fn a_waiter_is_judged_by_legs_that_are_not_waited_for() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_minute(60).burst(10)).on(&clock));
    let slots = Arc::new(Semaphore::new(1));
    let legs = Arc::clone(&slots).and(Arc::clone(&bucket).named("tokens").at_once());
    let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
    let held = slots.try_acquire().unwrap();
    let (mut head, mut next) = (pin!(policy.admit(1)), pin!(policy.admit(1)));
    let count = Arc::<Count>::default();
    assert!(poll(head.as_mut()).is_pending() && counted(next.as_mut(), &count).is_pending());
    bucket.try_acquire(9).unwrap();
    bucket.set_quota(Quota::per_second(1).burst(10), Inherit::AsIs);
    assert_eq!((count.get(), policy.waiting()), (1, 1));
    match poll(next) {
        Poll::Ready(Err(refused)) => {
            assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "tokens"));
            assert_eq!(refused.retry_after(), Some(SECOND));
        }
        _ => panic!("it waits, or is admitted"),
    }
    drop(held);
    assert!(matches!(poll(head), Poll::Ready(Ok(_))));
}

/// A waiter that was refused at once, and is polled when the leg has tokens again, overtakes none that waits.
#[test]
fn a_waiter_that_was_judged_overtakes_none_that_waits() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_minute(60).burst(10)).on(&clock));
    let slots = Arc::new(Semaphore::new(2));
    let legs = Arc::clone(&slots).and(Arc::clone(&bucket).at_once());
    let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
    let held = slots.try_acquire().unwrap();
    let (mut head, mut next) = (pin!(policy.admit(2)), pin!(policy.admit(1)));
    assert!(poll(head.as_mut()).is_pending() && poll(next.as_mut()).is_pending());
    bucket.try_acquire(8).unwrap();
    bucket.set_quota(Quota::per_second(1).burst(10), Inherit::AsIs);
    clock.advance(9 * SECOND);
    match poll(next) {
        Poll::Ready(Err(refused)) => assert_eq!((refused.reason(), refused.leg()), (Reason::Saturated, "queue")),
        _ => panic!("it waits, or is admitted"),
    }
    drop(held);
    assert!(matches!(poll(head), Poll::Ready(Ok(_))));
}

/// The leg that is ready too late, and when it is, by what waits in front: as for a newcomer at the same place.
#[test]
fn a_waiter_that_is_too_late_since_the_settings_have_changed_learns_by_which_leg() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock));
    bucket.try_acquire(10).unwrap();
    let slots = Arc::new(Semaphore::new(1));
    let legs = Arc::clone(&slots)
        .named("slots")
        .and(Arc::clone(&bucket).named("tokens"));
    let policy = Policy::builder().on(&clock).limit(legs).build().unwrap();
    let _held = slots.try_acquire().unwrap();
    let (mut head, mut late) = (pin!(policy.admit(5)), pin!(policy.admit_timeout(5, 2 * SECOND)));
    slots.set_limit(5);
    let _others = slots.try_acquire_many(4).unwrap();
    assert!(poll(head.as_mut()).is_pending() && poll(late.as_mut()).is_pending());
    bucket.set_quota(Quota::per_second(1).burst(10), Inherit::AsIs);
    match poll(late) {
        Poll::Ready(Err(refused)) => {
            assert_eq!((refused.reason(), refused.leg()), (Reason::TimedOut, "tokens"));
            assert_eq!(refused.retry_after(), Some(10 * SECOND));
        }
        _ => panic!("it waits, or is admitted"),
    }
    assert!(poll(head).is_pending());
}
