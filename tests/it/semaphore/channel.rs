//! The channel semaphore: permits that are messages, resizing with holders in flight, closing beside waiters, and
//! selects.

use crossbeam_channel::{RecvError, RecvTimeoutError, Select, TryRecvError, bounded, never, select, unbounded};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use tollgate::{Ask, ChannelSemaphore, ChannelToken, LimiterExt, ManualClock, Permit, Policy, Reason, Semaphore, Wait};

fn semaphore(limit: usize) -> Arc<ChannelSemaphore> {
    Arc::new(ChannelSemaphore::new(limit))
}

/// Limit, in use, debt, free.
#[track_caller]
fn numbers(semaphore: &ChannelSemaphore, expected: [usize; 4]) {
    let seen = [
        semaphore.limit(),
        semaphore.in_use(),
        semaphore.debt(),
        semaphore.available_permits(),
    ];
    assert_eq!(seen, expected, "limit, in use, debt, free");
}

fn receive(semaphore: &ChannelSemaphore, n: usize) -> Vec<ChannelToken> {
    let tokens: Vec<_> = semaphore.receiver().try_iter().take(n).collect();
    assert_eq!(tokens.len(), n);
    tokens
}

#[test]
fn one_permit_does_not_pass_a_policy_that_waits_for_two() {
    let clock = ManualClock::new();
    let semaphore = semaphore(2);
    let policy = Policy::builder()
        .limit(Arc::clone(&semaphore))
        .on(&clock)
        .build()
        .unwrap();
    let held = semaphore.try_admit(1).unwrap();
    let mut waiter = pin!(policy.admit(2));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiter.as_mut().poll(&mut cx).is_pending());
    assert_eq!(semaphore.try_admit(1).unwrap_err().reason(), Reason::Saturated);
    drop(held);
    assert!(waiter.poll(&mut cx).is_ready());
}

