//! What one admission costs besides time: no allocation, and one reading of the clock for all legs.
//!
//! A binary of its own, since counting allocations replaces the allocator. They are counted per thread.
#![cfg(not(tollgate_loom))]

use std::sync::Mutex;
use std::time::Duration;
use tollgate::{
    Ask, Cost, Demand, Description, Instant, Legs, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Refusal,
    Semaphore, SlidingWindow, Ticket, TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");

fn ask() -> Ask {
    Ask::one().cost(TOKENS, 10)
}

/// A waiter takes at most 104 bytes with its future, and its queue keeps less than 640 bytes when all have gone.
#[test]
fn a_waiter_takes_few_bytes_and_leaves_fewer() {
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
            (queue / 10_000 + one) <= 104,
            "{queue} bytes of queue, {one} each of future"
        );
        drop(line);
    });
    assert!(all.bytes_current < 640, "{} bytes are kept", all.bytes_current);
}

/// Two buckets, a window and a semaphore, with plenty of room.
fn legs() -> impl Limiter<Ticket = impl Ticket> {
    let window = SlidingWindow::new(1_000_000, Duration::from_secs(1)).unwrap();
    (
        TokenBucket::new(Quota::per_second(1_000_000)),
        TokenBucket::new(Quota::per_second(10_000_000)).per(TOKENS),
        window,
        Semaphore::new(64),
    )
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

/// Given a limiter, then admitting, settling, finishing and cancelling allocate nothing.
fn assert_allocates_nothing(limiter: &impl Limiter) {
    let all_ways = || {
        let mut permit = limiter.try_admit(ask()).unwrap();
        assert_eq!(permit.settle(TOKENS, 9), Ok(1));
        permit.finish(Outcome::Success);
        drop(limiter.try_admit(ask()).unwrap());
        limiter.try_admit(ask()).unwrap().cancel();
        limiter.try_admit(ask()).unwrap().finish(Outcome::Failure);
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
    let legs = Legs::new().and(legs()).and(Semaphore::new(64));
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
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        self.0.advance(Duration::from_secs(1));
        Ok(())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.try_reserve(demand)
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("time passes"));
    }
}

/// A leg that writes down the instants at which it is asked.
struct Logs {
    clock: ManualClock,
    log: Mutex<Vec<Instant>>,
}

impl Logs {
    fn on(clock: &ManualClock) -> Self {
        Self {
            clock: clock.clone(),
            log: Mutex::default(),
        }
    }
    fn take(&self) -> Vec<Instant> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Limiter for Logs {
    type Ticket = ();
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.log.lock().unwrap().push(demand.now(&self.clock));
        Ok(())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.try_reserve(demand)
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("logs"));
    }
}

#[test]
fn all_legs_of_an_admission_share_one_reading_of_the_clock() {
    let clock = ManualClock::new();
    let (first, last) = (Logs::on(&clock), Logs::on(&clock));
    let legs = (&first, TimePasses(clock.clone()), &last);
    for _ in 0..2 {
        let start = clock.now();
        legs.try_admit(1).unwrap().finish(Outcome::Success);
        assert!(clock.now() > start, "time passed between the two");
        assert_eq!((first.take(), last.take()), (vec![start], vec![start]));
    }
}
