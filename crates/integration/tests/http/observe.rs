//! The metrics of a layer.

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::collections::BTreeMap;
use std::sync::Arc;
use tollgate::{LimiterExt, ManualClock, Quota, TokenBucket};

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

/// Given a layer with a limiter for each key, named by its key or not, when many keys come, then no label is one of them.
#[test]
fn keys_are_never_labels() {
    use http::{Request, Response};
    use http_body_util::Empty;
    use tollgate_http::{LimitLayer, RequestParts};
    use tower::{Layer, ServiceExt, service_fn};

    /// Ten clients, each admitted once and refused once by the leg that `name` names, and one without a key.
    fn seen(name: fn(&str) -> &str, legs: Option<&'static [&'static str]>) -> BTreeMap<String, DebugValue> {
        recorded(|| {
            let clock = ManualClock::new();
            let for_all = clock.clone();
            let keyed = tollgate::Keyed::new(10, move |key: &String| {
                let bucket = TokenBucket::new(Quota::per_second(1).burst(1));
                bucket.on(&for_all).named(name(key).to_owned())
            });
            let key = |head: &RequestParts<'_>| head.uri().path().strip_prefix("/keys/").map(str::to_owned);
            let mut layer = LimitLayer::keyed(Arc::new(keyed), key).observed("clients");
            if let Some(legs) = legs {
                layer = layer.legs(legs);
            }
            let service = layer.layer(service_fn(async |_: Request<()>| {
                Ok::<_, ()>(Response::new(Empty::<&[u8]>::new()))
            }));
            clock.run(async {
                let request = |path: String| Request::builder().uri(path).body(()).unwrap();
                let ask = |path| service.clone().oneshot(request(path));
                for client in 0..10 {
                    drop(ask(format!("/keys/secret-{client}")).await.unwrap());
                    assert!(ask(format!("/keys/secret-{client}")).await.is_err());
                }
                assert!(ask("/".into()).await.is_err());
                assert!(ask("/keys/secret-10".into()).await.is_err(), "the map is full");
            });
        })
    }
    let refusals = |seen: &BTreeMap<String, DebugValue>| {
        let of = |leg| match seen.get(&format!("tollgate.refusals.total{{limiter=clients,leg={leg}}}")) {
            Some(DebugValue::Counter(count)) => *count,
            other => panic!("{leg}: {other:?}"),
        };
        (of("other"), of("key"), of("keyed"))
    };
    let all = seen(|key| key, None);
    assert!(all.keys().all(|name| !name.contains("secret")), "{all:?}");
    assert_eq!(
        all["tollgate.acquire.total{limiter=clients,outcome=granted}"],
        DebugValue::Counter(10)
    );
    assert_eq!(refusals(&all), (10, 1, 1));
    assert_eq!(seconds(&all["tollgate.permit.held_time{limiter=clients}"]).len(), 10);

    let named = seen(|_| "client", Some(&["client"]));
    let client = &named["tollgate.refusals.total{limiter=clients,leg=client}"];
    assert_eq!(*client, DebugValue::Counter(10));
}
