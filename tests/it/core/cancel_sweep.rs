//! Every future of the public API, dropped after its k-th poll, for every k: afterwards it might as well never have
//! asked.
//!
//! A situation is a function that builds everything anew, drives it step by step and hands each future to [`Sweep`],
//! which drops it in time. The steps between the polls are what may happen to a waiter: a release, a grant, an instant.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{Ask, Clock, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};

type Step<'a> = Box<dyn Fn() + 'a>;

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls `future`, takes a step, polls again, and so on; drops it after `k` polls, once more after the step that follows.
/// False when it was ready before: then there is nothing more to sweep.
fn drop_after<F: Future>(future: F, k: usize, steps: &[Step<'_>], step_before_drop: bool) -> bool {
    let mut future = Box::pin(future);
    for poll_no in 0..k {
        if poll(future.as_mut()).is_ready() {
            return false;
        }
        if (poll_no + 1 < k || step_before_drop)
            && let Some(step) = steps.get(poll_no)
        {
            step();
        }
    }
    true
}

/// Calls `situation(k, step_before_drop)` for growing `k` until the future in it ends by itself; so each was dropped at
/// every poll.
fn sweep(what: &str, situation: impl Fn(usize, bool) -> bool) {
    for step_before_drop in [false, true] {
        let mut k = 0;
        while situation(k, step_before_drop) {
            k += 1;
            assert!(k < 50, "{what} never ends");
        }
    }
}

/// As good as new: the queue is empty, and all permits can be taken.
#[track_caller]
fn untouched(semaphore: &Semaphore, permits: usize) {
    assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
    assert_eq!((semaphore.available_permits(), semaphore.in_use()), (permits, 0));
    drop(semaphore.try_acquire_many(permits as u32).unwrap());
}

const PERMITS: usize = 3;

/// One future of a semaphore, free and contended: alone, at the head of the queue, behind another, granted and not polled.
fn sweep_semaphore<F: Future>(what: &str, make: impl Fn(&Arc<Semaphore>, &ManualClock) -> F) {
    let semaphore = || Arc::new(Semaphore::new(PERMITS));
    sweep(what, |k, step| {
        let (semaphore, clock) = (semaphore(), ManualClock::new());
        let more = drop_after(make(&semaphore, &clock), k, &[], step);
        untouched(&semaphore, PERMITS);
        more
    });
    sweep(what, |k, step| {
        let (semaphore, clock) = (semaphore(), ManualClock::new());
        let held: std::cell::RefCell<Vec<_>> = (0..PERMITS)
            .map(|_| semaphore.try_acquire().unwrap())
            .collect::<Vec<_>>()
            .into();
        let release = || -> Step<'_> { Box::new(|| drop(held.borrow_mut().pop())) };
        let more = drop_after(make(&semaphore, &clock), k, &[release(), release(), release()], step);
        held.borrow_mut().clear();
        untouched(&semaphore, PERMITS);
        more
    });
    sweep(what, |k, step| {
        let (semaphore, clock) = (semaphore(), ManualClock::new());
        let held = std::cell::RefCell::new(Some(semaphore.try_acquire_many(PERMITS as u32).unwrap()));
        let mut before = Some(Box::pin(semaphore.acquire_many(1)));
        assert!(before.as_mut().is_some_and(|before| poll(before.as_mut()).is_pending()));
        let before = std::cell::RefCell::new(before);
        let mut after = Box::pin(semaphore.acquire_many(1));
        let joined = std::cell::Cell::new(false);
        let after_cell = std::cell::RefCell::new(after.as_mut());
        let more = drop_after(
            make(&semaphore, &clock),
            k,
            &[
                Box::new(|| {
                    joined.set(true);
                    assert!(poll(after_cell.borrow_mut().as_mut()).is_pending());
                }),
                Box::new(|| drop(before.borrow_mut().take())),
                Box::new(|| drop(held.borrow_mut().take())),
            ],
            step,
        );
        // The waiter behind goes on, whatever became of the one in front.
        drop((before.borrow_mut().take(), held.borrow_mut().take()));
        if joined.get() {
            assert!(
                poll(after_cell.borrow_mut().as_mut()).is_ready(),
                "{what}: one behind is stuck"
            );
        }
        drop(after);
        untouched(&semaphore, PERMITS);
        more
    });
}

/// Keeps out tokio#904, effect#8391.
#[test]
fn an_acquire_dropped_at_any_poll_has_never_asked() {
    sweep_semaphore("acquire_owned", |semaphore, _| Arc::clone(semaphore).acquire_owned());
    sweep_semaphore("acquire_many_owned", |semaphore, _| {
        Arc::clone(semaphore).acquire_many_owned(2)
    });
    sweep_semaphore("acquire", |semaphore, _| {
        let semaphore = Arc::clone(semaphore);
        async move { semaphore.acquire().await.map(|_| ()) }
    });
    sweep_semaphore("acquire_many", |semaphore, _| {
        let semaphore = Arc::clone(semaphore);
        async move { semaphore.acquire_many(2).await.map(|_| ()) }
    });
}

/// The watching future is dropped, and nothing is left that sends every caller to the lock.
#[test]
fn a_watch_dropped_at_any_poll_has_never_asked() {
    sweep("a watch", |k, step| {
        let semaphore = Semaphore::new(PERMITS);
        let held = std::cell::RefCell::new(Some(semaphore.try_acquire_many(2).unwrap()));
        let release: Step<'_> = Box::new(|| drop(held.borrow_mut().take()));
        let more = drop_after(semaphore.until_idle(), k, &[release], step);
        drop(held.borrow_mut().take());
        untouched(&semaphore, PERMITS);
        more
    });
}

#[test]
fn an_acquire_with_a_deadline_dropped_at_any_poll_has_never_asked() {
    sweep_semaphore("acquire_many_until", |semaphore, clock| {
        let (semaphore, clock) = (Arc::clone(semaphore), clock.clone());
        async move {
            let deadline = clock.after(clock.now(), Duration::from_secs(1));
            semaphore.acquire_many_until(2, &clock, deadline).await.map(|_| ())
        }
    });
    // The deadline comes while it waits: whether or not it has been polled since, no timer and no place is left.
    sweep("a deadline that has come", |k, step| {
        let (semaphore, clock) = (Semaphore::new(1), ManualClock::new());
        let held = semaphore.try_acquire().unwrap();
        let deadline = clock.after(clock.now(), Duration::from_secs(1));
        let pass = || -> Step<'_> { Box::new(|| clock.advance(Duration::from_millis(500))) };
        let wait = semaphore.acquire_many_until(1, &clock, deadline);
        let more = drop_after(wait, k, &[pass(), pass()], step);
        assert!(!clock.advance_to_next_timer(), "a timer is left");
        drop(held);
        untouched(&semaphore, 1);
        more
    });
}

#[tokio::test(start_paused = true)]
async fn a_timed_acquire_dropped_at_any_poll_has_never_asked() {
    sweep_semaphore("acquire_timeout", |semaphore, _| {
        let semaphore = Arc::clone(semaphore);
        async move { semaphore.acquire_timeout(Duration::from_secs(3600)).await.map(|_| ()) }
    });
    sweep_semaphore("acquire_many_timeout", |semaphore, _| {
        let semaphore = Arc::clone(semaphore);
        async move {
            semaphore
                .acquire_many_timeout(2, Duration::from_secs(3600))
                .await
                .map(|_| ())
        }
    });
}

#[test]
fn a_sleep_dropped_at_any_poll_leaves_no_timer() {
    sweep("sleep", |k, step| {
        let clock = ManualClock::new();
        let at = clock.after(clock.now(), Duration::from_secs(2));
        let pass = || -> Step<'_> { Box::new(|| clock.advance(Duration::from_secs(1))) };
        let more = drop_after(clock.sleep_until(at), k, &[pass(), pass()], step);
        assert!(!clock.advance_to_next_timer(), "a timer is left");
        more
    });
}

/// Two tokens a second, two at most, and two in flight.
fn policy(clock: &Clock) -> Policy<impl tollgate::Limiter + 'static> {
    let bucket = TokenBucket::new(Quota::per_second(2).burst(2)).on(clock);
    Policy::new(bucket.and(Arc::new(Semaphore::new(2))))
}

