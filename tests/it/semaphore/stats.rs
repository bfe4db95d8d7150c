//! What a semaphore counts, and that counting changes nothing else.

use proptest::prelude::*;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;
use tollgate::{
    AcquireTimeoutError, Ask, Clock, LimiterExt, ManualClock, Policy, Quota, Semaphore, SemaphorePermit,
    SemaphoreStats, TokenBucket,
};

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn counted(permits: usize) -> Semaphore {
    Semaphore::new(permits).with_stats(&Clock::real())
}

/// Every waiter is counted once where its wait ended.
pub(crate) fn adds_up(stats: &SemaphoreStats) -> bool {
    let ended = stats.wait_time.count() + stats.left + stats.closed;
    stats.queued == ended + stats.waiting as u64
}

#[test]
fn one_that_was_not_asked_counts_nothing() {
    assert!(Semaphore::new(1).stats().is_none());
}

/// Keeps out tokio#6450, heph#238.
#[test]
fn each_outcome_is_counted_once() {
    let clock = ManualClock::new();
    let semaphore = Semaphore::new(1).with_stats(&clock);
    let held = semaphore.try_acquire().unwrap();
    assert!(semaphore.try_acquire().is_err());
    let mut granted = Box::pin(semaphore.acquire());
    assert!(poll(granted.as_mut()).is_pending());
    {
        let mut leaves = pin!(semaphore.acquire());
        assert!(poll(leaves.as_mut()).is_pending());
    }
    clock.advance(Duration::from_millis(500));
    let stats = semaphore.stats().unwrap();
    assert_eq!(stats.longest_wait, Duration::from_millis(500));
    drop(held);

    // It holds its permit, and has not looked at it.
    clock.advance(Duration::from_secs(60));
    let stats = semaphore.stats().unwrap();
    assert_eq!((stats.granted_unpolled, stats.in_use, stats.waiting), (1, 1, 0));
    assert_eq!(stats.longest_wait, Duration::ZERO);
    let permit = match poll(granted.as_mut()) {
        Poll::Ready(Ok(permit)) => permit,
        _ => panic!("its turn has come"),
    };

    let mut told = Box::pin(semaphore.acquire());
    assert!(poll(told.as_mut()).is_pending());
    semaphore.close();
    assert!(poll(told.as_mut()).is_ready());
    drop(permit);

    let stats = semaphore.stats().unwrap();
    assert_eq!((stats.admitted_at_once, stats.refused, stats.queued), (1, 1, 3));
    assert_eq!((stats.left, stats.closed), (1, 1));
    assert_eq!(
        (
            stats.granted_unpolled,
            stats.in_use,
            stats.peak_in_use,
            stats.peak_waiting
        ),
        (0, 0, 1, 2)
    );
    // A wait ends with the grant, not with the poll that finds it.
    let (shortest, longest) = (stats.wait_time.min(), stats.wait_time.max());
    assert_eq!(stats.wait_time.count(), 1);
    assert!(shortest <= Duration::from_millis(500) && longest >= Duration::from_millis(500));
    assert!(longest < Duration::from_millis(505));
    assert!(adds_up(&stats));
}

/// Keeps out failsafe#400.
#[test]
fn a_time_out_counts_as_a_cancelled_wait() {
    let clock = ManualClock::new();
    let semaphore = Semaphore::new(0).with_stats(&clock);
    let deadline = clock.after(clock.now(), Duration::from_secs(1));
    let ended = clock.run(semaphore.acquire_many_until(1, &clock, deadline));
    assert_eq!(ended.unwrap_err(), AcquireTimeoutError::TimedOut);
    assert!(semaphore.blocking_acquire_timeout(Duration::ZERO).is_err());
    let stats = semaphore.stats().unwrap();
    assert_eq!((stats.timed_out, stats.left, stats.queued), (2, 2, 2));
}

#[test]
fn the_longest_wait_is_that_of_the_oldest() {
    let clock = ManualClock::new();
    let semaphore = Semaphore::new(0).with_stats(&clock);
    let mut old = pin!(semaphore.acquire());
    assert!(poll(old.as_mut()).is_pending());
    clock.advance(Duration::from_secs(2));
    let mut new = pin!(semaphore.acquire());
    assert!(poll(new.as_mut()).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(semaphore.stats().unwrap().longest_wait, Duration::from_secs(3));
}

/// A policy finds out when it is its turn, as with a semaphore that does not count.
#[test]
fn a_policy_waits_for_one_that_counts() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(1).with_stats(&clock));
    let policy = Policy::new(semaphore.clone().named("in flight"));
    assert!(policy.try_admit(Ask::one()).is_ok());
    let held = semaphore.try_acquire().unwrap();
    let mut admitted = Box::pin(policy.admit(Ask::one()));
    assert!(poll(admitted.as_mut()).is_pending());
    drop(held);
    assert!(matches!(poll(admitted.as_mut()), Poll::Ready(Ok(_))));
    let stats = semaphore.stats().unwrap();
    assert_eq!((stats.granted_unpolled, stats.in_use, stats.waiting), (0, 0, 0));
    assert!(adds_up(&stats));
}

