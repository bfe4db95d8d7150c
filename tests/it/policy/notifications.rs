//! When a policy's waiters are notified: after the last step of what several legs do at once, and by their place in the queue
//! after a change of settings.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::{LoadMetric, Meter, Trigger};
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{
    Demand, Description, Inherit, Legs, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason, Refusal,
    Semaphore, TokenBucket, Wait,
};

const SECOND: Duration = Duration::from_secs(1);

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
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        if let Some(meanwhile) = MEANWHILE.with(RefCell::take) {
            meanwhile();
        }
        Err(Refusal::new(Reason::Saturated, "intrudes", Wait::EVENT))
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Err(Refusal::new(Reason::Saturated, "intrudes", Wait::EVENT))
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("intrudes"));
    }
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

// ---- Changes of settings

/// Refuses all, and changes its settings as it is looked at for waiters behind the head.
struct Restless {
    /// What it was looked at for: how many units are ahead.
    seen: Mutex<Vec<u64>>,
    changes: AtomicUsize,
    queue: WaitQueue,
}

impl Limiter for Restless {
    type Ticket = ();
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Err(Refusal::new(Reason::Saturated, "restless", Wait::EVENT))
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.seen.lock().unwrap().push(demand.ahead());
        if demand.ahead() > 0 && self.changes.load(SeqCst) > 0 {
            self.changes.fetch_sub(1, SeqCst);
            // As settings change: on another thread than the one that asks.
            std::thread::scope(|scope| scope.spawn(|| self.queue.changed()).join()).unwrap();
        }
        self.queue.look(demand, |_, _| {
            Err(Refusal::new(Reason::Saturated, "restless", Wait::EVENT))
        })
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("restless"));
    }
}

/// Given settings that change whenever a waiter behind the head is judged, then the head is asked after each pass over the others, and
/// once the changes have ended, all have been judged since the last.
#[test]
fn settings_that_keep_changing_keep_neither_the_head_waiting_nor_those_behind_it() {
    let leg = Arc::new(Restless {
        seen: Mutex::default(),
        changes: AtomicUsize::new(0),
        queue: WaitQueue::new("restless"),
    });
    let policy = Policy::new(Arc::clone(&leg));
    let mut waits: Vec<_> = (0..4).map(|_| Box::pin(policy.admit(1))).collect();
    waits
        .iter_mut()
        .for_each(|wait| assert!(poll(wait.as_mut()).is_pending()));
    let seen = || std::mem::take(&mut *leg.seen.lock().unwrap());
    seen();
    leg.queue.changed();
    // All are judged, and the head is asked.
    assert_eq!(seen()[..5], [0, 1, 2, 3, 0]);
    leg.changes.store(2, SeqCst);
    leg.queue.changed();
    let seen = seen();
    assert_eq!(seen[..10], [0, 1, 2, 3, 0, 0, 1, 2, 3, 0]);
    assert_eq!(seen.iter().filter(|&&ahead| ahead == 3).count(), 2);
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
        Poll::Ready(Err(refused)) => assert_eq!(
            (refused.reason(), refused.leg()),
            (Reason::RateExceeded, "token_bucket")
        ),
        _ => panic!("it waits, or is admitted"),
    }
    drop(held);
    assert!(matches!(poll(head), Poll::Ready(Ok(_))));
}

/// The first leg that refuses, and the latest wait of all legs, by what waits in front: as for a newcomer at the same place.
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
            assert_eq!((refused.reason(), refused.leg()), (Reason::TimedOut, "slots"));
            assert_eq!(refused.retry_after(), Some(10 * SECOND));
        }
        _ => panic!("it waits, or is admitted"),
    }
    assert!(poll(head).is_pending());
}
