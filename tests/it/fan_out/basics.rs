//! Tests of fan-outs: order, limits, back-pressure, errors, panics, and a program that deadlocks with `buffer_unordered`.

use futures::stream::{self, StreamExt, TryStreamExt};
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tollgate::fan_out::{Progress, fan_out, fan_out_stream};
use tollgate::pool::{GroupError, TaskError};
use tollgate::{Policy, Quota, Semaphore, TokenBucket};

/// Counts the tasks inside, and keeps the peak.
#[derive(Clone, Default)]
struct Gauge {
    now: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

impl Gauge {
    async fn inside<F: Future>(&self, work: F) -> F::Output {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
        let output = work.await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        output
    }

    fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }
}

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_item_has_one_result_and_the_limit_holds() {
    let gauge = Gauge::default();
    let inner = gauge.clone();
    let results = fan_out(0..10_000, 16).map(move |n| {
        let gauge = inner.clone();
        async move {
            gauge
                .inside(async {
                    if n % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                    n
                })
                .await
        }
    });
    let seen: BTreeSet<i32> = results.map(Result::unwrap).collect().await;
    assert_eq!(seen.len(), 10_000);
    assert!(gauge.peak() <= 16);
}

#[tokio::test(start_paused = true)]
async fn concurrency_reaches_the_limit() {
    let gauge = Gauge::default();
    let inner = gauge.clone();
    let start = tokio::time::Instant::now();
    let results = fan_out(0..40, 10).map(move |_| {
        let gauge = inner.clone();
        async move { gauge.inside(tokio::time::sleep(Duration::from_secs(1))).await }
    });
    assert_eq!(results.count().await, 40);
    assert_eq!((gauge.peak(), start.elapsed().as_secs()), (10, 4));
}

