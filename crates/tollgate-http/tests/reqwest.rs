//! Clients of reqwest behind the limits of their upstream.
#![cfg(feature = "reqwest")]

use http::Extensions;
use reqwest::{Request, Response, ResponseBuilderExt};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, Result};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate::{Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};
use tollgate_http::LimitError;
use tollgate_http::client::UpstreamLayer;
use tollgate_resilience::upstream::Upstream;

/// A server without a network: it refuses the first request for 30 s.
#[derive(Default)]
struct Answers(AtomicUsize);

#[async_trait::async_trait]
impl Middleware for Answers {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let answer = http::Response::builder().url(request.url().clone());
        let answer = match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => answer.status(429).header("retry-after", "30").body("later"),
            _ => answer.status(203).header("x-from", "there").body("an answer"),
        };
        Ok(answer.unwrap().into())
    }
}

fn client<L: Limiter + 'static>(upstream: &Arc<Upstream>, limits: Policy<L>) -> ClientWithMiddleware {
    let layer = UpstreamLayer::of_policy(Arc::clone(upstream), limits);
    let client = ClientBuilder::new(reqwest::Client::new()).with(layer);
    client.with(Answers::default()).build()
}

const URL: &str = "http://service.test/a?b=c";

#[test]
fn a_429_pauses_every_clone_of_a_client() {
    let clock = ManualClock::new();
    let rate = Quota::per_second(50);
    let upstream = Arc::new(Upstream::builder().rate(rate).on(&clock).build().unwrap());
    let limits = Policy::new(Arc::clone(&upstream).and(TokenBucket::new(rate).on(&clock)));
    let client = client(&upstream, limits);
    clock.run(async {
        let first = client.get(URL).send().await.unwrap();
        assert_eq!((first.status().as_u16(), first.url().as_str()), (429, URL));
        assert_eq!(first.text().await.unwrap(), "later");
        assert_eq!(upstream.paused_for(), Some(Duration::from_secs(30)));
        let second = client.clone().get(URL).send().await.unwrap();
        assert!(clock.elapsed() >= Duration::from_secs(30));
        assert_eq!((second.status().as_u16(), second.url().as_str()), (203, URL));
        assert_eq!(second.headers()["x-from"], "there");
        assert_eq!(second.text().await.unwrap(), "an answer");
    });
}

#[test]
fn the_body_of_a_response_holds_its_permit_and_a_refusal_is_an_error_of_the_middleware() {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let slots = Arc::new(Semaphore::new(1));
    let limits = Policy::builder()
        .limit(Arc::clone(&upstream))
        .limit(Arc::clone(&slots))
        .max_queue(0)
        .build()
        .unwrap();
    let client = client(&upstream, limits);
    clock.run(async {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!(slots.in_use(), 1);
        clock.advance(Duration::from_secs(60));
        let refused = client.get(URL).send().await.unwrap_err();
        let Error::Middleware(refused) = refused else {
            panic!("{refused:?}")
        };
        let refused = refused.downcast_ref::<LimitError<Infallible>>().unwrap();
        assert_eq!(refused.refusal().unwrap().reason(), Reason::QueueFull);
        drop(response);
        assert_eq!(slots.in_use(), 0);
        assert!(client.get(URL).send().await.is_ok());
    });
}

/// A client whose answers take two polls.
struct Slow;

#[async_trait::async_trait]
impl Middleware for Slow {
    async fn handle(&self, request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response> {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        next.run(request, extensions).await
    }
}

#[test]
fn a_request_that_is_dropped_at_any_poll_leaves_nothing_behind() {
    for polls in 0..8 {
        let clock = ManualClock::new();
        let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
        let slots = Arc::new(Semaphore::new(1));
        let layer = UpstreamLayer::new(Arc::clone(&upstream), Arc::clone(&slots));
        let client = ClientBuilder::new(reqwest::Client::new()).with(layer).with(Slow);
        let client = client.with(Answers(AtomicUsize::new(1))).build();
        let mut holder = Some(slots.try_acquire().unwrap());
        let mut future = Box::pin(client.get(URL).send());
        let mut response = None;
        for poll in 0..polls {
            if poll == 2 {
                holder.take();
            }
            if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                response = Some(ready.unwrap());
                break;
            }
        }
        assert_eq!(response.is_some(), polls >= 5, "after {polls} polls");
        drop((future, response, holder));
        assert_eq!((slots.in_use(), slots.waiting()), (0, 0), "after {polls} polls");
        let response = clock.run(client.get(URL).send()).unwrap();
        assert_eq!(slots.in_use(), 1);
        drop(response);
        assert_eq!(slots.in_use(), 0);
    }
}

/// Over a socket: what the server sends arrives whole, and an error of the client comes back as it is.
#[tokio::test]
async fn responses_and_errors_of_reqwest_pass_unchanged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
        stream.write_all(answer).await.unwrap();
    });
    let upstream = Arc::new(Upstream::builder().build().unwrap());
    let slots = Arc::new(Semaphore::new(1));
    let layer = UpstreamLayer::new(upstream, Arc::clone(&slots));
    let plain = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = ClientBuilder::new(plain).with(layer).build();
    let response = client.get(format!("http://{address}/")).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "hello");
    server.await.unwrap();
    // The server has gone.
    let error = client.get(format!("http://{address}/")).send().await.unwrap_err();
    assert!(
        matches!(&error, Error::Reqwest(error) if error.is_connect()),
        "{error:?}"
    );
    assert_eq!(slots.in_use(), 0);
}
