//! A policy in front of which those who are turned away are told when to come back, and are let in then.

use super::gate::{Admission, ExtractKey, Gate, InLine, OneCall, Price, reject};
use super::head::Head;
use super::layer::LimitLayer;
use super::refused::Refused;
use crate::core::ask::Ask;
use crate::core::limiter::{Limiter, admit_in};
use crate::core::permit::Permit;
use crate::core::refusal::Reason;
use crate::policy::{Lane, Policy};
use crate::shed::WaitingRoom;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

impl<L: Limiter + 'static, P, C, R> LimitLayer<InLine<L, P>, C, R> {
    /// Gives each client that is refused for want of room an appointment in `room`, and lets it in then: the instant is its
    /// `retry_after`, and its `Retry-After`. After [`price`](Self::price), and before [`exempt`](Self::exempt).
    ///
    /// A client is known by what `keys` reads from its requests: choose what it cannot choose, such as its address, and let a
    /// rate by the same key stand outside. One without a key is refused as without a room.
    ///
    /// Who comes back from its instant on, within the [grace](WaitingRoom::grace), does not stand in the policy's line but in
    /// [a lane](Policy::lane) beside it, for as long as the grace again at most, and with as many others as the room has places.
    /// It is let in as long as the service serves twice as fast as the room gives out places. Who comes earlier is a newcomer,
    /// and keeps its place; so does whoever comes a second time for one place.
    ///
    /// In a policy with a rate, the lane and the policy's queue take turns at its tokens as they do at permits. No place is for
    /// an instant before the one that the rate knows, and none is kept for one that is further ahead than all places of the
    /// room and the grace reach: then the client is told the rate's alone.
    ///
    /// A request that waits may leave at any time; the place that it came for is used up then. While no place is taken a
    /// request reads one number more than without a room, and no key.
    ///
    /// # Panics
    /// When the layer has been cloned or used already.
    ///
    /// ```
    /// # use http::Request;
    /// # use http_body_util::Empty;
    /// # use std::convert::Infallible;
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tollgate::shed::WaitingRoom;
    /// # use tollgate::tower::{Head, LimitLayer};
    /// # use tollgate::{LimiterExt, Policy, Quota, Semaphore};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let core = Policy::builder().limit(Semaphore::new(16)).max_wait(Duration::from_millis(1)).build()?;
    /// let room = Arc::new(WaitingRoom::new(50_000, Quota::per_second(50))?.share(0.4)?);
    /// let client = |head: &Head<'_>| head.headers().get("x-client").cloned();
    /// let service = LimitLayer::waiting(core.clone())
    ///     .waiting_room(Arc::clone(&room), client)
    ///     .layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(http::Response::new(Empty::<&[u8]>::new()))));
    ///
    /// let ask = || Request::builder().header("x-client", "ada").body(()).unwrap();
    /// let busy = core.try_admit(16).unwrap();
    /// let refused = service.clone().oneshot(ask()).await.unwrap_err();
    /// assert_eq!(refused.rejection().unwrap().retry_after, Some(Duration::ZERO), "the first place is for now");
    /// drop(busy);
    /// assert!(service.oneshot(ask()).await.is_ok());
    /// assert_eq!(room.stats().redeemed, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiting_room<X: ExtractKey>(self, room: Arc<WaitingRoom>, keys: X) -> LimitLayer<Recalling<X, L, P>, C, R> {
        self.map_gate(|line| Recalling {
            lane: line.policy.lane_of(room.kept_for(), room.max_places()),
            line,
            room,
            keys,
        })
    }
}

/// One policy for all requests, of which those that it refuses are told when to come back. Made by
/// [`LimitLayer::waiting_room`].
pub struct Recalling<X: ExtractKey, L: Limiter + 'static, P = OneCall> {
    line: InLine<L, P>,
    lane: Policy<Lane<L>>,
    room: Arc<WaitingRoom>,
    keys: X,
}