#[test]
fn its_debug_form_shows_its_counts() {
    let semaphore = ChannelSemaphore::new(3);
    let held = receive(&semaphore, 1);
    let text = format!("{semaphore:?}");
    drop(held);
    for part in ["limit: 3", "in_use: 1", "closed: false"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_message_is_a_permit_and_comes_back_when_it_is_dropped() {
    let semaphore = semaphore(2);
    let token = semaphore.receiver().recv().unwrap();
    numbers(&semaphore, [2, 1, 0, 1]);
    let borrowed = semaphore.try_admit(1).unwrap();
    assert_eq!(semaphore.try_admit(1).unwrap_err().reason(), Reason::Saturated);
    assert_eq!(semaphore.receiver().try_recv().unwrap_err(), TryRecvError::Empty);
    numbers(&semaphore, [2, 2, 0, 0]);
    // On another thread, while unwinding: it knows where it came from.
    let unwound = thread::spawn(move || {
        let _token = token;
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(unwound.join().is_err());
    drop(borrowed);
    numbers(&semaphore, [2, 0, 0, 2]);
}

#[test]
fn owned_permits_keep_the_semaphore_open_and_tokens_do_not() {
    let semaphore = semaphore(2);
    let receiver = semaphore.receiver().clone();
    let permit = semaphore.try_admit_owned(1).unwrap();
    drop(semaphore);
    let token = receiver.recv().unwrap();
    drop(permit);
    // The last handle has gone: the free permits are gone too, and the channel is disconnected.
    assert_eq!(receiver.recv().unwrap_err(), RecvError);
    drop(token);
    assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Disconnected);
}

#[test]
fn a_shrink_takes_free_permits_first_and_then_makes_debt() {
    let semaphore = semaphore(5);
    let mut held: VecDeque<_> = receive(&semaphore, 3).into();
    semaphore.set_limit(4);
    numbers(&semaphore, [4, 3, 0, 1]);
    semaphore.set_limit(1);
    numbers(&semaphore, [1, 3, 2, 0]);
    held.pop_front();
    numbers(&semaphore, [1, 2, 1, 0]);
    // A raise forgives the remaining debt, and makes the rest.
    semaphore.set_limit(3);
    numbers(&semaphore, [3, 2, 0, 1]);
    semaphore.set_limit(0);
    numbers(&semaphore, [0, 2, 2, 0]);
    drop(held);
    numbers(&semaphore, [0, 0, 0, 0]);
    semaphore.set_limit(2);
    numbers(&semaphore, [2, 0, 0, 2]);
}

#[test]
fn forgotten_permits_come_off_the_limit() {
    let semaphore = semaphore(4);
    semaphore.receiver().recv().unwrap().forget();
    semaphore.try_admit(2).unwrap().forget();
    numbers(&semaphore, [1, 0, 0, 1]);
    let held = semaphore.try_admit(1).unwrap();
    semaphore.set_limit(0);
    held.forget();
    numbers(&semaphore, [0, 0, 0, 0]);
}

#[test]
fn several_are_taken_together_or_not_at_all() {
    let semaphore = semaphore(3);
    let two = semaphore.try_admit(2).unwrap();
    assert_eq!(semaphore.try_admit(2).unwrap_err().reason(), Reason::Saturated);
    numbers(&semaphore, [3, 2, 0, 1]);
    let none = semaphore.try_admit(0).unwrap();
    assert_eq!(semaphore.try_admit(u64::MAX).unwrap_err().reason(), Reason::Oversized);
    semaphore.set_limit(2);
    drop((two, none));
    numbers(&semaphore, [2, 0, 0, 2]);
}

#[test]
fn a_limit_above_the_greatest_counts_as_that() {
    let most = ChannelSemaphore::MAX_PERMITS;
    assert!(std::panic::catch_unwind(|| ChannelSemaphore::new(most + 1)).is_err());
    let semaphore = semaphore(1);
    semaphore.set_limit(usize::MAX);
    numbers(&semaphore, [most, 0, 0, most]);
}

#[test]
fn demands_are_refused_by_their_reason() {
    let semaphore = semaphore(2);
    let most = ChannelSemaphore::MAX_PERMITS as u64;
    let refused = semaphore.try_admit(most + 1).unwrap_err();
    assert_eq!((refused.reason(), refused.wait()), (Reason::Oversized, Wait::Never));
    let refused = semaphore.try_admit(3).unwrap_err();
    assert_eq!((refused.reason(), refused.wait()), (Reason::Oversized, Wait::Never));
    // A limit of zero is a pause.
    semaphore.set_limit(0);
    let refused = semaphore.try_admit(3).unwrap_err();
    assert_eq!((refused.reason(), refused.wait()), (Reason::Saturated, Wait::EVENT));
    semaphore.set_limit(2);
    assert!(semaphore.try_admit(0).is_ok());
    semaphore.close();
    for units in [0, 1, 2] {
        assert_eq!(semaphore.try_admit(units).unwrap_err().reason(), Reason::Closed);
    }
}

#[test]
fn a_wait_without_time_takes_only_free_permits() {
    let semaphore = semaphore(1);
    let held = semaphore.receiver().recv_timeout(Duration::ZERO).unwrap();
    let late = semaphore.receiver().recv_timeout(Duration::ZERO);
    assert_eq!(late.unwrap_err(), RecvTimeoutError::Timeout);
    drop(held);
    drop(semaphore.receiver().recv_timeout(Duration::MAX).unwrap());
    numbers(&semaphore, [1, 0, 0, 1]);
}

/// Given threads that wait in every way there is, when the semaphore closes, then each is refused; permits that are held
/// stay valid, and nothing is free ever after.
#[test]
fn closing_notifies_all_waiters() {
    let semaphore = semaphore(1);
    let held = semaphore.try_admit(1).unwrap();
    let (ready, all_ready) = bounded(3);
    let waiting: Vec<_> = (0..3)
        .map(|way| {
            let (semaphore, ready) = (Arc::clone(&semaphore), ready.clone());
            thread::spawn(move || {
                ready.send(()).unwrap();
                match way {
                    0 => assert_eq!(semaphore.receiver().recv().unwrap_err(), RecvError),
                    1 => assert_eq!(
                        semaphore.receiver().recv_timeout(Duration::MAX).unwrap_err(),
                        RecvTimeoutError::Disconnected
                    ),
                    _ => select! {
                        recv(semaphore.receiver()) -> token => assert_eq!(token.unwrap_err(), RecvError),
                        recv(never::<()>()) -> _ => unreachable!("nothing comes from there"),
                    },
                }
            })
        })
        .collect();
    for _ in 0..3 {
        all_ready.recv().unwrap();
    }
    semaphore.close();
    for thread in waiting {
        thread.join().unwrap();
    }
    assert!(semaphore.is_closed());
    numbers(&semaphore, [1, 1, 0, 0]);
    drop(held);
    semaphore.set_limit(7);
    semaphore.close();
    numbers(&semaphore, [7, 0, 0, 0]);
    assert_eq!(semaphore.receiver().try_recv().unwrap_err(), TryRecvError::Disconnected);
    for several in [1, 2] {
        assert_eq!(semaphore.try_admit(several).unwrap_err().reason(), Reason::Closed);
    }
}

/// Given a permit and a message that are both there, whichever branch wins, the other has taken nothing.
#[test]
fn the_branch_that_loses_has_taken_nothing() {
    let semaphore = semaphore(1);
    let (send, messages) = unbounded();
    let (mut permits, mut others) = (0, 0);
    for _ in 0..200 {
        send.send(()).unwrap();
        select! {
            recv(semaphore.receiver()) -> token => {
                permits += 1;
                let token = token.unwrap();
                numbers(&semaphore, [1, 1, 0, 0]);
                assert!(!messages.is_empty());
                drop(token);
            }
            recv(messages) -> message => {
                others += 1;
                message.unwrap();
                numbers(&semaphore, [1, 0, 0, 1]);
                send.send(()).unwrap();
            }
        }
        numbers(&semaphore, [1, 0, 0, 1]);
        messages.recv().unwrap();
    }
    assert!(permits > 0 && others > 0, "of 200 each branch wins some");
}

/// Given the two steps of a dynamic select, when the work of the branch is abandoned after its permit has come, then the
/// permit has gone back.
#[test]
fn a_branch_that_is_abandoned_gives_its_token_back() {
    let semaphore = semaphore(1);
    let nothing = never::<()>();
    let mut select = Select::new();
    let permit = select.recv(semaphore.receiver());
    select.recv(&nothing);
    let operation = select.select();
    assert_eq!(operation.index(), permit);
    let abandoned = (|| -> Result<(), &'static str> {
        let _token = operation.recv(semaphore.receiver()).map_err(|_| "closed")?;
        numbers(&semaphore, [1, 1, 0, 0]);
        Err("not worth it any more")
    })();
    assert_eq!(abandoned, Err("not worth it any more"));
    numbers(&semaphore, [1, 0, 0, 1]);
}

/// A select that is blocked is woken by a raised limit, and by a permit that comes back.
#[test]
fn a_blocked_select_is_woken_by_any_release() {
    let semaphore = semaphore(0);
    let (taken, told) = bounded(0);
    let waiting = thread::spawn({
        let semaphore = Arc::clone(&semaphore);
        move || {
            for _ in 0..2 {
                select! {
                    recv(semaphore.receiver()) -> token => taken.send(token.unwrap()).unwrap(),
                    recv(never::<()>()) -> _ => unreachable!("nothing comes from there"),
                }
            }
        }
    });
    semaphore.set_limit(1);
    let first = told.recv().unwrap();
    numbers(&semaphore, [1, 1, 0, 0]);
    drop(first);
    drop(told.recv().unwrap());
    waiting.join().unwrap();
    numbers(&semaphore, [1, 0, 0, 1]);
}

/// A policy waits for it in virtual time, for several permits too, and is woken by a token that comes back, by a raised
/// limit and by the close.
#[test]
fn a_waiting_policy_is_woken_by_tokens_limits_and_the_close() {
    let semaphore = semaphore(2);
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .on(&clock)
        .limit(Arc::clone(&semaphore).and(Semaphore::new(9)))
        .build()
        .unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut held = receive(&semaphore, 2);
    let mut both = Box::pin(policy.admit(Ask::many(2)));
    assert!(both.as_mut().poll(&mut context).is_pending());
    held.pop();
    assert!(both.as_mut().poll(&mut context).is_pending());
    numbers(&semaphore, [2, 1, 0, 1]);
    held.pop();
    numbers(&semaphore, [2, 2, 0, 0]);
    let Poll::Ready(Ok(both)) = both.as_mut().poll(&mut context) else {
        panic!("both are there")
    };
    let mut one = Box::pin(policy.admit(Ask::one()));
    assert!(one.as_mut().poll(&mut context).is_pending());
    semaphore.set_limit(3);
    assert!(matches!(one.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    let mut many = pin!(policy.admit(Ask::many(3)));
    assert!(many.as_mut().poll(&mut context).is_pending());
    semaphore.close();
    let Poll::Ready(Err(refused)) = many.as_mut().poll(&mut context) else {
        panic!("a closed leg never admits")
    };
    assert_eq!(refused.reason(), Reason::Closed);
    drop(both);
}

/// Uses the semaphore that it is woken for.
struct Meddler(Arc<ChannelSemaphore>);

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        let Self(semaphore) = &*self;
        let limit = semaphore.limit();
        semaphore.set_limit(limit + 2);
        drop(semaphore.try_admit(2));
        drop(semaphore.receiver().try_recv());
        semaphore.set_limit(limit);
    }
}

/// Given a waker that takes, returns and resizes, when a permit comes back, then nothing is locked while it runs.
#[test]
fn a_waker_may_use_the_semaphore_that_wakes_it() {
    let semaphore = semaphore(1);
    let policy = Policy::new(Arc::clone(&semaphore));
    let waker = Waker::from(Arc::new(Meddler(Arc::clone(&semaphore))));
    let held = semaphore.receiver().recv().unwrap();
    let mut waiter = pin!(policy.admit(1));
    assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(held);
    assert!(matches!(
        waiter.poll(&mut Context::from_waker(&waker)),
        Poll::Ready(Ok(_))
    ));
    numbers(&semaphore, [1, 0, 0, 1]);
}

/// One step of a random program. An index is taken modulo how many there are.
#[derive(Clone, Copy, Debug)]
enum Op {
    Receive,
    Admit(u64),
    Cancel(u64),
    Release(usize),
    Forget(usize),
    Limit(usize),
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Receive),
        12 => (0..4_u64).prop_map(Op::Admit),
        2 => (0..4_u64).prop_map(Op::Cancel),
        9 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::Forget),
        4 => (0..8_usize).prop_map(Op::Limit),
        1 => prop_oneof![9 => Just(Op::Receive), 1 => Just(Op::Close)],
    ]
}

