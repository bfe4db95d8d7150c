//! A policy whose refused clients get a retry time, which is honoured.

use super::room::WaitingRoom;
use crate::gate::{Admission, CostFn, ExtractKey, Gate, OneCall, QueueGate, refused_now};
use crate::layer::LimitLayer;
use crate::refused::Refused;
use crate::request_parts::RequestParts;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use tollgate::policy::Bypass;
use tollgate::{Ask, Limiter, LimiterExt, Policy, Reason};

impl<L: Limiter + 'static, P, C, R> LimitLayer<QueueGate<L, P>, C, R> {
    /// Gives each client that is refused for lack of capacity an appointment in `room`, and admits it then: the instant is its
    /// `retry_after`, and its `Retry-After`. Comes after [`cost`](Self::cost), and before [`exempt`](Self::exempt).
    ///
    /// `keys` identifies the client: read what the client cannot choose, such as its address. Put a rate by the same key
    /// outside, since only a client with many keys can hoard appointments. A client without a key is refused as without a room.
    ///
    /// A client that comes back at its instant, or within the [grace](WaitingRoom::grace) after it, waits in a
    /// [bypass queue](Policy::bypass_queue) beside the policy's queue. It waits there for the grace again at most, and the bypass queue holds at most as
    /// many waiters as the room has places. It is admitted as long as the service serves twice as fast as the room gives out
    /// appointments. A client that comes earlier is a newcomer, and keeps its appointment. An appointment admits once: a second
    /// request for it is a newcomer too.
    ///
    /// In a policy with a rate, the bypass queue and the policy's queue take turns at its tokens as they do at permits. No appointment is
    /// before the instant that the rate knows. If that instant is further ahead than all places of the room and the grace reach,
    /// the client gets the rate's instant, and no appointment.
    ///
    /// A waiting request may leave at any time; its appointment is used up then. With no appointments outstanding, the cost is
    /// one atomic load, and no key is read.
    ///
    /// # Panics
    /// If the layer has been cloned or used already.
    ///
    /// ```
    /// # use http::Request;
    /// # use http_body_util::Empty;
    /// # use std::convert::Infallible;
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tollgate_http::{LimitLayer, RequestParts, WaitingRoom};
    /// # use tollgate::{LimiterExt, Policy, Quota, Semaphore};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let core = Policy::builder().limit(Semaphore::new(16)).max_wait(Duration::from_millis(1)).build()?;
    /// let room = Arc::new(WaitingRoom::new(50_000, Quota::per_second(50))?.share(0.4)?);
    /// let client = |parts: &RequestParts<'_>| parts.headers().get("x-client").cloned();
    /// let service = LimitLayer::waiting(core.clone())
    ///     .waiting_room(Arc::clone(&room), client)
    ///     .layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(http::Response::new(Empty::<&[u8]>::new()))));
    ///
    /// let ask = || Request::builder().header("x-client", "ada").body(()).unwrap();
    /// let busy = core.try_admit(16).unwrap();
    /// let refused = service.clone().oneshot(ask()).await.unwrap_err();
    /// assert_eq!(refused.refusal().unwrap().retry_after(), Some(Duration::ZERO), "the first place is for now");
    /// drop(busy);
    /// assert!(service.oneshot(ask()).await.is_ok());
    /// assert_eq!(room.stats().redeemed, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiting_room<X: ExtractKey>(
        self,
        room: Arc<WaitingRoom>,
        keys: X,
    ) -> LimitLayer<WaitingRoomGate<X, L, P>, C, R> {
        self.map_gate(|queue| {
            let bypass = queue.policy.bypass_queue(room.kept_for());
            bypass.set_max_queue(room.max_places());
            WaitingRoomGate {
                bypass,
                queue,
                room,
                keys,
            }
        })
    }
}

/// Admits all requests by one policy, and gives refused clients appointments. Made by
/// [`LimitLayer::waiting_room`].
///
/// ```
/// # use http::{Request, Response};
/// # use http_body_util::Empty;
/// # use std::convert::Infallible;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tollgate::{Policy, Quota, Semaphore};
/// # use tollgate_http::{LimitLayer, RequestParts, WaitingRoom};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::builder().limit(Semaphore::new(1)).max_wait(Duration::ZERO).build()?;
/// let room = Arc::new(WaitingRoom::new(1_000, Quota::per_second(2))?);
/// let client = |parts: &RequestParts<'_>| parts.uri().path().chars().nth(1);
/// let layer = LimitLayer::waiting(policy).waiting_room(Arc::clone(&room), client);
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
/// }));
/// let _held = service.clone().oneshot(Request::get("/a").body(())?).await?;
/// let refused = service.oneshot(Request::get("/b").body(())?).await.unwrap_err();
/// assert!(refused.refusal().is_some_and(|refusal| refusal.retry_after().is_some()));
/// assert_eq!(room.len(), 1, "an appointment");
/// # Ok(())
/// # }
/// ```
pub struct WaitingRoomGate<X: ExtractKey, L: Limiter + 'static, P = OneCall> {
    queue: QueueGate<L, P>,
    bypass: Policy<Bypass<L>>,
    room: Arc<WaitingRoom>,
    keys: X,
}

