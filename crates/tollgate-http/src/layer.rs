//! The layer and its service.

use super::charge::{Charge, Charged};
use super::classify::{ByStatus, Classify, StatusCodes};
use super::future::{Call, LimitFuture};
use super::gate::{
    Admission, ExemptGate, ExtractKey, Gate, ImmediateGate, KeyedGate, KeyedQueueGate, KeyedRateGate, QueueGate,
    WithCost,
};
use super::request_parts::RequestParts;
use super::respond::{AsError, AsResponse, Respond};
use http::{Request, Response, StatusCode};
use http_body::Body;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate::keyed::KeyedRate;
use tollgate::{Keyed, Limiter, Outcome, Policy, Refusal};
use tower_layer::Layer;
use tower_service::Service;

/// Puts a limiter or a policy in front of a service. All services that it makes, and all their clones, share one limiter.
///
/// # What holds a permit
/// A request holds its permit from its admission, in `call`, until its response body has been sent or dropped. `poll_ready`
/// reserves nothing, so an idle connection holds nothing.
///
/// # Readiness
/// The limited service is always ready. Each call admits first, and then makes a clone of the inner service ready. So an open
/// circuit refuses even if the service is busy, a queued request occupies nothing inside, and a service that cannot become
/// ready has failed, as the classifier says. Back-pressure of the inner service does not reach the caller before its request
/// is admitted: the limiter bounds the waiters. Each admitted request clones the service, so clones should be cheap, as those
/// of clients, channels and routers are.
///
/// An upgraded connection (a WebSocket) has left HTTP: it holds nothing once its response has been sent.
///
/// # Order of layers
/// Inner layers are limited, outer layers are not. What an outer layer has charged stays charged when an inner one refuses: join limits
/// that are to agree by [`and`](tollgate::LimiterExt::and), for each key by [`Keyed::try_new`](tollgate::Keyed::try_new), and use one layer. A time-out that covers the wait belongs outside. Retries belong outside as
/// well, so that each attempt is admitted and classified on its own.
///
/// ```
/// # use std::convert::Infallible;
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use tollgate_http::LimitLayer;
/// # use tollgate::Semaphore;
/// # use std::sync::Arc;
/// # use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let in_flight = Arc::new(Semaphore::new(1));
/// let mut service = ServiceBuilder::new()
///     .layer(LimitLayer::new(Arc::clone(&in_flight)))
///     .service(service_fn(async |_: Request<()>| {
///         Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
///     }));
///
/// let response = service.ready().await.unwrap().call(Request::new(())).await.unwrap();
/// assert_eq!(in_flight.in_use(), 1, "the body has not been read");
/// let refused = service.ready().await.unwrap().call(Request::new(())).await.unwrap_err();
/// assert_eq!(refused.to_string(), "limiter `semaphore` is saturated");
/// drop(response);
/// assert_eq!(in_flight.in_use(), 0);
/// # }
/// ```
pub struct LimitLayer<G, C = StatusCodes, R = AsError> {
    gate: Arc<G>,
    classify: C,
    respond: R,
    settles: bool,
}

impl<G> LimitLayer<G> {
    /// Admits by `gate`.
    pub fn gate(gate: G) -> Self {
        Self {
            gate: Arc::new(gate),
            classify: StatusCodes,
            respond: AsError,
            settles: false,
        }
    }
}

impl<L: Limiter + 'static> LimitLayer<ImmediateGate<L>> {
    /// Admits by `limiter`, and refuses at once what it does not admit.
    pub fn new(limiter: Arc<L>) -> Self {
        Self::gate(ImmediateGate::new(limiter))
    }
}

impl<L: Limiter + 'static> LimitLayer<QueueGate<L>> {
    /// Admits by `policy`: requests wait in its queue, which bounds their number and their time.
    pub fn waiting(policy: Policy<L>) -> Self {
        Self::gate(QueueGate::new(policy))
    }
}

