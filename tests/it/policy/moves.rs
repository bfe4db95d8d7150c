//! Policies that share two legs with orders of their own: the head of each moves to the order of the leg that refuses it, which moves
//! the heads of the others. Each poll and each drop returns all the same, and all are served.

use futures::future::join_all;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::policy::Partitions;
use tollgate::{Ask, BoxLimiter, Clock, Cost, Legs, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);

type Wait = Pin<Box<dyn Future<Output = ()>>>;

/// Runs `play` on another thread. Fails instead of hanging when it does not return.
#[track_caller]
fn returns(play: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        play();
        let _ = tell.send(());
    });
    match told.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a poll or a drop has not returned"),
        _ => thread.join().unwrap(),
    }
}

fn is_pending(wait: &mut Wait) -> bool {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Polls a wait for `ask` once, and keeps it if it goes on.
fn join(policy: &Policy<impl tollgate::Limiter + 'static>, ask: impl Into<Ask>, waits: &mut Vec<Wait>) {
    let (policy, ask) = (policy.clone(), ask.into());
    let mut wait: Wait = Box::pin(async move { drop(policy.admit(ask).await.unwrap()) });
    if is_pending(&mut wait) {
        waits.push(wait);
    }
}

/// Polls all until each has ended. `pass` lets some time pass between two rounds.
fn end_all(mut waits: Vec<Wait>, pass: impl Fn()) {
    loop {
        waits.retain_mut(is_pending);
        if waits.is_empty() {
            return;
        }
        pass();
    }
}

/// Two policies of two rates and one of the first rate alone, with six asks, the later of which wait.
fn two_rates(clock: &Clock, per_second: Duration) -> Vec<Wait> {
    let quota = |count| Quota::new(count, per_second).unwrap().burst(3);
    let tokens = Arc::new(TokenBucket::new(quota(10)).on(clock));
    let calls = Arc::new(TokenBucket::new(quota(8)).on(clock));
    let both = || {
        let legs = Policy::builder().limit(Arc::clone(&tokens).per(TOKENS));
        legs.limit(Arc::clone(&calls)).build().unwrap()
    };
    let (a, b, c) = (both(), both(), Policy::new(Arc::clone(&tokens)));
    let mut waits = Vec::new();
    let ask = |calls, tokens| Ask::many(calls).cost(TOKENS, tokens);
    join(&a, ask(2, 1), &mut waits);
    join(&a, ask(2, 1), &mut waits);
    join(&b, ask(2, 1), &mut waits);
    join(&c, ask(2, 0), &mut waits);
    join(&c, ask(1, 0), &mut waits);
    join(&a, ask(1, 0), &mut waits);
    waits
}

#[test]
fn heads_at_two_shared_rates_are_polled_and_admitted_in_virtual_time() {
    returns(|| {
        let clock = ManualClock::new();
        let waits = two_rates(&clock, SECOND);
        end_all(waits, || clock.advance(Duration::from_millis(1)));
        assert!(clock.elapsed() < 2 * SECOND, "{:?}", clock.elapsed());
    });
}

/// The same by the timers alone, which stop virtual time wherever one fires.
#[test]
fn heads_at_two_shared_rates_are_woken_by_their_timers() {
    returns(|| {
        let clock = ManualClock::new();
        clock.run(async { join_all(two_rates(&clock, SECOND)).await });
        assert!(clock.elapsed() < 2 * SECOND, "{:?}", clock.elapsed());
    });
}

/// In real time too no poll goes on until the tokens come, minutes later.
#[test]
fn a_poll_of_a_head_at_two_shared_rates_returns_in_real_time() {
    returns(|| assert!(!two_rates(&Clock::real(), 600 * SECOND).is_empty()));
}

/// One permit, three places in two classes, and three policies that want them. All are taken, and come back while each policy has a
/// waiter.
fn semaphore_and_partition(clock: &Clock, pass: impl Fn()) {
    let connection = Arc::new(Semaphore::new(1));
    let places = Partitions::lent(3, 2).unwrap();
    let both = |class: usize| {
        let legs = Policy::builder().limit(Arc::clone(&connection));
        legs.limit(Arc::clone(places.class(class))).on(clock).build().unwrap()
    };
    let (a, b) = (both(0), both(1));
    let c = Policy::builder().limit(Arc::clone(places.class(0))).on(clock);
    let c = c.build().unwrap();
    let mut waits = Vec::new();
    let connected = a.try_admit(1).unwrap();
    join(&b, 1, &mut waits);
    let others = c.try_admit(2).unwrap();
    join(&a, 1, &mut waits);
    join(&c, 1, &mut waits);
    assert_eq!(waits.len(), 3);
    drop(connected);
    drop(others);
    end_all(waits, pass);
    assert_eq!((connection.in_use(), connection.waiting(), places.in_use()), (0, 0, 0));
}

#[test]
fn a_permit_that_comes_back_to_a_semaphore_and_a_partition_is_dropped_in_virtual_time() {
    returns(|| {
        let clock = ManualClock::new();
        semaphore_and_partition(&clock, || clock.advance(Duration::from_millis(1)));
        assert!(clock.elapsed() < Duration::from_millis(100), "{:?}", clock.elapsed());
    });
}

#[test]
fn a_permit_that_comes_back_to_a_semaphore_and_a_partition_is_dropped_in_real_time() {
    returns(|| semaphore_and_partition(&Clock::real(), std::thread::yield_now));
}

#[test]
fn heads_at_a_rate_and_a_partition_are_polled_and_admitted() {
    returns(|| {
        let clock = ManualClock::new();
        let rate = Arc::new(TokenBucket::new(Quota::per_second(10).burst(2)).on(&clock));
        let places = Partitions::lent(3, 2).unwrap();
        let both = |class: usize| {
            let legs = Policy::builder().limit(Arc::clone(&rate));
            legs.limit(Arc::clone(places.class(class))).build().unwrap()
        };
        let (a, b) = (both(0), both(1));
        let held = a.try_admit(2).unwrap();
        let mut waits = Vec::new();
        join(&b, 2, &mut waits);
        clock.advance(Duration::from_millis(60));
        join(&a, 2, &mut waits);
        for _ in 0..4 {
            clock.advance(Duration::from_millis(60));
            waits.retain_mut(is_pending);
        }
        assert_eq!(waits.len(), 2, "one of three places is left");
        drop(held);
        end_all(waits, || clock.advance(Duration::from_millis(60)));
    });
}

/// Three policies of 30 tasks each over one semaphore and two classes of one limit. In each second of virtual time each policy is
/// served.
#[test]
fn a_service_over_a_semaphore_and_two_classes_goes_on() {
    returns(|| {
        let clock = ManualClock::new();
        let connections = Arc::new(Semaphore::new(4));
        let places = Partitions::lent(8, 2).unwrap();
        let policy = |class: usize, connects: bool| -> Policy<BoxLimiter> {
            let connection = connects.then(|| Arc::clone(&connections).boxed());
            let place = Arc::clone(places.class(class)).boxed();
            let legs: Legs = connection.into_iter().chain([place]).collect();
            Policy::builder().limit(legs).on(&clock).boxed().build().unwrap()
        };
        let policies = [policy(0, true), policy(1, true), policy(0, false)];
        let served = [(); 3].map(|()| [(); 3].map(|()| Cell::new(0_u32)));
        let task = async |at: usize, seed: u64| {
            let mut draw = seed + 1;
            loop {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let permit = policies[at].admit(1 + (draw >> 40) % 2).await.unwrap();
                clock.sleep(Duration::from_micros((draw >> 50) % 3_000)).await;
                drop(permit);
                let second = clock.elapsed().as_secs() as usize;
                match served[at].get(second) {
                    Some(count) => count.set(count.get() + 1),
                    None => return,
                }
            }
        };
        let tasks = (0..90).map(|n| task(n % 3, n as u64));
        clock.run(join_all(tasks));
        for served in served {
            let served = served.map(Cell::into_inner);
            assert!(served.iter().all(|served| *served > 50), "{served:?}");
        }
    });
}
