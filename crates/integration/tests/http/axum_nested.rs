//! What a client is told by several legs, and by several layers: whose fault it was, and when to come back.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{HeaderName, Request, Response};
use http_body_util::BodyExt;
use sfv::{BareItem, List, ListEntry, Parser};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::status::State;
use tollgate::{
    Ask, Cost, Keyed, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, SlidingLog, SlidingWindow,
    TokenBucket,
};
use tollgate_http::axum::{ClientIp, ExtensionKey, HeaderKey, HttpRefusals};
use tollgate_http::{ExtractKey, Gate, LimitLayer, RequestParts};
use tower::ServiceExt;

const SECOND: Duration = Duration::from_secs(1);

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

fn request() -> Request<Body> {
    Request::new(Body::empty())
}

async fn send(app: &Router) -> Response<Body> {
    app.clone().oneshot(request()).await.unwrap()
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

fn status(response: &Response<Body>) -> u16 {
    response.status().as_u16()
}

async fn problem(response: Response<Body>) -> serde_json::Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// One token per `every`.
fn bucket(clock: &ManualClock, every: Duration) -> TokenBucket {
    TokenBucket::new(Quota::new(1, every).unwrap().burst(1)).on(clock)
}

fn waiting<L: Limiter + 'static>(policy: &Policy<L>) -> Router {
    hello().layer(LimitLayer::waiting(policy.clone()).respond(HttpRefusals::new()))
}

/// Given a policy with a rate and a semaphore, when a wait comes to nothing, then the status says which of them it was for.
#[test]
fn a_wait_for_a_rate_that_comes_to_nothing_is_429_and_one_for_a_permit_is_503() {
    let clock = ManualClock::new();
    let build = |max_queue| {
        let policy = Policy::builder()
            .limit(bucket(&clock, 10 * SECOND).named("rate"))
            .limit(Semaphore::new(1).named("in flight"));
        policy.max_wait(SECOND).max_queue(max_queue).build().unwrap()
    };
    clock.run(async {
        // Too late, and known to be.
        let policy = build(10);
        let app = waiting(&policy);
        drop(send(&app).await);
        let late = send(&app).await;
        assert_eq!((status(&late), header(&late, "retry-after")), (429, Some("10")));
        let late = problem(late).await;
        assert_eq!(
            late["detail"],
            "limiter `rate` did not admit in time: it has exceeded its rate"
        );
        assert!(late["type"].as_str().unwrap().ends_with("#quota-exceeded"), "{late}");

        // No place in the queue, for want of a token.
        let policy = build(0);
        let app = waiting(&policy);
        drop(send(&app).await);
        clock.advance(9 * SECOND + SECOND / 2);
        let full = send(&app).await;
        assert_eq!((status(&full), header(&full, "retry-after")), (429, Some("1")));
        assert_eq!(
            problem(full).await["detail"],
            "limiter `rate` has a full queue: it has exceeded its rate"
        );

        // The same for want of a permit, without an instant.
        for (max_queue, detail) in [
            (10, "limiter `in flight` did not admit in time: it is saturated"),
            (0, "limiter `in flight` has a full queue: it is saturated"),
        ] {
            let policy = build(max_queue);
            let app = waiting(&policy);
            let held = send(&app).await;
            clock.advance(10 * SECOND);
            let refused = send(&app).await;
            assert_eq!((status(&refused), header(&refused, "retry-after")), (503, Some("1")));
            let refused = problem(refused).await;
            assert_eq!(refused["detail"], detail);
            assert!(
                refused["type"]
                    .as_str()
                    .unwrap()
                    .ends_with("#temporary-reduced-capacity")
            );
            drop(held);
        }
    });
}

/// Given a request that waits for a rate, when the queue behind it is full, then a newcomer gets the state of the rate as well.
#[test]
fn a_full_queue_for_a_rate_is_429() {
    let clock = ManualClock::new();
    let policy = Policy::builder().limit(bucket(&clock, SECOND).named("rate"));
    let policy = policy.max_queue(1).build().unwrap();
    let app = waiting(&policy);
    clock.run(async {
        drop(send(&app).await);
        let mut waits = pin!(send(&app));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        assert_eq!(policy.waiting(), 1);
        assert_eq!(status(&send(&app).await), 429);
        assert_eq!(status(&waits.await), 200);
    });
}

