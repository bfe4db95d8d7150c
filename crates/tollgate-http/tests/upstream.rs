//! Clients of an upstream over real sockets, and their futures dropped at each poll.
#![cfg(feature = "client")]

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tollgate::{LimiterExt, ManualClock, Quota, Reason, Semaphore, TokenBucket};
use tollgate_http::client::{Grpc, UpstreamLayer};
use tollgate_http::{ClientGrpcCodes, LimitError};
use tollgate_resilience::upstream::Upstream;
use tower::{Layer, Service, ServiceExt, service_fn};

/// The instants at which a server has received requests.
type Received = Arc<Mutex<Vec<Instant>>>;

/// A server that refuses the 70th request, once, and answers every other after 20 ms.
async fn server(received: Received) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let received = Arc::clone(&received);
            tokio::spawn(async move {
                let mut head = [0; 1024];
                let read = stream.read(&mut head).await.unwrap();
                assert!(head[..read].ends_with(b"\r\n\r\n"));
                let number = {
                    let mut received = received.lock().unwrap();
                    received.push(Instant::now());
                    received.len()
                };
                let answer: &[u8] = match number {
                    70 => b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
                    _ => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                };
                if number != 70 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                stream.write_all(answer).await.unwrap();
            });
        }
    });
    address
}

/// One request over a connection of its own.
async fn fetch(address: std::net::SocketAddr) -> std::io::Result<Response<Empty<Bytes>>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: local\r\n\r\n").await?;
    let mut head = Vec::new();
    stream.read_to_end(&mut head).await?;
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let status: u16 = lines.next().unwrap()[9..12].parse().unwrap();
    let mut response = Response::builder().status(status);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        response = response.header(name, value);
    }
    Ok(response.body(Empty::new()).unwrap())
}

