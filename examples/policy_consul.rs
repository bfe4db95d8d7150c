//! A policy under a key of Consul's, which an operator writes while the service runs: a better version, a wrong one, a better one
//! again.
//!
//! ```sh
//! cargo run --example policy_consul --features consul,policy-file -- http://127.0.0.1:8500
//! ```
//!
//! What has become of each version is printed. It is followed until three versions have come, or for a minute; write one with
//! `curl -X PUT --data-binary @policy.toml http://127.0.0.1:8500/v1/kv/gate/policy.toml`. With `--write` the example writes them
//! itself, and ends.

use std::time::Duration;
use tokio::sync::mpsc;
use tollgate::Clock;
use tollgate::policy::source::PolicyEvent;
use tollgate::remote::Consul;

const KEY: &str = "gate/policy.toml";

fn text(limit: &str) -> String {
    format!("[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = {limit}\n")
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| "http://127.0.0.1:8500".into());
    let writes = words.next().is_some_and(|word| word == "--write");
    if writes {
        write(&address, &text("2")).await?;
    }
    let (spec, source) = Consul::options(&*address).connect()?.policy(KEY).await?;
    let policy = spec.build(&Clock::real())?;
    let (sender, mut events) = mpsc::unbounded_channel();
    let followed = policy.clone();
    tokio::spawn(async move { followed.follow(source, |event| drop(sender.send(event))).await });
    let limit = || policy.limiter().leg("in flight").and_then(|leg| leg.capacity);
    println!("{KEY}: {:?} in flight", limit());

    for (version, right) in [("5", true), ("\"many\"", false), ("7", true)] {
        if writes {
            write(&address, &text(version)).await?;
        }
        let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await?;
        let event = event.ok_or("it is followed no more")?;
        println!("{event}; {:?} in flight", limit());
        if writes && matches!(event, PolicyEvent::Applied(_)) != right {
            return Err(format!("{version} was {event}").into());
        }
    }
    if writes && limit() != Some(7) {
        return Err(format!("{:?} in flight", limit()).into());
    }
    Ok(())
}

/// What an operator does.
async fn write(address: &str, text: &str) -> Result<(), Failure> {
    use http_body_util::Full;
    use hyper_util::client::legacy::Client;
    let client = Client::builder(hyper_util::rt::TokioExecutor::new()).build_http::<Full<bytes::Bytes>>();
    let request = http::Request::put(format!("{address}/v1/kv/{KEY}")).body(text.to_owned().into())?;
    let status = client.request(request).await?.status();
    if status.is_success() {
        Ok(())
    } else {
        Err(format!("{address} says {status}").into())
    }
}
