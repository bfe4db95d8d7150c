//! Tests of the slot and the admission that an item runs under, and of their release.

use futures::StreamExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tollgate::fan_out::fan_out;
use tollgate::pool::TaskError;
use tollgate::{Ask, LimiterExt, Policy, Quota, Semaphore, TokenBucket};

const HOUR: Duration = Duration::from_secs(3_600);

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Notes the number of permits in use when it is dropped.
struct Noted {
    ready: bool,
    permits: Arc<Semaphore>,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Future for Noted {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.ready { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.seen.lock().unwrap().push(self.permits.in_use());
    }
}

/// Given items that a policy admits one at a time, when one ends or is dropped half-way, then its future is dropped before the
/// permit is released.
#[tokio::test]
async fn a_future_is_dropped_before_its_slot_and_permit_are_released() {
    for ready in [true, false] {
        let permits = Arc::new(Semaphore::new(1));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (given, notes) = (Arc::clone(&permits), Arc::clone(&seen));
        let noted = move |_| Noted {
            ready,
            permits: Arc::clone(&given),
            seen: Arc::clone(&notes),
        };
        let policy = Policy::new(Arc::clone(&permits));
        let mut results = fan_out(0..1, 4).admit_by(policy).map(noted);
        assert!(futures::poll!(results.next()).is_pending());
        settle().await;
        assert_eq!(permits.in_use(), usize::from(!ready));
        drop(results);
        settle().await;
        assert_eq!((seen.lock().unwrap().as_slice(), permits.in_use()), ([1].as_slice(), 0));
    }
}

/// Given two fan-outs that share their one slot, when a policy makes the first wait, then the second runs, and the first runs
/// once it is admitted.
#[tokio::test(start_paused = true)]
async fn a_policy_that_makes_one_wait_keeps_no_slot_from_others() {
    let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    let held = permits.acquire().await.unwrap();
    let policy = Policy::new(Arc::clone(&permits));
    let first = fan_out(0..10, &slots)
        .admit_by(policy)
        .map(|_| tokio::task::yield_now());
    let first = tokio::spawn(first.count());
    settle().await;
    assert_eq!((slots.in_use(), permits.waiting()), (0, 1));
    let second = fan_out(0..10, &slots).map(|_| tokio::task::yield_now());
    assert_eq!(timeout(HOUR, second.count()).await, Ok(10));
    drop(held);
    assert_eq!(timeout(HOUR, first).await.unwrap().unwrap(), 10);
    assert_eq!((slots.in_use(), permits.in_use()), (0, 0));
}

/// Given slots that close while the policy makes an item wait, then the item's result is the error, and the permit is released.
#[tokio::test]
async fn slots_that_close_behind_an_admission_end_it() {
    let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    let held = permits.acquire().await.unwrap();
    let policy = Policy::new(Arc::clone(&permits));
    let results = fan_out(0..10, &slots).admit_by(policy).map(|_| async {});
    let results = tokio::spawn(results.collect::<Vec<_>>());
    settle().await;
    slots.close();
    drop(held);
    let results = results.await.unwrap();
    assert!(matches!(&results[..], [Err(TaskError::Abandoned)]), "{results:?}");
    assert_eq!(permits.in_use(), 0);
}

/// Given a fan-out that waits for its policy, and another that has their one slot and whose item waits for the policy's permit.
/// When the permit comes, then both end: an admitted item without a slot returns its admission.
#[tokio::test(start_paused = true)]
async fn an_admission_is_not_kept_while_the_slot_is_waited_for() {
    let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    let bucket = Arc::new(TokenBucket::new(Quota::per_hour(1).burst(2)));
    let held = permits.acquire().await.unwrap();
    let policy = Policy::new(Arc::clone(&bucket).and(Arc::clone(&permits)));
    let first = fan_out(0..1, &slots).admit_by(policy).map(|_| async {});
    let first = tokio::spawn(first.map(Result::unwrap).count());
    settle().await;
    assert_eq!((slots.in_use(), permits.waiting()), (0, 1));
    let wanted = Arc::clone(&permits);
    let second = fan_out(0..1, &slots).map(move |_| {
        let wanted = Arc::clone(&wanted);
        async move { drop(wanted.acquire().await.unwrap()) }
    });
    let second = tokio::spawn(second.map(Result::unwrap).count());
    settle().await;
    assert_eq!((slots.in_use(), permits.waiting()), (1, 2));
    drop(held);
    assert_eq!(timeout(HOUR, second).await.unwrap().unwrap(), 1);
    assert_eq!(timeout(HOUR, first).await.unwrap().unwrap(), 1);
    assert_eq!((slots.in_use(), permits.in_use()), (0, 0));
    // The returned admission cost nothing.
    assert!(bucket.try_admit(Ask::one()).is_ok());
    assert!(bucket.try_admit(Ask::one()).is_err());
}

/// Given three fan-outs that share one slot and the one permit of their policy, when the slot comes to one of them and the permit
/// to another, then they do not pass both on for ever: all end.
#[tokio::test]
async fn slot_and_admission_come_together_in_the_end() {
    let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    let policy = Policy::new(Arc::clone(&permits));
    let start = || {
        let results = fan_out(0..1, &slots).admit_by(policy.clone()).map(|_| async {});
        tokio::spawn(results.map(Result::unwrap).count())
    };
    let permit = permits.acquire().await.unwrap();
    let mut all = vec![start(), start()];
    settle().await;
    let slot = slots.try_acquire().unwrap();
    all.push(start());
    settle().await;
    assert_eq!((slots.waiting(), policy.waiting()), (1, 2));
    drop(permit);
    drop(slot);
    settle().await;
    let ended: Vec<_> = all.iter().map(tokio::task::JoinHandle::is_finished).collect();
    assert_eq!(ended, [true; 3]);
    assert_eq!((slots.in_use(), permits.in_use()), (0, 0));
}

/// Given two fan-outs, each with a policy that takes permits of the other's limit, when both are admitted at once, then both end.
#[tokio::test]
async fn two_whose_policies_hold_the_slots_of_each_other_both_end() {
    let limits = [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))];
    let gate = Arc::new(Semaphore::new(2));
    let closed = gate.try_acquire_many(2).unwrap();
    let both = [0, 1].map(|me| {
        let other = Arc::clone(&limits[1 - me]);
        let policy = Policy::new(other.and(Arc::clone(&gate)));
        let results = fan_out(0..10, &limits[me]).admit_by(policy).map(|_| async {});
        tokio::spawn(results.map(Result::unwrap).count())
    });
    settle().await;
    assert!(both.iter().all(|one| !one.is_finished()));
    drop(closed);
    settle().await;
    assert!(both.iter().all(|one| one.is_finished()));
    assert_eq!(limits.each_ref().map(|limit| limit.in_use()), [0, 0]);
}

