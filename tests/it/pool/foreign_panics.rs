//! Foreign code that panics where a pool runs it: wakers, hooks and admissions of others. Workers go on, no submitter
//! sees it, and each task runs once.

use crate::pool::threads::Busy;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use tollgate::pool::{PoolBuilder, PoolError};
use tollgate::{Demand, Description, JoinHandle, Limiter, Outcome, Policy, Quota, Refusal, Semaphore, WorkerPool};

const LONG: Duration = Duration::from_secs(20);

/// Panics when it is woken, and counts that.
#[derive(Default)]
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        resume_unwind(Box::new("a waker panicked"));
    }
}

impl Panics {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A waker that panics, and how often it has.
fn hostile() -> (Waker, Arc<Panics>) {
    let panics = Arc::<Panics>::default();
    (Waker::from(Arc::clone(&panics)), panics)
}

fn one() -> PoolBuilder {
    WorkerPool::builder().workers(1)
}

#[track_caller]
fn ends<T: Send>(handle: JoinHandle<T>) -> T {
    match handle.join_timeout(LONG) {
        Ok(result) => result.unwrap(),
        Err(_) => panic!("the task is lost"),
    }
}

macro_rules! poll {
    ($future:expr, $waker:expr) => {
        $future.as_mut().poll(&mut Context::from_waker($waker))
    };
}

/// Given a submission that waits for room with a waker that panics, when a task leaves the queue, then that task runs, the
/// submission is let in, and the worker goes on.
#[test]
fn a_worker_survives_the_waker_of_a_submission_that_waits_for_room() {
    let pool = one().max_queue(1).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 1).unwrap();
    let (waker, panics) = hostile();
    let mut waits = pin!(pool.submit_async(|| 2));
    assert!(poll!(waits, &waker).is_pending());
    busy.end();
    assert_eq!(ends(queued), 1);
    assert_eq!(panics.times(), 1);
    let Poll::Ready(submitted) = poll!(waits, Waker::noop()) else {
        panic!("it was let in")
    };
    assert_eq!(ends(submitted.unwrap()), 2);
    assert!(pool.shutdown(LONG).is_clean());
    let stats = pool.stats();
    assert_eq!((stats.finished, stats.unfinished, stats.threads), (3, 0, 0));
}

/// The same, where the task comes from a local queue.
#[test]
fn a_worker_survives_it_also_in_the_midst_of_several_tasks() {
    let pool = one().max_queue(40).build().unwrap();
    let busy = Busy::on(&pool);
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..40 {
        let ran = Arc::clone(&ran);
        pool.execute(move || _ = ran.fetch_add(1, Ordering::SeqCst)).unwrap();
    }
    let (waker, panics) = hostile();
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(pool.submit_async(|| ()))).collect();
    for wait in &mut waits {
        assert!(poll!(wait, &waker).is_pending());
    }
    busy.end();
    while panics.times() < 3 {
        thread::yield_now();
    }
    for mut wait in waits {
        assert!(poll!(wait, Waker::noop()).is_ready());
    }
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((ran.load(Ordering::SeqCst), pool.stats().finished), (40, 44));
}

/// Given a waiter for the permit of a worker, with a waker that panics, when the worker hands it on, then no task is lost.
#[test]
fn a_worker_survives_the_waker_of_a_waiter_for_its_slot() {
    let slots = Arc::new(Semaphore::new(1));
    let pool = one().slots(Arc::clone(&slots)).build().unwrap();
    let busy = Busy::on(&pool);
    let queued: Vec<_> = (0..3).map(|n| pool.submit(move || n).unwrap()).collect();
    let (waker, panics) = hostile();
    let mut waits = Box::pin(slots.acquire());
    assert!(poll!(waits, &waker).is_pending());
    busy.end();
    while panics.times() == 0 {
        thread::yield_now();
    }
    // The permit is theirs until it is dropped.
    drop(waits);
    for (n, handle) in queued.into_iter().enumerate() {
        assert_eq!(ends(handle), n);
    }
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!((slots.available_permits(), pool.stats().threads), (1, 0));
}

