//! The layer and the readiness of the service inside: who is asked first, and what a caller that is ready holds.

use crate::diary::Diary;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate::{LimiterExt, Outcome, Policy, Reason, Semaphore};
use tollgate_http::{LimitError, LimitLayer, LimitService};
use tollgate_resilience::CircuitBreaker;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_test::mock;

type Answer = Response<Empty<Bytes>>;
type Mock = mock::Mock<Request<()>, Answer>;

fn get() -> Request<()> {
    Request::new(())
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls ready, which has to be true at once, and calls.
fn call<S: Service<Request<()>>>(service: &mut S) -> std::pin::Pin<Box<S::Future>> {
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    Box::pin(service.call(get()))
}

/// Given a service that panics when it is called before it was ready, then each call makes it ready first, and a response
/// that has come frees no place but its own.
#[tokio::test]
async fn each_call_makes_the_service_inside_ready_and_holds_a_permit_meanwhile() {
    let (inner, mut handle): (Mock, _) = mock::pair();
    let gate = Arc::new(Semaphore::new(2));
    let mut service = LimitLayer::new(Arc::clone(&gate)).layer(inner);
    handle.allow(0);

    let (mut first, mut second) = (call(&mut service), call(&mut service));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert_eq!(gate.in_use(), 2, "admitted, and waiting for the service");
    let refused = call(&mut service).await.unwrap_err();
    assert!(matches!(refused, LimitError::Refused(ref r) if r.reason() == Reason::Saturated));

    handle.allow(1);
    assert!(poll(&mut first).is_pending());
    let (_, respond) = handle.next_request().await.expect("the first is there");
    assert!(poll(&mut second).is_pending());
    respond.send_response(Response::new(Empty::new()));
    drop(first.await.unwrap());
    assert_eq!(gate.in_use(), 1);

    drop(second);
    assert_eq!(gate.in_use(), 0, "given up while the service was not ready");
}

/// The test above can fail: a layer that calls without asking is found out.
#[test]
#[should_panic(expected = "service not ready")]
fn the_service_of_the_tests_panics_when_it_is_called_unready() {
    let (mut inner, mut handle): (Mock, _) = mock::pair();
    handle.allow(1);
    drop(inner.call(get()));
}

#[tokio::test]
async fn an_open_circuit_refuses_although_the_service_is_busy() {
    let (inner, mut handle): (Mock, _) = mock::pair();
    handle.allow(0);
    let breaker = Arc::new(CircuitBreaker::builder().build().unwrap());
    breaker.force_open();
    let mut service = LimitLayer::new(breaker).layer(inner);
    let Poll::Ready(Err(LimitError::Refused(refused))) = poll(&mut call(&mut service)) else {
        panic!("it need not ask the service");
    };
    assert_eq!(refused.reason(), Reason::CircuitOpen);
}

/// Given a service with one place, and a request that waits in the line of its policy, then another user has the place.
#[tokio::test]
async fn a_queued_request_takes_no_place_inside() {
    let inner = ConcurrencyLimit::new(
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))),
        1,
    );
    let policy = Policy::new(Semaphore::new(1));
    let held = policy.admit_owned(1).await.unwrap();
    let mut service = LimitLayer::waiting(policy.clone()).layer(inner.clone());
    let mut waits = call(&mut service);
    assert!(poll(&mut waits).is_pending());
    assert_eq!(policy.waiting(), 1);

    let mut other = inner;
    assert!(
        matches!(poll(&mut other.ready()), Poll::Ready(Ok(_))),
        "the place is free"
    );
    drop(held);
    assert!(poll(&mut waits).is_pending(), "admitted, and the place is taken");
    drop(other);
    assert!(waits.await.is_ok());
}

#[tokio::test]
async fn a_service_that_cannot_become_ready_has_failed() {
    let (inner, mut handle): (Mock, _) = mock::pair();
    let diary = Arc::new(Diary::default());
    let mut service = LimitLayer::new(Arc::clone(&diary)).layer(inner);
    handle.send_error("no connection");
    let error = call(&mut service).await.unwrap_err();
    assert_eq!(error.to_string(), "no connection");
    assert_eq!(diary.read(), [Outcome::Failure]);
}

/// How many of `services` can be ready at once, each kept as a connection keeps it between two requests.
fn ready_at_once<S: Service<Request<()>>>(services: &mut [S]) -> usize {
    let mut cx = Context::from_waker(Waker::noop());
    services
        .iter_mut()
        .filter_map(|service| service.poll_ready(&mut cx).is_ready().then_some(()))
        .count()
}

#[test]
fn a_thousand_ready_services_hold_nothing() {
    let answers = || service_fn(|_: Request<()>| pending::<Result<Answer, Infallible>>());
    let gate = Arc::new(Semaphore::new(4));
    let limited: LimitService<_, _> = LimitLayer::new(Arc::clone(&gate)).layer(answers());
    assert_eq!(ready_at_once(&mut vec![limited; 1_000]), 1_000);
    assert_eq!(gate.in_use(), 0);
    // A layer that reserves when it is polled ready is found out.
    let theirs = ConcurrencyLimit::new(answers(), 4);
    assert_eq!(ready_at_once(&mut vec![theirs; 1_000]), 4);
}

/// Whether the service panics when it is called, or later: the permit comes back, as of work that says nothing.
#[tokio::test]
async fn a_panic_inside_gives_the_permit_back() {
    let (diary, gate) = (Arc::new(Diary::default()), Arc::new(Semaphore::new(1)));
    let layer = LimitLayer::new(Arc::new(Arc::clone(&diary).and(Arc::clone(&gate))));
    let at_once = service_fn(|_: Request<()>| -> std::future::Ready<Result<Answer, Infallible>> { panic!("at once") });
    let panicked = tokio::spawn(layer.layer(at_once).oneshot(get())).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!((gate.in_use(), &diary.read()), (0, &vec![Outcome::Ignored]));

    let later = service_fn(|_: Request<()>| async {
        if true {
            panic!("later")
        } else {
            Ok::<Answer, Infallible>(Answer::default())
        }
    });
    let panicked = tokio::spawn(layer.layer(later).oneshot(get())).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!((gate.in_use(), &diary.read()), (0, &vec![Outcome::Ignored; 2]));

    // A body that panics is dropped with its permit.
    let in_body = service_fn(async |_: Request<()>| {
        let frames = futures::stream::poll_fn(|_| -> Poll<Option<Result<Frame<Bytes>, Infallible>>> { panic!("body") });
        Ok::<_, Infallible>(Response::new(StreamBody::new(frames)))
    });
    let response = layer.layer(in_body).oneshot(get()).await.unwrap();
    assert_eq!(gate.in_use(), 1);
    let panicked = tokio::spawn(response.into_body().collect()).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!((gate.in_use(), diary.read().len()), (0, 3));
}
