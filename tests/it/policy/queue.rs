//! The queue of a policy: panics of users' code, its one timer, demands that can never be admitted, and legs that are not waited
//! for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::{Load, Trigger};
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{Ask, Cost, Demand, Description, Inherit, Instant, Limiter, LimiterExt};
use tollgate::{
    Eviction, ManualClock, Outcome, OwnedSemaphorePermit, Policy, Quota, Reason, Refusal, Semaphore, TokenBucket, Wait,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Panics when it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("waker"));
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Count {
    fn new() -> Arc<Self> {
        Arc::default()
    }
    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn panics() -> Waker {
    Waker::from(Arc::new(Panics))
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>, waker: Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&waker))
}

fn counted<F: Future + ?Sized>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    poll(future, Waker::from(Arc::clone(count)))
}

fn caught(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

// ---- What several legs give back at once

/// The permit comes back before the token. A waiter that was judged in between would find no token before its deadline.
#[track_caller]
fn cancels_as_a_whole<L: Limiter + 'static>(policy: &Policy<L>, slow: &TokenBucket) {
    let admission = policy.try_admit(1).unwrap();
    let mut waiter = pin!(policy.admit(1));
    assert!(poll(waiter.as_mut(), Waker::noop().clone()).is_pending());
    slow.try_acquire(1).unwrap();
    admission.cancel();
    assert!(matches!(poll(waiter, Waker::noop().clone()), Poll::Ready(Ok(_))));
}

#[test]
fn a_waiter_is_judged_after_a_cancel_has_given_back_to_all_legs() {
    let clock = ManualClock::new();
    let slow = || Arc::new(TokenBucket::new(Quota::per_hour(1).burst(2)).on(&clock));
    let builder = || Policy::builder().on(&clock).max_wait(5 * SECOND);
    let bucket = slow();
    let built = builder().limit(Arc::clone(&bucket)).limit(Semaphore::new(1));
    cancels_as_a_whole(&built.build().unwrap(), &bucket);
    let bucket = slow();
    let chain = Arc::clone(&bucket).and(Semaphore::new(1));
    cancels_as_a_whole(&builder().limit(chain).build().unwrap(), &bucket);
    let bucket = slow();
    let boxed = Arc::clone(&bucket).boxed().and(Semaphore::new(1).boxed());
    cancels_as_a_whole(&builder().limit(boxed).build().unwrap(), &bucket);
}

// ---- Panics of wakers

/// A budget of ten tokens that nothing refills, all of them taken.
fn spent(clock: &ManualClock) -> Arc<TokenBucket> {
    let bucket = Arc::new(TokenBucket::new(Quota::zero().burst(10)).on(clock));
    bucket.try_acquire(10).unwrap();
    bucket
}

/// The second of two fits as well when the first one's waker panics: after a raise of a quota, and after a release.
#[test]
fn a_waker_that_panics_keeps_no_other_from_being_woken() {
    let clock = ManualClock::new();
    let bucket = spent(&clock);
    let policy = Policy::new(Arc::clone(&bucket));
    let (mut one, mut two) = (pin!(policy.admit(1)), pin!(policy.admit(1)));
    let count = Count::new();
    assert!(poll(one.as_mut(), panics()).is_pending());
    assert!(counted(two.as_mut(), &count).is_pending());
    bucket.set_quota(Quota::per_second(10).burst(10), Inherit::Reset);
    assert_eq!(count.get(), 1);

    let slots = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&slots));
    let held = slots.try_acquire_many(2).unwrap();
    let (mut one, mut two) = (pin!(policy.admit(1)), pin!(policy.admit(1)));
    assert!(poll(one.as_mut(), panics()).is_pending());
    assert!(counted(two.as_mut(), &count).is_pending());
    drop(held);
    assert_eq!(count.get(), 2);
}

