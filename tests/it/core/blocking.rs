//! Blocking verbs panic on a thread that drives async tasks, exactly where tokio's do.
#![cfg(feature = "tokio")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tollgate::{Policy, Semaphore};

const SHORT: Duration = Duration::from_millis(1);

/// Every blocking verb, with a free permit for each: which of them panic.
fn panics() -> Vec<bool> {
    let semaphore = Arc::new(Semaphore::new(10));
    let policy = Policy::new(Arc::clone(&semaphore));
    let verbs: Vec<Box<dyn Fn() + '_>> = vec![
        Box::new(|| drop(semaphore.blocking_acquire())),
        Box::new(|| drop(semaphore.blocking_acquire_many(2))),
        Box::new(|| drop(Arc::clone(&semaphore).blocking_acquire_owned())),
        Box::new(|| drop(Arc::clone(&semaphore).blocking_acquire_many_owned(2))),
        Box::new(|| drop(semaphore.blocking_acquire_timeout(SHORT))),
        Box::new(|| drop(policy.admit_blocking(1))),
        Box::new(|| drop(policy.admit_blocking_timeout(1, SHORT))),
    ];
    let panics = verbs
        .iter()
        .map(|verb| catch_unwind(AssertUnwindSafe(verb)).is_err())
        .collect();
    assert_eq!(semaphore.in_use(), 0);
    panics
}

fn runtimes() -> [Runtime; 2] {
    [
        Builder::new_current_thread().build().unwrap(),
        Builder::new_multi_thread().worker_threads(1).build().unwrap(),
    ]
}

#[track_caller]
fn legal(panics: &[bool]) {
    assert!(panics.iter().all(|panics| !panics), "{panics:?}");
}

#[test]
fn a_blocking_verb_panics_in_an_async_context() {
    for runtime in runtimes() {
        let in_main = runtime.block_on(async { panics() });
        let in_task = runtime.block_on(async { tokio::spawn(async { panics() }).await.unwrap() });
        assert!(
            in_main.iter().chain(&in_task).all(|panics| *panics),
            "{in_main:?} {in_task:?}"
        );
    }
}

#[test]
fn a_blocking_verb_is_legal_where_tokio_allows_to_block() {
    legal(&panics());
    for runtime in runtimes() {
        let blocking = async { tokio::task::spawn_blocking(panics).await.unwrap() };
        legal(&runtime.block_on(blocking));
        // A thread that only has a handle.
        let _entered = runtime.enter();
        legal(&panics());
    }
    let [_, many] = runtimes();
    let in_place = async {
        tokio::spawn(async { tokio::task::block_in_place(panics) })
            .await
            .unwrap()
    };
    legal(&many.block_on(in_place));
    legal(&panics());
}
