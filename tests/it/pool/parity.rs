//! Tests that run on both pools: with closures on threads, and with async tasks.

use crate::outcomes::Outcomes;
use crate::pool::kinds::{Bomb, Busy, Handle, Kind, LONG, Pool, block_on, pool, settle, until, watched_on, with};
use futures::future::{BoxFuture, FutureExt, join_all};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;
use tokio::sync::{Barrier, oneshot};
use tokio::task::yield_now;
use tollgate::pool::{AGEING, GroupError, Overflow, PoolError, Priority, RejectReason, TaskError};
use tollgate::{Ask, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// Makes one test on threads and one of async tasks from each function.
macro_rules! parity {
    ($($now:ident)* ; tasks alone: $($later:ident)*) => {
        mod threads {
            use super::Kind::Threads;
            $(#[test] fn $now() { super::watched_on(Threads, "it", super::$now); })*
        }
        mod tasks {
            use super::Kind::Tasks;
            $(#[test] fn $now() { super::watched_on(Tasks, "it", super::$now); })*
            $(#[test] fn $later() { super::watched_on(Tasks, "it", super::$later); })*
        }
    };
}

parity! {
    a_handle_gives_the_result_of_its_task_and_the_limit_holds
    a_panic_is_returned_with_its_payload_and_goes_to_the_hook_without_a_handle
    panics_of_drops_do_no_harm_wherever_they_happen
    run_gives_the_result_or_says_why_there_is_none
    a_task_whose_handle_is_dropped_runs
    a_handle_waits_no_longer_than_it_is_told
    a_handle_is_a_future_and_blocks_a_thread
    priorities_go_first_and_within_them_the_oldest
    a_task_of_low_priority_ages
    a_queue_is_bounded_by_weight_as_well
    weight_and_places_come_back_whichever_way_a_task_leaves
    a_task_may_start_at_its_deadline_and_no_later
    a_late_task_that_is_awaited_expires_once
    a_task_is_cancelled_until_it_starts_and_makes_room
    a_batch_is_taken_in_order_through_a_smaller_queue
    a_batch_hands_back_the_tasks_beyond_the_capacity
    a_batch_without_handles_is_run_whole_and_its_panics_go_to_the_hook
    a_full_queue_rejects
    a_full_queue_discards_the_newest
    a_full_queue_discards_the_oldest_of_the_lowest_priority
    a_submitter_waits_for_room
    an_awaited_task_takes_no_room_from_its_start_on
    cancelled_tasks_leave_the_queue_at_once
    a_late_task_at_the_gate_is_dropped_after_its_permit
    the_drop_of_a_cancelled_task_does_not_wait_for_itself
    late_tasks_give_their_room_back_before_they_are_dropped
    of_two_cancels_of_a_task_one_ends_it
    a_task_that_is_dropped_beside_a_shutdown_does_not_count_as_running
    a_task_that_submits_to_its_own_full_pool_does_not_wait
    a_group_gives_its_results_in_the_order_of_submission
    a_group_gives_its_results_as_they_end
    the_first_error_keeps_the_rest_of_a_group_from_starting
    tasks_of_a_group_that_has_failed_take_no_token
    a_panic_ends_a_group_as_an_error_does
    the_stop_flag_ends_what_runs
    a_group_that_keeps_going_gives_every_outcome
    a_dropped_group_cancels_what_has_not_started
    a_cancelled_group_gives_every_end
    a_group_is_awaited
    a_group_runs_no_more_tasks_than_its_limit_and_others_pass_them
    a_group_with_a_limit_of_0_is_refused
    restored_tasks_of_a_limited_group_start_in_the_order_of_submission
    tasks_of_a_limited_group_start_in_order_whatever_their_limit
    a_cancelled_group_whose_tasks_wait_for_a_place_gives_every_end
    a_late_task_of_a_limited_group_leaves_its_place_to_the_next
    a_full_queue_discards_what_waits_for_a_place_in_its_group
    a_shutdown_hands_back_what_waits_for_a_place_in_its_group
    a_task_waits_for_a_limited_group_in_a_pool_of_one
    an_awaited_task_of_a_full_group_waits_for_its_place
    a_policy_admits_tasks_of_limited_groups
    pools_that_share_slots_are_bounded_together
    a_permit_of_the_user_is_one_slot_less
    closed_slots_end_a_pool
    a_pool_without_a_slot_waits_for_its_task_and_for_nothing_else
    a_rate_admits_the_tasks
    a_semaphore_admits_the_tasks
    a_task_that_can_never_be_admitted_is_refused
    refusals_of_a_closed_policy_are_returned_and_counted
    a_policy_hears_how_tasks_end
    a_task_that_waits_for_its_admission_leaves_the_slot_to_others
    an_admission_without_a_slot_costs_nothing
    a_task_that_is_evicted_at_the_gate_leaves_it_to_the_next
    a_cancelled_or_late_task_takes_no_token
    a_resize_is_effective_at_once_in_both_directions
    waits_for_idleness_are_all_told
    shutdown_lists_exactly_the_tasks_that_never_started
    a_shutdown_from_inside_does_not_wait
    listed_tasks_are_run_by_the_owner_of_the_report_alone
    a_report_can_be_waited_for
    a_closed_pool_takes_nothing_and_runs_what_it_has
    a_dropped_pool_runs_what_it_has
    a_pool_that_was_never_used_ends
    tasks_wait_for_tasks_to_any_depth_in_a_pool_of_one
    groups_nest_in_a_pool_of_one
    a_task_waits_for_several_at_once
    a_task_waits_for_one_that_was_submitted_from_outside
    awaited_tasks_start_before_others
    a_wait_that_timed_out_can_be_taken_up_again
    a_slot_that_is_not_lent_goes_to_the_next
    a_task_on_a_lent_slot_is_admitted_first
    a_policy_hears_of_tasks_on_lent_slots
    a_task_without_a_handle_waits_for_what_its_submitter_holds
    the_first_failure_ends_a_group_in_a_task
    a_task_learns_of_the_end_of_the_pool_that_it_waits_for
    a_task_that_is_cancelled_at_the_gate_leaves_it
    pools_of_one_wait_for_each_other_up_and_down
    pools_of_one_wait_in_a_ring
    a_child_that_has_started_elsewhere_may_wait_for_the_pool_of_its_waiter
    a_waiting_task_goes_on_when_the_slot_that_its_child_needs_comes_from_outside
    a_task_with_the_only_permit_of_its_policy_may_wait_in_another_pool
    tasks_wait_for_tasks_behind_a_rate
    a_wait_for_a_permit_that_the_waiter_holds_ends_at_once
    a_group_that_would_wait_for_its_own_permit_ends_at_once
    a_wait_for_a_shared_slot_that_the_waiter_holds_ends_at_once
    of_two_waits_in_opposite_orders_one_is_refused
    ;
    tasks alone:
    tasks_that_wait_for_each_other_are_told
    shared_slots_are_the_limit_whatever_the_pool_was_built_for
}

fn panics<T>(with: i32) -> T {
    resume_unwind(Box::new(with))
}

/// Returns the payload of the panic.
fn payload<T>(ended: Result<T, TaskError>) -> i32 {
    let payload = ended.err().expect("it has not panicked").into_panic().unwrap();
    *payload.downcast::<i32>().unwrap()
}

/// Numbers in the order of their arrival.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<i32>>>);

impl Log {
    fn note(&self, n: i32) {
        self.0.lock().unwrap().push(n);
    }

    /// Returns a task that notes a number at its second poll.
    fn task(&self, n: i32) -> impl Future<Output = ()> + Send + use<> {
        let log = self.clone();
        async move {
            yield_now().await;
            log.note(n);
        }
    }

    /// Returns a hook that notes payloads.
    fn hook(&self) -> impl Fn(Box<dyn std::any::Any + Send>) + Send + Sync + use<> {
        let log = self.clone();
        move |payload| log.note(*payload.downcast().unwrap())
    }

    fn get(&self) -> Vec<i32> {
        self.0.lock().unwrap().clone()
    }
}

/// Counts the tasks inside, and keeps the peak.
#[derive(Clone, Default)]
struct Gauge(Arc<(AtomicUsize, AtomicUsize)>);

impl Gauge {
    fn task(&self) -> impl Future<Output = ()> + Send + use<> {
        let Self(gauge) = self.clone();
        async move {
            let (now, peak) = &*gauge;
            peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            for _ in 0..3 {
                yield_now().await;
                thread::yield_now();
            }
            now.fetch_sub(1, SeqCst);
        }
    }

    fn peak(&self) -> usize {
        self.0.1.load(SeqCst)
    }
}

async fn a_handle_gives_the_result_of_its_task_and_the_limit_holds(kind: Kind) {
    let (pool, gauge) = (pool!(kind, 3), Gauge::default());
    let mut handles = Vec::new();
    for n in 0..1_000 {
        let work = gauge.task();
        let task = async move {
            work.await;
            n
        };
        handles.push(pool.submit(task).await.unwrap());
    }
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.join().await.unwrap(), n);
    }
    assert!(pool.wait_idle().await);
    assert!(gauge.peak() <= 3);
    let stats = pool.stats();
    assert_eq!((stats.limit, stats.submitted, stats.finished), (3, 1_000, 1_000));
    assert!(stats.peak_threads <= 3);
    pool.ends_clean().await;
}

/// Keeps out bb8#167, bb8#221, bb8#223, rayon#37.
async fn a_panic_is_returned_with_its_payload_and_goes_to_the_hook_without_a_handle(kind: Kind) {
    let told = Log::default();
    let pool = pool!(kind, 1, on_panic(told.hook()));
    assert_eq!(
        payload(pool.submit(async { panics::<()>(7) }).await.unwrap().join().await),
        7
    );
    pool.execute(async { panics(1) }).await.unwrap();
    let (go, gone) = oneshot::channel::<()>();
    let dropped = async {
        gone.await.unwrap();
        panics::<()>(2);
    };
    drop(pool.submit::<BoxFuture<'static, ()>>(Box::pin(dropped)).await.unwrap());
    go.send(()).unwrap();
    assert_eq!(pool.run(async { 3 }).await.unwrap(), 3);
    assert!(pool.wait_idle().await);
    assert_eq!(told.get(), [1, 2]);
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.finished, stats.panicked), (1, 4, 3));
    // A hook that panics harms no other.
    let pool = pool!(kind, 1, on_panic(|_| panics(0)));
    for _ in 0..3 {
        pool.execute(async { panics(1) }).await.unwrap();
    }
    assert_eq!(pool.run(async { 3 }).await.unwrap(), 3);
    pool.ends_clean().await;
}

/// Keeps out scoped-threadpool#13.
async fn panics_of_drops_do_no_harm_wherever_they_happen(kind: Kind) {
    let pool = pool!(kind, 1);
    let holds = |bomb: Bomb| async move {
        yield_now().await;
        drop(bomb);
    };
    assert!(matches!(pool.run(holds(Bomb)).await, Err(TaskError::Panicked(_))));
    // An unwanted result, and payloads that panic in turn.
    drop(pool.submit(async { Bomb }).await.unwrap());
    let payload = || resume_unwind(Box::new(Bomb));
    drop(
        pool.submit::<BoxFuture<'static, ()>>(Box::pin(async move { payload() }))
            .await
            .unwrap(),
    );
    pool.execute(async move { payload() }).await.unwrap();
    assert!(pool.wait_idle().await);
    assert_eq!(pool.stats().panicked, 4);
    // Cancelled tasks, and tasks dropped at the end of the pool.
    let busy = Busy::on(&pool).await;
    assert!(pool.submit(holds(Bomb)).await.unwrap().cancel());
    pool.execute(holds(Bomb)).await.unwrap();
    let report = pool.shutdown(Duration::ZERO).await;
    assert_eq!(report.left(), (1, 1));
    drop(report);
    busy.end().await;
    pool.ends_clean().await;
}

async fn run_gives_the_result_or_says_why_there_is_none(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(1), overflow(Overflow::Reject));
    assert_eq!(pool.run(async { 7 }).await.unwrap(), 7);
    let error = pool
        .run(async { resume_unwind(Box::new("on purpose")) as () })
        .await
        .unwrap_err();
    assert!(error.has_started());
    assert_eq!(error.to_string(), "the task panicked: on purpose");
    assert_eq!(format!("{error:?}"), "Panicked(\"on purpose\")");
    let busy = Busy::on(&pool).await;
    let queued = pool.submit(async {}).await.unwrap();
    assert!(matches!(pool.run(async {}).await, Err(TaskError::Discarded)));
    busy.end().await;
    queued.join().await.unwrap();
    pool.close();
    assert!(matches!(pool.run(async {}).await, Err(TaskError::Abandoned)));
}

