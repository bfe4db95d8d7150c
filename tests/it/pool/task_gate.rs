//! The policy in front of the runners of a task pool, beyond what `pool::parity` tries.

use crate::outcomes::Outcomes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tollgate::policy::Partitions;
use tollgate::pool::{GroupError, Overflow, TaskError, TaskHandle, TaskPool, TaskPoolBuilder};
use tollgate::sync::Place;
use tollgate::{
    Demand, Description, Limiter, ManualClock, Outcome, Policy, Quota, Refusal, Semaphore, SemaphoreTicket, TokenBucket,
};

const LONG: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// What a program comes to: one that stands still does not, and tokio's clock runs on by itself.
async fn end_of<F: Future>(program: F) -> F::Output {
    timeout(LONG, program).await.expect("it stands still")
}

/// Lets all other tasks of a current-thread runtime run until they wait.
async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

/// One task each second, after a burst.
fn rate(clock: &ManualClock, burst: u64) -> Policy<TokenBucket> {
    Policy::new(TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock))
}

fn one() -> TaskPoolBuilder {
    TaskPool::builder(1)
}

/// Given a task that was evicted from a full queue, and is kept by its new owner, then a joiner does not
/// run it.
#[tokio::test(start_paused = true)]
async fn an_evicted_task_is_run_by_its_owner_alone() {
    let (give, given) = std::sync::mpsc::channel();
    let builder = one().max_queue(1).overflow(Overflow::DropOldest);
    let pool = builder
        .on_discard(move |task| give.send(task).unwrap())
        .build()
        .unwrap();
    let here = pool.clone();
    let outer = pool.try_submit(async move {
        let first = here.try_submit(async { 1 }).unwrap();
        let second = here.try_submit(async { 2 }).unwrap();
        let first = first.join_timeout(Duration::ZERO).await.unwrap_err();
        assert!(given.try_recv().unwrap().run().await, "it has been run");
        (first.await.unwrap(), second.await.unwrap())
    });
    assert_eq!(end_of(outer.unwrap()).await.unwrap(), (1, 2));
    assert!(pool.shutdown(LONG).await.is_clean());
    assert_eq!(pool.stats().discarded, 1);
}

