//! Gates: admit a request at once or through a queue, by one limiter or by the limiter of its key.

use super::refused::Refused;
use super::request_parts::RequestParts;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use tollgate::keyed::KeyedRate;
use tollgate::status::Description;
use tollgate::{Ask, ClockReading, Demand, Keyed, Limiter, LimiterExt, Outcome, Permit, Policy, Reason, Refusal, Wait};

/// The result of a wait.
pub type Waited<L> = Result<Permit<L>, Refused<L>>;

/// The decision of a gate on a request.
///
/// ```
/// # use http::Request;
/// # use tollgate::{Ask, LimiterExt, Semaphore};
/// # use tollgate_http::{Admission, Gate, Refused, RequestParts};
/// # use std::sync::Arc;
/// /// Limits uploads alone.
/// struct Uploads(Arc<Semaphore>);
/// impl Gate for Uploads {
///     type Limiter = Arc<Semaphore>;
///     fn admit(&self, parts: &RequestParts<'_>) -> Admission<Arc<Semaphore>> {
///         if parts.method() != http::Method::PUT {
///             return Admission::Exempt;
///         }
///         match self.0.try_admit_owned(1) {
///             Ok(permit) => Admission::Admitted(permit, Ask::one()),
///             Err(refusal) => Admission::Refused(Refused::by(Arc::clone(&self.0), refusal)),
///         }
///     }
/// }
/// let gate = Uploads(Arc::new(Semaphore::new(0)));
/// let put = Request::put("/file").body(())?;
/// assert!(matches!(gate.admit(&RequestParts::of(&put)), Admission::Refused(_)));
/// assert!(matches!(gate.admit(&RequestParts::of(&Request::new(()))), Admission::Exempt));
/// # Ok::<(), http::Error>(())
/// ```
#[must_use]
#[non_exhaustive]
pub enum Admission<L: Limiter> {
    /// The request may start by this ask. It holds the permit until its response has been sent.
    Admitted(Permit<L>, Ask),
    /// The request is not limited.
    Exempt,
    /// The request waits in a queue with this ask. Dropping the future leaves the queue, and loses nothing.
    Waiting(Pin<Box<dyn Future<Output = Waited<L>> + Send>>, Ask),
    /// The request must not start.
    Refused(Refused<L>),
}

impl<L: Limiter> fmt::Debug for Admission<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admitted(..) => "Admitted",
            Self::Exempt => "Exempt",
            Self::Waiting(..) => "Waiting",
            Self::Refused(_) => "Refused",
        })
    }
}

/// Admits requests. One gate is shared by all clones of a layer and of its services.
///
/// ```
/// # use http::Request;
/// # use std::sync::Arc;
/// # use tollgate::{Ask, LimiterExt, Semaphore};
/// # use tollgate_http::{Admission, Gate, LimitLayer, Refused, RequestParts};
/// /// Two limits: reads and writes.
/// struct ByMethod { reads: Arc<Semaphore>, writes: Arc<Semaphore> }
/// impl Gate for ByMethod {
///     type Limiter = Arc<Semaphore>;
///     fn admit(&self, parts: &RequestParts<'_>) -> Admission<Arc<Semaphore>> {
///         let limiter = if parts.method().is_safe() { &self.reads } else { &self.writes };
///         match limiter.try_admit_owned(1) {
///             Ok(permit) => Admission::Admitted(permit, Ask::one()),
///             Err(refusal) => Admission::Refused(Refused::by(Arc::clone(limiter), refusal)),
///         }
///     }
/// }
/// let gate = ByMethod { reads: Arc::new(Semaphore::new(8)), writes: Arc::new(Semaphore::new(0)) };
/// let post = Request::post("/").body(())?;
/// assert!(matches!(gate.admit(&RequestParts::of(&post)), Admission::Refused(_)));
/// assert!(matches!(gate.admit(&RequestParts::of(&Request::new(()))), Admission::Admitted(..)));
/// let _layer = LimitLayer::gate(gate);
/// # Ok::<(), http::Error>(())
/// ```
pub trait Gate: Send + Sync + 'static {
    /// A handle of the limiter that admits. A permit keeps it alive.
    type Limiter: Limiter + 'static;

    /// Admits the request, refuses it, or has it wait.
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Self::Limiter>;

    /// True if there is a limiter for each key. Names of its legs may be made at run time.
    fn is_keyed(&self) -> bool {
        false
    }
}