/// A snapshot agrees with itself, although permits come back without the lock.
#[test]
fn a_snapshot_agrees_with_itself() {
    let semaphore = counted(1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                semaphore.set_limit(200);
                let permits: Vec<_> = (0..200).filter_map(|_| semaphore.try_acquire().ok()).collect();
                semaphore.set_limit(0);
                drop(permits);
            }
        });
        for _ in 0..2_000 {
            let stats = semaphore.stats().unwrap();
            if stats.debt != stats.in_use.saturating_sub(stats.limit) {
                stop.store(true, Ordering::Relaxed);
                panic!("{} in use of {}, and {} in debt", stats.in_use, stats.limit, stats.debt);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The counts are exact, whichever threads count beside each other.
#[test]
fn threads_are_counted_exactly() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 2_000;
    let semaphore = counted(2);
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (semaphore, start) = (&semaphore, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    if (round + number).is_multiple_of(2) {
                        drop(semaphore.blocking_acquire().unwrap());
                    } else {
                        drop(semaphore.try_acquire());
                    }
                }
            });
        }
    });
    let stats = semaphore.stats().unwrap();
    let admitted = stats.admitted_at_once + stats.wait_time.count();
    assert_eq!(admitted + stats.refused, THREADS * ROUNDS);
    assert!(adds_up(&stats) && stats.peak_in_use <= 2);
    assert_eq!(
        (stats.in_use, stats.waiting, stats.granted_unpolled, stats.left),
        (0, 0, 0, 0)
    );
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Try(u32),
    Join(u32),
    Poll(usize),
    Leave(usize),
    Release(usize),
    Limit(usize),
    Forget(usize),
    Lose(usize),
    Add(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u32..4).prop_map(Op::Try),
        4 => (0u32..4).prop_map(Op::Join),
        4 => any::<usize>().prop_map(Op::Poll),
        2 => any::<usize>().prop_map(Op::Leave),
        4 => any::<usize>().prop_map(Op::Release),
        1 => (0usize..6).prop_map(Op::Limit),
        1 => (0usize..3).prop_map(Op::Forget),
        1 => any::<usize>().prop_map(Op::Lose),
        1 => (0usize..3).prop_map(Op::Add),
    ]
}

/// What a program sees of a semaphore, step by step.
fn trace(semaphore: &Semaphore, ops: &[Op]) -> Vec<(usize, usize, usize, usize, usize, bool)> {
    type Waiting<'a> = Pin<Box<dyn Future<Output = Option<SemaphorePermit<'a>>> + 'a>>;
    let mut waiting: Vec<Waiting<'_>> = Vec::new();
    let mut held: Vec<SemaphorePermit<'_>> = Vec::new();
    let mut seen = Vec::new();
    for op in ops {
        let mut result = true;
        match *op {
            Op::Try(n) => match semaphore.try_acquire_many(n) {
                Ok(permit) => held.push(permit),
                Err(_) => result = false,
            },
            Op::Join(n) => {
                let mut waiter: Waiting<'_> = Box::pin(async move { semaphore.acquire_many(n).await.ok() });
                match poll(waiter.as_mut()) {
                    Poll::Ready(permit) => held.extend(permit),
                    Poll::Pending => waiting.push(waiter),
                }
            }
            Op::Poll(at) if !waiting.is_empty() => {
                let at = at % waiting.len();
                match poll(waiting[at].as_mut()) {
                    Poll::Ready(permit) => {
                        held.extend(permit);
                        drop(waiting.remove(at));
                    }
                    Poll::Pending => result = false,
                }
            }
            Op::Leave(at) if !waiting.is_empty() => drop(waiting.remove(at % waiting.len())),
            Op::Release(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
            Op::Limit(limit) => semaphore.set_limit(limit),
            Op::Forget(n) => result = semaphore.forget_permits(n) == n,
            Op::Lose(at) if !held.is_empty() => held.swap_remove(at % held.len()).forget(),
            Op::Add(n) => semaphore.add_permits(n),
            _ => {}
        }
        let (available, limit) = (semaphore.available_permits(), semaphore.limit());
        seen.push((
            available,
            limit,
            semaphore.in_use(),
            semaphore.debt(),
            semaphore.waiting(),
            result,
        ));
        if let Some(stats) = semaphore.stats() {
            assert!(adds_up(&stats), "{stats:?}");
            let in_hand: usize = held.iter().map(SemaphorePermit::num_permits).sum();
            assert!(stats.in_use == in_hand || stats.granted_unpolled > 0);
            assert!(stats.peak_in_use >= stats.in_use && stats.peak_waiting >= stats.waiting);
        }
    }
    drop((waiting, held));
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (0, 0));
    seen
}

proptest! {
    #![proptest_config(crate::cases(3_000))]

    /// Given any program, then a semaphore that counts behaves as one that does not.
    #[test]
    fn counting_changes_nothing_else(permits in 0usize..5, ops in prop::collection::vec(op(), 0..80)) {
        let counting = counted(permits);
        prop_assert_eq!(trace(&Semaphore::new(permits), &ops), trace(&counting, &ops));
        prop_assert_eq!(counting.stats().unwrap().granted_unpolled, 0);
    }
}

/// Given a full semaphore that counts, behind a rate that would admit, then the refusals of the chain count as its own.
#[test]
fn a_refusal_as_the_last_of_a_chain_is_counted() {
    let clock = ManualClock::new();
    let semaphore = Semaphore::new(1).with_stats(&clock);
    let gate = TokenBucket::new(Quota::per_second(10)).on(&clock).and(&semaphore);
    let held = gate.try_admit(1).unwrap();
    assert!(gate.try_admit(1).is_err());
    assert_eq!(semaphore.stats().unwrap().refused, 1);
    drop(held);
}
