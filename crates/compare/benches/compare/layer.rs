//! One request through the layer, with a rate and a concurrency limit in one admission, beside tower's two layers for them.
//!
//! The service inside is ready at once, so that all that is measured is the layers: readiness, the call, the response, and the
//! end of its body. Theirs give the permit back with the response, ours with the body.

use crate::harness::{Batch, Rows, poll_once};
use http::{Request, Response};
use http_body_util::Empty;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{Policy, Quota, Semaphore, TokenBucket};
use tollgate_http::{LimitLayer, RequestParts, WaitingRoom};
use tower::{Service, ServiceBuilder, service_fn};

const RATE: u64 = 1_000_000_000;
const PERMITS: usize = 64;

type Answer = Ready<Result<Response<Empty<&'static [u8]>>, Infallible>>;

fn answer(_: Request<()>) -> Answer {
    ready(Ok(Response::new(Empty::new())))
}

fn requests<S: Service<Request<()>> + 'static>(mut service: S) -> Batch<'static> {
    Box::new(move |n| {
        for _ in 0..n {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(service.poll_ready(&mut cx).is_ready());
            let future = pin!(service.call(Request::new(())));
            assert!(matches!(poll_once(future), Poll::Ready(Ok(_))));
        }
    })
}

pub(crate) fn rows(rows: &Rows) {
    // Their rate limit makes a timer.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let _guard = runtime.enter();
    let legs = || (TokenBucket::new(Quota::per_second(RATE)), Semaphore::new(PERMITS));
    let theirs = || {
        let layers = ServiceBuilder::new().concurrency_limit(PERMITS);
        layers
            .rate_limit(RATE, Duration::from_secs(1))
            .service(service_fn(answer))
    };
    let refusing = LimitLayer::new(Arc::new(legs()));
    let waiting = LimitLayer::waiting(Policy::new(legs()));
    let room = WaitingRoom::new(1_000, Quota::per_second(1)).expect("a rate above zero");
    let room =
        LimitLayer::waiting(Policy::new(legs())).waiting_room(Arc::new(room), |_: &RequestParts<'_>| Some(1_u64));
    for (name, ours) in [
        (
            "layer/refusing",
            requests(ServiceBuilder::new().layer(refusing).service(service_fn(answer))),
        ),
        (
            "layer/waiting",
            requests(ServiceBuilder::new().layer(waiting).service(service_fn(answer))),
        ),
        (
            "layer/waiting-room",
            requests(ServiceBuilder::new().layer(room).service(service_fn(answer))),
        ),
    ] {
        rows.wall(
            name,
            vec![
                ("tollgate", ours),
                ("tower", requests(theirs())),
                ("no-layer", requests(service_fn(answer))),
            ],
        );
    }
}
