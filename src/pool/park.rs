//! Waiting on a thread: a parked thread is a [`Waker`] like any other waiter.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

#[cfg(tollgate_loom)]
use loom::thread::{self, Thread};
#[cfg(tollgate_shuttle)]
use shuttle::thread::{self, Thread};
#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
use std::thread::{self, Thread};

crate::sync::shim::thread_local! {
    /// This thread's own: whoever waits on it, however often, leaves wakers that are known to be the same.
    static PARKER: Arc<Parker> = Arc::new(Parker(thread::current()));
}

/// A handle by which a thread is unparked.
#[derive(Debug)]
pub(super) struct Parker(Thread);

impl Parker {
    pub(super) fn current() -> Arc<Self> {
        PARKER
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Arc::new(Self(thread::current())))
    }

    pub(super) fn unpark(&self) {
        self.0.unpark();
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// Parks this thread until it is unparked, or for `patience` at most.
pub(super) fn park(patience: Option<Duration>) {
    match patience {
        None => thread::park(),
        #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
        Some(patience) => thread::park_timeout(patience),
        // Models have no time.
        #[cfg(any(tollgate_loom, tollgate_shuttle))]
        Some(_) => thread::park(),
    }
}

/// Polls until it is ready, parking this thread in between; `None` once `patience` is over.
pub(super) fn block_on<T>(patience: Option<Duration>, mut poll: impl FnMut(&Waker) -> Poll<T>) -> Option<T> {
    let waker = Waker::from(Parker::current());
    // A patience beyond what the machine's clock can name is no bound.
    let end = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        if let Poll::Ready(value) = poll(&waker) {
            return Some(value);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        park(left);
    }
}
