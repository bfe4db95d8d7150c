//! Streams of several users at once, and what became of their budgets.

use super::gateway::Gateway;
use axum::body::Body;
use futures::StreamExt;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const STREAMS: u64 = 300;
const AT_ONCE: usize = 24;

/// The tokens that each user was sent.
type Produced = BTreeMap<&'static str, u64>;

/// Plays some streams of the load at gateways in turn, and prints what callers were told.
async fn play(addresses: &[SocketAddr], streams: u64) -> Result<Produced, Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let answers = futures::stream::iter(0..streams).map(|n| {
        let (client, address) = (client.clone(), addresses[n as usize % addresses.len()]);
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
                return Ok((user, status, String::new()));
            }
            let text = response.into_body().collect().await?.to_bytes();
            Ok::<_, Box<dyn Error>>((user, status, String::from_utf8_lossy(&text).into_owned()))
        }
    });
    let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
    let mut refused_by: BTreeMap<String, u64> = BTreeMap::new();
    let mut produced = Produced::new();
    let mut answers = answers.buffer_unordered(AT_ONCE);
    while let Some(answer) = answers.next().await {
        let (user, status, text) = answer?;
        *produced.entry(user).or_default() += text.matches("word").count() as u64;
        *statuses.entry(status).or_default() += 1;
        if let Some((_, rule)) = text.split_once("\"rule\":\"") {
            let rule = rule.split('"').next().unwrap_or_default();
            *refused_by.entry(rule.to_owned()).or_default() += 1;
        }
    }
    if streams > 1 {
        println!("answers by status: {statuses:?}, refused or stopped by rule: {refused_by:?}");
    }
    Ok(produced)
}

/// A gateway that is stopped when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Plays the load at three processes that share their budgets. Fails if a user was sent more than one budget allows.
pub(crate) async fn three(redis: &str) -> Result<(), Box<dyn Error>> {
    let mut processes = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = Process(command.args(["127.0.0.1:0", redis]).stdout(Stdio::piped()).spawn()?);
        // It says where it listens, and no more.
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        addresses.push(line.trim_end().rsplit(' ').next().unwrap_or_default().parse()?);
        processes.push(process);
    }
    // A Redis that was just started grants no calls in flight before all leases of an earlier one have ended.
    let mut tries = 0;
    while play(&addresses, 1).await?.values().all(|tokens| *tokens == 0) {
        tries += 1;
        if tries == 150 {
            return Err("no gateway admits".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let minute = || Ok::<_, Box<dyn Error>>(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 60);
    let first = minute()?;
    let produced = play(&addresses, STREAMS).await?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let request = http::Request::get(format!("http://{}/budgets", addresses[0]))
        .header("authorization", "Bearer acme.search.ann")
        .body(Body::empty())?;
    let text = client.request(request).await?.into_body().collect().await?.to_bytes();
    println!("acme.search.ann: {}", String::from_utf8_lossy(&text));
    // 10,000 tokens in each minute that the load has touched, and one more for each running stream.
    let minutes = minute()? - first + 1;
    let bound = minutes * 10_000 + AT_ONCE as u64;
    println!("tokens by user, in {minutes} minutes: {produced:?}");
    match produced.values().max() {
        Some(most) if *most > bound => Err(format!("{most} tokens of one user, and {bound} are allowed").into()),
        _ => Ok(()),
    }
}

/// Plays the load, prints a report, and fails when a hard limit is over by more than the streams may exceed it, or something is held
/// though all have ended.
pub(crate) async fn run(gateway: &Gateway, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let budgets = gateway.budgets().ok_or("its budgets are at a store")?;
    play(&[address], STREAMS).await?;
    // Callers that left are noticed with the next event of their streams.
    while budgets
        .usage()
        .any(|level| level.limits().any(|limit| limit.open() > 0))
    {
        tokio::task::yield_now().await;
    }

    let counts = gateway.counts();
    println!(
        "admitted {}, refused {}, streams stopped at the boundary {}",
        counts.admitted.load(Ordering::Relaxed),
        counts.refused.load(Ordering::Relaxed),
        counts.stopped.load(Ordering::Relaxed)
    );
    let mut most_over = 0;
    for level in budgets.usage() {
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
