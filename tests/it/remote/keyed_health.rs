//! Keys that fail beside keys that do not: the health of a part is not that of the whole. In virtual time.

use crate::remote::keyed::{Fault, Line, World, bucket};
use crate::remote::world::{now, poll};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::{KeyedLimits, OnUnavailable, RemoteError, RemoteKeyed, RemoteLeg};
use tollgate::{Policy, Reason};

const SECOND: Duration = Duration::from_secs(1);
const FAULTS: [Fault; 2] = [Fault::Cut, Fault::Silent];

impl World {
    /// Three calls a minute for each key.
    fn calls(&self, choice: OnUnavailable) -> RemoteKeyed<Arc<Line>> {
        let calls = [bucket("calls", "3/min burst 3")];
        let builder = self
            .builder(KeyedLimits::new(10_000, "all", calls))
            .on_unavailable(choice);
        builder.in_place(Arc::clone(&self.line)).unwrap()
    }

    /// Has a key asked once a second, for so long.
    async fn keep_asking(&self, keyed: &RemoteKeyed<Arc<Line>>, key: &str, seconds: u32) {
        for _ in 0..seconds {
            let key = keyed.get(key).unwrap();
            let asked = pin!(key.acquire_now(1));
            drop(futures::future::select(asked, pin!(self.clock.sleep(SECOND))).await);
            self.clock.sleep(SECOND).await;
        }
    }
}

/// Given one key whose steps fail, then each ask of another key is decided by the store, however seldom it comes.
#[test]
fn a_key_that_fails_leaves_the_others_alone() {
    for (choice, fault) in [OnUnavailable::Reject, OnUnavailable::Admit]
        .into_iter()
        .flat_map(|choice| FAULTS.map(|fault| (choice, fault)))
    {
        let world = World::new();
        let keyed = world.calls(choice);
        world.line.only(&["t:a"]);
        world.line.set(fault);
        let asks = async {
            let (a, mut granted) = (world.keep_asking(&keyed, "a", 60), 0);
            let others = async {
                world.clock.sleep(5 * SECOND).await;
                for n in 0..12 {
                    let other = keyed.get(&format!("b{}", n % 2)).unwrap();
                    granted += u32::from(other.acquire_now(1).await.is_ok());
                    world.clock.sleep(SECOND).await;
                }
                granted
            };
            futures::join!(a, others).1
        };
        // Three of each key at once, and none of a rate of one in twenty seconds.
        assert_eq!(world.clock.run(asks), 6, "{choice:?} {fault:?}");
    }
}

/// Given keys of which each fails by itself, as those of one server of a cluster, then the ask of another key is decided by the store, even
/// if no other step was answered for long.
#[test]
fn keys_of_a_dead_part_leave_the_others_alone() {
    for fault in FAULTS {
        let world = World::new();
        let keyed = world.calls(OnUnavailable::Reject);
        world.line.only(&["t:a0", "t:a1", "t:a2", "t:a3"]);
        world.line.set(fault);
        let asks = async {
            let dead = futures::future::join_all((0..4).map(|n| {
                let (world, keyed) = (&world, &keyed);
                async move { world.keep_asking(keyed, &format!("a{n}"), 60).await }
            }));
            let others = async {
                for n in 0..10 {
                    world.clock.sleep(11 * SECOND).await;
                    let other = keyed.get(&format!("b{n}")).unwrap();
                    drop(other.acquire_now(1).await.unwrap());
                }
            };
            futures::join!(dead, others);
        };
        world.clock.run(asks);
    }
}

