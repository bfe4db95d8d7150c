//! How a body ends, and what is learnt from it: by what the head said, and by whether a client waited for the rest.

use crate::diary::Diary;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use std::convert::Infallible;
use std::sync::Arc;
use tollgate::{ManualClock, Outcome, Semaphore};
use tollgate_http::{
    Classify, ClientGrpcCodes, ClientStatusCodes, GrpcCodes, LimitLayer, ResponseOutcome, StatusCodes,
};
use tollgate_resilience::Adaptive;
use tollgate_resilience::{BreakerState, CircuitBreaker};
use tower::{Layer, Service, ServiceExt, service_fn};

type Frames = Vec<Result<Frame<Bytes>, &'static str>>;
type Streamed = StreamBody<futures::stream::Iter<<Frames as IntoIterator>::IntoIter>>;

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn get() -> Request<()> {
    Request::new(())
}

/// Answers with `status`, the length that is declared, and `frames`.
fn answers(
    status: u16,
    declared: Option<u64>,
    frames: fn() -> Frames,
) -> impl Service<Request<()>, Response = Response<Streamed>, Error = Infallible> + Clone {
    service_fn(move |_| {
        let mut response = Response::new(StreamBody::new(futures::stream::iter(frames())));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        let length = declared.map(|length| (http::header::CONTENT_LENGTH, length.into()));
        response.headers_mut().extend(length);
        std::future::ready(Ok(response))
    })
}

/// The outcome of a response that is dropped after a number of frames.
async fn told<C>(classify: C, status: u16, declared: Option<u64>, frames: fn() -> Frames, read: usize) -> Vec<Outcome>
where
    C: Classify<Infallible>,
{
    let diary = Arc::new(Diary::default());
    let service = LimitLayer::new(Arc::clone(&diary))
        .classify(classify)
        .layer(answers(status, declared, frames));
    let mut response = service.oneshot(get()).await.unwrap();
    for _ in 0..read {
        let _ = response.frame().await;
    }
    drop(response);
    diary.read()
}

#[tokio::test]
async fn a_body_that_is_dropped_early_ends_as_its_head_said() {
    let two = || vec![data("one"), data("two")];
    for (status, outcome) in [
        (200, Outcome::Success),
        (404, Outcome::Success),
        (500, Outcome::Failure),
        (503, Outcome::Overload),
        (429, Outcome::Ignored),
    ] {
        for read in [0, 1] {
            assert_eq!(
                told(StatusCodes, status, None, two, read).await,
                [outcome],
                "{status} after {read}"
            );
        }
    }
}

/// Given clients that all leave early, and one answer in four that is bad, then a breaker that opens at a half stays closed.
#[tokio::test]
async fn a_breaker_counts_successes_whose_bodies_are_not_read() {
    let breaker = CircuitBreaker::builder().count_window(8).minimum_calls(8);
    let breaker = Arc::new(breaker.on(&ManualClock::new()).build().unwrap());
    let layer = LimitLayer::new(Arc::clone(&breaker));
    for at in 0..32 {
        let status = if at % 4 == 3 { 500 } else { 200 };
        let service = layer.layer(answers(status, None, || vec![data("one"), data("two")]));
        drop(service.oneshot(get()).await.unwrap().frame().await);
    }
    assert_eq!(
        (breaker.state(), breaker.metrics().calls, breaker.metrics().failed),
        (BreakerState::Closed, 8, 2)
    );
}

#[tokio::test]
async fn a_classifier_may_ignore_dropped_requests() {
    #[derive(Clone)]
    struct Whole;
    impl Classify<Infallible> for Whole {
        fn response(&self, status: StatusCode, headers: &HeaderMap) -> ResponseOutcome {
            Classify::<Infallible>::response(&StatusCodes, status, headers)
        }
        fn dropped(&self, _: ResponseOutcome) -> Outcome {
            Outcome::Ignored
        }
    }
    let frames = || vec![data("one"), data("two")];
    assert_eq!(told(Whole, 200, None, frames, 1).await, [Outcome::Ignored]);
    assert_eq!(told(Whole, 200, None, frames, 3).await, [Outcome::Success]);
    // All that was declared has come: that is the end, also for a server that asks for no more.
    assert_eq!(told(Whole, 200, Some(6), frames, 2).await, [Outcome::Success]);
}

#[tokio::test]
async fn a_body_that_breaks_off_does_not_make_overload_a_failure() {
    let broken = || vec![data("part"), Err("broken")];
    for (status, outcome) in [
        (200, Outcome::Failure),
        (500, Outcome::Failure),
        (503, Outcome::Overload),
        (429, Outcome::Ignored),
    ] {
        assert_eq!(told(StatusCodes, status, None, broken, 2).await, [outcome], "{status}");
    }
    assert_eq!(told(GrpcCodes, 200, None, broken, 2).await, [Outcome::Failure]);
}

/// Given a call whose trailers are to say how it went, when it is dropped before them, then the outcome is unknown, also where as much
/// came as was declared. Without trailers it has failed.
#[tokio::test]
async fn missing_trailers_are_not_guessed() {
    fn good() -> Frames {
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        vec![data("message"), Ok(Frame::trailers(trailers))]
    }
    for declared in [None, Some(7)] {
        assert_eq!(told(GrpcCodes, 200, declared, good, 0).await, [Outcome::Ignored]);
        assert_eq!(
            told(GrpcCodes, 200, declared, good, 1).await,
            [Outcome::Ignored],
            "{declared:?}"
        );
        assert_eq!(told(GrpcCodes, 200, declared, good, 2).await, [Outcome::Success]);
        assert_eq!(
            told(GrpcCodes, 200, declared, || vec![data("message")], 2).await,
            [Outcome::Failure]
        );
    }
}

