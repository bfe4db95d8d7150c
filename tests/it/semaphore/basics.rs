//! The semaphore: order, weights, resizing, cancelling, closing.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::{AcquireTimeoutError, Ask, LimiterExt, ManualClock, Reason, Semaphore, TryAcquireError};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

fn counts<const N: usize>() -> [Arc<Count>; N] {
    std::array::from_fn(|_| Arc::default())
}

/// Keeps out async-lock#23, go-huggingface#60.
#[test]
fn a_large_request_is_not_overtaken_by_small_ones() {
    let semaphore = Semaphore::new(2);
    let held = semaphore.try_acquire().unwrap();
    let [large, small] = counts();
    let mut first = pin!(semaphore.acquire_many(2));
    let mut second = pin!(semaphore.acquire());
    assert!(poll(first.as_mut(), &large).is_pending());
    assert!(
        poll(second.as_mut(), &small).is_pending(),
        "one is free, but not for a later waiter"
    );
    assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
    drop(held);
    let Poll::Ready(Ok(both)) = poll(first, &large) else {
        panic!("the head of the queue has what it wants")
    };
    assert!(poll(second.as_mut(), &small).is_pending());
    drop(both);
    assert!(poll(second, &small).is_ready());
    assert_eq!(semaphore.available_permits(), 2);
}

/// Keeps out shuttle#167.
#[test]
fn a_cancelled_head_frees_the_smaller_ones_behind_it_at_once() {
    let semaphore = Semaphore::new(2);
    let _held = semaphore.try_acquire().unwrap();
    let [head, next] = counts();
    let mut large = Box::pin(semaphore.acquire_many(2));
    let mut small = pin!(semaphore.acquire());
    assert!(poll(large.as_mut(), &head).is_pending());
    assert!(poll(small.as_mut(), &next).is_pending());
    drop(large);
    assert_eq!(next.0.load(Ordering::SeqCst), 1);
    assert!(poll(small, &next).is_ready());
}

/// Keeps out asyncio#270, asyncband#41.
#[test]
fn a_grant_that_is_dropped_unpolled_goes_to_the_next() {
    let semaphore = Semaphore::new(1);
    let held = semaphore.try_acquire().unwrap();
    let [first, second] = counts();
    let mut a = Box::pin(semaphore.acquire());
    let mut b = pin!(semaphore.acquire());
    assert!(poll(a.as_mut(), &first).is_pending());
    assert!(poll(b.as_mut(), &second).is_pending());
    drop(held);
    assert_eq!((first.0.load(Ordering::SeqCst), semaphore.in_use()), (1, 1));
    drop(a);
    assert_eq!(second.0.load(Ordering::SeqCst), 1);
    assert!(poll(b, &second).is_ready());
}

/// Keeps out tokio#6331.
#[test]
fn a_shrink_below_the_usage_admits_none_until_drained() {
    let semaphore = Semaphore::new(10);
    let mut held = semaphore.try_acquire_many(10).unwrap();
    semaphore.set_limit(5);
    assert_eq!(
        (semaphore.in_use(), semaphore.debt(), semaphore.available_permits()),
        (10, 5, 0)
    );
    drop(held.split(5).unwrap());
    assert_eq!((semaphore.in_use(), semaphore.debt()), (5, 0));
    assert!(semaphore.try_acquire().is_err());
    drop(held);
    assert_eq!((semaphore.available_permits(), semaphore.limit()), (5, 5));
}

#[test]
fn forgotten_permits_repay_the_debt() {
    let semaphore = Semaphore::new(3);
    let (one, two) = (semaphore.try_acquire().unwrap(), semaphore.try_acquire_many(2).unwrap());
    semaphore.set_limit(1);
    two.forget();
    assert_eq!((semaphore.limit(), semaphore.in_use(), semaphore.debt()), (0, 1, 1));
    one.forget();
    assert_eq!((semaphore.limit(), semaphore.in_use(), semaphore.debt()), (0, 0, 0));
    semaphore.add_permits(1);
    assert!(semaphore.try_acquire().is_ok());
}

