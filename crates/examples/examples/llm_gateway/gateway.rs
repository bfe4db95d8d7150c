//! The gateway: who asks, what it may cost, and what it did cost.

use super::chat::{Chat, Chunk, Usage, tokens};
use super::ledger::{Account, Exceeded, Ledger, Meter, key};
use super::upstream::upstream;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::{StreamExt, stream};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate::{Ask, Reason};
use tollgate_budget::{Budgets, Estimates, INPUT, MONEY, OUTPUT};

/// The models, and the price of a token of input and of output, in nano-units of the currency.
const MODELS: [(&str, u64, u64); 2] = [("small", 150, 600), ("large", 2_500, 10_000)];
const MAX_TOKENS: u64 = 8_192;
const MAX_BODY: usize = 1 << 20;

#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    ledger: Ledger,
    /// Of the tokens of an answer, by organisation and model.
    estimates: Estimates,
    upstream: SocketAddr,
    client: Client<HttpConnector, Body>,
    counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) admitted: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Streams that were stopped at the boundary.
    pub(crate) stopped: AtomicU64,
}

/// Who asks for what.
struct Call {
    chat: Chat,
    class: (String, String),
    prices: (u64, u64),
}

impl Gateway {
    pub(crate) fn new(ledger: Ledger, estimates: Estimates, upstream: SocketAddr) -> Self {
        Self(Arc::new(Inner {
            ledger,
            estimates,
            upstream,
            client: Client::builder(TokioExecutor::new()).build_http(),
            counts: Counts::default(),
        }))
    }

    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/budgets", get(levels))
            .route("/metrics", get(async |State(gateway): State<Self>| gateway.metrics()))
            .with_state(self.clone())
    }

    /// The budgets of this process alone; `None` where gateways share them.
    pub(crate) fn budgets(&self) -> Option<&Budgets> {
        self.0.ledger.own()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Reserves the estimate at all levels, or at none.
    async fn reserve(&self, account: &Account, call: &Call) -> Result<Meter, Exceeded> {
        let (chat, prices) = (&call.chat, call.prices);
        let (input, most) = (chat.prompt(), chat.max_tokens);
        let output = self.0.estimates.estimate(&call.class, most);
        let money = input * prices.0 + output * prices.1;
        let ask = Ask::one().cost(INPUT, input).cost(OUTPUT, output).cost(MONEY, money);
        let mut meter = account.reserve(ask).await?;
        // The prompt is sent: it is paid for whatever happens.
        meter.extend(INPUT, input).await?;
        meter.extend(MONEY, input * prices.0).await?;
        Ok(meter)
    }

    /// The bill corrects what was metered.
    fn settle(&self, meter: &mut Meter, call: &Call, usage: Usage) {
        let money = usage.prompt_tokens * call.prices.0 + usage.completion_tokens * call.prices.1;
        let bill = [
            (INPUT, usage.prompt_tokens),
            (OUTPUT, usage.completion_tokens),
            (MONEY, money),
        ];
        for (cost, actual) in bill {
            meter.settle(cost, actual);
        }
        self.0.estimates.observe(&call.class, usage.completion_tokens);
    }

    /// All levels of this process.
    fn json(budgets: &Budgets) -> Json<Value> {
        let levels = budgets.usage().map(|level| {
            let limits = level.limits().map(|limit| {
                let (name, ends) = (limit.limit().to_string(), limit.period_ends_in());
                json!({"limit": name, "used": limit.used(), "open": limit.open(), "left": limit.left(), "over": limit.is_over(),
                    "ends_in": ends.map(|ends| ends.as_secs())})
            });
            json!({"rule": level.rule(), "key": key(level.key()), "limits": limits.collect::<Vec<_>>()})
        });
        Json(levels.collect())
    }

    /// In the text format of Prometheus.
    fn metrics(&self) -> String {
        let mut text = String::new();
        let Counts {
            admitted,
            refused,
            stopped,
        } = self.counts();
        for (name, count) in [("admitted", admitted), ("refused", refused), ("stopped", stopped)] {
            let _ = writeln!(text, "gateway_{name}_total {}", count.load(Ordering::Relaxed));
        }
        for level in self.budgets().into_iter().flat_map(Budgets::usage) {
            for limit in level.limits() {
                let mut labels = format!("rule={:?},measure=\"{}\"", level.rule(), limit.limit().measure());
                for (dimension, value) in level.key() {
                    let _ = write!(labels, ",{dimension}={value:?}");
                }
                let amounts = [("used", limit.used()), ("open", limit.open()), ("left", limit.left())];
                for (name, amount) in amounts {
                    let _ = writeln!(text, "gateway_budget_{name}{{{labels}}} {amount}");
                }
            }
        }
        text
    }
}

/// Serves an upstream and a gateway before it, whose address is returned.
pub(crate) async fn serve(
    budgets: &str,
    redis: Option<&str>,
    pause: Duration,
    address: &str,
) -> Result<(Gateway, SocketAddr), Box<dyn Error>> {
    let provider = TcpListener::bind("127.0.0.1:0").await?;
    let ledger = Ledger::new(&Budgets::read(budgets)?, redis)?;
    // All but one of ten answers are within the reservation; the others are charged beyond it.
    let estimates = Estimates::builder(0.9).build()?;
    let gateway = Gateway::new(ledger, estimates, provider.local_addr()?);
    let listener = TcpListener::bind(address).await?;
    let served = listener.local_addr()?;
    tokio::spawn(axum::serve(provider, upstream(pause)).into_future());
    tokio::spawn(axum::serve(listener, gateway.router()).into_future());
    Ok((gateway, served))
}