/// Given a store that is away, then the asks of other keys are refused at once, and few of them are sent to find out whether it is back.
#[test]
fn few_asks_go_to_a_store_that_is_away() {
    for fault in FAULTS {
        let world = World::new();
        let keyed = world.calls(OnUnavailable::Reject);
        world.line.set(fault);
        let ask = async |key: &str| {
            keyed
                .get(key)
                .unwrap()
                .acquire_now(1)
                .await
                .map(drop)
                .map_err(|refused| refused.reason())
        };
        let first = world.clock.run(async { futures::join!(ask("a"), ask("b")) });
        assert_eq!(first, (Err(Reason::Unavailable), Err(Reason::Unavailable)));
        world.clock.advance(SECOND);
        assert!(keyed.stats().unavailable);
        let (steps, begun) = (world.line.steps(), world.clock.elapsed());
        for n in 0..1_000 {
            let refused = world.clock.run(ask(&format!("c{n}")));
            assert_eq!(refused, Err(Reason::Unavailable));
        }
        let waited = world.clock.elapsed() - begun;
        assert!(waited <= 3 * SECOND / 2, "{waited:?} for all of them");
        let sent = world.line.steps() - steps;
        assert!(sent <= 20, "{sent} steps");
        world.line.set(Fault::None);
        world.clock.advance(2 * SECOND);
        assert_eq!(world.clock.run(ask("d")), Ok(()));
        assert!(!keyed.stats().unavailable);
    }
}

/// Given a waiter that has a place at the store, then it keeps it while other keys fail.
#[test]
fn a_waiter_at_the_store_stays_while_other_keys_fail() {
    let world = World::new();
    let spec = KeyedLimits::new(100, "all", [RemoteLeg::permits("slots", 1)]);
    let keyed = world.keyed(spec);
    let key = keyed.get("good").unwrap();
    let held = now(key.acquire_now(1)).unwrap();
    let mut waits = pin!(key.acquire(1));
    assert!(poll(waits.as_mut()).is_pending());
    world.line.only(&["t:a", "t:b"]);
    world.line.set(Fault::Cut);
    let (a, b) = (keyed.get("a").unwrap(), keyed.get("b").unwrap());
    let (mut a, mut b) = (pin!(a.acquire(1)), pin!(b.acquire(1)));
    for _ in 0..20 {
        assert!(poll(waits.as_mut()).is_pending());
        _ = poll(a.as_mut()).map(drop);
        _ = poll(b.as_mut()).map(drop);
        world.clock.advance(SECOND / 2);
        if keyed.stats().waiting == 1 {
            break;
        }
    }
    assert!(poll(waits.as_mut()).is_pending());
    drop(held);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

/// Each admission that no store has counted is counted here, alone or in a policy, at once or after a wait.
#[test]
fn each_admission_while_the_store_is_away_is_counted() {
    let world = World::new();
    let keyed = world.calls(OnUnavailable::Admit);
    world.line.set(Fault::Cut);
    let (one, other) = (keyed.get("one").unwrap(), keyed.get("other").unwrap());
    let policy = Policy::builder().on(&world.clock).limit(other).build().unwrap();
    let mut passed = 0;
    world.clock.run(async {
        for _ in 0..50 {
            passed += u64::from(one.acquire_now(1).await.is_ok());
            passed += u64::from(policy.admit(1).await.is_ok());
            world.clock.sleep(SECOND / 10).await;
        }
    });
    assert_eq!((passed, keyed.stats().admitted_unavailable), (100, 100));
    // A look at the usage is no admission.
    assert_eq!(world.clock.run(one.usage()).map(drop), Err(RemoteError::Unavailable));
    assert_eq!(keyed.stats().admitted_unavailable, 100);
}

/// Given more keys that fail than steps may be under way, then another key still has its turn.
#[test]
fn many_keys_that_fail_leave_room_for_another() {
    const DEAD: usize = 400;
    static NAMES: std::sync::LazyLock<Vec<&'static str>> =
        std::sync::LazyLock::new(|| (0..DEAD).map(|n| &*format!("t:a{n}").leak()).collect());
    let world = World::new();
    let keyed = world.calls(OnUnavailable::Reject);
    world.line.only(&NAMES);
    world.line.set(Fault::Cut);
    let dead: Vec<_> = (0..DEAD).map(|n| keyed.get(&format!("a{n}")).unwrap()).collect();
    let mut waits: Vec<_> = dead.iter().map(|key| Box::pin(key.acquire_now(1))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    drop(now(keyed.get("good").unwrap().acquire_now(1)).unwrap());
}
