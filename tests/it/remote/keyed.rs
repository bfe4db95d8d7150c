//! A policy of rates and windows for each of many keys, over the store in memory: one step of the store an admission.

use crate::remote::world::poll;
use proptest::prelude::*;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tollgate::remote::model::KeyLegs;
use tollgate::remote::{
    Backend, Correction, Key, KeyLeg, KeyedLimits, LegUnits, Memory, OnUnavailable, Remote, RemoteError,
    RemoteKeyUsage, RemoteKeyed, RemoteKeyedBuilder, RemoteLeg, Rule, Session, Step, StepReply, StoreError, SyncReply,
    SyncRequest,
};
use tollgate::status::State;
use tollgate::{Ask, Cost, LimiterExt, ManualClock, Policy, Reason, Semaphore};

const TOKENS: Cost = Cost::new("tokens");
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// Nothing arrives, and that is known at once.
    Cut,
    /// Nothing arrives, in either direction.
    Silent,
    /// The step arrives, and its reply is lost.
    Unheard,
    /// The reply says nothing of the admissions.
    Short,
    /// The store refuses for good.
    Refused,
}

/// A store in memory behind a line with a fault, which keeps the steps that were sent.
pub(crate) struct Line {
    pub(crate) store: Arc<Memory>,
    fault: Mutex<Fault>,
    /// The keys that have it, unless all do.
    only: Mutex<Vec<&'static str>>,
    sent: Mutex<Vec<(String, Step)>>,
}

impl Line {
    fn to(store: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            store,
            fault: Mutex::new(Fault::None),
            only: Mutex::default(),
            sent: Mutex::default(),
        })
    }

    /// Another line to the same store.
    pub(crate) fn another(&self) -> Arc<Self> {
        Self::to(Arc::clone(&self.store))
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// From now on, these keys alone have a fault.
    pub(crate) fn only(&self, keys: &[&'static str]) {
        *self.only.lock().unwrap() = keys.to_vec();
    }

    /// The number of steps so far.
    pub(crate) fn steps(&self) -> usize {
        self.sent.lock().unwrap().len()
    }
}

impl Backend for Line {
    async fn sync(&self, _: &Key, _: &Rule, _: &SyncRequest) -> Result<SyncReply, StoreError> {
        unreachable!("keys are asked for by steps")
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        self.store.notified(key, session)
    }

    fn leave(&self, key: &Key, session: Session) {
        self.store.leave(key, session);
    }

    fn supports_steps(&self) -> Result<(), tollgate::remote::RemoteError> {
        Ok(())
    }

    async fn step(&self, key: &Key, legs: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
        self.sent.lock().unwrap().push((key.to_string(), step.clone()));
        let only = self.only.lock().unwrap().clone();
        let spared = !only.is_empty() && !only.contains(&key.as_str());
        let fault = if spared {
            Fault::None
        } else {
            *self.fault.lock().unwrap()
        };
        let cut = Err(StoreError::Unreachable { why: "cut".into() });
        match fault {
            Fault::Cut => return cut,
            Fault::Silent => pending().await,
            Fault::Refused => {
                let why = "a value of another type".into();
                return Err(StoreError::Refused { why });
            }
            Fault::None | Fault::Unheard | Fault::Short => {}
        }
        let reply = self.store.step(key, legs, step).await;
        match fault {
            Fault::Unheard => cut,
            Fault::Short => reply.map(|reply| StepReply {
                takes: Vec::new(),
                ..reply
            }),
            _ => reply,
        }
    }
}

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) line: Arc<Line>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000));
        let line = Line::to(Arc::new(Memory::new(&clock)));
        Self { clock, line }
    }

    pub(crate) fn builder(&self, limits: KeyedLimits) -> RemoteKeyedBuilder {
        Remote::keyed(Key::new("t").unwrap(), limits).on(&self.clock)
    }

    pub(crate) fn keyed(&self, limits: KeyedLimits) -> RemoteKeyed<Arc<Line>> {
        self.builder(limits).in_place(Arc::clone(&self.line)).unwrap()
    }
}

pub(crate) fn bucket(name: &str, quota: &str) -> RemoteLeg {
    RemoteLeg::rate(name, quota.parse().unwrap())
}

/// Two requests a second and a hundred tokens.
fn spec() -> KeyedLimits {
    spec_of(100)
}

fn spec_of(max_keys: usize) -> KeyedLimits {
    let legs = [bucket("requests", "2/s burst 2"), bucket("tokens", "100/s").per(TOKENS)];
    KeyedLimits::new(max_keys, "free", legs)
}