async fn a_task_whose_handle_is_dropped_runs(kind: Kind) {
    let (pool, log) = (pool!(kind, 1), Log::default());
    let busy = Busy::on(&pool).await;
    drop(pool.submit(log.task(1)).await.unwrap());
    drop(busy.release());
    assert!(pool.wait_idle().await);
    assert_eq!(log.get(), [1]);
}

async fn a_handle_waits_no_longer_than_it_is_told(kind: Kind) {
    let pool = pool!(kind, 1);
    let busy = Busy::on(&pool).await;
    let handle = pool.submit(async { 5 }).await.unwrap();
    let handle = handle.try_join().unwrap_err();
    let handle = handle.join_timeout(Duration::ZERO).await.unwrap_err();
    assert!(!handle.is_finished());
    busy.end().await;
    assert_eq!(handle.join_timeout(LONG).await.unwrap().unwrap(), 5);
    let handle = pool.submit(async { 6 }).await.unwrap();
    until(|| handle.is_finished()).await;
    assert_eq!(handle.try_join().unwrap().unwrap(), 6);
}

async fn a_handle_is_a_future_and_blocks_a_thread(kind: Kind) {
    let pool = pool!(kind, 1);
    assert_eq!(pool.submit(async { 7 }).await.unwrap().await.unwrap(), 7);
    let busy = Busy::on(&pool).await;
    let handles = [1, 2].map(|n| pool.try_submit(async move { n }).unwrap());
    let [first, second] = handles;
    let joins = thread::spawn(|| first.join_blocking().unwrap());
    let mut second = pin!(second);
    assert!(futures::poll!(&mut second).is_pending());
    busy.end().await;
    assert_eq!(second.await.unwrap(), 2);
    until(|| joins.is_finished()).await;
    assert_eq!(joins.join().unwrap(), 1);
}

async fn priorities_go_first_and_within_them_the_oldest(kind: Kind) {
    let (pool, log) = (pool!(kind, 1), Log::default());
    let busy = Busy::on(&pool).await;
    for (n, priority) in (0..).zip([Priority::Low, Priority::Normal, Priority::High].repeat(2)) {
        drop(pool.priority(priority).submit(log.task(n)).await.unwrap());
    }
    busy.end().await;
    pool.ends_clean().await;
    assert_eq!(log.get(), [2, 5, 1, 4, 0, 3]);
}

async fn a_task_of_low_priority_ages(kind: Kind) {
    let (pool, log) = (pool!(kind, 1), Log::default());
    let busy = Busy::on(&pool).await;
    drop(pool.priority(Priority::Low).submit(log.task(-1)).await.unwrap());
    let preferred = 2 * i32::try_from(AGEING).unwrap();
    for n in 0..preferred {
        drop(pool.priority(Priority::High).submit(log.task(n)).await.unwrap());
    }
    busy.end().await;
    pool.ends_clean().await;
    let aged = log.get().iter().position(|&n| n == -1).unwrap();
    assert_eq!(aged, AGEING as usize);
}

async fn a_queue_is_bounded_by_weight_as_well(kind: Kind) {
    let pool = pool!(kind, 1, max_queue_weight(10), overflow(Overflow::Reject));
    let busy = Busy::on(&pool).await;
    let heavy = pool.weight(8).submit(async {}).await.unwrap();
    assert_eq!(
        pool.weight(3).submit(async {}).await.unwrap_err().reason,
        RejectReason::Full
    );
    let light = pool.weight(2).submit(async {}).await.unwrap();
    let oversized = pool.weight(11).submit(async {}).await.unwrap_err().reason;
    let (weight, allowed) = (11, 10);
    assert_eq!(oversized, RejectReason::Oversized { weight, allowed });
    busy.end().await;
    heavy.join().await.unwrap();
    light.join().await.unwrap();
    pool.weight(10).submit(async {}).await.unwrap().join().await.unwrap();
}

async fn weight_and_places_come_back_whichever_way_a_task_leaves(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(4), max_queue_weight(10));
    let heavy = |weight| pool.weight(weight).try_submit(async {});
    let busy = Busy::on(&pool).await;
    let tasks = [4, 3, 2].map(|weight| heavy(weight).unwrap());
    assert!(tasks[0].cancel());
    let next = heavy(5).unwrap();
    assert_eq!(heavy(1).unwrap_err().reason, RejectReason::Full);
    assert!(next.cancel());
    let last = [(); 2].map(|()| heavy(1).unwrap());
    assert_eq!(heavy(1).unwrap_err().reason, RejectReason::Full);
    busy.end().await;
    for task in last {
        task.join().await.unwrap();
    }
    assert!(pool.wait_idle().await);
    heavy(10).unwrap().join().await.unwrap();
    pool.ends_clean().await;
}

/// Both for a task submitted from outside, and for one that a task of the pool awaits.
async fn a_task_may_start_at_its_deadline_and_no_later(kind: Kind) {
    let clock = ManualClock::new();
    let pool = pool!(kind, 1, on(&clock));
    for (is_late, moment) in [(false, Duration::ZERO), (true, NANO)] {
        let busy = Busy::on(&pool).await;
        let task = pool.deadline(SECOND).submit(async {}).await.unwrap();
        clock.advance(SECOND + moment);
        busy.end().await;
        let (inner, moves) = (pool.clone(), clock.clone());
        let awaited = pool.run(async move {
            let task = inner.deadline(SECOND).submit(async {}).await.unwrap();
            moves.advance(SECOND + moment);
            task.join().await
        });
        for ended in [task.join().await, awaited.await.unwrap()] {
            match ended {
                Ok(()) => assert!(!is_late),
                Err(TaskError::Expired) => assert!(is_late),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(pool.wait_idle().await);
    assert_eq!((pool.stats().expired, pool.stats().unfinished), (2, 0));
}

async fn a_task_is_cancelled_until_it_starts_and_makes_room(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(1), overflow(Overflow::Reject));
    let busy = Busy::on(&pool).await;
    let queued = pool
        .submit(async { unreachable!("it was cancelled") as () })
        .await
        .unwrap();
    assert!(queued.cancel() && !queued.cancel());
    let next = pool.submit(async { 2 }).await.unwrap();
    assert!(matches!(queued.join().await, Err(TaskError::Cancelled)));
    busy.end().await;
    until(|| next.is_finished()).await;
    assert!(!next.cancel());
    assert_eq!(next.join().await.unwrap(), 2);
    assert!(pool.wait_idle().await);
    assert_eq!(pool.stats().finished, 2);
}

async fn cancelled_tasks_leave_the_queue_at_once(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(100));
    let busy = Busy::on(&pool).await;
    let tasks = [(); 4].map(|()| pool.try_submit(async {}).unwrap());
    let queued = |n: usize| {
        assert!(tasks[n].cancel());
        pool.stats().queued
    };
    assert_eq!([queued(0), queued(1), queued(2)], [3, 2, 1]);
    assert_eq!(pool.stats().unfinished, 2);
    busy.end().await;
    pool.ends_clean().await;
    assert_eq!((pool.stats().submitted, pool.stats().finished), (5, 2));
}

/// Calls a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Given a task at the gate whose deadline passes before its permit comes, then the pool has given the permit back when it drops the task.
async fn a_late_task_at_the_gate_is_dropped_after_its_permit(kind: Kind) {
    let (clock, permits) = (ManualClock::new(), Arc::new(Semaphore::new(1)));
    let policy = Policy::new(Arc::clone(&permits));
    let pool = pool!(kind, 1, on(&clock), admit_by(policy.clone()));
    let held = permits.try_acquire().unwrap();
    let (tell, told) = mpsc::channel();
    let asks = policy.clone();
    let looks = OnDrop(move || tell.send(asks.try_admit(Ask::one()).is_ok()).unwrap());
    let task = pool.deadline(SECOND).submit(async move { drop(looks) }).await.unwrap();
    until(|| policy.waiting() == 1).await;
    clock.advance(SECOND + NANO);
    drop(held);
    assert!(matches!(task.join().await, Err(TaskError::Expired)));
    assert!(told.recv().unwrap());
    pool.ends_clean().await;
    assert_eq!(pool.stats().expired, 1);
}

/// Given a task whose drop waits until its pool is idle, when it is cancelled outside the pool, then that wait ends at once, as in a task.
async fn the_drop_of_a_cancelled_task_does_not_wait_for_itself(kind: Kind) {
    let pool = pool!(kind, 1);
    let busy = Busy::on(&pool).await;
    let (tell, told) = mpsc::channel();
    let inner = pool.clone();
    let waits = OnDrop(move || tell.send(block_on(inner.wait_idle())).unwrap());
    let task = pool.submit(async move { drop(waits) }).await.unwrap();
    assert!(task.cancel());
    assert!(!told.recv().unwrap());
    busy.end().await;
    drop(task);
    pool.ends_clean().await;
}

/// Given two late tasks, of which the drop of the first waits until others have taken the room of both, then they find it.
async fn late_tasks_give_their_room_back_before_they_are_dropped(kind: Kind) {
    let clock = ManualClock::new();
    let pool = pool!(kind, 1, on(&clock), max_queue(2));
    let busy = Busy::on(&pool).await;
    let (tell, told) = mpsc::channel();
    let waits = OnDrop(move || (0..2).for_each(|_| told.recv().unwrap()));
    let late = pool.deadline(SECOND);
    let first = late.submit(async move { drop(waits) }).await.unwrap();
    let second = late.submit(async {}).await.unwrap();
    let submitters = [(); 2].map(|()| {
        let (pool, tell) = (pool.clone(), tell.clone());
        thread::spawn(move || {
            pool.submit_blocking(async {}).unwrap();
            tell.send(()).unwrap();
        })
    });
    clock.advance(SECOND + NANO);
    drop(busy.release());
    for late in [first, second] {
        assert!(matches!(late.join().await, Err(TaskError::Expired)));
    }
    for submitter in submitters {
        submitter.join().unwrap();
    }
    pool.ends_clean().await;
}

/// Given a submitter whose waker cancels the queued task that is cancelled for its place, then one of the two cancels returns true.
async fn of_two_cancels_of_a_task_one_ends_it(kind: Kind) {
    struct Cancels(Handle<()>, AtomicUsize);
    impl Wake for Cancels {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(usize::from(self.0.cancel()), SeqCst);
        }
    }
    let pool = pool!(kind, 1, max_queue(1));
    let busy = Busy::on(&pool).await;
    let task = pool.try_submit(async {}).unwrap();
    let cancels = Arc::new(Cancels(task, AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&cancels));
    let mut waits = Box::pin(pool.submit_async(async {}));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let outer = cancels.0.cancel();
    assert_eq!(usize::from(outer) + cancels.1.load(SeqCst), 1);
    let next = waits.await.unwrap();
    busy.end().await;
    next.join().await.unwrap();
    pool.ends_clean().await;
}