/// Computes the ask of a request.
///
/// ```
/// # use http::Request;
/// # use tollgate::{Ask, Cost};
/// # use tollgate_http::{CostFn, RequestParts};
/// const BYTES: Cost = Cost::new("bytes");
/// let by_length = |parts: &RequestParts<'_>| {
///     let length = parts.headers().get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
///     Ask::one().cost(BYTES, length.unwrap_or(0))
/// };
/// let request = Request::builder().header("content-length", "512").body(())?;
/// assert_eq!(by_length.cost(&RequestParts::of(&request)).of(BYTES), Some(512));
/// # Ok::<(), http::Error>(())
/// ```
pub trait CostFn: Send + Sync + 'static {
    /// The calls and costs of the request.
    fn cost(&self, parts: &RequestParts<'_>) -> Ask;
}

/// Asks for one call per request.
///
/// ```
/// # use http::Request;
/// # use tollgate_http::{CostFn, OneCall, RequestParts};
/// let ask = OneCall.cost(&RequestParts::of(&Request::new(())));
/// assert_eq!((ask.count(), ask.costs().count()), (1, 0));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCall;

impl CostFn for OneCall {
    #[inline]
    fn cost(&self, _: &RequestParts<'_>) -> Ask {
        Ask::one()
    }
}

impl<F: Fn(&RequestParts<'_>) -> Ask + Send + Sync + 'static> CostFn for F {
    fn cost(&self, parts: &RequestParts<'_>) -> Ask {
        self(parts)
    }
}

/// The refusal of a wait with the time from now on. A leg that was free when the waiter was judged may be exhausted now.
#[cold]
pub(super) fn refused_now<L: Limiter>(limiter: &L, ask: &Ask, refusal: Refusal) -> Refusal {
    let looked = limiter.look(&Demand::new(ask, &ClockReading::default()));
    match looked.map_err(|now| now.wait()) {
        Err(wait) if wait != Wait::Never && refusal.is_retryable() => refusal.with_wait(refusal.wait().and(wait)),
        _ => refusal,
    }
}

/// Tries once, and refuses if that fails.
#[inline]
fn try_now<L: Limiter + Clone>(limiter: &L, ask: &Ask) -> Admission<L> {
    match limiter.try_admit(*ask) {
        Ok(permit) => Admission::Admitted(permit.into_owned(), *ask),
        Err(refusal) => Admission::Refused(Refused::by(limiter.clone(), refusal)),
    }
}

/// Tries once, and joins the policy's queue if waiting can help. Only a wait allocates.
#[inline]
fn in_queue<L: Limiter + 'static>(policy: &Policy<L>, ask: Ask) -> Admission<Policy<L>> {
    match policy.try_admit(ask) {
        Ok(permit) => return Admission::Admitted(permit.into_owned(), ask),
        Err(refusal) if refusal.wait() == Wait::Never => {
            return Admission::Refused(Refused::by(policy.clone(), refusal));
        }
        Err(_) => {}
    }
    let policy = policy.clone();
    let wait = async move {
        match policy.admit_owned(ask).await {
            Ok(permit) => Ok(permit),
            Err(refusal) => {
                let refusal = refused_now(&policy, &ask, refusal);
                Err(Refused::by(policy, refusal))
            }
        }
    };
    Admission::Waiting(Box::pin(wait), ask)
}

/// Admits all requests by one limiter, and refuses at once. Made by [`LimitLayer::new`](super::LimitLayer::new).
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate_http::{Gate, ImmediateGate, LimitLayer};
/// let slots = Arc::new(Semaphore::new(8));
/// let layer: LimitLayer<ImmediateGate<Semaphore>> = LimitLayer::new(Arc::clone(&slots));
/// assert_eq!(Arc::strong_count(&slots), 2, "the layer and its services share it");
/// # drop(layer);
/// # fn is_gate<G: Gate>() {}
/// # is_gate::<ImmediateGate<Semaphore>>();
/// ```
#[derive(Debug)]
pub struct ImmediateGate<L, P = OneCall> {
    limiter: Arc<L>,
    cost: P,
}

impl<L> ImmediateGate<L> {
    pub(super) fn new(limiter: Arc<L>) -> Self {
        Self { limiter, cost: OneCall }
    }
}

impl<L: Limiter + 'static, P: CostFn> Gate for ImmediateGate<L, P> {
    type Limiter = Arc<L>;
    #[inline]
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Arc<L>> {
        try_now(&self.limiter, &self.cost.cost(parts))
    }
}

