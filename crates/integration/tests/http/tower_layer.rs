//! The layer by itself: what holds a permit, for how long, and what is learnt.

use crate::diary::Diary;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{
    Ask, Cost, Keyed, LimiterExt, ManualClock, Order, Outcome, Policy, Quota, Reason, Semaphore, TokenBucket,
};
use tollgate_http::{Classify, GrpcCodes, LimitError, LimitLayer, RequestParts, ResponseOutcome};
use tollgate_resilience::Adaptive;
use tollgate_resilience::{BreakerState, CircuitBreaker};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

type Frames = futures::channel::mpsc::UnboundedReceiver<Result<Frame<Bytes>, &'static str>>;
type Sender = futures::channel::mpsc::UnboundedSender<Result<Frame<Bytes>, &'static str>>;

fn get() -> Request<()> {
    Request::new(())
}

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

/// Answers with this status and no body.
fn answers(
    status: u16,
) -> impl Service<Request<()>, Response = Response<Empty<Bytes>>, Error = Infallible, Future: Send> + Clone {
    service_fn(move |_| -> Ready<Result<_, Infallible>> {
        let mut response = Response::new(Empty::new());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        ready(Ok(response))
    })
}

/// A service whose body is what is sent into the channel, once.
fn streams() -> (
    Sender,
    impl Service<Request<()>, Response = Response<StreamBody<Frames>>, Error = Infallible> + Clone,
) {
    let (sender, frames) = futures::channel::mpsc::unbounded();
    let frames = Arc::new(Mutex::new(Some(frames)));
    let service = service_fn(move |_| -> Ready<Result<_, Infallible>> {
        let frames = frames.lock().unwrap().take().expect("called once");
        ready(Ok(Response::new(StreamBody::new(frames))))
    });
    (sender, service)
}

#[tokio::test]
async fn a_ready_service_holds_nothing_and_a_response_holds_its_permit() {
    let gate = Arc::new(Semaphore::new(1));
    let mut service = LimitLayer::new(Arc::clone(&gate)).layer(answers(200));
    let mut other = service.clone();
    service.ready().await.unwrap();
    other.ready().await.unwrap();
    assert_eq!(gate.in_use(), 0);

    let response = service.call(get()).await.unwrap();
    assert_eq!(gate.in_use(), 1);
    let refused = other.call(get()).await.unwrap_err();
    assert!(
        matches!(&refused, LimitError::Refused(r) if r.reason() == Reason::Saturated),
        "{refused:?}"
    );
    drop(response);
    assert!(other.call(get()).await.is_ok());
}

#[tokio::test]
async fn a_stream_holds_one_permit_until_its_end() {
    let gate = Arc::new(Semaphore::new(2));
    let (sender, service) = streams();
    let response = LimitLayer::new(Arc::clone(&gate))
        .layer(service)
        .oneshot(get())
        .await
        .unwrap();
    let mut body = response.into_body();
    sender.unbounded_send(data("one")).unwrap();
    sender.unbounded_send(data("two")).unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    assert_eq!((gate.in_use(), body.is_holding()), (1, true));
    drop(sender);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
    assert_eq!(gate.in_use(), 1);
    assert!(body.frame().await.is_none());
    assert_eq!((gate.in_use(), body.is_holding()), (0, false));
}