#[test]
fn an_event_reaches_each_policy_whichever_waker_panics() {
    let clock = ManualClock::new();
    let bucket = spent(&clock);
    let policies = [(); 2].map(|()| Policy::new(Arc::clone(&bucket)));
    let (mut one, mut two) = (pin!(policies[0].admit(1)), pin!(policies[1].admit(1)));
    let count = Count::new();
    assert!(poll(one.as_mut(), panics()).is_pending());
    assert!(counted(two.as_mut(), &count).is_pending());
    bucket.set_quota(Quota::per_second(10).burst(10), Inherit::Reset);
    assert_eq!(count.get(), 1);
}

/// The panic of the evicted waiter's waker does not reach the newcomer.
#[test]
fn a_newcomer_that_evicts_a_waiter_whose_waker_panics_waits() {
    let slots = Arc::new(Semaphore::new(1));
    let builder = Policy::builder().max_queue(1).eviction(Eviction::Oldest);
    let policy = builder.limit(Arc::clone(&slots)).build().unwrap();
    let held = slots.try_acquire().unwrap();
    let mut old = Box::pin(policy.admit(1));
    assert!(poll(old.as_mut(), panics()).is_pending());
    let mut new = Box::pin(policy.admit(1));
    assert!(poll(new.as_mut(), Waker::noop().clone()).is_pending());
    assert_eq!(policy.waiting(), 1);
    drop((old, new, held));
    assert_eq!((policy.waiting(), slots.in_use()), (0, 0));
    assert!(policy.try_admit(1).is_ok());
}

/// A waker releases what another policy waits for, and panics; so does the waker of that policy. One pass, two panics.
#[test]
fn wakers_that_panic_one_within_the_other_end_no_process() {
    struct Releases(Mutex<Option<OwnedSemaphorePermit>>);
    impl Wake for Releases {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
            resume_unwind(Box::new("releases"));
        }
    }
    let slots = [(); 2].map(|()| Arc::new(Semaphore::new(1)));
    let [first, second] = slots.each_ref().map(|slots| Policy::new(Arc::clone(slots)));
    let [held, other] = slots
        .each_ref()
        .map(|slots| Arc::clone(slots).try_acquire_owned().unwrap());
    let (mut one, mut two) = (Box::pin(first.admit(1)), Box::pin(second.admit(1)));
    let releases = Waker::from(Arc::new(Releases(Mutex::new(Some(other)))));
    assert!(poll(one.as_mut(), releases).is_pending());
    assert!(poll(two.as_mut(), panics()).is_pending());
    drop(held);
    // Both have been handed their permits, and release them.
    assert!(slots.iter().all(|slots| slots.available_permits() == 0));
    drop((one, two));
    assert!(slots.iter().all(|slots| slots.in_use() == 0));
}

/// What unwinds gives its permit back, and wakes a waker that panics: that would abort the process.
#[test]
fn a_permit_that_goes_in_a_panic_survives_the_wakers_that_it_wakes() {
    let slots = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&slots));
    let held = policy.try_admit(1).unwrap();
    let more = slots.try_acquire().unwrap();
    let mut direct = pin!(slots.acquire());
    let mut queued = pin!(policy.admit(1));
    assert!(poll(direct.as_mut(), panics()).is_pending());
    assert!(poll(queued.as_mut(), panics()).is_pending());
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _permits = (held, more);
        resume_unwind(Box::new("outer"));
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"outer"));
    assert!(poll(direct, Waker::noop().clone()).is_ready());
    assert!(poll(queued, Waker::noop().clone()).is_ready());
}

/// A head that leaves, and whose waker panics as it is dropped, frees those behind it all the same.
#[test]
fn a_waker_whose_drop_panics_holds_up_no_waiter() {
    struct PanicsOnDrop;
    impl Wake for PanicsOnDrop {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            resume_unwind(Box::new("drop"));
        }
    }
    let slots = Arc::new(Semaphore::new(2));
    let _held = slots.try_acquire().unwrap();
    let policy = Policy::new(Arc::clone(&slots));
    let mut large = Box::pin(policy.admit(2));
    let mut small = pin!(policy.admit(1));
    let count = Count::new();
    assert!(poll(large.as_mut(), Waker::from(Arc::new(PanicsOnDrop))).is_pending());
    assert!(counted(small.as_mut(), &count).is_pending());
    let _ = caught(|| drop(large));
    assert_eq!(count.get(), 1);
    drop(poll(small, Waker::noop().clone()));

    let mut large = Box::pin(slots.acquire_many(2));
    let mut small = pin!(slots.acquire());
    assert!(poll(large.as_mut(), Waker::from(Arc::new(PanicsOnDrop))).is_pending());
    assert!(counted(small.as_mut(), &count).is_pending());
    let _ = caught(|| drop(large));
    assert_eq!(count.get(), 2);
    assert!(poll(small, Waker::noop().clone()).is_ready());
}