/// 64 tasks share one client. Once the 429 has been read, only requests that had been sent before arrive until the instant, and the first
/// second afterwards carries at most the rate, although the bucket has saved a burst of 300.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_refusal_stops_64_tasks_over_real_sockets() {
    const RATE: usize = 300;
    let received = Received::default();
    let address = server(Arc::clone(&received)).await;
    let rate = Quota::per_second(RATE as u64).burst(RATE as u64);
    let upstream = Arc::new(Upstream::builder().rate(rate).build().unwrap());
    let read = Arc::new(Mutex::new(None));
    // Counted where a request leaves: after its admission.
    let sent = Arc::new(Mutex::new(Vec::new()));
    let client = {
        let sent = Arc::clone(&sent);
        service_fn(move |_: Request<()>| {
            sent.lock().unwrap().push(Instant::now());
            fetch(address)
        })
    };
    let client = UpstreamLayer::new(Arc::clone(&upstream), TokenBucket::new(rate)).layer(client);
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (client, read) = (client.clone(), Arc::clone(&read));
        tasks.spawn(async move {
            for _ in 0..5 {
                let response = client.clone().oneshot(Request::new(())).await.unwrap();
                if response.status() == 429 {
                    *read.lock().unwrap() = Some(Instant::now());
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let read = read.lock().unwrap().unwrap();
    let sent = sent.lock().unwrap();
    // The head was read before the task saw it, so the pause ends no later than a second from here.
    let until = read + Duration::from_millis(950);
    let early = sent.iter().filter(|at| (read..until).contains(*at)).count();
    let arrived = received.lock().unwrap();
    let under_way = arrived.iter().filter(|at| (read..until).contains(*at)).count();
    let first_second = sent
        .iter()
        .filter(|at| (until..until + Duration::from_secs(1)).contains(*at))
        .count();
    println!("{early} sent in the pause, {under_way} were under way, {first_second} sent in the first second");
    assert_eq!(early, 0);
    assert!(first_second <= RATE, "{first_second}");
    assert_eq!(sent.len(), 64 * 5);
    assert_eq!(upstream.stats().refused, 1);
}

/// The number of calls that an upstream gets within ten seconds of four callers, if it refuses them all with this field.
fn refused_calls(field: Option<(&'static str, &'static str)>, ramp: Duration) -> usize {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().ramp(ramp).on(&clock).build().unwrap());
    let calls = AtomicUsize::new(0);
    let refuse = {
        let clock = clock.clone();
        service_fn(move |_: Request<()>| {
            let clock = clock.clone();
            async move {
                clock.sleep(Duration::from_millis(1)).await;
                let mut refused = Response::builder().status(429);
                if let Some((name, value)) = field {
                    refused = refused.header(name, value);
                }
                Ok::<_, Infallible>(refused.body(Empty::<Bytes>::new()).unwrap())
            }
        })
    };
    let client = UpstreamLayer::new(upstream, Semaphore::new(100)).layer(refuse);
    let caller = async || {
        while clock.elapsed() < Duration::from_secs(10) {
            drop(client.clone().oneshot(Request::new(())).await.unwrap());
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    clock.run(futures::future::join_all((0..4).map(|_| caller())));
    calls.into_inner()
}

#[test]
fn refusals_that_name_a_wait_of_zero_back_off_as_those_that_name_none() {
    for ramp in [Duration::ZERO, Duration::from_secs(2)] {
        let unnamed = refused_calls(None, ramp);
        assert!(unnamed <= 40, "{unnamed}");
        for field in [
            ("retry-after", "0"),
            ("retry-after-ms", "0"),
            // By a clock that is ahead of the server's.
            ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ] {
            let calls = refused_calls(Some(field), ramp);
            // The first is obeyed: one call more of each caller.
            assert!(
                calls <= unnamed + 4,
                "{calls} calls at {field:?}, and {unnamed} without it"
            );
        }
    }
}

/// A client whose request takes two polls, and whose body has trailers.
fn slow_client(
    calls: Arc<AtomicUsize>,
) -> impl Service<Request<()>, Response = Response<Trailed>, Error = Infallible, Future: Send> + Clone {
    service_fn(move |_: Request<()>| {
        calls.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::task::yield_now().await;
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "8".parse().unwrap());
            trailers.insert("grpc-retry-pushback-ms", "2000".parse().unwrap());
            let frames = [Ok(Frame::data(Bytes::from_static(b"x"))), Ok(Frame::trailers(trailers))];
            Ok(Response::new(StreamBody::new(futures::stream::iter(frames))))
        }
    })
}

type Trailed = StreamBody<futures::stream::Iter<std::array::IntoIter<Result<Frame<Bytes>, Infallible>, 2>>>;

#[test]
fn trailers_pause_the_upstream_and_the_permit_ends_with_the_body() {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let in_flight = Arc::new(Semaphore::new(2));
    let layer = UpstreamLayer::new(Arc::clone(&upstream), Arc::clone(&in_flight));
    let client = layer
        .dialect(Grpc)
        .classify(ClientGrpcCodes)
        .layer(slow_client(Arc::default()));
    clock.run(async {
        let response = client.oneshot(Request::new(())).await.unwrap();
        assert_eq!((in_flight.in_use(), upstream.paused_for()), (1, None));
        let body = response.into_body().collect().await.unwrap();
        assert!(body.trailers().is_some());
        assert_eq!(
            (in_flight.in_use(), upstream.paused_for()),
            (0, Some(Duration::from_secs(2)))
        );
    });
}

/// Dropped after each number of polls, in the queue, in the call and in the body: afterwards the next request is admitted at once.
#[test]
fn a_request_that_is_dropped_at_any_poll_leaves_nothing_behind() {
    for polls in 0..8 {
        for wakes_first in [false, true] {
            let clock = ManualClock::new();
            let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
            let in_flight = Arc::new(Semaphore::new(1));
            let calls = Arc::new(AtomicUsize::new(0));
            let layer = UpstreamLayer::new(Arc::clone(&upstream), Arc::clone(&in_flight));
            let client = layer.layer(slow_client(Arc::clone(&calls)));
            let holder = in_flight.try_acquire().unwrap();
            let mut holder = Some(holder);
            let mut future = Box::pin(client.clone().oneshot(Request::new(())));
            let mut response = None;
            for poll in 0..polls {
                if poll == 1 {
                    holder.take();
                }
                if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    response = Some(ready.unwrap());
                    break;
                }
            }
            if wakes_first {
                holder.take();
            }
            assert_eq!(response.is_some(), polls >= 3, "after {polls} polls");
            drop((future, response, holder));
            assert_eq!((in_flight.in_use(), in_flight.waiting()), (0, 0), "after {polls} polls");
            let response = clock.run(client.oneshot(Request::new(()))).unwrap();
            assert_eq!(in_flight.in_use(), 1);
            drop(response);
            assert_eq!(in_flight.in_use(), 0);
        }
    }
}

/// The client becomes ready only after the pause has begun.
#[test]
fn a_request_that_was_admitted_before_a_pause_is_sent_after_it() {
    #[derive(Clone)]
    struct Slow(ManualClock, Arc<Upstream>, Arc<Mutex<Vec<Duration>>>, bool);
    impl Service<Request<()>> for Slow {
        type Response = Response<Empty<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            if !std::mem::replace(&mut self.3, true) {
                self.1.pause(Duration::from_secs(5));
            }
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            self.2.lock().unwrap().push(self.0.elapsed());
            std::future::ready(Ok(Response::new(Empty::new())))
        }
    }
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let sent = Arc::default();
    let client = Slow(clock.clone(), Arc::clone(&upstream), Arc::clone(&sent), false);
    let limiter = TokenBucket::new(Quota::per_second(10)).on(&clock);
    let client = UpstreamLayer::new(upstream, limiter).layer(client);
    drop(clock.run(client.oneshot(Request::new(()))).unwrap());
    assert_eq!(*sent.lock().unwrap(), [Duration::from_secs(5)]);
}