/// The same when it falls asleep.
#[test]
fn a_worker_that_falls_asleep_survives_the_waker_of_the_next_waiter() {
    let slots = Arc::new(Semaphore::new(1));
    let pool = one().slots(Arc::clone(&slots)).build().unwrap();
    let busy = Busy::on(&pool);
    let (waker, panics) = hostile();
    let mut waits = Box::pin(slots.acquire());
    assert!(poll!(waits, &waker).is_pending());
    busy.end();
    while panics.times() == 0 {
        thread::yield_now();
    }
    drop(waits);
    assert_eq!(ends(pool.submit(|| 7).unwrap()), 7);
    assert!(pool.shutdown(LONG).is_clean());
}

fn elastic(panics: &Arc<AtomicBool>) -> PoolBuilder {
    let panics = Arc::clone(panics);
    let growth = Quota::per_second(1_000_000).burst(1_000);
    let builder = WorkerPool::builder().workers(1..=4).growth(growth);
    builder.spawn_with(move |worker| {
        if panics.load(Ordering::SeqCst) {
            resume_unwind(Box::new("no thread"));
        }
        thread::spawn(|| worker.run());
        Ok(())
    })
}

/// Given a hook for threads that panics, when tasks are submitted, and taken, then each runs, and each start has failed.
#[test]
fn a_hook_that_panics_instead_of_starting_a_thread_is_a_failed_start() {
    let panics = Arc::new(AtomicBool::new(false));
    let pool = elastic(&panics).build().unwrap();
    panics.store(true, Ordering::SeqCst);
    let busy = Busy::on(&pool);
    let handles: Vec<_> = (0..100).map(|n| pool.submit(move || n).unwrap()).collect();
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.queued), (1, 100));
    assert!(stats.failed_starts > 0);
    busy.end();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(ends(handle), n);
    }
    assert!(matches!(pool.set_limit(3), Err(PoolError::Spawn(_))));
    assert_eq!(pool.stats().threads, 1);
    panics.store(false, Ordering::SeqCst);
    assert!(pool.set_limit(2..=3).is_ok());
    assert_eq!(ends(pool.submit(|| 7).unwrap()), 7);
    assert!(pool.shutdown(LONG).is_clean());
    panics.store(true, Ordering::SeqCst);
    assert!(matches!(elastic(&panics).build(), Err(PoolError::Spawn(_))));
}

