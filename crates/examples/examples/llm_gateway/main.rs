//! A gateway in front of language models, with budgets whose price is known afterwards: money of an organisation and of its teams,
//! tokens, requests and calls in flight of its users, from a file. It speaks the chat API of OpenAI, with streams.
//!
//! A request reserves its estimate at every level that matches, or is refused, and the answer names the level. A stream is charged as
//! it produces, and is stopped at the boundary. The upstream's bill settles it.
//!
//! ```text
//! cargo run -p tollgate-examples --example llm_gateway                        # 300 streams of six users, and a report
//! cargo run -p tollgate-examples --example llm_gateway -- 127.0.0.1:8080      # serves, until it is stopped
//! cargo run -p tollgate-examples --example llm_gateway --features redis -- 127.0.0.1:8080 redis://127.0.0.1:6379/  # one of several
//! cargo run -p tollgate-examples --example llm_gateway --features redis -- three redis://127.0.0.1:6379/  # the load at three processes
//! curl -i 127.0.0.1:8080/v1/chat/completions -H 'authorization: Bearer acme.search.ann' -H 'content-type: application/json' \
//!     -d '{"model": "small", "max_tokens": 400, "stream": true, "messages": [{"role": "user", "content": "count to 200"}]}'
//! curl 127.0.0.1:8080/budgets
//! curl 127.0.0.1:8080/metrics
//! ```

mod chat;
mod gateway;
mod ledger;
mod load;
mod upstream;

use std::error::Error;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (address, redis) = (std::env::args().nth(1), std::env::args().nth(2));
    if let (Some("three"), Some(redis)) = (address.as_deref(), &redis) {
        return load::three(redis).await;
    }
    let pause = Duration::from_millis(if address.is_some() { 5 } else { 0 });
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/llm_gateway/budgets.toml");
    let (gateway, served) = gateway::serve(
        file,
        redis.as_deref(),
        pause,
        address.as_deref().unwrap_or("127.0.0.1:0"),
    )
    .await?;
    if address.is_none() {
        return load::run(&gateway, served).await;
    }
    println!("listening on {served}");
    tokio::signal::ctrl_c().await?;
    Ok(())
}
