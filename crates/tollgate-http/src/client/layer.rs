//! The layer for clients: one admission per request, and each response heard.

use super::deadline::{self, Deadline};
use super::dialect::{DEFAULT_CAP, Dialect, ResponseParts};
use super::dialects::Standard;
use crate::body::{Held, LimitBody};
use crate::charge::Charged;
use crate::classify::{Classify, ClientStatusCodes};
use crate::gate::{CostFn, OneCall};
use crate::request_parts::RequestParts;
use crate::respond::LimitError;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tollgate::{Ask, Clock, Limiter, Permit, Policy};
use tollgate_resilience::upstream::{Call, Upstream};
use tower_layer::Layer;
use tower_service::Service;

/// Admits each request to an upstream by one policy, and has the [`Upstream`] in it hear each response.
///
/// It is for the client side of tower: hyper, tonic, or any service of `http` requests. With the feature `reqwest` it is a middleware of
/// reqwest as well. All services that it makes share the upstream and the policy.
///
/// # One admission per attempt
/// Retries belong outside, so that each attempt waits for its own admission: after a 429 it waits for the end of the pause.
///
/// # What holds a permit
/// A request holds its permit until the body of its response has been read or dropped: [`LimitBody`]. A refusal is heard as soon as the head
/// of the response is there, and fields of trailers once they are. A request that was admitted before a pause and is not sent by
/// then, as its service was not ready, asks once more.
///
/// # Deadlines
/// A request with the field `grpc-timeout` waits at most that long, and the field is shortened by the wait.
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate_resilience::upstream::Upstream;
/// # use tollgate::{ManualClock, Quota, TokenBucket};
/// # use tollgate_http::client::UpstreamLayer;
/// # use tower::{Layer, ServiceExt, service_fn};
/// let clock = ManualClock::new();
/// let rate = Quota::per_second(50);
/// let upstream = Arc::new(Upstream::builder().rate(rate).on(&clock).build()?);
/// let layer = UpstreamLayer::new(Arc::clone(&upstream), TokenBucket::new(rate).on(&clock));
/// let client = layer.layer(service_fn(async |_: Request<()>| {
///     let refused = Response::builder().status(429).header("retry-after", "30");
///     Ok::<_, Infallible>(refused.body(Empty::<&[u8]>::new()).unwrap())
/// }));
/// # clock.run(async {
/// let response = client.clone().oneshot(Request::new(())).await.unwrap();
/// assert_eq!(response.status(), 429);
/// assert_eq!(upstream.paused_for(), Some(Duration::from_secs(30)));
/// // The next request waits until then.
/// let _ = client.oneshot(Request::new(())).await.unwrap();
/// assert_eq!(clock.elapsed(), Duration::from_secs(30));
/// # });
/// # Ok::<(), tollgate_resilience::upstream::UpstreamError>(())
/// ```
pub struct UpstreamLayer<L: Limiter + 'static, D = Standard, P = OneCall, C = ClientStatusCodes> {
    upstream: Arc<Upstream>,
    policy: Policy<L>,
    dialect: Arc<D>,
    cost: Arc<P>,
    classify: C,
    cap: Duration,
}

impl<L: Limiter + 'static> UpstreamLayer<(Arc<Upstream>, L)> {
    /// Admits by `upstream` and `limiter`, in whose queue requests wait without a bound.
    pub fn new(upstream: Arc<Upstream>, limiter: L) -> Self {
        let policy = Policy::new((Arc::clone(&upstream), limiter));
        Self::of_policy(upstream, policy)
    }
}

impl<L: Limiter + 'static> UpstreamLayer<L> {
    /// Admits by `policy`, which has `upstream` as one of its legs.
    pub fn of_policy(upstream: Arc<Upstream>, policy: Policy<L>) -> Self {
        Self {
            upstream,
            policy,
            dialect: Arc::new(Standard),
            cost: Arc::new(OneCall),
            classify: ClientStatusCodes,
            cap: DEFAULT_CAP,
        }
    }
}

