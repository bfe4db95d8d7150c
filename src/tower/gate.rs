//! How a request is admitted: at once or in line, by one limiter or by that of its key.

use super::head::Head;
use super::refused::Refused;
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, admit_in};
use crate::core::permit::Permit;
use crate::core::refusal::{Reason, Refusal, Rejection, Wait};
use crate::keyed::Keyed;
use crate::policy::Policy;
use crate::time::ClockReading;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

/// How a wait ends.
pub type Waited<L> = Result<Permit<L>, Refused<L>>;

/// What a gate says of a request.
#[must_use]
#[non_exhaustive]
pub enum Admission<L: Limiter> {
    /// It may start, and holds this until its response has been sent.
    Admitted(Permit<L>),
    /// It is not limited.
    Exempt,
    /// It stands in line. Dropping the future leaves the line, and loses nothing.
    Waiting(Pin<Box<dyn Future<Output = Waited<L>> + Send>>),
    /// It must not start.
    Refused(Refused<L>),
}

impl<L: Limiter> fmt::Debug for Admission<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admitted(_) => "Admitted",
            Self::Exempt => "Exempt",
            Self::Waiting(_) => "Waiting",
            Self::Refused(_) => "Refused",
        })
    }
}

/// Admits requests. One gate is shared by all clones of a layer and of its services.
pub trait Gate: Send + Sync + 'static {
    /// A handle of the limiter that admits: what a permit keeps alive.
    type Limiter: Limiter + 'static;

    /// Admits, refuses, or has the request wait.
    fn admit(&self, head: &Head<'_>) -> Admission<Self::Limiter>;

    /// True when there is a limiter for each key. Its legs may have names that nobody wrote into the program.
    fn is_keyed(&self) -> bool {
        false
    }
}

/// What a request asks for.
pub trait Price: Send + Sync + 'static {
    /// The calls and costs of the request with this head.
    fn price(&self, head: &Head<'_>) -> Ask;
}

/// One call per request.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCall;

impl Price for OneCall {
    #[inline]
    fn price(&self, _: &Head<'_>) -> Ask {
        Ask::one()
    }
}

impl<F: Fn(&Head<'_>) -> Ask + Send + Sync + 'static> Price for F {
    fn price(&self, head: &Head<'_>) -> Ask {
        self(head)
    }
}

/// The refusal that a client is told: not before all legs have room, also those behind the one that refused.
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

/// Tries once, and refuses what cannot be admitted now.
#[inline]
fn try_now<L: Limiter + Clone>(limiter: &L, ask: &Ask) -> Admission<L> {
    let mut permit = Permit::before(limiter);
    match admit_in(limiter, ask, permit.ticket_mut()) {
        Ok(()) => Admission::Admitted(permit.owned_by(limiter.clone())),
        Err(refusal) => Admission::Refused(Refused::by(
            limiter.clone(),
            reject(limiter, ask, refusal.to_rejection()),
        )),
    }
}

/// Tries once, and stands in line if that can help. Only a wait allocates.
#[inline]
fn in_line<L: Limiter + 'static>(policy: &Policy<L>, ask: Ask) -> Admission<Policy<L>> {
    let mut permit = Permit::before(policy);
    match admit_in(policy, &ask, permit.ticket_mut()) {
        Ok(()) => return Admission::Admitted(permit.owned_by(policy.clone())),
        Err(refusal) if matches!(refusal.wait(), Wait::Never) => {
            return Admission::Refused(Refused::by(policy.clone(), refusal.to_rejection()));
        }
        Err(_) => {}
    }
    let policy = policy.clone();
    Admission::Waiting(Box::pin(async move {
        match policy.admit_owned(ask).await {
            Ok(permit) => Ok(permit),
            Err(rejection) => {
                let rejection = reject(&policy, &ask, rejection);
                Err(Refused::by(policy, rejection))
            }
        }
    }))
}

/// One limiter for all requests, which refuses at once. Made by [`LimitLayer::new`](super::LimitLayer::new).
#[derive(Debug)]
pub struct AtOnce<L, P = OneCall> {
    limiter: Arc<L>,
    price: P,
}

impl<L> AtOnce<L> {
    pub(super) fn new(limiter: Arc<L>) -> Self {
        Self {
            limiter,
            price: OneCall,
        }
    }
}

impl<L: Limiter + 'static, P: Price> Gate for AtOnce<L, P> {
    type Limiter = Arc<L>;
    #[inline]
    fn admit(&self, head: &Head<'_>) -> Admission<Arc<L>> {
        try_now(&self.limiter, &self.price.price(head))
    }
}

/// One policy for all requests, in whose line they wait. Made by [`LimitLayer::waiting`](super::LimitLayer::waiting).
#[derive(Debug)]
pub struct InLine<L: Limiter + 'static, P = OneCall> {
    pub(super) policy: Policy<L>,
    pub(super) price: P,
}

impl<L: Limiter + 'static> InLine<L> {
    pub(super) fn new(policy: Policy<L>) -> Self {
        Self { policy, price: OneCall }
    }
}

impl<L: Limiter + 'static, P: Price> Gate for InLine<L, P> {
    type Limiter = Policy<L>;
    #[inline]
    fn admit(&self, head: &Head<'_>) -> Admission<Policy<L>> {
        in_line(&self.policy, self.price.price(head))
    }
}