impl<X: ExtractKey, L: Limiter + 'static> LimitLayer<KeyedGate<X, L>> {
    /// Admits each request by the limiter of its key, and refuses at once. A request without a key is refused as
    /// [`ExtractKey::reason`] says, by the leg `key`.
    ///
    /// ```
    /// # use http::Request;
    /// # use std::sync::Arc;
    /// # use tollgate::{Ask, Keyed, Outcome, Policy, Semaphore};
    /// # use tollgate_http::axum::HttpRefusals;
    /// # use tollgate_http::{ClientStatusCodes, LimitLayer, RequestParts};
    /// let path = |parts: &RequestParts<'_>| Some(parts.uri().path().to_string());
    /// let slots = Arc::new(Keyed::new(1_000, |_: &String| Semaphore::new(8)));
    /// let layer = LimitLayer::keyed(Arc::clone(&slots), path)
    ///     .cost(|parts: &RequestParts<'_>| Ask::many(if parts.method().is_safe() { 1 } else { 2 }))
    ///     .exempt(|parts: &RequestParts<'_>| parts.uri().path() == "/health")
    ///     .classify(ClientStatusCodes)
    ///     .respond(HttpRefusals::new())
    ///     .settling()
    ///     .observed("api")
    ///     .legs(&["semaphore"]);
    /// let queues = Arc::new(Keyed::new(1_000, |_: &String| Policy::new(Semaphore::new(8))));
    /// let waiting = LimitLayer::keyed_waiting(queues, path).classify_status(|status| match status.as_u16() {
    ///     500.. => Outcome::Failure,
    ///     _ => Outcome::Success,
    /// });
    /// assert!(slots.is_empty(), "a key gets its limiter with its first request");
    /// # drop((layer, waiting));
    /// ```
    pub fn keyed(keyed: Arc<Keyed<X::Key, L>>, keys: X) -> Self {
        Self::gate(KeyedGate::new(keyed, keys))
    }
}

impl<X: ExtractKey, L: Limiter + 'static> LimitLayer<KeyedQueueGate<X, L>> {
    /// Admits each request by the policy of its key, in whose queue it waits. A request without a key is refused as
    /// [`ExtractKey::reason`] says, by the leg `key`.
    pub fn keyed_waiting(keyed: Arc<Keyed<X::Key, Policy<L>>>, keys: X) -> Self {
        Self::gate(KeyedQueueGate::new(keyed, keys))
    }
}

impl<X: ExtractKey> LimitLayer<KeyedRateGate<X>> {
    /// Admits each request by the rate of its key, and refuses at once: a few dozen bytes for each address. It counts calls, and no
    /// named cost: a [cost](Self::cost) of `n` is [`Ask::many(n)`](tollgate::Ask::many). What has been
    /// charged is not given back: behind a layer that is [`settling`](Self::settling), use [`keyed`](Self::keyed). A request
    /// without a key is refused as [`ExtractKey::reason`] says, by the leg `key`.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use http::{Request, Response};
    /// # use http_body_util::Empty;
    /// # use std::{net::IpAddr, sync::Arc};
    /// # use tollgate::keyed::KeyedRate;
    /// # use tollgate::{ManualClock, Quota};
    /// # use tollgate_http::{LimitLayer, RequestParts};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// let clock = ManualClock::new();
    /// let rates = Arc::new(KeyedRate::<IpAddr>::new(1_000_000, Quota::per_second(1)).on(&clock));
    /// let of_address = |parts: &RequestParts<'_>| parts.extensions().get::<IpAddr>().copied();
    /// let layer = LimitLayer::keyed_rate(Arc::clone(&rates), of_address);
    /// # clock.run(async {
    /// let service = layer.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
    /// }));
    /// let from = |address: [u8; 4]| Request::builder().extension(IpAddr::from(address)).body(()).unwrap();
    /// assert!(service.clone().oneshot(from([192, 0, 2, 1])).await.is_ok());
    /// let refused = service.clone().oneshot(from([192, 0, 2, 1])).await.unwrap_err();
    /// assert_eq!(refused.to_string(), "limiter `keyed_rate` has exceeded its rate");
    /// assert!(service.oneshot(from([192, 0, 2, 2])).await.is_ok());
    /// # });
    /// ```
    pub fn keyed_rate(rates: Arc<KeyedRate<X::Key>>, keys: X) -> Self {
        Self::gate(KeyedRateGate::new(rates, keys))
    }
}

impl<G, C, R> LimitLayer<G, C, R> {
    pub(super) fn map_gate<H>(self, map: impl FnOnce(G) -> H) -> LimitLayer<H, C, R> {
        let gate = Arc::into_inner(self.gate).expect("settings come before the first clone or service");
        LimitLayer {
            gate: Arc::new(map(gate)),
            classify: self.classify,
            respond: self.respond,
            settles: self.settles,
        }
    }

    /// Sets the ask of each request with its costs and its [class](tollgate::Ask::class), by a closure `Fn(&RequestParts) -> Ask`;
    /// one call by default. It comes before
    /// [`exempt`](Self::exempt), [`waiting_room`](Self::waiting_room) and [`observed`](Self::observed).
    ///
    /// # Panics
    /// If the layer has been cloned or used already.
    pub fn cost<P>(self, cost: P) -> LimitLayer<G::With, C, R>
    where
        G: WithCost<P>,
    {
        self.map_gate(|gate| gate.with_cost(cost))
    }

    /// Puts a [`Charge`] into the extensions of each request, by which the handler corrects the costs that were asked for.
    pub fn settling(mut self) -> Self {
        self.settles = true;
        self
    }

