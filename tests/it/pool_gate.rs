//! The policy in front of the workers: no task passes it by, whoever runs it; and nobody who waits there keeps what others
//! could use.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::pool::{Overflow, PoolBuilder, TaskError};
use tollgate::{Ask, JoinHandle, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket, WorkerPool};

use crate::pool::Busy;

const LONG: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

/// One task each second, after a burst.
fn rate(clock: &ManualClock, burst: u64) -> Policy<TokenBucket> {
    Policy::new(TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock))
}

/// Waits for something that other threads do.
pub(crate) fn until(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it stands still");
        thread::yield_now();
    }
}

/// Lets time pass, from timer to timer, until the task has ended.
fn run_out<T: Send>(clock: &ManualClock, task: JoinHandle<T>) -> T {
    while !task.is_finished() {
        clock.advance_to_next_timer();
        thread::yield_now();
    }
    task.join().unwrap()
}

/// Given a worker whose task waits for others of the pool, one by one or as a group, then each of those is admitted as well.
#[test]
fn a_task_that_is_run_by_who_waits_for_it_is_admitted_first() {
    let clock = ManualClock::new();
    let policy = rate(&clock, 1);
    let pool = one().on(&clock).admit_by(policy.clone()).build().unwrap();
    let (here, time) = (pool.clone(), clock.clone());
    let (ran, runs) = mpsc::channel();
    let outer = pool.submit(move || {
        let now = move |clock: &ManualClock| clock.elapsed();
        let begun = now(&time);
        let inner = |n: u32| {
            let (time, ran) = (time.clone(), ran.clone());
            move || {
                let elapsed = now(&time) - begun;
                ran.send(()).unwrap();
                elapsed / n
            }
        };
        let first = here.submit(inner(1)).unwrap().join().unwrap();
        let mut group = here.group::<_, ()>();
        for n in [2, 3] {
            let inner = inner(n);
            group.submit(move || Ok(inner())).unwrap();
        }
        (first, group.join().unwrap())
    });
    // Time passes only while a task waits for it.
    for _ in 0..3 {
        until(|| policy.waiting() > 0);
        clock.advance(SECOND);
        runs.recv().unwrap();
    }
    assert_eq!(outer.unwrap().join().unwrap(), (SECOND, vec![SECOND; 2]));
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a policy of one permit, when the task that holds it waits for another, then the wait is refused at once, and the other runs
/// once the first has ended. So it is where a policy lets no task wait.
#[test]
fn a_task_that_waits_for_one_that_needs_its_own_permit_is_told() {
    let in_flight = Arc::new(Semaphore::new(1));
    let unqueued = Policy::builder().max_queue(0).over(Arc::clone(&in_flight)).unwrap();
    for policy in [Policy::new(Arc::clone(&in_flight)), unqueued] {
        let pool = one().admit_by(policy).build().unwrap();
        let here = pool.clone();
        let outer = pool.submit(move || {
            let mut inner = here.submit(|| 7).unwrap();
            assert!(matches!(inner.join_by_ref(), Err(TaskError::WouldDeadlock)));
            inner
        });
        assert_eq!(outer.unwrap().join().unwrap().join().unwrap(), 7);
        assert!(pool.shutdown(LONG).is_clean());
        assert_eq!(in_flight.available_permits(), 1);
    }
}

/// Given two pools that share one slot, and a closed gate before one of them, then tasks of the other run.
#[test]
fn a_worker_that_waits_for_its_admission_leaves_the_slot_to_others() {
    let slots = Arc::new(Semaphore::new(1));
    let gate = Arc::new(Semaphore::new(0));
    let policy = Policy::new(Arc::clone(&gate));
    let shared = || one().slots(Arc::clone(&slots));
    let gated = shared().admit_by(policy.clone()).build().unwrap();
    let free = shared().build().unwrap();
    let waits = gated.submit(|| 1).unwrap();
    until(|| policy.waiting() == 1);
    let runs = free.submit(|| 2).unwrap().join_timeout(Duration::from_secs(10));
    assert_eq!(runs.expect("it has no slot").unwrap(), 2);
    assert!(!waits.is_finished());
    gate.add_permits(1);
    assert_eq!(waits.join().unwrap(), 1);
    for pool in [gated, free] {
        assert!(pool.shutdown(LONG).is_clean());
    }
    assert_eq!((slots.available_permits(), gate.available_permits()), (1, 1));
}

/// Given a task that is admitted while its pool has no slot for it, then it has taken no token, and starts when there is
/// one, under the first that it can get.
#[test]
fn an_admission_without_a_slot_costs_nothing() {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(1));
    let policy = rate(&clock, 1);
    let pool = one().slots(Arc::clone(&slots)).on(&clock).admit_by(policy.clone());
    let pool = pool.build().unwrap();
    pool.run(|| ()).unwrap();
    let task = pool.submit(|| 7).unwrap();
    until(|| policy.waiting() == 1 && slots.available_permits() == 1);
    slots.set_limit(0);
    clock.advance(SECOND);
    // It has come for its admission, and found no slot.
    until(|| slots.waiting() == 1);
    assert_eq!(policy.waiting(), 0);
    assert!(policy.try_admit(Ask::one()).is_ok());
    assert!(!task.is_finished());
    slots.set_limit(1);
    assert_eq!(run_out(&clock, task), 7);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a task whose worker waits for its admission, when it is cancelled, then its place in the queue is free, the worker
/// waits no more, and the token is left to others.
#[test]
fn a_task_that_is_cancelled_at_the_gate_leaves_it() {
    let clock = ManualClock::new();
    let policy = rate(&clock, 1);
    let pool = one().queue(2).on(&clock).admit_by(policy.clone()).build().unwrap();
    pool.run(|| ()).unwrap();
    let waits = pool.submit(|| ()).unwrap();
    until(|| policy.waiting() == 1);
    assert!(waits.cancel());
    assert!(
        pool.wait_idle_timeout(Duration::from_secs(10)),
        "it is still at the gate"
    );
    until(|| policy.waiting() == 0);
    clock.advance(SECOND);
    assert!(policy.try_admit(Ask::one()).is_ok());
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a worker that waits at the policy with a task for which too few permits are free, when that task is evicted for a
/// lighter one, then the worker leaves the policy and takes the lighter task, which fits.
#[test]
fn a_task_that_is_evicted_at_the_gate_leaves_it_to_the_next() {
    let permits = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&permits));
    let builder = one().queue(1).overflow(Overflow::DropOldest);
    let pool = builder.admit_by(policy.clone()).build().unwrap();
    let held = permits.try_acquire().unwrap();
    let heavy = pool.ask(2).submit(|| 1).unwrap();
    until(|| policy.waiting() == 1);
    let light = pool.submit(|| 2).unwrap();
    until(|| light.is_finished());
    assert_eq!(light.join().unwrap(), 2);
    assert!(matches!(heavy.join(), Err(TaskError::Discarded)));
    drop(held);
    // The permit comes back after the result is there.
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((policy.waiting(), permits.available_permits()), (0, 2));
}

