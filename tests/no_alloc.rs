//! What one admission costs besides time: no allocation, and one reading of the clock per phase.
//!
//! A binary of its own, since counting allocations replaces the allocator. They are counted per thread.
#![cfg(not(tollgate_loom))]

use std::sync::Mutex;
use std::time::Duration;
use tollgate::{
    Ask, ClockReading, Cost, Demand, Instant, Legs, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, ReadyAt,
    Refusal, Semaphore, SlidingWindow, Ticket, TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");

fn ask() -> Ask {
    Ask::one().cost(TOKENS, 10)
}

/// A waiter takes at most 80 bytes with its future, and none is kept when all have gone; a short line allocates once.
#[test]
fn a_waiter_takes_few_bytes_and_leaves_none() {
    let semaphore = Semaphore::new(0);
    let wait = |waiters: usize| {
        let mut line: Vec<_> = (0..waiters).map(|_| Box::pin(semaphore.acquire())).collect();
        for waiter in &mut line {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waiter.as_mut().poll(&mut cx).is_pending());
        }
        line
    };
    let all = allocation_counter::measure(|| {
        let mut line = Vec::new();
        // The boxes of the futures and their vector are ours.
        let one = std::mem::size_of_val(&semaphore.acquire()) as i64;
        let taken = allocation_counter::measure(|| line = wait(10_000));
        let queue = taken.bytes_current - 10_000 * (one + 8);
        assert!(
            (queue / 10_000 + one) <= 80,
            "{queue} bytes of queue, {one} each of future"
        );
        drop(line);
    });
    assert_eq!(all.bytes_current, 0, "all has been handed back");

    let short = allocation_counter::measure(|| drop(wait(20)));
    assert!(short.bytes_current > 0, "a little is kept");
    let again = allocation_counter::measure(|| drop(wait(20)));
    assert_eq!(
        (again.count_total, again.bytes_current),
        (21, 0),
        "20 futures and their vector"
    );
    let longer = allocation_counter::measure(|| drop(wait(40)));
    assert!(
        longer.bytes_current <= -short.bytes_current,
        "what was kept goes with the rest"
    );
}

/// Two buckets, a window and a semaphore, with plenty of room.
fn legs() -> impl Limiter<Ticket = impl Ticket> {
    let window = SlidingWindow::new(1_000_000, Duration::from_secs(1)).unwrap();
    TokenBucket::new(Quota::per_second(1_000_000))
        .per_call()
        .and(TokenBucket::new(Quota::per_second(10_000_000)).per(TOKENS))
        .and(window.per_call())
        .and(Semaphore::new(64).per_call())
}

/// The same, made by a builder.
fn built() -> Policy<impl Limiter<Ticket = impl tollgate::Ticket>> {
    Policy::builder()
        .limit(TokenBucket::new(Quota::per_second(1_000_000)))
        .limit(TokenBucket::new(Quota::per_second(10_000_000)).per(TOKENS))
        .limit(SlidingWindow::new(1_000_000, Duration::from_secs(1)).unwrap())
        .limit(Semaphore::new(64))
        .build()
        .unwrap()
}

/// How many allocations 1,000 runs of `work` make, after a first one.
fn allocations(work: impl Fn()) -> u64 {
    work();
    allocation_counter::measure(|| (0..1_000).for_each(|_| work())).count_total
}

/// Given a limiter, then admitting, settling, finishing, reserving and cancelling allocate nothing.
fn assert_allocates_nothing(limiter: &impl Limiter) {
    let all_ways = || {
        let mut permit = limiter.try_admit(ask()).unwrap();
        assert_eq!(permit.settle(TOKENS, 9), Ok(1));
        permit.finish(Outcome::Success);
        drop(limiter.try_admit(ask()).unwrap());
        drop(limiter.reserve(ask()).unwrap());
        limiter.reserve(ask()).unwrap().commit().finish(Outcome::Failure);
    };
    assert_eq!(allocations(all_ways), 0);
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1_000);
}

#[test]
fn a_static_composite_allocates_nothing_per_admission() {
    assert_allocates_nothing(&legs());
}

#[test]
fn a_boxed_composite_allocates_nothing_per_admission() {
    assert_allocates_nothing(&legs().boxed());
}

#[test]
fn a_policy_allocates_nothing_per_admission() {
    assert_allocates_nothing(&Policy::new(legs()));
    assert_allocates_nothing(&built());
    let legs: Legs = [legs().boxed(), Semaphore::new(64).boxed()].into_iter().collect();
    assert_allocates_nothing(&Policy::new(legs));
}

#[test]
fn a_refusal_and_its_retry_after_allocate_nothing() {
    let policy = Policy::builder()
        .limit(Semaphore::new(1))
        .limit(TokenBucket::new(Quota::per_hour(1)).named("hourly"))
        .build()
        .unwrap();
    drop(policy.try_admit(1).unwrap());
    let refused = || {
        let refusal = policy.try_admit(1).unwrap_err();
        assert_eq!(refusal.leg(), "hourly");
        assert!(refusal.retry_after().is_some());
    };
    assert_eq!(allocations(refused), 0);
}