// ---- Panics of legs

/// A count of free places. Asked for 13 it panics, while it is told to.
struct Fussy {
    free: AtomicU64,
    panics: AtomicU64,
    queue: WaitQueue,
}

impl Fussy {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            free: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            queue: WaitQueue::new("fussy"),
        })
    }
    fn give(&self, units: u64) {
        self.free.fetch_add(units, SeqCst);
        self.queue.notify();
    }
    fn judge(&self, units: u64) -> Result<(), Refusal> {
        match self.free.load(SeqCst) >= units {
            true => Ok(()),
            false => Err(Refusal::new(Reason::Saturated, "fussy", Wait::EVENT)),
        }
    }
}

impl Limiter for Fussy {
    type Ticket = u64;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        let units = demand.units();
        self.queue.check(demand, |units, _| self.judge(units))?;
        self.judge(units)?;
        if units == 13 && self.panics.load(SeqCst) > 0 {
            resume_unwind(Box::new("thirteen"));
        }
        self.free.fetch_sub(units, SeqCst);
        Ok(units)
    }
    fn cancel(&self, ticket: u64) {
        self.give(ticket);
    }
    fn finish(&self, ticket: u64, _: Outcome) {
        self.give(ticket);
    }
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
        visit(Description::new("fussy"));
    }
}

/// The panic reaches the waiter that it is about, and not the caller whose release drove the queue.
#[test]
fn a_leg_that_panics_for_one_waiter_ends_that_wait_and_no_other() {
    let fussy = Fussy::new();
    let policy = Policy::new(Arc::clone(&fussy));
    let counts = [Count::new(), Count::new()];
    let mut first = Box::pin(policy.admit(13));
    let mut second = pin!(policy.admit(1));
    assert!(counted(first.as_mut(), &counts[0]).is_pending());
    assert!(counted(second.as_mut(), &counts[1]).is_pending());
    fussy.panics.store(u64::MAX, SeqCst);
    fussy.give(13);
    assert_eq!(counts.each_ref().map(|count| count.get()), [1, 1]);
    let ended = catch_unwind(AssertUnwindSafe(|| drop(counted(first.as_mut(), &counts[0]))));
    assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"thirteen"));
    assert!(matches!(counted(second, &counts[1]), Poll::Ready(Ok(_))));
    drop(first);
    assert_eq!((policy.waiting(), fussy.free.load(SeqCst)), (0, 13));
}

/// The deadline of the first passes. The timer ends its wait, and serves the next at once: no permit comes back.
#[test]
fn a_waiter_behind_one_whose_deadline_passes_is_served_at_that_instant() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(2));
    let policy = Policy::builder()
        .on(&clock)
        .limit(Arc::clone(&semaphore))
        .build()
        .unwrap();
    let _held = semaphore.try_acquire().unwrap();
    let counts = [Count::new(), Count::new()];
    let mut first = pin!(policy.admit_timeout(2, 10 * MS));
    let mut second = pin!(policy.admit(1));
    assert!(counted(first.as_mut(), &counts[0]).is_pending());
    assert!(counted(second.as_mut(), &counts[1]).is_pending());
    clock.advance(10 * MS);
    assert_eq!(counts.each_ref().map(|count| count.get()), [1, 1]);
    assert!(matches!(counted(first, &counts[0]), Poll::Ready(Err(_))));
    assert!(matches!(counted(second, &counts[1]), Poll::Ready(Ok(_))));
}

// ---- The timer

/// A bucket, and how often it is asked.
struct Asked(TokenBucket, AtomicUsize);