impl<L: Limiter + 'static, D, P, C> UpstreamLayer<L, D, P, C> {
    /// Sets the dialect of the upstream; [`Standard`] by default. A dialect that reads bodies sees none here.
    pub fn dialect<E: Dialect>(self, dialect: E) -> UpstreamLayer<L, E, P, C> {
        UpstreamLayer {
            upstream: self.upstream,
            policy: self.policy,
            dialect: Arc::new(dialect),
            cost: self.cost,
            classify: self.classify,
            cap: self.cap,
        }
    }

    /// Sets the ask of each request, by a closure `Fn(&RequestParts) -> Ask`; one call by default.
    pub fn cost<Q: CostFn>(self, cost: Q) -> UpstreamLayer<L, D, Q, C> {
        UpstreamLayer {
            upstream: self.upstream,
            policy: self.policy,
            dialect: self.dialect,
            cost: Arc::new(cost),
            classify: self.classify,
            cap: self.cap,
        }
    }

    /// Sets how the ends of requests are classified; [`ClientStatusCodes`] by default. For gRPC use
    /// [`ClientGrpcCodes`](crate::ClientGrpcCodes).
    pub fn classify<F>(self, classify: F) -> UpstreamLayer<L, D, P, F> {
        UpstreamLayer {
            upstream: self.upstream,
            policy: self.policy,
            dialect: self.dialect,
            cost: self.cost,
            classify,
            cap: self.cap,
        }
    }

    /// Sets the longest wait that a response can cause; one hour by default. That of the [`Upstream`] counts as well.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }
}

impl<L: Limiter + 'static, D, P, C: Clone> Clone for UpstreamLayer<L, D, P, C> {
    fn clone(&self) -> Self {
        Self {
            upstream: Arc::clone(&self.upstream),
            policy: self.policy.clone(),
            dialect: Arc::clone(&self.dialect),
            cost: Arc::clone(&self.cost),
            classify: self.classify.clone(),
            cap: self.cap,
        }
    }
}

impl<L: Limiter + 'static, D, P, C> fmt::Debug for UpstreamLayer<L, D, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamLayer")
            .field("upstream", &self.upstream)
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}

impl<S, L: Limiter + 'static, D, P, C: Clone> Layer<S> for UpstreamLayer<L, D, P, C> {
    type Service = UpstreamService<S, L, D, P, C>;
    fn layer(&self, inner: S) -> Self::Service {
        UpstreamService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A client behind the limits of its upstream. Made by [`UpstreamLayer`].
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate_resilience::upstream::Upstream;
/// # use tollgate_http::client::UpstreamLayer;
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let upstream = Arc::new(Upstream::new());
/// let client = UpstreamLayer::new(Arc::clone(&upstream), Semaphore::new(4)).layer(service_fn(async |_: Request<()>| {
///     let refused = Response::builder().status(429).header("retry-after", "5");
///     Ok::<_, Infallible>(refused.body(Empty::<&[u8]>::new()).expect("a response"))
/// }));
/// assert!(client.clone().oneshot(Request::new(())).await.is_ok());
/// assert!(upstream.paused_for().is_some(), "for all clones");
/// # }
/// ```
pub struct UpstreamService<S, L: Limiter + 'static, D = Standard, P = OneCall, C = ClientStatusCodes> {
    inner: S,
    layer: UpstreamLayer<L, D, P, C>,
}

impl<S: Clone, L: Limiter + 'static, D, P, C: Clone> Clone for UpstreamService<S, L, D, P, C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S: fmt::Debug, L: Limiter + 'static, D, P, C> fmt::Debug for UpstreamService<S, L, D, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

