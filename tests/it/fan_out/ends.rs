//! Tests of the end of a fan-out: by a failure, ordered or not, and with its runtime.

use futures::stream::StreamExt;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tollgate::fan_out::{fan_out, fan_out_stream};
use tollgate::pool::{GroupError, TaskError};

const LONG: Duration = Duration::from_secs(60);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The items that have run to their ends.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<BTreeSet<usize>>>);

impl Ends {
    fn note(&self, n: usize) {
        self.0.lock().unwrap().insert(n);
    }

    fn all(&self) -> Vec<usize> {
        self.0.lock().unwrap().iter().copied().collect()
    }
}

/// Given a source that has ended, and a consumer that polls later, when an item fails, then running items are dropped at once,
/// and the failure is the first result: for as many items as runners, for fewer, and for the last of many.
#[tokio::test(start_paused = true)]
async fn a_failure_after_the_end_of_the_source_drops_the_running_items() {
    for (items, fails) in [(8, 0), (3, 0), (1_000, 999)] {
        let ends = Ends::default();
        let inner = ends.clone();
        let fan = fan_out(0..items, 8).buffer(items);
        let mut results = fan.try_map(move |n| {
            let ends = inner.clone();
            async move {
                if n == fails {
                    sleep(millis(20)).await;
                    return Err(n);
                }
                if n + 8 < items {
                    return Ok(n);
                }
                sleep(millis(300)).await;
                ends.note(n);
                Ok(n)
            }
        });
        sleep(LONG).await;
        assert!(ends.all().is_empty());
        assert!(matches!(results.next().await, Some(Err(GroupError::Error(n))) if n == fails));
        assert!(results.next().await.is_none());
    }
}

/// Given a failure of an ordered fan-out, then the items behind it are dropped at once. So is the source, even while a runner
/// waits for its next item. The items in front of the failure run to their ends.
#[tokio::test(start_paused = true)]
async fn in_order_items_that_run_behind_a_failure_are_dropped() {
    let (send, receive) = futures::channel::mpsc::unbounded();
    for n in 0..4 {
        send.unbounded_send(n).unwrap();
    }
    let ends = Ends::default();
    let inner = ends.clone();
    let mut results = fan_out_stream(receive, 8).ordered().try_map(move |n: usize| {
        let ends = inner.clone();
        async move {
            if n == 1 {
                sleep(millis(50)).await;
                return Err(n);
            }
            sleep(millis(if n == 0 { 1_000 } else { 300 })).await;
            ends.note(n);
            Ok(n)
        }
    });
    settle().await;
    assert!(!send.is_closed());
    sleep(millis(60)).await;
    assert!(send.is_closed());
    let start = Instant::now();
    assert!(matches!(results.next().await, Some(Ok(0))));
    assert!(matches!(results.next().await, Some(Err(GroupError::Error(1)))));
    assert!(results.next().await.is_none());
    assert_eq!(start.elapsed(), millis(940));
    sleep(LONG).await;
    assert_eq!(ends.all(), [0]);
}

/// Given items that panic when they are dropped, one of them ahead, when one fails, then each is dropped. The failure is the result.
#[tokio::test]
async fn a_failure_drops_every_item_even_if_all_drops_panic() {
    struct Panics(Arc<Mutex<usize>>);
    impl Drop for Panics {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
            std::panic::resume_unwind(Box::new("dropped"));
        }
    }
    for ordered in [false, true] {
        let dropped = Arc::new(Mutex::new(0));
        let inner = Arc::clone(&dropped);
        let (fail, told) = oneshot::channel::<()>();
        let mut told = Some(told);
        let fan = fan_out(0..6, 5);
        let fan = if ordered { fan.ordered() } else { fan };
        let mut results = fan.try_map(move |n| {
            let (told, held) = (told.take(), (n > 0).then(|| Panics(Arc::clone(&inner))));
            async move {
                if let Some(told) = told {
                    told.await.unwrap();
                    return Err(n);
                }
                let _held = held;
                std::future::pending::<Result<(), _>>().await
            }
        });
        settle().await;
        assert_eq!(*dropped.lock().unwrap(), 0);
        fail.send(()).unwrap();
        settle().await;
        assert_eq!(*dropped.lock().unwrap(), 5);
        assert!(matches!(results.next().await, Some(Err(GroupError::Error(0)))));
        assert!(results.next().await.is_none());
    }
}

/// Given a source that panics, then running items are dropped, and the panic is the first result.
#[tokio::test(start_paused = true)]
async fn a_source_that_panics_is_the_first_failure() {
    let ends = Ends::default();
    let inner = ends.clone();
    let source = (0..4).inspect(|n| {
        if *n == 3 {
            std::panic::resume_unwind(Box::new("source"));
        }
    });
    let mut results = fan_out(source, 8).try_map(move |n: usize| {
        let ends = inner.clone();
        async move {
            sleep(millis(20)).await;
            ends.note(n);
            Err::<(), _>(n)
        }
    });
    sleep(LONG).await;
    assert!(ends.all().is_empty());
    assert!(matches!(
        results.next().await,
        Some(Err(GroupError::Task(TaskError::Panicked(_))))
    ));
    assert!(results.next().await.is_none());
}