/// Given a task that is both first in the queue and awaited, and whose deadline passes, then it counts once.
async fn a_late_task_that_is_awaited_expires_once(kind: Kind) {
    let clock = ManualClock::new();
    let (pool, other) = (pool!(kind, 1, on(&clock)), pool!(kind, 1));
    let busy = Busy::on(&pool).await;
    let mut task = pool.deadline(SECOND).submit(async {}).await.unwrap();
    let (tell, told) = oneshot::channel();
    let waits = other.submit(async move {
        assert!(futures::poll!(&mut task).is_pending());
        tell.send(()).unwrap();
        task.await
    });
    let waits = waits.await.unwrap();
    told.await.unwrap();
    clock.advance(SECOND + NANO);
    busy.end().await;
    assert!(matches!(waits.join().await.unwrap(), Err(TaskError::Expired)));
    assert!(pool.wait_idle().await);
    assert_eq!((pool.stats().expired, pool.stats().finished), (1, 1));
    pool.ends_clean().await;
}

/// Given a task that waits for its child, and a submitter that waits for the child's place and weight, when the child starts, then the
/// submitter gets them, while the child runs.
async fn an_awaited_task_takes_no_room_from_its_start_on(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(1), max_queue_weight(5));
    let (go, goes) = oneshot::channel();
    let (tell, told) = oneshot::channel();
    let (start, started) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let here = pool.clone();
    let outer = pool.submit(async move {
        let child = async move {
            start.send(()).unwrap();
            let _ = released.await;
        };
        let child = here.weight(5).try_submit(child).unwrap();
        tell.send(()).unwrap();
        goes.await.unwrap();
        child.join().await.unwrap();
    });
    let outer = outer.await.unwrap();
    told.await.unwrap();
    let heavy = pool.weight(5);
    let mut waits = pin!(heavy.submit_async(async { 2 }));
    assert!(futures::poll!(&mut waits).is_pending());
    go.send(()).unwrap();
    started.await.unwrap();
    let next = waits.await.unwrap();
    assert_eq!(pool.try_submit(async {}).unwrap_err().reason, RejectReason::Full);
    assert_eq!(pool.stats().queued, 1);
    drop(release);
    outer.join().await.unwrap();
    assert_eq!(next.join().await.unwrap(), 2);
    pool.ends_clean().await;
}

/// Given a queued task that is cancelled or late, and whose drop ends the pool, then the report counts neither it nor its entry.
async fn a_task_that_is_dropped_beside_a_shutdown_does_not_count_as_running(kind: Kind) {
    struct Aborts(Pool, Arc<Mutex<Option<(usize, usize)>>>);
    impl Drop for Aborts {
        fn drop(&mut self) {
            *self.1.lock().unwrap() = Some(self.0.abort().left());
        }
    }
    for is_late in [false, true] {
        let clock = ManualClock::new();
        let pool = pool!(kind, 1, on(&clock));
        let busy = Busy::on(&pool).await;
        let left = Arc::default();
        let aborts = Aborts(pool.clone(), Arc::clone(&left));
        let task = pool.deadline(SECOND).submit(async move { drop(aborts) }).await.unwrap();
        let other = pool.submit(async {}).await.unwrap();
        if is_late {
            clock.advance(SECOND + NANO);
            drop(busy.release());
            assert!(matches!(task.join().await, Err(TaskError::Expired)));
            assert_eq!(*left.lock().unwrap(), Some((1, 0)));
        } else {
            assert!(task.cancel());
            assert_eq!(*left.lock().unwrap(), Some((1, 1)));
            drop(busy.release());
        }
        assert!(matches!(other.join().await, Err(TaskError::Abandoned)));
        assert!(pool.shutdown(LONG).await.is_clean());
    }
}

async fn a_batch_is_taken_in_order_through_a_smaller_queue(kind: Kind) {
    for queue in [1, 7, 1_000] {
        let pool = pool!(kind, 1, max_queue(queue));
        let next = Arc::new(AtomicUsize::new(0));
        let tasks = (0..300).map(|n| {
            let next = Arc::clone(&next);
            async move { (n, next.fetch_add(1, SeqCst)) }
        });
        let (handles, rejected) = pool.submit_all(tasks).await;
        assert!(rejected.is_empty());
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.join().await.unwrap(), (n, n));
        }
        assert_eq!(pool.stats().submitted, 300);
    }
}

async fn a_batch_hands_back_the_tasks_beyond_the_capacity(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(3), overflow(Overflow::Reject));
    let busy = Busy::on(&pool).await;
    let (handles, rejected) = pool.submit_all((0..5).map(|n| async move { n })).await;
    assert_eq!((handles.len(), rejected.len()), (3, 2));
    for (n, rejected) in (3..).zip(rejected) {
        assert_eq!((rejected.reason, rejected.task.await), (RejectReason::Full, n));
    }
    busy.end().await;
    for (n, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.join().await.unwrap(), n);
    }
    pool.close();
    let (handles, rejected) = pool.submit_all((0..100).map(|n| async move { n })).await;
    assert!(handles.is_empty());
    for (n, rejected) in rejected.into_iter().enumerate() {
        assert_eq!((rejected.reason, rejected.task.await), (RejectReason::Closed, n));
    }
}

async fn a_batch_without_handles_is_run_whole_and_its_panics_go_to_the_hook(kind: Kind) {
    let (told, ran) = (Log::default(), Log::default());
    let pool = pool!(kind, 2, max_queue(3), on_panic(told.hook()));
    let tasks = (0..200).map(|n| {
        let ran = ran.clone();
        async move {
            ran.note(n);
            // Most of them wait for room.
            if n >= 150 {
                panics::<()>(n);
            }
        }
    });
    assert!(pool.execute_all(tasks).await.is_empty());
    assert!(pool.wait_idle().await);
    let (mut ran, mut told) = (ran.get(), told.get());
    ran.sort_unstable();
    told.sort_unstable();
    assert_eq!((ran, told), ((0..200).collect(), (150..200).collect()));
    pool.close();
    let rejected = pool.execute_all((0..70).map(|_| async {})).await;
    assert_eq!(rejected.len(), 70);
    assert!(rejected.iter().all(|back| back.reason == RejectReason::Closed));
    assert_eq!(pool.execute(async {}).await.unwrap_err().reason, RejectReason::Closed);
}

async fn a_full_queue_rejects(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(2), overflow(Overflow::Reject));
    let busy = Busy::on(&pool).await;
    let queued = [1, 2].map(|n| pool.try_submit(async move { n }).unwrap());
    let rejected = pool.submit(async { 3 }).await.unwrap_err();
    assert_eq!((rejected.reason, rejected.task.await), (RejectReason::Full, 3));
    assert_eq!(pool.stats().queued, 2);
    busy.end().await;
    let [first, second] = queued;
    assert_eq!((first.join().await.unwrap(), second.join().await.unwrap()), (1, 2));
}

async fn a_full_queue_discards_the_newest(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(1), overflow(Overflow::DropNewest));
    let busy = Busy::on(&pool).await;
    let first = pool.submit(async { 1 }).await.unwrap();
    let second = pool.submit(async { 2 }).await.unwrap();
    assert!(matches!(second.join().await, Err(TaskError::Discarded)));
    busy.end().await;
    assert_eq!((first.join().await.unwrap(), pool.stats().discarded), (1, 1));
}

async fn a_full_queue_discards_the_oldest_of_the_lowest_priority(kind: Kind) {
    let (tell, told) = mpsc::channel();
    let pool = pool!(
        kind,
        1,
        max_queue(2),
        overflow(Overflow::DropOldest),
        on_discard(move |task| tell.send(task.priority()).unwrap()),
    );
    let busy = Busy::on(&pool).await;
    let normal = pool.submit(async { 1 }).await.unwrap();
    let low = pool.priority(Priority::Low).submit(async { 2 }).await.unwrap();
    let newest = pool.submit(async { 3 }).await.unwrap();
    assert!(matches!(low.join().await, Err(TaskError::Discarded)));
    busy.end().await;
    assert_eq!((normal.join().await.unwrap(), newest.join().await.unwrap()), (1, 3));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [Priority::Low]);
    assert_eq!(pool.stats().discarded, 1);
}

/// Waits on a thread, as a future, and with a time-out.
async fn a_submitter_waits_for_room(kind: Kind) {
    let clock = ManualClock::new();
    let pool = pool!(kind, 1, max_queue(1), on(&clock));
    let busy = Busy::on(&pool).await;
    let queued = pool.submit(async { 1 }).await.unwrap();
    assert_eq!(pool.try_submit(async {}).unwrap_err().reason, RejectReason::Full);
    let late = pool.submit_timeout(async { 4 }, Duration::ZERO).await.unwrap_err();
    assert_eq!((late.reason, late.task.await), (RejectReason::TimedOut, 4));
    let mut waits = pin!(pool.submit_async(async { 2 }));
    assert!(futures::poll!(&mut waits).is_pending());
    let here = pool.clone();
    let blocks = thread::spawn(move || {
        let handle = here.submit_blocking(async { 3 }).unwrap();
        handle.join_blocking().unwrap()
    });
    busy.end().await;
    assert_eq!(queued.join().await.unwrap(), 1);
    assert_eq!(waits.await.unwrap().join().await.unwrap(), 2);
    until(|| blocks.is_finished()).await;
    assert_eq!(blocks.join().unwrap(), 3);
    // A waiting submitter is refused when the pool closes.
    let busy = Busy::on(&pool).await;
    let queued = pool.submit(async {}).await.unwrap();
    let mut waits = pin!(pool.submit_async(async {}));
    assert!(futures::poll!(&mut waits).is_pending());
    pool.close();
    assert_eq!(waits.await.unwrap_err().reason, RejectReason::Closed);
    busy.end().await;
    queued.join().await.unwrap();
}

