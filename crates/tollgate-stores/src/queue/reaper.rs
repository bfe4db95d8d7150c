//! Ends sessions whose limiters have gone silently, or whose ends have failed: the store's own client would keep them up for
//! ever.

use super::{Inner, LINGER, NodeStore, PAUSE};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

impl<S: NodeStore> Inner<S> {
    /// Ends the sessions that were silent for their time to live. Returns when the next is due.
    async fn reap(&self) -> Option<Instant> {
        let now = Instant::now();
        let slots: Vec<_> = self
            .slots
            .lock()
            .iter()
            .map(|(id, slot)| (id.clone(), Arc::clone(slot)))
            .collect();
        for ((key, session), slot) in slots {
            let Ok(_account) = slot.diff.try_lock() else {
                continue;
            };
            // Read when no sync can defer it any more.
            if *slot.due.lock() > now {
                continue;
            }
            // It is retried until it is done, or nothing is left to do.
            let end = self.store.end(Some(&slot.term), slot.ttl, &key, session);
            if self.store.is_gone(&slot.term) || end.await.is_ok() {
                self.forget(&key, session);
            } else {
                *slot.due.lock() = Instant::now() + (slot.ttl / 16).clamp(PAUSE, LINGER);
            }
        }
        self.slots.lock().values().map(|slot| *slot.due.lock()).min()
    }
}

/// Ends silent sessions as long as there is a handle.
pub(super) async fn reap<S: NodeStore>(inner: Weak<Inner<S>>, filled: Arc<Notify>) {
    loop {
        let Some(there) = inner.upgrade() else { return };
        let due = there.reap().await;
        drop(there);
        let filled = filled.notified();
        match due {
            // Whichever comes first.
            Some(due) => drop(timeout_at(due.max(Instant::now() + PAUSE), filled).await),
            None => filled.await,
        }
    }
}
