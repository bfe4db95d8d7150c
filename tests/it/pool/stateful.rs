//! Pools whose tasks are given a state.

use crate::pool::threads::Busy;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tollgate::pool::{RejectReason, StatefulPool, TaskError};
use tollgate::{Semaphore, WorkerPool};

/// A state that counts how many there are.
struct State {
    live: Arc<AtomicUsize>,
    used: usize,
}

impl Drop for State {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Relaxed);
    }
}

/// A pool, and how many states there are, and have been made.
fn pool_of(workers: usize) -> (StatefulPool<State>, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (live, made) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let counts = (Arc::clone(&live), Arc::clone(&made));
    let pool = WorkerPool::builder().workers(workers).workers_with(move || {
        counts.0.fetch_add(1, Relaxed);
        counts.1.fetch_add(1, Relaxed);
        let live = Arc::clone(&counts.0);
        State { live, used: 0 }
    });
    (pool.build().unwrap(), live, made)
}

/// Given two workers, when a hundred tasks use a state, then at most two are made, each task has one for itself, and they go with the pool.
#[test]
fn as_many_states_are_made_as_tasks_run_at_once() {
    let (pool, live, made) = pool_of(2);
    let uses = |state: &mut State| {
        state.used += 1;
        state.used
    };
    let handles: Vec<_> = (0..100).map(|_| pool.submit(uses).unwrap()).collect();
    let most = handles.into_iter().map(|handle| handle.join().unwrap()).max();
    assert!((1..=2).contains(&made.load(Relaxed)));
    assert!(most >= Some(50));
    assert!(pool.shutdown(Duration::from_secs(10)).is_clean());
    drop(pool);
    while live.load(Relaxed) > 0 {
        std::thread::yield_now();
    }
}

/// Given two workers, then two tasks have a state each, and run at once.
#[test]
fn tasks_with_states_run_at_once() {
    let (pool, _, made) = pool_of(2);
    let (start, started) = mpsc::channel();
    let (go, waits) = crossbeam_channel::bounded::<()>(0);
    let handles = [(); 2].map(|()| {
        let (start, waits) = (start.clone(), waits.clone());
        let task = move |_: &mut State| {
            start.send(()).unwrap();
            waits.recv().is_err()
        };
        pool.submit(task).unwrap()
    });
    for _ in 0..2 {
        started.recv_timeout(Duration::from_secs(60)).expect("both run");
    }
    drop(go);
    assert!(handles.map(|handle| handle.join().unwrap()) == [true; 2] && made.load(Relaxed) == 2);
}

/// A task without a handle has a state as well.
#[test]
fn a_task_without_a_handle_uses_the_state() {
    let (pool, ..) = pool_of(1);
    pool.execute(|state| state.used = 7)
        .map_err(|rejected| rejected.reason)
        .unwrap();
    assert_eq!(pool.run(|state| state.used).unwrap(), 7);
}

/// Given a task that panics, then its state goes with it, and the next task has a new one.
#[test]
fn the_state_of_a_task_that_panics_is_made_anew() {
    let (pool, live, made) = pool_of(1);
    assert_eq!(pool.run(|state| std::mem::replace(&mut state.used, 7)).unwrap(), 0);
    let panics = pool.run(|_| std::panic::resume_unwind(Box::new("no more")));
    assert_eq!(
        panics.map(|()| 0).unwrap_err().into_panic().unwrap().downcast_ref(),
        Some(&"no more")
    );
    assert_eq!(pool.run(|state| state.used).unwrap(), 0);
    assert_eq!((live.load(Relaxed), made.load(Relaxed)), (1, 2));
}

/// A task that waits for another of the pool would need two states: it is told, with one worker and with many.
#[test]
fn a_state_is_not_lent() {
    for workers in [1, 4] {
        let (pool, _, made) = pool_of(workers);
        let here = pool.clone();
        let told = pool.run(move |_| here.submit(|_| ()).unwrap().join()).unwrap();
        assert!(matches!(told, Err(TaskError::WouldDeadlock)));
        assert!(pool.wait_idle());
        assert!(made.load(Relaxed) <= workers);
    }
}

/// A task that is refused comes back as one that finds a state where it is run.
#[test]
fn a_rejected_task_can_be_run_in_place() {
    let (pool, ..) = pool_of(1);
    pool.close();
    let rejected = pool.submit(|state| state.used + 1).unwrap_err();
    assert_eq!((rejected.reason, (rejected.task)()), (RejectReason::Closed, 1));
}

/// Given slots of the user's, then there are as many states as those have permits, however many workers there are.
#[test]
fn given_slots_bound_the_states() {
    let slots = Arc::new(Semaphore::new(1));
    let made = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&made);
    let builder = WorkerPool::builder().workers(3).slots(Arc::clone(&slots));
    let pool = builder
        .workers_with(move || counts.fetch_add(1, Relaxed))
        .build()
        .unwrap();
    let busy = Busy::on(&pool);
    let handles: Vec<_> = (0..9).map(|_| pool.submit(|state| *state).unwrap()).collect();
    busy.end();
    assert!(handles.into_iter().all(|handle| handle.join().unwrap() == 0));
    assert_eq!(made.load(Relaxed), 1);
}