/// What each way of ending tells the limiter.
#[tokio::test]
async fn the_end_of_a_body_says_how_the_work_ended() {
    let diary = Arc::new(Diary::default());
    let layer = LimitLayer::new(Arc::clone(&diary));
    let told = || diary.take();

    // Read to its end.
    let (sender, service) = streams();
    drop(sender);
    let response = layer.layer(service).oneshot(get()).await.unwrap();
    assert_eq!(told(), []);
    response.into_body().collect().await.unwrap();
    assert_eq!(told(), [Outcome::Success]);

    // Broken off by the service.
    let (sender, service) = streams();
    sender.unbounded_send(Err("broken")).unwrap();
    let response = layer.layer(service).oneshot(get()).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    assert_eq!(told(), [Outcome::Failure]);

    // Dropped by a client that has read a part: the head was good.
    let (sender, service) = streams();
    sender.unbounded_send(data("part")).unwrap();
    let mut response = layer.layer(service).oneshot(get()).await.unwrap();
    response.frame().await.unwrap().unwrap();
    drop(response);
    assert_eq!(told(), [Outcome::Success]);

    // An empty body ends where it begins: a server does not ask it for frames.
    drop(layer.layer(answers(503)).oneshot(get()).await.unwrap());
    assert_eq!(told(), [Outcome::Overload]);
    drop(layer.layer(answers(500)).oneshot(get()).await.unwrap());
    assert_eq!(told(), [Outcome::Failure]);
    drop(layer.layer(answers(404)).oneshot(get()).await.unwrap());
    assert_eq!(told(), [Outcome::Success]);

    // A head that says failure has said all: a client that sees it may drop the body unread.
    let (_sender, service) = streams();
    let failing = service.map_response(|mut response| {
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    });
    drop(layer.layer(failing).oneshot(get()).await.unwrap());
    assert_eq!(told(), [Outcome::Failure]);

    // As many bytes as were declared, and a server that asks for no more.
    let (sender, service) = streams();
    sender.unbounded_send(data("four")).unwrap();
    let declared = service.map_response(|mut response| {
        response.headers_mut().insert("content-length", 4.into());
        response
    });
    let mut response = layer.layer(declared).oneshot(get()).await.unwrap();
    response.frame().await.unwrap().unwrap();
    drop(response);
    assert_eq!(told(), [Outcome::Success]);

    // The body of an answer to HEAD is never sent.
    let full = service_fn(|_| {
        ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
            b"body",
        )))))
    });
    let head = Request::builder().method(Method::HEAD).body(()).unwrap();
    drop(layer.layer(full).oneshot(head).await.unwrap());
    assert_eq!(told(), [Outcome::Success]);

    // No response at all.
    let fails = service_fn(|_| ready(Err::<Response<Empty<Bytes>>, _>("refused connection")));
    let error = layer.layer(fails).oneshot(get()).await.unwrap_err();
    assert_eq!(error, LimitError::Inner("refused connection"));
    assert_eq!(told(), [Outcome::Failure]);

    // The client leaves before there is a response.
    let never = service_fn(|_| std::future::pending::<Result<Response<Empty<Bytes>>, Infallible>>());
    let mut waits = Box::pin(layer.layer(never).oneshot(get()));
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    drop(waits);
    assert_eq!(told(), [Outcome::Ignored]);
}

#[tokio::test]
async fn errors_of_a_service_are_distinguishable() {
    #[derive(Clone)]
    struct TimeOuts;
    impl Classify<tower::BoxError> for TimeOuts {
        fn response(&self, _: StatusCode, _: &HeaderMap) -> ResponseOutcome {
            ResponseOutcome::Known(Outcome::Success)
        }
        fn error(&self, error: &tower::BoxError) -> Outcome {
            match error.to_string().as_str() {
                "late" => Outcome::Overload,
                _ => Outcome::Failure,
            }
        }
    }
    let diary = Arc::new(Diary::default());
    let layer = LimitLayer::new(Arc::clone(&diary)).classify(TimeOuts);
    for text in ["late", "broken"] {
        let fails = service_fn(move |_| ready(Err::<Response<Empty<Bytes>>, _>(tower::BoxError::from(text))));
        let error = layer.layer(fails).oneshot(get()).await.unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(diary.read(), [Outcome::Overload, Outcome::Failure]);
}

#[test]
fn requests_wait_in_the_queue_of_a_policy() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(
            TokenBucket::new(Quota::per_second(10).burst(1))
                .on(&clock)
                .named("rate"),
        )
        .max_wait(Duration::from_millis(250))
        .build()
        .unwrap();
    let layer = LimitLayer::waiting(policy.clone());
    clock.run(async {
        let service = layer.layer(answers(200));
        let ask = || service.clone().oneshot(get());
        let (a, b, c, d) = futures::join!(ask(), ask(), ask(), ask());
        assert!(a.is_ok() && b.is_ok() && c.is_ok());
        let refused = d.unwrap_err();
        let refused = refused.refusal().unwrap();
        assert_eq!((refused.reason(), refused.leg()), (Reason::TimedOut, "rate"));
        assert_eq!(refused.retry_after(), Some(Duration::from_millis(300)));
        assert_eq!(clock.elapsed(), Duration::from_millis(200));
        assert_eq!(policy.waiting(), 0);
    });
}