/// Admits all requests by one policy, in whose queue they wait. Made by [`LimitLayer::waiting`](super::LimitLayer::waiting).
///
/// ```
/// # use tollgate::{Policy, Semaphore};
/// # use tollgate_http::{LimitLayer, QueueGate};
/// let policy = Policy::builder().limit(Semaphore::new(8)).max_queue(100).build()?;
/// let layer: LimitLayer<QueueGate<Semaphore>> = LimitLayer::waiting(policy.clone());
/// assert_eq!(policy.waiting(), 0, "the layer waits in the queue of the policy");
/// # drop(layer);
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct QueueGate<L: Limiter + 'static, P = OneCall> {
    pub(super) policy: Policy<L>,
    pub(super) cost: P,
}

impl<L: Limiter + 'static> QueueGate<L> {
    pub(super) fn new(policy: Policy<L>) -> Self {
        Self { policy, cost: OneCall }
    }
}

impl<L: Limiter + 'static, P: CostFn> Gate for QueueGate<L, P> {
    type Limiter = Policy<L>;
    #[inline]
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Policy<L>> {
        in_queue(&self.policy, self.cost.cost(parts))
    }
}

/// Reads the key of a request, by which it is limited.
///
/// ```
/// # use http::Request;
/// # use tollgate_http::{ExtractKey, RequestParts};
/// /// The first segment of the path: the tenant.
/// struct Tenant;
/// impl ExtractKey for Tenant {
///     type Key = String;
///     fn key(&self, parts: &RequestParts<'_>) -> Option<String> {
///         parts.uri().path().split('/').nth(1).filter(|name| !name.is_empty()).map(String::from)
///     }
/// }
/// let key = |path: &str| Tenant.key(&RequestParts::of(&Request::get(path).body(()).unwrap()));
/// assert_eq!((key("/acme/files"), key("/")), (Some("acme".to_string()), None));
/// ```
pub trait ExtractKey: Send + Sync + 'static {
    /// The key.
    type Key;

    /// The key of the request, or `None` if it has no key.
    fn key(&self, parts: &RequestParts<'_>) -> Option<Self::Key>;

    /// The reason for refusing a request without a key. [`Unkeyed`](Reason::Unkeyed) by default: the client has not sent it.
    /// [`Misconfigured`](Reason::Misconfigured) if the program has not passed it on.
    fn reason(&self) -> Reason {
        Reason::Unkeyed
    }
}

