//! What metrics and tracing are told.

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::{
    Ask, Demand, Description, LegName, Legs, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason, Refusal,
    Semaphore, TokenBucket, Wait,
};
use tollgate_observe::{Gauges, Observed, breaker_events, describe};
use tollgate_resilience::Adaptive;
use tollgate_resilience::CircuitBreaker;

/// Every metric with its labels, in one line, and its values.
fn read(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let all = snapshotter.snapshot().into_vec().into_iter();
    all.map(|(key, _, _, value)| {
        let (_, key) = key.into_parts();
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        (format!("{}{{{}}}", key.name(), labels.join(",")), value)
    })
    .collect()
}

fn recorded(work: impl FnOnce()) -> BTreeMap<String, DebugValue> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, work);
    read(&snapshotter)
}

fn seconds(value: &DebugValue) -> Vec<f64> {
    match value {
        DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).collect(),
        other => panic!("no histogram: {other:?}"),
    }
}

#[test]
fn admissions_refusals_waits_and_ends_are_counted_in_seconds() {
    let seen = recorded(|| {
        let clock = ManualClock::new();
        let policy = Policy::builder()
            .limit(TokenBucket::new(Quota::per_second(2).burst(1)).on(&clock).named("rate"))
            .limit(Semaphore::new(4).named("in flight"))
            .max_wait(Duration::from_millis(600))
            .build()
            .unwrap();
        let gate = Observed::new("api", policy);
        clock.run(async {
            let first = gate.admit(1).await.unwrap();
            let second = gate.admit(1).await.unwrap();
            assert_eq!(clock.elapsed(), Duration::from_millis(500));
            assert!(gate.try_admit(1).is_err());
            assert!(gate.try_admit(2).is_err());
            clock.advance(Duration::from_millis(250));
            drop(first);
            second.finish(Outcome::Failure);
            // One waits and gives up, one has no time to wait.
            let mut waits = Box::pin(gate.admit(1));
            assert!(
                waits
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            assert!(gate.admit(1).await.is_err());
            drop(waits);
            gate.try_admit(0).unwrap().cancel();
        });
    });
    let count = |outcome| match seen.get(&format!("tollgate.acquire.total{{limiter=api,outcome={outcome}}}")) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{outcome}: {other:?}"),
    };
    assert_eq!(
        (
            count("granted"),
            count("timed_out"),
            count("cancelled"),
            count("closed")
        ),
        (3, 1, 2, 0)
    );
    assert_eq!(count("rejected"), 2);
    let refusals = &seen["tollgate.refusals.total{limiter=api,leg=rate}"];
    assert_eq!(*refusals, DebugValue::Counter(3));
    assert_eq!(
        seconds(&seen["tollgate.acquire.wait_time{limiter=api}"]),
        [0.0, 0.5, 0.0]
    );
    assert_eq!(seconds(&seen["tollgate.permit.held_time{limiter=api}"]), [0.75, 0.25]);
}

#[test]
fn gauges_show_how_each_leg_stands() {
    let seen = recorded(|| {
        describe();
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder().on(&clock).build().unwrap();
        breaker.force_open();
        let adaptive = Adaptive::builder(Semaphore::new(10))
            .on(&clock)
            .bounds(1, 20)
            .build()
            .unwrap();
        let policy = Policy::builder()
            .limit(TokenBucket::new(Quota::per_minute(60)).on(&clock).named("requests"))
            .limit(Semaphore::new(4).named("in flight"))
            .limit(adaptive.named("found"))
            .build()
            .unwrap();
        let _permit = policy.try_admit(1).unwrap();
        Gauges::new("api").record(&policy);
        Gauges::new("downstream").record(&breaker);
    });
    let gauge = |name: &str, leg: &str, kind: &str| match seen
        .get(&format!("tollgate.{name}{{limiter=api,leg={leg},kind={kind}}}"))
    {
        Some(DebugValue::Gauge(value)) => value.into_inner(),
        other => panic!("{name}: {other:?} in {seen:#?}"),
    };
    assert_eq!(gauge("rate.limit", "requests", "token_bucket"), 60.0);
    assert_eq!(gauge("rate.available", "requests", "token_bucket"), 59.0);
    assert_eq!(gauge("permits.limit", "in flight", "semaphore"), 4.0);
    assert_eq!(gauge("permits.in_use", "in flight", "semaphore"), 1.0);
    assert_eq!(gauge("waiters", "in flight", "semaphore"), 0.0);
    assert_eq!(gauge("adaptive.limit", "found", "adaptive"), 10.0);
    assert_eq!(gauge("queue.depth", "queue", "queue"), 0.0);
    let open = &seen["tollgate.breaker.state{limiter=downstream,leg=breaker,kind=breaker}"];
    assert_eq!(*open, DebugValue::Gauge(2.0.into()));
}

