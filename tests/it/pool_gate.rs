//! The policy in front of the workers: no task passes it by, whoever runs it; and nobody who waits there keeps what others
//! could use.

use std::panic::resume_unwind;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::breaker::{BreakerState, CircuitBreaker};
use tollgate::pool::{Overflow, PoolBuilder, TaskError, Turned};
use tollgate::{Ask, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TaskHandle, TokenBucket, WorkerPool};

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
fn run_out<T: Send>(clock: &ManualClock, task: TaskHandle<T>) -> T {
    while !task.is_finished() {
        clock.advance_to_next_timer();
        thread::yield_now();
    }
    task.join().unwrap()
}

/// A pool with a busy worker and a full queue, whose submitters run their tasks themselves.
struct Full {
    pool: WorkerPool,
    busy: Busy,
    queued: TaskHandle<()>,
}

impl Full {
    fn new(builder: PoolBuilder) -> Self {
        let pool = builder.queue(1).overflow(Overflow::CallerRuns).build().unwrap();
        let busy = Busy::on(&pool);
        let queued = pool.submit(|| ()).unwrap();
        Self { pool, busy, queued }
    }

    fn end(self, clock: &ManualClock) {
        self.busy.end();
        run_out(clock, self.queued);
        assert!(self.pool.shutdown(LONG).is_clean());
    }
}

/// Given a rate with a token left, then a submitter runs its task at once. The next time it is handed its task back where
/// it will not wait, and otherwise waits for a token, whether it blocks for it or awaits it.
#[test]
fn a_submitter_that_runs_its_task_waits_for_the_policy() {
    let clock = ManualClock::new();
    let full = Full::new(one().on(&clock).admit_by(rate(&clock, 2)));
    let pool = &full.pool;
    let here = thread::current().id();
    let by = pool.submit(move || thread::current().id()).unwrap();
    assert_eq!(by.try_join().unwrap().unwrap(), here);

    let back = pool.try_submit(|| 3).unwrap_err();
    let Turned::Refused(why) = back.reason else {
        panic!("{:?}", back.reason)
    };
    assert_eq!((why.reason, why.retry_after), (Reason::RateExceeded, Some(SECOND)));
    assert_eq!((back.task)(), 3);
    let late = pool.priority(Default::default());
    assert_eq!(
        late.submit_timeout(|| 3, Duration::ZERO).unwrap_err().reason,
        Turned::TimedOut
    );

    let begun = clock.elapsed();
    let after = clock.clone();
    let waits = clock.run(pool.submit_async(move || after.elapsed())).unwrap();
    assert_eq!(waits.try_join().unwrap().unwrap() - begun, SECOND);
    let after = clock.clone();
    let blocks = thread::scope(|scope| {
        let blocked = scope.spawn(|| pool.submit(move || after.elapsed()).unwrap());
        while !blocked.is_finished() {
            clock.advance_to_next_timer();
            thread::yield_now();
        }
        blocked.join().unwrap()
    });
    assert_eq!(blocks.try_join().unwrap().unwrap() - begun, 2 * SECOND);
    assert_eq!(pool.stats().finished, 3);
    full.end(&clock);
}

/// Given a submitter that waits to run its task, when there is room before it is admitted, then a worker has the task; and
/// when the pool is closed, then it is told.
#[test]
fn a_submitter_that_waits_to_run_its_task_takes_room_or_hears_of_the_end() {
    let clock = ManualClock::new();
    for closes in [false, true] {
        let policy = rate(&clock, 1);
        let full = Full::new(one().on(&clock).admit_by(policy.clone()));
        let pool = &full.pool;
        let submitted = thread::scope(|scope| {
            let blocked = scope.spawn(|| pool.submit(|| 7));
            until(|| policy.waiting() == 1);
            if closes {
                pool.close();
            } else {
                assert!(full.queued.cancel());
            }
            blocked.join().unwrap()
        });
        match submitted {
            Ok(handle) => {
                assert!(!closes && !handle.is_finished());
                full.busy.end();
                assert_eq!(run_out(&clock, handle), 7);
            }
            Err(back) => {
                assert!(closes);
                assert_eq!(back.reason, Turned::Closed);
                full.end(&clock);
            }
        }
    }
}

/// Given a task that must start within half a second, and that its submitter may run after one, then it is too late.
#[test]
fn a_task_that_its_submitter_could_run_too_late_expires() {
    let clock = ManualClock::new();
    let full = Full::new(one().on(&clock).admit_by(rate(&clock, 1)));
    let late = full.pool.deadline(SECOND / 2);
    let handle = clock.run(late.submit_async(|| ())).unwrap();
    assert!(matches!(handle.join(), Err(TaskError::Expired)));
    assert_eq!(full.pool.stats().expired, 1);
    clock.advance(SECOND);
    full.end(&clock);
}

