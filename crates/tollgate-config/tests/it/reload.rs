//! Versions of a policy: which legs keep their state, which version judges a caller, and what admissions see during a change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use tollgate::policy::conditional::LoadMetric;
use tollgate::{Ask, Clock, Cost, Inherit, LimiterExt, ManualClock, Outcome, Quota, Reason};
use tollgate_config::{
    ConfigError, ConfigFile, Format, LegKind, LegSpec, PolicySpec, Reload, ReloadablePolicy, Source, When, parse,
};

const TOKENS: Cost = Cost::new("tokens");

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn bucket(name: &str, text: &str) -> LegSpec {
    LegSpec::new(name, LegKind::TokenBucket { quota: quota(text) })
}

fn semaphore(name: &str, limit: usize) -> LegSpec {
    LegSpec::new(name, LegKind::Semaphore { limit })
}

fn apply(policy: &ReloadablePolicy, spec: PolicySpec) -> u64 {
    policy.apply(spec).unwrap()
}

fn available(policy: &ReloadablePolicy, leg: &str) -> u64 {
    policy.limiter().leg(leg).unwrap().available().unwrap()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Given legs of every kind with something taken, when a version comes that changes one of them, then all others have what
/// they had, and the changed one has it by its rule.
#[test]
fn unchanged_legs_keep_their_state() {
    let clock = ManualClock::new();
    let legs = |changed: LegSpec| {
        PolicySpec::new([
            bucket("bucket", "1/h burst 100"),
            LegSpec::new(
                "window",
                LegKind::SlidingWindow {
                    limit: 100,
                    window: secs(3_600),
                    segments: 64,
                },
            ),
            LegSpec::new(
                "fixed",
                LegKind::FixedWindow {
                    limit: 100,
                    window: secs(3_600),
                },
            ),
            LegSpec::new(
                "log",
                LegKind::SlidingLog {
                    limit: 100,
                    window: secs(3_600),
                },
            ),
            semaphore("permits", 100),
            changed,
        ])
    };
    let policy = legs(bucket("changed", "1/h burst 100")).build(&clock).unwrap();
    let held = policy.try_admit(Ask::many(60)).unwrap();
    let state = || ["bucket", "window", "fixed", "log", "permits", "changed"].map(|leg| available(&policy, leg));
    assert_eq!(state(), [40; 6]);
    for (inherit, to, left) in [
        (Inherit::AsIs, "burst 50", 40),
        (Inherit::Proportional, "burst 100", 80),
        (Inherit::Reset, "burst 300", 300),
    ] {
        let said = apply(
            &policy,
            legs(LegSpec {
                inherit,
                ..bucket("changed", &format!("1/h {to}"))
            }),
        );
        assert_eq!(state(), [40, 40, 40, 40, 40, left], "{inherit:?}: version {said}");
    }
    drop(held);
    assert_eq!(available(&policy, "permits"), 100);
}

#[test]
fn every_number_of_every_kind_can_change() {
    let clock = ManualClock::new();
    let rows: [(LegKind, LegKind); 7] = [
        (
            LegKind::TokenBucket { quota: quota("1/s") },
            LegKind::TokenBucket {
                quota: quota("9/s burst 4"),
            },
        ),
        (
            LegKind::LeakyBucket {
                quota: quota("1/s"),
                slack: 1,
            },
            LegKind::LeakyBucket {
                quota: quota("9/s"),
                slack: 8,
            },
        ),
        (
            LegKind::Warmup {
                quota: quota("1/s"),
                period: secs(9),
                cold_factor: 3,
            },
            LegKind::Warmup {
                quota: quota("9/s"),
                period: secs(9),
                cold_factor: 3,
            },
        ),
        (
            LegKind::FixedWindow {
                limit: 1,
                window: secs(1),
            },
            LegKind::FixedWindow {
                limit: 9,
                window: secs(5),
            },
        ),
        (
            LegKind::SlidingWindow {
                limit: 1,
                window: secs(5),
                segments: 64,
            },
            LegKind::SlidingWindow {
                limit: 9,
                window: secs(1),
                segments: 64,
            },
        ),
        (
            LegKind::SlidingLog {
                limit: 1,
                window: secs(5),
            },
            LegKind::SlidingLog {
                limit: 9,
                window: secs(1),
            },
        ),
        (LegKind::Semaphore { limit: 1 }, LegKind::Semaphore { limit: 9 }),
    ];
    for (from, to) in rows {
        let spec = |rule: &LegKind| PolicySpec::new([LegSpec::new("leg", rule.clone())]);
        let policy = spec(&from).build(&clock).unwrap();
        for rule in [&to, &from, &to] {
            apply(&policy, spec(rule));
            assert_eq!(policy.limiter().spec().legs[0].kind, *rule);
        }
    }
}

/// Given permits of one version, when the next has other legs, then each permit goes back to the legs that gave it, and a
/// leg that comes back is a fresh one.
#[test]
fn permits_go_back_to_the_legs_that_gave_them() {
    let clock = ManualClock::new();
    let both = PolicySpec::new([
        LegSpec {
            per: Some("tokens".into()),
            ..bucket("tokens", "zero burst 1000")
        },
        semaphore("a", 2),
        semaphore("b", 2),
    ]);
    let policy = both.build(&clock).unwrap();
    let mut old = policy.try_admit(Ask::one().cost(TOKENS, 500)).unwrap();
    apply(&policy, PolicySpec::new([semaphore("b", 2)]));
    let new = policy.try_admit(Ask::one()).unwrap();
    assert!(policy.try_admit(Ask::one()).is_err(), "both permits of `b` are held");
    assert_eq!(old.settle(TOKENS, 100), Ok(1), "the leg that is gone is corrected");
    old.finish(Outcome::Success);
    assert_eq!(policy.limiter().in_use("b"), Some(1));
    apply(&policy, both);
    assert_eq!(policy.limiter().in_use("a"), Some(0));
    assert_eq!(available(&policy, "tokens"), 1_000);
    drop(new);
    assert_eq!(policy.limiter().in_use("b"), Some(0));
}

#[test]
fn a_bad_version_changes_nothing() {
    let clock = ManualClock::new();
    let spec = PolicySpec::new([bucket("a", "zero burst 5"), semaphore("b", 2)]);
    let policy = spec.build(&clock).unwrap();
    policy.try_admit(Ask::one()).unwrap().forget();
    let mut bad = spec.clone();
    bad.legs[0].kind = LegKind::TokenBucket {
        quota: quota("zero burst 50"),
    };
    bad.legs[1].name = "a".into();
    bad.max_queue = Some(0);
    let error = policy.apply(bad).unwrap_err();
    assert!(error.to_string().starts_with("leg[1].name: "), "{error}");
    assert_eq!(*policy.limiter().spec(), spec);
    assert!(policy.limiter().last_error().is_some());
    assert_eq!((policy.limiter().version(), available(&policy, "a")), (1, 4));
}

fn poll<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Given waiters for a rate and for a semaphore, when versions loosen, tighten and replace their legs, then the queue is
/// judged by the new rules, in order, and no waiter is lost.
#[test]
fn waiters_are_judged_by_the_new_rules() {
    let clock = ManualClock::new();
    let policy = PolicySpec::new([bucket("rate", "1/h burst 1")]).build(&clock).unwrap();
    policy.try_admit(Ask::one()).unwrap().finish(Outcome::Success);
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(policy.admit(Ask::one()))).collect();
    assert!(waiting.iter_mut().all(|future| poll(future).is_pending()));

    // A faster rate: the first is due after a second instead of an hour.
    apply(&policy, PolicySpec::new([bucket("rate", "1/s burst 1")]));
    clock.advance(secs(1));
    let first = match poll(&mut waiting[0]) {
        Poll::Ready(permit) => permit.unwrap(),
        Poll::Pending => panic!("its instant has come"),
    };
    assert!(poll(&mut waiting[1]).is_pending());

    // Another kind of leg: the next two wait for a permit, then for another leg, and are let in by a third version.
    apply(&policy, PolicySpec::new([semaphore("permits", 0)]));
    assert!(poll(&mut waiting[1]).is_pending());
    apply(&policy, PolicySpec::new([semaphore("other", 0)]));
    assert!(poll(&mut waiting[1]).is_pending());
    apply(&policy, PolicySpec::new([semaphore("other", 1)]));
    let second = match poll(&mut waiting[1]) {
        Poll::Ready(permit) => permit.unwrap(),
        Poll::Pending => panic!("a permit is there"),
    };
    assert!(poll(&mut waiting[2]).is_pending());
    assert_eq!(policy.limiter().in_use("other"), Some(1));
    drop(second);
    assert!(poll(&mut waiting[2]).is_ready());
    drop((first, waiting));
    assert_eq!((policy.waiting(), policy.limiter().in_use("other")), (0, Some(0)));
}