/// Given a child that waits for the policy because its parent awaits it, when it is evicted, and kept by its new owner, then
/// no task waits for the policy.
#[tokio::test(start_paused = true)]
async fn an_awaited_child_that_is_evicted_leaves_the_policy() {
    let clock = ManualClock::new();
    let (policy, (give, given)) = (rate(&clock, 1), std::sync::mpsc::channel());
    let builder = one().max_queue(1).overflow(Overflow::DropOldest);
    let builder = builder.on_discard(move |task| give.send(task).unwrap());
    let pool = builder.on(&clock).admit_by(policy.clone()).build().unwrap();
    let here = pool.clone();
    let outer = pool.try_submit(async move { here.try_submit(async {}).unwrap().await });
    settle().await;
    assert_eq!(policy.waiting(), 1);
    let next = pool.try_submit(async { 2 }).unwrap();
    let child = given.try_recv().unwrap();
    settle().await;
    assert_eq!(policy.waiting(), 0);
    drop(child);
    let ended = end_of(outer.unwrap()).await.unwrap();
    assert!(matches!(ended, Err(TaskError::Discarded)));
    settle().await;
    clock.advance(SECOND);
    assert_eq!(end_of(next).await.unwrap(), 2);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a child that the policy refuses while its parent awaits it, then it leaves its place in the queue at once.
#[tokio::test(start_paused = true)]
async fn a_child_that_is_refused_while_it_is_awaited_leaves_the_queue() {
    let gate = Arc::new(Outcomes::default());
    let builder = one().max_queue(1).admit_by(Policy::new(Arc::clone(&gate)));
    let pool = builder.build().unwrap();
    let here = pool.clone();
    let outer = pool.try_submit(async move {
        for _ in 0..3 {
            gate.shut(true);
            let child = here.try_submit(async {}).unwrap();
            assert!(matches!(child.await, Err(TaskError::Refused(_))));
            assert_eq!(here.stats().queued, 0);
            gate.shut(false);
        }
    });
    end_of(outer.unwrap()).await.unwrap();
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given three pools that share their one slot and the one permit of their policy, where the slot comes to one of them and the
/// permit to another, then they do not pass both on and on: every task ends.
#[tokio::test]
async fn slot_and_admission_come_together_in_the_end() {
    let (slots, permits) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
    let policy = Policy::new(Arc::clone(&permits));
    let pools = [(); 3].map(|()| {
        let builder = one().slots(Arc::clone(&slots)).admit_by(policy.clone());
        builder.build().unwrap()
    });
    let permit = permits.acquire().await.unwrap();
    let mut all: Vec<_> = pools[..2]
        .iter()
        .map(|pool| pool.try_submit(async {}).unwrap())
        .collect();
    settle().await;
    let slot = slots.try_acquire().unwrap();
    all.push(pools[2].try_submit(async {}).unwrap());
    settle().await;
    assert_eq!((slots.waiting(), policy.waiting()), (1, 2));
    drop(permit);
    drop(slot);
    settle().await;
    let ended: Vec<_> = all.iter().map(TaskHandle::is_finished).collect();
    assert_eq!(ended, [true; 3]);
    assert_eq!((slots.in_use(), permits.in_use()), (0, 0));
}

/// Given a pool with two idle runners behind a closed gate, when it is closed with a task queued, then it ends once that has run: the
/// other runner does not stay.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_closed_with_a_task_at_the_gate_ends_with_it() {
    let in_flight = Arc::new(Semaphore::new(2));
    let pool = TaskPool::builder(2).admit_by(Policy::new(Arc::clone(&in_flight)));
    let pool = pool.build().unwrap();
    let both = [(); 2].map(|()| pool.try_submit(yield_now()).unwrap());
    for task in both {
        end_of(task).await.unwrap();
    }
    settle().await;
    assert_eq!(pool.stats().idle, 2);
    let permits = in_flight.try_acquire_many(2).unwrap();
    let last = pool.try_submit(async { 7 }).unwrap();
    settle().await;
    pool.close();
    settle().await;
    drop(permits);
    assert_eq!(end_of(last).await.unwrap(), 7);
    settle().await;
    assert_eq!(pool.stats().threads, 0);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a policy that refuses, then as many runners as may run refuse all that is queued, and let others have their turns.
#[tokio::test(start_paused = true)]
async fn no_runner_is_started_for_a_task_that_is_refused() {
    let open = Arc::new(Semaphore::new(1));
    let clock = ManualClock::new();
    let policy = Policy::new(Arc::clone(&open));
    let pool = one().max_queue(1_000).on(&clock).admit_by(policy).build().unwrap();
    open.close();
    let refused: Vec<_> = (0..500).map(|_| pool.try_submit(async {}).unwrap()).collect();
    let late = pool.deadline(Duration::ZERO);
    let late: Vec<_> = (0..500).map(|_| late.try_submit(async {}).unwrap()).collect();
    clock.advance(SECOND);
    let mut turns = 0;
    while refused.iter().chain(&late).any(|task| !task.is_finished()) {
        turns += 1;
        yield_now().await;
    }
    assert!(turns > 2, "{turns} turns for others");
    let stats = pool.stats();
    assert_eq!((stats.refused, stats.expired, stats.peak_threads), (500, 500, 1));
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a task on a lent slot that waits for its token, when that comes while its waiter runs, then the token is not lost, and the task
/// starts once the waiter waits again.
#[tokio::test(start_paused = true)]
async fn a_token_that_comes_while_the_slot_is_not_lent_is_given_back() {
    let clock = ManualClock::new();
    let policy = rate(&clock, 1);
    let pool = one().on(&clock).admit_by(policy.clone()).build().unwrap();
    let (here, time) = (pool.clone(), clock.clone());
    let (go_on, waits) = oneshot::channel::<()>();
    let outer = pool.try_submit(async move {
        let mut inner = here.submit(async move { time.elapsed() }).await.unwrap();
        assert!(futures::poll!(&mut inner).is_pending());
        let mut waits = std::pin::pin!(waits);
        // It is woken again and again, and goes on each time, until it is told to.
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            waits.as_mut().poll(cx)
        })
        .await
        .unwrap();
        inner.await.unwrap()
    });
    settle().await;
    clock.advance(SECOND);
    settle().await;
    go_on.send(()).unwrap();
    assert_eq!(end_of(outer.unwrap()).await.unwrap(), SECOND);
    assert!(pool.shutdown(LONG).await.is_clean());
}

/// Given a policy of parts of one limit, then a task that holds a unit of it, of whatever class, does not wait for one that needs one.
#[tokio::test(start_paused = true)]
async fn classes_of_one_limit_are_one_limit_to_those_that_wait() {
    let parts = Partitions::guaranteed(2, &[0.5, 0.5]).unwrap();
    let [first, second] = [0, 1].map(|class| {
        let policy = Policy::new(Arc::clone(parts.class(class)));
        one().admit_by(policy).build().unwrap()
    });
    for inner in [first.clone(), second] {
        let outer = first.try_submit(async move {
            let inner = inner.submit(async {}).await.unwrap();
            inner.await
        });
        let ended = end_of(outer.unwrap()).await.unwrap();
        assert!(matches!(ended, Err(TaskError::WouldDeadlock)));
    }
}

/// Given a group in a task that would wait for its own permit, when one of the group runs already, then that is dropped with the rest.
#[tokio::test(start_paused = true)]
async fn a_group_that_would_deadlock_leaves_none_running() {
    let pool = TaskPool::builder(3)
        .admit_by(Policy::new(Semaphore::new(3)))
        .build()
        .unwrap();
    let here = pool.clone();
    let outer = pool.try_submit(async move {
        let mut group = here.group::<(), ()>();
        group.submit(std::future::pending()).await.unwrap();
        settle().await;
        group.join().await.unwrap_err()
    });
    let why = end_of(outer.unwrap()).await.unwrap();
    assert!(matches!(why, GroupError::Task(TaskError::WouldDeadlock)));
    assert!(end_of(pool.wait_idle()).await);
}

/// Takes a permit once it is bounded, and nothing before.
struct Bounded {
    is_bounded: AtomicBool,
    permits: Semaphore,
}

impl Bounded {
    fn permits(&self) -> Option<&Semaphore> {
        self.is_bounded.load(Ordering::SeqCst).then_some(&self.permits)
    }
}

impl Limiter for Bounded {
    type Ticket = Option<SemaphoreTicket>;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        self.permits().map(|permits| permits.try_reserve(demand)).transpose()
    }
    fn cancel(&self, ticket: Self::Ticket) {
        ticket.into_iter().for_each(|ticket| self.permits.cancel(ticket));
    }
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        ticket
            .into_iter()
            .for_each(|ticket| self.permits.finish(ticket, outcome));
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.permits().map_or(Ok(()), |permits| permits.look(demand))
    }
    fn leave(&self, place: &Place) {
        self.permits.leave(place);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.permits().into_iter().for_each(|permits| permits.describe(visit));
    }
}

/// Given a policy that is given a bound while the pool runs, then waits are judged by the policy as it is.
#[tokio::test(start_paused = true)]
async fn a_wait_is_judged_by_the_policy_as_it_is() {
    let limiter = Arc::new(Bounded {
        is_bounded: AtomicBool::new(false),
        permits: Semaphore::new(1),
    });
    let pool = one().admit_by(Policy::new(Arc::clone(&limiter))).build().unwrap();
    for bounded in [false, true] {
        limiter.is_bounded.store(bounded, Ordering::SeqCst);
        let here = pool.clone();
        let outer = pool.try_submit(async move { here.submit(async { 7 }).await.unwrap().await });
        match end_of(outer.unwrap()).await.unwrap() {
            Ok(7) => assert!(!bounded),
            Err(TaskError::WouldDeadlock) => assert!(bounded),
            other => panic!("{other:?}"),
        }
        assert!(end_of(pool.wait_idle()).await);
    }
}