#[test]
fn a_wait_for_a_limiter_of_governor_is_429() {
    let clock = ManualClock::new();
    let quota = governor::Quota::with_period(10 * SECOND).unwrap();
    let limiter = governor::RateLimiter::direct_with_clock(quota, clock.clock().clone());
    let policy = Policy::builder().limit(tollgate::Governed::new(limiter).on(&clock).named("rate"));
    let app = waiting(&policy.max_wait(SECOND).build().unwrap());
    clock.run(async {
        drop(send(&app).await);
        assert_eq!(status(&send(&app).await), 429);
    });
}

/// The cause of an unknown key.
#[tokio::test]
async fn the_client_is_not_blamed_for_what_the_service_has_not_set_up() {
    fn keyed<X: ExtractKey<Key: std::hash::Hash + Eq + Clone + Send + Sync + 'static>>(keys: X) -> Router {
        let keyed = Keyed::new(10, |_: &X::Key| Semaphore::new(1));
        hello().layer(LimitLayer::keyed(Arc::new(keyed), keys).respond(HttpRefusals::new()))
    }
    const NOT_SET_UP: &str = "limiter `key` has not been set up";
    let unpriced = Semaphore::new(1).per(Cost::new("bytes"));
    let unpriced = LimitLayer::new(Arc::new(unpriced)).respond(HttpRefusals::new());
    for (app, code, detail) in [
        (keyed(ClientIp::peer()), 500, NOT_SET_UP),
        (keyed(ExtensionKey::<u64>::new()), 500, NOT_SET_UP),
        (
            keyed(HeaderKey::new(HeaderName::from_static("x-api-key"))),
            400,
            "limiter `key` is not in the request",
        ),
        (
            hello().layer(unpriced),
            500,
            "limiter `bytes` counts a cost that was not named",
        ),
    ] {
        let refused = send(&app).await;
        assert_eq!(
            (status(&refused), header(&refused, "retry-after")),
            (code, None),
            "{detail}"
        );
        let problem = problem(refused).await;
        assert_eq!(
            (&problem["detail"], &problem["type"]),
            (&detail.into(), &"about:blank".into())
        );
    }
    assert!(Reason::Unkeyed.is_permanent() && Reason::Misconfigured.is_permanent());
}

/// Given two rates, when the first refuses for a second and the second for a minute, then `Retry-After` is a minute; and a
/// client that comes back then is served.
#[tokio::test]
async fn a_refusal_names_the_instant_of_its_last_leg() {
    let clock = ManualClock::new();
    let both = bucket(&clock, SECOND)
        .named("second")
        .and(bucket(&clock, 60 * SECOND).named("minute"));
    let app = hello().layer(LimitLayer::new(Arc::new(both)).respond(HttpRefusals::new()));
    assert_eq!(status(&send(&app).await), 200);
    let refused = send(&app).await;
    assert_eq!((status(&refused), header(&refused, "retry-after")), (429, Some("60")));
    clock.advance(59 * SECOND);
    assert_eq!(header(&send(&app).await, "retry-after"), Some("1"));
    clock.advance(SECOND);
    assert_eq!(status(&send(&app).await), 200);

    // A permit that may come back at any time does not help before the rate does.
    let in_flight = Semaphore::new(1).named("in flight").and(bucket(&clock, 60 * SECOND));
    let app = hello().layer(LimitLayer::new(Arc::new(in_flight)).respond(HttpRefusals::new()));
    let held = send(&app).await;
    let refused = send(&app).await;
    assert_eq!((status(&refused), header(&refused, "retry-after")), (503, Some("60")));
    drop(held);
}