#[test]
fn budgets_and_chances_have_gauges() {
    let seen = recorded(|| {
        let budget = tollgate_resilience::shed::RetryBudget::new(0.5, 4).unwrap();
        drop(budget.try_admit(1).unwrap());
        let throttler = tollgate_resilience::shed::Throttler::new(0.5, 0.9, Duration::from_secs(10)).unwrap();
        Gauges::new("client").record(&budget.and(throttler.on(&ManualClock::new())));
    });
    let gauge = |name: &str| &seen[&format!("tollgate.{name}")];
    let budget = "{limiter=client,leg=retry_budget,kind=retry_budget}";
    assert_eq!(*gauge(&format!("budget.limit{budget}")), DebugValue::Gauge(4.0.into()));
    assert_eq!(
        *gauge(&format!("budget.available{budget}")),
        DebugValue::Gauge(3.0.into())
    );
    let throttler = "{limiter=client,leg=throttler,kind=throttler}";
    assert_eq!(
        *gauge(&format!("shed.likelihood{throttler}")),
        DebugValue::Gauge(0.0.into())
    );
}

/// Given two processes that share a rate by leases, then what each holds, asked for, gave back to the other, and lost is exported.
#[test]
fn leases_of_shared_limits_are_exported() {
    use tollgate::remote::{Key, Memory, Remote};
    let mut stats = Vec::new();
    let seen = recorded(|| {
        describe();
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(9));
        let store = Arc::new(Memory::new(&clock));
        let machine = || {
            let rate = Remote::rate(Key::new("calls").unwrap(), Quota::per_second(100).burst(100));
            let rate = rate.capacity().ttl(Duration::from_secs(3)).on(&clock);
            rate.in_place(Arc::clone(&store)).unwrap()
        };
        let (one, other) = (machine(), machine());
        drop(one.try_acquire(1));
        assert_eq!(one.stats().units_held, 1 << 20);
        // The other waits; one has no use for its units any more.
        clock.run(async { drop(other.acquire(1).await.unwrap()) });
        drop(clock.run(other.acquire(1)).unwrap());
        store.clear();
        clock.advance(Duration::from_secs(3));
        let mut gauges = (Gauges::new("one"), Gauges::new("other"));
        gauges.0.record(&one);
        gauges.1.record(&other);
        stats.extend([("one", one.stats()), ("other", other.stats())]);
    });
    let value = |limiter: &str, name: &str| {
        let key = format!("tollgate.lease.{name}{{limiter={limiter},leg=calls,kind=lease}}");
        seen.get(&key).unwrap_or_else(|| panic!("{key} in {seen:#?}"))
    };
    for (limiter, stats) in &stats {
        assert_eq!(
            *value(limiter, "units"),
            DebugValue::Gauge((stats.units_held as f64).into())
        );
        assert_eq!(*value(limiter, "requests"), DebugValue::Counter(stats.requests));
        assert_eq!(*value(limiter, "recalls"), DebugValue::Counter(stats.recalls));
        assert_eq!(*value(limiter, "lapses"), DebugValue::Counter(stats.losses));
    }
    let [(_, one), (_, other)] = &stats[..] else {
        panic!("{stats:?}")
    };
    assert!(
        one.requests >= 1 && other.requests >= 1 && one.recalls == 1 && other.recalls == 0,
        "{stats:?}"
    );
    assert_eq!(one.losses + other.losses, 2, "the store has forgotten both");
}

/// Given a limiter that loses a leg while it runs, then the gauges of the leg are zero at the next look, and live again when it comes
/// back.
#[test]
fn gauges_of_a_leg_that_was_removed_are_zero() {
    /// Legs that change.
    struct Changes(Mutex<Legs>);
    impl Limiter for Changes {
        type Ticket = ();
        fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn cancel(&self, (): ()) {}
        fn finish(&self, (): (), _: Outcome) {}
        fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
            self.0.lock().unwrap().describe(visit);
        }
    }
    let core = || Semaphore::new(4).named("core");
    let (both, one) = (|| Semaphore::new(9).named("old").boxed().and(core()), || core().boxed());
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let limiter = Changes(Mutex::new(both()));
        let mut gauges = Gauges::new("api");
        // A look at this recorder sets its gauges back to zero by itself: so not between the first two.
        let limits = || {
            let seen = read(&snapshotter);
            ["old", "core"].map(|leg| {
                match seen[&format!("tollgate.permits.limit{{limiter=api,leg={leg},kind=semaphore}}")] {
                    DebugValue::Gauge(value) => value.into_inner(),
                    ref other => panic!("{other:?}"),
                }
            })
        };
        gauges.record(&limiter);
        *limiter.0.lock().unwrap() = one();
        gauges.record(&limiter);
        assert_eq!(limits(), [0.0, 4.0]);
        *limiter.0.lock().unwrap() = both();
        gauges.record(&limiter);
        assert_eq!(limits(), [9.0, 4.0]);
    });
}