impl<X, L, P> Gate for WaitingRoomGate<X, L, P>
where
    X: ExtractKey<Key: Hash + Send + 'static>,
    L: Limiter + 'static,
    P: CostFn,
{
    type Limiter = Policy<L>;

    #[inline]
    fn admit(&self, parts: &RequestParts<'_>) -> Admission<Policy<L>> {
        let key = if self.room.is_empty() {
            None
        } else {
            self.keys.key(parts)
        };
        let key = match key {
            Some(key) if self.room.redeem(&key) => return self.admit_recalled(self.queue.cost.cost(parts), key),
            key => key,
        };
        match self.queue.admit(parts) {
            Admission::Waiting(wait, ask) => {
                let (room, key) = (Arc::clone(&self.room), key.or_else(|| self.keys.key(parts)));
                let wait = async move {
                    let waited = wait.await;
                    match waited {
                        Ok(permit) => {
                            room.note_served();
                            Ok(permit)
                        }
                        Err(refused) => Err(with_appointment(&room, key.as_ref(), refused)),
                    }
                };
                Admission::Waiting(Box::pin(wait), ask)
            }
            Admission::Refused(refused) => {
                let key = key.or_else(|| self.keys.key(parts));
                Admission::Refused(with_appointment(&self.room, key.as_ref(), refused))
            }
            admission => admission,
        }
    }
}

impl<X, L, P> WaitingRoomGate<X, L, P>
where
    X: ExtractKey<Key: Hash + Send + 'static>,
    L: Limiter + 'static,
{
    /// Admits the client `key` at its appointment: at once, or through the bypass. The permit is one of the policy itself.
    #[cold]
    fn admit_recalled(&self, ask: Ask, key: X::Key) -> Admission<Policy<L>> {
        if let Ok(permit) = self.bypass.try_admit(ask) {
            return Admission::Admitted(permit.into_owned().into_policy(), ask);
        }
        let (policy, bypass, room) = (self.queue.policy.clone(), self.bypass.clone(), Arc::clone(&self.room));
        let wait = async move {
            match bypass.admit_owned(ask).await {
                Ok(permit) => {
                    room.note_served();
                    Ok(permit.into_policy())
                }
                Err(refusal) => {
                    if lacks_capacity(refusal.reason()) {
                        room.note_broken();
                    }
                    let refusal = refused_now(&policy, &ask, refusal);
                    Err(with_appointment(&room, Some(&key), Refused::by(policy, refusal)))
                }
            }
        };
        Admission::Waiting(Box::pin(wait), ask)
    }
}

/// True if an appointment helps: the refusal is not permanent, and not by a circuit. `TimedOut` may be of a rate, which knows
/// its instant.
fn lacks_capacity(reason: Reason) -> bool {
    matches!(reason, Reason::Saturated | Reason::QueueFull | Reason::TimedOut)
}

/// The refusal with the instant of an appointment, which is not earlier than the instant that a leg knows.
#[cold]
fn with_appointment<K: Hash, L: Limiter>(room: &WaitingRoom, key: Option<&K>, mut refused: Refused<L>) -> Refused<L> {
    let refusal = refused.refusal;
    if let (Some(key), true) = (key, refusal.is_retryable() && lacks_capacity(refusal.reason())) {
        let known = refusal.retry_after().unwrap_or_default();
        let wait = match room.book_from(key, known) {
            Ok(wait) => wait,
            // The room has no places.
            Err(full) if full.retry_after().is_zero() => return refused,
            Err(full) => full.retry_after(),
        };
        let appointed = refusal.with_wait(room.wait(known.max(wait)));
        // `Saturated` means that no instant is known, and now one is.
        refused.refusal = match refusal.reason() {
            Reason::Saturated => appointed.with_reason(Reason::QueueFull),
            _ => appointed,
        };
    }
    refused
}

impl<X: ExtractKey, L: Limiter + 'static, P> fmt::Debug for WaitingRoomGate<X, L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRoomGate")
            .field("room", &self.room)
            .field("bypass", &self.bypass)
            .finish_non_exhaustive()
    }
}
