//! Leases: what a thread parks, and that never more is admitted than the rate gave out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;
use tollgate::keyed::Shared;
use tollgate::{
    Ask, Cost, Demand, Leased, Limiter, LimiterExt, ManualClock, Policy, Quota, SlidingWindow, TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);

fn leased(clock: &ManualClock, rate: u64, burst: u64, units: u64) -> Leased<TokenBucket> {
    Leased::new(TokenBucket::new(Quota::per_second(rate).burst(burst)).on(clock), units)
}

#[test]
fn a_thread_takes_several_and_spends_them_alone() {
    let clock = ManualClock::new();
    let rate = leased(&clock, 10, 20, 8);
    assert_eq!(rate.units(), 8);
    for left in (0..8).rev() {
        rate.try_acquire(1).unwrap();
        assert_eq!((rate.parked_here(), rate.limiter().available()), (left, 12));
    }
    rate.try_acquire(1).unwrap();
    assert_eq!((rate.parked_here(), rate.limiter().available()), (7, 4));
    // More than is parked: what is there is part of the next lease.
    rate.try_acquire(6).unwrap();
    rate.try_acquire(3).unwrap();
    assert_eq!((rate.parked_here(), rate.limiter().available()), (1, 1));
    // As much as a lease, or more, is taken directly.
    clock.advance(SECOND);
    rate.try_acquire(9).unwrap();
    assert_eq!((rate.parked_here(), rate.limiter().available()), (1, 2));
}

#[test]
fn near_exhaustion_it_takes_only_the_need() {
    let clock = ManualClock::new();
    let rate = leased(&clock, 10, 10, 8);
    rate.try_acquire(8).unwrap();
    assert_eq!((rate.parked_here(), rate.limiter().available()), (0, 2));
    rate.try_acquire(1).unwrap();
    rate.try_acquire(1).unwrap();
    let refused = rate.try_acquire(1).unwrap_err();
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    clock.advance(Duration::from_millis(100));
    rate.try_acquire(1).unwrap();
    assert!(rate.try_acquire(1).is_err());
    // A lease that the burst never holds is none.
    let rate = leased(&clock, 10, 4, 8);
    assert_eq!((0..9).filter(|_| rate.try_acquire(1).is_ok()).count(), 4);
    assert_eq!(rate.parked_here(), 0);
}

#[test]
fn parked_tokens_can_be_returned() {
    let clock = ManualClock::new();
    let rate = leased(&clock, 10, 10, 8);
    rate.try_acquire(3).unwrap();
    rate.clone().release();
    assert_eq!((rate.parked_here(), rate.limiter().available()), (0, 7));
    rate.release();
    rate.try_acquire(1).unwrap();
    // It would have overflowed meanwhile: nothing comes back.
    clock.advance(SECOND);
    assert_eq!(rate.limiter().available(), 10);
    rate.limiter().try_acquire(10).unwrap();
    rate.release();
    assert_eq!(rate.limiter().available(), 0);
}

/// Given a thread that has parked some, when it ends, then they come back.
#[test]
fn the_tokens_of_a_thread_that_ends_go_back() {
    let clock = ManualClock::new();
    let (one, two) = (leased(&clock, 10, 10, 8), leased(&clock, 10, 10, 5));
    let others: Vec<_> = (0..20).map(|_| leased(&clock, 10, 10, 4)).collect();
    thread::scope(|scope| {
        // Joined by hand: the scope itself does not wait until a thread has dropped what is its own.
        let thread = scope.spawn(|| {
            one.try_acquire(2).unwrap();
            for other in &others {
                other.try_acquire(1).unwrap();
            }
            two.try_acquire(1).unwrap();
            one.try_acquire(1).unwrap();
            assert_eq!((one.parked_here(), two.parked_here()), (5, 4));
        });
        thread.join().unwrap();
    });
    assert_eq!((one.limiter().available(), two.limiter().available()), (7, 9));
    assert!(others.iter().all(|other| other.limiter().available() == 9));
    drop(others);
    two.try_acquire(1).unwrap();
}

/// More limiters than lie at hand, used by turns: each keeps what is parked of it.
#[test]
fn many_leases_in_one_thread_do_not_mix() {
    let clock = ManualClock::new();
    let rates: Vec<_> = (0..30).map(|_| leased(&clock, 1, 30, 10)).collect();
    for round in 1..=10 {
        for rate in &rates {
            rate.try_acquire(1).unwrap();
            assert_eq!((rate.parked_here(), rate.limiter().available()), (10 - round, 20));
        }
    }
}

#[test]
fn cancelled_and_settled_units_go_back_to_the_thread() {
    let clock = ManualClock::new();
    let rate = leased(&clock, 10, 20, 8);
    let reservation = rate.reserve(3).unwrap();
    assert_eq!(rate.parked_here(), 5);
    drop(reservation);
    assert_eq!((rate.parked_here(), rate.limiter().available()), (8, 12));

    let clones = rate.clone().per(TOKENS);
    let mut permit = clones.try_admit(Ask::one().cost(TOKENS, 6)).unwrap();
    permit.settle(TOKENS, 4).unwrap();
    assert_eq!(rate.parked_here(), 4);
    permit.settle(TOKENS, 20).unwrap();
    assert_eq!((rate.parked_here(), rate.limiter().available()), (4, 0));
    drop(permit);
    // Four of debt, and the four that are parked.
    clock.advance(Duration::from_millis(500));
    assert_eq!(rate.limiter().available(), 1);

    // Direct charges go to the limiter itself.
    rate.release();
    clock.advance(10 * SECOND);
    let mut permit = clones.try_admit(Ask::one().cost(TOKENS, 15)).unwrap();
    assert_eq!(rate.parked_here(), 0);
    permit.settle(TOKENS, 5).unwrap();
    permit.finish(tollgate::Outcome::Success);
    drop(clones.reserve(Ask::one().cost(TOKENS, 15)).unwrap());
    assert_eq!(rate.limiter().available(), 15);
}