/// Given a breaker in front of the workers, when a task fails that its submitter runs, then the breaker hears of it, and
/// lets the next submitter not run its task.
#[test]
fn the_policy_hears_of_tasks_that_submitters_run() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().consecutive_failures(1).clock(&clock).build();
    let breaker = Arc::new(breaker.unwrap());
    let full = Full::new(one().on(&clock).admit_by(Policy::new(Arc::clone(&breaker))));
    let fails = full.pool.submit(|| -> () { resume_unwind(Box::new("on purpose")) });
    assert!(matches!(fails.unwrap().join(), Err(TaskError::Panicked(_))));
    assert_eq!(breaker.state(), BreakerState::Open);
    let Turned::Refused(why) = full.pool.try_submit(|| ()).unwrap_err().reason else {
        panic!("not refused")
    };
    assert_eq!(why.reason, Reason::CircuitOpen);
    breaker.reset();
    full.end(&clock);
}

/// Given a worker whose task waits for others of the pool, one by one or as a group, then each of those is admitted as well.
#[test]
fn a_task_that_is_run_by_who_waits_for_it_is_admitted_first() {
    let clock = ManualClock::new();
    let pool = one().on(&clock).admit_by(rate(&clock, 1)).build().unwrap();
    let (here, time) = (pool.clone(), clock.clone());
    let outer = pool.submit(move || {
        let now = move |clock: &ManualClock| clock.elapsed();
        let begun = now(&time);
        let inner = |n: u32| {
            let time = time.clone();
            move || (now(&time) - begun) / n
        };
        let first = here.submit(inner(1)).unwrap().join().unwrap();
        let mut group = here.group::<_, ()>();
        for n in [2, 3] {
            let inner = inner(n);
            group.submit(move || Ok(inner())).unwrap();
        }
        (first, group.join().unwrap())
    });
    assert_eq!(run_out(&clock, outer.unwrap()), (SECOND, vec![SECOND; 2]));
    assert!(pool.shutdown(LONG).is_clean());
}

/// The same for who waits below, which takes a slot for it.
#[test]
fn a_task_below_that_is_run_by_who_waits_for_it_is_admitted_first() {
    let clock = ManualClock::new();
    let pool = one().on(&clock).build().unwrap();
    let small = pool.sub_pool(one().admit_by(rate(&clock, 1))).unwrap();
    let (below, time) = (small.clone(), clock.clone());
    let outer = pool.submit(move || {
        let times = [0, 1].map(|_| {
            let time = time.clone();
            below.submit(move || time.elapsed()).unwrap().join().unwrap()
        });
        times[1] - times[0]
    });
    assert_eq!(run_out(&clock, outer.unwrap()), SECOND);
    // With the workers below, who looked for those tasks.
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(small.slots().available_permits(), 1);
}

/// Given a policy that lets one task run at a time, then tasks may wait for tasks to any depth: the inner ones run under the
/// permit of the outer. So may those that a submitter runs.
#[test]
fn tasks_may_wait_for_tasks_under_one_permit() {
    fn nested(pool: &WorkerPool, depth: u32) -> u32 {
        let here = pool.clone();
        let inner = pool.submit(move || match depth {
            0 => 1,
            depth => 1 + nested(&here, depth - 1),
        });
        let inner = inner.unwrap().join_timeout(Duration::from_secs(10));
        inner.expect("it stands still").unwrap()
    }
    let in_flight = Arc::new(Semaphore::new(1));
    let pool = one().admit_by(Policy::new(Arc::clone(&in_flight))).build().unwrap();
    assert_eq!(nested(&pool, 4), 5);
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(in_flight.available_permits(), 1);

    in_flight.set_limit(2);
    let full = Full::new(one().admit_by(Policy::new(Arc::clone(&in_flight))));
    let (here, queued) = (full.pool.clone(), full.queued);
    let by_caller = full.pool.submit(move || {
        // The first is run by this thread as well; for the others there is room.
        let first = nested(&here, 0);
        assert!(queued.cancel());
        first + nested(&here, 3)
    });
    assert_eq!(by_caller.unwrap().join().unwrap(), 5);
    full.busy.end();
    assert!(full.pool.shutdown(LONG).is_clean());
    assert_eq!(in_flight.available_permits(), 2);
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
    assert_eq!((policy.waiting(), permits.available_permits()), (0, 2));
    assert!(pool.shutdown(LONG).is_clean());
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

/// Given a policy of one at a time that lets nobody wait, then a task that waits for another runs it all the same.
#[test]
fn a_policy_without_a_line_does_not_keep_a_task_from_what_it_waits_for() {
    let policy = Policy::builder().max_queue(0).over(Semaphore::new(1)).unwrap();
    let pool = one().admit_by(policy).build().unwrap();
    let here = pool.clone();
    let outer = pool.submit(move || here.submit(|| 7).unwrap().join().unwrap());
    assert_eq!(outer.unwrap().join().unwrap(), 7);
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a policy that admits nobody any more, then each task is told so, or its submitter, and they are counted.
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

    let open = Arc::new(Semaphore::new(1));
    let full = Full::new(one().admit_by(Policy::new(Arc::clone(&open))));
    open.close();
    let back = full.pool.submit(|| 3).unwrap_err();
    assert!(matches!(&back.reason, Turned::Refused(why) if why.reason == Reason::Closed));
    assert!(matches!(full.pool.run(|| ()), Err(TaskError::Refused(_))));
    full.busy.end();
    assert!(matches!(full.queued.join(), Err(TaskError::Refused(_))));
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