/// All levels of a gateway with budgets of its own; else those of the caller, as the store has them.
async fn levels(State(gateway): State<Gateway>, headers: HeaderMap) -> Response {
    if let Some(budgets) = gateway.budgets() {
        return Gateway::json(budgets).into_response();
    }
    let Some([organisation, team, user]) = caller(&headers) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let descriptor = [("organisation", organisation), ("team", team), ("user", user)];
    let limits = gateway.0.ledger.account(&descriptor).limits().await;
    let limit = |(name, amount, left, _)| json!({"limit": name, "amount": amount, "left": left});
    Json(limits.into_iter().map(limit).collect::<Value>()).into_response()
}

async fn complete(State(gateway): State<Gateway>, headers: HeaderMap, body: Bytes) -> Response {
    let counts = gateway.counts();
    let Some([organisation, team, user]) = caller(&headers) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let chat = match serde_json::from_slice::<Chat>(&body) {
        Ok(chat) if (1..=MAX_TOKENS).contains(&chat.max_tokens) && body.len() <= MAX_BODY => chat,
        _ => return StatusCode::BAD_REQUEST.into_response(),
    };
    let Some((model, input, output)) = MODELS.iter().find(|(name, ..)| *name == chat.model) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let descriptor = [
        ("organisation", organisation),
        ("team", team),
        ("user", user),
        ("model", model),
    ];
    let account = gateway.0.ledger.account(&descriptor);
    let call = Call {
        chat,
        class: (organisation.to_owned(), (*model).to_owned()),
        prices: (*input, *output),
    };
    let mut meter = match gateway.reserve(&account, &call).await {
        Ok(meter) => meter,
        Err(exceeded) => {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            return refusal(&exceeded, &account).await;
        }
    };
    counts.admitted.fetch_add(1, Ordering::Relaxed);
    let request = axum::http::Request::post(format!("http://{}/v1/chat/completions", gateway.0.upstream))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .expect("a request");
    // A caller that leaves drops this future, or the body below, and with it the meter: what was metered stays charged.
    let answer = match gateway.0.client.request(request).await {
        Ok(answer) if answer.status().is_success() => answer.map(Body::new),
        answer => {
            // Nothing was produced, and nothing is billed.
            meter.cancel();
            return answer
                .map_or(StatusCode::BAD_GATEWAY, |answer| answer.status())
                .into_response();
        }
    };
    let limits = account.fields().await;
    if call.chat.stream {
        let body = Body::from_stream(metered(gateway, meter, call, answer.into_body()));
        return (limits, [(header::CONTENT_TYPE, "text/event-stream")], body).into_response();
    }
    let Ok(body) = to_bytes(answer.into_body(), MAX_BODY).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    if let Ok(Chunk { usage: Some(usage), .. }) = serde_json::from_slice(&body) {
        gateway.settle(&mut meter, &call, usage);
    }
    drop(meter);
    (
        account.fields().await,
        [(header::CONTENT_TYPE, "application/json")],
        body,
    )
        .into_response()
}

/// The key of this example says who has it: `Bearer organisation.team.user`.
fn caller(headers: &HeaderMap) -> Option<[&str; 3]> {
    let key = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")?;
    let parts: Vec<&str> = key.split('.').collect();
    <[&str; 3]>::try_from(parts)
        .ok()
        .filter(|parts| parts.iter().all(|part| !part.is_empty()))
}

/// Passes the stream on, an event at a time, each after it was charged. At the boundary it ends with an error.
fn metered(
    gateway: Gateway,
    meter: Meter,
    call: Call,
    body: Body,
) -> impl futures::Stream<Item = Result<Bytes, axum::Error>> {
    struct Passing {
        gateway: Gateway,
        meter: Meter,
        call: Call,
        body: axum::body::BodyDataStream,
        /// The part of an event that has come.
        part: Vec<u8>,
    }
    let passing = Passing {
        gateway,
        meter,
        call,
        body: body.into_data_stream(),
        part: Vec::new(),
    };
    stream::try_unfold(Some(passing), async |passing| {
        let Some(mut passing) = passing else { return Ok(None) };
        let Some(bytes) = passing.body.next().await else {
            return Ok(None);
        };
        passing.part.extend_from_slice(&bytes?);
        let end = passing
            .part
            .windows(2)
            .rposition(|pair| pair == b"\n\n")
            .map_or(0, |at| at + 2);
        let whole = Bytes::from(passing.part.drain(..end).collect::<Vec<u8>>());
        for event in whole
            .split(|&byte| byte == b'\n')
            .filter_map(|line| line.strip_prefix(b"data: "))
        {
            let Ok(chunk) = serde_json::from_slice::<Chunk>(event) else {
                continue;
            };
            if let Some(usage) = chunk.usage {
                passing.gateway.settle(&mut passing.meter, &passing.call, usage);
                continue;
            }
            let produced = chunk
                .choices
                .iter()
                .map(|choice| tokens(&choice.message.content))
                .sum::<u64>();
            let money = produced * passing.call.prices.1;
            let (output, money) = (
                passing.meter.extend(OUTPUT, produced).await,
                passing.meter.extend(MONEY, money).await,
            );
            if let Err(exceeded) = output.and(money) {
                passing.gateway.counts().stopped.fetch_add(1, Ordering::Relaxed);
                let error = format!("data: {}\n\ndata: [DONE]\n\n", exceeded.body());
                return Ok(Some((Bytes::from(error), None)));
            }
        }
        Ok(Some((whole, Some(passing))))
    })
}

/// Says which level refuses, and when to come back.
async fn refusal(exceeded: &Exceeded, account: &Account) -> Response {
    let status = match exceeded.reason {
        Reason::Oversized => StatusCode::PAYLOAD_TOO_LARGE,
        Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let mut response = (status, account.fields().await, Json(exceeded.body())).into_response();
    if let Some(after) = exceeded.retry_after {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