fn ask(tokens: u64) -> Ask {
    Ask::one().cost(TOKENS, tokens)
}

/// Given two processes, then they share each key's legs, all or nothing, and a refusal names the leg that admits last and when.
#[test]
fn processes_share_all_legs_of_a_key_or_none() {
    let world = World::new();
    let [one, other] = [0, 1].map(|_| world.keyed(spec()));
    world.clock.run(async {
        let (a, b) = (one.get("a").unwrap(), other.get("a").unwrap());
        drop(a.acquire_now(ask(60)).await.unwrap());
        let refused = b.acquire_now(ask(60)).await.unwrap_err();
        assert_eq!(refused.leg(), "tokens");
        assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
        // The refusal took no request: there is one left.
        drop(b.acquire_now(ask(40)).await.unwrap());
        let refused = a.acquire_now(ask(1)).await.unwrap_err();
        assert_eq!((refused.leg(), refused.retry_after()), ("requests", Some(SECOND / 2)));
        drop(other.get("b").unwrap().acquire_now(ask(100)).await.unwrap());
    });
    assert_eq!(world.line.steps(), 5);
    // All has come back after a second, and then the store forgets.
    world.clock.advance(60 * SECOND);
    assert_eq!(world.line.store.keys(), 0);
}

/// Given a refusal, then as much of that leg is not asked for again before its instant, and asked for once at it.
#[test]
fn a_refusal_holds_until_its_instant_without_the_store() {
    let world = World::new();
    let keyed = world.keyed(spec());
    let key = keyed.get("a").unwrap();
    world.clock.run(async {
        drop(key.acquire_now(ask(100)).await.unwrap());
        for _ in 0..3 {
            let refused = key.acquire_now(ask(50)).await.unwrap_err();
            assert_eq!((refused.leg(), refused.retry_after()), ("tokens", Some(SECOND / 2)));
        }
        assert_eq!(world.line.steps(), 2);
        assert!(key.try_admit(ask(50)).is_err());
        // Less of it may be there.
        assert!(key.acquire_now(ask(10)).await.is_err());
        assert_eq!(world.line.steps(), 3);
        let before = world.clock.now();
        drop(key.acquire(ask(10)).await.unwrap());
        assert_eq!(world.clock.between(before, world.clock.now()), SECOND / 10);
    });
    assert_eq!(world.line.steps(), 4);
}

/// Given permits that are settled, up and down, and one that is cancelled, then the store counts what was used.
#[test]
fn unused_units_come_back() {
    let world = World::new();
    let hour = [
        bucket("tokens", "100/h").per(TOKENS),
        RemoteLeg::window("window", 120, 3_600 * SECOND).per(TOKENS),
    ];
    let keyed = world.keyed(KeyedLimits::new(10, "all", hour));
    let key = keyed.get("a").unwrap();
    world.clock.run(async {
        let mut permit = key.acquire_now(ask(90)).await.unwrap();
        assert_eq!(permit.settle(TOKENS, 10).unwrap(), 2);
        drop(key.acquire_now(ask(90)).await.unwrap());
        assert!(key.acquire_now(ask(1)).await.is_err());
        // More than it asked for becomes debt: of the bucket for half an hour, of the window for an hour.
        assert_eq!(permit.settle(TOKENS, 60).unwrap(), 2);
    });
    world.clock.advance(1_800 * SECOND);
    world.clock.run(async {
        let refused = key.acquire_now(ask(1)).await.unwrap_err();
        assert_eq!(refused.leg(), "window");
    });
    world.clock.advance(3_600 * SECOND);
    // A later leg refuses: what the key was granted goes back.
    let gate = Arc::new(Semaphore::new(1));
    let policy = Policy::new((key.clone(), Arc::clone(&gate)));
    let held = gate.try_acquire().unwrap();
    let mut wait = Box::pin(policy.admit(ask(100)));
    assert!(poll(wait.as_mut()).is_pending());
    drop(wait);
    drop(held);
    world
        .clock
        .run(async { key.acquire_now(ask(100)).await.map(drop) })
        .unwrap();
}

