//! The service: its routes, and the limits of each.

use crate::downstream::{Downstream, fallback, instead};
use crate::limits::{Counted, Limits};
use crate::page;
use crate::store::Store;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use http::header::RETRY_AFTER;
use http::{Method, Response, StatusCode};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate::LimiterExt;
use tollgate_http::axum::{ClientIp, HttpRefusals, RATELIMIT, RATELIMIT_POLICY};
use tollgate_http::{ClientStatusCodes, LimitLayer};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::{Any, CorsLayer};

/// How long an image takes, and how long it takes to make a page of what the database says.
const IMAGE: Duration = Duration::from_millis(15);
const PAGE: Duration = Duration::from_millis(25);

pub(crate) struct App {
    limits: Arc<Limits>,
    store: Arc<Store>,
    downstream: BoxCloneSyncService<http::Request<()>, Response<Body>, Infallible>,
}

/// The router: the site behind its limits, the page of its operator beside them.
pub(crate) fn router(limits: Arc<Limits>, store: Arc<Store>) -> Router {
    // Asked first whether it is open at all, and then for a permit.
    let asked = Arc::clone(&limits.breaker).and(Arc::clone(&limits.adaptive));
    let flaky = Downstream::new();
    let flaky = LimitLayer::new(Arc::new(asked))
        .classify(ClientStatusCodes)
        .respond(instead(&limits.counts))
        .layer(service_fn(move |request| flaky.clone().answer(request)));
    let app = App {
        downstream: BoxCloneSyncService::new(flaky.map_response(|response| response.map(Body::new))),
        limits: Arc::clone(&limits),
        store,
    };

    let own = HttpRefusals::new();
    let refusals = |how| Counted(how, Arc::clone(&limits.counts));
    // One proxy, on this machine: its entries in `X-Forwarded-For` are trusted, others are not.
    let address = ClientIp::behind(1).trusting(Ipv4Addr::LOCALHOST.into(), 8);
    // A client that finds the core full gets an appointment by the same address: a 503 has a retry time, which is honoured.
    let core = LimitLayer::waiting(limits.core.clone())
        .waiting_room(Arc::clone(&limits.room), address.clone())
        .respond(refusals(own));
    let client = LimitLayer::keyed(Arc::clone(&limits.clients), address).respond(refusals(own.rate_limit_fields()));
    let site = Router::new()
        .fallback(answer)
        .with_state(Arc::new(app))
        .layer(core)
        .layer(client)
        .layer(cors());
    page::router(limits).fallback_service(site)
}

/// Outside all limits: it answers preflights by itself, which cost no token and no permit, and lets pages of other origins see
/// also a refusal, and when to come back.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET])
        .expose_headers([RETRY_AFTER, RATELIMIT, RATELIMIT_POLICY])
}

async fn answer(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let _in_flight = app.limits.counts.enter();
    let path = request.uri().path();
    if path.ends_with(".gif") || path.ends_with(".jpg") || path.ends_with(".GIF") {
        tokio::time::sleep(IMAGE).await;
        return Response::new(Body::from(vec![0; 2_048]));
    }
    if path.ends_with(".html") {
        let hits = app.store.hit(&app.limits, path.to_owned()).await;
        tokio::time::sleep(PAGE).await;
        report(&app, path);
        return match hits {
            Ok(hits) => Response::new(Body::from(format!("<p>{hits} hits</p>"))),
            Err(_) => failed(),
        };
    }
    // All else is what the downstream knows.
    let answered = app.downstream.clone().oneshot(http::Request::new(())).await;
    let response = match answered {
        Ok(response) if response.status().is_success() => response,
        Ok(_) => fallback(),
        Err(never) => match never {},
    };
    if response.headers().contains_key("x-from") {
        app.limits.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
    }
    response
}

fn failed() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// A background job, dropped if there are too many.
fn report(app: &App, path: &str) {
    let path = path.to_owned();
    let job = move || {
        let mut hasher = DefaultHasher::new();
        for _ in 0..200 {
            path.hash(&mut hasher);
        }
        std::hint::black_box(hasher.finish());
    };
    drop(app.limits.jobs.try_submit(job));
}
