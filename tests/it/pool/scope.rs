//! Pools of a scope whose tasks submit tasks, and what threads may be called.

use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate::WorkerPool;
use tollgate::pool::{PoolError, Scoped};

/// Submits one task within another, `depth` times, and says how many have run below.
fn nest<'scope, 'env>(pool: Scoped<'scope, 'env>, depth: usize, ran: &'env AtomicUsize) -> usize {
    ran.fetch_add(1, Ordering::Relaxed);
    if depth == 0 {
        return 0;
    }
    let inner = pool.clone();
    let below = pool.submit(move || nest(inner, depth - 1, ran)).unwrap();
    below.join().unwrap() + 1
}

/// Given one worker, when tasks of a scope submit tasks and wait for them, a hundred deep, then all of them run; and clones
/// that tasks have do not keep the scope from its end.
#[test]
fn tasks_of_a_scope_submit_tasks_to_any_depth() {
    let ran = AtomicUsize::new(0);
    let below = WorkerPool::builder().workers(1).scope(|pool| {
        let first = pool.clone();
        let below = pool.submit(|| nest(first, 100, &ran)).unwrap().join().unwrap();
        // This one has no waiter.
        let last = pool.clone();
        pool.execute(|| _ = nest(last, 0, &ran)).unwrap();
        below
    });
    assert_eq!((below.unwrap(), ran.into_inner()), (100, 102));
}

/// A name that the system cannot take is an error, unless it is not used.
#[test]
fn a_name_with_a_zero_byte_is_an_error() {
    let named = || WorkerPool::builder().workers(1).name("a\0b");
    let is_named = |error: &PoolError| matches!(error, PoolError::Name { given } if given == "a\0b");
    let built = named().build().unwrap_err();
    assert!(is_named(&built));
    assert_eq!(
        built.to_string(),
        "threads were to be called \"a\\0b\", and a name holds no zero byte"
    );
    let scoped = named().scope(|_| unreachable!("it was not built"));
    assert!(scoped.is_err_and(|error| is_named(&error)));
    let spawned = named().spawn_with(|worker| std::thread::Builder::new().spawn(|| worker.run()).map(drop));
    assert_eq!(spawned.build().unwrap().run(|| 7).unwrap(), 7);
}