/// Keeps out vector#21344.
#[test]
fn a_raised_limit_admits_from_the_front_while_they_fit() {
    let semaphore = Semaphore::new(0);
    let wakes = counts::<3>();
    let mut waits: Vec<_> = wakes
        .iter()
        .map(|count| {
            let mut wait = Box::pin(semaphore.acquire_many(2));
            assert!(poll(wait.as_mut(), count).is_pending());
            wait
        })
        .collect();
    semaphore.set_limit(5);
    let ready: Vec<_> = waits
        .iter_mut()
        .zip(&wakes)
        .map(|(wait, count)| poll(wait.as_mut(), count))
        .collect();
    assert_eq!(
        ready.iter().map(Poll::is_ready).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (4, 1));
}

/// Keeps out tokio#2514, tokio#5144, tokio#2539, gel#7866.
#[test]
fn any_order_of_resizes_ends_where_the_last_one_says() {
    let semaphore = Semaphore::new(4);
    let held = semaphore.try_acquire_many(3).unwrap();
    for limit in [0, 7, 2, usize::MAX, 1, 4] {
        semaphore.set_limit(limit);
        assert_eq!(semaphore.limit(), limit.min(Semaphore::MAX_PERMITS));
        assert_eq!(semaphore.in_use(), 3);
    }
    drop(held);
    assert_eq!(semaphore.available_permits(), 4);
}

#[test]
fn closing_ends_every_wait_and_leaves_held_permits_valid() {
    let semaphore = Semaphore::new(1);
    let held = semaphore.try_acquire().unwrap();
    let [count] = counts();
    let mut wait = pin!(semaphore.acquire());
    assert!(poll(wait.as_mut(), &count).is_pending());
    semaphore.close();
    semaphore.close();
    assert!(matches!(poll(wait, &count), Poll::Ready(Err(_))));
    assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::Closed);
    assert_eq!(semaphore.try_admit(1).unwrap_err().reason(), Reason::Closed);
    drop(held);
    assert_eq!(semaphore.available_permits(), 1);
    assert!(semaphore.is_closed());
    assert_eq!(semaphore.forget_permits(5), 1);
    assert!(semaphore.is_closed(), "to forget permits does not open it again");
}

/// Keeps out failsafe#400.
#[test]
fn a_timed_wait_ends_at_its_deadline_and_leaves_no_trace() {
    let clock = ManualClock::new();
    let semaphore = Semaphore::new(1);
    let held = semaphore.try_acquire().unwrap();
    clock.run(async {
        let deadline = clock.after(clock.now(), Duration::from_secs(2));
        let late = semaphore.acquire_many_until(1, &clock, deadline).await;
        assert_eq!(late.unwrap_err(), AcquireTimeoutError::TimedOut);
        assert_eq!(clock.elapsed(), Duration::from_secs(2));
    });
    assert_eq!(semaphore.waiting(), 0);
    drop(held);
    assert_eq!(semaphore.available_permits(), 1);
    assert_eq!(
        semaphore.blocking_acquire_many_timeout(2, Duration::ZERO).unwrap_err(),
        AcquireTimeoutError::TimedOut
    );
    assert_eq!((semaphore.waiting(), semaphore.available_permits()), (0, 1));
}

#[test]
fn more_than_the_limit_waits_for_a_raise_and_is_oversized_for_an_admission() {
    let semaphore = Semaphore::new(1);
    let [count] = counts();
    let mut wait = pin!(semaphore.acquire_many(3));
    assert!(poll(wait.as_mut(), &count).is_pending());
    semaphore.set_limit(3);
    assert!(poll(wait, &count).is_ready());
    semaphore.set_limit(2);
    let reason = |units| semaphore.try_admit(Ask::many(units)).unwrap_err().reason();
    let most = Semaphore::MAX_PERMITS as u64;
    assert_eq!([3, 4, most + 1, u64::MAX].map(reason), [Reason::Oversized; 4]);
    // A limit of zero is a pause.
    semaphore.set_limit(0);
    assert_eq!(
        [1, most, most + 1].map(reason),
        [Reason::Saturated, Reason::Saturated, Reason::Oversized]
    );
}

