//! The client behind its lock, shared by the handle, the permits and the driver.

use super::backend::Backend;
use super::client::Client;
use crate::sync::wake::wake_all;
use crate::time::Clock;
use parking_lot::Mutex;

pub(super) struct Shared<B> {
    client: Mutex<Client>,
    pub(super) backend: B,
    pub(super) clock: Clock,
    pub(super) name: Box<str>,
}

impl<B: Backend> Shared<B> {
    pub(super) fn new(client: Client, backend: B, clock: Clock) -> Self {
        Self {
            name: client.config().name.as_str().into(),
            client: Mutex::new(client),
            backend,
            clock,
        }
    }

    /// Changes the client, and wakes its wakers once it is unlocked.
    #[inline]
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Client) -> R) -> R {
        let mut client = self.client.lock();
        let result = change(&mut client);
        let wakers = client.take_wakers();
        drop(client);
        if !wakers.is_empty() {
            wake_all(wakers);
        }
        result
    }
}
