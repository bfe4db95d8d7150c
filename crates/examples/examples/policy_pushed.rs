//! A policy under a key of Consul's or etcd's, which an operator writes while the service runs: a better version, a wrong one, a
//! better one again.
//!
//! ```sh
//! cargo run -p tollgate-examples --example policy_pushed --features consul,etcd -- consul http://127.0.0.1:8500
//! cargo run -p tollgate-examples --example policy_pushed --features consul,etcd -- etcd http://127.0.0.1:2379
//! ```
//!
//! What has become of each version is printed. It is followed until three versions have come, or for a minute; write one with
//! `curl -X PUT --data-binary @policy.toml http://127.0.0.1:8500/v1/kv/gate/policy.toml`, or
//! `etcdctl put gate/policy.toml < policy.toml`. With `--write` the example writes them itself, and ends.

use base64::Engine as _;
use std::time::Duration;
use tokio::sync::mpsc;
use tollgate::Clock;
use tollgate_config::{PolicySpec, Reload, Source};
use tollgate_stores::{Consul, Etcd};

const KEY: &str = "gate/policy.toml";

fn text(limit: &str) -> String {
    format!("[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = {limit}\n")
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where an operator writes.
enum Store {
    Consul(String),
    Etcd(String),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (store, writes) = match words[..] {
        ["consul", address] => (Store::Consul(address.into()), false),
        ["consul", address, "--write"] => (Store::Consul(address.into()), true),
        ["etcd", address] => (Store::Etcd(address.into()), false),
        ["etcd", address, "--write"] => (Store::Etcd(address.into()), true),
        _ => return Err("say `consul` or `etcd`, its address, and perhaps --write".into()),
    };
    if writes {
        store.write(&text("2")).await?;
    }
    match &store {
        Store::Consul(address) => {
            let (spec, source) = Consul::options(&**address).connect()?.policy(KEY).await?;
            follow(&store, writes, spec, source).await
        }
        Store::Etcd(address) => {
            let (spec, source) = Etcd::options(&**address).connect()?.policy(KEY).await?;
            follow(&store, writes, spec, source).await
        }
    }
}

async fn follow<S>(store: &Store, writes: bool, spec: PolicySpec, source: S) -> Result<(), Failure>
where
    S: Source + Send + 'static,
{
    let policy = spec.build(&Clock::real())?;
    let (sender, mut events) = mpsc::unbounded_channel();
    let followed = policy.clone();
    tokio::spawn(async move { followed.follow(source, |event| drop(sender.send(event))).await });
    let limit = || policy.limiter().leg("in flight").and_then(|leg| leg.capacity());
    println!("{KEY}: {:?} in flight", limit());

    for (version, right) in [("5", true), ("\"many\"", false), ("7", true)] {
        if writes {
            store.write(&text(version)).await?;
        }
        let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await?;
        let event = event.ok_or("it is followed no more")?;
        let said = match &event {
            Ok(version) => format!("version {version} is in force"),
            Err(error) => format!("refused: {error}"),
        };
        println!("{said}; {:?} in flight", limit());
        if writes && event.is_ok() != right {
            return Err(format!("{version}: {said}").into());
        }
    }
    if writes && limit() != Some(7) {
        return Err(format!("{:?} in flight", limit()).into());
    }
    Ok(())
}

impl Store {
    /// What an operator does.
    async fn write(&self, text: &str) -> Result<(), Failure> {
        use http_body_util::Full;
        use hyper_util::client::legacy::Client;
        let request = match self {
            Self::Consul(address) => {
                http::Request::put(format!("{address}/v1/kv/{KEY}")).body(text.to_owned().into())?
            }
            Self::Etcd(address) => {
                let coded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
                let pair = serde_json::json!({ "key": coded(KEY), "value": coded(text) }).to_string();
                http::Request::post(format!("{address}/v3/kv/put")).body(pair.into())?
            }
        };
        let client = Client::builder(hyper_util::rt::TokioExecutor::new()).build_http::<Full<bytes::Bytes>>();
        let status = client.request(request).await?.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("the store says {status}").into())
        }
    }
}
