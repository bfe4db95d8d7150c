//! Tests of slots that go to their next waiter between two items, for fan-outs with a large buffer that share their slots or
//! lose some; and of the outcomes that the admitting limiter receives.

use crate::outcomes::Outcomes;
use futures::stream::{StreamExt, TryStreamExt};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tollgate::fan_out::fan_out;
use tollgate::{Policy, Semaphore};

async fn settle() {
    for _ in 0..200 {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_slot_too_many_is_given_up_between_two_items() {
    let slots = Arc::new(Semaphore::new(4));
    let gates = Arc::new(Mutex::new(Vec::new()));
    let opened = Arc::clone(&gates);
    let results = fan_out(0..12, &slots).buffer(100).map(move |_| {
        let gates = Arc::clone(&opened);
        async move {
            let (open, gate) = oneshot::channel::<()>();
            gates.lock().unwrap().push(open);
            gate.await.unwrap();
        }
    });
    let results = tokio::spawn(results.count());
    let open = || gates.lock().unwrap().drain(..).for_each(|gate| gate.send(()).unwrap());
    settle().await;
    assert_eq!(slots.in_use(), 4);
    slots.set_limit(1);
    open();
    for _ in 4..12 {
        settle().await;
        assert_eq!((slots.in_use(), gates.lock().unwrap().len()), (1, 1));
        open();
    }
    assert_eq!(results.await.unwrap(), 12);
}

#[tokio::test]
async fn one_that_never_ends_lets_another_get_on_that_shares_its_slots() {
    let slots = Arc::new(Semaphore::new(1));
    let run = |_| yield_now();
    let mut endless = fan_out(0_u64.., &slots).buffer(100).map(run);
    let few = fan_out(0..20_u64, &slots).buffer(100).map(run);
    tokio::select! {
        count = few.count() => assert_eq!(count, 20),
        () = async { while endless.next().await.is_some() {} } => unreachable!("it never ends"),
    }
}

/// Given a limiter that admits the items, then it receives the outcome of each: an error and a panic are failures.
#[tokio::test]
async fn the_admitting_limiter_receives_the_outcomes_of_the_items() {
    let learns = Arc::new(Outcomes::default());
    let told = || learns.told();
    let policy = || Policy::new(Arc::clone(&learns));
    assert_eq!(fan_out(0..5, 1).admit_by(policy()).map(|_| async {}).count().await, 5);
    assert_eq!(told(), (5, 0));
    let panics = fan_out(0..3, 1).admit_by(policy()).map(|n| async move {
        if n == 1 {
            resume_unwind(Box::new("on purpose"));
        }
    });
    assert_eq!(panics.count().await, 3);
    assert_eq!(told(), (8, 1));
    let fails = fan_out(0..3, 1)
        .admit_by(policy())
        .try_map(|n| async move { if n == 1 { Err(n) } else { Ok(n) } });
    assert!(fails.try_collect::<Vec<_>>().await.is_err());
    assert_eq!(told(), (10, 2));
}