#[test]
fn a_policy_without_the_upstream_still_waits_for_its_pause() {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    upstream.pause(Duration::from_secs(5));
    let policy = tollgate::Policy::builder()
        .limit(Semaphore::new(1))
        .on(&clock)
        .build()
        .unwrap();
    let layer = UpstreamLayer::of_policy(Arc::clone(&upstream), policy);
    let client = layer.layer(slow_client(Arc::default()));
    drop(clock.run(client.oneshot(Request::new(()))).unwrap());
    assert_eq!(clock.elapsed(), Duration::from_secs(5));
}

#[test]
fn a_deadline_of_grpc_bounds_the_wait_and_is_shortened_by_it() {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let seen = Arc::new(Mutex::new(None));
    let client = {
        let seen = Arc::clone(&seen);
        service_fn(move |request: Request<()>| {
            *seen.lock().unwrap() = request.headers().get("grpc-timeout").cloned();
            async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
        })
    };
    let client = UpstreamLayer::new(Arc::clone(&upstream), Semaphore::new(1)).layer(client);
    let with = |timeout: &str| Request::builder().header("grpc-timeout", timeout).body(()).unwrap();
    upstream.pause(Duration::from_secs(3));
    clock.run(async {
        let refused = client.clone().oneshot(with("2S")).await.unwrap_err();
        let LimitError::Refused(refusal) = refused;
        assert_eq!(refusal.reason(), Reason::TimedOut);
        assert_eq!(
            clock.elapsed(),
            Duration::ZERO,
            "a wait that cannot end in time fails at once"
        );
        drop(client.oneshot(with("10S")).await.unwrap());
    });
    assert_eq!(clock.elapsed(), Duration::from_secs(3));
    assert_eq!(seen.lock().unwrap().as_ref().unwrap(), "7000000u");
}

#[test]
fn a_client_that_fails_gives_its_permit_back() {
    let clock = ManualClock::new();
    let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
    let in_flight = Arc::new(Semaphore::new(1));
    let client = service_fn(async |_: Request<()>| Err::<Response<Empty<Bytes>>, _>("broken"));
    let client = UpstreamLayer::new(upstream, Arc::clone(&in_flight)).layer(client);
    clock.run(async {
        let failed = client.oneshot(Request::new(())).await.unwrap_err();
        assert_eq!(failed, LimitError::Inner("broken"));
        poll_fn(|_| Poll::Ready(())).await;
    });
    assert!(in_flight.try_admit(1).is_ok());
}
