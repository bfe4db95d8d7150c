//! A proxy in front of language models, with the limits that such a service has, in one admission: requests and tokens per minute
//! and a daily budget of tokens for each key, a concurrency for each model of which a part is kept for paid keys, and a circuit
//! breaker around the upstream. The limits come from a file, which may change while it runs. A signal drains it.
//!
//! The limits are in `limits.rs`. `by_hand.rs` has the same limits by governor, tokio's semaphore, tower and recloser;
//! `tests/it/llm_proxy.rs` of this package shows what they cannot do.
//!
//! ```text
//! cargo run -p tollgate-examples --example llm_proxy -- 127.0.0.1:8080
//! curl -i 127.0.0.1:8080/v1/completions -H 'authorization: Bearer paid-1' \
//!     -d '{"model": "small", "prompt": "hello", "max_tokens": 100}'
//! curl 127.0.0.1:8080/metrics
//! ```

mod app;
#[allow(dead_code, reason = "it stands beside, and the tests use it")]
mod by_hand;
mod limits;
mod upstream;

use app::App;
use limits::{Failure, Limits};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tollgate::Clock;
use upstream::Upstream;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let clock = Clock::real();
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/llm_proxy/limits.toml"));
    let limits = Limits::open(file, &clock)?;
    let upstream = Arc::new(Upstream::new(&clock, Duration::from_millis(300), 60));
    let app = App::new(Arc::clone(&limits), upstream);

    let reload = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The file is small; one on a slow disk is followed by `PolicySet::follow`.
            match limits.reload() {
                Ok(None) => {}
                Ok(Some(version)) => println!("version {version} is in force"),
                Err(error) => eprintln!("the limits stay as they were: {error}"),
            }
        }
    });
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    let draining = app.clone();
    let stop = async move {
        let _ = tokio::signal::ctrl_c().await;
        let all = draining.drain(&clock, Duration::from_secs(30)).await;
        println!("drained{}", if all { "" } else { ", with requests in flight" });
    };
    axum::serve(listener, app.router()).with_graceful_shutdown(stop).await?;
    reload.abort();
    Ok(())
}