async fn a_task_that_submits_to_its_own_full_pool_does_not_wait(kind: Kind) {
    let (pool, log) = (pool!(kind, 1, max_queue(2), max_queue_weight(4)), Log::default());
    let (here, noted) = (pool.clone(), log.clone());
    let outer = pool.run(async move {
        let mut tasks = Vec::new();
        for n in [1, 2, 3] {
            let (heavy, task) = (here.weight(3), noted.task(n));
            // A time-out is none: it does not wait.
            tasks.push(match n {
                2 => heavy.submit_timeout(task, Duration::ZERO).await.unwrap(),
                _ => heavy.submit(task).await.unwrap(),
            });
        }
        assert_eq!(here.stats().queued, 3);
        let full = |pool: &Pool| assert_eq!(pool.try_submit(async {}).unwrap_err().reason, RejectReason::Full);
        full(&here);
        thread::scope(|outside| outside.spawn(|| full(&here)).join()).unwrap();
        noted.note(0);
        tasks
    });
    for task in outer.await.unwrap() {
        task.join().await.unwrap();
    }
    assert_eq!(log.get(), [0, 1, 2, 3]);
    assert!(pool.wait_idle().await);
    pool.weight(4).try_submit(async {}).unwrap().join().await.unwrap();
}

async fn a_group_gives_its_results_in_the_order_of_submission(kind: Kind) {
    let pool = pool!(kind, 3);
    let mut group = pool.group::<_, ()>();
    for n in 0..500 {
        assert_eq!(group.submit(async move { Ok(n) }).await.unwrap(), n);
    }
    assert_eq!(group.join().await.unwrap(), (0..500).collect::<Vec<_>>());
}

async fn a_group_gives_its_results_as_they_end(kind: Kind) {
    let pool = pool!(kind, 2);
    let (release, released) = oneshot::channel::<()>();
    let mut group = pool.group::<_, ()>();
    let slow = async {
        released.await.unwrap();
        Ok("slow")
    };
    group.submit(slow).await.unwrap();
    group.submit(async { Ok("fast") }).await.unwrap();
    assert_eq!(group.len(), 2);
    assert!(matches!(group.next().await, Some((1, Ok("fast")))));
    assert_eq!(group.len(), 1);
    release.send(()).unwrap();
    assert!(matches!(group.next().await, Some((0, Ok("slow")))));
    assert!(group.next().await.is_none() && group.len() == 0);
}

async fn the_first_error_keeps_the_rest_of_a_group_from_starting(kind: Kind) {
    let (pool, ran) = (pool!(kind, 1), Log::default());
    let busy = Busy::on(&pool).await;
    let mut group = pool.group();
    let flag = group.stop_flag();
    group.submit(async { Err("first") }).await.unwrap();
    for n in 0..100 {
        let task = ran.task(n);
        group
            .submit(async {
                task.await;
                Ok(())
            })
            .await
            .unwrap();
    }
    assert!(!flag.is_stopped());
    busy.end().await;
    until(|| flag.is_stopped()).await;
    // A task submitted after the failure is cancelled as well.
    group.submit(async { unreachable!("it was cancelled") }).await.unwrap();
    assert_eq!(group.join().await.unwrap_err().into_error(), Some("first"));
    assert!(pool.wait_idle().await);
    assert!(ran.get().is_empty());
}

/// Given a group that has failed, and that its owner does not poll, then its other tasks take no token: the task behind them gets the next.
async fn tasks_of_a_group_that_has_failed_take_no_token(kind: Kind) {
    let clock = ManualClock::new();
    let pool = pool!(kind, 1, on(&clock), admit_by(rate(&clock, 3)));
    let busy = Busy::on(&pool).await;
    let mut group = pool.group();
    group.submit(async { Err("first") }).await.unwrap();
    for _ in 0..100 {
        group.submit(async { Ok(()) }).await.unwrap();
    }
    let behind = pool.submit(async { 7 }).await.unwrap();
    busy.end().await;
    assert_eq!(behind.join().await.unwrap(), 7);
    assert!(pool.wait_idle().await);
    let stats = pool.stats();
    assert_eq!((stats.finished, stats.expired, stats.refused), (3, 0, 0));
    assert_eq!(group.join().await.unwrap_err().into_error(), Some("first"));
}

async fn a_panic_ends_a_group_as_an_error_does(kind: Kind) {
    let pool = pool!(kind, 1);
    let mut group = pool.group::<(), ()>();
    group.submit(async { panics(1) }).await.unwrap();
    assert!(matches!(
        group.join().await,
        Err(GroupError::Task(TaskError::Panicked(_)))
    ));
}

async fn the_stop_flag_ends_what_runs(kind: Kind) {
    let pool = pool!(kind, 2);
    let mut group = pool.group();
    let flag = group.stop_flag();
    let (start, started) = oneshot::channel();
    let runs = async move {
        start.send(()).unwrap();
        while !flag.is_stopped() {
            yield_now().await;
        }
        Ok(())
    };
    group.submit(runs).await.unwrap();
    started.await.unwrap();
    group.submit(async { Err("no") }).await.unwrap();
    assert_eq!(group.join().await.unwrap_err().into_error(), Some("no"));
    pool.ends_clean().await;
}

async fn a_group_that_keeps_going_gives_every_outcome(kind: Kind) {
    let pool = pool!(kind, 2);
    let mut group = pool.group().keep_going();
    for n in 0..10 {
        let task = async move { if n % 2 == 0 { Ok(n) } else { Err(n) } };
        group.submit(task).await.unwrap();
    }
    let outcomes = group.join_all().await.into_iter();
    let outcomes: Vec<_> = outcomes
        .map(|outcome| outcome.map_err(GroupError::into_error))
        .collect();
    let expected = (0..10).map(|n| if n % 2 == 0 { Ok(n) } else { Err(Some(n)) });
    assert_eq!(outcomes, expected.collect::<Vec<_>>());
}

async fn a_dropped_group_cancels_what_has_not_started(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(2), overflow(Overflow::Reject));
    let busy = Busy::on(&pool).await;
    let mut group = pool.group::<i32, ()>();
    for _ in 0..2 {
        group.submit(async { unreachable!("it was cancelled") }).await.unwrap();
    }
    let rejected = group.submit(async { Ok(3) }).await.unwrap_err();
    assert_eq!((rejected.reason, rejected.task.await), (RejectReason::Full, Ok(3)));
    assert_eq!(group.len(), 2);
    drop(group);
    // Capacity is free at once.
    assert_eq!(pool.stats().queued, 0);
    let next = pool.submit(async { 4 }).await.unwrap();
    busy.end().await;
    assert_eq!(next.join().await.unwrap(), 4);
    pool.ends_clean().await;
}

async fn a_cancelled_group_gives_every_end(kind: Kind) {
    let pool = pool!(kind, 1);
    let busy = Busy::on(&pool).await;
    let mut group = pool.group::<(), ()>();
    for _ in 0..3 {
        group.submit(async { unreachable!("it was cancelled") }).await.unwrap();
    }
    group.cancel();
    busy.end().await;
    let ends = group.join_all().await;
    let is_cancelled = |end: &_| matches!(end, Err(GroupError::Task(TaskError::Cancelled)));
    assert_eq!((ends.len(), ends.iter().all(is_cancelled)), (3, true));
}

async fn a_group_is_awaited(kind: Kind) {
    let pool = pool!(kind, 2);
    let mut group = pool.group::<_, ()>();
    for n in 0..50 {
        group.submit(async move { Ok(n) }).await.unwrap();
    }
    let (_, first) = group.next_async().await.unwrap();
    let rest = group.join_async().await.unwrap();
    assert_eq!(first.unwrap() + rest.into_iter().sum::<i32>(), 49 * 25);
}

/// A task of a group that signals its start, and runs until it is released.
struct Held(oneshot::Receiver<()>, oneshot::Sender<()>);

impl Held {
    fn new() -> (Self, impl Future<Output = Result<(), ()>> + Send + 'static) {
        let (start, started) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let task = async move {
            start.send(()).unwrap();
            let _ = released.await;
            Ok(())
        };
        (Self(started, release), task)
    }

    async fn started(&mut self) {
        (&mut self.0).await.unwrap();
    }

    fn has_started(&mut self) -> bool {
        self.0.try_recv().is_ok()
    }
}

async fn a_group_runs_no_more_tasks_than_its_limit_and_others_pass_them(kind: Kind) {
    let pool = pool!(kind, 3);
    let mut group = pool.group().limit(1).unwrap();
    let (mut first, task) = Held::new();
    group.submit(task).await.unwrap();
    first.started().await;
    let (mut second, task) = Held::new();
    group.submit(task).await.unwrap();
    let third = group.submit(async { Ok(()) }).await.unwrap();
    // A task behind them starts and ends on a free slot.
    pool.submit(async {}).await.unwrap().join().await.unwrap();
    assert!(!second.has_started());
    let stats = pool.stats();
    // The result of a task is there before its worker has counted its end.
    assert!(stats.queued == 2 && [3, 4].contains(&stats.unfinished), "{stats:?}");
    drop(first.1);
    second.started().await;
    drop(second.1);
    assert_eq!((third, group.join().await.unwrap().len()), (2, 3));
    pool.ends_clean().await;
}

async fn restored_tasks_of_a_limited_group_start_in_the_order_of_submission(kind: Kind) {
    let (pool, log) = (pool!(kind, 3), Log::default());
    let mut group = pool.group().limit(2).unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        let (mut one, task) = Held::new();
        group.submit(task).await.unwrap();
        one.started().await;
        held.push(one);
    }
    for n in 0..2 {
        let task = log.task(n);
        let task = async {
            task.await;
            Ok(())
        };
        group.submit(task).await.unwrap();
    }
    // It starts behind them: the pool has looked at them.
    let busy = Busy::on(&pool).await;
    // Each held task that ends frees a slot, for a task of high priority, and a place, for a task that was set aside.
    let mut high = Vec::new();
    for one in held {
        let (mut other, task) = Held::new();
        pool.priority(Priority::High).submit(task).await.unwrap();
        drop(one.1);
        other.started().await;
        high.push(other);
    }
    pool.set_limit(1).unwrap();
    busy.end().await;
    drop(high);
    group.join().await.unwrap();
    assert_eq!(log.get(), [0, 1]);
    pool.ends_clean().await;
}

async fn a_group_with_a_limit_of_0_is_refused(kind: Kind) {
    let pool = pool!(kind, 1);
    let refused = pool.group::<(), ()>().limit(0);
    assert!(matches!(refused.map(drop), Err(PoolError::GroupLimit)));
}

async fn tasks_of_a_limited_group_start_in_order_whatever_their_limit(kind: Kind) {
    for limit in 1..5 {
        let (pool, gauge, log) = (pool!(kind, 4), Gauge::default(), Log::default());
        let mut group = pool.group::<_, ()>().limit(limit).unwrap();
        for n in 0..200 {
            let (gauged, task) = (gauge.task(), log.task(n));
            let task = async {
                task.await;
                gauged.await;
                Ok(())
            };
            group.submit(task).await.unwrap();
            pool.execute(async {}).await.unwrap();
        }
        group.join().await.unwrap();
        assert!(gauge.peak() <= limit);
        if limit == 1 {
            assert_eq!(log.get(), (0..200).collect::<Vec<_>>());
        }
        pool.ends_clean().await;
    }
}