#[test]
fn a_known_key_allocates_nothing() {
    let limiters = tollgate::Keyed::new(10, |_: &String| legs());
    let rates = tollgate::keyed::KeyedRate::<String>::new(10, Quota::per_second(1_000_000));
    assert_eq!(
        allocations(|| drop(limiters.get("a").unwrap().try_admit(ask()).unwrap())),
        0
    );
    assert_eq!(allocations(|| rates.try_acquire("a", 1).unwrap()), 0);
}

#[test]
fn admission_without_a_wait_allocates_nothing() {
    let policy = built();
    let clock = tollgate::Clock::real();
    // Running a future takes one allocation of its own, for the waker: the same with a future that does nothing.
    let plain = allocations(|| clock.run(async {}));
    let admitted = allocations(|| clock.run(async { drop(policy.admit(ask()).await.unwrap()) }));
    assert_eq!(admitted, plain);
}

/// A leg that lets time pass whenever it is asked, so that a second reading of the clock would show.
struct TimePasses(ManualClock);

impl Limiter for TimePasses {
    type Ticket = ();
    fn try_reserve(&self, _: Demand<'_>) -> Result<(), Refusal<'_>> {
        self.0.advance(Duration::from_secs(1));
        Ok(())
    }
    fn cancel(&self, (): (), _: &ClockReading) {
        self.0.advance(Duration::from_secs(1));
    }
    fn commit(&self, (): &mut (), _: &ClockReading) {
        self.0.advance(Duration::from_secs(1));
    }
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {
        self.0.advance(Duration::from_secs(1));
    }
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn tollgate::sync::WaitQueue)) {}
}

/// A leg that writes down at what instant it is asked to do what.
struct Logs {
    clock: ManualClock,
    log: Mutex<Vec<(&'static str, Instant)>>,
}

impl Logs {
    fn on(clock: &ManualClock) -> Self {
        Self {
            clock: clock.clone(),
            log: Mutex::default(),
        }
    }
    fn write(&self, what: &'static str, now: &ClockReading) {
        self.log.lock().unwrap().push((what, now.now(&self.clock)));
    }
    fn take(&self) -> Vec<(&'static str, Instant)> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Limiter for Logs {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        self.write("reserve", demand.reading());
        Ok(())
    }
    fn cancel(&self, (): (), now: &ClockReading) {
        self.write("cancel", now);
    }
    fn commit(&self, (): &mut (), now: &ClockReading) {
        self.write("commit", now);
    }
    fn finish(&self, (): (), _: Outcome, now: &ClockReading) {
        self.write("finish", now);
    }
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn tollgate::sync::WaitQueue)) {}
}

#[test]
fn all_legs_of_a_phase_share_one_reading_of_the_clock() {
    let clock = ManualClock::new();
    let (first, last) = (Logs::on(&clock), Logs::on(&clock));
    let legs = (&first).and(TimePasses(clock.clone())).and(&last);
    let start = clock.now();

    let reservation = legs.reserve(1).unwrap();
    assert_eq!(
        (first.take(), last.take()),
        (vec![("reserve", start)], vec![("reserve", start)])
    );
    let later = clock.now();
    assert!(later > start, "time passed between the two");
    drop(reservation);
    assert_eq!(
        (first.take(), last.take()),
        (vec![("cancel", later)], vec![("cancel", later)])
    );

    let start = clock.now();
    let permit = legs.try_admit(1).unwrap();
    let both = vec![("reserve", start), ("commit", start)];
    assert_eq!((first.take(), last.take()), (both.clone(), both));
    let end = clock.now();
    permit.finish(Outcome::Success);
    assert_eq!(
        (first.take(), last.take()),
        (vec![("finish", end)], vec![("finish", end)])
    );
}

/// Given a policy whose head waits for one permit more, when a permit of two legs comes back, then making its call after the last of
/// them allocates nothing: as much is allocated as where one leg gives back.
#[test]
fn a_call_that_waits_for_the_last_leg_allocates_nothing() {
    let ends = |limiter: &dyn Fn(&std::sync::Arc<Semaphore>) -> tollgate::BoxLimiter| {
        let slots = std::sync::Arc::new(Semaphore::new(1));
        let policy = Policy::new(std::sync::Arc::clone(&slots));
        let limiter = limiter(&slots);
        let end = || {
            let held = limiter.try_admit(1).unwrap();
            let mut waiter = Box::pin(policy.admit(1));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waiter.as_mut().poll(&mut cx).is_pending());
            let made = allocation_counter::measure(|| drop(held)).count_total;
            assert!(waiter.as_mut().poll(&mut cx).is_ready());
            made
        };
        end();
        end()
    };
    let one = ends(&|slots| std::sync::Arc::clone(slots).boxed());
    let two = ends(&|slots| std::sync::Arc::clone(slots).and(Semaphore::new(1)).boxed());
    assert_eq!(one, two);
}