/// Given a start that fails at a moment when the only worker has fallen asleep and a task has come, then that worker is called.
#[test]
fn a_task_that_comes_during_a_start_that_fails_is_not_overlooked() {
    type Hook = Box<dyn FnOnce(tollgate::pool::WorkerThread<'static>) -> io::Result<()> + Send>;
    let hook: Arc<std::sync::Mutex<Option<Hook>>> = Arc::default();
    let take = Arc::clone(&hook);
    let pool = WorkerPool::builder().workers(1..=2).spawn_with(move |worker| {
        let hook = take.lock().unwrap().take();
        if let Some(hook) = hook {
            return hook(worker);
        }
        thread::spawn(|| worker.run());
        Ok(())
    });
    let pool = pool.build().unwrap();
    // Before it sleeps a second might be started.
    while pool.stats().idle < 1 {
        thread::yield_now();
    }
    let busy = Busy::on(&pool);
    let (tell, told) = mpsc::channel();
    let inside = pool.clone();
    *hook.lock().unwrap() = Some(Box::new(move |worker| {
        busy.end();
        while inside.stats().idle < 1 {
            thread::yield_now();
        }
        tell.send(inside.submit(|| 2).unwrap()).unwrap();
        // Entered, and no worker is woken as long as one is about to be started.
        assert_eq!(inside.stats().queued, 1);
        drop(worker);
        Err(io::ErrorKind::WouldBlock.into())
    }));
    assert_eq!(ends(pool.submit(|| 1).unwrap()), 1);
    assert_eq!(ends(told.recv().unwrap()), 2);
    assert_eq!((pool.stats().threads, pool.stats().failed_starts), (1, 1));
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a submission that waits for room with a waker that panics, when a queued task is cancelled, so that its room is
/// free, then the canceller is told so.
#[test]
fn a_canceller_survives_the_waker_of_the_next_submitter() {
    let pool = one().max_queue(1).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 1).unwrap();
    let (waker, panics) = hostile();
    let mut waits = pin!(pool.submit_async(|| 2));
    assert!(poll!(waits, &waker).is_pending());
    assert!(queued.cancel());
    assert_eq!(panics.times(), 1);
    assert!(queued.join().is_err());
    assert!(poll!(waits, Waker::noop()).is_ready());
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a submission that waits for room with a waker that panics, when the pool is closed, then it is closed: its
/// worker goes, and what was queued has run.
#[test]
fn a_pool_is_closed_despite_panics_of_the_wakers_of_submitters() {
    let pool = one().max_queue(1).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 1).unwrap();
    let (waker, panics) = hostile();
    let mut waits = pin!(pool.submit_async(|| 2));
    assert!(poll!(waits, &waker).is_pending());
    pool.close();
    assert_eq!(panics.times(), 1);
    let Poll::Ready(refused) = poll!(waits, Waker::noop()) else {
        panic!("it was told")
    };
    assert!(refused.is_err());
    busy.end();
    assert_eq!(ends(queued), 1);
    assert!(pool.shutdown(LONG).is_clean());
}

/// The same for an end that hands back what has not started.
#[test]
fn an_end_lists_what_has_not_started_whatever_the_wakers_do() {
    let pool = one().max_queue(1).build().unwrap();
    let busy = Busy::on(&pool);
    let queued = pool.submit(|| 1).unwrap();
    let (waker, panics) = hostile();
    let mut waits = pin!(pool.submit_async(|| 2));
    assert!(poll!(waits, &waker).is_pending());
    let report = pool.abort();
    assert_eq!((panics.times(), report.unstarted.len()), (1, 1));
    assert!(report.unstarted.into_iter().all(|task| task.run()));
    assert_eq!(ends(queued), 1);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a waiter for a slot with a waker that panics, when the pool is resized, then it has both its new limit and its
/// new workers.
#[test]
fn a_resize_is_whole_whatever_the_wakers_do() {
    let slots = Arc::new(Semaphore::new(1));
    let pool = one().slots(Arc::clone(&slots)).build().unwrap();
    let busy = Busy::on(&pool);
    let (waker, panics) = hostile();
    let mut waits = Box::pin(slots.acquire());
    assert!(poll!(waits, &waker).is_pending());
    pool.set_limit(3).unwrap();
    assert_eq!((panics.times(), slots.limit(), pool.stats().threads), (1, 3, 3));
    drop(waits);
    assert_eq!(ends(pool.submit(|| 7).unwrap()), 7);
    busy.end();
    assert!(pool.shutdown(LONG).is_clean());
}

/// A leg whose admissions panic when they end.
#[derive(Default)]
struct EndsBadly {
    admitted: AtomicUsize,
    ended: AtomicUsize,
}

impl Limiter for EndsBadly {
    type Ticket = ();
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        self.admitted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        resume_unwind(Box::new("an admission ended badly"));
    }
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("ends badly"));
    }
}

#[test]
fn a_worker_survives_an_admission_that_panics_when_it_ends() {
    let leg = Arc::new(EndsBadly::default());
    let pool = one().admit_by(Policy::new(Arc::clone(&leg))).build().unwrap();
    let handles: Vec<_> = (0..5).map(|n| pool.submit(move || n).unwrap()).collect();
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(ends(handle), n);
    }
    assert!(pool.wait_idle_timeout(LONG));
    assert_eq!(
        (leg.admitted.load(Ordering::SeqCst), leg.ended.load(Ordering::SeqCst)),
        (5, 5)
    );
    assert_eq!((pool.stats().finished, pool.stats().threads), (5, 1));
    assert!(pool.shutdown(LONG).is_clean());
}

/// The same for async tasks: neither the runner's task nor the pool ends.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_runner_survives_an_admission_that_panics_when_it_ends() {
    use tollgate::pool::TaskPool;
    let leg = Arc::new(EndsBadly::default());
    let pool = TaskPool::builder(1).admit_by(Policy::new(Arc::clone(&leg)));
    let pool = pool.build().unwrap();
    for n in 0..5 {
        let handle = pool.submit(async move { n }).await.unwrap();
        assert_eq!(handle.await.unwrap(), n);
    }
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!((leg.ended.load(Ordering::SeqCst), pool.stats().finished), (5, 5));
}