/// Reads from a request the key that it is limited by.
pub trait ExtractKey: Send + Sync + 'static {
    /// The key.
    type Key;

    /// The key of the request with this head, or nothing when it has none.
    fn key(&self, head: &Head<'_>) -> Option<Self::Key>;

    /// Why a request has none: [`Unkeyed`](Reason::Unkeyed), the client has not sent it, unless this says
    /// [`Misconfigured`](Reason::Misconfigured), the program does not hand it on.
    fn reason(&self) -> Reason {
        Reason::Unkeyed
    }
}

impl<K, F: Fn(&Head<'_>) -> Option<K> + Send + Sync + 'static> ExtractKey for F {
    type Key = K;
    fn key(&self, head: &Head<'_>) -> Option<K> {
        self(head)
    }
}

/// The leg name of refusals of requests that have no key.
pub(crate) const KEY: &str = "key";

/// A limiter for each key, or the refusal of a request that has none.
fn of_key<X, L>(keyed: &Keyed<X::Key, L>, keys: &X, head: &Head<'_>) -> Result<Arc<L>, Rejection>
where
    X: ExtractKey<Key: Hash + Eq + Clone>,
    L: Limiter,
{
    let key = keys
        .key(head)
        .ok_or_else(|| Refusal::new(keys.reason(), KEY, 1, Wait::Never).to_rejection())?;
    keyed.get(&key).map_err(Rejection::from)
}

/// A limiter for each key, which refuses at once. Made by [`LimitLayer::keyed`](super::LimitLayer::keyed).
pub struct PerKey<X: ExtractKey, L, P = OneCall> {
    keyed: Arc<Keyed<X::Key, L>>,
    keys: X,
    price: P,
}

impl<X: ExtractKey, L> PerKey<X, L> {
    pub(super) fn new(keyed: Arc<Keyed<X::Key, L>>, keys: X) -> Self {
        Self {
            keyed,
            keys,
            price: OneCall,
        }
    }
}

impl<X, L, P> Gate for PerKey<X, L, P>
where
    X: ExtractKey<Key: Hash + Eq + Clone + Send + Sync + 'static>,
    L: Limiter + 'static,
    P: Price,
{
    type Limiter = Arc<L>;
    fn admit(&self, head: &Head<'_>) -> Admission<Arc<L>> {
        match of_key(&self.keyed, &self.keys, head) {
            Ok(limiter) => try_now(&limiter, &self.price.price(head)),
            Err(rejection) => Admission::Refused(Refused::early(rejection)),
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// A policy for each key, in whose line requests of that key wait. Made by
/// [`LimitLayer::keyed_waiting`](super::LimitLayer::keyed_waiting).
pub struct InLinePerKey<X: ExtractKey, L: Limiter + 'static, P = OneCall> {
    keyed: Arc<Keyed<X::Key, Policy<L>>>,
    keys: X,
    price: P,
}

impl<X: ExtractKey, L: Limiter + 'static> InLinePerKey<X, L> {
    pub(super) fn new(keyed: Arc<Keyed<X::Key, Policy<L>>>, keys: X) -> Self {
        Self {
            keyed,
            keys,
            price: OneCall,
        }
    }
}

impl<X, L, P> Gate for InLinePerKey<X, L, P>
where
    X: ExtractKey<Key: Hash + Eq + Clone + Send + Sync + 'static>,
    L: Limiter + 'static,
    P: Price,
{
    type Limiter = Policy<L>;
    fn admit(&self, head: &Head<'_>) -> Admission<Policy<L>> {
        match of_key(&self.keyed, &self.keys, head) {
            Ok(policy) => in_line(&policy, self.price.price(head)),
            Err(rejection) => Admission::Refused(Refused::early(rejection)),
        }
    }
    fn is_keyed(&self) -> bool {
        true
    }
}

/// A gate whose price can be chosen.
pub trait Priced<P>: Sized {
    /// The gate with that price.
    type With;
    /// This gate, asking for what `price` says.
    fn price(self, price: P) -> Self::With;
}

macro_rules! priced {
    ($($gate:ident<$($param:ident),+> { $($field:ident),+ } where [$($bound:tt)*])+) => {$(
        impl<$($param,)+ P: Price> Priced<P> for $gate<$($param),+>
        where
            $($bound)*
        {
            type With = $gate<$($param,)+ P>;
            fn price(self, price: P) -> Self::With {
                $gate { $($field: self.$field,)+ price }
            }
        }
    )+};
}
priced! {
    AtOnce<L> { limiter } where []
    InLine<L> { policy } where [L: Limiter + 'static]
    PerKey<X, L> { keyed, keys } where [X: ExtractKey]
    InLinePerKey<X, L> { keyed, keys } where [X: ExtractKey, L: Limiter + 'static]
}

/// A gate that some requests need not pass. Made by [`LimitLayer::exempt`](super::LimitLayer::exempt).
#[derive(Debug)]
pub struct Exempting<G, F> {
    gate: G,
    exempt: F,
}

impl<G, F> Exempting<G, F> {
    pub(super) fn new(gate: G, exempt: F) -> Self {
        Self { gate, exempt }
    }
}

impl<G: Gate, F: Fn(&Head<'_>) -> bool + Send + Sync + 'static> Gate for Exempting<G, F> {
    type Limiter = G::Limiter;
    #[inline]
    fn admit(&self, head: &Head<'_>) -> Admission<G::Limiter> {
        match (self.exempt)(head) {
            true => Admission::Exempt,
            false => self.gate.admit(head),
        }
    }
    fn is_keyed(&self) -> bool {
        self.gate.is_keyed()
    }
}
