//! The layer and its service.

use super::classify::{ByStatus, Classify, StatusCodes};
use super::future::{Call, LimitFuture};
use super::gate::{Admission, AtOnce, Exempting, ExtractKey, Gate, InLine, InLinePerKey, PerKey, Priced};
use super::head::Head;
use super::respond::{AsError, AsResponse, Respond};
use crate::core::limiter::{Limiter, Outcome};
use crate::core::refusal::Rejection;
use crate::keyed::Keyed;
use crate::policy::Policy;
use http::{Request, Response, StatusCode};
use http_body::Body;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Puts a limiter or a policy in front of a service. All services that it makes, and all their clones, share the one limiter.
///
/// # What holds a permit
/// A request from its admission, in `call`, until its response body has been handed over or is dropped. Nothing is reserved
/// in `poll_ready`, so that an idle connection holds nothing; a service that is not called costs nothing.
///
/// # Readiness
/// The limited service is always ready. Each call admits first, and then makes a clone of the service inside ready: an open
/// circuit refuses although the service is busy, who waits in line takes up no place inside, and a service that cannot become
/// ready has failed, as the classifier says. So no back-pressure of the service inside reaches the caller before its request
/// has been admitted: what bounds how many wait is the limiter. The clone is made for each admitted request, so it should be
/// cheap, as those of clients, channels and routers are.
///
/// A connection that is upgraded (a WebSocket) has left HTTP: it holds nothing once its response has been sent.
///
/// # Order of layers
/// What stands inside is limited; what stands outside is not. A time-out belongs outside a layer that waits, if the wait is
/// to count; retries belong outside as well, so that each attempt is admitted, and learnt from, by itself.
///
/// ```
/// # use std::convert::Infallible;
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use tollgate::tower::LimitLayer;
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
}

impl<G> LimitLayer<G> {
    /// Admits by `gate`.
    pub fn gate(gate: G) -> Self {
        Self {
            gate: Arc::new(gate),
            classify: StatusCodes,
            respond: AsError,
        }
    }
}

impl<L: Limiter + 'static> LimitLayer<AtOnce<L>> {
    /// Admits by `limiter`, and refuses at once what it does not admit.
    pub fn new(limiter: Arc<L>) -> Self {
        Self::gate(AtOnce::new(limiter))
    }
}

impl<L: Limiter + 'static> LimitLayer<InLine<L>> {
    /// Admits by `policy`: requests wait in its line, which bounds how many and how long.
    pub fn waiting(policy: Policy<L>) -> Self {
        Self::gate(InLine::new(policy))
    }
}

impl<X: ExtractKey, L: Limiter + 'static> LimitLayer<PerKey<X, L>> {
    /// Admits each request by the limiter of its key, and refuses at once. A request without a key is refused as
    /// [`ExtractKey::reason`] says, by the leg `key`.
    pub fn keyed(keyed: Arc<Keyed<X::Key, L>>, keys: X) -> Self {
        Self::gate(PerKey::new(keyed, keys))
    }
}

impl<X: ExtractKey, L: Limiter + 'static> LimitLayer<InLinePerKey<X, L>> {
    /// Admits each request by the policy of its key, in whose line it waits. A request without a key is refused as
    /// [`ExtractKey::reason`] says, by the leg `key`.
    pub fn keyed_waiting(keyed: Arc<Keyed<X::Key, Policy<L>>>, keys: X) -> Self {
        Self::gate(InLinePerKey::new(keyed, keys))
    }
}

impl<G, C, R> LimitLayer<G, C, R> {
    pub(crate) fn map_gate<H>(self, map: impl FnOnce(G) -> H) -> LimitLayer<H, C, R> {
        // A layer that is being set up has not been cloned: no setting takes a reference.
        let gate = Arc::into_inner(self.gate).expect("settings come before the first clone or service");
        LimitLayer {
            gate: Arc::new(map(gate)),
            classify: self.classify,
            respond: self.respond,
        }
    }