impl Limiter for Asked {
    type Ticket = <TokenBucket as Limiter>::Ticket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        self.1.fetch_add(1, SeqCst);
        self.0.try_reserve(demand)
    }
    fn cancel(&self, ticket: Self::Ticket) {
        self.0.cancel(ticket);
    }
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        self.0.finish(ticket, outcome);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.1.fetch_add(1, SeqCst);
        self.0.look(demand)
    }
    fn leave(&self, place: &Place) {
        self.0.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.describe(visit);
    }
}

fn ten_a_second(clock: &ManualClock) -> TokenBucket {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(1)).on(clock);
    bucket.try_acquire(1).unwrap();
    bucket
}

#[test]
fn the_timer_asks_the_legs_so_that_the_owner_finds_its_permit() {
    let clock = ManualClock::new();
    let policy = Policy::new(Asked(ten_a_second(&clock), AtomicUsize::new(0)));
    let asked = &policy.limiter().1;
    let count = Count::new();
    let mut wait = pin!(policy.admit(1));
    assert!(counted(wait.as_mut(), &count).is_pending());
    clock.advance(200 * MS);
    let before = asked.load(SeqCst);
    assert_eq!((count.get(), policy.waiting()), (1, 0));
    assert!(counted(wait, &count).is_ready());
    assert_eq!(asked.load(SeqCst), before);
}

/// Panics of the wakers that a timer wakes do not reach the thread that advances the clock, nor the next waiter.
#[test]
fn a_timer_survives_the_wakers_that_it_wakes() {
    let clock = ManualClock::new();
    let policy = Policy::new(ten_a_second(&clock));
    let count = Count::new();
    let (mut one, mut two) = (pin!(policy.admit(1)), pin!(policy.admit(1)));
    assert!(poll(one.as_mut(), panics()).is_pending());
    assert!(counted(two.as_mut(), &count).is_pending());
    clock.advance(105 * MS);
    assert_eq!(count.get(), 0);
    clock.advance(95 * MS);
    assert_eq!(count.get(), 1);
    assert!(counted(one, &count).is_ready());
    assert!(counted(two, &count).is_ready());
}

/// Given futures that are kept without being polled, then each has its permit at its own instant, and so has the one behind them.
#[test]
fn futures_that_are_not_polled_delay_no_other() {
    let clock = ManualClock::new();
    let policy = Policy::new(ten_a_second(&clock));
    let counts = [(); 5].map(|()| Count::new());
    let mut waits: Vec<_> = counts.iter().map(|_| Box::pin(policy.admit(1))).collect();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(counted(wait.as_mut(), count).is_pending());
    }
    for served in 1..=5 {
        clock.advance(99 * MS);
        assert_eq!(policy.waiting(), 6 - served);
        clock.advance(MS);
        let woken = counts.iter().filter(|count| count.get() == 1).count();
        assert_eq!((woken, policy.waiting()), (served, 5 - served));
    }
    assert!(!clock.advance_to_next_timer(), "there is nothing left to wake");
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(matches!(counted(wait.as_mut(), count), Poll::Ready(Ok(_))));
    }
}

/// The head waits for a release. However long it does, those behind it sleep.
#[test]
fn waiters_behind_one_that_waits_for_an_event_sleep() {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(1));
    let bucket = TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock);
    let policy = Policy::new(bucket.and(Arc::clone(&slots)));
    let held = slots.try_acquire().unwrap();
    let count = Count::new();
    let mut waits: Vec<_> = (0..10).map(|_| Box::pin(policy.admit(1))).collect();
    for wait in &mut waits {
        assert!(counted(wait.as_mut(), &count).is_pending());
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(count.get(), 0);
    assert!(!clock.advance_to_next_timer());
    drop(held);
    assert_eq!(count.get(), 1);
}

// ---- Demands that can never be admitted

