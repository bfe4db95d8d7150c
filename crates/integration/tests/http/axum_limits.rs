//! Keys of requests, and what clients are told, in a router of axum.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use sfv::{BareItem, List, ListEntry, Parser};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::KeyedRate;
use tollgate::{
    Ask, FixedWindow, Keyed, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason, Semaphore, SlidingLog,
    SlidingWindow, TokenBucket,
};
use tollgate_http::axum::{
    ClientIp, ExtensionKey, HeaderKey, HttpRefusals, QuotaPolicy, QuotaUnit, ServiceLimit, is_preflight,
};
use tollgate_http::{ExtractKey, LimitLayer, RequestParts};
use tollgate_resilience::CircuitBreaker;
use tower::ServiceExt;

const SECOND: Duration = Duration::from_secs(1);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn from(peer: &str, forwarded: &[&str]) -> Request<Body> {
    let peer = SocketAddr::new(ip(peer), 4711);
    let mut request = Request::builder().uri("/").extension(ConnectInfo(peer));
    for line in forwarded {
        request = request.header("x-forwarded-for", *line);
    }
    request.body(Body::empty()).unwrap()
}

fn key(keys: &ClientIp, peer: &str, forwarded: &[&str]) -> IpAddr {
    keys.key(&RequestParts::of(&from(peer, forwarded))).unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn without_proxies_the_key_is_the_address_of_the_connection() {
    let keys = ClientIp::peer();
    assert_eq!(key(&keys, "203.0.113.7", &["1.2.3.4"]), ip("203.0.113.7"));
    assert_eq!(key(&keys, "::ffff:203.0.113.7", &[]), ip("203.0.113.7"), "mapped");
    assert_eq!(keys.key(&RequestParts::of(&Request::new(()))), None);
}

#[test]
fn hops_are_counted_from_the_right() {
    let one = ClientIp::behind(1);
    assert_eq!(key(&one, "10.0.0.1", &["203.0.113.7"]), ip("203.0.113.7"));
    assert_eq!(
        key(&one, "10.0.0.1", &["1.1.1.1,2.2.2.2 , 203.0.113.7"]),
        ip("203.0.113.7")
    );
    let two = ClientIp::behind(2);
    assert_eq!(
        key(&two, "10.0.0.1", &["1.1.1.1, 203.0.113.7, 10.0.0.2"]),
        ip("203.0.113.7")
    );
    // Several fields are one list.
    assert_eq!(
        key(&two, "10.0.0.1", &["1.1.1.1", "203.0.113.7", "10.0.0.2"]),
        ip("203.0.113.7")
    );
    assert_eq!(
        key(&two, "10.0.0.1", &["1.1.1.1, 203.0.113.7", "10.0.0.2"]),
        ip("203.0.113.7")
    );
    // Fewer entries than proxies, and entries that are no addresses, say nothing.
    assert_eq!(key(&two, "10.0.0.1", &["10.0.0.2"]), ip("10.0.0.1"));
    for nonsense in ["", "unknown", "_hidden", "203.0.113", "203.0.113.7:x", "[::1", "\t"] {
        assert_eq!(key(&one, "10.0.0.1", &[nonsense]), ip("10.0.0.1"), "{nonsense:?}");
    }
    for with_port in [
        "203.0.113.7:80",
        " 203.0.113.7 ",
        "::ffff:203.0.113.7",
        "[::ffff:203.0.113.7]:80",
    ] {
        assert_eq!(key(&one, "10.0.0.1", &[with_port]), ip("203.0.113.7"), "{with_port:?}");
    }
    let other = ClientIp::behind(1).header(HeaderName::from_static("x-real-ip"));
    assert_eq!(key(&other, "10.0.0.1", &["203.0.113.7"]), ip("10.0.0.1"));
}

#[test]
fn only_trusted_proxies_are_believed() {
    let keys = ClientIp::behind(1)
        .trusting(ip("10.0.0.0"), 8)
        .trusting(ip("fd00::"), 8);
    assert_eq!(key(&keys, "10.9.9.9", &["203.0.113.7"]), ip("203.0.113.7"));
    assert_eq!(key(&keys, "fd12::1", &["203.0.113.7"]), ip("203.0.113.7"));
    assert_eq!(key(&keys, "11.0.0.1", &["203.0.113.7"]), ip("11.0.0.1"));
    assert_eq!(key(&keys, "2001:db8::1", &["203.0.113.7"]), ip("2001:db8::"));
    // Each proxy on the way has to be one of them: headers that others brought along are not read.
    let two = ClientIp::behind(2).trusting(ip("10.0.0.0"), 8);
    assert_eq!(key(&two, "10.0.0.1", &["8.8.8.8, 203.0.113.66"]), ip("203.0.113.66"));
    assert_eq!(
        key(&two, "10.0.0.1", &["8.8.8.8, 203.0.113.66, 10.0.0.2"]),
        ip("203.0.113.66")
    );
    assert_eq!(key(&two, "10.0.0.1", &["10.0.0.2"]), ip("10.0.0.2"));
}

#[test]
fn addresses_are_cut_to_prefixes() {
    let keys = ClientIp::peer();
    assert_eq!(key(&keys, "2001:db8:1:2:3:4:5:6", &[]), ip("2001:db8:1:2::"));
    assert_eq!(
        key(&keys.clone().v6_prefix(56), "2001:db8:1:2ff::1", &[]),
        ip("2001:db8:1:200::")
    );
    assert_eq!(key(&keys.clone().v6_prefix(200), "2001:db8::1", &[]), ip("2001:db8::1"));
    assert_eq!(key(&keys.clone().v6_prefix(0), "2001:db8::1", &[]), ip("::"));
    assert_eq!(key(&keys.clone().v4_prefix(24), "203.0.113.7", &[]), ip("203.0.113.0"));
    assert_eq!(key(&keys.v4_prefix(0), "203.0.113.7", &[]), ip("0.0.0.0"));
}

/// `64:ff9b::/96` is of RFC 6052, and `64:ff9b:1::/48` of RFC 8215.
#[test]
fn clients_behind_a_translator_have_keys_of_their_own() {
    let direct = ClientIp::peer().v4_prefix(24);
    for (peer, right) in [
        ("64:ff9b::808:808", "8.8.8.0"),
        ("64:ff9b::909:909", "9.9.9.0"),
        ("64:ff9b:1::808:808", "64:ff9b:1::808:808"),
        ("64:ff9b:1::808:809", "64:ff9b:1::808:809"),
        ("64:ff9b:2::808:808", "64:ff9b:2::"),
        ("64:ff9b::1:808:808", "64:ff9b::"),
        ("64:ff9c::808:808", "64:ff9c::"),
    ] {
        assert_eq!(key(&direct, peer, &[]), ip(right), "{peer}");
        let behind = ClientIp::behind(1).v4_prefix(24);
        assert_eq!(key(&behind, "10.0.0.1", &[peer]), ip(right), "behind a proxy, {peer}");
    }
}

#[test]
fn a_translated_address_of_a_trusted_network_is_not_trusted() {
    let keys = ClientIp::behind(1).trusting(ip("10.0.0.0"), 8);
    assert_eq!(key(&keys, "64:ff9b::a00:1", &["203.0.113.7"]), ip("10.0.0.1"));
    let keys = keys.trusting(ip("64:ff9b::"), 96);
    assert_eq!(key(&keys, "64:ff9b::a00:1", &["203.0.113.7"]), ip("203.0.113.7"));
    assert_eq!(key(&keys, "11.0.0.1", &["203.0.113.7"]), ip("11.0.0.1"));
}

#[test]
fn the_zone_of_an_address_is_cut_off() {
    let keys = ClientIp::behind(1);
    for (entry, right) in [
        ("fe80::1%eth0", "fe80::"),
        ("[fe80::1%eth0]", "fe80::"),
        ("[fe80::1%eth0]:443", "fe80::"),
        ("2001:db8::1%2", "2001:db8::"),
        ("[2001:db8::1%2]:443", "2001:db8::"),
    ] {
        assert_eq!(key(&keys, "10.0.0.1", &[entry]), ip(right), "{entry}");
    }
    for nonsense in [
        "203.0.113.7%eth0",
        "203.0.113.7:80%eth0",
        "%eth0",
        "fe80::1]%eth0",
        "[fe80::1%eth0",
        "[fe80::1%eth0]:x",
    ] {
        assert_eq!(key(&keys, "10.0.0.1", &[nonsense]), ip("10.0.0.1"), "{nonsense:?}");
    }
}

#[test]
fn the_key_of_a_sensitive_value_hides_it() {
    let of = |is_sensitive| {
        let mut secret = HeaderValue::from_static("Bearer sk-live-1234");
        secret.set_sensitive(is_sensitive);
        let request = Request::builder().header(AUTHORIZATION, secret).body(()).unwrap();
        HeaderKey::new(AUTHORIZATION).key(&RequestParts::of(&request)).unwrap()
    };
    let (hidden, shown) = (of(true), of(false));
    assert!(!format!("{hidden:?}").contains("sk-live-1234"), "{hidden:?}");
    assert!(format!("{shown:?}").contains("sk-live-1234"));
    assert_eq!(hidden, shown, "one limiter for both");
}

#[test]
fn header_and_extension_are_keys_when_they_are_there_once() {
    let keys = HeaderKey::new(HeaderName::from_static("x-api-key"));
    let of = |values: &[&str]| {
        let mut request = Request::builder();
        for value in values {
            request = request.header("x-api-key", *value);
        }
        keys.key(&RequestParts::of(&request.body(()).unwrap()))
    };
    assert_eq!(of(&["a"]), Some(HeaderValue::from_static("a")));
    assert_eq!((of(&[]), of(&["a", "b"])), (None, None));
    assert!(of(&["x".repeat(HeaderKey::MAX_LENGTH).as_str()]).is_some());
    assert!(of(&["x".repeat(HeaderKey::MAX_LENGTH + 1).as_str()]).is_none());

    let keys = ExtensionKey::<u64>::new();
    let request = Request::builder().extension(7u64).body(()).unwrap();
    assert_eq!(keys.key(&RequestParts::of(&request)), Some(7));
    assert_eq!(keys.key(&RequestParts::of(&Request::new(()))), None);
}

fn clients(clock: &ManualClock) -> Arc<Keyed<IpAddr, impl tollgate::Limiter + use<>>> {
    let clock = clock.clone();
    Arc::new(Keyed::new(1_000, move |_: &IpAddr| {
        TokenBucket::new(Quota::per_minute(12).burst(2))
            .on(&clock)
            .named("client")
    }))
}

#[tokio::test]
async fn a_rate_of_a_few_bytes_per_client_refuses_and_tells_what_is_left() {
    let clock = ManualClock::new();
    let rates = Arc::new(KeyedRate::<IpAddr>::new(2, Quota::per_minute(12).burst(2)).on(&clock));
    let limit = LimitLayer::keyed_rate(Arc::clone(&rates), ClientIp::peer())
        .cost(|parts: &RequestParts<'_>| Ask::many(parts.uri().query().map_or(1, |query| query.parse().unwrap())))
        .exempt(is_preflight)
        .respond(HttpRefusals::new().rate_limit_fields());
    let app = Router::new().route("/", get(async || "hello")).layer(limit);
    let ask = async |client: &str, path: &str| {
        let mut request = from(client, &[]);
        *request.uri_mut() = path.parse().unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let field = |name| header(&response, name).unwrap_or_default().to_owned();
        (response.status().as_u16(), field("ratelimit"), field("retry-after"))
    };
    let said = |status, fields: &str, after: &str| (status, fields.to_owned(), after.to_owned());
    assert_eq!(ask("203.0.113.7", "/").await, said(200, r#""keyed_rate";r=1;t=5"#, ""));
    clock.advance(Duration::from_millis(1_300));
    assert_eq!(ask("203.0.113.7", "/?2").await.0, 429);
    assert_eq!(ask("203.0.113.7", "/").await.0, 200);
    // 3.7 s before the next token: four seconds.
    assert_eq!(ask("203.0.113.7", "/").await, said(429, r#""keyed_rate";r=0;t=4"#, "4"));
    assert_eq!(ask("203.0.113.7", "/?3").await.0, 413);
    assert_eq!(ask("203.0.113.8", "/?2").await.0, 200);
    // No bucket is full: there is no room for a third client.
    assert_eq!(ask("203.0.113.9", "/").await, said(503, "", "1"));
    assert_eq!(rates.available(&ip("203.0.113.7")), 0);
    let mut no_address = from("203.0.113.7", &[]);
    no_address.extensions_mut().clear();
    assert_eq!(app.oneshot(no_address).await.unwrap().status(), 500);
}

#[tokio::test]
async fn a_client_that_exceeds_its_rate_gets_a_429() {
    let clock = ManualClock::new();
    let limit = LimitLayer::keyed(clients(&clock), ClientIp::behind(1))
        .exempt(is_preflight)
        .respond(HttpRefusals::new().rate_limit_fields().legacy_fields());
    let app = Router::new().route("/", get(async || "hello")).layer(limit);
    let ask = async |request| app.clone().oneshot(request).await.unwrap();
    let client = || from("10.0.0.1", &["203.0.113.7"]);

    let first = ask(client()).await;
    assert_eq!(first.status(), 200);
    assert_eq!(header(&first, "ratelimit-policy"), Some(r#""client";q=2;w=10"#));
    assert_eq!(header(&first, "ratelimit"), Some(r#""client";r=1;t=5"#));
    assert_eq!(text(first).await, "hello");
    assert_eq!(ask(client()).await.status(), 200);

    // 3.7 s before the next token: four seconds.
    clock.advance(Duration::from_millis(1_300));
    let refused = ask(client()).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(header(&refused, "retry-after"), Some("4"));
    assert_eq!(header(&refused, "ratelimit"), Some(r#""client";r=0;t=4"#));
    assert_eq!(header(&refused, "x-ratelimit-limit"), Some("2"));
    assert_eq!(header(&refused, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(header(&refused, "x-ratelimit-reset"), Some("4"));
    assert_eq!(header(&refused, "content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(
        problem["title"],
        "Request cannot be satisfied as assigned quota has been exceeded"
    );
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["detail"], "limiter `client` has exceeded its rate");
    assert_eq!(problem["violated-policies"], serde_json::json!(["client"]));

    // Whatever a client writes to the left does not choose its key; others are not concerned.
    for forged in [
        "1.1.1.1, 203.0.113.7",
        "198.51.100.1,203.0.113.7",
        "unknown, 203.0.113.7",
    ] {
        assert_eq!(ask(from("10.0.0.1", &[forged])).await.status(), 429, "{forged}");
    }
    assert_eq!(
        ask(from("10.0.0.1", &["198.51.100.1", "203.0.113.7"])).await.status(),
        429
    );
    assert_eq!(ask(from("10.0.0.1", &["203.0.113.8"])).await.status(), 200);

    // A preflight is exempt; a mere OPTIONS is not.
    let mut preflight = client();
    *preflight.method_mut() = Method::OPTIONS;
    assert_eq!(app.clone().oneshot(preflight).await.unwrap().status(), 429);
    let mut preflight = client();
    *preflight.method_mut() = Method::OPTIONS;
    preflight
        .headers_mut()
        .insert("origin", "https://example.org".parse().unwrap());
    preflight
        .headers_mut()
        .insert("access-control-request-method", "GET".parse().unwrap());
    assert_eq!(ask(preflight).await.status(), 405, "it reaches the router");

    // The promise holds: refused just before, admitted at it.
    clock.advance(Duration::from_millis(3_699));
    assert_eq!(ask(client()).await.status(), 429);
    clock.advance(Duration::from_millis(301));
    assert_eq!(ask(client()).await.status(), 200);
}

#[tokio::test]
async fn the_services_own_limits_are_503_with_an_instant_where_one_is_known() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().count_window(2).minimum_calls(2);
    let breaker = Arc::new(breaker.on(&clock).build().unwrap());
    for _ in 0..2 {
        breaker.try_admit(Ask::one()).unwrap().finish(Outcome::Failure);
    }
    let open = breaker.retry_after().unwrap();
    let app = Router::new().route("/", get(async || "hello"));
    let broken = app
        .clone()
        .layer(LimitLayer::new(breaker).respond(HttpRefusals::new().rate_limit_fields()));
    let refused = broken.oneshot(from("10.0.0.1", &[])).await.unwrap();
    assert_eq!(refused.status(), 503);
    let retry: u64 = header(&refused, "retry-after").unwrap().parse().unwrap();
    assert!(Duration::from_secs(retry) >= open && Duration::from_secs(retry) < open + SECOND);
    assert_eq!(header(&refused, "ratelimit"), None, "a breaker has no quota");
    let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(problem["violated-policies"], serde_json::json!(["breaker"]));

    // The return of a permit has no known instant.
    let full = Arc::new(Semaphore::new(1));
    let _held = full.try_acquire().unwrap();
    let refusals = HttpRefusals::new()
        .retry_unknown(Duration::from_millis(2_500))
        .rate_limit_fields_of(|_| true);
    let saturated = app.clone().layer(LimitLayer::new(Arc::clone(&full)).respond(refusals));
    let refused = saturated.oneshot(from("10.0.0.1", &[])).await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), header(&refused, "retry-after")),
        (503, Some("3"))
    );
    assert_eq!(
        header(&refused, "ratelimit-policy"),
        Some(r#""semaphore";q=1;qu="concurrent-requests""#)
    );
    assert_eq!(header(&refused, "ratelimit"), Some(r#""semaphore";r=0"#));

    // What is closed stays closed.
    let closed = Arc::new(Semaphore::new(1));
    closed.close();
    let app = app.layer(LimitLayer::new(closed).respond(HttpRefusals::new()));
    let refused = app.oneshot(from("10.0.0.1", &[])).await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), header(&refused, "retry-after")),
        (503, None)
    );
    assert!(text(refused).await.contains("about:blank"));
}

/// `RateLimit` and `X-RateLimit-Reset` of a response to a request for `units`.
async fn said<L: Limiter + 'static>(window: &Arc<L>, units: u64) -> (String, String) {
    let refusals = HttpRefusals::new().rate_limit_fields().legacy_fields();
    let layer = LimitLayer::new(Arc::clone(window)).cost(move |_: &RequestParts<'_>| Ask::many(units));
    let app: Router = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer.respond(refusals));
    let response = app.oneshot(from("10.0.0.1", &[])).await.unwrap();
    let text = |name| header(&response, name).unwrap().to_owned();
    (text("ratelimit"), text("x-ratelimit-reset"))
}

/// Given a window of a minute that is nearly spent at its beginning, or nearly unused at its end, then what is left is left for the rest
/// of the minute.
#[tokio::test]
async fn the_fields_name_the_end_of_a_window() {
    let clock = ManualClock::new();
    let minute = 60 * SECOND;
    let spent = Arc::new(FixedWindow::new(100, minute).unwrap().on(&clock));
    let unused = Arc::new(FixedWindow::new(100, minute).unwrap().on(&clock));
    let sliding = Arc::new(SlidingLog::new(100, minute).unwrap().on(&clock));
    unused.try_acquire(1).unwrap();
    clock.advance(SECOND);
    let expect = |field: &str, reset: &str| (field.to_owned(), reset.to_owned());
    assert_eq!(said(&spent, 99).await, expect(r#""fixed_window";r=1;t=59"#, "59"));
    assert_eq!(said(&sliding, 99).await, expect(r#""sliding_log";r=1;t=60"#, "60"));
    clock.advance(58 * SECOND);
    assert_eq!(said(&unused, 1).await, expect(r#""fixed_window";r=98;t=1"#, "1"));
    assert_eq!(said(&spent, 1).await, expect(r#""fixed_window";r=0;t=1"#, "1"));
}

/// A trial of two requests, by itself, before a semaphore and behind one, and with a wait in a queue.
#[tokio::test]
async fn a_spent_rate_of_zero_promises_no_time() {
    let clock = ManualClock::new();
    let trial = || TokenBucket::new(Quota::zero().burst(2)).on(&clock);
    let app: Router = Router::new().route("/", get(async || "hello"));
    let refusals = HttpRefusals::new().rate_limit_fields();
    let slots = || Semaphore::new(9);
    let hourly = || TokenBucket::new(Quota::per_hour(2).burst(2)).on(&clock);
    let queue = Policy::builder()
        .limit(trial())
        .max_wait(SECOND)
        .on(&clock)
        .build()
        .unwrap();
    let apps = [
        app.clone().layer(LimitLayer::new(Arc::new(trial())).respond(refusals)),
        app.clone()
            .layer(LimitLayer::new(Arc::new(trial().and(slots()))).respond(refusals)),
        app.clone()
            .layer(LimitLayer::new(Arc::new(slots().and(trial()))).respond(refusals)),
        app.clone()
            .layer(LimitLayer::new(Arc::new(trial().and(hourly()))).respond(refusals)),
        app.clone()
            .layer(LimitLayer::new(Arc::new(hourly().and(trial()))).respond(refusals)),
        app.layer(LimitLayer::waiting(queue).respond(refusals)),
    ];
    for (number, app) in apps.into_iter().enumerate() {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            let (response, ()) = futures::join!(app.clone().oneshot(from("10.0.0.1", &[])), async {
                clock.advance(SECOND);
            });
            let response = response.unwrap();
            statuses.push(response.status().as_u16());
            assert_eq!(header(&response, "retry-after"), None, "{number}: {statuses:?}");
        }
        assert_eq!(statuses, [200, 200, 429, 429], "{number}");
    }
}

#[tokio::test]
async fn a_chosen_status_is_in_head_and_body_and_the_type_stays() {
    let app = Router::new().route("/", get(async || "hello"));
    let refusals = HttpRefusals::new().status_for(|reason| match reason {
        Reason::Saturated | Reason::TimedOut => Some(StatusCode::TOO_MANY_REQUESTS),
        Reason::Oversized => Some(StatusCode::UNPROCESSABLE_ENTITY),
        _ => None,
    });
    let full = || LimitLayer::new(Arc::new(Semaphore::new(0))).respond(refusals);
    let empty = TokenBucket::new(Quota::per_minute(60).burst(1)).on(&ManualClock::new());
    empty.try_admit(1).unwrap().forget();
    let rate = LimitLayer::new(Arc::new(empty)).respond(refusals);
    let closed = Semaphore::new(1);
    closed.close();
    let closed = LimitLayer::new(Arc::new(closed)).respond(refusals);
    let small = TokenBucket::new(Quota::per_second(1)).on(&ManualClock::new());
    let large = LimitLayer::new(Arc::new(small))
        .cost(|_: &RequestParts<'_>| Ask::many(9))
        .respond(refusals);
    let clock = ManualClock::new();
    let busy = Policy::builder()
        .limit(Semaphore::new(0))
        .max_wait(Duration::ZERO)
        .on(&clock);
    let waited = LimitLayer::waiting(busy.build().unwrap()).respond(refusals);
    let after = Some("1");
    for (app, status, kind, title, retry) in [
        (
            app.clone().layer(full()),
            429,
            "temporary-reduced-capacity",
            "temporary server",
            after,
        ),
        (
            app.clone().layer(waited),
            429,
            "temporary-reduced-capacity",
            "temporary server",
            after,
        ),
        (app.clone().layer(rate), 429, "quota-exceeded", "assigned quota", after),
        (
            app.clone().layer(closed),
            503,
            "about:blank",
            "Service Unavailable",
            None,
        ),
        (app.layer(large), 422, "about:blank", "Unprocessable Entity", None),
    ] {
        let refused = app.oneshot(from("10.0.0.1", &[])).await.unwrap();
        assert_eq!(
            (refused.status().as_u16(), header(&refused, "retry-after")),
            (status, retry),
            "{kind}"
        );
        let problem: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
        assert_eq!(problem["status"], status);
        let text = |field: &str| problem[field].as_str().unwrap().to_owned();
        assert!(
            text("type").ends_with(kind) && text("title").contains(title),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn all_rates_of_a_policy_are_stated_in_one_field() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(
            TokenBucket::new(Quota::per_second(100).burst(20))
                .on(&clock)
                .named("burst"),
        )
        .limit(
            SlidingWindow::new(1_000, 3_600 * SECOND)
                .unwrap()
                .on(&clock)
                .named("hourly \u{201c}q\u{201d}"),
        )
        .limit(Semaphore::new(10).named("in flight"))
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "hello"));
    let app = app.layer(LimitLayer::waiting(policy).respond(HttpRefusals::new().rate_limit_fields()));
    let response = app.oneshot(from("10.0.0.1", &[])).await.unwrap();
    assert_eq!(
        header(&response, "ratelimit-policy"),
        Some(r#""burst";q=100;w=1, "hourly _q_";q=1000;w=3600"#)
    );
    // The unit that was taken is back after the hour and one of its 64 segments.
    assert_eq!(
        header(&response, "ratelimit"),
        Some(r#""burst";r=19;t=1, "hourly _q_";r=999;t=3657"#)
    );
}

fn parsed(field: &str) -> List {
    Parser::new(field)
        .parse()
        .unwrap_or_else(|error| panic!("{field}: {error}"))
}

/// The examples of draft-ietf-httpapi-ratelimit-headers-11, sections 3 to 4.2, 6 to 8 and appendix B.
#[test]
fn fields_are_those_of_the_drafts_own_examples() {
    let policy = QuotaPolicy::new;
    for (ours, theirs) in [
        (
            vec![policy("burst", 100).window(60), policy("daily", 1_000).window(86_400)],
            r#""burst";q=100;w=60,"daily";q=1000;w=86400"#,
        ),
        (vec![policy("default", 100).window(10)], r#""default";q=100;w=10"#),
        (
            vec![policy("permin", 50).window(60), policy("perhr", 1_000).window(3_600)],
            r#""permin";q=50;w=60,"perhr";q=1000;w=3600"#,
        ),
        (
            vec![policy("somepolicy", 10_000).window(1_000)],
            r#""somepolicy";q=10000;w=1000"#,
        ),
        (
            vec![policy("fixedwindow", 100).window(60)],
            r#""fixedwindow";q=100;w=60"#,
        ),
        (vec![policy("dynamic", 15).window(20)], r#""dynamic";q=15;w=20"#),
        (
            vec![policy("hour", 1_000).window(3_600), policy("day", 5_000).window(86_400)],
            r#""hour";q=1000;w=3600, "day";q=5000;w=86400"#,
        ),
    ] {
        let ours = QuotaPolicy::field(&ours).unwrap();
        assert_eq!(parsed(ours.to_str().unwrap()), parsed(theirs));
        assert_eq!(ours.to_str().unwrap().replace(", ", ","), theirs.replace(", ", ","));
    }
    let limit = ServiceLimit::new;
    for (ours, theirs) in [
        (limit("default", 50).window(30), r#""default";r=50;t=30"#),
        (
            limit("default", 999).partition_key("trial121323"),
            r#""default";r=999;pk=:dHJpYWwxMjEzMjM=:"#,
        ),
        (
            limit("default", 300_000_000).window(60).partition_key("App-999"),
            r#""default";r=300000000;t=60;pk=:QXBwLTk5OQ==:"#,
        ),
        (limit("problemPolicy", 0).window(10), r#""problemPolicy";r=0;t=10"#),
        (limit("default", 1).window(7), r#""default";r=1;t=7"#),
        (limit("daily", 1).window(86_400), r#""daily";r=1;t=86400"#),
        (limit("dayLimit", 100).window(36_000), r#""dayLimit";r=100;t=36000"#),
    ] {
        assert_eq!(ServiceLimit::field(&[ours]).unwrap(), theirs);
    }
    assert_eq!((QuotaPolicy::field(&[]), ServiceLimit::field(&[])), (None, None));

    // The base64 of these two has stray bits at its end, which no encoder of bytes would write: the bytes are the same.
    let peruser = |quota| policy("peruser", quota);
    for (ours, theirs) in [
        (peruser(100).window(60), r#""peruser";q=100;w=60;pk=:cHsdsRa894==:"#),
        (
            peruser(65_535).unit(QuotaUnit::ContentBytes).window(10),
            r#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:"#,
        ),
    ] {
        let theirs = parsed(theirs);
        let [ListEntry::Item(item)] = theirs.as_slice() else {
            panic!("one item");
        };
        let BareItem::ByteSequence(key) = &item.params["pk"] else {
            panic!("{item:?}");
        };
        let ours = QuotaPolicy::field(&[ours.partition_key(key.clone())]).unwrap();
        assert_eq!(parsed(ours.to_str().unwrap()), theirs);
    }
}

/// A partition key and a unit, as in section 3.2: the members, their types, and their order.
#[test]
fn units_and_partition_keys_are_written_as_the_draft_types_them() {
    let peruser = QuotaPolicy::new("peruser", 65_535).window(10);
    let peruser = peruser.unit(QuotaUnit::ContentBytes).partition_key([0xb1, 0xd7, 0xe3]);
    let field = QuotaPolicy::field(&[peruser]).unwrap();
    assert_eq!(field, r#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfj:"#);
    let list = parsed(field.to_str().unwrap());
    let [ListEntry::Item(item)] = list.as_slice() else {
        panic!("one item");
    };
    assert!(matches!(item.bare_item, BareItem::String(_)));
    assert!(matches!(item.params["q"], BareItem::Integer(_)));
    assert!(matches!(item.params["qu"], BareItem::String(_)));
    assert!(matches!(item.params["w"], BareItem::Integer(_)));
    assert!(matches!(item.params["pk"], BareItem::ByteSequence(_)));
}

#[test]
fn numbers_that_no_structured_field_holds_are_cut() {
    let field = QuotaPolicy::field(&[QuotaPolicy::new("\u{1f980}\"\\", u64::MAX).window(0)]).unwrap();
    assert_eq!(field, r#""_\"\\";q=999999999999999;w=1"#);
}