    /// Does not limit requests for which the closure `exempt` is true.
    ///
    /// # Panics
    /// If the layer has been cloned or used already.
    pub fn exempt<F>(self, exempt: F) -> LimitLayer<ExemptGate<G, F>, C, R>
    where
        F: Fn(&RequestParts<'_>) -> bool + Send + Sync + 'static,
    {
        self.map_gate(|gate| ExemptGate::new(gate, exempt))
    }

    /// Sets how the ends of requests are classified; [`StatusCodes`] by default. In front of an upstream use
    /// [`ClientStatusCodes`](super::ClientStatusCodes).
    pub fn classify<D>(self, classify: D) -> LimitLayer<G, D, R> {
        LimitLayer {
            gate: self.gate,
            classify,
            respond: self.respond,
            settles: self.settles,
        }
    }

    /// Classifies each status by the closure `outcome`.
    pub fn classify_status<F>(self, outcome: F) -> LimitLayer<G, ByStatus<F>, R>
    where
        F: Fn(StatusCode) -> Outcome + Clone,
    {
        self.classify(ByStatus(outcome))
    }

    /// Sets how refusals are answered; by default they are errors.
    pub fn respond<Q>(self, respond: Q) -> LimitLayer<G, C, Q> {
        LimitLayer {
            gate: self.gate,
            classify: self.classify,
            respond,
            settles: self.settles,
        }
    }

    /// Answers a refusal by the response that `response` makes of it, such as a fallback or a 503. If the status depends on the
    /// leg that refused, use [`respond`](Self::respond): a [`Respond`] sees the limiter as well.
    pub fn refuse_with<F, B>(self, response: F) -> LimitLayer<G, C, AsResponse<F>>
    where
        F: Fn(&Refusal) -> Response<B> + Clone,
    {
        self.respond(AsResponse(response))
    }
}

impl<G, C: Clone, R: Clone> Clone for LimitLayer<G, C, R> {
    fn clone(&self) -> Self {
        Self {
            gate: Arc::clone(&self.gate),
            classify: self.classify.clone(),
            respond: self.respond.clone(),
            settles: self.settles,
        }
    }
}

impl<G, C, R> fmt::Debug for LimitLayer<G, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").finish_non_exhaustive()
    }
}

impl<S, G, C: Clone, R: Clone> Layer<S> for LimitLayer<G, C, R> {
    type Service = LimitService<S, G, C, R>;
    fn layer(&self, inner: S) -> Self::Service {
        LimitService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind a limiter. Made by [`LimitLayer`], which documents how long a permit is held.
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate_http::LimitLayer;
/// # use tower::{Layer, Service, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = LimitLayer::new(Arc::new(Semaphore::new(1)));
/// let mut service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// // Always ready: it admits in `call`.
/// let held = service.ready().await?.call(Request::new(())).await?;
/// assert!(service.ready().await?.call(Request::new(())).await.is_err());
/// # drop(held);
/// # Ok(())
/// # }
/// ```
pub struct LimitService<S, G, C = StatusCodes, R = AsError> {
    inner: S,
    layer: LimitLayer<G, C, R>,
}

impl<S, G, C, R> LimitService<S, G, C, R> {
    /// The service inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Clone, G, C: Clone, R: Clone> Clone for LimitService<S, G, C, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S: fmt::Debug, G, C, R> fmt::Debug for LimitService<S, G, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, RB, G, C, R> Service<Request<B>> for LimitService<S, G, C, R>
where
    S: Service<Request<B>, Response = Response<RB>> + Clone,
    RB: Body,
    G: Gate,
    C: Classify<S::Error>,
    R: Respond<RB, S::Error>,
{
    type Response = Response<super::LimitBody<RB, G::Limiter, C, S::Error>>;
    type Error = R::Error;
    type Future = LimitFuture<S, B, G::Limiter, C, R>;

    /// Always ready: `call` admits first, and then waits for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let LimitLayer {
            gate,
            classify,
            respond,
            settles,
        } = &self.layer;
        let (classify, respond) = (classify.clone(), respond.clone());
        let admission = gate.admit(&RequestParts::of(&request));
        let mut charge = |ask| settles.then(|| Charge::put(ask, request.extensions_mut()));
        let charge = match &admission {
            Admission::Admitted(_, ask) | Admission::Waiting(_, ask) => charge(Some(*ask)),
            Admission::Exempt => charge(None),
            Admission::Refused(_) => None,
        };
        let call = |request| Call {
            service: self.inner.clone(),
            request,
        };
        match admission {
            Admission::Admitted(permit, _) => {
                LimitFuture::starting(call(request), Some(Charged::new(permit, charge)), classify, respond)
            }
            Admission::Exempt => LimitFuture::starting(call(request), None, classify, respond),
            Admission::Waiting(wait, _) => LimitFuture::waiting(wait, charge, call(request), classify, respond),
            Admission::Refused(refused) => LimitFuture::refused(refused, classify, respond),
        }
    }
}
