//! Streams of several users at once, and what became of their budgets.

use super::gateway::Gateway;
use axum::body::Body;
use futures::StreamExt;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

const STREAMS: u64 = 300;
const AT_ONCE: usize = 24;

/// Plays the load, prints a report, and fails when a hard limit is over by more than the streams may exceed it, or something is held
/// though all have ended.
pub(crate) async fn run(gateway: &Gateway, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let answers = futures::stream::iter(0..STREAMS).map(|n| {
        let client = client.clone();
        let user = ["acme.search.ann", "acme.search.bob", "acme.ads.cid", "beta.lab.dan", "beta.lab.eve", "beta.ops.fay"];
        let (user, length) = (user[n as usize % 6], 20 + n * 37 % 700);
        let model = if n % 5 == 0 { "large" } else { "small" };
        let body = format!(
            r#"{{"model":"{model}","max_tokens":1024,"stream":true,"messages":[{{"role":"user","content":"count to {length}"}}]}}"#
        );
        async move {
            let request = http::Request::post(format!("http://{address}/v1/chat/completions"))
                .header("authorization", format!("Bearer {user}"))
                .body(Body::from(body))?;
            let response = client.request(request).await?;
            let status = response.status().as_u16();
            // One of eleven callers leaves in the middle.
            if n % 11 == 10 {
                return Ok((status, String::new()));
            }
            let text = response.into_body().collect().await?.to_bytes();
            Ok::<_, Box<dyn Error>>((status, String::from_utf8_lossy(&text).into_owned()))
        }
    });
    let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
    let mut refused_by: BTreeMap<String, u64> = BTreeMap::new();
    let mut answers = answers.buffer_unordered(AT_ONCE);
    while let Some(answer) = answers.next().await {
        let (status, text) = answer?;
        *statuses.entry(status).or_default() += 1;
        if let Some((_, rule)) = text.split_once("\"rule\":\"") {
            let rule = rule.split('"').next().unwrap_or_default();
            *refused_by.entry(rule.to_owned()).or_default() += 1;
        }
    }
    // Callers that left are noticed with the next event of their streams.
    while gateway
        .budgets()
        .usage()
        .any(|level| level.limits().any(|limit| limit.open() > 0))
    {
        tokio::task::yield_now().await;
    }

    let counts = gateway.counts();
    println!("answers by status: {statuses:?}, refused or stopped by rule: {refused_by:?}");
    println!(
        "admitted {}, refused {}, streams stopped at the boundary {}",
        counts.admitted.load(Ordering::Relaxed),
        counts.refused.load(Ordering::Relaxed),
        counts.stopped.load(Ordering::Relaxed)
    );
    let mut most_over = 0;
    for level in gateway.budgets().usage() {
        println!("  {level}");
        for limit in level.limits().filter(|limit| !limit.limit().is_soft()) {
            most_over = most_over.max(limit.used().saturating_sub(limit.limit().amount()));
        }
    }
    // The largest charge of a stream is the price of one event of the large model.
    let bound = AT_ONCE as u64 * 10_000;
    if most_over > bound {
        return Err(format!("a hard limit is over by {most_over}, and {bound} is allowed").into());
    }
    println!("no hard limit is over by more than {most_over}, and nothing is held");
    Ok(())
}