/// Given requests that wait in two classes, which a header names, then those of the first are served first.
#[test]
fn requests_wait_in_the_class_that_the_layer_reads_from_them() {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .order(Order::Priority {
            classes: 2,
            patience: 9,
        })
        .limit(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock))
        .build()
        .unwrap();
    policy.try_admit(1).unwrap().forget();
    let layer = LimitLayer::waiting(policy)
        .cost(|parts: &RequestParts<'_>| Ask::one().class(u64::from(!parts.headers().contains_key("paid"))));
    clock.run(async {
        let service = layer.layer(answers(200));
        let ask = async |request: Request<()>| {
            service.clone().oneshot(request).await.unwrap();
            clock.elapsed().as_secs()
        };
        let mut paid = get();
        paid.headers_mut().insert("paid", "yes".parse().unwrap());
        assert_eq!(futures::join!(ask(get()), ask(get()), ask(paid)), (2, 3, 1));
    });
}

/// Given a policy whose one permit is held, when a request that waits is dropped, then it leaves the queue, and the next one is
/// admitted by the permit that comes back.
#[tokio::test]
async fn a_dropped_request_leaves_the_queue() {
    let policy = Policy::new(Semaphore::new(1));
    let layer = LimitLayer::waiting(policy.clone());
    let held = layer.layer(answers(200)).oneshot(get()).await.unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut first = Box::pin(layer.layer(answers(200)).oneshot(get()));
    let mut second = pin!(layer.layer(answers(200)).oneshot(get()));
    assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
    assert_eq!(policy.waiting(), 2);
    drop(first);
    assert_eq!(policy.waiting(), 1);
    drop(held);
    let Poll::Ready(Ok(response)) = second.as_mut().poll(&mut cx) else {
        panic!("the permit is free");
    };
    assert_eq!(policy.limiter().in_use(), 1);
    drop(response);
    assert_eq!(policy.limiter().in_use(), 0);
}

#[tokio::test]
async fn a_breaker_opens_on_responses_that_fail_and_a_refusal_can_be_a_fallback() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder().count_window(4).minimum_calls(4);
    let breaker = Arc::new(breaker.on(&clock).build().unwrap());
    let layer = LimitLayer::new(Arc::clone(&breaker)).refuse_with(|_| {
        let mut fallback = Response::new(Empty::new());
        fallback.headers_mut().insert("x-from", "cache".parse().unwrap());
        fallback
    });
    let bad = ServiceBuilder::new().layer(layer.clone()).service(answers(500));
    for _ in 0..4 {
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(bad.clone().oneshot(get()).await.unwrap().status(), 500);
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    let fallback = bad.oneshot(get()).await.unwrap();
    assert_eq!(
        (fallback.status().as_u16(), &fallback.headers()["x-from"]),
        (200, &"cache".parse().unwrap())
    );
}

#[tokio::test]
async fn an_adaptive_limit_falls_when_the_service_is_overloaded() {
    let clock = ManualClock::new();
    let gate = Adaptive::builder(Semaphore::new(10))
        .law(tollgate_resilience::adaptive::Aimd::new())
        .bounds(2, 20)
        .window(Duration::ZERO, 1)
        .on(&clock)
        .build()
        .unwrap();
    let gate = Arc::new(gate);
    let layer = LimitLayer::new(Arc::clone(&gate));
    drop(layer.layer(answers(500)).oneshot(get()).await.unwrap());
    assert_eq!(gate.limit(), 10, "an error says nothing of a queue");
    drop(layer.layer(answers(503)).oneshot(get()).await.unwrap());
    assert_eq!(gate.limit(), 9);
}