/// Given one runner that keeps its slot from item to item, when the slots are closed, then its item ends and no other starts.
#[tokio::test]
async fn slots_that_close_while_an_item_runs_end_it() {
    let slots = Arc::new(Semaphore::new(1));
    let (open, gate) = oneshot::channel::<()>();
    let mut gate = Some(gate);
    let results = fan_out(0..10, &slots).map(move |n| {
        let gate = gate.take();
        async move {
            if let Some(gate) = gate {
                gate.await.unwrap();
            }
            n
        }
    });
    let results = tokio::spawn(results.collect::<Vec<_>>());
    settle().await;
    assert_eq!(slots.in_use(), 1);
    slots.close();
    open.send(()).unwrap();
    let results = results.await.unwrap();
    assert!(
        matches!(&results[..], [Ok(0), Err(TaskError::Abandoned)]),
        "{results:?}"
    );
    assert_eq!(slots.in_use(), 0);
}

/// Calls its closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Given a runtime that is shut down while another thread raises the limit, when that thread drops the last reference to the
/// fan-out and to a result whose drop panics, then that thread goes on.
#[test]
fn a_raise_of_the_limit_survives_the_end_of_the_fan_out() {
    // The order in which a runtime drops its tasks depends on their numbers, which all runtimes of the process share.
    assert!((0..100).any(|_| shut_down_beside_a_raise()));
}