/// The future of a request to an upstream.
///
/// # Cancel safety
/// Dropping it leaves the queue, or drops the work of the client and releases the permit. Nothing is lost.
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate_resilience::upstream::Upstream;
/// # use tollgate_http::client::UpstreamLayer;
/// # use tower::{Layer, Service, service_fn};
/// let slots = Arc::new(Semaphore::new(1));
/// let mut client = UpstreamLayer::new(Arc::new(Upstream::new()), Arc::clone(&slots)).layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// drop(client.call(Request::new(()))); // Leaves the queue, and gives back what it holds.
/// assert_eq!(slots.in_use(), 0);
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct UpstreamFuture<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Future for UpstreamFuture<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().poll(cx)
    }
}

impl<T> fmt::Debug for UpstreamFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamFuture")
    }
}

impl<S, B, RB, L, D, P, C> Service<Request<B>> for UpstreamService<S, L, D, P, C>
where
    S: Service<Request<B>, Response = Response<RB>, Future: Send, Error: Send> + Clone + Send + 'static,
    B: Send + 'static,
    RB: Body + Send + 'static,
    L: Limiter + 'static,
    D: Dialect,
    P: CostFn,
    C: Classify<S::Error> + Send + Sync + 'static,
{
    type Response = Response<UpstreamBody<RB, L, D, C, S::Error>>;
    type Error = LimitError<S::Error>;
    type Future = UpstreamFuture<Result<Self::Response, Self::Error>>;

    /// Always ready: `call` admits first, and then waits for the client.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (service, layer) = (self.inner.clone(), self.layer.clone());
        UpstreamFuture(Box::pin(attempt(service, layer, request)))
    }
}

/// The response of an upstream, whose body holds the permit, or a refusal, or the error of the client.
type Answer<B, L, D, C, E> = Result<Response<UpstreamBody<B, L, D, C, E>>, LimitError<E>>;

/// One attempt: admission, the call, and what its response says.
async fn attempt<S, B, RB, L, D, P, C>(
    mut service: S,
    layer: UpstreamLayer<L, D, P, C>,
    mut request: Request<B>,
) -> Answer<RB, L, D, C, S::Error>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: Body,
    L: Limiter + 'static,
    D: Dialect,
    P: CostFn,
    C: Classify<S::Error>,
{
    let ask = layer.ask(&RequestParts::of(&request));
    let deadline = Deadline::of(request.headers(), layer.clock());
    let admitted = layer.admit(ask, &deadline, |cx| service.poll_ready(cx)).await?;
    deadline::shorten(&deadline, layer.clock(), request.headers_mut());
    let is_head = request.method() == http::Method::HEAD;
    let response = service.call(request).await;
    layer.respond(admitted, response, is_head)
}

/// A request that may be sent: its permit, and what the upstream knows of its start.
pub(super) type Admitted<L> = (Permit<Policy<L>>, Call);