async fn a_cancelled_group_whose_tasks_wait_for_a_place_gives_every_end(kind: Kind) {
    let pool = pool!(kind, 2);
    let (mut held, task) = Held::new();
    let mut group = pool.group().limit(1).unwrap();
    group.submit(task).await.unwrap();
    held.started().await;
    for _ in 0..3 {
        group.submit(async { unreachable!("it was cancelled") }).await.unwrap();
    }
    pool.submit(async {}).await.unwrap().join().await.unwrap();
    group.cancel();
    drop(held.1);
    let ends = group.join_all().await;
    let is_cancelled = |end: &_| matches!(end, Err(GroupError::Task(TaskError::Cancelled)));
    assert_eq!((ends.len(), ends[1..].iter().all(is_cancelled)), (4, true));
    pool.ends_clean().await;
}

async fn a_late_task_of_a_limited_group_leaves_its_place_to_the_next(kind: Kind) {
    let clock = ManualClock::new();
    let pool = pool!(kind, 2, on(&clock.clock()));
    let (mut held, task) = Held::new();
    let mut group = pool.deadline(LONG).group().limit(1).unwrap().keep_going();
    group.submit(task).await.unwrap();
    held.started().await;
    for _ in 0..2 {
        group.submit(async { unreachable!("it is late") }).await.unwrap();
    }
    pool.submit(async {}).await.unwrap().join().await.unwrap();
    clock.advance(2 * LONG);
    drop(held.1);
    let ends = group.join_all().await;
    assert!(
        ends[0].is_ok()
            && ends[1..]
                .iter()
                .all(|end| matches!(end, Err(GroupError::Task(TaskError::Expired))))
    );
    // A late task may be counted after its result.
    assert!(pool.wait_idle().await);
    assert_eq!((ends.len(), pool.stats().expired), (3, 2));
    pool.ends_clean().await;
}

async fn a_full_queue_discards_what_waits_for_a_place_in_its_group(kind: Kind) {
    let pool = pool!(kind, 2, max_queue(2), overflow(Overflow::DropOldest));
    let (mut held, task) = Held::new();
    let mut group = pool.group().limit(1).unwrap().keep_going();
    group.submit(task).await.unwrap();
    held.started().await;
    for _ in 0..2 {
        group.submit(async { unreachable!("it was discarded") }).await.unwrap();
    }
    // A worker has looked at them.
    until(|| pool.stats().idle == pool.stats().threads - 1).await;
    let busy = Busy::on(&pool).await;
    for _ in 0..2 {
        pool.execute(async {}).await.unwrap();
    }
    assert_eq!((pool.stats().queued, pool.stats().discarded), (2, 2));
    busy.end().await;
    drop(held.1);
    let ends = group.join_all().await;
    assert!(
        ends[0].is_ok()
            && ends[1..]
                .iter()
                .all(|end| matches!(end, Err(GroupError::Task(TaskError::Discarded))))
    );
    pool.ends_clean().await;
}

async fn a_shutdown_hands_back_what_waits_for_a_place_in_its_group(kind: Kind) {
    let (pool, log) = (pool!(kind, 2), Log::default());
    let (mut held, task) = Held::new();
    let mut group = pool.group().limit(1).unwrap();
    group.submit(task).await.unwrap();
    held.started().await;
    for n in 0..3 {
        let task = log.task(n);
        let task = async {
            task.await;
            Ok(())
        };
        group.submit(task).await.unwrap();
    }
    pool.submit(async {}).await.unwrap().join().await.unwrap();
    let mut report = pool.shutdown(Duration::ZERO).await;
    assert_eq!(report.left().0, 3);
    for _ in 0..3 {
        assert!(report.first().run().await);
    }
    drop(held.1);
    assert!(report.wait().await);
    assert_eq!((log.get(), group.join().await.unwrap().len()), (vec![0, 1, 2], 4));
}

async fn a_task_waits_for_a_limited_group_in_a_pool_of_one(kind: Kind) {
    let pool = pool!(kind, 1);
    let inner = pool.clone();
    let task = async move {
        let mut sum = 0;
        for limit in 1..4 {
            let mut group = inner.group::<_, ()>().limit(limit).unwrap();
            for n in 0..10 {
                let leaf = inner.clone();
                let task = async move {
                    let mut group = leaf.group::<_, ()>().limit(1).unwrap();
                    group.submit(async move { Ok(n) }).await.unwrap();
                    Ok(group.join().await.unwrap()[0])
                };
                group.submit(task).await.unwrap();
            }
            sum += group.join().await.unwrap().into_iter().sum::<usize>();
        }
        sum
    };
    assert_eq!(pool.submit(task).await.unwrap().join().await.unwrap(), 3 * 45);
    pool.ends_clean().await;
}

async fn an_awaited_task_of_a_full_group_waits_for_its_place(kind: Kind) {
    let (pool, gauge) = (pool!(kind, 2), Gauge::default());
    let mut waiters = Vec::new();
    for _ in 0..4 {
        let (inner, gauge) = (pool.clone(), gauge.clone());
        let waiter = async move {
            // Each waiter has a limit of its own, and waits for tasks behind those of the other waiters.
            let own = Gauge::default();
            let mut group = inner.group::<_, ()>().limit(1).unwrap();
            for _ in 0..20 {
                let (gauged, counted) = (own.task(), gauge.task());
                let task = async {
                    gauged.await;
                    counted.await;
                    Ok(())
                };
                group.submit(task).await.unwrap();
            }
            group.join().await.unwrap();
            own.peak()
        };
        waiters.push(pool.submit(waiter).await.unwrap());
    }
    for waiter in waiters {
        assert_eq!(waiter.join().await.unwrap(), 1);
    }
    assert!(gauge.peak() <= 4);
    pool.ends_clean().await;
}

async fn a_policy_admits_tasks_of_limited_groups(kind: Kind) {
    let permits = Arc::new(Semaphore::new(2));
    let pool = pool!(kind, 4, admit_by(Policy::new(Arc::clone(&permits))));
    let (one, two) = (Gauge::default(), Gauge::default());
    let mut first = pool.group::<_, ()>().limit(1).unwrap();
    let mut second = pool.group::<_, ()>().limit(2).unwrap();
    for _ in 0..100 {
        let task = one.task().map(Ok);
        first.submit(task).await.unwrap();
        let task = two.task().map(Ok);
        second.submit(task).await.unwrap();
    }
    assert_eq!(first.join().await.unwrap().len(), 100);
    assert_eq!(second.join().await.unwrap().len(), 100);
    assert!(one.peak() <= 1 && two.peak() <= 2);
    pool.ends_clean().await;
    assert_eq!(permits.in_use(), 0);
}

async fn pools_that_share_slots_are_bounded_together(kind: Kind) {
    let (slots, gauge) = (Arc::new(Semaphore::new(2)), Gauge::default());
    let pools = [(); 3].map(|()| pool!(kind, 2, slots(Arc::clone(&slots))));
    for n in 0..300 {
        pools[n % 3].execute(gauge.task()).await.unwrap();
    }
    for pool in &pools {
        pool.ends_clean().await;
    }
    assert!(gauge.peak() <= 2);
    assert_eq!((slots.available_permits(), slots.waiting()), (2, 0));
}

/// Given a pool for one task whose slots are raised to three, then three of its tasks run at once.
async fn shared_slots_are_the_limit_whatever_the_pool_was_built_for(kind: Kind) {
    let slots = Arc::new(Semaphore::new(1));
    let pool = pool!(kind, 3, slots(Arc::clone(&slots)));
    pool.set_limit(1).unwrap();
    slots.set_limit(3);
    let all = Arc::new(Barrier::new(3));
    let tasks = [(); 3].map(|()| {
        let all = Arc::clone(&all);
        pool.try_submit(async move { all.wait().await.is_leader() }).unwrap()
    });
    let mut leaders = 0;
    for task in tasks {
        leaders += usize::from(task.join().await.unwrap());
    }
    assert_eq!(leaders, 1);
    pool.ends_clean().await;
}

async fn a_permit_of_the_user_is_one_slot_less(kind: Kind) {
    let slots = Arc::new(Semaphore::new(2));
    let pool = pool!(kind, 2, slots(Arc::clone(&slots)));
    let held = slots.try_acquire().unwrap();
    let busy = Busy::on(&pool).await;
    let waits = pool.submit(async { 1 }).await.unwrap();
    until(|| slots.waiting() > 0).await;
    assert!(!waits.is_finished());
    drop(held);
    assert_eq!(waits.join().await.unwrap(), 1);
    busy.end().await;
    // The semaphore's limit is the pool's: at zero the pool has no slot.
    slots.set_limit(0);
    let waits = pool.submit(async { 2 }).await.unwrap();
    until(|| slots.waiting() > 0).await;
    assert!(!waits.is_finished());
    slots.set_limit(1);
    assert_eq!(waits.join().await.unwrap(), 2);
    pool.ends_clean().await;
    assert_eq!(slots.available_permits(), 1);
}

async fn closed_slots_end_a_pool(kind: Kind) {
    let slots = Arc::new(Semaphore::new(0));
    let pool = pool!(kind, 1, slots(Arc::clone(&slots)));
    let task = pool.submit(async { 7 }).await.unwrap();
    until(|| slots.waiting() > 0).await;
    slots.close();
    assert!(matches!(task.join().await, Err(TaskError::Abandoned)));
    pool.ends_clean().await;
}

async fn a_pool_without_a_slot_waits_for_its_task_and_for_nothing_else(kind: Kind) {
    let slots = Arc::new(Semaphore::new(0));
    let build = || pool!(kind, 1, slots(Arc::clone(&slots)));
    build().ends_clean().await;
    for is_cancelled in [true, false] {
        let pool = build();
        let task = pool.submit(async { 7 }).await.unwrap();
        until(|| slots.waiting() > 0).await;
        if is_cancelled {
            assert!(task.cancel());
        } else {
            pool.close();
            slots.add_permits(1);
            assert_eq!(task.join().await.unwrap(), 7);
        }
        pool.ends_clean().await;
    }
    assert_eq!((slots.available_permits(), slots.waiting()), (1, 0));
}

/// Returns a policy that admits one task each second, after a burst.
fn rate(clock: &ManualClock, burst: u64) -> Policy<TokenBucket> {
    Policy::new(TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock))
}

async fn a_rate_admits_the_tasks(kind: Kind) {
    let clock = ManualClock::new();
    let policy = rate(&clock, 2);
    let pool = pool!(kind, 1, on(&clock), admit_by(policy.clone()));
    let tasks = [0, 1, 2, 3].map(|n| pool.try_submit(async move { n }).unwrap());
    let [first, second, third, fourth] = tasks;
    assert_eq!((first.join().await.unwrap(), second.join().await.unwrap()), (0, 1));
    until(|| policy.waiting() > 0).await;
    clock.advance(SECOND - NANO);
    settle().await;
    assert!(!third.is_finished());
    clock.advance(NANO);
    assert_eq!(third.join().await.unwrap(), 2);
    // The fourth task waits for admission: it has not started, and the shutdown lists it.
    until(|| policy.waiting() > 0).await;
    assert_eq!(pool.shutdown(Duration::ZERO).await.left().0, 1);
    assert!(matches!(fourth.join().await, Err(TaskError::Abandoned)));
    until(|| policy.waiting() == 0).await;
    // The policy is asked for the task's own `Ask`.
    let policy = rate(&clock, 4);
    let pool = pool!(kind, 1, on(&clock), admit_by(policy.clone()));
    with!(pool, ask(4))
        .submit(async {})
        .await
        .unwrap()
        .join()
        .await
        .unwrap();
    let waits = pool.submit(async {}).await.unwrap();
    until(|| policy.waiting() > 0).await;
    assert!(!waits.is_finished());
    clock.advance(SECOND);
    waits.join().await.unwrap();
}

