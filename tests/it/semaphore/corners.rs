//! Where parts meet: policies that share a semaphore, wakers that panic, threads that end.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use tollgate::status::State;
use tollgate::time::ClockReading;
use tollgate::{
    AcquireTimeoutError, Ask, Cost, Demand, Limiter, LimiterExt, OwnedSemaphorePermit, Policy, PolicyError, Reason,
    Semaphore, Wait,
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
    let most = Semaphore::MAX_PERMITS;
    let semaphore = Arc::new(Semaphore::new(most));
    let policies: Vec<_> = (0..9).map(|_| Policy::new(Arc::clone(&semaphore))).collect();
    let _held = semaphore.try_acquire().unwrap();
    let mut waits: Vec<_> = policies
        .iter()
        .map(|policy| Box::pin(policy.admit(most as u64)))
        .collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    assert_eq!(semaphore.waiting(), 9);
    let mut lone = pin!(semaphore.acquire());
    assert!(poll(lone.as_mut()).is_pending());
    drop(waits);
    assert!(poll(lone.as_mut()).is_ready());
    assert_eq!(semaphore.waiting(), 0);
}

/// Given the head of a policy that waits for more than a limit is lowered to, then it is refused, and those behind it go on.
#[test]
fn a_policy_that_asks_for_more_than_a_lowered_limit_is_refused() {
    let semaphore = Arc::new(Semaphore::new(3));
    let policy = Policy::new(Arc::clone(&semaphore));
    let held = semaphore.try_acquire_many(2).unwrap();
    let (mut head, mut lone) = (pin!(policy.admit(3)), pin!(semaphore.acquire()));
    assert!(poll(head.as_mut()).is_pending() && poll(lone.as_mut()).is_pending());
    semaphore.set_limit(2);
    let Poll::Ready(Err(refused)) = poll(head.as_mut()) else {
        panic!("it can never be admitted")
    };
    assert_eq!((refused.reason(), refused.is_retryable()), (Reason::Oversized, false));
    drop(held);
    assert!(poll(lone.as_mut()).is_ready());
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
    semaphore.add_permits(100);
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
    semaphore.close();
    assert_eq!(count.get(), 1);
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
    let semaphore = Semaphore::new(0).named("database");
    let refused = semaphore.try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("database", Reason::Saturated));
    semaphore.limiter().close();
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
        let looked = semaphore.look(&Demand::new(&Ask::many(n), &ClockReading::default()));
        let wait = looked.err().map(|refusal| refusal.wait());
        (wait == Some(Wait::EVENT), wait == Some(Wait::Never))
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

fn is_as_new(semaphore: &Semaphore) -> bool {
    let mut is_as_new = None;
    semaphore.describe(&mut |leg| is_as_new = Some(leg.is_as_new));
    is_as_new.unwrap()
}

/// Nothing is left of dropped watchers.
#[test]
fn a_watched_semaphore_becomes_as_new_again() {
    let semaphore = Semaphore::new(2);
    assert!(is_as_new(&semaphore));
    let held = semaphore.try_acquire().unwrap();
    {
        let mut idle = pin!(semaphore.until_idle());
        assert!(poll(idle.as_mut()).is_pending());
        assert!(!is_as_new(&semaphore));
    }
    let mut told = pin!(semaphore.until_idle());
    assert!(poll(told.as_mut()).is_pending());
    drop(held);
    assert!(is_as_new(&semaphore));
    assert!(poll(told).is_ready());
    semaphore.set_limit(3);
    assert!(!is_as_new(&semaphore));
    semaphore.set_limit(2);
    assert!(is_as_new(&semaphore));
    semaphore.close();
    assert!(!is_as_new(&semaphore));
}

#[test]
fn its_description_shows_its_permits() {
    let semaphore = Arc::new(Semaphore::new(3));
    let policy = Policy::new(Arc::clone(&semaphore));
    let _held = semaphore.try_acquire_many(2).unwrap();
    let (mut head, mut lone) = (pin!(policy.admit(2)), pin!(semaphore.acquire()));
    assert!(poll(head.as_mut()).is_pending() && poll(lone.as_mut()).is_pending());
    let mut seen = Vec::new();
    let leg = Arc::clone(&semaphore).named("database");
    leg.describe(&mut |leg| seen.push((leg.leg.to_owned(), leg.kind, leg.state, leg.is_as_new)));
    let state = State::Permits {
        limit: 3,
        in_use: 2,
        waiting: 2,
    };
    assert_eq!(seen, [("database".to_owned(), "semaphore", state, false)]);
}

/// A settlement to less gives permits back at once, to the next waiter; one to more changes nothing.
#[test]
fn a_settlement_to_less_gives_permits_back() {
    const X: Cost = Cost::new("x");
    let semaphore = Arc::new(Semaphore::new(5));
    let leg = Arc::clone(&semaphore).per(X);
    let mut permit = leg.try_admit(Ask::one().cost(X, 5)).unwrap();
    let mut waiter = pin!(semaphore.acquire());
    assert!(poll(waiter.as_mut()).is_pending());
    assert_eq!(permit.settle(X, 9), Ok(1));
    assert!(poll(waiter.as_mut()).is_pending());
    assert_eq!(permit.settle(X, 2), Ok(1));
    let waited = poll(waiter.as_mut());
    assert!(waited.is_ready());
    assert_eq!(semaphore.in_use(), 3);
    drop(permit);
    assert_eq!(semaphore.in_use(), 1);
}

#[test]
fn a_wait_with_a_time_out_says_how_it_ended() {
    let semaphore = Semaphore::new(0);
    let wait = || {
        semaphore
            .blocking_acquire_timeout(std::time::Duration::ZERO)
            .unwrap_err()
    };
    assert_eq!(wait(), AcquireTimeoutError::TimedOut);
    semaphore.close();
    assert_eq!(wait(), AcquireTimeoutError::Closed);
}
