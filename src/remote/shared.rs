//! The client behind its lock, shared by the handle, the permits and the driver.

use super::backend::Backend;
use super::client::{Client, RemoteTicket};
use super::lent::Lent;
use crate::core::refusal::{LegName, Reason};
use crate::sync::wait_queue::Watchers;
use crate::sync::wake::wake_all;
use crate::time::{Clock, Instant};
use parking_lot::Mutex;

pub(super) struct Shared<B> {
    client: Mutex<Client>,
    lent: Lent,
    pub(super) backend: B,
    pub(super) clock: Clock,
    pub(super) name: Box<str>,
    /// The name in refusals.
    pub(super) leg: LegName,
    /// Told when the limit has changed.
    pub(super) watchers: Watchers,
    /// Admissions spend tokens: nothing comes back when they end.
    pub(super) admits_tokens: bool,
}

impl<B: Backend> Shared<B> {
    pub(super) fn new(client: Client, backend: B, clock: Clock) -> Self {
        Self {
            name: client.config().name.as_str().into(),
            leg: LegName::copied(client.config().name.as_str()),
            watchers: Watchers::new(),
            admits_tokens: client.config().admits_tokens(),
            client: Mutex::new(client),
            lent: Lent::default(),
            backend,
            clock,
        }
    }

    /// Changes the client, and wakes its wakers once it is unlocked.
    #[inline]
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Client) -> R) -> R {
        let mut client = self.client.lock();
        if let Some(returned) = self.lent.take_back() {
            client.take_back(returned);
        }
        let result = change(&mut client);
        let (wakers, changed) = (client.take_wakers(), client.take_changed());
        drop(client);
        if changed {
            self.watchers.changed();
        }
        if !wakers.is_empty() {
            wake_all(wakers);
        }
        result
    }

    /// Takes `n` units that are here, or returns what `otherwise` makes of the reason for a refusal.
    #[inline]
    pub(super) fn acquire<E>(
        &self,
        n: u64,
        now: Instant,
        otherwise: impl FnOnce(&mut Client, Reason) -> E,
    ) -> Result<RemoteTicket, E> {
        match self.lent.take(n, now) {
            Some(ticket) => Ok(ticket),
            None => self.acquire_slow(n, now, otherwise),
        }
    }

    /// Takes a ticket back: its work has ended, or does not start.
    #[inline]
    pub(super) fn refund(&self, ticket: RemoteTicket, cancelled: bool) {
        if self.admits_tokens && !cancelled || !self.admits_tokens && self.lent.put_back(&ticket) {
            return;
        }
        let now = self.clock.now();
        self.with(|client| client.refund(ticket, cancelled, now));
    }

    #[inline(never)]
    fn acquire_slow<E>(
        &self,
        n: u64,
        now: Instant,
        otherwise: impl FnOnce(&mut Client, Reason) -> E,
    ) -> Result<RemoteTicket, E> {
        self.with(|client| match client.acquire(n, now) {
            Ok(ticket) => {
                if let Some(loan) = client.lend(now) {
                    self.lent.lend(loan);
                }
                Ok(ticket)
            }
            Err(reason) => Err(otherwise(client, reason)),
        })
    }
}