/// Given a second failure in front of the first, then the results end with the second. Behind the first it changes nothing.
#[tokio::test(start_paused = true)]
async fn in_order_the_failure_that_counts_is_the_one_in_front() {
    let after = |times: [u64; 4]| {
        fan_out(0..4, 4).ordered().try_map(move |n: usize| async move {
            sleep(millis(times[n])).await;
            if n == 0 { Ok(n) } else { Err(n) }
        })
    };
    for times in [[400, 300, 100, 200], [10, 100, 100, 100], [10, 100, 200, 50]] {
        let results: Vec<_> = timeout(LONG, after(times).collect()).await.unwrap();
        assert!(matches!(results[..], [Ok(0), Err(GroupError::Error(1))]), "{results:?}");
    }
}

/// Given a failure of an ordered fan-out, when the runtime is shut down while an item in front of it runs, then that item's
/// result is the error.
#[test]
fn a_runtime_shutdown_after_a_failure_leaves_no_waiter() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut results = runtime.block_on(async {
        let results = fan_out(0..100, 6).ordered().try_map(|n| async move {
            match n {
                0 | 2 => Ok(n),
                4 => Err(n),
                _ => std::future::pending().await,
            }
        });
        settle().await;
        results
    });
    drop(runtime);
    // All results are ready, so no poll may be pending.
    let mut next = || futures::FutureExt::now_or_never(results.next()).expect("the consumer is left waiting");
    assert!(matches!(next(), Some(Ok(0))));
    assert!(matches!(next(), Some(Err(GroupError::Task(TaskError::Aborted)))));
    assert!(next().is_none());
}

#[derive(Default)]
struct Note(AtomicBool);

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// As above, for a consumer that waits.
#[test]
fn a_consumer_that_waits_behind_a_failure_is_woken_by_the_end_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (fail, fails) = oneshot::channel::<()>();
    let mut fails = Some(fails);
    let mut results = runtime.block_on(async {
        fan_out(0..2, 2).ordered().try_map(move |n| {
            let fails = fails.take_if(|_| n == 1);
            async move {
                match fails {
                    Some(fails) => Err::<(), _>(fails.await.is_ok()),
                    None => std::future::pending().await,
                }
            }
        })
    });
    let woken = Arc::new(Note::default());
    let waker = Waker::from(Arc::clone(&woken));
    let poll = |results: &mut _| {
        let mut cx = Context::from_waker(&waker);
        StreamExt::poll_next_unpin(results, &mut cx)
    };
    runtime.block_on(async {
        settle().await;
        fail.send(()).unwrap();
        settle().await;
    });
    assert!(poll(&mut results).is_pending());
    drop(runtime);
    assert!(woken.0.load(Ordering::SeqCst));
    let told = poll(&mut results);
    assert!(matches!(
        told,
        Poll::Ready(Some(Err(GroupError::Task(TaskError::Aborted))))
    ));
}

/// Given a runtime that ends while the source is pending, then the consumer gets one error.
#[test]
fn the_end_of_the_runtime_is_reported_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut results = runtime.block_on(async {
        let results = fan_out_stream(futures::stream::pending::<u8>(), 1).map(|n| async move { n });
        settle().await;
        results
    });
    drop(runtime);
    let ends: Vec<_> = futures::executor::block_on_stream(&mut results).collect();
    assert!(matches!(ends[..], [Err(TaskError::Aborted)]), "{ends:?}");
}

/// A source of one item that ends as told, and waits in its drop until the consumer has learned of the end.
struct WaitsForConsumer {
    items: u8,
    end: fn() -> Poll<Option<u8>>,
    learned: std::sync::mpsc::Receiver<()>,
}

impl futures::Stream for WaitsForConsumer {
    type Item = u8;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u8>> {
        if self.items == 0 {
            return (self.end)();
        }
        self.items -= 1;
        Poll::Ready(Some(self.items))
    }
}

impl Drop for WaitsForConsumer {
    fn drop(&mut self) {
        assert!(
            self.learned.recv_timeout(LONG).is_ok(),
            "the consumer has not learned of the end"
        );
    }
}

/// Given a source that ends, panics, or goes with its runtime, and whose drop waits for the consumer, then the consumer learns of
/// the end before that drop.
#[test]
fn the_end_is_known_before_the_source_is_dropped() {
    let ends: [fn() -> Poll<Option<u8>>; 3] = [
        || Poll::Ready(None),
        || std::panic::resume_unwind(Box::new("source")),
        || Poll::Pending,
    ];
    for (which, end) in ends.into_iter().enumerate() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (learns, learned) = std::sync::mpsc::channel();
        let (starts, started) = oneshot::channel();
        let mut starts = Some(starts);
        let (items, goes) = (1, which == 2);
        let source = WaitsForConsumer { items, end, learned };
        let mut results = {
            let _inside = runtime.enter();
            // Of the source that goes with its runtime, the only runner has the item, so that the source rests.
            fan_out_stream(source, 1).map(move |_| {
                let starts = starts.take().unwrap();
                async move {
                    starts.send(()).unwrap();
                    if goes {
                        std::future::pending::<()>().await;
                    }
                }
            })
        };
        futures::executor::block_on(started).unwrap();
        let mut runtime = Some(runtime);
        let going = runtime.take_if(|_| goes);
        let dropper = std::thread::spawn(move || drop(going));
        let mut next = || futures::executor::block_on(results.next());
        match which {
            0 => assert!(matches!((next(), next()), (Some(Ok(())), None))),
            1 => assert!(matches!(
                (next(), next()),
                (Some(Ok(())), Some(Err(TaskError::Panicked(_))))
            )),
            _ => assert!(matches!(next(), Some(Err(TaskError::Aborted)))),
        }
        learns.send(()).unwrap();
        dropper.join().unwrap();
    }
}
