//! What metrics and tracing are told.

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::observe::{Observed, breaker_events, describe, record};
use tollgate::{
    Adaptive, Ask, CircuitBreaker, LimiterExt, ManualClock, Outcome, Policy, Quota, Semaphore, TokenBucket,
};

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
            gate.reserve(0).map(drop).unwrap();
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
        (2, 1, 2, 0)
    );
    assert_eq!(count("rejected"), 2);
    let refusals = &seen["tollgate.refusals.total{limiter=api,leg=rate}"];
    assert_eq!(*refusals, DebugValue::Counter(3));
    assert_eq!(seconds(&seen["tollgate.acquire.wait_time{limiter=api}"]), [0.0, 0.5]);
    assert_eq!(seconds(&seen["tollgate.permit.held_time{limiter=api}"]), [0.75, 0.25]);
}

#[test]
fn gauges_show_how_each_leg_stands() {
    let seen = recorded(|| {
        describe();
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder().clock(&clock).build().unwrap();
        breaker.force_open();
        let adaptive = Adaptive::builder(Semaphore::new(10))
            .clock(&clock)
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
        record("api", &policy);
        record("downstream", &breaker);
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
    assert_eq!(gauge("queue.depth", "line", "line"), 0.0);
    let open = &seen["tollgate.breaker.state{limiter=downstream,leg=breaker,kind=breaker}"];
    assert_eq!(*open, DebugValue::Gauge(2.0.into()));
}

/// Given a layer with a limiter for each key, when many keys come, then no label is one of them.
#[cfg(feature = "tower")]
#[test]
fn keys_are_never_labels() {
    use http::{Request, Response};
    use http_body_util::Empty;
    use tollgate::tower::{Head, LimitLayer};
    use tower::{Layer, ServiceExt, service_fn};

    let seen = recorded(|| {
        let clock = ManualClock::new();
        let for_all = clock.clone();
        let keyed = tollgate::Keyed::new(100, move |_: &String| {
            TokenBucket::new(Quota::per_second(1).burst(1))
                .on(&for_all)
                .named("client")
        });
        let key = |head: &Head<'_>| Some(head.uri().path().to_owned());
        let layer = LimitLayer::keyed(Arc::new(keyed), key).observed("clients");
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, ()>(Response::new(Empty::<&[u8]>::new()))
        }));
        clock.run(async {
            for client in 0..10 {
                let request = || Request::builder().uri(format!("/secret-{client}")).body(()).unwrap();
                drop(service.clone().oneshot(request()).await.unwrap());
                assert!(service.clone().oneshot(request()).await.is_err());
            }
        });
    });
    assert!(seen.keys().all(|name| !name.contains("secret")), "{seen:?}");
    assert_eq!(
        seen["tollgate.acquire.total{limiter=clients,outcome=granted}"],
        DebugValue::Counter(10)
    );
    assert_eq!(
        seen["tollgate.refusals.total{limiter=clients,leg=client}"],
        DebugValue::Counter(10)
    );
    assert_eq!(seconds(&seen["tollgate.permit.held_time{limiter=clients}"]).len(), 10);
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

#[test]
fn refusals_and_changes_of_a_circuit_are_events() {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_second(2).burst(1)).on(&clock);
        let gate = Observed::new("api", bucket);
        gate.try_admit(1).unwrap().finish(Outcome::Success);
        assert!(gate.try_admit(1).is_err());
        let breaker = CircuitBreaker::builder().count_window(2).minimum_calls(2).clock(&clock);
        let breaker = breaker.on_event(breaker_events("payments")).build().unwrap();
        for _ in 0..2 {
            breaker.try_admit(Ask::one()).unwrap().finish(Outcome::Failure);
        }
        breaker.reset();
    });
    let lines = log.0.lock().unwrap();
    let find = |start: &str, part: &str| lines.iter().any(|line| line.starts_with(start) && line.contains(part));
    assert!(find("TRACE", "message=admitted limiter=\"api\""), "{lines:#?}");
    assert!(
        find("TRACE", "message=finished limiter=\"api\" outcome=Success"),
        "{lines:#?}"
    );
    assert!(
        find(
            "DEBUG",
            "message=refused limiter=\"api\" leg=\"token_bucket\" reason=RateExceeded retry_after=0.5"
        ),
        "{lines:#?}"
    );
    assert!(
        find("WARN", "breaker=\"payments\" from=Closed to=Open calls=2 failed=2"),
        "{lines:#?}"
    );
    assert!(find("INFO", "breaker=\"payments\" from=Open to=Closed"), "{lines:#?}");
}
