//! Reads a file on a thread of its own, so that a slow disk or a file server that does not answer holds up nobody else.

use crate::sync::wake::quietly;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread;

/// A reading that has begun. Whoever drops the future that waits for it finds it here again.
pub(super) struct Reading<T>(Arc<Mutex<Slot<T>>>);

struct Slot<T> {
    found: Option<T>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Reading<T> {
    /// Begins to `read`: here and now when no thread can be had.
    pub(super) fn start(read: impl Fn() -> T + Clone + Send + 'static) -> Self {
        let slot = Arc::new(Mutex::new(Slot {
            found: None,
            waker: None,
        }));
        let (there, reader) = (Arc::clone(&slot), read.clone());
        let thread = thread::Builder::new().name("tollgate-policy".into());
        let started = thread.spawn(move || {
            let found = reader();
            let waker = {
                let mut slot = there.lock();
                slot.found = Some(found);
                slot.waker.take()
            };
            if let Some(waker) = waker {
                quietly(|| waker.wake());
            }
        });
        if started.is_err() {
            slot.lock().found = Some(read());
        }
        Self(slot)
    }

    /// Waits for what was read.
    pub(super) async fn found(&self) -> T {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut slot = self.0.lock();
            if let Some(found) = slot.found.take() {
                drop(slot);
                return Poll::Ready(found);
            }
            let old = slot.waker.replace(waker);
            drop(slot);
            drop(old);
            Poll::Pending
        })
        .await
    }
}