impl<L: Limiter + 'static, D: Dialect, P: CostFn, C> UpstreamLayer<L, D, P, C> {
    /// The ask of a request.
    pub(super) fn ask(&self, parts: &RequestParts<'_>) -> Ask {
        self.cost.cost(parts)
    }

    /// The clock of the policy.
    pub(super) fn clock(&self) -> &Clock {
        self.policy.clock()
    }

    /// Admits a request, and waits until its service is ready.
    pub(super) async fn admit<E>(
        &self,
        ask: Ask,
        deadline: &Deadline,
        mut poll_ready: impl FnMut(&mut Context<'_>) -> Poll<Result<(), E>>,
    ) -> Result<Admitted<L>, LimitError<E>>
    where
        C: Classify<E>,
    {
        let (upstream, policy) = (&self.upstream, &self.policy);
        let mut paused_again = false;
        loop {
            let permit = match deadline.left(policy.clock()) {
                None => policy.admit_owned(ask).await,
                Some(left) => policy.admit_timeout(ask, left).await.map(Permit::into_owned),
            };
            let permit = permit.map_err(LimitError::Refused)?;
            if let Err(error) = poll_fn(&mut poll_ready).await {
                permit.finish(self.classify.error(&error));
                return Err(LimitError::Inner(error));
            }
            match upstream.begin(&ask) {
                Some(call) => return Ok((permit, call)),
                None => drop(permit),
            }
            // A policy without this upstream among its legs would admit at once, again and again.
            if let Some(pause) = upstream.paused_for().filter(|_| paused_again) {
                policy.clock().sleep(pause).await;
            }
            paused_again = true;
        }
    }

    /// Has the upstream hear a response, whose body keeps the permit.
    pub(super) fn respond<B: Body, E>(
        &self,
        (mut permit, call): Admitted<L>,
        response: Result<Response<B>, E>,
        is_head: bool,
    ) -> Answer<B, L, D, C, E>
    where
        C: Classify<E>,
    {
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                permit.finish(self.classify.error(&error));
                return Err(LimitError::Inner(error));
            }
        };
        let heard = Heard {
            upstream: Arc::clone(&self.upstream),
            dialect: Arc::clone(&self.dialect),
            policy: self.policy.clone(),
            cap: self.cap,
            call,
        };
        let parts = ResponseParts::of(&response, self.policy.clock().wall());
        let feedback = self.dialect.feedback(&parts.cap(self.cap));
        self.upstream.observe(&call, &feedback);
        if let Some((cost, actual)) = feedback.actual {
            // A cost that no leg counts is of no interest.
            let _ = permit.settle(cost, actual);
        }
        let held = Held::of(Charged::new(permit, None), &response, is_head, &self.classify);
        Ok(response.map(|body| UpstreamBody {
            body: LimitBody::holding(body, Some(held)),
            heard: Some(heard),
        }))
    }
}

/// What the trailers are heard with.
struct Heard<L: Limiter + 'static, D> {
    upstream: Arc<Upstream>,
    dialect: Arc<D>,
    policy: Policy<L>,
    cap: Duration,
    call: Call,
}

impl<L: Limiter + 'static, D: Dialect> Heard<L, D> {
    fn hear(&self, trailers: &HeaderMap) {
        let head = HeaderMap::new();
        let parts = ResponseParts::new(http::StatusCode::OK, &head, self.policy.clock().wall());
        let feedback = self.dialect.feedback(&parts.trailers(trailers).cap(self.cap));
        if !feedback.is_empty() {
            self.upstream.observe(&self.call, &feedback);
        }
    }
}

pin_project! {
    /// The body of a response of an upstream: it holds the permit of its request, and has the upstream hear its trailers.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use http_body_util::{BodyExt, Full};
    /// # use std::convert::Infallible;
    /// # use std::sync::Arc;
    /// # use tollgate::Semaphore;
    /// # use tollgate_resilience::upstream::Upstream;
    /// # use tollgate_http::client::UpstreamLayer;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let slots = Arc::new(Semaphore::new(1));
    /// let client = UpstreamLayer::new(Arc::new(Upstream::new()), Arc::clone(&slots)).layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, Infallible>(Response::new(Full::<&[u8]>::new(b"hello")))
    /// }));
    /// let response = client.oneshot(Request::new(())).await.expect("it is admitted");
    /// assert_eq!(slots.in_use(), 1, "until the body has been read");
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "hello");
    /// assert_eq!(slots.in_use(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub struct UpstreamBody<B, L, D, C, E>
    where
        B: Body,
        L: Limiter,
        L: 'static,
        C: Classify<E>,
    {
        #[pin]
        body: LimitBody<B, Policy<L>, C, E>,
        heard: Option<Heard<L, D>>,
    }
}

impl<B: Body, L: Limiter + 'static, D: Dialect, C: Classify<E>, E> Body for UpstreamBody<B, L, D, C, E> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        let trailers = match &frame {
            Some(Ok(frame)) => frame.trailers_ref(),
            _ => None,
        };
        if let Some(trailers) = trailers {
            if let Some(heard) = this.heard.take() {
                heard.hear(trailers);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body + fmt::Debug, L: Limiter + 'static, D, C: Classify<E>, E> fmt::Debug for UpstreamBody<B, L, D, C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody")
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
