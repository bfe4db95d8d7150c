//! The example `llm_gateway` over sockets: what its budgets refuse, stop, and give back.

#[path = "../../examples/llm_gateway/chat.rs"]
mod chat;
#[path = "../../examples/llm_gateway/gateway.rs"]
mod gateway;
#[path = "../../examples/llm_gateway/ledger.rs"]
mod ledger;
#[path = "../../examples/llm_gateway/upstream.rs"]
mod upstream;

use axum::body::Body;
use gateway::Gateway;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A gateway whose users have 1,000 tokens of output an hour, and two calls in flight.
struct World {
    gateway: Gateway,
    address: SocketAddr,
}

const BUDGETS: &str = r#"
[[rule]]
name = "user"
per = ["organisation", "user"]
limit = [{ of = "output", amount = 1_000, per = "hour" }, { of = "in flight", amount = 2 }]
"#;

impl World {
    async fn new() -> Self {
        Self::with_pause(Duration::ZERO).await
    }

    /// The upstream pauses between two words.
    async fn with_pause(pause: Duration) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(BUDGETS.as_bytes()).unwrap();
        let served = gateway::serve(file.path().to_str().unwrap(), None, pause, "127.0.0.1:0");
        let (gateway, address) = served.await.unwrap();
        Self { gateway, address }
    }

    async fn ask(&self, user: &str, length: u64, max_tokens: u64, stream: bool) -> Response<Incoming> {
        let chat = serde_json::json!({"model": "small", "max_tokens": max_tokens, "stream": stream,
            "messages": [{"role": "user", "content": format!("count to {length}")}]});
        let request = Request::post(format!("http://{}/v1/chat/completions", self.address))
            .header("authorization", format!("Bearer acme.search.{user}"))
            .body(Body::from(chat.to_string()));
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        client.request(request.unwrap()).await.unwrap()
    }

    async fn answer(&self, user: &str, length: u64, max_tokens: u64, stream: bool) -> (u16, HeaderMap, String) {
        let (parts, body) = self.ask(user, length, max_tokens, stream).await.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (
            parts.status.as_u16(),
            parts.headers,
            String::from_utf8(text.into()).unwrap(),
        )
    }

    /// The output that `user` has used, and holds.
    fn output(&self, user: &str) -> (u64, u64) {
        let level = |level: &tollgate_budget::LevelUsage| level.key().any(|pair| pair == ("user", user));
        let level = self
            .gateway
            .budgets()
            .unwrap()
            .usage()
            .find(level)
            .expect("it is known");
        let output = level.limits().next().expect("it comes first");
        (output.used(), output.open())
    }
}

#[tokio::test]
async fn an_answer_is_settled_to_the_bill_and_the_next_refusal_names_the_level() {
    let world = World::new().await;
    // More than the limit is never admitted, and no instant is named.
    let (status, headers, _) = world.answer("ann", 10, 2_000, false).await;
    assert!(status == 413 && !headers.contains_key("retry-after"));
    let (status, headers, _) = world.answer("ann", 300, 900, false).await;
    assert_eq!((status, world.output("ann")), (200, (300, 0)));
    assert_eq!(
        headers["ratelimit-policy"],
        "\"user.output\";q=1000, \"user.in-flight\";q=2"
    );
    let left = headers["ratelimit"].to_str().unwrap();
    assert!(
        left.starts_with("\"user.output\";r=700;t=") && left.ends_with(", \"user.in-flight\";r=2"),
        "{left}"
    );

    let (status, headers, body) = world.answer("ann", 10, 800, false).await;
    let error = &serde_json::from_str::<Value>(&body).unwrap()["error"];
    assert_eq!(
        (status, &error["rule"], &error["left"]),
        (429, &"user".into(), &700.into())
    );
    assert_eq!(error["key"], serde_json::json!({"organisation": "acme", "user": "ann"}));
    assert!((1..=3_600).contains(&headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap()));
    // Others have budgets of their own.
    assert_eq!(world.answer("bob", 10, 800, false).await.0, 200);
}

#[tokio::test]
async fn a_stream_beyond_its_estimate_is_stopped_at_the_boundary() {
    let world = World::new().await;
    for _ in 0..40 {
        assert_eq!(world.answer("ann", 10, 200, true).await.0, 200);
    }
    // Ten or so are reserved by now, and the stream produces up to 900.
    let (status, _, text) = world.answer("ann", 900, 1_000, true).await;
    assert_eq!(status, 200);
    let error = text
        .lines()
        .find(|line| line.contains("budget_exceeded"))
        .expect("it was stopped");
    assert!(
        error.starts_with("data: ") && text.ends_with("data: [DONE]\n\n"),
        "{error}"
    );
    // The event at the boundary was produced, and has one token.
    assert_eq!((text.matches("word").count(), world.output("ann")), (600, (1_001, 0)));
    assert_eq!(world.gateway.counts().stopped.load(Ordering::Relaxed), 1);
}

/// The upstream stops after the first word.
#[tokio::test]
async fn a_caller_that_leaves_pays_for_what_was_produced() {
    let world = World::with_pause(Duration::from_secs(3_600)).await;
    let mut body = world.ask("ann", 900, 900, true).await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(world.output("ann"), (0, 900), "the reservation");
    drop(body);
    while world.output("ann").1 > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.output("ann"), (1, 0));
}

#[tokio::test]
async fn the_state_of_all_levels_is_shown() {
    let world = World::new().await;
    world.answer("ann", 10, 200, false).await;
    let get = async |path: &str| {
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let url = format!("http://{}{path}", world.address).parse().unwrap();
        let text = client.get(url).await.unwrap().into_body().collect().await.unwrap();
        String::from_utf8(text.to_bytes().into()).unwrap()
    };
    let metrics = get("/metrics").await;
    assert!(metrics.contains("gateway_admitted_total 1\n"), "{metrics}");
    let row = "gateway_budget_used{rule=\"user\",measure=\"output\",organisation=\"acme\",user=\"ann\"} 10\n";
    assert!(metrics.contains(row), "{metrics}");
    let levels: Value = serde_json::from_str(&get("/budgets").await).unwrap();
    let ann = levels
        .as_array()
        .unwrap()
        .iter()
        .find(|level| level["key"]["user"] == "ann")
        .unwrap();
    assert_eq!(
        (&ann["limits"][0]["used"], &ann["limits"][0]["left"]),
        (&10.into(), &990.into())
    );
}