async fn a_semaphore_admits_the_tasks(kind: Kind) {
    let (permits, gauge) = (Arc::new(Semaphore::new(2)), Gauge::default());
    let pool = pool!(kind, 4, admit_by(Policy::new(Arc::clone(&permits))));
    for _ in 0..100 {
        pool.execute(gauge.task()).await.unwrap();
    }
    pool.ends_clean().await;
    assert!(gauge.peak() <= 2);
    assert_eq!((permits.available_permits(), permits.waiting()), (2, 0));
}

async fn a_task_that_can_never_be_admitted_is_refused(kind: Kind) {
    let pool = pool!(kind, 1, admit_by(Policy::new(Semaphore::new(1))));
    let refused = with!(pool, ask(Ask::many(2))).submit(async {}).await.unwrap();
    assert!(matches!(refused.join().await, Err(TaskError::Refused(why)) if why.reason() == Reason::Oversized));
    assert_eq!(pool.run(async { 7 }).await.unwrap(), 7);
    assert!(pool.wait_idle().await);
    let stats = pool.stats();
    assert_eq!((stats.refused, stats.finished, stats.unfinished), (1, 1, 0));
}

async fn refusals_of_a_closed_policy_are_returned_and_counted(kind: Kind) {
    let permits = Arc::new(Semaphore::new(1));
    let pool = pool!(kind, 1, admit_by(Policy::new(Arc::clone(&permits))));
    permits.close();
    assert!(matches!(pool.run(async {}).await, Err(TaskError::Refused(why)) if why.reason() == Reason::Closed));
    pool.execute(async {}).await.unwrap();
    assert!(pool.wait_idle().await);
    let stats = pool.stats();
    assert_eq!((stats.refused, stats.finished, stats.unfinished), (2, 0, 0));
}

async fn a_policy_hears_how_tasks_end(kind: Kind) {
    let learns = Arc::new(Outcomes::default());
    let pool = pool!(kind, 1, admit_by(Policy::new(Arc::clone(&learns))));
    for n in 0..5 {
        let task = async move {
            if n == 2 {
                panics::<()>(n);
            }
        };
        pool.execute(task).await.unwrap();
    }
    pool.ends_clean().await;
    assert_eq!(learns.told(), (5, 1));
}

async fn a_task_that_waits_for_its_admission_leaves_the_slot_to_others(kind: Kind) {
    let (slots, gate) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(0)));
    let policy = Policy::new(Arc::clone(&gate));
    let gated = pool!(kind, 1, slots(Arc::clone(&slots)), admit_by(policy.clone()));
    let free = pool!(kind, 1, slots(Arc::clone(&slots)));
    let waits = gated.submit(async { 1 }).await.unwrap();
    until(|| policy.waiting() == 1).await;
    assert_eq!(free.run(async { 2 }).await.unwrap(), 2);
    assert!(!waits.is_finished());
    gate.add_permits(1);
    assert_eq!(waits.join().await.unwrap(), 1);
    for pool in [gated, free] {
        pool.ends_clean().await;
    }
    assert_eq!((slots.available_permits(), gate.available_permits()), (1, 1));
}

async fn an_admission_without_a_slot_costs_nothing(kind: Kind) {
    let (clock, slots) = (ManualClock::new(), Arc::new(Semaphore::new(1)));
    let policy = rate(&clock, 1);
    let pool = pool!(kind, 1, on(&clock), slots(Arc::clone(&slots)), admit_by(policy.clone()));
    pool.run(async {}).await.unwrap();
    let task = pool.submit(async { 7 }).await.unwrap();
    until(|| policy.waiting() == 1 && slots.available_permits() == 1).await;
    slots.set_limit(0);
    clock.advance(SECOND);
    // The task was admitted, found no slot, and returned the admission.
    until(|| slots.waiting() == 1 && policy.waiting() == 0).await;
    assert!(policy.try_admit(Ask::one()).is_ok());
    assert!(!task.is_finished());
    slots.set_limit(1);
    until(|| policy.waiting() == 1).await;
    clock.advance(SECOND);
    assert_eq!(task.join().await.unwrap(), 7);
    pool.ends_clean().await;
}

async fn a_task_that_is_cancelled_at_the_gate_leaves_it(kind: Kind) {
    let clock = ManualClock::new();
    let policy = rate(&clock, 1);
    let pool = pool!(kind, 1, on(&clock), admit_by(policy.clone()));
    pool.run(async {}).await.unwrap();
    let waits = pool.submit(async {}).await.unwrap();
    until(|| policy.waiting() == 1).await;
    assert!(waits.cancel());
    assert!(pool.wait_idle().await);
    clock.advance(SECOND);
    until(|| policy.try_admit(Ask::one()).is_ok()).await;
    pool.ends_clean().await;
}

/// The task at the policy lacks a permit. The newer task for which it is evicted needs fewer.
async fn a_task_that_is_evicted_at_the_gate_leaves_it_to_the_next(kind: Kind) {
    let permits = Arc::new(Semaphore::new(2));
    let policy = Policy::new(Arc::clone(&permits));
    let pool = pool!(
        kind,
        1,
        max_queue(1),
        overflow(Overflow::DropOldest),
        admit_by(policy.clone())
    );
    let held = permits.try_acquire().unwrap();
    let heavy = with!(pool, ask(2)).submit(async { 1 }).await.unwrap();
    until(|| policy.waiting() == 1).await;
    assert_eq!(pool.submit(async { 2 }).await.unwrap().join().await.unwrap(), 2);
    assert!(matches!(heavy.join().await, Err(TaskError::Discarded)));
    drop(held);
    pool.ends_clean().await;
    assert_eq!((policy.waiting(), permits.available_permits()), (0, 2));
}

async fn a_cancelled_or_late_task_takes_no_token(kind: Kind) {
    let clock = ManualClock::new();
    let policy = rate(&clock, 3);
    let pool = pool!(kind, 1, on(&clock), admit_by(policy.clone()));
    let busy = Busy::on(&pool).await;
    let cancelled = [(); 2].map(|()| pool.try_submit(async {}).unwrap());
    let late = [(); 2].map(|()| pool.deadline(Duration::ZERO).try_submit(async {}).unwrap());
    let live = [(); 2].map(|()| pool.try_submit(async {}).unwrap());
    let last = pool.submit(async {}).await.unwrap();
    assert!(cancelled.iter().all(Handle::cancel));
    clock.advance(NANO);
    busy.end().await;
    for late in late {
        assert!(matches!(late.join().await, Err(TaskError::Expired)));
    }
    for live in live {
        live.join().await.unwrap();
    }
    until(|| policy.waiting() == 1).await;
    assert_eq!((pool.stats().expired, last.is_finished()), (2, false));
    assert_eq!(pool.abort().left().0, 1);
}

/// Keeps out deadpool#380.
async fn a_resize_is_effective_at_once_in_both_directions(kind: Kind) {
    let pool = pool!(kind, 3);
    let mut busy = Vec::new();
    for _ in 0..3 {
        busy.push(Busy::on(&pool).await);
    }
    let queued = [1, 2].map(|n| pool.try_submit(async move { n }).unwrap());
    pool.set_limit(1).unwrap();
    busy.pop().unwrap().end().await;
    busy.pop().unwrap().end().await;
    settle().await;
    // One task still runs, and holds the only slot.
    assert_eq!((pool.stats().limit, pool.stats().queued), (1, 2));
    pool.set_limit(2).unwrap();
    for (n, task) in (1..).zip(queued) {
        assert_eq!(task.join().await.unwrap(), n);
    }
    // A raise while all slots are taken starts a waiting task.
    let other = Busy::on(&pool).await;
    let queued = pool.submit(async { 3 }).await.unwrap();
    settle().await;
    assert!(!queued.is_finished());
    pool.set_limit(3).unwrap();
    assert_eq!(queued.join().await.unwrap(), 3);
    assert!(matches!(
        pool.set_limit(0),
        Err(PoolError::Workers { least: 0, most: 0 })
    ));
    other.end().await;
    busy.pop().unwrap().end().await;
    pool.ends_clean().await;
}

/// Keeps out threadpool#63, threadpool#89.
async fn waits_for_idleness_are_all_told(kind: Kind) {
    let pool = pool!(kind, 2);
    assert!(pool.wait_idle().await && pool.wait_idle_timeout(Duration::ZERO).await);
    let inner = pool.clone();
    let asks = async move { inner.wait_idle().await || inner.wait_idle_timeout(LONG).await };
    assert!(!pool.run(asks).await.unwrap(), "it would wait for itself");
    let busy = Busy::on(&pool).await;
    let barrier = Arc::new(std::sync::Barrier::new(7));
    let waits = || {
        let (pool, barrier) = (pool.clone(), Arc::clone(&barrier));
        thread::spawn(move || {
            barrier.wait();
            block_on(pool.wait_idle())
        })
    };
    let waiters: Vec<_> = (0..6).map(|_| waits()).collect();
    barrier.wait();
    assert!(!pool.wait_idle_timeout(Duration::ZERO).await);
    busy.end().await;
    until(|| waiters.iter().all(|waiter| waiter.is_finished())).await;
    assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
}

/// Keeps out tokio#1853, tokio#1982.
async fn shutdown_lists_exactly_the_tasks_that_never_started(kind: Kind) {
    let pool = pool!(kind, 1);
    let busy = Busy::on(&pool).await;
    let heavy = pool.priority(Priority::High).weight(3);
    let mut handles = vec![heavy.submit(async { 0 }).await.unwrap()];
    for n in 1..10 {
        handles.push(pool.submit(async move { n }).await.unwrap());
    }
    assert!(handles[3].cancel());
    let mut report = pool.shutdown(Duration::ZERO).await;
    assert_eq!((report.left(), report.is_clean()), ((9, 1), false));
    assert_eq!(pool.submit(async {}).await.unwrap_err().reason, RejectReason::Closed);
    // A listed task can still be run; when it is dropped, its handle gets the error.
    let first = report.first();
    assert_eq!((first.weight(), first.priority()), (3, Priority::High));
    assert!(first.run().await);
    drop(report);
    for (n, handle) in handles.into_iter().enumerate() {
        match (n, handle.join().await) {
            (0, ended) => assert_eq!(ended.unwrap(), 0),
            (3, ended) => assert!(matches!(ended, Err(TaskError::Cancelled))),
            (_, ended) => assert!(matches!(ended, Err(TaskError::Abandoned))),
        }
    }
    assert_eq!(pool.shutdown(Duration::ZERO).await.left(), (0, 1));
    busy.end().await;
    pool.ends_clean().await;
}

async fn a_shutdown_from_inside_does_not_wait(kind: Kind) {
    let pool = pool!(kind, 1);
    let inner = pool.clone();
    let outer = pool.run(async move {
        let queued = inner.submit(async {}).await.unwrap();
        let report = inner.shutdown(LONG).await;
        assert_eq!(report.left(), (1, 1));
        assert!(!report.wait_inside(), "it would wait for itself");
        drop(report);
        matches!(queued.join().await, Err(TaskError::Abandoned))
    });
    assert!(outer.await.unwrap());
    pool.ends_clean().await;
}