/// And the wakers of waiters for room, and for a slot.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_runner_survives_the_wakers_of_waiters_for_room_or_its_slot() {
    use tollgate::pool::TaskPool;
    let slots = Arc::new(Semaphore::new(1));
    let pool = TaskPool::builder(1)
        .max_queue(1)
        .slots(Arc::clone(&slots))
        .build()
        .unwrap();
    let (free, freed) = tokio::sync::oneshot::channel::<()>();
    let busy = pool.submit(freed).await.unwrap();
    while pool.stats().queued > 0 {
        tokio::task::yield_now().await;
    }
    let queued = pool.submit(async { 1 }).await.unwrap();
    let (waker, panics) = hostile();
    let mut room = Box::pin(pool.submit(async { 2 }));
    assert!(poll!(room, &waker).is_pending());
    let mut slot = Box::pin(slots.acquire());
    assert!(poll!(slot, &waker).is_pending());
    free.send(()).unwrap();
    busy.await.unwrap().unwrap();
    while panics.times() < 1 {
        tokio::task::yield_now().await;
    }
    drop(slot);
    assert_eq!(queued.await.unwrap(), 1);
    assert_eq!(panics.times(), 2);
    assert_eq!(room.await.unwrap().await.unwrap(), 2);
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!((pool.stats().finished, slots.available_permits()), (3, 1));
}

/// Given a fan-out whose one permit has a waiter with a waker that panics, when it hands that on, then each item has
/// its result, and there is no further one.
#[cfg(feature = "fan-out")]
#[tokio::test]
async fn a_fan_out_survives_the_waker_of_a_waiter_for_its_slot() {
    use futures::StreamExt;
    use tollgate::fan_out::fan_out;
    let slots = Arc::new(Semaphore::new(1));
    let (free, freed) = tokio::sync::oneshot::channel::<()>();
    let mut freed = Some(freed);
    let mut results = fan_out(0..3, &slots).map(move |n| {
        let first = freed.take();
        async move {
            if let Some(freed) = first {
                freed.await.unwrap();
            }
            n
        }
    });
    while slots.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let (waker, panics) = hostile();
    let mut slot = Box::pin(slots.acquire());
    assert!(poll!(slot, &waker).is_pending());
    free.send(()).unwrap();
    while panics.times() < 1 {
        tokio::task::yield_now().await;
    }
    drop(slot);
    let mut got = Vec::new();
    while let Some(result) = results.next().await {
        got.push(result.unwrap());
    }
    assert_eq!(got, [0, 1, 2]);
}

/// Its drop panics, unless the thread panics already.
struct Hostile;

impl Drop for Hostile {
    fn drop(&mut self) {
        if !thread::panicking() {
            resume_unwind(Box::new("a drop panicked"));
        }
    }
}

/// Given results that no handle takes, and whose drop panics, whether the handle goes before the end of the task or after it, then each
/// panic is counted and told, and the workers go on.
#[test]
fn a_panic_in_the_drop_of_an_unwanted_result_is_counted_and_told() {
    let told = Arc::new(AtomicUsize::new(0));
    let hook = Arc::clone(&told);
    let tells = move |_| _ = hook.fetch_add(1, Ordering::SeqCst);
    let pool = one().on_panic(tells).build().unwrap();
    let busy = Busy::on(&pool);
    drop(pool.submit(|| Hostile).unwrap());
    busy.end();
    assert!(pool.wait_idle());
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let ended = pool.submit(|| Hostile).unwrap();
    assert!(pool.wait_idle());
    assert_eq!(pool.stats().panicked, 1);
    drop(ended);
    assert_eq!(told.load(Ordering::SeqCst), 2);
    let stats = pool.stats();
    assert_eq!((stats.finished, stats.panicked, stats.threads), (3, 2, 1));
    assert!(pool.shutdown(LONG).is_clean());
}

/// Given a group with a failure, when the drop of another task's value panics, then the failure is dropped as well.
#[test]
fn the_failure_of_a_group_is_dropped_when_the_drop_of_a_value_panics() {
    let pool = one().build().unwrap();
    let kept = Arc::new(());
    let mut group = pool.group::<Hostile, Arc<()>>().keep_going();
    let error = Arc::clone(&kept);
    group.submit(|| Ok(Hostile)).unwrap();
    group.submit(move || Err(error)).unwrap();
    let joined = catch_unwind(AssertUnwindSafe(|| group.join().map(drop).is_ok()));
    assert!(joined.is_err(), "the drop of the value panics");
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(Arc::strong_count(&kept), 1);
}
