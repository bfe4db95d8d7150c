//! What an admission at one of many keys holds, and the loss of its permits.

use super::key::RemoteKey;
use super::reserved::Charge;
use crate::core::ask::Cost;
use crate::core::permit::Permit;
use crate::core::ticket::Ticket;
use crate::remote::backend::Backend;
use crate::remote::step::{KeyLeg, LegUnits};
use crate::time::Sleep;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// A permit of a [`RemoteKey`]. What it holds of semaphores goes back when it is dropped; [`settle`](Permit::settle) corrects the cost of
/// rates and windows.
pub type RemoteKeyPermit<B> = Permit<RemoteKey<B>>;

/// The ticket of a [`RemoteKey`].
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate::remote::{Memory, RemoteKey, RemoteKeyTicket};
/// fn is_ticket<L: Limiter<Ticket = RemoteKeyTicket>>() -> bool {
///     true
/// }
/// assert!(is_ticket::<RemoteKey<Memory>>());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RemoteKeyTicket {
    /// When the units were taken, by the store's clock; [`UNCOUNTED`] for an admission that is not counted.
    pub(super) at: u64,
    /// The number of the lease of its permits; zero without any.
    pub(super) lease: u64,
    pub(super) units: LegUnits,
    /// What of them is used for certain.
    pub(super) spent: LegUnits,
}

impl RemoteKeyTicket {
    pub(super) fn charge(&self) -> Charge {
        Charge {
            units: self.units,
            spent: self.spent,
        }
    }
}

pub(super) const UNCOUNTED: u64 = u64::MAX;

impl Ticket for RemoteKeyTicket {
    const WORDS: usize = 2 + 2 * KeyLeg::MOST;

    fn write(&self, words: &mut [u64]) {
        words[..2].copy_from_slice(&[self.at, self.lease]);
        words[2..2 + KeyLeg::MOST].copy_from_slice(&self.units);
        words[2 + KeyLeg::MOST..Self::WORDS].copy_from_slice(&self.spent);
    }

    fn read(words: &[u64]) -> Self {
        let (mut units, mut spent) = (LegUnits::default(), LegUnits::default());
        units.copy_from_slice(&words[2..2 + KeyLeg::MOST]);
        spent.copy_from_slice(&words[2 + KeyLeg::MOST..Self::WORDS]);
        Self {
            at: words[0],
            lease: words[1],
            units,
            spent,
        }
    }
}

/// A watch for the loss of a lease, which ends when this is dropped.
struct Watching<'a, B: Backend> {
    key: &'a RemoteKey<B>,
    number: Option<u64>,
}

impl<B: Backend> Drop for Watching<'_, B> {
    fn drop(&mut self) {
        let shared = &self.key.handles.0;
        let unwatch = |number| shared.with(|client| client.unwatch(&self.key.key, number));
        drop(self.number.map(unwatch));
    }
}

impl<B: Backend> RemoteKeyPermit<B> {
    /// True when the lease of its permits has ended, or the store has lost it: they may have another holder. Units of rates and
    /// windows are never lost, nor are admissions while the store was unavailable.
    pub fn is_lost(&self) -> bool {
        self.good_for() == Some(Duration::ZERO)
    }

    /// Notes that `units` more of what it has [reserved](super::RemoteKeyedBuilder::reserves) of `cost` are used: they stay charged, also if this
    /// process dies. No more than are reserved. It is told to the store with the next step at the key, within a third of a time to live.
    ///
    /// Without reservations, and for rates, it does nothing: what was taken is charged.
    ///
    /// ```
    /// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
    /// # use tollgate::{Ask, Cost, ManualClock};
    /// # use std::time::Duration;
    /// const TOKENS: Cost = Cost::new("tokens");
    /// let clock = ManualClock::new();
    /// let day = RemoteLeg::window("tokens", 1_000, Duration::from_secs(86_400)).per(TOKENS);
    /// let limits = KeyedLimits::new(100, "free", [day]);
    /// let tenants = Remote::keyed(Key::new("tenants")?, limits).reserves(true).on(&clock).in_place(Memory::new(&clock))?;
    /// let acme = tenants.get("acme")?;
    /// clock.run(async {
    ///     let mut permit = acme.acquire_now(Ask::one().cost(TOKENS, 900)).await.unwrap();
    ///     permit.spend(TOKENS, 300);
    ///     permit.settle(TOKENS, 400).unwrap();
    ///     assert!(acme.acquire_now(Ask::one().cost(TOKENS, 600)).await.is_ok());
    /// });
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn spend(&mut self, cost: Cost, units: u64) {
        let key = self.limiter().clone();
        let Some(ticket) = self.ticket_mut().as_mut() else {
            return;
        };
        let before = ticket.charge();
        for leg in key.legs.counting(cost).filter(|&leg| key.legs.is_window(leg)) {
            ticket.spent[leg] = ticket.spent[leg].saturating_add(units).min(ticket.units[leg]);
        }
        let after = ticket.charge();
        if key.handles.0.reserves && ticket.at != UNCOUNTED && after != before {
            let (shared, at) = (&key.handles.0, ticket.at);
            shared.with(|client| client.recharge(&key.key, &key.legs, at, &before, &after, false));
        }
    }

    /// Ends when its permits are lost, see [`is_lost`](Self::is_lost); never if it has none.
    ///
    /// # Cancel safety
    /// It may be dropped at any point.
    ///
    /// ```
    /// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
    /// # use tollgate::time::Sleep;
    /// # use tollgate::ManualClock;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let limits = KeyedLimits::new(100, "free", [RemoteLeg::permits("in flight", 4)]);
    /// let tenants = Remote::keyed(Key::new("tenants")?, limits).on(&clock).in_place(Memory::new(&clock))?;
    /// # clock.run(async {
    /// let permit = tenants.get("acme").unwrap().acquire(1).await.unwrap();
    /// let work = clock.sleep(Duration::from_secs(60));
    /// let done = futures::future::select(work, Box::pin(permit.lost())).await;
    /// assert!(matches!(done, futures::future::Either::Left(_)), "renewed all the time");
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn lost(&self) {
        let (key, shared) = (self.limiter(), &*self.limiter().handles.0);
        let Some(ticket) = self.ticket().copied().filter(|ticket| ticket.lease > 0) else {
            return std::future::pending().await;
        };
        let mut watching = Watching { key, number: None };
        let mut timer: Option<Sleep> = None;
        poll_fn(|cx| {
            loop {
                let (now, waker, number) = (shared.clock.now(), cx.waker().clone(), &mut watching.number);
                let (deadline, old) = shared.with(|client| client.watch(&key.key, ticket.lease, number, waker, now));
                drop(old);
                let Some(deadline) = deadline else {
                    return Poll::Ready(());
                };
                let timer = timer.get_or_insert_with(|| Sleep::until(&shared.clock, deadline));
                timer.reset(deadline);
                if Pin::new(timer).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// How long its permits are valid unless their lease is renewed; zero when they are lost. `None` if it has none.
    pub fn good_for(&self) -> Option<Duration> {
        let ticket = self.ticket().copied().filter(|ticket| ticket.lease > 0)?;
        let (key, shared) = (self.limiter(), &self.limiter().handles.0);
        let now = shared.clock.now();
        shared.with(|client| {
            let deadline = client.deadline(&key.key);
            let deadline = deadline.filter(|_| !client.is_lost(&key.key, ticket.lease, now));
            Some(deadline.map_or(Duration::ZERO, |deadline| shared.clock.between(now, deadline)))
        })
    }
}