/// Given a caller that waits for more than the limit, then it holds up those behind it until the limit is raised, and no longer.
#[test]
fn a_request_above_the_limit_stops_the_queue_until_the_raise() {
    let semaphore = Semaphore::new(2);
    let [count] = counts();
    let (mut large, mut small) = (pin!(semaphore.acquire_many(3)), pin!(semaphore.acquire()));
    assert!(poll(large.as_mut(), &count).is_pending() && poll(small.as_mut(), &count).is_pending());
    semaphore.set_limit(4);
    let both = (poll(large, &count), poll(small, &count));
    assert!(both.0.is_ready() && both.1.is_ready());
    drop(both);
    semaphore.set_limit(2);
    assert!(semaphore.try_acquire_many(2).is_ok());
}

/// Keeps out parking_lot#29.
#[test]
fn blocked_threads_and_futures_wait_in_one_queue() {
    let semaphore = Semaphore::new(1);
    let held = semaphore.try_acquire().unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for index in 0..3 {
            let (semaphore, order) = (&semaphore, &order);
            scope.spawn(move || {
                let permit = if index == 1 {
                    futures::executor::block_on(semaphore.acquire()).unwrap()
                } else {
                    semaphore.blocking_acquire().unwrap()
                };
                order.lock().unwrap().push(index);
                drop(permit);
            });
            while semaphore.waiting() <= index {
                std::thread::yield_now();
            }
        }
        drop(held);
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn forgotten_permits_are_gone_and_added_ones_are_there() {
    let semaphore = Semaphore::new(5);
    semaphore.try_acquire_many(2).unwrap().forget();
    assert_eq!(
        (semaphore.limit(), semaphore.available_permits(), semaphore.in_use()),
        (3, 3, 0)
    );
    assert_eq!(semaphore.forget_permits(9), 3);
    semaphore.add_permits(4);
    assert_eq!((semaphore.limit(), semaphore.available_permits()), (4, 4));
}

/// A waiter at the close that is not polled any more has nothing to return; a granted one has.
#[test]
fn a_wait_dropped_after_the_close_returns_its_permits() {
    let semaphore = Semaphore::new(2);
    let held = semaphore.try_acquire_many(2).unwrap();
    let [granted, waiting] = counts();
    let mut first = Box::pin(semaphore.acquire_many(2));
    let mut second = Box::pin(semaphore.acquire());
    assert!(poll(first.as_mut(), &granted).is_pending());
    assert!(poll(second.as_mut(), &waiting).is_pending());
    drop(held);
    semaphore.close();
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (2, 0));
    drop(second);
    assert_eq!(semaphore.in_use(), 2);
    drop(first);
    assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, 2));
}

/// More waiters than fit into one chunk of places are distinguished, and served in order.
#[test]
fn three_thousand_wait_in_order() {
    const WAITERS: usize = 3_000;
    let semaphore = Semaphore::new(1);
    let mut held = semaphore.try_acquire().ok();
    let count = Arc::new(Count::default());
    let mut waiters: Vec<_> = (0..WAITERS).map(|_| Box::pin(semaphore.acquire())).collect();
    for waiter in &mut waiters {
        assert!(poll(waiter.as_mut(), &count).is_pending());
    }
    assert_eq!(semaphore.waiting(), WAITERS);
    // Every third leaves, from the middle outwards and back.
    for at in (1..WAITERS / 2)
        .step_by(3)
        .chain((WAITERS / 2..WAITERS).rev().step_by(3))
    {
        waiters[at] = Box::pin(semaphore.acquire());
    }
    let mut served = 0;
    for waiter in &mut waiters {
        drop(held.take());
        let before = count.0.load(Ordering::SeqCst);
        match poll(waiter.as_mut(), &count) {
            Poll::Ready(permit) => {
                held = permit.ok();
                served += 1;
            }
            // It came anew, and stands behind all.
            Poll::Pending => assert_eq!(before, count.0.load(Ordering::SeqCst)),
        }
    }
    assert!(served >= WAITERS / 3, "{served} were served in the first round");
    drop((held, waiters));
    assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
}