/// One future of a policy: on the spot; waiting for an instant; waiting for a permit; behind another.
fn sweep_policy<F: Future>(what: &str, make: impl Fn(&Policy<Arc<tollgate::BoxLimiter>>) -> F) {
    for situation in ["free", "no token", "no permit", "behind another"] {
        sweep(what, |k, step| {
            let clock = ManualClock::new();
            let gate = Arc::new(policy(&clock).boxed());
            let policy = Policy::new(gate);
            let held: std::cell::RefCell<Vec<_>> = Vec::new().into();
            if situation != "free" {
                held.borrow_mut()
                    .extend([policy.try_admit(1).unwrap(), policy.try_admit(1).unwrap()]);
            }
            match situation {
                "no token" => held.borrow_mut().clear(),
                "no permit" => clock.advance(Duration::from_secs(1)),
                _ => {}
            }
            let mut before = Box::pin(policy.admit(1));
            let behind = situation == "behind another";
            if behind {
                assert!(poll(before.as_mut()).is_pending());
            }
            let before = std::cell::RefCell::new(Some(before));
            let release = || -> Step<'_> {
                Box::new(|| {
                    held.borrow_mut().pop();
                    clock.advance(Duration::from_millis(250));
                })
            };
            let leave: Step<'_> = Box::new(|| drop(before.borrow_mut().take()));
            let rest = Box::new(|| clock.advance(Duration::from_secs(1)));
            let more = drop_after(make(&policy), k, &[release(), release(), leave, rest], step);
            drop(before.borrow_mut().take());
            held.borrow_mut().clear();
            assert_eq!(policy.waiting(), 0, "{what}, {situation}: a place is left");
            clock.advance(Duration::from_secs(2));
            assert!(!clock.advance_to_next_timer(), "{what}, {situation}: a timer is left");
            let two = policy.try_admit(Ask::many(2));
            assert!(two.is_ok(), "{what}, {situation}, {k} polls: something was lost");
            assert!(
                policy.try_admit(1).is_err(),
                "{what}, {situation}: something was minted"
            );
            more
        });
    }
}