impl<K, F: Fn(&RequestParts<'_>) -> Option<K> + Send + Sync + 'static> ExtractKey for F {
    type Key = K;
    fn key(&self, parts: &RequestParts<'_>) -> Option<K> {
        self(parts)
    }
}

/// The leg name of refusals of requests without a key.
pub(super) const KEY: &str = "key";

/// The request's key, or the refusal of a request without a key.
fn key_of<X: ExtractKey>(keys: &X, parts: &RequestParts<'_>) -> Result<X::Key, Refusal> {
    keys.key(parts)
        .ok_or_else(|| Refusal::new(keys.reason(), KEY, Wait::Never))
}

/// The limiter of the request's key, or the refusal of a request without a key.
fn of_key<X, L>(keyed: &Keyed<X::Key, L>, keys: &X, parts: &RequestParts<'_>) -> Result<Arc<L>, Refusal>
where
    X: ExtractKey<Key: Hash + Eq + Clone>,
    L: Limiter,
{
    keyed.get(&key_of(keys, parts)?).map_err(Refusal::from)
}

/// Admits each request by the limiter of its key, and refuses at once. Made by [`LimitLayer::keyed`](super::LimitLayer::keyed).
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::{Keyed, Semaphore};
/// # use tollgate_http::{LimitLayer, RequestParts};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let paths = Arc::new(Keyed::new(1_000, |path: &String| Semaphore::new(usize::from(path == "/"))));
/// let layer = LimitLayer::keyed(paths, |parts: &RequestParts<'_>| Some(parts.uri().path().to_string()));
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// assert!(service.clone().oneshot(Request::get("/").body(())?).await.is_ok());
/// assert!(service.oneshot(Request::get("/closed").body(())?).await.is_err());
/// # Ok(())
/// # }
/// ```
pub struct KeyedGate<X: ExtractKey, L, P = OneCall> {
    keyed: Arc<Keyed<X::Key, L>>,
    keys: X,
    cost: P,
}

impl<X: ExtractKey, L> KeyedGate<X, L> {
    pub(super) fn new(keyed: Arc<Keyed<X::Key, L>>, keys: X) -> Self {
        Self {
            keyed,
            keys,
            cost: OneCall,
        }
    }
}

impl<X, L, P> Gate for KeyedGate<X, L, P>
where
    X: ExtractKey<Key: Hash + Eq + Clone + Send + Sync + 'static>,
    L: Limiter + 'static,
    P: CostFn,
{
    type Limiter = Arc<L>;
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Arc<L>> {
        match of_key(&self.keyed, &self.keys, parts) {
            Ok(limiter) => try_now(&limiter, &self.cost.cost(parts)),
            Err(refusal) => Admission::Refused(Refused::early(refusal)),
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// Admits each request by the policy of its key, in whose queue it waits. Made by
/// [`LimitLayer::keyed_waiting`](super::LimitLayer::keyed_waiting).
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::{Keyed, Policy, Semaphore};
/// # use tollgate_http::{LimitLayer, RequestParts};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One request of each path at a time; the next one waits.
/// let paths = Arc::new(Keyed::new(1_000, |_: &String| Policy::new(Semaphore::new(1))));
/// let layer = LimitLayer::keyed_waiting(paths, |parts: &RequestParts<'_>| Some(parts.uri().path().to_string()));
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// let request = || service.clone().oneshot(Request::new(()));
/// let (first, second) = futures::join!(async { drop(request().await) }, request());
/// assert!(second.is_ok());
/// # let () = first;
/// # Ok(())
/// # }
/// ```
pub struct KeyedQueueGate<X: ExtractKey, L: Limiter + 'static, P = OneCall> {
    keyed: Arc<Keyed<X::Key, Policy<L>>>,
    keys: X,
    cost: P,
}

impl<X: ExtractKey, L: Limiter + 'static> KeyedQueueGate<X, L> {
    pub(super) fn new(keyed: Arc<Keyed<X::Key, Policy<L>>>, keys: X) -> Self {
        Self {
            keyed,
            keys,
            cost: OneCall,
        }
    }
}

impl<X, L, P> Gate for KeyedQueueGate<X, L, P>
where
    X: ExtractKey<Key: Hash + Eq + Clone + Send + Sync + 'static>,
    L: Limiter + 'static,
    P: CostFn,
{
    type Limiter = Policy<L>;
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Policy<L>> {
        match of_key(&self.keyed, &self.keys, parts) {
            Ok(policy) => in_queue(&policy, self.cost.cost(parts)),
            Err(refusal) => Admission::Refused(Refused::early(refusal)),
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// Admits each request by the rate of its key, and refuses at once. Made by
/// [`LimitLayer::keyed_rate`](super::LimitLayer::keyed_rate).
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::Quota;
/// # use tollgate::keyed::KeyedRate;
/// # use tollgate_http::{LimitLayer, RequestParts};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rates = Arc::new(KeyedRate::new(1_000, Quota::per_hour(60).burst(1)));
/// let layer = LimitLayer::keyed_rate(rates, |parts: &RequestParts<'_>| Some(parts.uri().path().to_string()));
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// assert!(service.clone().oneshot(Request::new(())).await.is_ok());
/// let refused = service.oneshot(Request::new(())).await.unwrap_err();
/// assert!(refused.refusal().is_some_and(|refusal| refusal.retry_after().is_some()));
/// # Ok(())
/// # }
/// ```
pub struct KeyedRateGate<X: ExtractKey, P = OneCall> {
    rates: Arc<KeyedRate<X::Key>>,
    keys: X,
    cost: P,
}

impl<X: ExtractKey> KeyedRateGate<X> {
    pub(super) fn new(rates: Arc<KeyedRate<X::Key>>, keys: X) -> Self {
        Self {
            rates,
            keys,
            cost: OneCall,
        }
    }
}

impl<X, P> Gate for KeyedRateGate<X, P>
where
    X: ExtractKey<Key: Hash + Eq + Clone + Send + Sync + 'static>,
    P: CostFn,
{
    type Limiter = RateOfKey<X::Key>;
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<RateOfKey<X::Key>> {
        let key = match key_of(&self.keys, parts) {
            Ok(key) => key,
            Err(refusal) => return Admission::Refused(Refused::early(refusal)),
        };
        let rates = Arc::clone(&self.rates);
        match try_now(&RateOfKey { rates, key }, &self.cost.cost(parts)) {
            // There is no room for the key, so it has no rate of which a status could be told.
            Admission::Refused(refused) if refused.refusal.reason() == Reason::Saturated => {
                Admission::Refused(Refused::early(refused.refusal))
            }
            admission => admission,
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// The rate of one key of a [`KeyedRate`], as the limiter of a [`KeyedRateGate`]. It gives nothing back: neither a cancelled
/// request nor a settlement returns a token.
///
/// The handle of a permit. **Busy loop**: do not make it a leg of a policy. Its [`look`](Limiter::look) refuses nothing, so a policy
/// that waits for it would ask again at once. A key that is unknown, also for want of room, is described as a full bucket.
///
/// ```
/// # use http::Request;
/// # use std::sync::Arc;
/// # use tollgate::{Limiter, Quota};
/// # use tollgate_http::{Gate, KeyedRateGate, RateOfKey, RequestParts};
/// fn limiter_of<G: Gate<Limiter = RateOfKey<String>>>() -> bool {
///     true
/// }
/// type ByPath = fn(&RequestParts<'_>) -> Option<String>;
/// assert!(limiter_of::<KeyedRateGate<ByPath>>());
/// ```
#[derive(Clone)]
pub struct RateOfKey<K> {
    rates: Arc<KeyedRate<K>>,
    key: K,
}

impl<K> fmt::Debug for RateOfKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys may be secrets.
        f.debug_struct("RateOfKey")
            .field("rates", &self.rates)
            .finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync> Limiter for RateOfKey<K> {
    type Ticket = ();

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.rates.try_acquire(&self.key, demand.units())
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}

    /// The refusal has told the time.
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        if let Some(rate) = self.rates.status(&self.key) {
            visit(rate);
        }
    }
}

/// A gate whose asks can be set.
///
/// ```
/// # use http::Request;
/// # use std::sync::Arc;
/// # use tollgate::{Ask, Semaphore};
/// # use tollgate_http::{Admission, Gate, LimitLayer, QueueGate, RequestParts, WithCost};
/// fn twice<G: WithCost<fn(&RequestParts<'_>) -> Ask>>(gate: G) -> G::With {
///     gate.with_cost(|_| Ask::many(2))
/// }
/// type Waiting = QueueGate<Semaphore>;
/// assert!(std::any::type_name::<<Waiting as WithCost<fn(&RequestParts<'_>) -> Ask>>::With>().contains("QueueGate"));
/// # let _ = twice::<Waiting>;
/// ```
pub trait WithCost<P>: Sized {
    /// The gate with that cost function.
    type With;
    /// This gate, asking as `cost` says.
    fn with_cost(self, cost: P) -> Self::With;
}

macro_rules! with_cost {
    ($($gate:ident<$($param:ident),+> { $($field:ident),+ } where [$($bound:tt)*])+) => {$(
        impl<$($param,)+ P: CostFn> WithCost<P> for $gate<$($param),+>
        where
            $($bound)*
        {
            type With = $gate<$($param,)+ P>;
            fn with_cost(self, cost: P) -> Self::With {
                $gate { $($field: self.$field,)+ cost }
            }
        }
    )+};
}
with_cost! {
    ImmediateGate<L> { limiter } where []
    QueueGate<L> { policy } where [L: Limiter + 'static]
    KeyedGate<X, L> { keyed, keys } where [X: ExtractKey]
    KeyedQueueGate<X, L> { keyed, keys } where [X: ExtractKey, L: Limiter + 'static]
    KeyedRateGate<X> { rates, keys } where [X: ExtractKey]
}

/// Exempts some requests from a gate. Made by [`LimitLayer::exempt`](super::LimitLayer::exempt).
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use tollgate::Semaphore;
/// # use tollgate_http::{LimitLayer, RequestParts};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let health = |parts: &RequestParts<'_>| parts.uri().path() == "/health";
/// let layer = LimitLayer::new(Arc::new(Semaphore::new(0))).exempt(health);
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// assert!(service.clone().oneshot(Request::get("/health").body(())?).await.is_ok());
/// assert!(service.oneshot(Request::get("/").body(())?).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ExemptGate<G, F> {
    gate: G,
    exempt: F,
}

impl<G, F> ExemptGate<G, F> {
    pub(super) fn new(gate: G, exempt: F) -> Self {
        Self { gate, exempt }
    }
}

impl<G: Gate, F: Fn(&RequestParts<'_>) -> bool + Send + Sync + 'static> Gate for ExemptGate<G, F> {
    type Limiter = G::Limiter;
    #[inline]
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<G::Limiter> {
        match (self.exempt)(parts) {
            true => Admission::Exempt,
            false => self.gate.admit(parts),
        }
    }
    fn is_keyed(&self) -> bool {
        self.gate.is_keyed()
    }
}