/// Given tasks behind a busy worker, of which one is cancelled and one too late, when their turn comes, then they take no
/// token, and the next has it.
#[test]
fn a_task_that_is_cancelled_or_too_late_takes_no_token() {
    let clock = ManualClock::new();
    let policy = rate(&clock, 2);
    let pool = one().on(&clock).admit_by(policy).build().unwrap();
    let busy = Busy::on(&pool);
    let cancelled = pool.submit(|| ()).unwrap();
    let late = pool.deadline(Duration::ZERO).submit(|| ()).unwrap();
    let next = [7, 8].map(|n| pool.submit(move || n).unwrap());
    assert!(cancelled.cancel());
    clock.advance(Duration::from_nanos(1));
    busy.end();
    let [seven, _eight] = next;
    let seven = seven.join_timeout(Duration::from_secs(10));
    assert_eq!(seven.expect("its token is gone").unwrap(), 7);
    assert!(matches!(late.join(), Err(TaskError::Expired)));
    assert_eq!(pool.stats().expired, 1);
    let _ = pool.abort();
}

/// Given a policy that is closed, then each task is told so, and they are counted.
#[test]
fn what_a_closed_policy_refuses_is_told_and_counted() {
    let closed = Arc::new(Semaphore::new(1));
    let pool = one().admit_by(Policy::new(Arc::clone(&closed))).build().unwrap();
    closed.close();
    let told = pool.submit(|| ()).unwrap();
    assert!(matches!(told.join(), Err(TaskError::Refused(why)) if why.reason == Reason::Closed));
    pool.execute(|| ()).unwrap();
    assert!(pool.wait_idle());
    let stats = pool.stats();
    assert_eq!((stats.refused, stats.finished, stats.unfinished), (2, 0, 0));
    assert!(matches!(pool.run(|| ()), Err(TaskError::Refused(_))));
}

/// Given a task of a worker that has submitted another, when the pool is aborted and then the first waits for the second,
/// then whoever has the report runs that, and nobody else.
#[test]
fn what_a_report_lists_is_run_by_its_owner_alone() {
    let pool = one().build().unwrap();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (submit, submitted) = mpsc::channel();
    let here = pool.clone();
    let outer = pool.submit(move || {
        let inner = here.submit(|| thread::current().id()).unwrap();
        submit.send(()).unwrap();
        may_go_on.recv().unwrap();
        let inner = inner.join_timeout(Duration::from_millis(1)).unwrap_err();
        submit.send(()).unwrap();
        inner.join().unwrap()
    });
    submitted.recv().unwrap();
    let report = pool.abort();
    assert_eq!((report.unstarted.len(), report.running), (1, 1));
    go_on.send(()).unwrap();
    submitted.recv_timeout(LONG).expect("it has run what is listed");
    assert!(report.unstarted.into_iter().all(|task| task.run()));
    assert_eq!(outer.unwrap().join().unwrap(), thread::current().id());
}
