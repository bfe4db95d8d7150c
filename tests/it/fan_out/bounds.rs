//! Tests of fan-outs at the bounds of capacity, limits and size hints, and of the state left at the end.

use crate::outcomes::Outcomes;
use futures::channel::mpsc;
use futures::stream::StreamExt;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tollgate::fan_out::{fan_out, fan_out_stream};
use tollgate::pool::{GroupError, TaskError};
use tollgate::{Policy, Semaphore};

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Returns numbers from zero, and the count of those taken.
fn counted() -> (impl Iterator<Item = usize> + Send, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    ((0..).inspect(move |_| _ = count.fetch_add(1, Ordering::SeqCst)), taken)
}

/// Given a limit of 2 and 4 ready results, when the consumer takes some of them, then one item is taken for each but the last.
#[tokio::test]
async fn capacity_is_freed_while_results_are_ready() {
    let (items, taken) = counted();
    let mut results = fan_out(items, 2).map(|_| async {});
    settle().await;
    assert_eq!(taken.load(Ordering::SeqCst), 4);
    for given in 1..=3 {
        assert!(results.next().await.is_some());
        settle().await;
        assert_eq!(taken.load(Ordering::SeqCst), 4 + given - 1);
    }
}

/// Given futures that never end, when all of the limit is used, then at most a quarter of the limit is taken ahead, and 16 items. None
/// is with a small limit, a policy, shared permits, a full buffer or large futures.
#[tokio::test]
async fn few_items_are_taken_before_a_task_is_free() {
    macro_rules! taken {
        ($limit:expr $(, $set:ident($to:expr))*; $future:expr) => {{
            let (items, taken) = counted();
            let results = fan_out(items, $limit)$(.$set($to))*.map(move |_| $future);
            settle().await;
            drop(results);
            taken.load(Ordering::SeqCst)
        }};
    }
    let policy = || Policy::new(Semaphore::new(100));
    assert_eq!(taken!(3; pending::<()>()), 3);
    assert_eq!(taken!(7; pending::<()>()), 8);
    let most = taken!(100; pending::<()>());
    assert!((101..=116).contains(&most), "{most}");
    assert_eq!(taken!(7, buffer(0); pending::<()>()), 7);
    assert_eq!(taken!(7, admit_by(policy()); pending::<()>()), 7);
    assert_eq!(taken!(&Arc::new(Semaphore::new(7)); pending::<()>()), 7);
    let large = [0u8; 300];
    assert_eq!(
        taken!(7; async move {
            pending::<()>().await;
            std::hint::black_box(&large);
        }),
        7
    );
}

/// Random limits, orders and ends: each fan-out gives what a run of one item after the other gives.
#[tokio::test]
async fn each_random_fan_out_gives_what_a_sequential_run_gives() {
    struct Counted(Arc<()>, usize);
    for seed in 0..400_usize {
        let below = |n: usize, salt: usize| (seed * 31 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1_000_003 % n;
        let (limit, n) = (1 + below(40, 1), below(120, 2));
        // The item whose source panics, and the one that fails.
        let (panics, fails) = (below(2 * n + 1, 3), below(2 * n + 1, 4));
        let alive = Arc::new(());
        let made = Arc::clone(&alive);
        let source = (0..n).inspect(move |&item| {
            if item == panics {
                resume_unwind(Box::new("source"));
            }
        });
        let task = move |item: usize| {
            let counted = Counted(Arc::clone(&made), item);
            async move {
                for _ in 0..(item * 7 + seed) % 4 {
                    tokio::task::yield_now().await;
                }
                let Counted(_alive, item) = counted;
                item
            }
        };
        let all = n.min(panics);
        if seed % 2 == 0 {
            let fan = fan_out(source, limit);
            let fan = if seed % 4 == 0 { fan.ordered() } else { fan };
            let results: Vec<_> = fan.map(task).collect().await;
            let errors = results.iter().filter(|result| result.is_err()).count();
            let mut items: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
            if seed % 4 != 0 {
                items.sort_unstable();
            }
            assert!(items.into_iter().eq(0..all), "{seed}");
            assert_eq!(errors, usize::from(panics < n), "{seed}");
        } else {
            let task = move |item| {
                let task = task(item);
                async move {
                    let item = task.await;
                    if item < fails { Ok(item) } else { Err(item) }
                }
            };
            let results: Vec<_> = fan_out(source, limit).ordered().try_map(task).collect().await;
            let fail = (fails < all).then_some(fails);
            let items: Vec<_> = results
                .iter()
                .filter_map(|result| result.as_ref().ok().copied())
                .collect();
            assert!(items.into_iter().eq(0..fail.unwrap_or(all)), "{seed}");
            match (results.last(), fail) {
                (Some(Err(GroupError::Error(item))), Some(fail)) => assert_eq!(*item, fail, "{seed}"),
                (Some(Err(GroupError::Task(TaskError::Panicked(_)))), None) => assert!(panics < n, "{seed}"),
                (last, fail) => assert!(
                    fail.is_none() && panics >= n && last.is_none_or(Result::is_ok),
                    "{seed}"
                ),
            }
        }
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 1, "{seed}");
    }
}

/// Given a limit of zero, with and without a buffer, when it is raised, then all items run.
#[tokio::test]
async fn a_limit_of_zero_may_be_raised() {
    for ahead in [None, Some(0), Some(5)] {
        let slots = Arc::new(Semaphore::new(0));
        let mut builder = fan_out(0..10, &slots);
        if let Some(ahead) = ahead {
            builder = builder.buffer(ahead);
        }
        let results = tokio::spawn(builder.map(|_| async {}).count());
        settle().await;
        assert!(!results.is_finished());
        slots.set_limit(2);
        assert_eq!(results.await.unwrap(), 10);
    }
}