/// Given a waiter that was granted its turn, when the limit sinks before it is admitted, then the turn is no admission.
#[test]
fn a_turn_that_was_granted_is_judged_by_the_new_limit() {
    let clock = ManualClock::new();
    let legs = |limit, rate| PolicySpec::new([bucket("rate", rate), semaphore("permits", limit)]);
    let policy = legs(1, "zero burst 10").build(&clock).unwrap();
    let held = policy.try_admit(Ask::one()).unwrap();
    let mut waiting = Box::pin(policy.admit(Ask::one()));
    assert!(poll(&mut waiting).is_pending());
    apply(&policy, legs(0, "zero burst 10"));
    drop(held);
    assert!(poll(&mut waiting).is_pending());
    assert_eq!(policy.limiter().in_use("permits"), Some(0));
    apply(&policy, legs(1, "zero burst 10"));
    assert!(poll(&mut waiting).is_ready());
}

#[test]
fn the_bounds_of_the_queue_change_too() {
    let clock = ManualClock::new();
    let mut spec = PolicySpec::new([semaphore("permits", 1)]);
    let policy = spec.build(&clock).unwrap();
    let _held = policy.try_admit(Ask::one()).unwrap();
    spec.max_queue = Some(0);
    apply(&policy, spec.clone());
    let refused = clock.run(policy.admit(Ask::one())).unwrap_err();
    assert_eq!(refused.reason(), Reason::QueueFull);
    spec.max_queue = None;
    spec.max_wait = Some(secs(3));
    apply(&policy, spec);
    let refused = clock.run(policy.admit(Ask::one())).unwrap_err();
    assert_eq!((refused.reason(), clock.elapsed()), (Reason::TimedOut, secs(3)));
}