/// The greatest possible debt is distinguished from a queue.
#[test]
fn the_greatest_debt_is_a_debt() {
    let most = Semaphore::MAX_PERMITS;
    let semaphore = Semaphore::new(most);
    let all = semaphore.try_admit(Ask::many(most as u64)).unwrap();
    assert_eq!(
        (semaphore.in_use(), semaphore.debt(), semaphore.available_permits()),
        (most, 0, 0)
    );
    semaphore.set_limit(0);
    assert_eq!(
        (semaphore.in_use(), semaphore.debt(), semaphore.available_permits()),
        (most, most, 0)
    );
    assert!(!semaphore.is_closed() && semaphore.forget_permits(1) == 0);
    semaphore.set_limit(1);
    assert_eq!((semaphore.in_use(), semaphore.debt()), (most, most - 1));
    drop(all);
    assert_eq!(
        (semaphore.in_use(), semaphore.debt(), semaphore.available_permits()),
        (0, 0, 1)
    );
}

#[test]
fn its_debug_form_shows_its_counts() {
    let semaphore = Semaphore::new(3);
    let held = semaphore.try_acquire().unwrap();
    let text = format!("{semaphore:?}");
    drop(held);
    for part in ["limit: 3", "available: 2"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A count of permits is as wide as the semaphore, not as what one request can ask for.
/// Keeps out tokio#8395.
#[test]
fn merged_permits_beyond_a_u32_are_all_given_back() {
    let limit = u32::MAX as usize * 2;
    let semaphore = Semaphore::new(limit);
    let mut one = semaphore.try_acquire_many(u32::MAX).unwrap();
    one.merge(semaphore.try_acquire_many(u32::MAX).unwrap());
    assert_eq!((one.num_permits(), semaphore.available_permits()), (limit, 0));
    drop(one);
    assert_eq!(semaphore.available_permits(), limit);
}

#[test]
fn the_queue_gives_its_memory_back_and_reuses_places() {
    let semaphore = Semaphore::new(0);
    let [count] = counts();
    for _ in 0..3 {
        let mut waits: Vec<_> = (0..1_000).map(|_| Box::pin(semaphore.acquire())).collect();
        for wait in &mut waits {
            assert!(poll(wait.as_mut(), &count).is_pending());
        }
        assert_eq!(semaphore.waiting(), 1_000);
        drop(waits.split_off(500));
        semaphore.add_permits(500);
        for wait in &mut waits {
            let Poll::Ready(Ok(permit)) = poll(wait.as_mut(), &count) else {
                panic!("granted")
            };
            permit.forget();
        }
        assert_eq!((semaphore.waiting(), semaphore.limit()), (0, 0));
    }
}

/// Holders never exceed the limit in force, while tasks acquire and the limit moves.
#[test]
fn in_use_never_exceeds_the_limit_in_force_at_admission() {
    let semaphore = Arc::new(Semaphore::new(4));
    let peak = AtomicUsize::new(0);
    let running = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2_000u32 {
                    let n = round % 3 + 1;
                    let permit = semaphore.blocking_acquire_many(n).unwrap();
                    let now = running.fetch_add(n as usize, Ordering::SeqCst) + n as usize;
                    peak.fetch_max(now, Ordering::SeqCst);
                    running.fetch_sub(n as usize, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
        scope.spawn(|| {
            for limit in (3..=6).cycle().take(4_000) {
                semaphore.set_limit(limit);
            }
            semaphore.set_limit(4);
        });
    });
    assert!(peak.load(Ordering::SeqCst) <= 6);
    assert_eq!(
        (semaphore.available_permits(), semaphore.in_use(), semaphore.waiting()),
        (4, 0, 0)
    );
}