/// The parameter `t` of each member of the field.
fn windows(response: &Response<Body>) -> Vec<(String, i64)> {
    let list: List = Parser::new(header(response, "ratelimit").unwrap()).parse().unwrap();
    let member = |entry| match entry {
        ListEntry::Item(item) => match (&item.bare_item, &item.params["t"]) {
            (BareItem::String(name), BareItem::Integer(t)) => (name.as_str().to_owned(), i64::from(*t)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    list.into_iter().map(member).collect()
}

fn advertised<G: Gate>(layer: LimitLayer<G>) -> LimitLayer<G, tollgate_http::StatusCodes, HttpRefusals> {
    layer.respond(HttpRefusals::new().rate_limit_fields().legacy_fields())
}

/// Given an outer rate that has nothing left for a minute, when an inner one refuses for some seconds, then `Retry-After` is
/// a minute: no earlier than any window that is stated. And the other way round.
#[tokio::test]
async fn nested_layers_report_the_latest_instant() {
    for (inner, outer) in [(5, 60), (60, 5)] {
        let clock = ManualClock::new();
        // The outer one admits two, and has nothing left after the second.
        let first = Arc::new(SlidingLog::new(1, inner * SECOND).unwrap().on(&clock).named("inner"));
        let two = TokenBucket::new(Quota::new(1, outer * SECOND).unwrap().burst(2)).on(&clock);
        let second = Arc::new(two.named("outer"));
        let app = hello()
            .layer(advertised(LimitLayer::new(first)))
            .layer(advertised(LimitLayer::new(second)));
        assert_eq!(status(&send(&app).await), 200);
        let refused = send(&app).await;
        assert_eq!(status(&refused), 429);
        assert_eq!(policies(&refused), ["inner", "outer"], "the fields of both");
        let retry: i64 = header(&refused, "retry-after").unwrap().parse().unwrap();
        assert_eq!(retry, 60, "{inner} within {outer}");
        for (leg, window) in windows(&refused) {
            assert!(window <= retry, "{leg}: {window} after {retry}");
        }
        let seconds = Duration::from_secs(retry.try_into().unwrap());
        clock.advance(seconds - Duration::from_nanos(1));
        assert_eq!(status(&send(&app).await), 429);
        clock.advance(Duration::from_nanos(1));
        // The outer one may have admitted what the inner one refused meanwhile.
        clock.advance(outer * SECOND);
        assert_eq!(status(&send(&app).await), 200);
    }
}

/// The same where the outer one says nothing of itself.
#[tokio::test]
async fn an_exhausted_silent_outer_layer_counts_as_well() {
    let clock = ManualClock::new();
    let inner = Arc::new(bucket(&clock, 5 * SECOND));
    let outer = TokenBucket::new(Quota::new(1, 60 * SECOND).unwrap().burst(2)).on(&clock);
    let app = hello()
        .layer(LimitLayer::new(inner).respond(HttpRefusals::new()))
        .layer(LimitLayer::new(Arc::new(outer)).respond(HttpRefusals::new()));
    assert_eq!(header(&send(&app).await, "retry-after"), None);
    let refused = send(&app).await;
    assert_eq!((status(&refused), header(&refused, "retry-after")), (429, Some("60")));
    assert_eq!(header(&refused, "ratelimit"), None);

    // Tokens that this request does not need are not waited for.
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let tokens = bucket(&clock, 60 * SECOND);
    tokens.try_acquire(1).unwrap();
    let outer = LimitLayer::new(Arc::new(tokens.per(TOKENS))).cost(|_: &RequestParts<'_>| Ask::one().cost(TOKENS, 0));
    let app = hello()
        .layer(LimitLayer::new(Arc::new(bucket(&clock, 5 * SECOND))).respond(HttpRefusals::new()))
        .layer(outer.respond(HttpRefusals::new()));
    drop(send(&app).await);
    assert_eq!(header(&send(&app).await, "retry-after"), Some("5"));
}

fn policies(response: &Response<Body>) -> Vec<String> {
    let all = response.headers().get_all("ratelimit-policy").iter();
    let all: Vec<_> = all.map(|value| value.to_str().unwrap()).collect();
    let list: List = Parser::new(&all.join(", ")).parse().unwrap();
    let name = |entry| match entry {
        ListEntry::Item(item) => match item.bare_item {
            BareItem::String(name) => name.as_str().to_owned(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    list.into_iter().map(name).collect()
}

#[tokio::test]
async fn of_nested_layers_the_legacy_fields_tell_the_strictest() {
    for (inner, outer) in [(3, 50), (50, 3)] {
        let clock = ManualClock::new();
        let rate = |limit| Arc::new(SlidingWindow::new(limit, 60 * SECOND).unwrap().on(&clock));
        let app = hello()
            .layer(advertised(LimitLayer::new(rate(inner))))
            .layer(advertised(LimitLayer::new(rate(outer))));
        for left in [2, 1, 0] {
            let response = send(&app).await;
            let told = |name| header(&response, name).unwrap().to_owned();
            assert_eq!(
                (told("x-ratelimit-limit"), told("x-ratelimit-remaining")),
                ("3".into(), left.to_string())
            );
        }
        let refused = send(&app).await;
        assert_eq!(
            (status(&refused), header(&refused, "x-ratelimit-remaining")),
            (429, Some("0"))
        );
        assert_eq!(header(&refused, "x-ratelimit-reset"), header(&refused, "retry-after"));
    }
}

/// A `Retry-After` that the service itself has written as a date is left alone.
#[tokio::test]
async fn headers_of_the_service_stay() {
    const DATE: &str = "Fri, 31 Dec 2027 23:59:59 GMT";
    let clock = ManualClock::new();
    let busy = async || (http::StatusCode::SERVICE_UNAVAILABLE, [("retry-after", DATE)], "later");
    let limit = Arc::new(bucket(&clock, 60 * SECOND));
    let app = Router::new()
        .route("/", get(busy))
        .layer(advertised(LimitLayer::new(limit)));
    let response = send(&app).await;
    assert_eq!((status(&response), header(&response, "retry-after")), (503, Some(DATE)));
}

/// On a known connection, the field of an untrusted proxy chooses nothing.
#[tokio::test]
async fn a_forged_field_from_elsewhere_does_not_choose_the_key() {
    let clock = ManualClock::new();
    let keyed = Keyed::new(100, move |_: &IpAddr| bucket(&clock, SECOND));
    let keys = ClientIp::behind(1).trusting("10.0.0.0".parse().unwrap(), 8);
    let app = hello().layer(LimitLayer::keyed(Arc::new(keyed), keys).respond(HttpRefusals::new()));
    let ask = async |peer: &str, forwarded: &str| {
        let peer: SocketAddr = peer.parse().unwrap();
        let request = Request::builder().uri("/").extension(ConnectInfo(peer));
        let request = request
            .header("x-forwarded-for", forwarded)
            .body(Body::empty())
            .unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(ask("198.51.100.9:1", "203.0.113.1").await, 200);
    for forged in ["203.0.113.2", "203.0.113.3, 203.0.113.4"] {
        assert_eq!(ask("198.51.100.9:2", forged).await, 429, "{forged}");
    }
    assert_eq!(ask("10.0.0.1:1", "203.0.113.2").await, 200);
    assert_eq!(
        ask("10.0.0.1:1", "203.0.113.3").await,
        200,
        "each client behind the proxy by itself"
    );
}

/// Legs that are no rates are advertised only when that is asked for, and those without numbers not at all.
#[tokio::test]
async fn a_limiter_without_a_quota_is_not_stated() {
    let budget = tollgate_resilience::shed::RetryBudget::new(0.1, 3).unwrap();
    budget.describe(&mut |leg| assert!(matches!(leg.state, State::Budget { limit: 3, .. })));
    assert!(budget.try_admit(Ask::one()).is_ok());
    let all = HttpRefusals::new().rate_limit_fields_of(|_| true).legacy_fields();
    let app = hello().layer(LimitLayer::new(Arc::new(budget)).respond(all));
    let response = send(&app).await;
    for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"] {
        assert_eq!(header(&response, name), None, "{name}");
    }
}