#[test]
fn statuses_of_grpc_are_read_from_head_or_trailers() {
    let of = |code: &str| HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())]);
    let grpc: &dyn Fn(StatusCode, &HeaderMap) -> ResponseOutcome =
        &|status, head| Classify::<()>::response(&GrpcCodes, status, head);
    let ok = StatusCode::OK;
    for (code, outcome) in [
        ("0", Outcome::Success),
        ("1", Outcome::Ignored),
        ("2", Outcome::Failure),
        ("4", Outcome::Ignored),
        ("5", Outcome::Success),
        ("8", Outcome::Ignored),
        ("13", Outcome::Failure),
        ("14", Outcome::Overload),
        ("nonsense", Outcome::Failure),
    ] {
        assert_eq!(grpc(ok, &of(code)), ResponseOutcome::Known(outcome), "{code}");
        assert_eq!(Classify::<()>::trailers(&GrpcCodes, Some(&of(code))), outcome);
    }
    assert_eq!(grpc(ok, &HeaderMap::new()), ResponseOutcome::InTrailers);
    assert_eq!(Classify::<()>::trailers(&GrpcCodes, None), Outcome::Failure);
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(
        grpc(unavailable, &HeaderMap::new()),
        ResponseOutcome::Known(Outcome::Overload)
    );
}

#[tokio::test]
async fn trailers_decide_where_the_head_does_not() {
    let diary = Arc::new(Diary::default());
    let layer = LimitLayer::new(Arc::clone(&diary)).classify(GrpcCodes);
    let (sender, service) = streams();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "14".parse().unwrap())]);
    sender.unbounded_send(data("message")).unwrap();
    sender.unbounded_send(Ok(Frame::trailers(trailers))).unwrap();
    let mut response = layer.layer(service).oneshot(get()).await.unwrap();
    response.frame().await.unwrap().unwrap();
    assert_eq!(diary.read(), []);
    response.frame().await.unwrap().unwrap();
    assert_eq!(diary.read(), [Outcome::Overload]);
    drop(response);
    assert_eq!(diary.read(), [Outcome::Overload], "once");
}

#[tokio::test]
async fn requests_are_priced_keyed_and_exempted_by_their_heads() {
    const BYTES: Cost = Cost::new("bytes");
    let clock = ManualClock::new();
    let keyed = Keyed::new(10, move |_: &String| {
        TokenBucket::new(Quota::per_second(1).burst(100)).on(&clock).per(BYTES)
    });
    let layer = LimitLayer::keyed(Arc::new(keyed), |head: &RequestParts<'_>| {
        Some(head.headers().get("x-tenant")?.to_str().ok()?.to_owned())
    })
    .cost(|head: &RequestParts<'_>| {
        let bytes = head
            .headers()
            .get("content-length")
            .and_then(|v| v.to_str().ok()?.parse().ok());
        Ask::one().cost(BYTES, bytes.unwrap_or(0))
    })
    .exempt(|head: &RequestParts<'_>| head.uri().path() == "/health")
    .refuse_with(|refusal| {
        let mut response = Response::new(Empty::new());
        *response.status_mut() = tollgate_http::status_of(refusal.reason());
        response
    });
    let service = layer.layer(answers(200));
    let ask = async |path: &str, tenant: &str, bytes: u64| {
        let mut request = Request::builder().uri(path).header("content-length", bytes);
        if !tenant.is_empty() {
            request = request.header("x-tenant", tenant);
        }
        service
            .clone()
            .oneshot(request.body(()).unwrap())
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(ask("/", "a", 80).await, 200);
    assert_eq!(ask("/", "a", 21).await, 429);
    assert_eq!(ask("/", "a", 20).await, 200);
    assert_eq!(ask("/", "b", 100).await, 200);
    assert_eq!(ask("/", "b", 101).await, 413);
    assert_eq!(ask("/", "", 1).await, 400);
    assert_eq!(ask("/health", "a", 1_000).await, 200);
}