impl<X, L, P> Gate for Recalling<X, L, P>
where
    X: ExtractKey<Key: Hash + Send + 'static>,
    L: Limiter + 'static,
    P: Price,
{
    type Limiter = Policy<L>;

    #[inline]
    fn admit(&self, head: &Head<'_>) -> Admission<Policy<L>> {
        let key = if self.room.is_empty() {
            None
        } else {
            self.keys.key(head)
        };
        let key = match key {
            Some(key) if self.room.redeem(&key) => return self.recalled(self.line.price.price(head), key),
            key => key,
        };
        match self.line.admit(head) {
            Admission::Waiting(wait) => {
                let (room, key) = (Arc::clone(&self.room), key.or_else(|| self.keys.key(head)));
                Admission::Waiting(Box::pin(async move {
                    let waited = wait.await;
                    match waited {
                        Ok(permit) => {
                            room.note_served();
                            Ok(permit)
                        }
                        Err(refused) => Err(told(&room, key.as_ref(), refused)),
                    }
                }))
            }
            Admission::Refused(refused) => {
                let key = key.or_else(|| self.keys.key(head));
                Admission::Refused(told(&self.room, key.as_ref(), refused))
            }
            admission => admission,
        }
    }
}

impl<X, L, P> Recalling<X, L, P>
where
    X: ExtractKey<Key: Hash + Send + 'static>,
    L: Limiter + 'static,
{
    /// `key` has come back in time: at once, or in the lane. What the lane took is a permit of the policy like any other.
    #[cold]
    fn recalled(&self, ask: Ask, key: X::Key) -> Admission<Policy<L>> {
        let (policy, lane, room) = (self.line.policy.clone(), self.lane.clone(), Arc::clone(&self.room));
        let mut permit = Permit::before(&lane);
        if admit_in(&lane, &ask, permit.ticket_mut()).is_ok() {
            return Admission::Admitted(permit.owned_by(policy));
        }
        drop(permit);
        Admission::Waiting(Box::pin(async move {
            match lane.admit_owned(ask).await {
                Ok(permit) => {
                    room.note_served();
                    Ok(permit.owned_by(policy))
                }
                Err(rejection) => {
                    if is_want_of_room(rejection.reason) {
                        room.note_broken();
                    }
                    let rejection = reject(&policy, &ask, rejection);
                    Err(told(&room, Some(&key), Refused::by(policy, rejection)))
                }
            }
        }))
    }
}

/// Refused for what a place makes up for: not for good, not by a circuit. `TimedOut` may be a rate's, which knows its instant.
fn is_want_of_room(reason: Reason) -> bool {
    matches!(reason, Reason::Saturated | Reason::QueueFull | Reason::TimedOut)
}

/// The refusal with the instant of a place. Not earlier than what a leg knows.
#[cold]
fn told<K: Hash, L: Limiter>(room: &WaitingRoom, key: Option<&K>, mut refused: Refused<L>) -> Refused<L> {
    let rejection = &mut refused.rejection;
    if let (Some(key), true) = (key, is_want_of_room(rejection.reason)) {
        let known = rejection.retry_after.unwrap_or_default();
        let wait = match room.book_from(key, known) {
            Ok(wait) => wait,
            // There are no places at all.
            Err(full) if full.retry_after().is_zero() => return refused,
            Err(full) => full.retry_after(),
        };
        rejection.retry_after = rejection.retry_after.max(Some(wait));
        // An instant is known now, where `Saturated` says that there is none.
        rejection.reason = match rejection.reason {
            Reason::Saturated => Reason::QueueFull,
            reason => reason,
        };
    }
    refused
}

impl<X: ExtractKey, L: Limiter + 'static, P> fmt::Debug for Recalling<X, L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recalling")
            .field("room", &self.room)
            .field("lane", &self.lane)
            .finish_non_exhaustive()
    }
}
