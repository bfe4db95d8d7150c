//! Policies chosen by the item.

use futures::StreamExt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate::fan_out::{fan_out, fan_out_stream};
use tollgate::pool::TaskError;
use tollgate::{Ask, Cost, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Given a limit of one, and many items of a slow host before those of another, then those of the other run at once, and the
/// slow host gets its items in order, one per second.
#[tokio::test]
async fn an_item_that_waits_holds_up_only_items_of_its_own_policy() {
    let clock = ManualClock::new();
    let slow = Policy::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock));
    let fast = Policy::new(TokenBucket::new(Quota::unlimited()).on(&clock));
    let started = Arc::new(Mutex::new(Vec::new()));
    let items = (0..5).map(|n| ("slow", n)).chain((0..50).map(|n| ("fast", n)));
    let slots = Arc::new(Semaphore::new(1));
    let noted = Arc::clone(&started);
    let results = fan_out(items, &slots)
        .admit_each(20, move |(host, _)| match *host {
            "slow" => (slow.clone(), Ask::one()),
            _ => (fast.clone(), Ask::one()),
        })
        .map(move |item| {
            noted.lock().unwrap().push(item);
            async {}
        });
    let results = tokio::spawn(results.count());
    for second in 1..=5 {
        settle().await;
        let mut started = started.lock().unwrap().clone();
        assert_eq!(started.len(), 50 + second);
        started.retain(|(host, _)| *host == "slow");
        assert_eq!(started, (0..second).map(|n| ("slow", n)).collect::<Vec<_>>());
        assert_eq!(slots.in_use(), 0, "no slot is held by what waits");
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(results.await.unwrap(), 55);
}

/// Given a full bound on what waits, then nothing more is taken from the source.
#[tokio::test]
async fn a_bounded_number_of_items_waits() {
    let clock = ManualClock::new();
    let policies = [0, 1].map(|_| Policy::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock)));
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let items = (0..100).inspect(move |_| _ = counted.fetch_add(1, SeqCst));
    let results = fan_out(items, 4)
        .admit_each(7, move |n| (policies[n % 2].clone(), Ask::one()))
        .map(|n| async move { n });
    let results = tokio::spawn(results.map(Result::unwrap).collect::<Vec<_>>());
    settle().await;
    assert_eq!(taken.load(SeqCst), 2 + 7);
    for second in 1..50 {
        clock.advance(Duration::from_secs(1));
        settle().await;
        assert_eq!(taken.load(SeqCst), (2 + 7 + 2 * second).min(100));
    }
    let mut results = results.await.unwrap();
    results.sort_unstable();
    assert_eq!(results, (0..100).collect::<Vec<_>>());
}

/// Given costs by the item, then an item that its policy refuses has the refusal as its result, and starts nothing.
#[tokio::test]
async fn an_item_is_asked_for_by_its_cost() {
    const BYTES: Cost = Cost::new("bytes");
    let clock = ManualClock::new();
    let bytes = TokenBucket::new(Quota::per_second(10)).on(&clock);
    let policy = Policy::new(bytes.per(BYTES).named("bytes"));
    let results = fan_out([4, 20, 6], 3)
        .ordered()
        .admit_each(3, move |&bytes| (policy.clone(), Ask::one().cost(BYTES, bytes)))
        .map(|bytes| async move { bytes });
    let results: Vec<_> = results.collect().await;
    assert_eq!(
        (results[0].as_ref().ok(), results[2].as_ref().ok()),
        (Some(&4), Some(&6))
    );
    let Err(TaskError::Refused(refused)) = &results[1] else {
        panic!("{:?}", results[1])
    };
    assert_eq!((refused.leg(), refused.reason()), ("bytes", Reason::Oversized));
}

/// Given a closure that panics, then the fan-out ends with the panic; given a consumer that drops the results, then no permit
/// and no waiter is left.
#[tokio::test]
async fn nothing_is_left_after_a_panic_or_a_drop() {
    for panics in [true, false] {
        let permits = Arc::new(Semaphore::new(1));
        let policy = Policy::new(Arc::clone(&permits));
        let chosen = policy.clone();
        let mut results = fan_out(0..10, 2)
            .admit_each(5, move |&n| {
                assert!(!panics || n < 3, "chosen");
                (chosen.clone(), Ask::one())
            })
            .map(|n| async move {
                if n > 0 {
                    std::future::pending::<()>().await;
                }
            });
        if panics {
            let results: Vec<_> = results.collect().await;
            assert!(
                matches!(results.last(), Some(Err(TaskError::Panicked(_)))),
                "{results:?}"
            );
        } else {
            results.next().await.unwrap().unwrap();
            settle().await;
            assert_eq!((permits.in_use(), policy.waiting()), (1, 1));
            drop(results);
        }
        settle().await;
        assert_eq!((permits.in_use(), policy.waiting()), (0, 0));
    }
}

/// Given items that wait for policies, run or have results, and results that are dropped after any number of polls, then no permit,
/// no waiter and no item is left.
#[tokio::test]
async fn nothing_is_left_of_results_that_are_dropped_at_any_poll() {
    for polls in 0..12 {
        for settles in [false, true] {
            let permits = Arc::new(Semaphore::new(2));
            let policies = [1, 2].map(|_| Policy::new(Arc::clone(&permits)));
            let (chosen, item) = (policies.clone(), Arc::new(()));
            let items = vec![Arc::clone(&item); 10].into_iter().enumerate();
            let mut results = fan_out(items, 3)
                .admit_each(4, move |(n, _)| (chosen[n % 2].clone(), Ask::one()))
                .map(|item| async move {
                    tokio::task::yield_now().await;
                    item
                });
            for _ in 0..polls {
                let _ = futures::poll!(results.next());
                match settles {
                    true => settle().await,
                    false => tokio::task::yield_now().await,
                }
            }
            drop(results);
            settle().await;
            let waiting = policies.each_ref().map(Policy::waiting);
            assert_eq!((permits.in_use(), waiting), (0, [0, 0]), "after {polls} polls");
            assert_eq!(Arc::strong_count(&item), 1, "after {polls} polls");
        }
    }
}

/// Given slots that are closed behind an admission, then the admission comes back.
#[tokio::test]
async fn an_admission_behind_closed_slots_comes_back() {
    let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(3)));
    let held = slots.acquire().await.unwrap();
    let policy = Policy::new(Arc::clone(&permits));
    let results = fan_out(0..3, &slots)
        .admit_each(3, move |_| (policy.clone(), Ask::one()))
        .map(|_| async {});
    let results = tokio::spawn(results.collect::<Vec<_>>());
    settle().await;
    assert!(permits.in_use() >= 1);
    slots.close();
    assert!(matches!(results.await.unwrap()[..], [Err(TaskError::Abandoned)]));
    assert_eq!(permits.in_use(), 0);
    drop(held);
}

/// Given a source that is pending before each item, then all its items come.
#[tokio::test]
async fn a_source_that_is_pending_at_first_gives_its_items() {
    let policy = Policy::new(Semaphore::new(1));
    let items = futures::stream::iter(0..3).then(|n| async move {
        tokio::task::yield_now().await;
        n
    });
    let results = fan_out_stream(items, 2)
        .ordered()
        .admit_each(2, move |_| (policy.clone(), Ask::one()));
    let results = results.map(|n| async move { n }).map(Result::unwrap);
    assert_eq!(results.collect::<Vec<i32>>().await, [0, 1, 2]);
}
