//! Where parts meet: policies at bounded queues, panicking wakers, classes that overtake each other, threads that end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use tollgate::sync::{QueueDemand, WaitQueue};
use tollgate::time::ClockReading;
use tollgate::{
    AcquireTimeoutError, Ask, Cost, Demand, Eviction, Limiter, LimiterExt, Order, OwnedSemaphorePermit, Policy,
    PolicyError, Reason, Semaphore,
};

#[derive(Default)]
struct Count(AtomicUsize);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Panics when it is woken.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn poll_by<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

fn panics(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

fn evicting(permits: usize) -> Semaphore {
    let builder = Semaphore::builder(permits).max_queue(1);
    builder.eviction(Eviction::Oldest).build().unwrap()
}

/// A policy is never sent away: the newcomer is refused, and the policy is served.
#[test]
fn a_policy_in_a_full_queue_keeps_its_place() {
    let semaphore = Arc::new(evicting(1));
    let policy = Policy::new(Arc::clone(&semaphore));
    let held = semaphore.try_acquire().unwrap();
    let mut head = pin!(policy.admit(1));
    assert!(poll(head.as_mut()).is_pending());
    let refused = poll(pin!(semaphore.acquire()));
    assert!(matches!(refused, Poll::Ready(Err(error)) if error.is_queue_full()));
    drop(held);
    assert!(matches!(poll(head.as_mut()), Poll::Ready(Ok(_))));
}

/// A lone waiter goes where a policy stays.
#[test]
fn a_policy_in_a_full_queue_outlasts_a_lone_waiter() {
    let semaphore = Arc::new(
        Semaphore::builder(1)
            .max_queue(2)
            .eviction(Eviction::Oldest)
            .build()
            .unwrap(),
    );
    let policy = Policy::new(Arc::clone(&semaphore));
    let held = semaphore.try_acquire().unwrap();
    let mut head = pin!(policy.admit(1));
    let mut lone = Box::pin(semaphore.acquire());
    let mut newer = Box::pin(semaphore.acquire());
    assert!(poll(head.as_mut()).is_pending());
    assert!(poll(lone.as_mut()).is_pending() && poll(newer.as_mut()).is_pending());
    assert!(matches!(poll(lone.as_mut()), Poll::Ready(Err(error)) if error.is_evicted()));
    drop((held, newer));
    assert!(matches!(poll(head.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn a_semaphore_in_two_legs_is_refused_by_the_builder() {
    const X: Cost = Cost::new("x");
    let semaphore = Arc::new(Semaphore::new(4));
    let twice = Policy::builder()
        .limit(Semaphore::new(1))
        .limit(Arc::clone(&semaphore).per(X))
        .limit(Arc::clone(&semaphore).named("again"))
        .build();
    assert!(matches!(twice, Err(PolicyError::SameQueue { leg: 2 })));
    let both = Arc::clone(&semaphore).and(Arc::clone(&semaphore).boxed());
    assert!(matches!(
        Policy::builder().limit(both).build(),
        Err(PolicyError::SameQueue { leg: 0 })
    ));
    let apart = Policy::builder().limit(Semaphore::new(1)).limit(semaphore).build();
    assert!(apart.is_ok());
}

/// The sum of the waiters' demands may be more than a word holds.
#[test]
fn nine_policies_may_want_the_maximum() {
    let semaphore = Arc::new(Semaphore::builder(1).max_queue_permits(10).build().unwrap());
    // A once admissible demand is waited for.
    semaphore.set_limit(Semaphore::MAX_PERMITS);
    semaphore.set_limit(1);
    let policies: Vec<_> = (0..9).map(|_| Policy::new(Arc::clone(&semaphore))).collect();
    let _held = semaphore.try_acquire().unwrap();
    let most = Semaphore::MAX_PERMITS as u64;
    let mut waits: Vec<_> = policies.iter().map(|policy| Box::pin(policy.admit(most))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    drop(waits);
    let mut lone = pin!(semaphore.acquire());
    assert!(poll(lone.as_mut()).is_pending(), "there is room in the queue again");
}

#[test]
fn a_waker_that_panics_takes_no_other_wake_up_along() {
    let semaphore = Semaphore::new(0);
    let counts: Vec<Arc<Count>> = (0..99).map(|_| Arc::default()).collect();
    let mut waits: Vec<_> = (0..100).map(|_| Box::pin(semaphore.acquire())).collect();
    assert!(poll_by(waits[0].as_mut(), &Waker::from(Arc::new(Bomb))).is_pending());
    for (wait, count) in waits[1..].iter_mut().zip(&counts) {
        assert!(poll_by(wait.as_mut(), &Waker::from(Arc::clone(count))).is_pending());
    }
    assert!(panics(|| semaphore.add_permits(100)));
    assert!(counts.iter().all(|count| count.get() == 1));
    assert!(
        waits
            .iter_mut()
            .all(|wait| matches!(poll(wait.as_mut()), Poll::Ready(Ok(_))))
    );
    assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
}

#[test]
fn a_waker_that_panics_keeps_no_other_from_the_close() {
    let semaphore = Semaphore::new(0);
    let count = Arc::new(Count::default());
    let (mut first, mut second) = (Box::pin(semaphore.acquire()), Box::pin(semaphore.acquire()));
    assert!(poll_by(first.as_mut(), &Waker::from(Arc::new(Bomb))).is_pending());
    assert!(poll_by(second.as_mut(), &Waker::from(Arc::clone(&count))).is_pending());
    assert!(panics(|| semaphore.close()));
    assert_eq!(count.get(), 1);
}

/// A newcomer leaves no place behind when the waker of the waiter that was evicted for it panics.
#[test]
fn an_evicted_waker_that_panics_leaks_no_place() {
    let semaphore = evicting(1);
    let held = semaphore.try_acquire().unwrap();
    let mut old = Box::pin(semaphore.acquire());
    assert!(poll_by(old.as_mut(), &Waker::from(Arc::new(Bomb))).is_pending());
    let mut new = Box::pin(semaphore.acquire());
    assert!(panics(|| drop(poll(new.as_mut()))));
    drop((new, old));
    assert_eq!(semaphore.waiting(), 0);
    drop(held);
    assert_eq!(semaphore.available_permits(), 1);
}

#[test]
fn an_acquire_of_nothing_waits_for_nothing() {
    const X: Cost = Cost::new("x");
    let (semaphore, other) = (Arc::new(Semaphore::new(2)), Arc::new(Semaphore::new(1)));
    let policy = Policy::builder()
        .limit(Arc::clone(&other))
        .limit(Arc::clone(&semaphore).per(X))
        .build()
        .unwrap();
    let _held = semaphore.try_acquire_many(2).unwrap();
    semaphore.set_limit(1);
    let nothing = || Ask::one().cost(X, 0);
    assert!(policy.try_admit(nothing()).is_ok());
    let hold = other.try_acquire().unwrap();
    let mut wait = pin!(policy.admit(nothing()));
    assert!(poll(wait.as_mut()).is_pending());
    drop(hold);
    assert!(poll(wait.as_mut()).is_ready(), "one is in debt, and none is wanted");

    let count = Arc::new(Count::default());
    let empty = Semaphore::new(0);
    let mut head = Box::pin(empty.acquire());
    assert!(poll(head.as_mut()).is_pending());
    let claim = empty.join(QueueDemand::of(0), &Waker::from(Arc::clone(&count)));
    assert_eq!(count.get(), 1, "a claim for nothing is granted at once");
    empty.leave(claim);
}

#[test]
fn a_batch_newcomer_evicts_no_urgent_waiter() {
    let order = Order::Priority {
        classes: 2,
        patience: 8,
    };
    let builder = Semaphore::builder(1).order(order).max_queue(1);
    let semaphore = builder.eviction(Eviction::Oldest).build().unwrap();
    let _held = semaphore.try_acquire().unwrap();
    let mut urgent = pin!(semaphore.request(1).class(0).acquire());
    assert!(poll(urgent.as_mut()).is_pending());
    let batch = poll(pin!(semaphore.request(1).class(1).acquire()));
    assert!(matches!(batch, Poll::Ready(Err(error)) if error.is_queue_full()));
    assert!(poll(urgent.as_mut()).is_pending());
    let mut newer = pin!(semaphore.request(1).class(0).acquire());
    assert!(poll(newer.as_mut()).is_pending());
    assert!(matches!(poll(urgent.as_mut()), Poll::Ready(Err(error)) if error.is_evicted()));
}

/// The bounds are on waiting: a head that fits does not wait.
#[test]
fn the_bounds_of_the_queue_do_not_apply_to_immediate_admissions() {
    let urgent_first = Order::Priority {
        classes: 2,
        patience: 8,
    };
    for order in [urgent_first, Order::Lifo] {
        let builder = Semaphore::builder(2).order(order).max_queue(1);
        let semaphore = builder.eviction(Eviction::Oldest).build().unwrap();
        let _held = semaphore.try_acquire().unwrap();
        let mut large = pin!(semaphore.request(2).class(1).acquire());
        assert!(poll(large.as_mut()).is_pending());
        let small = poll(pin!(semaphore.request(1).class(0).acquire()));
        assert!(matches!(small, Poll::Ready(Ok(_))));
        assert!(poll(large.as_mut()).is_pending());
        drop(small);
        assert_eq!((semaphore.in_use(), semaphore.waiting()), (1, 1));
    }
}

/// How often the first was overtaken is not held against the one behind it.
#[test]
fn each_head_is_overtaken_up_to_the_bound() {
    let semaphore = Semaphore::builder(3).overtakes(1).build().unwrap();
    let _two = semaphore.try_acquire_many(2).unwrap();
    let mut first = Box::pin(semaphore.acquire_many(3));
    assert!(poll(first.as_mut()).is_pending());
    drop(semaphore.try_acquire().unwrap());
    assert!(semaphore.try_acquire().is_err());
    drop(first);
    let mut second = Box::pin(semaphore.acquire_many(3));
    assert!(poll(second.as_mut()).is_pending());
    assert!(semaphore.try_acquire().is_ok());
}

#[test]
fn a_reported_drain_is_over_whatever_follows() {
    let semaphore = Semaphore::new(1);
    let held = semaphore.try_acquire().unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut idle = pin!(semaphore.until_idle());
    assert!(poll_by(idle.as_mut(), &waker).is_pending());
    drop(held);
    assert_eq!(count.get(), 1);
    let _again = semaphore.try_acquire().unwrap();
    assert!(poll_by(idle.as_mut(), &waker).is_ready());
}

#[test]
fn a_refusal_names_the_semaphore() {
    let semaphore = Semaphore::builder(0).name("database").build().unwrap();
    let refused = semaphore.try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("database", Reason::Saturated));
    semaphore.close();
    assert_eq!(semaphore.try_admit(1).unwrap_err().leg(), "database");
}

thread_local! {
    static KEPT: RefCell<Option<OwnedSemaphorePermit>> = const { RefCell::new(None) };
}

/// A permit that a thread keeps to its end is given back in the end of the thread, and a policy elsewhere is served.
#[test]
fn a_permit_in_a_thread_local_is_given_back() {
    let semaphore = Arc::new(Semaphore::new(1));
    let policy = Policy::new(Arc::clone(&semaphore));
    let (ready, is_ready) = mpsc::channel::<()>();
    let (go, may_go) = mpsc::channel::<()>();
    let owner = thread::spawn({
        let semaphore = Arc::clone(&semaphore);
        move || {
            KEPT.with(|kept| *kept.borrow_mut() = Some(Arc::clone(&semaphore).try_acquire_owned().unwrap()));
            // This thread has used a policy, whose locals go before the permit.
            let own = Policy::new(semaphore);
            assert!(poll(Box::pin(own.admit(1)).as_mut()).is_pending());
            ready.send(()).unwrap();
            may_go.recv().unwrap();
        }
    });
    is_ready.recv().unwrap();
    let mut head = pin!(policy.admit(1));
    assert!(poll(head.as_mut()).is_pending());
    go.send(()).unwrap();
    owner.join().unwrap();
    assert!(poll(head.as_mut()).is_ready());
}

/// A watched or counting semaphore sends every caller to the lock: it is ready for all that, as long as its queue is empty.
#[test]
fn a_flagged_semaphore_is_ready_while_permits_are_free() {
    let semaphore = Semaphore::new(2);
    let held = semaphore.try_acquire().unwrap();
    let mut idle = pin!(semaphore.until_idle());
    assert!(poll(idle.as_mut()).is_pending());
    let ready = |n| {
        let clock = tollgate::ManualClock::new();
        let reading = ClockReading::at(&clock, clock.now());
        let ready = semaphore.ready_at(Demand::new(&Ask::many(n), &reading));
        (ready.is_event(), ready.is_never())
    };
    let (now, in_turn, never) = ((false, false), (true, false), (false, true));
    assert_eq!([ready(0), ready(1), ready(2)], [now, now, in_turn]);
    let most = Semaphore::MAX_PERMITS as u64;
    assert_eq!([ready(3), ready(most + 1)], [never, never]);
    semaphore.set_limit(0);
    assert_eq!(
        [ready(0), ready(1)],
        [now, in_turn],
        "who wants nothing is ready in debt"
    );
    semaphore.close();
    assert_eq!([ready(0), ready(1)], [never, never]);
    drop(held);
}

/// Nothing is left of dropped watchers.
#[test]
fn a_watched_semaphore_becomes_pristine_again() {
    let semaphore = Semaphore::new(2);
    let clock = tollgate::ManualClock::new();
    let reading = ClockReading::at(&clock, clock.now());
    let held = semaphore.try_acquire().unwrap();
    {
        let mut idle = pin!(semaphore.until_idle());
        assert!(poll(idle.as_mut()).is_pending());
        assert!(!semaphore.is_pristine(&reading));
    }
    let mut told = pin!(semaphore.until_idle());
    assert!(poll(told.as_mut()).is_pending());
    drop(held);
    assert!(semaphore.is_pristine(&reading));
    assert!(poll(told).is_ready());
}

/// More than there can be waits for ever, also where there is as much as there can be.
#[test]
fn a_claim_beyond_every_number_waits() {
    let semaphore = Semaphore::new(Semaphore::MAX_PERMITS);
    let claim = semaphore.join(QueueDemand::of(u64::MAX), Waker::noop());
    assert_eq!(semaphore.waiting(), 1);
    semaphore.leave(claim);
    assert_eq!(semaphore.available_permits(), Semaphore::MAX_PERMITS);
}

#[test]
fn a_wait_with_a_time_out_says_how_it_ended() {
    let told = |error: AcquireTimeoutError| {
        [
            error.is_timed_out(),
            error.is_closed(),
            error.is_queue_full(),
            error.is_evicted(),
        ]
    };
    let semaphore = Semaphore::builder(0).max_queue(0).build().unwrap();
    let wait = |semaphore: &Semaphore| {
        semaphore
            .blocking_acquire_timeout(std::time::Duration::ZERO)
            .unwrap_err()
    };
    assert_eq!(told(wait(&Semaphore::new(0))), [true, false, false, false]);
    assert_eq!(told(wait(&semaphore)), [false, false, true, false]);
    semaphore.close();
    assert_eq!(told(wait(&semaphore)), [false, true, false, false]);

    let semaphore = evicting(0);
    let clock = tollgate::ManualClock::new();
    let later = clock.after(clock.now(), std::time::Duration::from_secs(1));
    let mut first = pin!(semaphore.request(1).acquire_until(&clock, later));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(semaphore.acquire());
    assert!(poll(second.as_mut()).is_pending());
    let Poll::Ready(Err(error)) = poll(first.as_mut()) else {
        panic!("it was sent away")
    };
    assert_eq!(told(error), [false, false, false, true]);
}