enum Held<'a> {
    Token(ChannelToken),
    Permit(Permit<&'a ChannelSemaphore>),
}

proptest! {
    #![proptest_config(crate::cases(500))]
    /// The free permits are the limit less the held ones, at every step: two counters hold the whole state.
    #[test]
    fn any_program_on_one_thread_agrees_with_two_counters(
        mut limit in 0..6_usize,
        ops in prop::collection::vec(op(), 0..100),
    ) {
        let semaphore = ChannelSemaphore::new(limit);
        let mut held: Vec<(usize, Held<'_>)> = Vec::new();
        let mut closed = false;
        for op in ops {
            let in_use: usize = held.iter().map(|(n, _)| n).sum();
            let fits = |n: usize| !closed && (n == 0 || in_use + n <= limit);
            match op {
                Op::Receive => {
                    let token = semaphore.receiver().try_recv();
                    prop_assert_eq!(token.is_ok(), fits(1));
                    held.extend(token.map(|token| (1, Held::Token(token))));
                }
                Op::Admit(n) => {
                    let permit = semaphore.try_admit(n);
                    prop_assert_eq!(permit.is_ok(), fits(n as usize));
                    held.extend(permit.map(|permit| (n as usize, Held::Permit(permit))));
                }
                Op::Cancel(n) => {
                    let admitted = semaphore.try_admit(n);
                    prop_assert_eq!(admitted.is_ok(), fits(n as usize));
                    admitted.into_iter().for_each(Permit::cancel);
                }
                Op::Release(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                Op::Forget(at) if !held.is_empty() => {
                    let (n, forgotten) = held.swap_remove(at % held.len());
                    limit = limit.saturating_sub(n);
                    match forgotten {
                        Held::Token(token) => token.forget(),
                        Held::Permit(permit) => permit.forget(),
                    }
                }
                Op::Release(_) | Op::Forget(_) => {}
                Op::Limit(new) => {
                    limit = new;
                    semaphore.set_limit(new);
                }
                Op::Close => {
                    closed = true;
                    semaphore.close();
                }
            }
            let in_use: usize = held.iter().map(|(n, _)| n).sum();
            let free = if closed { 0 } else { limit.saturating_sub(in_use) };
            numbers(&semaphore, [limit, in_use, in_use.saturating_sub(limit), free]);
            prop_assert_eq!(semaphore.is_closed(), closed);
        }
    }
}

/// Threads take and return permits in every way while the limit moves at random.
///
/// A taker counts itself after it has been admitted and before it gives back, and judges only when the limit has not
/// moved since before it asked. All whom it then sees counted held permits at one instant not before its own admission,
/// while that limit was in force: they must be within it.
#[test]
fn admissions_stay_within_the_limit_in_force() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 30_000;
    let semaphore = semaphore(3);
    // Odd while the limit is being changed.
    let changes = Arc::new(AtomicU64::new(0));
    let (held, judged, running) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(THREADS));
    let limit = AtomicUsize::new(3);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (semaphore, changes, held, limit) = (&semaphore, &changes, &held, &limit);
            let (judged, running, stop) = (&judged, &running, &stop);
            scope.spawn(move || {
                let judge = |n: usize, before: u64, allowed: usize| {
                    let counted = held.fetch_add(n, Ordering::SeqCst) + n;
                    if before.is_multiple_of(2) && changes.load(Ordering::SeqCst) == before {
                        assert!(counted <= allowed, "{counted} admitted under a limit of {allowed}");
                        judged.fetch_add(1, Ordering::SeqCst);
                    }
                    thread::yield_now();
                    held.fetch_sub(n, Ordering::SeqCst);
                };
                for round in 0..ROUNDS {
                    let before = changes.load(Ordering::SeqCst);
                    let allowed = limit.load(Ordering::SeqCst);
                    match (round + thread as u64) % 4 {
                        0 => {
                            let _token = semaphore.receiver().recv().unwrap();
                            judge(1, before, allowed);
                        }
                        1 => {
                            let token = select! {
                                recv(semaphore.receiver()) -> token => token.unwrap(),
                                recv(never::<()>()) -> _ => unreachable!("nothing comes from there"),
                            };
                            judge(1, before, allowed);
                            drop(token);
                        }
                        2 => {
                            if let Ok(_permit) = semaphore.try_admit(2) {
                                judge(2, before, allowed);
                            }
                        }
                        _ => {
                            if let Ok(_permit) = semaphore.try_admit(1) {
                                judge(1, before, allowed);
                            }
                        }
                    }
                }
                // The last one ends the resizing.
                if running.fetch_sub(1, Ordering::SeqCst) == 1 {
                    stop.store(true, Ordering::SeqCst);
                }
            });
        }
        // Nothing is changed before a caller has been judged.
        while judged.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        while !stop.load(Ordering::SeqCst) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let new = (random % 6) as usize;
            changes.fetch_add(1, Ordering::SeqCst);
            semaphore.set_limit(new);
            limit.store(new, Ordering::SeqCst);
            changes.fetch_add(1, Ordering::SeqCst);
            for _ in 0..random % 32 {
                thread::yield_now();
            }
        }
    });
    let last = semaphore.limit();
    numbers(&semaphore, [last, 0, 0, last]);
}

/// As for a semaphore: above the limit it is never admitted, and a waiter that asks for more than a lowered limit is refused.
#[test]
fn more_than_the_limit_is_refused_for_good_by_a_policy() {
    let slots = semaphore(4);
    let policy = Policy::new(Arc::clone(&slots));
    let reason = |n| policy.try_admit(n).unwrap_err().reason();
    assert_eq!(reason(5), Reason::Oversized);
    let held = slots.try_admit(2).unwrap();
    let mut waiter = pin!(policy.admit(3));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiter.as_mut().poll(&mut cx).is_pending());
    slots.set_limit(2);
    let Poll::Ready(Err(refused)) = waiter.poll(&mut cx) else {
        panic!("it can never be admitted")
    };
    assert_eq!((refused.reason(), refused.is_retryable()), (Reason::Oversized, false));
    drop(held);
    assert_eq!([reason(3), reason(5)], [Reason::Oversized; 2]);
    slots.set_limit(5);
    assert!(policy.try_admit(5).is_ok());
}