/// Returns false if the runtime dropped the runner before the task that has the limit raised.
fn shut_down_beside_a_raise() -> bool {
    let slots = Arc::new(Semaphore::new(1));
    let (raised, in_order) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let (raise, raises) = mpsc::channel::<()>();
    let (reached, reaches) = mpsc::channel::<()>();
    let (end, ends) = mpsc::channel::<()>();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // Dropped before the runner.
    let raises_now = Arc::clone(&raised);
    let first = OnDrop(move || {
        raises_now.store(true, SeqCst);
        raise.send(()).unwrap();
        reaches.recv().unwrap();
    });
    runtime.spawn(async move {
        let _first = first;
        std::future::pending::<()>().await;
    });
    // Dropped by the thread that raises the limit, which finds no runtime to start a runner on.
    let order = Arc::clone(&in_order);
    let source = OnDrop(move || {
        reached.send(()).unwrap();
        match raised.load(SeqCst) {
            true => ends.recv().unwrap(),
            false => order.store(false, SeqCst),
        }
    });
    let items = (0..10).inspect(move |_| _ = &source);
    let results = runtime.block_on(async {
        let results = fan_out(items, &slots).buffer(10).map(|n| async move {
            if n > 0 {
                std::future::pending::<()>().await;
            }
            OnDrop(|| resume_unwind(Box::new("on purpose")))
        });
        settle().await;
        results
    });
    let raising = std::thread::spawn(move || {
        raises.recv().unwrap();
        slots.set_limit(2);
    });
    drop(runtime);
    // In the other order, the result is dropped here.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(results)));
    let _ = end.send(());
    assert!(raising.join().is_ok());
    in_order.load(SeqCst)
}

/// Given a fan-out held back by its limit, when it is dropped, ends by itself, or ends with its runtime, then its watch for a
/// higher limit does not keep its slots alive.
#[test]
fn a_fan_out_that_has_ended_leaves_nothing_with_its_slots() {
    for end in ["dropped", "by itself", "with its runtime"] {
        let slots = Arc::new(Semaphore::new(1));
        let (open, gate) = oneshot::channel::<()>();
        let mut gate = Some(gate);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut results = runtime.block_on(async {
            let results = fan_out(0..2, &slots).map(move |_| {
                let gate = gate.take();
                async move {
                    if let Some(gate) = gate {
                        let _ = gate.await;
                    }
                }
            });
            settle().await;
            results
        });
        assert_eq!(slots.in_use(), 1);
        match end {
            "dropped" => drop(results),
            "by itself" => {
                open.send(()).unwrap();
                assert_eq!(runtime.block_on(results.by_ref().count()), 2);
                drop(results);
            }
            _ => {
                drop(runtime);
                assert_eq!(futures::executor::block_on(results.by_ref().count()), 1);
                drop(results);
                assert_eq!(Arc::strong_count(&slots), 1, "{end}");
                continue;
            }
        }
        runtime.block_on(settle());
        assert_eq!(Arc::strong_count(&slots), 1, "{end}");
    }
}

/// Panics when it is woken.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("on purpose"));
    }
}

fn wait_with_a_bomb<F: Future>(waiting: Pin<&mut F>) {
    let bomb = Waker::from(Arc::new(Bomb));
    assert!(waiting.poll(&mut Context::from_waker(&bomb)).is_pending());
}

/// Given a waiter for the slot, or for the policy's permit, with a waker that panics, when either is released, then every item
/// has its result.
#[tokio::test]
async fn a_waker_that_panics_ends_no_fan_out() {
    for of_policy in [false, true] {
        let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let (open, gate) = oneshot::channel::<()>();
        let gate = Mutex::new(Some(gate));
        let results = fan_out(0..3, &slots)
            .admit_by(Policy::new(Arc::clone(&permits)))
            .map(move |n| {
                let gate = gate.lock().unwrap().take();
                async move {
                    if let Some(gate) = gate {
                        gate.await.unwrap();
                    }
                    n
                }
            });
        let results = tokio::spawn(results.map(Result::unwrap).collect::<Vec<_>>());
        settle().await;
        assert_eq!((slots.in_use(), permits.in_use()), (1, 1));
        let wanted = if of_policy { &permits } else { &slots };
        let mut other = Box::pin(wanted.acquire());
        wait_with_a_bomb(other.as_mut());
        open.send(()).unwrap();
        settle().await;
        drop(other);
        assert_eq!(results.await.unwrap(), [0, 1, 2]);
    }
}

/// Given a policy that refuses, when the slot returned after a refusal wakes a waiter whose waker panics, then each item is
/// refused, and the fan-out goes on.
#[tokio::test]
async fn a_waker_that_panics_as_an_item_is_refused_ends_no_fan_out() {
    let (slots, closed) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    closed.close();
    let held = slots.try_acquire().unwrap();
    let results = fan_out(0..3, &slots)
        .admit_by(Policy::new(closed))
        .map(|n| async move { n });
    let results = tokio::spawn(results.collect::<Vec<_>>());
    settle().await;
    let mut other = Box::pin(slots.acquire());
    wait_with_a_bomb(other.as_mut());
    drop(held);
    settle().await;
    drop(other);
    let results = results.await.unwrap();
    assert_eq!(results.len(), 3);
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Err(TaskError::Refused(_)))),
        "{results:?}"
    );
}
