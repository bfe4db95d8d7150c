//! The proxy: its routes, its metrics, and its end.

use super::limits::{Caller, Limits, TOKENS};
use super::upstream::Upstream;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::StatusCode;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate::status::State as Leg;
use tollgate::{Ask, Clock, Limiter};
use tollgate_http::axum::HttpRefusals;
use tollgate_http::{Charge, LimitLayer, Refused, RequestParts, Respond};

/// The longest body of a request, and the most tokens that it may ask for.
const MAX_BODY: usize = 1 << 20;
const MAX_TOKENS: u64 = 8_192;

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) limits: Arc<Limits>,
    pub(crate) upstream: Arc<Upstream>,
    counts: Arc<Mutex<BTreeMap<(&'static str, String), u64>>>,
}

#[derive(Clone, Deserialize)]
struct Prompt {
    model: String,
    prompt: String,
    max_tokens: u64,
}

impl App {
    pub(crate) fn new(limits: Arc<Limits>, upstream: Arc<Upstream>) -> Self {
        Self {
            limits,
            upstream,
            counts: Arc::default(),
        }
    }

    pub(crate) fn router(&self) -> Router {
        let caller = |parts: &RequestParts<'_>| parts.extensions().get::<Caller>().cloned();
        let ask = |parts: &RequestParts<'_>| parts.extensions().get::<Ask>().copied().unwrap_or_default();
        let limited = LimitLayer::keyed_waiting(Arc::clone(&self.limits.callers), caller)
            .cost(ask)
            .settling()
            .respond(Counted(HttpRefusals::new(), self.clone()));
        Router::new()
            .route("/v1/completions", post(complete))
            .layer(limited)
            .layer(from_fn_with_state(self.clone(), read))
            .route("/metrics", get(metrics))
            .with_state(self.clone())
    }

    fn count(&self, what: &'static str, of: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((what, of.to_owned())).or_default() += 1;
    }

    /// Admits nothing from now on, and returns when all that was admitted has ended, or after `most`. True if all has.
    pub(crate) async fn drain(&self, clock: &Clock, most: Duration) -> bool {
        self.limits.server.set_limit(0);
        let end = clock.after(clock.now(), most);
        while self.limits.server.in_use() > 0 && clock.now() < end {
            clock.sleep(Duration::from_millis(20)).await;
        }
        self.limits.server.in_use() == 0
    }
}

/// Reads the key, the model and the costs, before any limit is asked.
async fn read(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let key = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
    let Some(key) = key.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let Ok(body) = to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let prompt = match serde_json::from_slice::<Prompt>(&body) {
        Ok(prompt) if prompt.max_tokens <= MAX_TOKENS => prompt,
        _ => return StatusCode::BAD_REQUEST.into_response(),
    };
    if !app.limits.models.contains_key(&prompt.model) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let estimate = prompt.prompt.len() as u64 / 4 + prompt.max_tokens;
    parts.extensions.insert(Ask::one().cost(TOKENS, estimate));
    let (is_paid, model) = (app.limits.is_paid(&key), prompt.model.clone());
    parts.extensions.insert(Caller { key, model, is_paid });
    parts.extensions.insert(prompt);
    next.run(Request::from_parts(parts, Body::empty())).await
}

async fn complete(
    State(app): State<App>,
    Extension(prompt): Extension<Prompt>,
    Extension(charge): Extension<Charge>,
) -> Response {
    let answer = app.upstream.complete(&prompt.prompt).await;
    app.count("upstream", if answer.is_ok() { "answered" } else { "failed" });
    // What was not used comes back; a failure costs nothing.
    let used = *answer.as_ref().unwrap_or(&0);
    let _ = charge.settle(TOKENS, used);
    match answer {
        Ok(used) => axum::Json(serde_json::json!({ "usage": { "total_tokens": used } })).into_response(),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// In the text format of Prometheus.
async fn metrics(State(app): State<App>) -> String {
    let mut text = String::new();
    let counts = app.counts.lock().unwrap_or_else(PoisonError::into_inner);
    for ((what, of), count) in counts.iter() {
        let _ = writeln!(text, "proxy_{what}_total{{of=\"{of}\"}} {count}");
    }
    let limits = &app.limits;
    let mut show = |leg: &str, state: Leg| {
        let _ = match state {
            Leg::Permits { limit, in_use, .. } => writeln!(
                text,
                "proxy_in_use{{leg=\"{leg}\"}} {in_use}\nproxy_limit{{leg=\"{leg}\"}} {limit}"
            ),
            Leg::Breaker { state, .. } => {
                let is_open = u8::from(state != tollgate_resilience::BreakerState::Closed);
                writeln!(text, "proxy_open{{leg=\"{leg}\"}} {is_open}")
            }
            _ => Ok(()),
        };
    };
    limits.server.describe(&mut |leg| show("server", leg.state));
    limits.breaker.describe(&mut |leg| show("upstream", leg.state));
    for (name, model) in &limits.models {
        // What both classes have in flight is shown for each.
        model.class(0).describe(&mut |leg| show(name, leg.state));
    }
    let _ = writeln!(text, "proxy_keys {}", limits.keys.len());
    text
}

/// Answers refusals, and counts them by leg.
#[derive(Clone)]
struct Counted(HttpRefusals, App);

impl<B, E> Respond<B, E> for Counted
where
    HttpRefusals: Respond<B, E>,
{
    type Error = <HttpRefusals as Respond<B, E>>::Error;

    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<http::Response<B>, Self::Error> {
        self.1.count("refused", refused.refusal.leg());
        self.0.refused(refused)
    }

    fn admitted<L: Limiter>(&self, response: &mut http::Response<B>, limiter: &L) {
        Respond::<B, E>::admitted(&self.0, response, limiter);
    }

    fn failed(&self, error: E) -> Self::Error {
        self.0.failed(error)
    }
}
