//! Connections that hold on to nothing: idle ones, streams that are reset, and those that have left HTTP.

use crate::tower_wire::{Body, LIMIT, LONG, all_come_back, answer, read_to, send};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tollgate::Semaphore;
use tollgate::tower::LimitLayer;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};

const IDLE: usize = 1_000;

/// A soft limit of 1,024 open files would do for half of them.
fn allow_many_files() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit {
        current: files.maximum.map_or(Some(4_096), |max| Some(max.min(4_096))),
        ..files
    };
    if files.current.is_some_and(|now| now < 4_096) {
        rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted).unwrap();
    }
}

/// A server that polls its service ready before a request has come, for each connection, and again after each response. Adds
/// a permit to the second for each connection that is ready.
async fn serve_ready_ahead<S, B>(service: S) -> (SocketAddr, Arc<tokio::sync::Semaphore>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: std::fmt::Debug, Future: Send>
        + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let ready = Arc::new(tokio::sync::Semaphore::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, told) = (listener.local_addr().unwrap(), Arc::clone(&ready));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (mut service, told) = (service.clone(), Arc::clone(&told));
            tokio::spawn(async move {
                service.ready().await.unwrap();
                told.add_permits(1);
                let service = Arc::new(Mutex::new(service));
                let one = hyper::service::service_fn(move |request| {
                    let service = Arc::clone(&service);
                    async move {
                        let mut service = service.lock().await;
                        let response = service.call(request).await.unwrap();
                        service.ready().await.unwrap();
                        Ok::<_, Infallible>(response)
                    }
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), one)
                    .await
            });
        }
    });
    (address, ready)
}

/// Given a thousand connections, each ready for its next request, half of which have had an answer, then all permits are
/// there, and each connection is served when it asks.
#[tokio::test]
async fn a_thousand_idle_connections_hold_no_permit() {
    allow_many_files();
    let gate = Arc::new(Semaphore::new(LIMIT));
    let limited = LimitLayer::new(Arc::clone(&gate)).layer(service_fn(answer));
    let (address, ready) = serve_ready_ahead(limited).await;
    let mut idle = Vec::new();
    for at in 0..IDLE {
        idle.push(match at % 2 {
            0 => TcpStream::connect(address).await.unwrap(),
            _ => {
                let mut used = send(address, "/").await;
                assert!(read_to(&mut used, "hello").await.starts_with("HTTP/1.1 200"));
                used
            }
        });
    }
    let all = timeout(LONG, ready.acquire_many(IDLE as u32)).await;
    drop(all.expect("all are ready").unwrap());
    all_come_back(&gate).await;
    for socket in &mut idle {
        socket.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        assert!(read_to(socket, "hello").await.starts_with("HTTP/1.1 200"));
    }
    all_come_back(&gate).await;
}

/// The test above can fail: a layer that reserves in `poll_ready` has no permit left for any client after as many connections as permits.
#[tokio::test]
async fn idle_connections_hold_the_permits_of_a_layer_that_reserves_ahead() {
    let gate = Arc::new(tokio::sync::Semaphore::new(LIMIT));
    let limited = ConcurrencyLimit::with_semaphore(service_fn(answer), Arc::clone(&gate));
    let (address, ready) = serve_ready_ahead(limited).await;
    let mut idle = Vec::new();
    for _ in 0..LIMIT {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let all = timeout(LONG, ready.acquire_many(LIMIT as u32)).await;
    drop(all.expect("all are ready").unwrap());
    assert_eq!(gate.available_permits(), 0);
}

/// Given a connection of HTTP/2, when its client resets a stream that is being sent, or one that has no answer yet, then the
/// permit of that stream comes back, and the connection goes on.
#[tokio::test]
async fn a_stream_that_is_reset_returns_its_permit() {
    let gate = Arc::new(Semaphore::new(LIMIT));
    let service = TowerToHyperService::new(LimitLayer::new(Arc::clone(&gate)).layer(service_fn(answer)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(TokioIo::new(socket), service).await
    });
    let socket = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), socket)
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = |path: &str| {
        let request = Request::get(format!("http://{address}{path}"));
        request.body(Empty::<Bytes>::new()).unwrap()
    };

    // One after the other: they share the window of the connection.
    for _ in 0..2 * LIMIT {
        let response = timeout(LONG, client.send_request(request("/stream"))).await;
        let mut response = response.expect("a head").unwrap();
        let frame = timeout(LONG, response.frame()).await;
        frame.expect("a frame").unwrap().unwrap();
        assert_eq!(gate.in_use(), 1);
        drop(response);
        all_come_back(&gate).await;
    }
    {
        let mut waits = std::pin::pin!(client.send_request(request("/never")));
        let admitted = async {
            while gate.in_use() == 0 {
                assert!(futures::poll!(waits.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, admitted).await.expect("it is admitted");
    }
    all_come_back(&gate).await;
    let answer = timeout(LONG, client.send_request(request("/"))).await;
    let answer = answer.expect("the connection goes on").unwrap();
    assert_eq!(answer.collect().await.unwrap().to_bytes(), "hello");
}

/// Echoes on a connection that has been upgraded.
async fn upgrade(mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
        tokio::io::copy(&mut read, &mut write).await
    });
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("connection", "upgrade".parse().unwrap());
    headers.insert("upgrade", "echo".parse().unwrap());
    Ok(response)
}

#[tokio::test]
async fn a_connection_that_has_left_http_holds_nothing() {
    let gate = Arc::new(Semaphore::new(1));
    let layer = LimitLayer::new(Arc::clone(&gate));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = TowerToHyperService::new(layer.layer(service_fn(upgrade)));
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(socket), service).with_upgrades());
        }
    });
    let mut upgraded = Vec::new();
    for _ in 0..10 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        socket.write_all(request).await.unwrap();
        assert!(read_to(&mut socket, "\r\n\r\n").await.starts_with("HTTP/1.1 101"));
        drop(
            timeout(LONG, gate.acquire())
                .await
                .expect("the permit comes back")
                .unwrap(),
        );
        upgraded.push(socket);
    }
    for socket in &mut upgraded {
        socket.write_all(b"ping").await.unwrap();
        let mut echo = [0; 4];
        timeout(LONG, socket.read_exact(&mut echo))
            .await
            .expect("an echo")
            .unwrap();
        assert_eq!(&echo, b"ping");
    }
    assert_eq!(gate.in_use(), 0);
}