/// A health check, or a page of metrics, on the port of a gRPC service.
#[test]
fn a_response_of_another_content_type_than_grpc_is_classified_by_its_status() {
    let of = |status: u16, content_type: &'static str| {
        let status = StatusCode::from_u16(status).unwrap();
        let head = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let server = Classify::<()>::response(&GrpcCodes, status, &head);
        (server, Classify::<()>::response(&ClientGrpcCodes, status, &head))
    };
    for grpc in [
        "application/grpc",
        "application/grpc+proto",
        "Application/gRPC; charset=utf-8",
    ] {
        assert_eq!(
            of(200, grpc),
            (ResponseOutcome::InTrailers, ResponseOutcome::InTrailers),
            "{grpc}"
        );
    }
    for plain in [
        "application/json",
        "text/plain; charset=utf-8",
        "application/grpc-web+proto",
        "application/grp",
        "",
    ] {
        let both = |outcome| (ResponseOutcome::Known(outcome), ResponseOutcome::Known(outcome));
        assert_eq!(of(200, plain), both(Outcome::Success), "{plain}");
        assert_eq!(of(404, plain), both(Outcome::Success), "{plain}");
        assert_eq!(of(500, plain), both(Outcome::Failure), "{plain}");
    }
    let no_content = Classify::<()>::response(&GrpcCodes, StatusCode::NO_CONTENT, &HeaderMap::new());
    assert_eq!(
        no_content,
        ResponseOutcome::Known(Outcome::Success),
        "gRPC answers with 200"
    );
}

/// Ten responses of one content type, with status 200 and without trailers.
#[tokio::test]
async fn plain_responses_beside_grpc_open_no_circuit() {
    for (content_type, right) in [
        ("application/grpc+proto", BreakerState::Open),
        ("application/json", BreakerState::Closed),
        ("text/plain; charset=utf-8", BreakerState::Closed),
    ] {
        let breaker = CircuitBreaker::builder().count_window(10).minimum_calls(10);
        let breaker = Arc::new(breaker.on(&ManualClock::new()).build().unwrap());
        let service = service_fn(move |_: Request<()>| async move {
            let response = Response::builder().header(CONTENT_TYPE, content_type);
            Ok::<_, Infallible>(response.body(Full::new(Bytes::from_static(b"{}"))).unwrap())
        });
        let layer = LimitLayer::new(Arc::clone(&breaker)).classify(GrpcCodes);
        for _ in 0..10 {
            let response = layer.layer(service).oneshot(get()).await.unwrap();
            response.into_body().collect().await.unwrap();
        }
        assert_eq!(breaker.state(), right, "{content_type}");
    }
}

#[tokio::test]
async fn a_client_of_the_server_cannot_choose_overload() {
    let limit_after = async |status, classify_as_client| {
        let clock = ManualClock::new();
        let gate = Adaptive::builder(Semaphore::new(10))
            .law(tollgate_resilience::adaptive::Aimd::new())
            .bounds(2, 20);
        let gate = Arc::new(gate.window(std::time::Duration::ZERO, 1).on(&clock).build().unwrap());
        let service = answers(status, Some(0), Vec::new);
        let layer = LimitLayer::new(Arc::clone(&gate));
        match classify_as_client {
            false => drop(layer.layer(service).oneshot(get()).await.unwrap()),
            true => drop(
                layer
                    .classify(ClientStatusCodes)
                    .layer(service)
                    .oneshot(get())
                    .await
                    .unwrap(),
            ),
        }
        gate.limit()
    };
    for status in [408, 429] {
        assert_eq!(limit_after(status, false).await, 10, "{status}");
        assert_eq!(limit_after(status, true).await, 9, "an upstream says so: {status}");
    }
    for status in [503, 504] {
        assert_eq!(limit_after(status, false).await, 9, "{status}");
        assert_eq!(limit_after(status, true).await, 9, "{status}");
    }
}

#[test]
fn codes_of_grpc_differ_by_side_where_the_client_chooses() {
    for (code, server, client) in [
        ("4", Outcome::Ignored, Outcome::Overload),
        ("8", Outcome::Ignored, Outcome::Overload),
        ("14", Outcome::Overload, Outcome::Overload),
    ] {
        let head = HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())]);
        let ok = StatusCode::OK;
        assert_eq!(
            Classify::<()>::response(&GrpcCodes, ok, &head),
            ResponseOutcome::Known(server),
            "{code}"
        );
        assert_eq!(
            Classify::<()>::response(&ClientGrpcCodes, ok, &head),
            ResponseOutcome::Known(client),
            "{code}"
        );
        assert_eq!(Classify::<()>::trailers(&GrpcCodes, Some(&head)), server, "{code}");
        assert_eq!(
            Classify::<()>::trailers(&ClientGrpcCodes, Some(&head)),
            client,
            "{code}"
        );
    }
    let told_off = StatusCode::TOO_MANY_REQUESTS;
    let none = HeaderMap::new();
    assert_eq!(
        Classify::<()>::response(&GrpcCodes, told_off, &none),
        ResponseOutcome::Known(Outcome::Ignored)
    );
    assert_eq!(
        Classify::<()>::response(&ClientGrpcCodes, told_off, &none),
        ResponseOutcome::Known(Outcome::Overload)
    );
}
