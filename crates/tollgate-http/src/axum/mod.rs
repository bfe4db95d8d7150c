//! Keys of requests and responses to refused clients, for a [`LimitLayer`](crate::LimitLayer) in a server of
//! [axum](https://docs.rs/axum).
//!
//! | you want to | use |
//! |---|---|
//! | limit by address, behind proxies or not | [`ClientIp`] |
//! | limit by a header field, or by an extension of an outer layer | [`HeaderKey`], [`ExtensionKey`] |
//! | answer with 429 or 503, `Retry-After` and problem details | [`HttpRefusals`] |
//! | answer with 429 in place of 503, or with any other status | [`HttpRefusals::status_for`] |
//! | send policies and remaining quotas, in `RateLimit` fields | [`HttpRefusals::rate_limit_fields`] |
//! | give refused clients a retry time, and honour it | [`LimitLayer::waiting_room`](crate::LimitLayer::waiting_room) |
//! | let CORS preflights pass | [`is_preflight`] |
//!
//! ```
//! use axum::{Router, routing::get};
//! use std::sync::Arc;
//! use tollgate_http::axum::{ClientIp, HttpRefusals, is_preflight};
//! use tollgate::{Keyed, LimiterExt, Quota, TokenBucket};
//! use tollgate_http::LimitLayer;
//!
//! let clients = Keyed::new(100_000, |_| TokenBucket::new(Quota::per_second(5).burst(20)).named("client"));
//! // One proxy, somewhere in this network. Without proxies it is `ClientIp::peer()`.
//! let address = ClientIp::behind(1).trusting("10.0.0.0".parse().unwrap(), 8);
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(
//!     LimitLayer::keyed(Arc::new(clients), address)
//!         .exempt(is_preflight)
//!         .respond(HttpRefusals::new().rate_limit_fields()),
//! );
//! // Serve it by `app.into_make_service_with_connect_info::<SocketAddr>()`.
//! # drop(app);
//! ```

//!
//! # Costs from the body
//! A limit is decided before the body is read. To charge by the body, read it in an outer layer, up to a bound, and leave its cost
//! in the extensions of the request. The body is in memory before the request is admitted: keep the bound small, and put a limit
//! on requests outside.
//!
//! ```
//! use axum::{Router, body::{Body, to_bytes}, extract::Request, middleware::{Next, from_fn}};
//! use axum::{http::StatusCode, response::{IntoResponse, Response}, routing::post};
//! use std::sync::Arc;
//! use tollgate::{Ask, Cost, LimiterExt, ManualClock, Quota, TokenBucket};
//! use tollgate_http::axum::HttpRefusals;
//! use tollgate_http::{LimitLayer, RequestParts};
//! # use tower::ServiceExt;
//!
//! const TOKENS: Cost = Cost::new("tokens");
//!
//! #[derive(Clone, Copy)]
//! struct Estimate(u64);
//!
//! async fn estimate(request: Request, next: Next) -> Response {
//!     let (mut parts, body) = request.into_parts();
//!     let Ok(prompt) = to_bytes(body, 64 << 10).await else {
//!         return StatusCode::PAYLOAD_TOO_LARGE.into_response();
//!     };
//!     parts.extensions.insert(Estimate(prompt.len() as u64 / 4));
//!     next.run(Request::from_parts(parts, Body::from(prompt))).await
//! }
//!
//! let clock = ManualClock::new();
//! # clock.run(async {
//! let tokens = Arc::new(TokenBucket::new(Quota::per_minute(1_000)).on(&clock));
//! let limit = LimitLayer::new(Arc::new(Arc::clone(&tokens).per(TOKENS)))
//!     .cost(|parts: &RequestParts<'_>| {
//!         let Estimate(tokens) = *parts.extensions().get().expect("the outer layer has put it there");
//!         Ask::one().cost(TOKENS, tokens)
//!     })
//!     .respond(HttpRefusals::new());
//! // The layer that is added last is the outermost.
//! let app: Router = Router::new().route("/", post(async |body: String| body)).layer(limit).layer(from_fn(estimate));
//!
//! let post = |length| Request::post("/").body(Body::from("x".repeat(length))).unwrap();
//! let response = app.clone().oneshot(post(2_400)).await.unwrap();
//! assert_eq!((response.status(), tokens.available()), (StatusCode::OK, 400));
//! assert_eq!(app.clone().oneshot(post(2_400)).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
//! assert_eq!(app.oneshot(post(70_000)).await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
//! assert_eq!(tokens.available(), 400);
//! # });
//! ```

mod fields;
mod keys;
mod legacy;
mod refusals;

pub use fields::{QuotaPolicy, QuotaUnit, RATELIMIT, RATELIMIT_POLICY, ServiceLimit};
pub use keys::{ClientIp, ExtensionKey, HeaderKey, is_preflight};
pub use refusals::HttpRefusals;
