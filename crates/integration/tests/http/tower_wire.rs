//! The layer on real sockets: servers and clients of hyper and tonic.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tollgate::{LimiterExt, Semaphore};
use tollgate_http::{GrpcCodes, LimitLayer};
use tollgate_resilience::{BreakerState, CircuitBreaker};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// For waits that end by an event: a test that hangs should fail.
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const LIMIT: usize = 4;

/// Answers `/stream` without end, `/never` never, and all else with a few bytes.
pub(crate) async fn answer(request: Request<hyper::body::Incoming>) -> Result<Response<Body>, Infallible> {
    let chunk = || Ok(http_body::Frame::data(Bytes::from(vec![7u8; 65_536])));
    Ok(Response::new(match request.uri().path() {
        "/stream" => StreamBody::new(futures::stream::repeat_with(chunk)).boxed(),
        "/never" => std::future::pending().await,
        _ => Full::new(Bytes::from_static(b"hello")).boxed(),
    }))
}

/// Serves `answer` behind a semaphore, and returns where, and the semaphore.
async fn serve() -> (SocketAddr, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(LIMIT));
    let layer = LimitLayer::new(Arc::clone(&gate)).refuse_with(|_| {
        let mut response = Response::new(Full::new(Bytes::new()).boxed());
        *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        response
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = TowerToHyperService::new(layer.layer(service_fn(answer)));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service));
        }
    });
    (address, gate)
}

pub(crate) async fn send(address: SocketAddr, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

/// Reads until `end` has come.
pub(crate) async fn read_to(socket: &mut TcpStream, end: &str) -> String {
    let mut seen = Vec::new();
    while !seen.windows(end.len()).any(|window| window == end.as_bytes()) {
        let byte = timeout(LONG, socket.read_u8()).await.expect("an answer").unwrap();
        seen.push(byte);
    }
    String::from_utf8(seen).unwrap()
}

/// All permits at once: none is held elsewhere, now or soon.
pub(crate) async fn all_come_back(gate: &Semaphore) {
    let all = timeout(LONG, gate.acquire_many(LIMIT as u32)).await;
    drop(all.expect("permits come back").unwrap());
}

#[tokio::test]
async fn a_client_that_stops_reading_holds_exactly_one_until_it_leaves() {
    let (address, gate) = serve().await;
    let mut slow = send(address, "/stream").await;
    read_to(&mut slow, "\r\n\r\n").await;
    assert_eq!(gate.in_use(), 1);
    // Others come and go meanwhile, while the server cannot get rid of its stream.
    for _ in 0..50 {
        let mut quick = send(address, "/").await;
        read_to(&mut quick, "hello").await;
        assert!((1..=2).contains(&gate.in_use()));
    }
    drop(
        timeout(LONG, gate.acquire_many(LIMIT as u32 - 1))
            .await
            .unwrap()
            .unwrap(),
    );
    assert_eq!(gate.in_use(), 1);
    drop(slow);
    all_come_back(&gate).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_returns_its_permit() {
    let (address, gate) = serve().await;
    let mut waiting = Vec::new();
    for _ in 0..LIMIT {
        waiting.push(send(address, "/never").await);
    }
    // Until all have been admitted, answers are 200; the one after them is refused.
    loop {
        let mut probe = send(address, "/").await;
        if read_to(&mut probe, "\r\n\r\n").await.starts_with("HTTP/1.1 503") {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(gate.in_use(), LIMIT);
    drop(waiting);
    all_come_back(&gate).await;
}

/// A client of hyper behind a policy: a body that is being read holds the permit, and a server that fails opens the breaker.
#[tokio::test]
async fn a_client_of_hyper_is_limited_and_feeds_a_breaker() {
    let (address, server) = serve().await;
    let breaker = Arc::new(
        CircuitBreaker::builder()
            .count_window(2)
            .minimum_calls(2)
            .build()
            .unwrap(),
    );
    let gate = Arc::new(Semaphore::new(1));
    let both = Arc::new(Arc::clone(&breaker).and(Arc::clone(&gate)));
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut client = ServiceBuilder::new().layer(LimitLayer::new(both)).service(client);
    let request = |path: &str| {
        Request::get(format!("http://{address}{path}"))
            .body(Empty::new())
            .unwrap()
    };

    let mut stream = client.ready().await.unwrap().call(request("/stream")).await.unwrap();
    stream.frame().await.unwrap().unwrap();
    assert_eq!(gate.in_use(), 1);
    let refused = client.ready().await.unwrap().call(request("/")).await.unwrap_err();
    assert_eq!(refused.to_string(), "limiter `semaphore` is saturated");
    drop(stream);
    assert_eq!(gate.in_use(), 0);
    let answer = client.ready().await.unwrap().call(request("/")).await.unwrap();
    assert_eq!(answer.collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(
        (gate.in_use(), breaker.metrics().calls),
        (0, 2),
        "the stream has begun well"
    );

    server.close();
    assert_eq!(breaker.state(), BreakerState::Closed);
    drop(client.ready().await.unwrap().call(request("/")).await.unwrap());
    assert_eq!(breaker.state(), BreakerState::Open, "one of two has failed");
    let refused = client.ready().await.unwrap().call(request("/")).await.unwrap_err();
    assert_eq!(refused.to_string(), "limiter `breaker` has an open circuit");
}

/// A server and a client of tonic: a call that streams holds a permit on either side, and a refusal is a status.
#[tokio::test]
async fn a_server_and_a_client_of_tonic_are_limited() {
    let (reporter, health) = tonic_health::server::health_reporter();
    let (server, client) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(2)));
    let layer = LimitLayer::new(Arc::clone(&server))
        .classify(GrpcCodes)
        .refuse_with(|refusal| tonic::Status::resource_exhausted(refusal.to_string()).into_http::<tonic::body::Body>());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let serving = tonic::transport::Server::builder().layer(layer).add_service(health);
    tokio::spawn(serving.serve_with_incoming(incoming));

    let channel = tonic::transport::Endpoint::new(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let channel = LimitLayer::new(Arc::clone(&client)).classify(GrpcCodes).layer(channel);
    let mut calls = HealthClient::new(channel);
    let request = || HealthCheckRequest { service: String::new() };

    calls.check(request()).await.unwrap();
    drop(timeout(LONG, server.acquire()).await.unwrap().unwrap());
    assert_eq!(client.in_use(), 0);

    let mut watch = calls.watch(request()).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    assert_eq!((server.in_use(), client.in_use()), (1, 1));
    let refused = calls.check(request()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(refused.message(), "limiter `semaphore` is saturated");
    drop(watch);
    drop(timeout(LONG, server.acquire()).await.unwrap().unwrap());
    assert_eq!(client.in_use(), 0);
    drop(reporter);
}
