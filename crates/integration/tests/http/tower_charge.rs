//! The handle by which a handler corrects the costs of its request.

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, StreamBody};
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use tollgate::{Ask, Cost, Leg, LimiterExt, ManualClock, Policy, Quota, TokenBucket};
use tollgate_http::{Charge, ChargeError, LimitLayer, RequestParts};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

const TOKENS: Cost = Cost::new("tokens");
const BYTES: Cost = Cost::new("bytes");

/// A bucket of 1,000 units, which does not refill, and the same as a limit of `cost`.
fn bucket(cost: Cost, clock: &ManualClock) -> (Arc<TokenBucket>, Arc<Leg<Arc<TokenBucket>>>) {
    let bucket = Arc::new(TokenBucket::new(Quota::per_hour(1).burst(1_000)).on(clock));
    (Arc::clone(&bucket), Arc::new(bucket.per(cost)))
}

fn of_tokens(_: &RequestParts<'_>) -> Ask {
    Ask::one().cost(TOKENS, 600)
}

fn charge_of(request: &Request<()>) -> Charge {
    request.extensions().get::<Charge>().unwrap().clone()
}

fn empty() -> Result<Response<Empty<Bytes>>, Infallible> {
    Ok(Response::new(Empty::new()))
}

/// A part of a body that settles when it is dropped.
struct SettlesOnDrop(Charge);

impl Drop for SettlesOnDrop {
    fn drop(&mut self) {
        self.0.settle(TOKENS, 30).unwrap();
    }
}

/// Given a body that settles as it is dropped, then that counts: after its end, after an error, and when the client leaves.
#[tokio::test]
async fn a_body_may_settle_as_it_is_dropped() {
    for frames_read in 0..4 {
        let clock = ManualClock::new();
        let (tokens, limit) = bucket(TOKENS, &clock);
        let handler = service_fn(async |request: Request<()>| {
            let guard = SettlesOnDrop(charge_of(&request));
            let frames = ["one", "two"].map(|data| Ok(Frame::data(Bytes::from_static(data.as_bytes()))));
            let last = (frames_read == 3).then(|| Err("broken"));
            let frames = futures::stream::iter(frames.into_iter().chain(last)).map(move |frame| {
                let _ = &guard;
                frame
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(frames)))
        });
        let layer = LimitLayer::new(Arc::clone(&limit)).cost(of_tokens).settling();
        let response = layer.layer(handler).oneshot(Request::new(())).await.unwrap();
        let mut body = response.into_body();
        for _ in 0..frames_read {
            let _ = body.frame().await;
        }
        if frames_read == 3 {
            assert_eq!(tokens.available(), 970, "after an error, with the body still there");
            assert!(body.is_end_stream() && body.frame().await.is_none());
        }
        drop(body);
        assert_eq!(tokens.available(), 970, "{frames_read} frames");
    }
}

/// Given a stream whose handler charges while it goes on, then the bucket is charged with each frame, and at the end; and no longer
/// after it.
#[tokio::test]
async fn a_stream_is_charged_while_it_goes_on_and_not_after_its_end() {
    let clock = ManualClock::new();
    let (tokens, limit) = bucket(TOKENS, &clock);
    let (sender, frames) = futures::channel::mpsc::unbounded::<Result<Frame<Bytes>, Infallible>>();
    let (kept, frames) = (Arc::new(Mutex::new(None)), Mutex::new(Some(frames)));
    let handler = service_fn(async |request: Request<()>| {
        *kept.lock().unwrap() = Some(charge_of(&request));
        let frames = frames.lock().unwrap().take().unwrap();
        Ok::<_, Infallible>(Response::new(StreamBody::new(frames)))
    });
    let layer = LimitLayer::new(Arc::clone(&limit)).cost(of_tokens).settling();
    let mut body = layer
        .layer(handler)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .into_body();
    let charge = kept.lock().unwrap().take().unwrap();
    assert_eq!((tokens.available(), charge.units(TOKENS)), (400, Some(600)));
    charge.add(TOKENS, 50).unwrap();
    sender
        .unbounded_send(Ok(Frame::data(Bytes::from_static(b"one"))))
        .unwrap();
    body.frame().await.unwrap().unwrap();
    assert_eq!(tokens.available(), 350);
    charge.settle(TOKENS, 200).unwrap();
    drop(sender);
    assert!(body.frame().await.is_none());
    assert_eq!((tokens.available(), charge.units(TOKENS)), (800, Some(200)));
    assert_eq!(charge.add(TOKENS, 1), Err(ChargeError::Ended));
    assert_eq!(tokens.available(), 800);
}

