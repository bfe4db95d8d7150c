//! Gates: admit a request at once or through a queue, by one limiter or by the limiter of its key.

use super::refused::Refused;
use super::request_parts::RequestParts;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use tollgate::keyed::KeyedRate;
use tollgate::status::Status;
use tollgate::sync::WaitQueue;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Demand, Keyed, Limiter, LimiterExt, Outcome, Permit, Policy, ReadyAt, Reason, Refusal, Rejection, Wait,
};

/// The result of a wait.
pub type Waited<L> = Result<Permit<L>, Refused<L>>;

/// The decision of a gate on a request.
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
pub trait CostFn: Send + Sync + 'static {
    /// The calls and costs of the request.
    fn cost(&self, parts: &RequestParts<'_>) -> Ask;
}

/// Asks for one call per request.
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

/// The rejection for the client: its `retry_after` covers all legs, also those behind the leg that refused.
#[cold]
pub(super) fn reject<L: Limiter>(limiter: &L, ask: &Ask, mut rejection: Rejection) -> Rejection {
    if let Some(clock) = limiter.clock()
        && !rejection.reason.is_permanent()
    {
        let now = clock.now();
        let ready = limiter.ready_at(Demand::new(ask, &ClockReading::at(clock, now)));
        let known = ready.not_before().map(|at| clock.between(now, at));
        rejection.retry_after = rejection.retry_after.max(known.filter(|time| !time.is_zero()));
    }
    rejection
}

/// Tries once, and refuses if that fails.
#[inline]
fn try_now<L: Limiter + Clone>(limiter: &L, ask: &Ask) -> Admission<L> {
    match limiter.try_admit(*ask) {
        Ok(permit) => Admission::Admitted(permit.into_owned(), *ask),
        Err(refusal) => Admission::Refused(Refused::by(
            limiter.clone(),
            reject(limiter, ask, refusal.to_rejection()),
        )),
    }
}

/// Tries once, and joins the policy's queue if waiting can help. Only a wait allocates.
#[inline]
fn in_queue<L: Limiter + 'static>(policy: &Policy<L>, ask: Ask) -> Admission<Policy<L>> {
    match policy.try_admit(ask) {
        Ok(permit) => return Admission::Admitted(permit.into_owned(), ask),
        Err(refusal) if matches!(refusal.wait(), Wait::Never) => {
            return Admission::Refused(Refused::by(policy.clone(), refusal.to_rejection()));
        }
        Err(_) => {}
    }
    let policy = policy.clone();
    let wait = async move {
        match policy.admit_owned(ask).await {
            Ok(permit) => Ok(permit),
            Err(rejection) => {
                let rejection = reject(&policy, &ask, rejection);
                Err(Refused::by(policy, rejection))
            }
        }
    };
    Admission::Waiting(Box::pin(wait), ask)
}

/// Admits all requests by one limiter, and refuses at once. Made by [`LimitLayer::new`](super::LimitLayer::new).
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

/// The request's key, or the rejection of a request without a key.
fn key_of<X: ExtractKey>(keys: &X, parts: &RequestParts<'_>) -> Result<X::Key, Rejection> {
    keys.key(parts)
        .ok_or_else(|| Refusal::new(keys.reason(), KEY, 1, Wait::Never).to_rejection())
}

/// The limiter of the request's key, or the rejection of a request without a key.
fn of_key<X, L>(keyed: &Keyed<X::Key, L>, keys: &X, parts: &RequestParts<'_>) -> Result<Arc<L>, Rejection>
where
    X: ExtractKey<Key: Hash + Eq + Clone>,
    L: Limiter,
{
    keyed.get(&key_of(keys, parts)?).map_err(Rejection::from)
}

/// Admits each request by the limiter of its key, and refuses at once. Made by [`LimitLayer::keyed`](super::LimitLayer::keyed).
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
            Err(rejection) => Admission::Refused(Refused::early(rejection)),
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// Admits each request by the policy of its key, in whose queue it waits. Made by
/// [`LimitLayer::keyed_waiting`](super::LimitLayer::keyed_waiting).
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
            Err(rejection) => Admission::Refused(Refused::early(rejection)),
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// Admits each request by the rate of its key, and refuses at once. Made by
/// [`LimitLayer::keyed_rate`](super::LimitLayer::keyed_rate).
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
            Err(rejection) => return Admission::Refused(Refused::early(rejection)),
        };
        let rates = Arc::clone(&self.rates);
        match try_now(&RateOfKey { rates, key }, &self.cost.cost(parts)) {
            // There is no room for the key, so it has no rate of which a status could be told.
            Admission::Refused(refused) if refused.rejection.reason == Reason::Saturated => {
                Admission::Refused(Refused::early(refused.rejection))
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
/// It is the handle of a permit, and no leg for a policy of your own: [`ready_at`](Limiter::ready_at) is always now, so a policy that waits
/// for it would ask again at once. The status of a key that is unknown, also for want of room, is that of a full bucket.
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

    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        self.rates.try_acquire(&self.key, demand.units())
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}

    /// The refusal has told the time: there is no clock to ask.
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        if let Some(status) = self.rates.status(&self.key) {
            visit(status);
        }
    }

    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

/// A gate whose asks can be set.
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