    /// Asks for what `price` says a request costs, a closure `Fn(&Head) -> Ask`; one call each unless set. The first setting,
    /// if it is one: what [`exempt`](Self::exempt) returns has its price.
    ///
    /// # Panics
    /// When the layer has been cloned or used already.
    pub fn price<P>(self, price: P) -> LimitLayer<G::With, C, R>
    where
        G: Priced<P>,
    {
        self.map_gate(|gate| gate.price(price))
    }

    /// Lets requests pass unlimited of which `exempt` says so, a closure `Fn(&Head) -> bool`.
    ///
    /// # Panics
    /// When the layer has been cloned or used already.
    pub fn exempt<F>(self, exempt: F) -> LimitLayer<Exempting<G, F>, C, R>
    where
        F: Fn(&Head<'_>) -> bool + Send + Sync + 'static,
    {
        self.map_gate(|gate| Exempting::new(gate, exempt))
    }

    /// Says by `classify` how requests ended; by the status of HTTP as a server sees it, [`StatusCodes`], unless set. In front
    /// of an upstream, [`ClientStatusCodes`](super::ClientStatusCodes).
    pub fn classify<D>(self, classify: D) -> LimitLayer<G, D, R> {
        LimitLayer {
            gate: self.gate,
            classify,
            respond: self.respond,
        }
    }

    /// Says by `outcome` what each status means.
    pub fn classify_status<F>(self, outcome: F) -> LimitLayer<G, ByStatus<F>, R>
    where
        F: Fn(StatusCode) -> Outcome + Clone,
    {
        self.classify(ByStatus(outcome))
    }

    /// Answers refusals by `respond`; they are errors unless set.
    pub fn respond<Q>(self, respond: Q) -> LimitLayer<G, C, Q> {
        LimitLayer {
            gate: self.gate,
            classify: self.classify,
            respond,
        }
    }

    /// Answers a refusal by the response that `response` makes of it: a fallback, or a 503. Where the status is to depend on
    /// which leg refused, [`respond`](Self::respond) by a [`Respond`], which is shown the limiter too.
    pub fn refuse_with<F, B>(self, response: F) -> LimitLayer<G, C, AsResponse<F>>
    where
        F: Fn(&Rejection) -> Response<B> + Clone,
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
        }
    }
}

impl<G, C, R> fmt::Debug for LimitLayer<G, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").finish_non_exhaustive()
    }
}

impl<S, G, C: Clone, R: Clone> Layer<S> for LimitLayer<G, C, R> {
    type Service = Limit<S, G, C, R>;
    fn layer(&self, inner: S) -> Self::Service {
        Limit {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind a limiter. Made by [`LimitLayer`], which says what holds a permit, and for how long.
pub struct Limit<S, G, C = StatusCodes, R = AsError> {
    inner: S,
    layer: LimitLayer<G, C, R>,
}

impl<S, G, C, R> Limit<S, G, C, R> {
    /// The service inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Clone, G, C: Clone, R: Clone> Clone for Limit<S, G, C, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S: fmt::Debug, G, C, R> fmt::Debug for Limit<S, G, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, RB, G, C, R> Service<Request<B>> for Limit<S, G, C, R>
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

    /// Always ready: admission comes first, in `call`, and the service inside is waited for after it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let LimitLayer {
            gate,
            classify,
            respond,
        } = &self.layer;
        let (classify, respond) = (classify.clone(), respond.clone());
        let admission = gate.admit(&Head::of(&request));
        let call = |request| Call {
            service: self.inner.clone(),
            request,
        };
        match admission {
            Admission::Admitted(permit) => LimitFuture::starting(call(request), Some(permit), classify, respond),
            Admission::Exempt => LimitFuture::starting(call(request), None, classify, respond),
            Admission::Waiting(wait) => LimitFuture::waiting(wait, call(request), classify, respond),
            Admission::Refused(refused) => LimitFuture::refused(refused, classify, respond),
        }
    }
}