/// Given a task that a shutdown has listed, when a running task waits for it, then only the owner of the report runs or drops it.
async fn listed_tasks_are_run_by_the_owner_of_the_report_alone(kind: Kind) {
    for runs in [true, false] {
        let pool = pool!(kind, 1);
        let here = pool.clone();
        let (tell, told) = oneshot::channel();
        let (wait, waited) = oneshot::channel();
        let (go_on, waits) = oneshot::channel::<()>();
        let outer = async move {
            let inner = here.submit(async { 7 }).await.unwrap();
            tell.send(()).unwrap();
            waits.await.unwrap();
            let inner = inner.join_timeout(Duration::ZERO).await.unwrap_err();
            wait.send(()).unwrap();
            inner.join().await
        };
        let outer = pool.submit(outer).await.unwrap();
        told.await.unwrap();
        let mut report = pool.shutdown(Duration::ZERO).await;
        assert_eq!(report.left(), (1, 1));
        go_on.send(()).unwrap();
        waited.await.unwrap();
        settle().await;
        assert!(!outer.is_finished());
        let listed = report.first();
        if runs {
            assert!(listed.run().await);
            assert_eq!(outer.join().await.unwrap().unwrap(), 7);
        } else {
            drop(listed);
            assert!(matches!(outer.join().await.unwrap(), Err(TaskError::Abandoned)));
        }
        pool.ends_clean().await;
    }
}

async fn a_report_can_be_waited_for(kind: Kind) {
    let pool = pool!(kind, 2);
    let busy = Busy::on(&pool).await;
    let report = pool.shutdown(Duration::ZERO).await;
    assert_eq!((report.left(), report.is_clean()), ((0, 1), false));
    assert!(!report.wait_timeout(Duration::ZERO).await);
    let task = busy.release();
    assert!(report.wait().await && task.is_finished());
    assert!(report.wait_timeout(LONG).await);
    assert_eq!(pool.stats().threads, 0);
}

async fn a_closed_pool_takes_nothing_and_runs_what_it_has(kind: Kind) {
    let pool = pool!(kind, 1);
    let busy = Busy::on(&pool).await;
    let queued = pool.submit(async { 7 }).await.unwrap();
    pool.close();
    assert_eq!(pool.submit(async {}).await.unwrap_err().reason, RejectReason::Closed);
    assert_eq!(pool.try_submit(async {}).unwrap_err().reason, RejectReason::Closed);
    busy.end().await;
    assert_eq!(queued.join().await.unwrap(), 7);
    pool.ends_clean().await;
}

async fn a_dropped_pool_runs_what_it_has(kind: Kind) {
    let (pool, log) = (pool!(kind, 1), Log::default());
    let busy = Busy::on(&pool).await;
    let mut handles = Vec::new();
    for n in 0..10 {
        handles.push(pool.submit(log.task(n)).await.unwrap());
    }
    drop(pool);
    busy.end().await;
    for handle in handles {
        handle.join().await.unwrap();
    }
    assert_eq!(log.get(), (0..10).collect::<Vec<_>>());
}

/// Keeps out thread-pool#5.
async fn a_pool_that_was_never_used_ends(kind: Kind) {
    for limit in [1, 3] {
        let pool = pool!(kind, limit);
        assert!(pool.wait_idle().await);
        pool.ends_clean().await;
        pool.ends_clean().await;
        assert!(pool.wait_idle().await);
    }
    let aborted = pool!(kind, 1);
    assert!(aborted.abort().is_clean());
}

/// Returns a task that submits another to the next pool and waits for it, and so on to the given depth.
fn nested(pools: Arc<[Pool]>, depth: usize) -> BoxFuture<'static, usize> {
    Box::pin(async move {
        if depth == 0 {
            return 0;
        }
        let pool = pools[depth % pools.len()].clone();
        let inner = pool.submit(nested(pools, depth - 1)).await.unwrap();
        1 + inner.join().await.unwrap()
    })
}

async fn tasks_wait_for_tasks_to_any_depth_in_a_pool_of_one(kind: Kind) {
    let pool = pool!(kind, 1, max_queue(1));
    assert_eq!(pool.run(nested([pool.clone()].into(), 100)).await.unwrap(), 100);
    pool.ends_clean().await;
}

async fn groups_nest_in_a_pool_of_one(kind: Kind) {
    fn tree(pool: Pool, depth: u32) -> BoxFuture<'static, Result<u32, ()>> {
        Box::pin(async move {
            if depth == 0 {
                return Ok(1);
            }
            let mut group = pool.group::<u32, ()>();
            for _ in 0..3 {
                group.submit(tree(pool.clone(), depth - 1)).await.unwrap();
            }
            Ok(group.join().await.unwrap().into_iter().sum())
        })
    }
    let pool = pool!(kind, 1, max_queue(4));
    assert_eq!(pool.run(tree(pool.clone(), 5)).await.unwrap(), Ok(243));
    pool.ends_clean().await;
}

async fn a_task_waits_for_several_at_once(kind: Kind) {
    let (pool, gauge) = (pool!(kind, 1), Gauge::default());
    let (here, inside) = (pool.clone(), gauge.clone());
    let outer = pool.run(async move {
        let handles = [(); 10].map(|()| here.try_submit(inside.task()).unwrap());
        join_all(handles).await.into_iter().filter(Result::is_ok).count()
    });
    assert_eq!(outer.await.unwrap(), 10);
    assert_eq!(gauge.peak(), 1);
    pool.ends_clean().await;
}

async fn a_task_waits_for_one_that_was_submitted_from_outside(kind: Kind) {
    let pool = pool!(kind, 1);
    let (give, given) = oneshot::channel::<Handle<u32>>();
    let outer = pool.submit(async { given.await.unwrap().join().await }).await.unwrap();
    let other = pool.submit(async { 1 }).await.unwrap();
    let last = pool.submit(async { 2 }).await.unwrap();
    assert!(give.send(last).is_ok());
    assert_eq!(outer.join().await.unwrap().unwrap(), 2);
    assert_eq!(other.join().await.unwrap(), 1);
    pool.ends_clean().await;
}

async fn awaited_tasks_start_before_others(kind: Kind) {
    let (pool, log) = (pool!(kind, 1), Log::default());
    let (here, noted) = (pool.clone(), log.clone());
    let outer = pool.run(async move {
        let [first, awaited, last] = [1, 2, 3].map(|n| here.try_submit(noted.task(n)).unwrap());
        awaited.join().await.unwrap();
        [first, last]
    });
    for task in outer.await.unwrap() {
        task.join().await.unwrap();
    }
    assert_eq!(log.get(), [2, 1, 3]);
}

/// Given tasks that wait on all slots, when a wait times out, then a second wait for the same task ends.
async fn a_wait_that_timed_out_can_be_taken_up_again(kind: Kind) {
    for limit in [1, 3] {
        let pool = pool!(kind, limit);
        let waiters: Vec<_> = (0..limit)
            .map(|_| {
                let here = pool.clone();
                let waits = async move {
                    let inner = async {
                        yield_now().await;
                        7
                    };
                    let inner = here.submit(inner).await.unwrap();
                    match inner.join_timeout(Duration::ZERO).await {
                        Ok(ended) => ended.unwrap(),
                        Err(inner) => inner.join().await.unwrap(),
                    }
                };
                pool.try_submit(waits).unwrap()
            })
            .collect();
        for waiter in waiters {
            assert_eq!(waiter.join().await.unwrap(), 7);
        }
        pool.ends_clean().await;
        assert_eq!(pool.stats().finished, 2 * limit as u64);
    }
}

/// Given a task that waits for its child beside another task, when the other ends, then the next task gets its slot.
async fn a_slot_that_is_not_lent_goes_to_the_next(kind: Kind) {
    let pool = pool!(kind, 2);
    let beside = Busy::on(&pool).await;
    let here = pool.clone();
    let (start, started) = oneshot::channel();
    let (open, gate) = oneshot::channel::<()>();
    let inner = async move {
        start.send(()).unwrap();
        gate.await.unwrap();
    };
    let waits = pool.submit(async move { here.run(inner).await }).await.unwrap();
    started.await.unwrap();
    let next = pool.submit(async { 2 }).await.unwrap();
    settle().await;
    assert!(!next.is_finished());
    beside.end().await;
    assert_eq!(next.join().await.unwrap(), 2);
    assert!(
        !pool.wait_idle_timeout(Duration::ZERO).await,
        "a task that waits is not idle"
    );
    open.send(()).unwrap();
    waits.join().await.unwrap().unwrap();
    pool.ends_clean().await;
}

/// Awaits tasks one by one, and as a group.
async fn a_task_on_a_lent_slot_is_admitted_first(kind: Kind) {
    let clock = ManualClock::new();
    let policy = rate(&clock, 1);
    let pool = pool!(kind, 1, on(&clock), admit_by(policy.clone()));
    let (here, time) = (pool.clone(), clock.clone());
    let (ran, runs) = mpsc::channel();
    let outer = pool.submit(async move {
        let inner = || {
            let (time, ran) = (time.clone(), ran.clone());
            async move {
                let now = time.elapsed();
                ran.send(()).unwrap();
                now
            }
        };
        let first = here.submit(inner()).await.unwrap().join().await.unwrap();
        let mut group = here.group::<_, ()>();
        for inner in [inner(), inner()] {
            group.submit(async { Ok(inner.await) }).await.unwrap();
        }
        (first, group.join().await.unwrap())
    });
    let outer = outer.await.unwrap();
    for _ in 0..3 {
        until(|| policy.waiting() > 0).await;
        clock.advance(SECOND);
        until(|| runs.try_recv().is_ok()).await;
    }
    assert_eq!(outer.join().await.unwrap(), (SECOND, vec![2 * SECOND, 3 * SECOND]));
    pool.ends_clean().await;
}

async fn a_policy_hears_of_tasks_on_lent_slots(kind: Kind) {
    let learns = Arc::new(Outcomes::default());
    let pool = pool!(kind, 1, admit_by(Policy::new(Arc::clone(&learns))));
    let here = pool.clone();
    let outer = pool.run(async move {
        let failed = here.submit(async { panics::<()>(3) }).await.unwrap();
        let failed = payload(failed.join().await);
        // The limiter receives the outcome when the permit ends, after the handle is ready.
        until(|| learns.told() == (1, 1)).await;
        failed
    });
    assert_eq!(outer.await.unwrap(), 3);
}

async fn the_first_failure_ends_a_group_in_a_task(kind: Kind) {
    let (pool, ran) = (pool!(kind, 1), Log::default());
    let (here, log) = (pool.clone(), ran.clone());
    let outer = pool.run(async move {
        let mut group = here.group();
        for n in 0..5 {
            let task = log.task(n);
            let task = async move {
                task.await;
                if n == 1 { Err(n) } else { Ok(n) }
            };
            group.submit(task).await.unwrap();
        }
        group.join().await.unwrap_err().into_error()
    });
    assert_eq!(outer.await.unwrap(), Some(1));
    assert_eq!(ran.get(), [0, 1]);
    pool.ends_clean().await;
}