/// Given waiters in a policy around a key and a semaphore, then they are admitted in order, at the instants that the store names.
#[test]
fn waiters_of_a_policy_are_served_in_order() {
    let world = World::new();
    let keyed = world.keyed(spec());
    let policy = Policy::new((Semaphore::new(10), keyed.get("a").unwrap()));
    let start = world.clock.now();
    let served = Mutex::new(Vec::new());
    let call = async |number: u64| {
        let _permit = policy.admit(ask(number)).await.unwrap();
        served
            .lock()
            .unwrap()
            .push((number, world.clock.between(start, world.clock.now())));
    };
    world
        .clock
        .run(async { futures::join!(call(1), call(2), call(3), call(4)) });
    let at = |millis| Duration::from_millis(millis);
    assert_eq!(
        *served.lock().unwrap(),
        [(1, at(0)), (2, at(0)), (3, at(500)), (4, at(1_000))]
    );
    // One refusal tells the instant, at which it is asked again.
    assert_eq!(world.line.steps(), 6);
}

/// The available units of the rates and windows, and the permits in use.
fn numbers(usage: &RemoteKeyUsage) -> Vec<u64> {
    let numbers = usage.legs().map(|status| match status.state {
        State::Rate { available, .. } => available,
        State::Permits { in_use, .. } => in_use,
        other => panic!("{other:?}"),
    });
    numbers.collect()
}

/// Given a key of three legs, then an operator sees what is left of each, gives back some units of one, or all, and never more than were
/// taken. A process that remembers a refusal asks again within a time to live.
#[test]
fn an_operator_sees_what_is_left_and_gives_units_back() {
    let world = World::new();
    let legs = [
        bucket("requests", "60/h"),
        RemoteLeg::window("tokens", 100, 3_600 * SECOND).per(TOKENS),
        RemoteLeg::permits("in flight", 3),
    ];
    let spec = KeyedLimits::new(10, "all", legs);
    let [one, other] = [0, 1].map(|_| world.keyed(spec.clone()).get("a").unwrap());
    world.clock.run(async {
        assert_eq!(numbers(&other.usage().await.unwrap()), [60, 100, 0]);
        let held = one.acquire_now(ask(70)).await.unwrap();
        let refused = other.acquire_now(ask(31)).await.unwrap_err();
        assert_eq!(refused.leg(), "tokens");
        let usage = other.usage().await.unwrap();
        assert_eq!(numbers(&usage), [59, 30, 1]);
        let next: Vec<_> = usage
            .legs()
            .map(|status| (status.leg, status.cost, status.kind))
            .collect();
        let kinds = ["remote rate", "remote window", "remote semaphore"];
        assert_eq!(
            next,
            [
                ("requests", None, kinds[0]),
                ("tokens", Some(TOKENS), kinds[1]),
                ("in flight", None, kinds[2])
            ]
        );

        let steps = world.line.steps();
        assert!(other.acquire_now(ask(31)).await.is_err());
        assert_eq!(world.line.steps(), steps, "it remembers");
        assert_eq!(numbers(&one.grant("tokens", 5).await.unwrap()), [59, 35, 1]);
        assert!(other.acquire_now(ask(31)).await.is_err(), "it remembers still");
        world.clock.advance(10 * SECOND);
        let second = other.acquire_now(ask(31)).await.unwrap();
        // What this process has heard itself ends with a grant.
        assert!(other.acquire_now(ask(90)).await.is_err());
        assert_eq!(numbers(&other.grant("tokens", 90).await.unwrap()), [58, 94, 2]);
        drop(other.acquire_now(ask(90)).await.unwrap());
        assert_eq!(numbers(&one.reset().await.unwrap()), [60, 100, 2]);
        assert_eq!(
            numbers(&one.reset().await.unwrap()),
            [60, 100, 2],
            "no more than there are"
        );
        drop((held, second));
        assert_eq!(numbers(&one.usage().await.unwrap()), [60, 100, 0]);
        for leg in ["in flight", "money"] {
            let error = one.grant(leg, 1).await.unwrap_err();
            let text = format!("the leg `{leg}` was given, and `requests`, `tokens` is allowed");
            assert_eq!(error.to_string(), text);
        }
    });
}

/// Given a grant whose reply is lost, then it is carried out once. Given a store that is away, then an operator is told.
#[test]
fn a_grant_whose_reply_is_lost_is_carried_out_once() {
    let world = World::new();
    let slow = [bucket("tokens", "100/h").per(TOKENS)];
    let keyed = world
        .builder(KeyedLimits::new(10, "all", slow))
        .on_unavailable(OnUnavailable::Admit);
    let keyed = keyed.in_place(Arc::clone(&world.line)).unwrap();
    let key = keyed.get("a").unwrap();
    world.clock.run(async { drop(key.acquire_now(ask(90)).await.unwrap()) });
    world.line.set(Fault::Unheard);
    let mut grant = Box::pin(key.grant("tokens", 20));
    assert!(poll(grant.as_mut()).is_pending());
    world.line.set(Fault::None);
    world.clock.advance(SECOND);
    assert_eq!(numbers(&world.clock.run(grant).unwrap()), [30]);
    world.line.set(Fault::Cut);
    let away = world.clock.run(key.usage());
    assert_eq!(away.unwrap_err(), RemoteError::Unavailable);
    drop(keyed);
}

