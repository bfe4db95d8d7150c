//! Keys of requests and responses to refused clients, for a [`LimitLayer`](crate::LimitLayer) in a server of
//! [axum](https://docs.rs/axum).
//!
//! | you want to | use |
//! |---|---|
//! | limit by address, behind proxies or not | [`ClientIp`] |
//! | limit by a header field, or by an extension of an outer layer | [`HeaderKey`], [`ExtensionKey`] |
//! | answer with 429 or 503, `Retry-After` and problem details | [`HttpRefusals`] |
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

mod fields;
mod keys;
mod legacy;
mod refusals;

pub use fields::{QuotaPolicy, QuotaUnit, RATELIMIT, RATELIMIT_POLICY, ServiceLimit};
pub use keys::{ClientIp, ExtensionKey, HeaderKey, is_preflight};
pub use refusals::HttpRefusals;