/// Given a request that waits in a queue and is dropped while it runs, then it is charged with what its handler had settled.
#[tokio::test]
async fn a_request_that_is_dropped_is_charged_with_what_was_settled() {
    let clock = ManualClock::new();
    let (tokens, limit) = bucket(TOKENS, &clock);
    let policy = Policy::builder().limit(Arc::clone(&limit)).build().unwrap();
    let mut held = limit.try_admit(Ask::one().cost(TOKENS, 1_000)).unwrap();
    let handler = service_fn(async |request: Request<()>| {
        charge_of(&request).settle(TOKENS, 10).unwrap();
        pending::<Result<Response<Empty<Bytes>>, Infallible>>().await
    });
    let layer = LimitLayer::waiting(policy).cost(of_tokens).settling();
    let mut call = Box::pin(layer.layer(handler).oneshot(Request::new(())));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    held.settle(TOKENS, 0).unwrap();
    assert!(call.as_mut().poll(&mut context).is_pending());
    drop(call);
    assert_eq!(tokens.available(), 990);
}

/// Given two layers that count different costs, then a correction goes to the one that counts the cost.
#[tokio::test]
async fn a_correction_goes_to_each_layer_that_counts_the_cost() {
    let clock = ManualClock::new();
    let ((tokens, limit), (bytes, bytes_limit)) = (bucket(TOKENS, &clock), bucket(BYTES, &clock));
    let handler = service_fn(async |request: Request<()>| {
        let charge = charge_of(&request);
        charge.settle(TOKENS, 1).unwrap();
        charge.settle(BYTES, 2).unwrap();
        assert_eq!((charge.units(TOKENS), charge.units(BYTES)), (Some(1), Some(2)));
        let other = Cost::new("rows");
        assert_eq!(charge.settle(other, 3), Err(ChargeError::UnknownCost(other)));
        empty()
    });
    let of_bytes = |_: &RequestParts<'_>| Ask::one().cost(BYTES, 30);
    let service = ServiceBuilder::new()
        .layer(LimitLayer::new(Arc::clone(&limit)).cost(of_tokens).settling())
        .layer(LimitLayer::new(bytes_limit).cost(of_bytes).settling())
        .service(handler);
    drop(service.oneshot(Request::new(())).await.unwrap());
    assert_eq!((tokens.available(), bytes.available()), (999, 998));
}

/// Given a request that is exempt, and a layer that does not settle, then nothing is charged and there is no handle.
#[tokio::test]
async fn an_exempt_request_has_nothing_to_correct() {
    let clock = ManualClock::new();
    let (tokens, limit) = bucket(TOKENS, &clock);
    let layer = LimitLayer::new(Arc::clone(&limit)).cost(of_tokens);
    let without = service_fn(async |request: Request<()>| {
        assert!(request.extensions().get::<Charge>().is_none());
        empty()
    });
    drop(layer.layer(without).oneshot(Request::new(())).await.unwrap());
    assert_eq!(tokens.available(), 400);
    let layer = LimitLayer::new(Arc::clone(&limit))
        .cost(of_tokens)
        .exempt(|_| true)
        .settling();
    let exempt = service_fn(async |request: Request<()>| {
        assert_eq!(charge_of(&request).settle(TOKENS, 1), Err(ChargeError::Ended));
        empty()
    });
    let mut call = pin!(layer.layer(exempt).oneshot(Request::new(())));
    drop(call.as_mut().await.unwrap());
    assert_eq!(tokens.available(), 400);
}