/// Given a policy of two semaphores of 4 and 8 permits, and threads that press on it with tries and waits, when 1,000 versions swap the
/// two numbers, then never more than 8 are in flight, which is what each semaphore allows, and when all is over no permit and no token
/// is missing.
#[test]
fn a_thousand_reloads_under_load_lose_no_permit_and_no_token() {
    const RELOADS: u64 = 1_000;
    let legs = |a, b, rate: &str| {
        PolicySpec::new([
            bucket("budget", "zero burst 1000000000"),
            semaphore("a", a),
            bucket("rate", rate),
            semaphore("b", b),
        ])
    };
    let versions = [
        legs(4, 8, "1000000/s burst 1000000"),
        legs(8, 4, "2000000/s burst 2000000"),
        // The other way round, and with a leg that comes and goes.
        PolicySpec::new([
            semaphore("b", 8),
            bucket("budget", "zero burst 1000000000"),
            semaphore("a", 4),
        ]),
    ];
    let clock = Clock::real();
    let policy = versions[0].build(&clock).unwrap();
    let (stop, inside, worst, admitted) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let threads: Vec<_> = (0..6)
        .map(|thread| {
            let policy = policy.clone();
            let (stop, inside) = (Arc::clone(&stop), Arc::clone(&inside));
            let (worst, admitted) = (Arc::clone(&worst), Arc::clone(&admitted));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let permit = match thread % 2 {
                        0 => policy.try_admit(Ask::one()).ok(),
                        _ => Some(
                            policy
                                .admit_blocking_timeout(Ask::one(), secs(60))
                                .expect("no waiter is stuck"),
                        ),
                    };
                    let Some(permit) = permit else {
                        thread::yield_now();
                        continue;
                    };
                    worst.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    admitted.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    for n in 0..RELOADS {
        apply(&policy, versions[(n % 3) as usize].clone());
        // Between two versions at least one caller has been admitted.
        while admitted.load(Ordering::SeqCst) as u64 <= n {
            thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(policy.limiter().version(), RELOADS + 1);
    assert!(
        worst.load(Ordering::SeqCst) <= 8,
        "{} were in flight",
        worst.load(Ordering::SeqCst)
    );
    assert_eq!(
        (policy.limiter().in_use("a"), policy.limiter().in_use("b")),
        (Some(0), Some(0))
    );
    let spent = 1_000_000_000 - available(&policy, "budget");
    assert_eq!(spent, admitted.load(Ordering::SeqCst) as u64);
    assert!(spent > 0);
}

/// Given a leg in shadow mode, when it would refuse, then it counts and does not; and once it is enforced, it goes on from
/// the state that it had on trial.
#[test]
fn a_leg_on_trial_is_counted_and_then_enforced() {
    let clock = ManualClock::new();
    let policy = PolicySpec::new([LegSpec {
        shadow: true,
        ..bucket("trial", "zero burst 3")
    }])
    .build(&clock)
    .unwrap();
    for _ in 0..5 {
        policy.try_admit(Ask::one()).unwrap().finish(Outcome::Success);
    }
    let trial = policy.limiter().leg("trial").unwrap().shadow.unwrap();
    assert_eq!((trial.admitted, trial.refused), (3, 2));
    apply(&policy, PolicySpec::new([bucket("trial", "zero burst 3")]));
    assert_eq!(policy.try_admit(Ask::one()).unwrap_err().leg(), "trial");
}

/// Given batches that are throttled while more than 80 % of the permits are held, until 40 % are, when the pages come and
/// go, then the throttle follows, with hysteresis, and a waiting batch is let in by the page that leaves.
#[test]
fn a_linked_leg_follows_the_use_of_another() {
    let clock = ManualClock::new();
    let policy = PolicySpec::new([
        LegSpec {
            per: Some("batch".into()),
            when: Some(When {
                below: Some(0.4),
                ..When::above("permits", LoadMetric::Use, 0.8)
            }),
            ..bucket("throttle", "1/h burst 1")
        },
        semaphore("permits", 10),
    ])
    .build(&clock)
    .unwrap();
    let batch = Ask::one().cost(Cost::new("batch"), 1);
    let page = Ask::one().cost(Cost::new("batch"), 0);
    drop([policy.try_admit(batch).unwrap(), policy.try_admit(batch).unwrap()]);
    let mut pages: Vec<_> = (0..9).map(|_| policy.try_admit(page).unwrap()).collect();
    // Above 80 %: one batch an hour.
    drop(policy.try_admit(batch).unwrap());
    assert_eq!(policy.try_admit(batch).unwrap_err().leg(), "throttle");
    let mut waiting = Box::pin(policy.admit(batch));
    assert!(poll(&mut waiting).is_pending());
    pages.truncate(5);
    assert!(poll(&mut waiting).is_pending(), "between the marks nothing changes");
    pages.truncate(4);
    assert!(poll(&mut waiting).is_ready());
    assert!(policy.try_admit(batch).is_ok());
}

#[test]
fn a_condition_goes_on_when_its_span_is_written_down() {
    let mut spec = PolicySpec::new([
        LegSpec {
            when: Some(When {
                below: Some(0.4),
                ..When::above("permits", LoadMetric::Use, 0.8)
            }),
            ..bucket("throttle", "1/h")
        },
        semaphore("permits", 10),
    ]);
    let policy = spec.build(&ManualClock::new()).unwrap();
    let applies = || policy.limiter().leg("throttle").unwrap().applies;
    let [_held, more] = [policy.try_admit(5).unwrap(), policy.try_admit(4).unwrap()];
    assert!(applies());
    drop(more);
    assert!(applies(), "between the marks");
    let text = serde_json::to_string(&spec).unwrap();
    assert!(text.contains("\"over\":\"1s\""), "{text}");
    spec = parse(&text, Format::Json).unwrap();
    policy.apply(spec).unwrap();
    assert!(applies());
}

/// A version that the waker of a waiter hands in is put in force there: the waiters are woken when the version before is in
/// force as a whole.
#[test]
fn a_waker_may_hand_in_a_version() {
    struct Reloads(std::sync::Mutex<Option<ReloadablePolicy>>);
    impl std::task::Wake for Reloads {
        fn wake(self: Arc<Self>) {
            if let Some(policy) = self.0.lock().unwrap().take() {
                policy.apply(PolicySpec::new([semaphore("permits", 7)])).unwrap();
            }
        }
    }
    let clock = ManualClock::new();
    let policy = PolicySpec::new([semaphore("permits", 0)]).build(&clock).unwrap();
    let waker = Waker::from(Arc::new(Reloads(std::sync::Mutex::new(Some(policy.clone())))));
    let mut waiting = Box::pin(policy.admit(Ask::one()));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    apply(&policy, PolicySpec::new([semaphore("permits", 1)]));
    assert_eq!(policy.limiter().leg("permits").unwrap().capacity(), Some(7));
    assert_eq!(policy.limiter().version(), 3);
}

#[test]
fn a_source_is_followed_and_its_mistakes_are_reported() {
    struct Script(Vec<Result<PolicySpec, &'static str>>);
    impl Source for Script {
        async fn next(&mut self) -> Option<Result<PolicySpec, ConfigError>> {
            (!self.0.is_empty()).then(|| self.0.remove(0).map_err(ConfigError::whole))
        }
    }
    let clock = ManualClock::new();
    let spec = |limit| PolicySpec::new([semaphore("permits", limit)]);
    let policy = spec(1).build(&clock).unwrap();
    let script = Script(vec![
        Ok(spec(2)),
        Err("the store is away"),
        Ok(PolicySpec::default()),
        Ok(spec(3)),
    ]);
    let mut said = Vec::new();
    clock.run(policy.follow(script, |event| {
        said.push(event.map_err(|error| error.to_string()));
    }));
    assert_eq!(
        said,
        [
            Ok(2),
            Err("the store is away".to_owned()),
            Err("leg: none was given, and at least one is needed".to_owned()),
            Ok(3),
        ]
    );
}

/// `apply` records why a version is refused: recorded again by the follower, the error could outlive a later version.
#[test]
fn a_refused_version_is_recorded_once() {
    #[derive(Default)]
    struct Refusing(AtomicUsize);
    impl Reload for Refusing {
        fn apply(&self, spec: PolicySpec) -> Result<u64, ConfigError> {
            let refused = spec.check().unwrap_err();
            self.refuse(refused.clone());
            Err(refused)
        }
        fn refuse(&self, _: ConfigError) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (sender, versions) = tokio::sync::watch::channel(PolicySpec::default());
    sender.send_replace(PolicySpec::default());
    drop(sender);
    let (refusing, mut events) = (Refusing::default(), 0);
    ManualClock::new().run(refusing.follow(versions, |_| events += 1));
    assert_eq!((refusing.0.into_inner(), events), (1, 1));
}

/// Permits of a version without triggers come back, and a waiter for a trigger of a later one goes on.
#[test]
fn a_permit_from_before_the_trigger_wakes_its_waiter() {
    let clock = ManualClock::new();
    let mut spec = PolicySpec::new([LegSpec::new("permits", LegKind::Semaphore { limit: 10 })]);
    let policy = spec.build(&clock).unwrap();
    let mut held: Vec<_> = (0..9).map(|_| policy.try_admit(1).unwrap()).collect();
    let when = When::above("permits", LoadMetric::Use, 0.8);
    let throttle = LegSpec {
        when: Some(when),
        ..LegSpec::new("throttle", LegKind::TokenBucket { quota: Quota::zero() })
    };
    spec.legs.insert(0, throttle);
    policy.apply(spec).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waits = Box::pin(policy.admit(1));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    held.truncate(4);
    assert!(woken.0.load(Ordering::SeqCst), "the waiter was not woken");
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Given threads that wait for a policy whose legs are replaced all the time, some of them under a condition, then none is stuck, and
/// nothing is held in the end.
#[test]
fn no_waiter_is_stuck_while_legs_are_replaced() {
    let legs = |name: &str, limit| PolicySpec::new([semaphore(name, limit), bucket("rate", "1000000/s burst 1000000")]);
    let linked = PolicySpec::new([
        LegSpec {
            when: Some(When {
                below: Some(0.1),
                ..When::above("a", LoadMetric::Use, 0.4)
            }),
            ..semaphore("gate", 1)
        },
        semaphore("a", 3),
    ]);
    let versions = [legs("a", 3), linked.clone(), legs("b", 2), legs("a", 1), linked];
    let policy = versions[0].build(&Clock::real()).unwrap();
    let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..5)
        .map(|_| {
            let (policy, stop, admitted) = (policy.clone(), Arc::clone(&stop), Arc::clone(&admitted));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let permit = policy.admit_blocking_timeout(1, secs(60)).expect("no waiter is stuck");
                    admitted.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    drop(permit);
                }
            })
        })
        .collect();
    for n in 0..600 {
        policy.apply(versions[n % versions.len()].clone()).unwrap();
        while admitted.load(Ordering::SeqCst) <= n {
            thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((policy.waiting(), policy.limiter().in_use("a")), (0, Some(0)));
}