#[test]
fn one_set_of_gauges_shows_several_limiters() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let (reads, writes) = (Semaphore::new(3).named("reads"), Semaphore::new(5).named("writes"));
        let mut gauges = Gauges::new("database");
        gauges.record(&reads);
        gauges.record(&writes);
        let seen = read(&snapshotter);
        for (leg, limit) in [("reads", 3.0), ("writes", 5.0)] {
            let name = format!("tollgate.permits.limit{{limiter=database,leg={leg},kind=semaphore}}");
            assert_eq!(seen[&name], DebugValue::Gauge(limit.into()), "{leg}");
        }
    });
}

#[test]
fn the_legs_that_have_gauges_are_bounded() {
    let seen = recorded(|| {
        let mut gauges = Gauges::new("api");
        for leg in 0..200 {
            gauges.record(&Semaphore::new(1).named(format!("leg {leg}")));
        }
    });
    let legs = seen
        .keys()
        .filter(|name| name.starts_with("tollgate.permits.limit"))
        .count();
    assert_eq!(legs, 64);
}

/// Given a limiter whose legs get ever new names, then the number of labels is bounded.
#[test]
fn the_names_that_are_labels_are_bounded() {
    struct Renamed(std::sync::atomic::AtomicU64);
    impl Limiter for Renamed {
        type Ticket = ();
        fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            let next = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let leg = LegName::from(format!("leg {next}"));
            Err(Refusal::new(Reason::Saturated, leg, Wait::EVENT))
        }
        fn cancel(&self, (): ()) {}
        fn finish(&self, (): (), _: Outcome) {}
        fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
            visit(Description::new("renamed"));
        }
    }
    let refused = |gate: fn(Observed<Renamed>) -> Observed<Renamed>| {
        let seen = recorded(|| {
            let gate = gate(Observed::new("api", Renamed(0.into())));
            (0..100).for_each(|_| assert!(gate.try_admit(1).is_err()));
        });
        let legs = seen.into_iter().filter_map(|(name, value)| {
            let leg = name
                .strip_prefix("tollgate.refusals.total{limiter=api,leg=")?
                .to_owned();
            Some((leg, value))
        });
        legs.collect::<BTreeMap<_, _>>()
    };
    let first = refused(|gate| gate);
    assert_eq!((first.len(), &first["other}"]), (32, &DebugValue::Counter(69)));
    assert_eq!(first["leg 30}"], DebugValue::Counter(1));
    let only = refused(|gate| gate.legs(&["leg 7", "leg 70"]));
    assert_eq!(only.keys().collect::<Vec<_>>(), ["leg 70}", "leg 7}", "other}"]);
}

/// Keeps the message and fields of each event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The events of one refusal, one end of work, and a circuit that opens and closes.
fn refuse_and_open() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(2).burst(1)).on(&clock);
    let gate = Observed::new("api", bucket);
    gate.try_admit(1).unwrap().finish(Outcome::Success);
    assert!(gate.try_admit(1).is_err());
    let breaker = CircuitBreaker::builder().count_window(2).minimum_calls(2).on(&clock);
    let breaker = breaker.on_event(breaker_events("payments")).build().unwrap();
    for _ in 0..2 {
        breaker.try_admit(Ask::one()).unwrap().finish(Outcome::Failure);
    }
    breaker.reset();
}

#[test]
fn refusals_and_changes_of_a_circuit_are_events() {
    const EVENTS: [(&str, &str); 5] = [
        ("TRACE", "message=admitted limiter=\"api\""),
        ("TRACE", "message=finished limiter=\"api\" outcome=Success"),
        (
            "DEBUG",
            "message=refused limiter=\"api\" leg=\"token_bucket\" reason=RateExceeded retry_after=0.5",
        ),
        ("WARN", "breaker=\"payments\" from=Closed to=Open calls=2 failed=2"),
        ("INFO", "breaker=\"payments\" from=Open to=Closed"),
    ];
    let log = Log::default();
    let unheard = || {
        let lines = log.0.lock().unwrap();
        let heard =
            |(start, part): &(&str, &str)| lines.iter().any(|line| line.starts_with(start) && line.contains(part));
        EVENTS.iter().filter(|event| !heard(event)).count()
    };
    tracing::subscriber::with_default(log.clone(), || {
        // Another test may tell the same event for the first time just now, without a subscriber; its place in the program
        // is not yet known to tracing then, and is not asked again when this one comes. So all are, until it is known.
        for _ in 0..10_000 {
            tracing::callsite::rebuild_interest_cache();
            refuse_and_open();
            if unheard() == 0 {
                break;
            }
            std::thread::yield_now();
        }
    });
    assert_eq!(unheard(), 0, "{:#?}", log.0.lock().unwrap());
}