#[test]
fn more_than_the_largest_limit_is_refused_at_once_and_holds_up_no_waiter() {
    let slots = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&slots).named("slots"));
    let refused = |polled: Poll<Result<_, Refusal>>| match polled {
        Poll::Ready(Err(refusal)) => (refusal.reason(), refusal.leg() == "slots", refusal.retry_after()),
        _ => panic!("it waits"),
    };
    let oversized = (Reason::Oversized, true, None);
    let waker = || Waker::noop().clone();
    assert_eq!(refused(poll(pin!(policy.admit(3)), waker())), oversized);
    let held = slots.try_acquire_many(2).unwrap();
    let mut first = pin!(policy.admit(1));
    assert!(poll(first.as_mut(), waker()).is_pending());
    // Also while others wait: neither is it the queue that refuses, nor does it join.
    assert_eq!(refused(poll(pin!(policy.admit(3)), waker())), oversized);
    assert_eq!(policy.try_admit(3).unwrap_err().reason(), Reason::Oversized);
    assert_eq!(policy.try_admit(2).unwrap_err().reason(), Reason::Saturated);
    drop(held);
    assert!(poll(first, waker()).is_ready());
    // The semaphore's own verbs wait, as tokio's do.
    let mut own = pin!(slots.acquire_many(3));
    assert!(poll(own.as_mut(), waker()).is_pending());
}

const TOKENS: Cost = Cost::new("tokens");
const BYTES: Cost = Cost::new("bytes");

/// Whether the first leg has room or not, and whether others wait: the leg that never admits refuses, by its own name.
#[track_caller]
fn refuses_for_good<L: Limiter + 'static>(policy: &Policy<L>) {
    let asks = [
        Ask::many(1).cost(TOKENS, 11),
        Ask::many(1).cost(TOKENS, 11).cost(BYTES, 1),
    ];
    let check = |refused: Refusal| {
        assert_eq!((refused.reason(), refused.leg()), (Reason::Oversized, "tokens"));
        assert!(refused.wait() == Wait::Never && refused.retry_after().is_none());
        assert_eq!(refused.to_string(), "limiter `tokens` can never admit that many");
    };
    let refused = |times: usize| {
        for ask in asks.iter().cycle().take(times) {
            check(policy.try_admit(*ask).unwrap_err());
            match poll(pin!(policy.admit(*ask)), Waker::noop().clone()) {
                Poll::Ready(ended) => check(ended.unwrap_err()),
                Poll::Pending => panic!("it waits"),
            }
        }
    };
    refused(2);
    let held = policy.try_admit(Ask::many(2).cost(TOKENS, 1)).unwrap();
    refused(2);
    let mut first = pin!(policy.admit(Ask::one().cost(TOKENS, 1)));
    assert!(poll(first.as_mut(), Waker::noop().clone()).is_pending());
    refused(2);
    drop(held);
    assert!(poll(first, Waker::noop().clone()).is_ready());
}

#[test]
fn a_demand_that_a_later_leg_can_never_admit_is_refused_for_good_by_each_composite() {
    let clock = ManualClock::new();
    let tokens = || {
        let bucket = TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock);
        bucket.per(TOKENS).named("tokens")
    };
    let slots = || Semaphore::new(2);
    let builder = || Policy::builder().on(&clock);
    let built = || builder().limit(slots()).limit(tokens()).build().unwrap();
    refuses_for_good(&built());
    refuses_for_good(&builder().limit(slots().and(tokens())).build().unwrap());
    refuses_for_good(
        &builder()
            .limit(slots().and(tokens()).and(Semaphore::new(9)))
            .build()
            .unwrap(),
    );
    refuses_for_good(
        &builder()
            .limit(slots().boxed().and(tokens().boxed()).boxed())
            .build()
            .unwrap(),
    );
    refuses_for_good(
        &builder()
            .limit(slots())
            .limit(Semaphore::new(9).and(tokens()))
            .build()
            .unwrap(),
    );
}