/// Keeps out effect#8391.
#[test]
fn an_admit_dropped_at_any_poll_has_never_asked() {
    sweep_policy("admit", |policy| {
        let policy = policy.clone();
        async move { policy.admit(1).await.is_ok() }
    });
    sweep_policy("admit_owned", |policy| {
        let policy = policy.clone();
        async move { policy.admit_owned(2).await.map(drop) }
    });
    sweep_policy("admit_timeout", |policy| {
        let policy = policy.clone();
        async move { policy.admit_timeout(1, Duration::from_secs(30)).await.is_ok() }
    });
}

/// Keeps out tokio#795.
#[test]
fn a_grant_that_was_not_polled_goes_to_the_next_when_it_is_dropped() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(1));
    let policy = Policy::builder()
        .on(&clock)
        .limit(Arc::clone(&semaphore))
        .build()
        .unwrap();
    let held = semaphore.try_acquire().unwrap();
    let mut first = Box::pin(policy.admit(1));
    let mut second = Box::pin(policy.admit(1));
    let mut lone = Box::pin(semaphore.acquire());
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    assert!(poll(lone.as_mut()).is_pending());
    drop(held);
    drop(first);
    let Poll::Ready(Ok(lone)) = poll(lone.as_mut()) else {
        panic!("the lone acquirer stood before the second in the semaphore's line")
    };
    drop(lone);
    assert!(poll(second.as_mut()).is_ready());
    untouched(&semaphore, 1);
}