async fn a_task_learns_of_the_end_of_the_pool_that_it_waits_for(kind: Kind) {
    let [pool, other] = [(); 2].map(|()| pool!(kind, 1));
    let busy = Busy::on(&other).await;
    let (tell, told) = oneshot::channel();
    let there = other.clone();
    let waits = async move {
        let inner = there.submit(async {}).await.unwrap();
        tell.send(()).unwrap();
        inner.join().await
    };
    let waits = pool.submit(waits).await.unwrap();
    told.await.unwrap();
    settle().await;
    drop(other.shutdown(Duration::ZERO).await);
    assert!(matches!(waits.join().await.unwrap(), Err(TaskError::Abandoned)));
    busy.end().await;
    for pool in [pool, other] {
        pool.ends_clean().await;
    }
}

async fn pools_of_one_wait_for_each_other_up_and_down(kind: Kind) {
    let pools = [pool!(kind, 1), pool!(kind, 1)];
    let all = (0..4).map(|_| nested(pools.clone().into(), 8));
    assert_eq!(join_all(all).await, [8; 4]);
    for pool in pools {
        pool.ends_clean().await;
    }
}

/// Each pool runs a task that waits for a task of the next pool, all at once.
async fn pools_of_one_wait_in_a_ring(kind: Kind) {
    let pools = [pool!(kind, 1), pool!(kind, 1), pool!(kind, 1)];
    let all = Arc::new(Barrier::new(3));
    let outer = [0, 1, 2].map(|at| {
        let (next, all) = (pools[(at + 1) % 3].clone(), Arc::clone(&all));
        let task = async move {
            all.wait().await;
            next.submit(async move { at }).await.unwrap().join().await.unwrap()
        };
        pools[at].try_submit(task).unwrap()
    });
    for (at, task) in outer.into_iter().enumerate() {
        assert_eq!(task.join().await.unwrap(), at);
    }
    for pool in pools {
        pool.ends_clean().await;
    }
}

/// Down, up, and down again: given a task below that waits for one above, which runs on another thread by then and waits for one below,
/// then all end.
async fn a_child_that_has_started_elsewhere_may_wait_for_the_pool_of_its_waiter(kind: Kind) {
    let (above, below) = (pool!(kind, 2), pool!(kind, 1));
    let (up, down) = (above.clone(), below.clone());
    let outer = below.submit(async move {
        let (start, started) = oneshot::channel();
        let child = async move {
            start.send(()).unwrap();
            down.submit(async { 7 }).await.unwrap().join().await.unwrap()
        };
        let child = up.submit(child).await.unwrap();
        started.await.unwrap();
        child.join().await.unwrap()
    });
    assert_eq!(outer.await.unwrap().join().await.unwrap(), 7);
    above.ends_clean().await;
    below.ends_clean().await;
}

/// Given a task that waits for one of another pool, whose slots are taken, then it goes on once one is given back, or the limit of the slots
/// or of that pool is raised.
async fn a_waiting_task_goes_on_when_the_slot_that_its_child_needs_comes_from_outside(kind: Kind) {
    for way in 0..3 {
        let slots = Arc::new(Semaphore::new(usize::from(way == 0)));
        let held = Arc::clone(&slots).try_acquire_owned().ok();
        let below = match way {
            2 => pool!(kind, 1),
            _ => pool!(kind, 1, slots(Arc::clone(&slots))),
        };
        let busy = if way == 2 { Some(Busy::on(&below).await) } else { None };
        let (pool, down) = (pool!(kind, 1), below.clone());
        let (wait, waits) = oneshot::channel();
        let outer = pool.submit(async move {
            let child = down.submit(async { 7 }).await.unwrap();
            wait.send(()).unwrap();
            child.join().await.unwrap()
        });
        let outer = outer.await.unwrap();
        waits.await.unwrap();
        settle().await;
        assert!(!outer.is_finished());
        match way {
            0 => drop(held),
            1 => slots.set_limit(1),
            _ => below.set_limit(2).unwrap(),
        }
        assert_eq!(outer.join().await.unwrap(), 7);
        if let Some(busy) = busy {
            busy.end().await;
        }
        below.ends_clean().await;
    }
}

/// Given a task that has the only permit of its policy, while the next task of its pool asks for that permit, when it waits for a task of
/// another pool, then it goes on.
async fn a_task_with_the_only_permit_of_its_policy_may_wait_in_another_pool(kind: Kind) {
    let policy = Policy::new(Semaphore::new(1));
    let (pool, below) = (pool!(kind, 2, max_queue(1), admit_by(policy.clone())), pool!(kind, 1));
    let down = below.clone();
    let (go, gone) = oneshot::channel();
    let first = pool.submit(async move {
        gone.await.unwrap();
        down.submit(async { 7 }).await.unwrap().join().await.unwrap()
    });
    let first = first.await.unwrap();
    until(|| pool.stats().queued == 0).await;
    let second = pool.submit(async { 8 }).await.unwrap();
    until(|| policy.waiting() == 1).await;
    go.send(()).unwrap();
    assert_eq!((first.join().await.unwrap(), second.join().await.unwrap()), (7, 8));
    pool.ends_clean().await;
    below.ends_clean().await;
}

/// A rate's tokens come back with time, so these waits end.
async fn tasks_wait_for_tasks_behind_a_rate(kind: Kind) {
    let clock = ManualClock::new();
    let gated = pool!(kind, 1, on(&clock), admit_by(rate(&clock, 1)));
    let pools = [gated, pool!(kind, 1)];
    let all = pools[1].submit(nested(pools.clone().into(), 8)).await.unwrap();
    until(|| {
        clock.advance_to_next_timer();
        all.is_finished()
    })
    .await;
    assert_eq!(all.join().await.unwrap(), 8);
    for pool in pools {
        pool.ends_clean().await;
    }
}

/// Given tasks that hold a permit of the policy while they run, when one waits for a task of the same pool, directly or through a
/// task of another pool, then the wait ends at once, whatever the number of free permits. The task runs, and other waiters may use
/// the handle.
async fn a_wait_for_a_permit_that_the_waiter_holds_ends_at_once(kind: Kind) {
    let permits = Arc::new(Semaphore::new(3));
    let gated = pool!(kind, 3, admit_by(Policy::new(Arc::clone(&permits))));
    let free = pool!(kind, 1);
    for is_below in [false, true] {
        let (here, below) = (gated.clone(), free.clone());
        let outer = gated.run(async move {
            let waits = async move {
                let mut inner = here.submit(async { 7 }).await.unwrap();
                for _ in 0..2 {
                    assert!(matches!((&mut inner).await, Err(TaskError::WouldDeadlock)));
                }
                let joined = here.submit(async {}).await.unwrap().join().await;
                assert!(matches!(joined, Err(TaskError::WouldDeadlock)));
                Some(inner)
            };
            match is_below {
                true => below.submit(waits).await.unwrap().join().await.unwrap(),
                false => waits.await,
            }
        });
        assert_eq!(outer.await.unwrap().unwrap().join().await.unwrap(), 7);
    }
    for pool in [gated, free] {
        pool.ends_clean().await;
    }
    assert_eq!(permits.available_permits(), 3);
}

async fn a_group_that_would_wait_for_its_own_permit_ends_at_once(kind: Kind) {
    let pool = pool!(kind, 1, admit_by(Policy::new(Semaphore::new(1))));
    let here = pool.clone();
    let outer = pool.run(async move {
        let mut group = here.group::<(), ()>();
        for _ in 0..2 {
            group.submit(async { Ok(()) }).await.unwrap();
        }
        let (first, why) = group.next().await.unwrap();
        (first, why.unwrap_err(), group.next().await.unwrap().0)
    });
    assert!(matches!(
        outer.await.unwrap(),
        (0, GroupError::Task(TaskError::WouldDeadlock), 1)
    ));
    pool.ends_clean().await;
}

/// Waits for a task of the same pool, and of another pool with the same slots.
async fn a_wait_for_a_shared_slot_that_the_waiter_holds_ends_at_once(kind: Kind) {
    let slots = Arc::new(Semaphore::new(2));
    let pools = [(); 2].map(|()| pool!(kind, 2, slots(Arc::clone(&slots))));
    for inner in pools.clone() {
        let outer = pools[0].run(async move { inner.submit(async {}).await.unwrap().join().await });
        assert!(matches!(outer.await.unwrap(), Err(TaskError::WouldDeadlock)));
    }
    for pool in pools {
        pool.ends_clean().await;
    }
    assert_eq!((slots.available_permits(), slots.waiting()), (2, 0));
}

async fn a_task_without_a_handle_waits_for_what_its_submitter_holds(kind: Kind) {
    let gated = pool!(kind, 1, admit_by(Policy::new(Semaphore::new(1))));
    let free = pool!(kind, 1);
    let (tell, told) = oneshot::channel();
    let (here, below) = (gated.clone(), free.clone());
    let outer = gated.run(async move {
        let waits = async move {
            let inner = here.submit(async { 7 }).await.unwrap();
            tell.send(inner.join().await.unwrap()).unwrap();
        };
        below.execute(waits).await.unwrap();
    });
    outer.await.unwrap();
    assert_eq!(told.await.unwrap(), 7);
    for pool in [gated, free] {
        pool.ends_clean().await;
    }
}

/// With handles that were passed on: a task that waits for its own end, and two that wait for each other's.
async fn tasks_that_wait_for_each_other_are_told(kind: Kind) {
    let pool = pool!(kind, 2);
    let would_deadlock = |ended: Result<bool, TaskError>| matches!(ended, Err(TaskError::WouldDeadlock));
    let refused = Arc::new(AtomicUsize::new(0));
    let waits = || {
        let (give, given) = oneshot::channel::<Handle<bool>>();
        let refused = Arc::clone(&refused);
        let waits = async move {
            let ended = given.await.unwrap().join().await;
            refused.fetch_add(usize::from(would_deadlock(ended)), SeqCst);
            true
        };
        (give, pool.try_submit(waits).unwrap())
    };
    let (give, own) = waits();
    assert!(give.send(own).is_ok());
    assert!(pool.wait_idle().await);
    assert_eq!(refused.load(SeqCst), 1);
    let (first, second) = (waits(), waits());
    assert!(first.0.send(second.1).is_ok());
    assert!(second.0.send(first.1).is_ok());
    assert!(pool.wait_idle().await);
    assert_eq!(refused.load(SeqCst), 2, "one of the two waits can end");
    pool.ends_clean().await;
}

/// Two semaphores are taken in both orders, by tasks that wait for tasks, through a pool without a policy.
async fn of_two_waits_in_opposite_orders_one_is_refused(kind: Kind) {
    let gated = [(); 2].map(|()| pool!(kind, 2, admit_by(Policy::new(Semaphore::new(1)))));
    let (free, both) = (pool!(kind, 2), Arc::new(Barrier::new(2)));
    let outer = [0, 1].map(|at| {
        let (other, both, free) = (gated[1 - at].clone(), Arc::clone(&both), free.clone());
        let task = async move {
            both.wait().await;
            let between = async move { other.submit(async {}).await.unwrap().join().await.is_err() };
            free.run(between).await.unwrap()
        };
        gated[at].try_submit(task).unwrap()
    });
    let [first, second] = outer;
    assert_ne!(first.join().await.unwrap(), second.join().await.unwrap());
    for pool in gated.into_iter().chain([free]) {
        pool.ends_clean().await;
    }
}