#[test]
fn a_refusal_of_an_ask_with_several_costs_has_the_wait_of_the_leg_that_is_ready_last() {
    let clock = ManualClock::new();
    let bucket = |quota: Quota| TokenBucket::new(quota.burst(1)).on(&clock);
    let policy = Policy::builder()
        .limit(bucket(Quota::per_second(1)).named("second"))
        .limit(bucket(Quota::per_minute(1)).per(TOKENS).named("minute"))
        .build()
        .unwrap();
    policy.try_admit(Ask::one().cost(TOKENS, 1)).unwrap().forget();
    for ask in [
        Ask::one().cost(TOKENS, 1),
        Ask::one().cost(BYTES, 4).cost(TOKENS, 1).cost(Cost::new("rows"), 1),
    ] {
        let refused = policy.try_admit(ask).unwrap_err();
        assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "second"));
        assert_eq!(refused.retry_after(), Some(60 * SECOND));
    }
}

/// Not only the head: one behind it that no instant can admit any more, and one whose turn comes too late now.
#[test]
fn all_waiters_are_judged_anew_after_a_change_of_settings() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock));
    bucket.try_acquire(10).unwrap();
    let policy = Policy::builder().on(&clock).limit(Arc::clone(&bucket)).build().unwrap();
    let counts = [(); 5].map(|()| Count::new());
    let asks = [(5, 9), (8, 9), (2, 1), (1, 9), (2, 7)];
    let mut waits = asks.map(|(units, patience)| Box::pin(policy.admit_timeout(units, patience * SECOND)));
    // The third is due after 1.5 s, which it does not wait for.
    assert!(matches!(counted(waits[2].as_mut(), &counts[2]), Poll::Pending));
    for n in [0, 1, 3, 4] {
        assert!(counted(waits[n].as_mut(), &counts[n]).is_pending());
    }
    bucket.set_quota(Quota::per_second(1).burst(6), Inherit::AsIs);
    assert_eq!(counts.each_ref().map(|count| count.get()), [0, 1, 1, 0, 1]);
    let mut ended = |n: usize| match counted(waits[n].as_mut(), &counts[n]) {
        Poll::Ready(ended) => Some(ended.map(|permit| permit.forget()).map_err(|refused| refused.reason())),
        Poll::Pending => None,
    };
    assert_eq!(
        [1, 2, 4].map(&mut ended),
        [
            Some(Err(Reason::Oversized)),
            Some(Err(Reason::TimedOut)),
            Some(Err(Reason::TimedOut))
        ]
    );
    clock.advance(5 * SECOND);
    assert_eq!([0, 3].map(&mut ended), [Some(Ok(())), None]);
    clock.advance(SECOND);
    assert_eq!(ended(3), Some(Ok(())));
}

/// Given a head that is due in time at the place which it holds, and one behind it, when the settings change, then the head's own
/// place is not counted as one before it.
#[test]
fn a_head_is_judged_anew_at_its_own_place() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1).burst(5)).on(&clock));
    bucket.try_acquire(5).unwrap();
    let policy = Policy::builder().on(&clock).limit(Arc::clone(&bucket)).build().unwrap();
    let counts = [(); 2].map(|()| Count::new());
    let mut head = Box::pin(policy.admit_timeout(5, 9 * SECOND));
    let mut next = Box::pin(policy.admit(1));
    assert!(counted(head.as_mut(), &counts[0]).is_pending() && counted(next.as_mut(), &counts[1]).is_pending());
    bucket.set_quota(Quota::per_second(1).burst(5), Inherit::AsIs);
    assert!(counted(head.as_mut(), &counts[0]).is_pending());
    clock.advance(5 * SECOND);
    assert!(matches!(counted(head.as_mut(), &counts[0]), Poll::Ready(Ok(_))));
}

/// It waits until the limit applies no more, at an instant that the load names.
#[test]
fn a_demand_above_a_conditional_limit_waits_until_the_load_falls() {
    let clock = ManualClock::new();
    struct Falls(Instant);
    impl Load for Falls {
        fn read(&self, now: Instant) -> f64 {
            if now < self.0 { 1.0 } else { 0.0 }
        }
        fn falls_to(&self, _: f64, now: Instant) -> Option<Instant> {
            (now < self.0).then_some(self.0)
        }
    }
    let until = clock.after(clock.now(), 3 * SECOND);
    let mark = Trigger::above(Arc::new(Falls(until)), 0.5).on(&clock);
    let leg = TokenBucket::new(Quota::per_second(1).burst(2)).on(&clock).when(mark);
    let policy = Policy::builder().on(&clock).limit(leg).build().unwrap();
    let counts = [Count::new(), Count::new()];
    let mut large = pin!(policy.admit(5));
    assert!(counted(large.as_mut(), &counts[0]).is_pending());
    let mut small = pin!(policy.admit(1));
    assert!(counted(small.as_mut(), &counts[1]).is_pending());
    clock.advance(3 * SECOND);
    assert_eq!((counts[0].get(), counts[1].get()), (1, 1));
    assert!(matches!(counted(large, &counts[0]), Poll::Ready(Ok(_))));
    assert!(matches!(counted(small, &counts[1]), Poll::Ready(Ok(_))));
}