#[tokio::test(start_paused = true)]
async fn results_come_in_order_where_that_is_asked_for() {
    let slow_first = |n: u64| async move {
        tokio::time::sleep(Duration::from_millis(1_000 - n)).await;
        n
    };
    let ordered = fan_out(0..100, 10).ordered().map(slow_first);
    let ordered: Vec<_> = ordered.map(Result::unwrap).collect().await;
    assert_eq!(ordered, (0..100).collect::<Vec<_>>());
    let as_ended = fan_out(0..10, 10).map(slow_first);
    let as_ended: Vec<_> = as_ended.map(Result::unwrap).collect().await;
    assert_eq!(as_ended, (0..10).rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn no_item_is_taken_from_the_source_without_capacity() {
    for ordered in [false, true] {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let items = (0..1_000).inspect(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let fan = fan_out(items, 4).buffer(3);
        let fan = if ordered { fan.ordered() } else { fan };
        let mut results = fan.map(|n| async move { n });
        settle().await;
        assert_eq!(taken.load(Ordering::SeqCst), 7);
        for given in 1..=20 {
            results.next().await.unwrap().unwrap();
            settle().await;
            assert!(taken.load(Ordering::SeqCst) <= 7 + given);
        }
        let rest = results.count().await;
        assert_eq!((rest, taken.load(Ordering::SeqCst)), (980, 1_000));
    }
}

#[tokio::test]
async fn a_stream_is_taken_from_as_it_comes() {
    let (send, receive) = futures::channel::mpsc::unbounded();
    let slots = Arc::new(Semaphore::new(2));
    let mut results = fan_out_stream(receive, &slots).map(|n: i32| async move { n + 1 });
    send.unbounded_send(1).unwrap();
    assert_eq!(results.next().await.unwrap().unwrap(), 2);
    settle().await;
    // No slot is held while the source is pending.
    assert_eq!(slots.in_use(), 0);
    send.unbounded_send(5).unwrap();
    assert_eq!(results.next().await.unwrap().unwrap(), 6);
    drop(send);
    assert!(results.next().await.is_none());
    assert!(results.next().await.is_none());
}

#[tokio::test]
async fn a_shared_limit_is_changed_while_it_runs() {
    let slots = Arc::new(Semaphore::new(1));
    let gauge = Gauge::default();
    let (inner, gates) = (gauge.clone(), Arc::new(Mutex::new(Vec::new())));
    let opened = Arc::clone(&gates);
    let results = fan_out(0..6, &slots).map(move |_| {
        let (gauge, gates) = (inner.clone(), Arc::clone(&opened));
        async move {
            let (open, gate) = oneshot::channel::<()>();
            gates.lock().unwrap().push(open);
            gauge.inside(gate).await.unwrap();
        }
    });
    let results = tokio::spawn(results.count());
    let open = || gates.lock().unwrap().pop().unwrap().send(()).unwrap();
    settle().await;
    assert_eq!(slots.in_use(), 1);
    slots.set_limit(3);
    open();
    settle().await;
    assert_eq!((slots.in_use(), gauge.peak()), (3, 3));
    slots.set_limit(1);
    open();
    open();
    settle().await;
    assert_eq!(slots.in_use(), 1);
    for _ in 0..3 {
        open();
        settle().await;
    }
    assert_eq!((results.await.unwrap(), gauge.peak()), (6, 3));
    assert_eq!(slots.in_use(), 0);
}

#[tokio::test]
async fn two_that_share_a_limit_both_get_on() {
    let slots = Arc::new(Semaphore::new(1));
    let run = |_| async { tokio::task::yield_now().await };
    let (one, two) = (fan_out(0..500, &slots).map(run), fan_out(0..500, &slots).map(run));
    assert_eq!(futures::join!(one.count(), two.count()), (500, 500));
    assert_eq!(slots.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_policy_admits_the_items() {
    let policy = Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)));
    let results = fan_out(0..5, 8).admit_by(policy).map(|n| async move { n });
    assert_eq!(results.count().await, 5);
    let never = Policy::new(Semaphore::new(1));
    let closed = never.limiter();
    closed.close();
    let mut refused = fan_out(0..1, 8).admit_by(never).map(|n| async move { n });
    assert!(matches!(refused.next().await, Some(Err(TaskError::Refused(_)))));
    assert!(refused.next().await.is_none());
}

#[tokio::test]
async fn the_first_error_ends_it_and_drops_the_running_items() {
    let dropped = Arc::new(());
    let held = Arc::clone(&dropped);
    let mut results = fan_out(0.., 4).try_map(move |n: u32| {
        let held = Arc::clone(&held);
        async move {
            let _held = held;
            match n {
                0 | 1 => Ok(n),
                2 => Err("two"),
                _ => std::future::pending().await,
            }
        }
    });
    let mut values = Vec::new();
    let failed = loop {
        match results.next().await.unwrap() {
            Ok(value) => values.push(value),
            Err(failed) => break failed,
        }
    };
    assert_eq!(failed.into_error(), Some("two"));
    assert!(results.next().await.is_none());
    settle().await;
    assert_eq!(Arc::strong_count(&dropped), 1);
}

#[tokio::test(start_paused = true)]
async fn in_order_the_results_before_the_error_still_come() {
    let results = fan_out(0..100, 10).ordered().try_map(|n: u64| async move {
        tokio::time::sleep(Duration::from_millis(100 - n)).await;
        if n == 5 { Err(n) } else { Ok(n) }
    });
    let mut values = Vec::new();
    let failed = results.try_for_each(|value| {
        values.push(value);
        async { Ok(()) }
    });
    assert!(matches!(failed.await, Err(GroupError::Error(5))));
    assert_eq!(values, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_panic_is_a_result_and_a_panic_of_the_source_ends_it() {
    let results = fan_out(0..10, 2).map(|n| async move {
        if n == 3 {
            resume_unwind(Box::new("on purpose"));
        }
        n
    });
    let (good, bad): (Vec<_>, Vec<_>) = results.collect::<Vec<_>>().await.into_iter().partition(Result::is_ok);
    assert_eq!((good.len(), bad.len()), (9, 1));
    let source = (0..10).inspect(|n| {
        if *n == 3 {
            resume_unwind(Box::new("source"));
        }
    });
    let results: Vec<_> = fan_out(source, 2).ordered().map(|n| async move { n }).collect().await;
    assert_eq!(results.len(), 4);
    assert!(matches!(results[3], Err(TaskError::Panicked(_))));
    let failed = fan_out(0..10, 2).try_map(|n| async move {
        if n == 3 {
            resume_unwind(Box::new("on purpose"));
        }
        Ok::<_, ()>(n)
    });
    let failed = failed.try_collect::<Vec<_>>().await;
    assert!(matches!(failed, Err(GroupError::Task(TaskError::Panicked(_)))));
}

/// Keeps out bb8#59, bb8#67.
#[tokio::test]
async fn dropping_the_results_drops_source_and_futures() {
    let held = Arc::new(());
    let (in_source, in_futures) = (Arc::clone(&held), Arc::clone(&held));
    let source = (0..).inspect(move |_| assert!(Arc::strong_count(&in_source) > 0));
    let results = fan_out(source, 4).map(move |_: i32| {
        let held = Arc::clone(&in_futures);
        async move {
            std::future::pending::<()>().await;
            drop(held);
        }
    });
    settle().await;
    assert_eq!(Arc::strong_count(&held), 3 + 4);
    drop(results);
    settle().await;
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn progress_is_reported_and_survives_a_hook_that_panics() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let results = fan_out(0..5, 1).progress(move |progress| {
        tell.lock().unwrap().push(progress);
        resume_unwind(Box::new("hook"));
    });
    assert_eq!(results.map(|n| async move { n }).count().await, 5);
    let told: Vec<Progress> = told.lock().unwrap().clone();
    assert_eq!(
        told.iter().map(|progress| progress.finished).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    assert!(
        told.iter()
            .all(|progress| progress.total == Some(5) && progress.taken <= 5)
    );
}

#[tokio::test]
async fn nothing_has_no_results() {
    assert_eq!(fan_out(0..0, 4).map(|n: i32| async move { n }).count().await, 0);
    assert_eq!(
        fan_out_stream(stream::empty::<i32>(), 4)
            .map(|n| async move { n })
            .count()
            .await,
        0
    );
}

#[tokio::test]
async fn closed_slots_end_it() {
    let slots = Arc::new(Semaphore::new(1));
    slots.close();
    let results: Vec<_> = fan_out(0..9, &slots).map(|n: i32| async move { n }).collect().await;
    assert!(matches!(results[..], [Err(TaskError::Abandoned)]));
}

/// futures-rs#2387. Given a lock that the futures and the consumer take, when a future is granted the lock while the consumer
/// waits for it, then the futures go on. `buffer_unordered` polls futures only while the stream is polled, and deadlocks.
/// Keeps out futures-rs#2387.
#[tokio::test(start_paused = true)]
async fn a_consumer_may_wait_for_a_resource_of_the_futures() {
    const END: Duration = Duration::from_secs(60);
    let lock = Arc::new(tokio::sync::Mutex::new(()));
    let work = |lock: Arc<tokio::sync::Mutex<()>>| async move {
        let _guard = lock.lock().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let consume = async |results: &mut (dyn futures::Stream<Item = ()> + Send + Unpin)| {
        while results.next().await.is_some() {
            let _guard = lock.lock().await;
        }
    };
    let items: Vec<_> = (0..10).map(|_| Arc::clone(&lock)).collect();
    let mut buffered = stream::iter(items.clone()).map(work).buffer_unordered(5);
    assert!(timeout(END, consume(&mut buffered)).await.is_err());
    drop(buffered);
    let mut results = fan_out(items, 5).map(work).map(Result::unwrap);
    assert!(timeout(END, consume(&mut results)).await.is_ok());
}

#[test]
fn a_runtime_shutdown_leaves_no_waiter() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut results = runtime.block_on(async {
        let results = fan_out(0..10, 3).map(|n| async move {
            if n > 0 {
                std::future::pending::<()>().await;
            }
            n
        });
        settle().await;
        results
    });
    drop(runtime);
    let next = |results: &mut _| futures::executor::block_on(StreamExt::next(results));
    assert!(matches!(next(&mut results), Some(Ok(0))));
    assert!(matches!(next(&mut results), Some(Err(TaskError::Aborted))));
    assert!(next(&mut results).is_none());
}