/// Given asks for a key while a step is under way, then they travel together in the next one, in order.
#[test]
fn asks_that_come_meanwhile_travel_together() {
    let world = World::new();
    let keyed = world.keyed(spec());
    let key = keyed.get("a").unwrap();
    world.line.set(Fault::Silent);
    let mut waits: Vec<_> = (0..4).map(|tokens| Box::pin(key.acquire_now(ask(tokens)))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    assert_eq!(world.line.steps(), 1);
    world.line.set(Fault::None);
    let results = world.clock.run(futures::future::join_all(waits));
    let admitted: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(admitted, [true, true, false, false]);
    let sent = world.line.sent.lock().unwrap();
    assert_eq!(sent[0].1, sent[1].1, "repeated after the time-out");
    let takes: Vec<_> = sent[2].1.takes.iter().map(|units| units[1]).collect();
    assert_eq!((sent.len(), takes), (3, vec![1, 2, 3]));
}

/// Given replies that are lost, then the repeated step takes nothing twice, and gives nothing back twice.
#[test]
fn a_step_whose_reply_is_lost_is_carried_out_once() {
    let world = World::new();
    let slow = [bucket("tokens", "100/h").per(TOKENS)];
    let keyed = world.keyed(KeyedLimits::new(10, "all", slow));
    let key = keyed.get("a").unwrap();
    world.line.set(Fault::Unheard);
    let mut wait = Box::pin(key.acquire_now(ask(70)));
    assert!(poll(wait.as_mut()).is_pending());
    world.line.set(Fault::None);
    let mut permit = world.clock.run(wait).unwrap();
    world.line.set(Fault::Unheard);
    permit.settle(TOKENS, 40).unwrap();
    world.line.set(Fault::None);
    world.clock.advance(SECOND);
    world.clock.run(async {
        assert!(key.acquire_now(ask(61)).await.is_err());
        drop(key.acquire_now(ask(60)).await.unwrap());
    });
}

/// Given waits that are dropped while they are queued, under way, or granted, then nothing of them stays taken.
#[test]
fn a_wait_that_is_dropped_leaves_nothing_taken() {
    let world = World::new();
    let slow = [bucket("tokens", "100/h").per(TOKENS)];
    let keyed = world.keyed(KeyedLimits::new(10, "all", slow));
    let key = keyed.get("a").unwrap();
    for fault in [Fault::Silent, Fault::Unheard] {
        world.line.set(fault);
        let mut waits = [30, 30].map(|tokens| Box::pin(key.acquire_now(ask(tokens))));
        assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
        drop(waits);
        world.line.set(Fault::None);
        // It is repeated.
        world.clock.advance(2 * SECOND);
        world.clock.run(async {
            let all = key.acquire_now(ask(100)).await.unwrap();
            let mut all = all;
            all.settle(TOKENS, 0).unwrap();
        });
    }
}

/// Given a store that is away, then asks wait until it counts as unavailable, and are refused or admitted uncounted from then on, until it
/// is back.
#[test]
fn a_store_that_is_away_refuses_or_admits_as_told() {
    for (on_unavailable, admits) in [(OnUnavailable::Reject, false), (OnUnavailable::Admit, true)] {
        for fault in [Fault::Cut, Fault::Silent] {
            let world = World::new();
            let builder = world.builder(spec()).on_unavailable(on_unavailable);
            let keyed = builder
                .unavailable_after(2 * SECOND)
                .in_place(Arc::clone(&world.line))
                .unwrap();
            let key = keyed.get("a").unwrap();
            let policy = Policy::new(keyed.get("b").unwrap());
            world.line.set(fault);
            let start = world.clock.now();
            let (direct, queued) = world
                .clock
                .run(async { futures::join!(key.acquire_now(ask(100)), policy.admit(ask(100))) });
            let waited = world.clock.between(start, world.clock.now());
            assert!(waited >= 2 * SECOND && waited <= 5 * SECOND, "{waited:?}");
            assert_eq!((direct.is_ok(), queued.is_ok()), (admits, admits));
            if let Err(refusal) = direct {
                assert_eq!(refusal.reason(), Reason::Unavailable);
            }
            let steps = world.line.steps();
            assert_eq!(world.clock.run(key.acquire_now(ask(100))).is_ok(), admits, "at once");
            assert_eq!(world.line.steps(), steps);
            world.line.set(Fault::None);
            world.clock.advance(2 * SECOND);
            // What was admitted uncounted is not counted, nor what was refused.
            drop(world.clock.run(key.acquire_now(ask(100))).unwrap());
            assert!(world.clock.run(key.acquire_now(ask(100))).is_err());
        }
    }
}

/// Given an outage that lasts longer than any step is repeated, then the next ask after it finds the store again, alone or in a policy.
#[test]
fn a_store_that_was_away_for_long_is_found_again() {
    for on_unavailable in [OnUnavailable::Reject, OnUnavailable::Admit] {
        let world = World::new();
        let builder = world.builder(spec()).on_unavailable(on_unavailable);
        let keyed = builder.in_place(Arc::clone(&world.line)).unwrap();
        let (key, policy) = (keyed.get("a").unwrap(), Policy::new(keyed.get("b").unwrap()));
        world.line.set(Fault::Cut);
        drop(world.clock.run(key.acquire_now(ask(100))));
        world.clock.advance(3_600 * SECOND);
        world.line.set(Fault::None);
        drop(world.clock.run(policy.admit(ask(100))).unwrap());
        drop(world.clock.run(key.acquire_now(ask(100))).unwrap());
        assert!(world.clock.run(key.acquire_now(ask(100))).is_err(), "it was counted");
    }
}

/// Given one key whose steps fail while those of another succeed, then its waits end, and a step of it that may have been forgotten is
/// not repeated: nothing is given back twice.
#[test]
fn a_key_fails_by_itself() {
    let world = World::new();
    let slow = [bucket("tokens", "100/h").per(TOKENS)];
    let keyed = world.keyed(KeyedLimits::new(10, "all", slow));
    let (a, b) = (keyed.get("a").unwrap(), keyed.get("b").unwrap());
    world.line.only(&["t:a"]);
    let mut permit = world.clock.run(a.acquire_now(ask(100))).unwrap();
    world.line.set(Fault::Unheard);
    permit.settle(TOKENS, 40).unwrap();
    let start = world.clock.now();
    let (refused, ()) = world.clock.run(async {
        futures::join!(a.acquire_now(ask(1)), async {
            for _ in 0..60 {
                drop(b.acquire_now(ask(1)).await.unwrap());
                world.clock.sleep(SECOND).await;
            }
        })
    });
    assert_eq!(refused.unwrap_err().reason(), Reason::Unavailable);
    assert!(world.clock.between(start, world.clock.now()) < 61 * SECOND);
    world.line.set(Fault::None);
    world.clock.advance(SECOND);
    assert!(world.clock.run(a.acquire_now(ask(63))).is_err());
    drop(world.clock.run(a.acquire_now(ask(60))).unwrap());
}

/// Given a refusal that is remembered, when units of this process go back, then the key is asked again, and waiters are admitted at once.
#[test]
fn units_that_go_back_end_a_refusal() {
    let clock = ManualClock::new();
    let slow = [bucket("tokens", "100/h").per(TOKENS)];
    let builder = Remote::keyed(Key::new("t").unwrap(), KeyedLimits::new(10, "all", slow));
    let keyed = builder.on(&clock).in_place(Memory::new(&clock)).unwrap();
    let key = keyed.get("a").unwrap();
    let mut permit = clock.run(key.acquire_now(ask(100))).unwrap();
    assert!(clock.run(key.acquire_now(ask(50))).is_err());
    permit.settle(TOKENS, 30).unwrap();
    drop(clock.run(key.acquire_now(ask(50))).unwrap());
    let policy = Policy::new(key.clone());
    let mut wait = Box::pin(policy.admit(ask(50)));
    assert!(poll(wait.as_mut()).is_pending());
    permit.settle(TOKENS, 0).unwrap();
    assert!(poll(wait.as_mut()).is_ready());
    assert_eq!(clock.between(tollgate::Instant::ZERO, clock.now()), Duration::ZERO);
}

/// Given a refusal of some units, then more of them are refused without the store until they would be there, by a rate.
#[test]
fn more_of_a_rate_is_refused_for_longer() {
    let world = World::new();
    let key = world.keyed(spec()).get("a").unwrap();
    world.clock.run(async {
        drop(key.acquire_now(ask(100)).await.unwrap());
        assert!(key.acquire_now(ask(10)).await.is_err());
        let steps = world.line.steps();
        let refused = key.acquire_now(ask(100)).await.unwrap_err();
        assert_eq!((refused.leg(), refused.retry_after()), ("tokens", Some(SECOND)));
        assert_eq!(world.line.steps(), steps);
    });
}

/// Given a store whose replies make no sense, then waits end as if it were away.
#[test]
fn a_reply_that_makes_no_sense_is_none() {
    let world = World::new();
    let key = world.keyed(spec()).get("a").unwrap();
    world.line.set(Fault::Short);
    let refused = world.clock.run(key.acquire_now(ask(1))).unwrap_err();
    assert_eq!(refused.reason(), Reason::Unavailable);
}

/// Given a late copy of a step, then it changes nothing; and corrections of admissions by an older rule neither put that in force again
/// nor give back what has come back by the new one.
#[test]
fn late_steps_and_old_rules_give_nothing() {
    let legs = |quota: &str| {
        [KeyLeg::new(
            "rate",
            Rule::Rate {
                quota: quota.parse().unwrap(),
            },
        )]
    };
    let units = |n: u64| -> LegUnits { KeyLeg::units([n]) };
    let take = |seq, n| Step {
        takes: vec![units(n)],
        ..Step::new(7, seq, 60 * SECOND)
    };
    let correct = |seq, at, charged, actual| Step {
        corrections: vec![Correction {
            at,
            charged: units(charged),
            actual: units(actual),
        }],
        ..Step::new(7, seq, 60 * SECOND)
    };
    let (mut key, slow) = (KeyLegs::default(), legs("1/h burst 10"));
    assert_eq!(key.step(5, &slow, &take(1, 10)).takes, [Ok(())]);
    key.step(5, &slow, &correct(2, 5, 10, 5));
    assert_eq!(key.step(5, &slow, &take(3, 5)).takes, [Ok(())]);
    key.step(5, &slow, &correct(2, 5, 10, 5));
    assert!(key.step(5, &slow, &take(4, 5)).takes[0].is_err());

    let (mut key, slow, fast) = (KeyLegs::default(), legs("1/h burst 100"), legs("100/s burst 100"));
    let second = 1_000_000;
    assert_eq!(key.step(0, &slow, &take(1, 100)).takes, [Ok(())]);
    key.step(0, &fast, &take(2, 0));
    assert_eq!(key.step(2 * second, &fast, &take(3, 100)).takes, [Ok(())]);
    key.step(2 * second, &slow, &correct(4, 0, 100, 0));
    assert!(key.step(2 * second, &fast, &take(5, 100)).takes[0].is_err());
    // By the rule that is in force.
    assert_eq!(key.step(3 * second, &fast, &take(6, 100)).takes, [Ok(())]);

    let window = [KeyLeg::new(
        "rate",
        Rule::Window {
            limit: 10,
            length: 60 * SECOND,
        },
    )];
    assert_eq!(key.step(4 * second, &window, &take(7, 10)).takes, [Ok(())]);
    key.step(4 * second, &fast, &correct(8, 4 * second, 10, 0));
    assert!(key.step(4 * second, &window, &take(9, 1)).takes[0].is_err());
}

/// Given more keys than may be known, then keys with nothing under way make room, and the others refuse a new one.
#[test]
fn keys_in_memory_are_bounded() {
    let world = World::new();
    let keyed = world.keyed(spec_of(3));
    for number in 0..1_000 {
        let key = keyed.get(&number.to_string()).unwrap();
        drop(world.clock.run(key.acquire_now(ask(1))).unwrap());
    }
    assert_eq!(keyed.stats().keys, 0);
    // A refusal that is remembered makes room.
    for number in 0..10 {
        let key = keyed.get(&number.to_string()).unwrap();
        let refused = world.clock.run(async {
            let _ = key.acquire_now(ask(90)).await;
            key.acquire_now(ask(90))
                .await
                .map(drop)
                .map_err(|refusal| refusal.reason())
        });
        assert_eq!(refused, Err(Reason::RateExceeded), "key {number}");
        assert!(keyed.stats().keys <= 3);
    }
    world.line.set(Fault::Silent);
    let busy: Vec<_> = (20..23).map(|number| keyed.get(&number.to_string()).unwrap()).collect();
    let mut waits: Vec<_> = busy.iter().map(|key| Box::pin(key.acquire_now(ask(1)))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    let new = keyed.get("new").unwrap();
    let Poll::Ready(Err(refused)) = poll(pin!(new.acquire_now(ask(1)))) else {
        panic!("there is no room")
    };
    assert_eq!(refused.reason(), Reason::QueueFull);
    let policy = Policy::new(new.clone());
    let Poll::Ready(Err(refused)) = poll(pin!(policy.admit(ask(1)))) else {
        panic!("there is no room")
    };
    assert_eq!(refused.reason(), Reason::QueueFull);
}

/// Given tiers, then each key has that of its own; and another version of them keeps what was taken.
#[test]
fn tiers_can_change() {
    let world = World::new();
    let tier = |quota: &str| [bucket("calls", quota)];
    let tiers = KeyedLimits::new(10, "free", tier("1/h burst 2")).tier("paid", tier("1/h burst 5"));
    let keyed = world.keyed(tiers.clone().key("acme", "paid"));
    let take = |key: &str, n: u64| {
        world
            .clock
            .run(async { keyed.get(key).unwrap().acquire_now(n).await.is_ok() })
    };
    assert!(take("acme", 4) && take("x", 2) && !take("x", 1));
    keyed.apply(&tiers.key_with("x", tier("1/h burst 3"))).unwrap();
    assert!(take("x", 1) && !take("x", 1), "what was taken stays taken");
    assert!(!take("acme", 1));
    let error = keyed.apply(&spec().key("y", "gold")).unwrap_err().to_string();
    assert_eq!(error, "key `y`: `gold` is no tier, and there are: free");
    assert!(!take("x", 1));
}

/// Given asks that no instant can admit, then they are refused without the store, with the leg and the reason.
#[test]
fn an_ask_that_is_never_admitted_costs_no_step() {
    let world = World::new();
    let keyed = world.keyed(spec());
    let key = keyed.get("a").unwrap();
    let rows = [
        (ask(101), "tokens", Reason::Oversized),
        (Ask::one(), "tokens", Reason::Unpriced),
        (Ask::many(3).cost(TOKENS, 1), "requests", Reason::Oversized),
    ];
    for (ask, leg, reason) in rows {
        let refused = world.clock.run(key.acquire_now(ask)).unwrap_err();
        assert_eq!((refused.leg(), refused.reason()), (leg, reason));
        let policy = Policy::new(key.clone());
        assert_eq!(world.clock.run(policy.admit(ask)).unwrap_err().reason(), reason);
    }
    assert_eq!(world.line.steps(), 0);
    assert!(keyed.get("with space").is_err());
    drop((key, keyed));
}

/// Given mistakes in the legs of a key, then they are found when it is built.
#[test]
fn legs_that_a_store_cannot_count_are_an_error() {
    let world = World::new();
    let many: Vec<_> = (0..17).map(|leg| bucket(&leg.to_string(), "1/s")).collect();
    let rows = [
        (
            vec![bucket("x", "unlimited")],
            ", leg `x`: the quota `unlimited` was given",
        ),
        (
            vec![RemoteLeg::window("x", 3, Duration::ZERO)],
            ", leg `x`: a window of 0ns was given",
        ),
        (vec![bucket("", "1/s")], ", leg ``: every leg needs a name"),
        (
            vec![bucket("x", "1/s"), bucket("x", "2/s")],
            ", leg `x`: another leg has this name",
        ),
        (many, ": 17 legs were given, and 1 to 16 are allowed"),
        (vec![], ": 0 legs were given, and 1 to 16 are allowed"),
    ];
    for (legs, words) in rows {
        let builder = world.builder(KeyedLimits::new(10, "all", legs));
        let error = builder.in_place(Arc::clone(&world.line)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tier `all`{words}")), "{error}");
    }
    let none = world.builder(spec_of(0));
    assert!(none.in_place(Arc::clone(&world.line)).is_err());
    let share = world.builder(spec()).on_unavailable(OnUnavailable::Share { of: 3 });
    assert!(share.in_place(Arc::clone(&world.line)).is_err());
}

/// Given a limiter whose handles are gone, then what was to be given back is, and the driver ends.
#[test]
fn the_driver_ends_with_the_last_handle() {
    let world = World::new();
    let (keyed, driver) = world.builder(spec()).build(Arc::clone(&world.line)).unwrap();
    let mut driver = pin!(driver);
    let mut permit = {
        let key = keyed.get("a").unwrap();
        let mut wait = pin!(key.acquire_now(ask(90)));
        assert!(poll(wait.as_mut()).is_pending());
        assert!(poll(driver.as_mut()).is_pending());
        let Poll::Ready(Ok(permit)) = poll(wait.as_mut()) else {
            panic!("it was granted")
        };
        permit
    };
    drop(keyed);
    assert!(poll(driver.as_mut()).is_pending(), "the permit is a handle");
    permit.settle(TOKENS, 0).unwrap();
    drop(permit);
    assert!(poll(driver.as_mut()).is_ready());
    assert_eq!(world.line.steps(), 2);
    assert_eq!(world.line.sent.lock().unwrap()[1].1.corrections.len(), 1);
}

/// What a client of the model does next.
#[derive(Clone, Debug)]
enum Move {
    Pass(u64),
    Take(LegUnits),
    /// Has the permit of this number used less.
    Settle(usize, u64),
    /// Repeats the last step.
    Again,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        (0u64..4_000_000).prop_map(Move::Pass),
        (0u64..7, 0u64..9).prop_map(|(a, b)| Move::Take(KeyLeg::units([a, b]))),
        (0usize..20, 0u64..5).prop_map(|(permit, used)| Move::Settle(permit, used)),
        Just(Move::Again),
    ];
    prop::collection::vec(one, 1..60)
}

proptest! {
    /// Given random admissions and corrections of a bucket and a window, some of them repeated, then what was used in any span is at most
    /// the burst and the refill, or the limit.
    #[test]
    fn no_correction_gives_more_than_was_taken(moves in moves()) {
        let second = 1_000_000;
        let legs = [
            KeyLeg::new("rate", Rule::Rate { quota: "1/s burst 6".parse().unwrap() }),
            KeyLeg::new("window", Rule::Window { limit: 8, length: Duration::from_secs(8) }),
        ];
        let mut key = KeyLegs::default();
        let (mut now, mut seq) = (1_000 * second, 0);
        let mut last: Option<(Step, StepReply)> = None;
        // When each was taken, and the units that it used in the end.
        let mut used: Vec<(u64, LegUnits)> = Vec::new();
        for next in moves {
            let mut step = Step::new(7, seq + 1, Duration::from_secs(600));
            match next {
                Move::Pass(micros) => { now += micros; continue }
                Move::Again => {
                    // One that changed nothing is carried out anew.
                    if let Some((step, reply)) = &last
                        && reply.takes.iter().all(Result::is_ok)
                    {
                        prop_assert_eq!(&key.step(now, &legs, step), reply);
                    }
                    continue;
                }
                Move::Take(units) => step.takes.push(units),
                Move::Settle(permit, to) => {
                    let Some((at, units)) = used.get_mut(permit) else { continue };
                    let (charged, at) = (*units, *at);
                    units.iter_mut().for_each(|units| *units = to.min(*units));
                    step.corrections.push(Correction { at, charged, actual: *units });
                }
            }
            seq += 1;
            let reply = key.step(now, &legs, &step);
            if reply.takes.first() == Some(&Ok(())) {
                used.push((now, step.takes[0]));
            }
            last = Some((step, reply));
        }
        for (from, &(start, _)) in used.iter().enumerate() {
            let (mut rate, mut window) = (0, 0);
            for &(at, units) in &used[from..] {
                rate += units[0];
                let most = 6 + (at - start) / second;
                prop_assert!(rate <= most, "{} of {} in {} us", rate, most, at - start);
                if at - start < 8 * second {
                    window += units[1];
                    prop_assert!(window <= 8, "{} in {} us", window, at - start);
                }
            }
        }
    }
}

/// Given a refused ask for several legs, then it is admitted at the instant that was named, and not a microsecond before.
#[test]
fn an_instant_that_is_named_is_exact() {
    let legs = [
        KeyLeg::new(
            "rate",
            Rule::Rate {
                quota: "3/s burst 6".parse().unwrap(),
            },
        ),
        KeyLeg::new(
            "window",
            Rule::Window {
                limit: 8,
                length: Duration::from_millis(700),
            },
        ),
    ];
    for units in [[6, 1], [1, 8], [4, 5]] {
        let units: LegUnits = std::array::from_fn(|leg| units.get(leg).copied().unwrap_or(0));
        let step = |seq| Step {
            takes: vec![units],
            ..Step::new(7, seq, SECOND)
        };
        let refused_at = |now: u64| {
            let mut key = KeyLegs::default();
            assert_eq!(key.step(1_234_567, &legs, &step(1)).takes, [Ok(())]);
            key.step(now, &legs, &step(2)).takes[0].err()
        };
        let after = refused_at(1_300_000).unwrap().after.unwrap();
        let due = 1_300_000 + after.as_micros() as u64;
        assert_eq!(refused_at(due), None);
        let before = refused_at(due - 1).unwrap().after;
        assert_eq!(before, Some(Duration::from_micros(1)));
    }
}