// ---- Legs that are not waited for

/// Other legs of the same policy are waited for as ever.
#[test]
fn a_leg_that_is_not_waited_for_refuses_at_once() {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(1));
    let leg = Arc::clone(&slots).at_once().named("slots");
    let policy = Policy::new(ten_a_second(&clock).and(leg));
    let held = slots.try_acquire().unwrap();
    let count = Count::new();
    let Poll::Ready(Err(refusal)) = counted(pin!(policy.admit(1)), &count) else {
        panic!("it waits for a slot");
    };
    assert_eq!((refusal.reason(), refusal.leg()), (Reason::Saturated, "slots"));
    drop(held);
    let mut wait = pin!(policy.admit(1));
    assert!(counted(wait.as_mut(), &count).is_pending());
    clock.advance(100 * MS);
    assert!(matches!(counted(wait, &count), Poll::Ready(Ok(_))));
}

#[test]
fn a_policy_shows_the_clock_of_its_legs_to_a_policy_around_it() {
    let inner = Policy::new(ten_a_second(&ManualClock::new()));
    let outer = Policy::builder().limit(inner).limit(ten_a_second(&ManualClock::new()));
    assert_eq!(outer.build().unwrap_err(), tollgate::PolicyError::OtherClock { leg: 1 });
}

/// Given a wait that was admitted on the spot, one that was admitted later, and one that was refused, when it is polled once more,
/// then it panics, and nothing is admitted by it.
#[test]
fn a_wait_that_has_ended_admits_nothing_when_it_is_polled_again() {
    let mut context = Context::from_waker(Waker::noop());
    for (units, waits) in [(1, false), (1, true), (9, false), (9, true)] {
        let policy = Policy::new(Semaphore::new(2));
        let mut held = waits.then(|| policy.try_admit(2).unwrap());
        let mut wait = pin!(policy.admit(units));
        if units == 1 && waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
            held = None;
        }
        let Poll::Ready(ended) = wait.as_mut().poll(&mut context) else {
            panic!("it has ended");
        };
        assert_eq!(ended.is_ok(), units == 1);
        drop(held);
        let again = catch_unwind(AssertUnwindSafe(|| wait.as_mut().poll(&mut context).is_ready()));
        assert!(again.is_err(), "{units}, {waits}");
        assert_eq!(
            policy.limiter().in_use(),
            usize::from(ended.is_ok()),
            "{units}, {waits}"
        );
    }
}

/// Given waiters at a semaphore of a channel, when it is closed, then each is woken, and refused for good.
#[cfg(feature = "channel")]
#[test]
fn waiters_at_a_channel_that_is_closed_are_refused_for_good() {
    let permits = Arc::new(tollgate::ChannelSemaphore::new(1));
    let policy = Policy::new(Arc::clone(&permits));
    let held = permits.receiver().try_recv().unwrap();
    let counts = [0, 1].map(|_| Arc::<Count>::default());
    let mut waits = [0, 1].map(|_| Box::pin(policy.admit(1)));
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(poll(wait.as_mut(), Arc::clone(count).into()).is_pending());
    }
    permits.close();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(count.0.load(SeqCst) > 0);
        let Poll::Ready(Err(refused)) = poll(wait.as_mut(), Waker::noop().clone()) else {
            panic!("it is refused");
        };
        assert_eq!(refused.reason(), Reason::Closed);
    }
    drop(held);
}