/// Given a lowered limit and a buffer with room, when items end, then no item starts until the running ones are below the limit.
#[tokio::test]
async fn a_limit_that_was_lowered_holds_with_room_to_spare() {
    let slots = Arc::new(Semaphore::new(3));
    let gates = Arc::new(Mutex::new(Vec::new()));
    let opened = Arc::clone(&gates);
    let results = fan_out(0..6, &slots).buffer(100).map(move |_| {
        let (open, gate) = oneshot::channel::<()>();
        opened.lock().unwrap().push(open);
        gate
    });
    settle().await;
    assert_eq!(slots.in_use(), 3);
    slots.set_limit(1);
    let open = || gates.lock().unwrap().remove(0).send(()).unwrap();
    for left in [2, 1, 1] {
        open();
        settle().await;
        assert_eq!(slots.in_use(), left);
    }
    drop(results);
}

/// A limit above the largest of a semaphore is that largest limit.
#[tokio::test]
async fn a_limit_beyond_all_bounds_is_none() {
    assert_eq!(fan_out(0..100, usize::MAX).map(|_| async {}).count().await, 100);
    let bounded = fan_out(0..100, usize::MAX).buffer(usize::MAX).ordered();
    assert_eq!(bounded.map(|_| async {}).count().await, 100);
}

/// Given futures that are ready at once, and a buffer for all of their results, then other tasks run in between.
#[tokio::test]
async fn a_ready_source_yields_to_other_tasks() {
    const ITEMS: usize = 100_000;
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let items = (0..ITEMS).inspect(move |_| _ = count.fetch_add(1, Ordering::SeqCst));
    let results = fan_out(items, 1).buffer(ITEMS).map(|_| async {});
    tokio::task::yield_now().await;
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken > 0 && taken < ITEMS, "{taken}");
    drop(results);
}

/// Given a source whose size hint is unknown or only a bound, then no total is reported.
#[tokio::test]
async fn a_known_total_is_reported() {
    let totals = Arc::new(Mutex::new(Vec::new()));
    let told = || {
        let totals = Arc::clone(&totals);
        move |progress: tollgate::fan_out::Progress| totals.lock().unwrap().push(progress.total)
    };
    let known = fan_out(0..2, 1).progress(told());
    assert_eq!(known.map(|_| async {}).count().await, 2);
    let bounded = fan_out((0..2).filter(|n| n % 2 == 0), 1).progress(told());
    assert_eq!(bounded.map(|_| async {}).count().await, 1);
    let unknown = fan_out((0..).map_while(|n| (n < 1).then_some(n)), 1).progress(told());
    assert_eq!(unknown.map(|_| async {}).count().await, 1);
    assert_eq!(*totals.lock().unwrap(), [Some(2), Some(2), None, None]);
}

/// Given idle runners, when the source ends, then they end, although the consumer still has the results.
#[tokio::test]
async fn no_waiter_is_left_when_the_source_has_ended() {
    let (send, items) = mpsc::unbounded();
    let mut results = fan_out_stream(items, 4).map(|_: u32| tokio::task::yield_now());
    for n in 0..4 {
        send.unbounded_send(n).unwrap();
    }
    settle().await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 4);
    drop(send);
    settle().await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    for _ in 0..4 {
        assert!(results.next().await.is_some());
    }
    assert!(results.next().await.is_none());
}

/// Given ordered results of which the first is still to come, when the runtime is shut down, then those behind it are given out,
/// and then the error.
#[test]
fn in_order_a_runtime_that_is_shut_down_leaves_no_gap() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut results = runtime.block_on(async {
        let results = fan_out(0..3, 3).ordered().map(|n| async move {
            if n == 0 {
                std::future::pending::<()>().await;
            }
            n
        });
        settle().await;
        results
    });
    drop(runtime);
    let mut next = || futures::executor::block_on(results.next());
    assert!(matches!((next(), next()), (Some(Ok(1)), Some(Ok(2)))));
    assert!(matches!(next(), Some(Err(TaskError::Aborted))));
    assert!(next().is_none());
}

/// Given a limiter in front of the items that learns, then it counts errors in `try_map`, and panics in both `map` and `try_map`.
#[tokio::test]
async fn a_policy_receives_the_outcomes_of_its_items() {
    let learns = || Arc::new(Outcomes::default());
    let policy = |learns: &Arc<Outcomes>| Policy::new(Arc::clone(learns));

    let fails = learns();
    let results = fan_out(0..1, 1)
        .admit_by(policy(&fails))
        .try_map(|_| async { Err::<(), _>(()) });
    assert_eq!((results.count().await, fails.told()), (1, (1, 1)));

    let returns = learns();
    let results = fan_out(0..1, 1)
        .admit_by(policy(&returns))
        .map(|_| async { Err::<(), _>(()) });
    assert_eq!((results.count().await, returns.told()), (1, (1, 0)));

    let panics = learns();
    let results = fan_out(0..1, 1)
        .admit_by(policy(&panics))
        .map(|_| async { resume_unwind(Box::new("on purpose")) });
    let results = results.map(|result: Result<(), _>| result.is_err());
    assert_eq!((results.collect::<Vec<_>>().await, panics.told()), (vec![true], (1, 1)));

    let dropped = learns();
    let mut results = fan_out(0..1, 1)
        .admit_by(policy(&dropped))
        .map(|_| std::future::pending::<()>());
    assert!(futures::poll!(results.next()).is_pending());
    settle().await;
    drop(results);
    settle().await;
    assert_eq!(dropped.told(), (0, 0));
}