#[test]
fn a_window_can_be_leased_too() {
    let clock = ManualClock::new();
    let window = SlidingWindow::new(10, SECOND).unwrap().on(&clock);
    let rate = Leased::new(Shared::new(window), 4).per(TOKENS);
    let ask = |units| Ask::one().cost(TOKENS, units);
    let mut permit = rate.try_admit(ask(1)).unwrap();
    permit.settle(TOKENS, 7).unwrap();
    drop(permit);
    // Four and six are counted; three are parked.
    assert_eq!((0..9).filter(|_| rate.try_admit(ask(1)).is_ok()).count(), 3);
}

/// The suite with real leases: every law but the third, which is broken by no more than what is parked.
#[cfg(feature = "conformance")]
#[test]
fn only_the_third_law_yields_to_parked_tokens() {
    let suite = tollgate::conformance::Suite::of_rate(6, Duration::from_millis(600), |clock| leased(clock, 10, 6, 3))
        .inexact_cancel();
    let violation = suite.run().unwrap_err();
    assert_eq!(violation.law(), Some(3), "{violation}");

    let clock = ManualClock::new();
    let rate = leased(&clock, 10, 6, 3);
    drop(rate.reserve(1).unwrap());
    clock.advance(SECOND);
    let at_once = (0..20).filter(|_| rate.try_acquire(1).is_ok()).count();
    assert_eq!(at_once, 6 + 3);
}

/// Given eight threads that take as fast as they can while time stands still and then moves on, when all is over, then
/// what they were admitted is at most what the bucket gave out, and with what came back exactly that.
#[test]
fn eight_threads_never_get_more_than_was_given_out() {
    let clock = ManualClock::new();
    let rate = leased(&clock, 1_000, 5_000, 32);
    let admitted = AtomicU64::new(0);
    let start = Barrier::new(8);
    let (ended, all_ended) = mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..8 {
            let (rate, admitted, start, clock, ended) = (&rate, &admitted, &start, &clock, ended.clone());
            scope.spawn(move || {
                start.wait();
                for turn in 0..2_000 {
                    let n = 1 + (turn + thread) % 3;
                    if rate.try_acquire(n).is_ok() {
                        admitted.fetch_add(n, Ordering::Relaxed);
                    }
                    if turn % 500 == 0 {
                        clock.advance(Duration::from_millis(100));
                    }
                }
                rate.release();
                ended.send(()).unwrap();
            });
        }
    });
    assert_eq!(all_ended.try_iter().count(), 8);
    let admitted = admitted.load(Ordering::Relaxed);
    let given_out = 5_000 + 8 * 4 * 100;
    let left = rate.limiter().available();
    assert!(admitted + left <= given_out, "{admitted} and {left} of {given_out}");
}

/// Given some that is parked, when more is asked for than there is, then the refusal and the look name the same instant, and it
/// is the first at which the thread is admitted.
#[test]
fn parked_tokens_bring_the_instant_forward() {
    for (spent, wanted) in [(2, 7), (2, 8), (3, 6), (7, 2), (7, 7)] {
        let clock = ManualClock::new();
        let rate = leased(&clock, 1, 8, 8);
        rate.try_acquire(spent).unwrap();
        let wait = rate.try_acquire(wanted).unwrap_err().retry_after().unwrap();
        let reading = tollgate::time::ClockReading::new();
        let ask = Ask::many(wanted);
        let ready = rate.ready_at(Demand::new(&ask, &reading));
        assert_eq!(
            ready.not_before(),
            Some(clock.after(clock.now(), wait)),
            "{spent}, {wanted}"
        );
        clock.advance(wait - Duration::from_nanos(1));
        assert!(rate.try_acquire(wanted).is_err());
        clock.advance(Duration::from_nanos(1));
        rate.try_acquire(wanted).unwrap();
    }
    // Six are parked, and two come in two seconds.
    let clock = ManualClock::new();
    let rate = leased(&clock, 1, 8, 8);
    rate.try_acquire(2).unwrap();
    assert_eq!(rate.try_acquire(7).unwrap_err().retry_after(), Some(SECOND * 2));
}

/// Given all of a budget that never refills, and a waiter for one, when a reservation is cancelled or settled to where it was
/// parked, then the waiter is woken.
#[test]
fn returned_tokens_wake_the_waiters() {
    let clock = ManualClock::new();
    let budget = TokenBucket::new(Quota::zero().burst(8)).on(&clock);
    let leased = Leased::new(budget, 8);
    let policy = Policy::new(leased.clone());
    let mut held: Vec<_> = (0..8).map(|_| leased.reserve(1).unwrap()).collect();
    clock.run(async {
        let mut wait = std::pin::pin!(policy.admit(1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(wait.as_mut().poll(&mut context).is_pending());
        held.pop();
        assert!(wait.as_mut().poll(&mut context).is_ready());
        let woken = std::sync::Arc::new(Woken(AtomicU64::new(0)));
        let waker = std::task::Waker::from(std::sync::Arc::clone(&woken));
        let mut wait = std::pin::pin!(policy.admit(1));
        assert!(
            wait.as_mut()
                .poll(&mut std::task::Context::from_waker(&waker))
                .is_pending()
        );
        held.pop();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(wait.as_mut().poll(&mut context).is_ready());
    });
}

struct Woken(AtomicU64);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
