//! A downstream that is slow when it is asked too much at once, and fails for a while now and then.

use crate::limits::{Counted, Counts};
use axum::body::Body;
use http::{Request, Response, StatusCode};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How many it answers as fast as it can; each one more makes all slower.
const CAPACITY: u32 = 8;
const BASE: Duration = Duration::from_millis(15);
/// It fails for the last `OUTAGE` seconds of each `PERIOD`.
const PERIOD: u64 = 20;
const OUTAGE: u64 = 4;

#[derive(Clone)]
pub(crate) struct Downstream(Arc<Inner>);

struct Inner {
    started: Instant,
    busy: AtomicU32,
}

impl Downstream {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            busy: AtomicU32::new(0),
        }))
    }

    pub(crate) async fn answer(self, _: Request<()>) -> Result<Response<Body>, Infallible> {
        struct Busy<'a>(&'a AtomicU32);
        impl Drop for Busy<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let busy = self.0.busy.fetch_add(1, Ordering::Relaxed) + 1;
        let _busy = Busy(&self.0.busy);
        let fails = self.0.started.elapsed().as_secs() % PERIOD >= PERIOD - OUTAGE;
        tokio::time::sleep(BASE * busy.max(CAPACITY) / CAPACITY).await;
        let mut response = Response::new(Body::from("fresh"));
        if fails {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        Ok(response)
    }
}

/// Stands in for an answer that is unavailable.
pub(crate) fn fallback() -> Response<Body> {
    let mut response = Response::new(Body::from("from the cache"));
    response
        .headers_mut()
        .insert("x-from", http::HeaderValue::from_static("cache"));
    response
}

/// Answers every refusal with the fallback, and counts it.
pub(crate) fn instead(counts: &Arc<Counts>) -> Counted<Fallback> {
    Counted(Fallback, Arc::clone(counts))
}

#[derive(Clone)]
pub(crate) struct Fallback;

impl tollgate_http::Respond<Body, Infallible> for Fallback {
    type Error = Infallible;
    fn refused<L: tollgate::Limiter>(&self, _: tollgate_http::Refused<L>) -> Result<Response<Body>, Infallible> {
        Ok(fallback())
    }
    fn failed(&self, error: Infallible) -> Infallible {
        match error {}
    }
}
